// The group of CUDA's cooperative_groups.h that fsachain's kernels use.

#ifndef CUDA_ON_HOST_COOPERATIVE_GROUPS_H_
#define CUDA_ON_HOST_COOPERATIVE_GROUPS_H_

#include "cuda_on_host.h"

namespace cooperative_groups {

struct cluster_group {
  static void sync(CUDA_ON_HOST_CALLER) { cuda_on_host::wait_cluster({"cluster_group::sync", file, line}); }
  static unsigned block_rank() { return cuda_on_host::cluster_rank(); }
  template <typename T>
  static T* map_shared_rank(T* address, int rank) {
    return reinterpret_cast<T*>(cuda_on_host::shared_memory_of_rank(address, static_cast<unsigned>(rank)));
  }
};

inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups

#endif  // CUDA_ON_HOST_COOPERATIVE_GROUPS_H_
