// Normalizers of transducers whose joiner only adds, where a product of matrices has lost them:
//
//     log_sums(n, s, t) = log sum over c of exp(am(n, t, c) + lm(n, s, c))
//
// The product of exp(am - largest) and exp(lm - largest) gives `sums` for all pairs (s, t) at once. Where a sum is below
// `least` (or NaN) it cannot be trusted; such pairs are summed here one by one, in the log domain, exact at any magnitude. Which
// they are is known on the device alone, so the host launches for all pairs: a warp looks at 32 of them and works on those that
// it finds, its lanes along the classes. Every element has one writer and every sum a fixed order. No shared memory, no barrier
// but those of a warp.
//
// am [N][T][C] and lm [N][S][C] are contiguous, as are sums, log_sums and factors [N][S][T].

#include "elements.cuh"

namespace fsachain {

constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }

// log sum of exp(x[c] + y[c]), for all lanes; NaN and infinities as they come.
__device__ __forceinline__ ELEMENT log_sum(const ELEMENT* x, const ELEMENT* y, long long num_classes) {
  const long long lane = threadIdx.x % 32;
  ELEMENT largest = -infinity();
  for (long long c = lane; c < num_classes; c += 32) {
    const ELEMENT value = x[c] + y[c];
    largest = value > largest ? value : largest;
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    const ELEMENT other = __shfl_xor_sync(kAll, largest, apart);
    largest = other > largest ? other : largest;
  }
  // An infinite one would leave NaN; without it, exp makes 0 or inf of what is infinite, as it should be.
  const ELEMENT shift = largest > -infinity() && largest < infinity() ? largest : 0;
  ELEMENT total = 0;
  for (long long c = lane; c < num_classes; c += 32) total += exp_of(x[c] + y[c] - shift);
  for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(kAll, total, apart);
  return shift + log_of(total);
}

}  // namespace fsachain

// log_sums of the pairs whose sum is not above `least`; the others stay what they are.
extern "C" __global__ void __launch_bounds__(THREADS)
    pair_log_sums(const ELEMENT* am, const ELEMENT* lm, const ELEMENT* sums, ELEMENT least, long long num_frames,
                  long long num_positions, long long num_classes, long long num_pairs, ELEMENT* log_sums) {
  using namespace fsachain;
  const int lane = threadIdx.x % 32;
  const long long warp = blockIdx.x * static_cast<long long>(THREADS / 32) + threadIdx.x / 32;
  const long long begin = 32 * warp;
  const bool weak = begin + lane < num_pairs && !(sums[begin + lane] > least);
  for (unsigned left = __ballot_sync(kAll, weak); left != 0; left &= left - 1) {
    const long long pair = begin + __ffs(static_cast<int>(left)) - 1;
    const long long position = pair / num_frames;  // over all sequences
    const long long frame = position / num_positions * num_frames + pair % num_frames;
    const ELEMENT found = log_sum(am + frame * num_classes, lm + position * num_classes, num_classes);
    if (lane == 0) log_sums[pair] = found;
  }
}

// into [N][num_own][C] += what those pairs have of sum over others of factor x d log_sum / d own: of am if its frames are the
// own and positions the others, of lm the other way round. by_own and by_other: from pair to pair of a sequence.
extern "C" __global__ void __launch_bounds__(THREADS)
    pair_gradient(const ELEMENT* own, const ELEMENT* other, const ELEMENT* sums, ELEMENT least, const ELEMENT* log_sums,
                  const ELEMENT* factors, long long num_own, long long num_other, long long by_own, long long by_other,
                  long long num_classes, long long num_rows, ELEMENT* into) {
  using namespace fsachain;
  const int lane = threadIdx.x % 32;
  const long long row = blockIdx.x * static_cast<long long>(THREADS / 32) + threadIdx.x / 32;
  if (row >= num_rows) return;
  const long long n = row / num_own, first = n * num_own * num_other + row % num_own * by_own;
  const ELEMENT* mine = own + row * num_classes;
  ELEMENT* out = into + row * num_classes;
  for (long long begin = 0; begin < num_other; begin += 32) {
    const long long pair = first + (begin + lane) * by_other;
    const bool there = begin + lane < num_other;
    const ELEMENT factor = there ? factors[pair] : 0;
    // A pair without a factor may have no softmax: a row of nothing but -inf.
    const bool weak = there && factor != 0 && !(sums[pair] > least);
    const ELEMENT log_sum = weak ? log_sums[pair] : 0;
    for (unsigned left = __ballot_sync(kAll, weak); left != 0; left &= left - 1) {
      const int source = __ffs(static_cast<int>(left)) - 1;
      const ELEMENT share = __shfl_sync(kAll, factor, source), total = __shfl_sync(kAll, log_sum, source);
      const ELEMENT* its = other + (n * num_other + begin + source) * num_classes;
#pragma unroll 1  // else float64 spills registers on sm_90
      for (long long c = lane; c < num_classes; c += 32) out[c] += share * exp_of(mine[c] + its[c] - total);
    }
  }
}
