// The blocks of a cluster: their shared memory, their barrier, and how they hand values to one another without it.
//
// The barrier of a cluster waits until all that its threads have written, to global memory too, has arrived, and empties the
// first-level cache. An `Exchange` does neither: each store to another block's shared memory adds its bytes to a barrier there
// (st.async, mbarrier), and a block goes on when all blocks have arrived and all bytes are there. PTX says this in a few
// instructions; the header cooperative_groups.h takes NVRTC two seconds to read.

#ifndef FSACHAIN_CLUSTER_CUH_
#define FSACHAIN_CLUSTER_CUH_

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if CLUSTER > 1 && !defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

namespace fsachain {

typedef unsigned long long Arrivals;  // a barrier in shared memory, at the same place of each block: an mbarrier of PTX

#if CLUSTER == 1

__device__ __forceinline__ void sync_cluster() { __syncthreads(); }

#elif defined(__CUDACC__)

// All threads of the cluster meet; what they wrote to shared memory before, of any block, is seen behind.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Addresses of shared memory, as the instructions below take them: of `own`, and of the place in block `rank` that
// corresponds to it.
__device__ __forceinline__ unsigned shared_address(const void* own) {
  return static_cast<unsigned>(__cvta_generic_to_shared(own));
}
__device__ __forceinline__ unsigned shared_in_block(const void* own, int rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  return address;
}
// `blocks` arrivals make a phase; a barrier of the cluster comes before anybody else uses it.
__device__ __forceinline__ void start_arrivals(Arrivals* own, int blocks) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(own)), "r"(blocks) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// This block arrives at its own barrier, whose phase lasts until so many bytes have come too; and at that of another block.
__device__ __forceinline__ void arrive_for(Arrivals* own, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(own)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive_at(Arrivals* own, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(shared_in_block(own, rank)) : "memory");
}
// Until the phase of this parity has ended: the first has parity 0.
__device__ __forceinline__ void await_arrivals(Arrivals* own, unsigned parity) {
  unsigned ended = 0;
  while (!ended)
    asm volatile(
        "{\n\t.reg .pred ended;\n\tmbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\tselp.u32 %0, 1, 0, ended;\n\t}"
        : "=r"(ended)
        : "r"(shared_address(own)), "r"(parity)
        : "memory");
}
// 4, 8 or a multiple of 16 bytes to block `rank`; its barrier counts them.
template <typename T>
__device__ __forceinline__ void store_async(T* own, int rank, const T& value, Arrivals* arrivals) {
  const unsigned to = shared_in_block(own, rank), at = shared_in_block(arrivals, rank);
  unsigned part[sizeof(T) / 4];
  memcpy(part, &value, sizeof(T));
  if constexpr (sizeof(T) == 4)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(part[0]),
                 "r"(at)
                 : "memory");
  else if constexpr (sizeof(T) == 8)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(part[0]), "r"(part[1]), "r"(at)
                 : "memory");
  else
    for (unsigned i = 0; i < sizeof(T) / 4; i += 4)
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                       to + 4 * i),
                   "r"(part[i]), "r"(part[i + 1]), "r"(part[i + 2]), "r"(part[i + 3]), "r"(at)
                   : "memory");
}

#else

template <typename T>
__device__ __forceinline__ T* in_block(T* own, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}
__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

__device__ __forceinline__ void start_arrivals(Arrivals* own, int blocks) { cuda_on_host::start_arrivals(own, blocks); }
__device__ __forceinline__ void arrive_for(Arrivals* own, unsigned bytes) { cuda_on_host::arrive(own, bytes); }
__device__ __forceinline__ void arrive_at(Arrivals* own, int rank) { cuda_on_host::arrive(in_block(own, rank), 0); }
__device__ __forceinline__ void await_arrivals(Arrivals* own, unsigned parity) {
  cuda_on_host::await_arrivals(CUDA_ON_HOST_HERE("mbarrier.try_wait"), own, parity);
}
template <typename T>
__device__ __forceinline__ void store_async(T* own, int rank, const T& value, Arrivals* arrivals) {
  cuda_on_host::store_async(in_block(own, rank), &value, sizeof(T), in_block(arrivals, rank));
}

#endif

// Values for all blocks of a cluster, again and again. Exchanges take two barriers in turn: a block may be in the next one
// already while another still waits for the last bytes of this one, but in the one after it only when all have left this one.
const int kArrivals = CLUSTER > 1 ? 2 : 0;
struct Exchange {
  Arrivals* arrivals;  // [kArrivals]
  int rank, count;     // of this block; exchanges so far

  // Before a barrier of the cluster.
  __device__ __forceinline__ Exchange(Arrivals* arrivals, int rank) : arrivals(arrivals), rank(rank), count(0) {
#if CLUSTER > 1
    if (threadIdx.x < kArrivals) start_arrivals(arrivals + threadIdx.x, CLUSTER);
#endif
  }
  // Writes a value to the same place of every block.
  template <typename T>
  __device__ __forceinline__ void store(T* own, const T& value) const {
#if CLUSTER > 1
    for (int to = 0; to < CLUSTER; ++to) store_async(own, to, value, arrivals + count % kArrivals);
#else
    *own = value;
#endif
  }
  // All threads of the cluster, behind what they have stored, `bytes` in each block; those of a block meet.
  __device__ __forceinline__ void arrive(unsigned bytes) const {
    __syncthreads();
#if CLUSTER > 1
    if (threadIdx.x == rank)
      arrive_for(arrivals + count % kArrivals, bytes);
    else if (threadIdx.x < CLUSTER)
      arrive_at(arrivals + count % kArrivals, threadIdx.x);
#endif
  }
  // Behind it each sees what all have stored, and may store anew what anybody has read before `arrive`.
  __device__ __forceinline__ void wait() {
#if CLUSTER > 1
    await_arrivals(arrivals + count % kArrivals, count / kArrivals % 2);
    ++count;
#endif
  }
};

}  // namespace fsachain

#endif  // FSACHAIN_CLUSTER_CUH_
