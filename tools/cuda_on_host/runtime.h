// How a launch is asked for. Python fills the same structure through ctypes.

#ifndef CUDA_ON_HOST_RUNTIME_H_
#define CUDA_ON_HOST_RUNTIME_H_

#include <cstdint>

struct CudaOnHostLaunch {
  void (*entry)(const std::uint64_t* slots);
  const std::uint64_t* slots;
  const char* name;
  std::uint32_t grid_x, grid_y;
  std::uint32_t block;
  std::uint32_t shared_bytes;
  std::uint32_t cluster;      // blocks of a cluster; gridDim.x is a multiple of it
  std::uint32_t cooperative;  // all blocks at once
  std::uint32_t fill;         // the byte that shared memory holds at first
  std::uint32_t together;     // how many clusters run at once where the launch is not cooperative
  std::uint32_t fibers;  // 1: one thread of the system runs the threads of a team in turn; 0: each is one of its own
  double patience;  // seconds without a barrier passed or a thread finished after which the launch is given up
};

// Runs a kernel to its end. Returns 0, or 1 and a message.
extern "C" int cuda_on_host_launch(const CudaOnHostLaunch* launch, char* message, std::uint64_t capacity);

#endif  // CUDA_ON_HOST_RUNTIME_H_
