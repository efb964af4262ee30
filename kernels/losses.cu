// From log Z or costs of sequences to the losses of the caller, and what they are reduced to. One block.
//
// Shared memory: double parts[blockDim.x / 32].

#include "block_sum.cuh"
#include "elements.cuh"

#ifndef OUT
#define OUT double
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

// The loss of sequence n is found[n], or 0 - found[n] where that is log Z. Its share of the total is 1, or for a mean
// 1 / num_sequences; with `counts` each loss is a mean over so many labels (at least 1) before. used [N]: the share, 0 where the
// loss is not finite. used, each [N], total and counts may be null. With zero_infinity a loss of +inf counts as 0.
extern "C" __global__ void __launch_bounds__(256)
    reduce_losses(const double* found, int is_log_prob, const long long* counts, long long num_sequences, int is_mean,
                  int zero_infinity, double* used, OUT* each, OUT* total) {
  using namespace fsachain;
  double sum = 0.0;
  for (long long n = threadIdx.x; n < num_sequences; n += blockDim.x) {
    double loss = is_log_prob ? 0.0 - found[n] : found[n];  // not -found[n]: no frames cost 0 and not -0
    double share = 1.0;
    if (is_mean) share /= static_cast<double>((counts && counts[n] > 1 ? counts[n] : 1) * num_sequences);
    if (used) used[n] = loss < infinity() ? share : 0.0;
    if (zero_infinity && loss == infinity()) loss = 0.0;
    if (each) put(each + n, loss);
    sum += share * loss;
  }
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory));
  if (total && threadIdx.x == 0) put(total, sum);
}
