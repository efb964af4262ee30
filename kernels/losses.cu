// From log Z or costs of sequences to the losses of the caller, and what they are reduced to. One block.
//
// Shared memory: double parts[blockDim.x / 32].

#include "block_sum.cuh"
#include "elements.cuh"

#ifndef OUT
#define OUT double
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

// The loss of sequence n is found[n], or 0 - found[n] where that is log Z; one below 0 by at most `rounding` is 0, and with
// zero_infinity one of +inf counts as 0. The total
// takes shares[n] of it, or `share` where shares are null. each [N] and total may be null.
extern "C" __global__ void __launch_bounds__(256)
    reduce_losses(const double* found, int is_log_prob, long long num_sequences, const double* shares, double share,
                  int zero_infinity, double rounding, OUT* each, OUT* total) {
  using namespace fsachain;
  double sum = 0.0;
  for (long long n = threadIdx.x; n < num_sequences; n += blockDim.x) {
    double loss = is_log_prob ? 0.0 - found[n] : found[n];  // not -found[n]: no frames cost 0 and not -0
    if (zero_infinity && loss == infinity()) loss = 0.0;
    if (loss < 0.0 && loss >= -rounding) loss = 0.0;
    if (each) put(each + n, loss);
    sum += (shares ? shares[n] : share) * loss;
  }
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory));
  if (total && threadIdx.x == 0) put(total, sum);
}
