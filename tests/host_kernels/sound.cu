// Kernels without a fault, one for each thing that the host has to do as a GPU does it.

#include <cooperative_groups.h>

#include "../../kernels/cluster.cuh"

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace cg = cooperative_groups;

// Sums each row of a matrix through shared memory: barriers order the steps.
extern "C" __global__ void sum_rows(const float* in, float* out, int columns) {
  float* partial = reinterpret_cast<float*>(shared_memory);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += in[blockIdx.x * columns + i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

// The same by the warps' own means.
extern "C" __global__ void sum_rows_by_warps(const float* in, float* out, int columns) {
  float* partial = reinterpret_cast<float*>(shared_memory);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += in[blockIdx.x * columns + i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  cg::this_thread_block().sync();
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += partial[warp];
  out[blockIdx.x] = sum;
}

// Threads that have nothing to do return; the barriers are for those that stay.
extern "C" __global__ void return_early(int* out, int count) {
  int* shared = reinterpret_cast<int*>(shared_memory);
  if (threadIdx.x >= count) return;
  shared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = shared[count - 1 - threadIdx.x];
}

// Each block of a cluster hands its number round to the others, `rounds` times.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) hand_round(int* out, int rounds) {
  cg::cluster_group cluster = cg::this_cluster();
  int* box = reinterpret_cast<int*>(shared_memory);
  const int rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
  int value = blockIdx.x;
  for (int round = 0; round < rounds; ++round) {
    cluster.barrier_arrive();
    cluster.barrier_wait();
    cluster.map_shared_rank(box, next)[(round % 2) * blockDim.x + threadIdx.x] = value;
    cluster.sync();
    value = box[(round % 2) * blockDim.x + threadIdx.x];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// The blocks of a cluster hand all of their numbers to all blocks, `rounds` times; each thread takes its neighbour's of the next.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) exchange(int* out, int rounds) {
  const int rank = cg::this_cluster().block_rank(), count = blockDim.x;
  int* boxes = reinterpret_cast<int*>(shared_memory + 2 * sizeof(fsachain::Arrivals));
  fsachain::Exchange exchange(reinterpret_cast<fsachain::Arrivals*>(shared_memory), rank);
  fsachain::sync_cluster();
  int value = blockIdx.x * count + threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    int* box = boxes + round % 2 * CLUSTER * count;
    exchange.store(box + rank * count + threadIdx.x, value);
    exchange.end(CLUSTER * count * sizeof(int));
    value = box[(rank + 1) % CLUSTER * count + (threadIdx.x + 1) % count];
  }
  out[blockIdx.x * count + threadIdx.x] = value;
}

// A barrier for all blocks of a grid, as kernels of a cooperative launch make it from a counter.
__device__ void meet_all_blocks(unsigned* counter, unsigned target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(counter, 1u);
    while (atomicAdd(counter, 0u) < target) __nanosleep(50);
    __threadfence();
  }
  __syncthreads();
}

// Each block reads what another block wrote in the round before.
extern "C" __global__ void pass_on(int* values, unsigned* counter, int rounds) {
  const int blocks = gridDim.x, size = blockDim.x;
  for (int round = 0; round < rounds; ++round) {
    const int* from = values + (round % 2) * blocks * size + (blockIdx.x + 1) % blocks * size;
    int* to = values + ((round + 1) % 2) * blocks * size + blockIdx.x * size;
    to[threadIdx.x] = from[(threadIdx.x + 1) % size] + 1;
    meet_all_blocks(counter, static_cast<unsigned>((round + 1) * blocks));
  }
}
