// The groups of CUDA's cooperative_groups.h that fsachain's kernels use.

#ifndef CUDA_ON_HOST_COOPERATIVE_GROUPS_H_
#define CUDA_ON_HOST_COOPERATIVE_GROUPS_H_

#include "cuda_on_host.h"

namespace cooperative_groups {

struct thread_block {
  static void sync(CUDA_ON_HOST_CALLER) {
    cuda_on_host::wait_block({"thread_block::sync", file, line}, cuda_on_host::Reduction::kNone, 0);
  }
  static unsigned thread_rank() { return threadIdx.x; }
  static unsigned num_threads() { return blockDim.x; }
};

struct grid_group {
  static void sync(CUDA_ON_HOST_CALLER) { cuda_on_host::wait_grid({"grid_group::sync", file, line}); }
};

struct cluster_group {
  struct arrival_token {};
  static arrival_token barrier_arrive(CUDA_ON_HOST_CALLER) {
    cuda_on_host::arrive_cluster({"cluster_group::barrier_arrive", file, line});
    return {};
  }
  static void barrier_wait(CUDA_ON_HOST_CALLER) {
    cuda_on_host::wait_cluster({"cluster_group::barrier_wait", file, line});
  }
  static void barrier_wait(arrival_token&&, CUDA_ON_HOST_CALLER) {
    cuda_on_host::wait_cluster({"cluster_group::barrier_wait", file, line});
  }
  static void sync(CUDA_ON_HOST_CALLER) {
    cuda_on_host::arrive_cluster({"cluster_group::sync", file, line});
    cuda_on_host::wait_cluster({"cluster_group::sync", file, line});
  }
  static unsigned block_rank() { return cuda_on_host::cluster_rank(); }
  static unsigned num_blocks() { return cuda_on_host::cluster_blocks(); }
  template <typename T>
  static T* map_shared_rank(T* address, int rank) {
    return reinterpret_cast<T*>(cuda_on_host::shared_memory_of_rank(address, static_cast<unsigned>(rank)));
  }
};

inline thread_block this_thread_block() {
  return {};
}
inline grid_group this_grid() {
  return {};
}
inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups

#endif  // CUDA_ON_HOST_COOPERATIVE_GROUPS_H_
