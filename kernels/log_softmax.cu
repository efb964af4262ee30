// Statistics of the rows of logits and the gradient's softmax part, in one pass: logits are read once, the gradient is
// written once.
//
//     log_sums[n][t] = log sum over all classes of exp(logit),   gradient[n][t][v] = shares[n] exp(logit - log_sums[n][t])
//
// What a recursion makes of logits differs from what it makes of log-probabilities by exactly the sum of log_sums over the
// frames, and occupancies, equation (7) of fsachain/recursion.py, do not differ at all: so the recursion reads the logits
// as they are, its occupancies, times the shares, are subtracted from `gradient`, and no log-probabilities are ever stored.
//
// A warp works on a row. Lane i holds classes i, i + 32, ... in registers, `kept` of them at a time, and keeps the largest so
// far and the sum of exp(logit - largest); the lanes' sums are put together at the end. exp is of the logits' own precision
// (float32 at least), sums are in float64. NaN, +inf and a row of nothing but -inf give NaN. No shared memory, no barrier.

#include "block_sum.cuh"
#include "elements.cuh"

#ifndef OUT
#define OUT float
#endif

namespace fsachain {

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

template <typename Real>
struct Row {
  static constexpr int kept = 64 / sizeof(Real);  // 64 bytes: as many as fit into registers without spills

  const ELEMENT* logits;
  long long num_classes, by_class;
  Real held[kept];

  // Classes begin + 32 r of this lane; -inf, which adds nothing, for those past the end.
  __device__ __forceinline__ void load(long long begin) {
#pragma unroll
    for (int r = 0; r < kept; ++r) {
      const long long v = begin + 32 * r;
      held[r] = v < num_classes ? static_cast<Real>(number_of(logits[v * by_class])) : static_cast<Real>(-infinity());
    }
  }
};

// The largest logit of the row and the sum of exp(logit - largest), both for all lanes; false for an illegal row.
template <typename Real>
__device__ __forceinline__ bool statistics(Row<Real>& row, Real& largest, double& sum) {
  constexpr int kept = Row<Real>::kept;
  const int lane = threadIdx.x % 32;
  const Real nothing = -infinity();
  Real top = nothing;
  bool legal = true;
  sum = 0.0;
  for (long long begin = lane; begin - lane < row.num_classes; begin += 32 * kept) {
    row.load(begin);
    Real now = top;
#pragma unroll
    for (int r = 0; r < kept; ++r) {
      legal = legal && row.held[r] < infinity();
      now = row.held[r] > now ? row.held[r] : now;
    }
    if (now == nothing) continue;
    if (now > top) sum *= exp_of(top - now);
    top = now;
#pragma unroll
    for (int r = 0; r < kept; ++r) sum += exp_of(row.held[r] - top);
  }
  largest = top;
  for (int apart = 16; apart > 0; apart /= 2) {
    const Real other = __shfl_xor_sync(0xffffffffu, largest, apart);
    largest = other > largest ? other : largest;
  }
  legal = __all_sync(0xffffffffu, legal) && largest > nothing;
  sum = warp_sum(top == nothing ? 0.0 : sum * exp_of(top - largest));
  return legal;
}

}  // namespace fsachain

// log_sums [N][num_frames]; `gradient` [N, num_frames, num_classes] may be null; its rows past a sequence's end become 0.
// Blocks of a multiprocessor are asked for, because the compiler would else spill to have more of them.
extern "C" __global__ void __launch_bounds__(256, sizeof(ELEMENT) == 4 ? 3 : 2)
    log_softmax(const ELEMENT* logits, long long by_sequence, long long by_frame, long long by_class,
                long long num_sequences, long long num_frames, long long num_classes, const long long* lengths,
                const double* shares, double* log_sums, OUT* gradient, long long out_by_sequence, long long out_by_frame,
                long long out_by_class) {
  using namespace fsachain;
  using Real = decltype(number_of(*logits));
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const long long index = static_cast<long long>(blockIdx.x) * warps + threadIdx.x / 32;
  if (index >= num_sequences * num_frames) return;  // a whole warp
  const long long n = index / num_frames, t = index % num_frames;
  OUT* into = gradient ? gradient + n * out_by_sequence + t * out_by_frame : nullptr;
  if (t >= lengths[n]) {
    if (into)
      for (long long v = lane; v < num_classes; v += 32) into[v * out_by_class] = 0;
    return;
  }
  constexpr int kept = Row<Real>::kept;
  Row<Real> row;
  row.logits = logits + n * by_sequence + t * by_frame;
  row.num_classes = num_classes;
  row.by_class = by_class;
  Real largest;
  double sum;
  const bool legal = statistics(row, largest, sum);
  // Before the logarithm: behind it, registers spill.
  const Real share = static_cast<Real>(1.0 / sum) * static_cast<Real>(shares[n]);
  if (lane == 0) log_sums[index] = legal ? static_cast<double>(largest) + log(sum) : static_cast<double>(not_a_number());
  if (!into) return;
  for (long long begin = lane; begin - lane < num_classes; begin += 32 * kept) {
    if (num_classes > 32 * kept) row.load(begin);  // else it still stands in the registers
#pragma unroll
    for (int r = 0; r < kept; ++r) {
      const long long v = begin + 32 * r;
      if (v < num_classes) into[v * out_by_class] = static_cast<OUT>(exp_of(row.held[r] - largest) * share);
    }
  }
}
