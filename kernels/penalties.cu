// The penalties on large scores, one pass over them: sums of y^2 and (|y| - limit)_+^2 over the real frames of each sequence,
// and the derivative of -1/2 l2 and -1/2 out_of_range times w times these, which is added to the gradient; and all that a
// loss adds up over its sequences.
//
// Block (n, c) works on frames ROWS c .. ROWS c + ROWS - 1 of sequence n, a warp on a frame, its lanes along the pdfs. Which
// thread adds what, and so every bit, depends on the sequence's own length and the number of pdfs alone. Sums are in float64;
// where l2 is 0, a score within the limit costs a comparison and no float64 instruction.
//
// Where the gradient's factor is known only in the backward pass, the derivative is added there, in the pass that scales.
//
// Shared memory: double parts[blockDim.x / 32].

#include "block_sum.cuh"
#include "elements.cuh"

#ifndef ROWS
#define ROWS 32
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

struct Penalty {
  double l2, out_of_range, limit;
};

using Number = decltype(number_of(ELEMENT()));  // of the gradient: float, double for scores in double

constexpr int kTogether = 4;  // loads of a lane that are under way at the same time

// The derivative of what one score y costs that is `excess` beyond the limit.
__device__ __forceinline__ double slope(double y, double excess, const Penalty& penalty) {
  return fma(penalty.l2, y, penalty.out_of_range * excess);
}

// Whether a score costs anything, and by how much it is beyond the limit. Infinite scores and NaN cost nothing.
template <typename Real>
__device__ __forceinline__ bool costs(Real y, const Penalty& penalty, double& excess) {
  const bool within = y >= -penalty.limit && y <= penalty.limit;
  excess = within ? 0.0 : y > 0.0 ? y - penalty.limit : y + penalty.limit;
  return within ? penalty.l2 != 0.0 : y > -infinity() && y < infinity();
}

// What one score costs.
template <typename Real>
__device__ __forceinline__ void add_score(Real y, const Penalty& penalty, double& squares, double& excesses) {
  double excess;
  if (!costs(y, penalty, excess)) return;
  const double value = y;
  squares = fma(value, value, squares);
  excesses = fma(excess, excess, excesses);
}

}  // namespace fsachain

// sums [N][gridDim.y][2]: both of each block of each sequence, without the weight; blocks past its end write nothing.
extern "C" __global__ void __launch_bounds__(256)
    penalties(const ELEMENT* scores, long long by_sequence, long long by_frame, long long by_pdf, long long num_pdfs,
              const double* lengths, double l2, double out_of_range, double limit, double* sums) {
  using namespace fsachain;
  const long long n = blockIdx.x, length = static_cast<long long>(lengths[n]);
  const long long first = static_cast<long long>(blockIdx.y) * ROWS, last = length < first + ROWS ? length : first + ROWS;
  if (first >= last) return;
  const Elements elements{scores, by_sequence, by_frame, by_pdf};
  const Penalty penalty{l2, out_of_range, limit};
  double squares = 0.0, excesses = 0.0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (long long t = first + warp; t < last; t += warps) {
    const ELEMENT* row = elements.row(n, t);
    for (long long begin = lane; begin < num_pdfs; begin += 32 * kTogether) {
      ELEMENT held[kTogether];
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
        if (begin + 32 * r < num_pdfs) held[r] = row[(begin + 32 * r) * by_pdf];
#pragma unroll
      for (int r = 0; r < kTogether; ++r)
        if (begin + 32 * r < num_pdfs) add_score(number_of(held[r]), penalty, squares, excesses);
    }
  }
  double* parts = reinterpret_cast<double*>(shared_memory);
  squares = block_sum(squares, parts);
  excesses = block_sum(excesses, parts);
  if (threadIdx.x == 0) {
    double* place = sums + 2 * (n * gridDim.y + blockIdx.y);
    place[0] = squares;
    place[1] = excesses;
  }
}

