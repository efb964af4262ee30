// Kernels with one fault each, for which the host has to have an eye.

#include <cooperative_groups.h>

#define CLUSTER 2
#include "../../kernels/cluster.cuh"

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace cg = cooperative_groups;

// No barrier stands between writing and reading what another thread writes.
extern "C" __global__ void no_barrier(int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory);
  shared[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = shared[(threadIdx.x + 32) % blockDim.x];
}

// A barrier for all blocks that publishes nothing.
extern "C" __global__ void no_fence(int* values, unsigned* counter) {
  values[blockIdx.x] = blockIdx.x;
  if (threadIdx.x == 0) {
    atomicAdd(counter, 1u);
    while (atomicAdd(counter, 0u) < gridDim.x) __nanosleep(50);
    __threadfence();
    values[gridDim.x + blockIdx.x] = values[(blockIdx.x + 1) % gridDim.x];
  }
}

// A block may end, and its shared memory with it, before its peer has read there.
extern "C" __global__ void __cluster_dims__(2, 1, 1) peer_has_gone(int* out, int rounds) {
  cg::cluster_group cluster = cg::this_cluster();
  int* shared = reinterpret_cast<int*>(shared_memory);
  shared[threadIdx.x] = threadIdx.x;
  cluster.sync();
  if (cluster.block_rank() == 0) return;
  for (int round = 0; round < rounds; ++round) __syncthreads();
  out[threadIdx.x] = cluster.map_shared_rank(shared, 0)[threadIdx.x];
}

extern "C" __global__ void read_behind(const int* in, int* out, int count) {
  for (int i = threadIdx.x; i <= count; i += blockDim.x)
    if (in[i] == 12345) out[0] = i;
}

extern "C" __global__ void write_behind(int* out, int count) {
  for (int i = threadIdx.x; i <= count; i += blockDim.x) out[i] = i;
}

extern "C" __global__ void read_behind_shared(int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory);
  shared[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (shared[threadIdx.x + 1] == 12345) out[0] = 1;
}

extern "C" __global__ void write_behind_shared(int* out) {
  int* shared = reinterpret_cast<int*>(shared_memory);
  shared[threadIdx.x + 1] = threadIdx.x;
  out[threadIdx.x] = 0;
}

extern "C" __global__ void misaligned(float* out) {
  float4* quads = reinterpret_cast<float4*>(shared_memory + 4);
  quads[0] = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
  out[threadIdx.x] = quads[0].x;
}

extern "C" __global__ void overflow(int* out, int large) {
  out[threadIdx.x] = large + large;
}

extern "C" __global__ void read_unwritten_shared(int* out) {
  const int* shared = reinterpret_cast<const int*>(shared_memory);
  out[threadIdx.x] = shared[threadIdx.x] > 0 ? 1 : 0;
}

extern "C" __global__ void read_unwritten(const int* in, int* out) {
  out[threadIdx.x] = in[threadIdx.x] > 0 ? 1 : 0;
}

// One thread waits for its warp while the others wait for the block.
extern "C" __global__ void barrier_missed(int* out) {
  if (threadIdx.x == 3)
    __syncwarp();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}

extern "C" __global__ void shuffle_of_half_a_warp(int* out) {
  int value = threadIdx.x;
  if (threadIdx.x < 16) value = __shfl_xor_sync(0xffffu, value, 1);
  out[threadIdx.x] = value;
}

// Waits for a number that nobody writes.
extern "C" __global__ void wait_for_ever(int* out) {
  if (threadIdx.x == 0)
    while (atomicAdd(out, 0) != 12345) __nanosleep(50);
  __syncthreads();
}

// What has been copied: waited for where `wait` is 1.
extern "C" __global__ void copies(int* out, int wait) {
  int* box = reinterpret_cast<int*>(shared_memory);
  box[threadIdx.x] = -1;
  cuda_on_host::copy_async(box + threadIdx.x, out + threadIdx.x, sizeof(int));
  cuda_on_host::end_copies();
  cuda_on_host::wait_for_copies(1 - wait);
  out[threadIdx.x] = box[threadIdx.x];
}

// Exchanges of a cluster of two: `FAULT` says what is wrong with them.
#ifndef FAULT
#define FAULT 0
#endif
enum Fault { kNone, kReadsEarly, kAwaitsMore, kNotStarted, kArrivesTwice, kLeavesEarly };

extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange_twice(int* out) {
  const int rank = cg::this_cluster().block_rank(), count = blockDim.x;
  fsachain::Arrivals* arrivals = reinterpret_cast<fsachain::Arrivals*>(shared_memory);
  int* box = reinterpret_cast<int*>(shared_memory + 2 * sizeof(fsachain::Arrivals));
  fsachain::Exchange exchange(arrivals, rank);
  if (FAULT == kNotStarted) arrivals[threadIdx.x % 2] = 0;
  box[threadIdx.x] = box[count + threadIdx.x] = -1;
  fsachain::sync_cluster();
  int value = blockIdx.x * count + threadIdx.x, sum = 0;
  for (int round = 0; round < 2; ++round) {
    exchange.store(box + rank * count + threadIdx.x, value);
    if (FAULT == kReadsEarly) sum += box[(1 - rank) * count + threadIdx.x];
    if (FAULT == kArrivesTwice && threadIdx.x == 2) fsachain::arrive_at(arrivals, rank);
    if (FAULT == kLeavesEarly && rank == 1) return;
    exchange.arrive(2 * count * sizeof(int) + (FAULT == kAwaitsMore ? 4 : 0));
    exchange.wait();
    value = box[(1 - rank) * count + threadIdx.x];
    exchange.arrive(0);  // before the box is written anew
    exchange.wait();
  }
  out[blockIdx.x * count + threadIdx.x] = value + sum;
}
