// The blocks of a cluster: their shared memory and their barrier. PTX says it in three instructions; the header
// cooperative_groups.h, which gives the same, takes NVRTC two seconds to read.

#ifndef FSACHAIN_CLUSTER_CUH_
#define FSACHAIN_CLUSTER_CUH_

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if CLUSTER > 1 && !defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

namespace fsachain {

#if CLUSTER == 1

template <typename T>
__device__ __forceinline__ T* in_block(T* own, int) {
  return own;
}
__device__ __forceinline__ void sync_cluster() { __syncthreads(); }

#elif defined(__CUDACC__)

// The place in the shared memory of block `rank` that corresponds to `own` in the caller's.
template <typename T>
__device__ __forceinline__ T* in_block(T* own, int rank) {
  unsigned long long address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(reinterpret_cast<unsigned long long>(own)), "r"(rank));
  return reinterpret_cast<T*>(address);
}
// All threads of the cluster meet; what they wrote to shared memory before, of any block, is seen behind.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

#else

template <typename T>
__device__ __forceinline__ T* in_block(T* own, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}
__device__ __forceinline__ void sync_cluster() { cooperative_groups::this_cluster().sync(); }

#endif

}  // namespace fsachain

#endif  // FSACHAIN_CLUSTER_CUH_