// values [N] = num - scale x den, NaN where that is not finite, 0 where it is above 0 by no more than rounding may do: that is
// `rounding` of frames and log Z, and most for each frame; ok [N]: where it is finite; total: the objective, the penalties and
// consistency[0], which is_divided says are divided; sums: `SUMS` of fsachain/loss/base.py. penalty_sums: of `penalties`; it and
// consistency may be null. One block.
extern "C" __global__ void __launch_bounds__(256)
    loss_terms(const double* num, const double* den, const double* weights, const double* lengths, long long num_sequences,
               double scale, double excluded_objf, const double* penalty_sums, long long num_blocks, double l2,
               double out_of_range, const double* consistency, int is_divided, double rounding, double most, double* values, unsigned char* ok, double* sums,
               double* total) {
  using namespace fsachain;
  double objf = 0.0, squares = 0.0, excesses = 0.0, frames = 0.0, frames_ok = 0.0;
  for (long long n = threadIdx.x; n < num_sequences; n += blockDim.x) {
    const double own_frames = weights[n] * lengths[n];
    double value = num[n] - scale * den[n];
    if (value > 0.0 && value <= rounding * (lengths[n] + fabs(num[n]) + fabs(den[n])) && value <= most * lengths[n]) value = 0.0;
    const bool is_ok = value > -infinity() && value < infinity();
    values[n] = is_ok ? value : static_cast<double>(not_a_number());
    ok[n] = is_ok;
    frames += own_frames;
    if (!is_ok) continue;
    frames_ok += own_frames;
    objf += weights[n] * value;
    if (penalty_sums == nullptr || weights[n] == 0.0) continue;
    double own[2] = {0.0, 0.0};
    for (long long c = 0; c * ROWS < lengths[n]; ++c) {
      own[0] += penalty_sums[2 * (n * num_blocks + c)];
      own[1] += penalty_sums[2 * (n * num_blocks + c) + 1];
    }
    squares = fma(weights[n], own[0], squares);
    excesses = fma(weights[n], own[1], excesses);
  }
  double* parts = reinterpret_cast<double*>(shared_memory);
  objf = block_sum(objf, parts);
  squares = block_sum(squares, parts);
  excesses = block_sum(excesses, parts);
  frames = block_sum(frames, parts);
  frames_ok = block_sum(frames_ok, parts);
  if (threadIdx.x > 0) return;
  const double of_squares = -0.5 * l2 * squares, of_excesses = -0.5 * out_of_range * excesses;
  const double apart = consistency == nullptr ? 0.0 : consistency[0];
  const double divisor = frames_ok > 0.0 ? -frames_ok : -1.0, all = objf + (of_squares + of_excesses) + apart;
  total[0] = (is_divided ? all / divisor : all) + 0.0;  // 0 and not -0
  sums[0] = objf + excluded_objf * (frames - frames_ok);
  sums[1] = objf;
  sums[2] = of_squares;
  sums[3] = of_excesses;
  sums[4] = 0.0;
  sums[5] = apart;
  sums[6] = frames;
  sums[7] = frames_ok;
  sums[8] = divisor;
}

// out = factor x frame_weights[n][t] x (gradient + the derivative of the penalties), 0 behind a sequence's length and where it is
// not ok; `out` is of the scores' type and may be the same array as the gradient. divisor: of the factor; it and frame_weights may
// be null.
extern "C" __global__ void __launch_bounds__(256)
    finish_gradient(const ELEMENT* scores, long long by_sequence, long long by_frame, long long by_pdf, long long num_frames,
                    long long num_pdfs, const fsachain::Number* gradient, long long gradient_by_sequence,
                    long long gradient_by_frame, long long gradient_by_pdf, const double* lengths, const double* weights,
                    const unsigned char* ok, double l2, double out_of_range, double limit, const double* frame_weights,
                    const double* factor, const double* divisor, ELEMENT* out, long long out_by_sequence, long long out_by_frame, long long out_by_pdf) {
  using namespace fsachain;
  const long long n = blockIdx.x, first = static_cast<long long>(blockIdx.y) * ROWS;
  const long long last = num_frames < first + ROWS ? num_frames : first + ROWS;
  const double weight = weights[n], of_all = divisor ? factor[0] / divisor[0] : factor[0];
  const Penalty penalty{l2, out_of_range, limit};
  for (long long t = first + threadIdx.x / 32; t < last; t += blockDim.x / 32) {
    const ELEMENT* row = scores + n * by_sequence + t * by_frame;
    const Number* from = gradient + n * gradient_by_sequence + t * gradient_by_frame;
    ELEMENT* into = out + n * out_by_sequence + t * out_by_frame;
    if (!ok[n] || t >= lengths[n]) {
      for (long long p = threadIdx.x % 32; p < num_pdfs; p += 32) put(into + p * out_by_pdf, 0.0f);
      continue;
    }
    const double scale = of_all * (frame_weights ? frame_weights[n * num_frames + t] : 1.0);
    for (long long begin = threadIdx.x % 32; begin < num_pdfs; begin += 32 * kTogether) {
      ELEMENT held[kTogether];
      Number values[kTogether];
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        if (begin + 32 * r >= num_pdfs) break;
        held[r] = row[(begin + 32 * r) * by_pdf];
        values[r] = from[(begin + 32 * r) * gradient_by_pdf];
      }
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        if (begin + 32 * r >= num_pdfs) break;
        double value = values[r], excess;
        const Number y = number_of(held[r]);
        if (costs(y, penalty, excess)) value = fma(-weight, slope(y, excess, penalty), value);
        put(into + (begin + 32 * r) * out_by_pdf, value * scale);
      }
    }
  }
}
