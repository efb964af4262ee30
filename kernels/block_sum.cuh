// Sums over the threads of a block in an order that depends on nothing but the number of threads.

#ifndef FSACHAIN_BLOCK_SUM_CUH_
#define FSACHAIN_BLOCK_SUM_CUH_

namespace fsachain {

__device__ __forceinline__ double warp_sum(double value) {
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

// The sum over all threads, for all of them. `parts` [blockDim.x / 32] lies in shared memory; all threads must come here.
__device__ __forceinline__ double block_sum(double value, double* parts) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) total += parts[w];
  __syncthreads();  // parts may be written again
  return total;
}

}  // namespace fsachain

#endif  // FSACHAIN_BLOCK_SUM_CUH_
