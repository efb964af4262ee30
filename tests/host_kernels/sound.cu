// Kernels without a fault, one for each thing that the host has to do as a GPU does it.

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace cg = cooperative_groups;

extern "C" __global__ void __launch_bounds__(256) built_in_variables(int* out) {
  const int block = blockIdx.y * gridDim.x + blockIdx.x;
  int* own = out + (block * blockDim.x + threadIdx.x) * 5;
  own[0] = threadIdx.x;
  own[1] = blockIdx.x;
  own[2] = blockIdx.y;
  own[3] = blockDim.x;
  own[4] = gridDim.x * 1000 + gridDim.y;
}

extern "C" __global__ void every_argument(signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f,
                                          long long g, unsigned long long h, float i, double j, const double* k,
                                          double* out) {
  if (threadIdx.x == 0)
    out[0] = a + 2.0 * b + 3.0 * c + 4.0 * d + 5.0 * e + 6.0 * f + 7.0 * g + 8.0 * h + i + j + (k ? k[0] : -1.0);
}

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

extern "C" __global__ void votes(const int* in, int* out) {
  const int value = in[threadIdx.x];
  int* own = out + threadIdx.x * 10;
  own[0] = __ballot_sync(0xffffffffu, value > 0);
  own[1] = __any_sync(0xffffffffu, value > 0);
  own[2] = __all_sync(0xffffffffu, value > 0);
  own[3] = __shfl_sync(0xffffffffu, value, 5);
  own[4] = __shfl_down_sync(0xffffffffu, value, 3);
  own[5] = __shfl_up_sync(0xffffffffu, value, 3);
  own[6] = __shfl_xor_sync(0xffffffffu, value, 9);
  own[7] = __syncthreads_or(value > 0);
  own[8] = __syncthreads_and(value > 0);
  __syncwarp();
  own[9] = static_cast<int>(__shfl_sync(0xffffffffu, static_cast<double>(value) + 0.5, 31) * 2.0);
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

extern "C" __global__ void pass_on_by_grid(int* values, int rounds) {
  const int blocks = gridDim.x, size = blockDim.x;
  for (int round = 0; round < rounds; ++round) {
    const int* from = values + (round % 2) * blocks * size + (blockIdx.x + 1) % blocks * size;
    int* to = values + ((round + 1) % 2) * blocks * size + blockIdx.x * size;
    to[threadIdx.x] = from[(threadIdx.x + 1) % size] + 1;
    cg::this_grid().sync();
  }
}

extern "C" __global__ void count(int* counter, unsigned* largest, int* last) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(counter, 1);
  atomicMax(largest, static_cast<unsigned>(index));
  atomicExch(last, 7);
}

extern "C" __global__ void widen(const __half* halves, const __nv_bfloat16* brains, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    out[i] = __half2float(halves[i]);
    out[count + i] = __bfloat162float(brains[i]);
  }
}

extern "C" __global__ void reinterpret(int* out) {
  if (threadIdx.x != 0) return;
  out[0] = __float_as_int(1.5f);
  out[1] = __int_as_float(0x3fc00000) == 1.5f;
  out[2] = __double2hiint(-2.0);
  out[3] = __hiloint2double(0x40000000, 0) == 2.0;
  const float4 quad = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
  out[4] = static_cast<int>(quad.x + quad.y + quad.z + quad.w) + static_cast<int>(sizeof(float4) + alignof(double2));
  out[5] = min(3, -4) + max(5u, 6u) + static_cast<int>(min(0.5f, NAN) * 2.0f);
}
