// What CUDA C++ gives without an include, for a host compiler: built-in variables, barriers, warp operations, atomics.
//
// Every CUDA thread is a thread of the host. The text of a kernel is compiled as it stands, with this file before it;
// runtime.cc runs it. Only what the kernels of fsachain use is here.

#ifndef CUDA_ON_HOST_H_
#define CUDA_ON_HOST_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define CUDA_ON_HOST 1

#ifndef __global__  // what lists the kernels of a text keeps these three
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
// An attribute and not alignas, since it has to be legal on the declaration of shared_memory below.
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict

// `extern __shared__ __align__(16) unsigned char shared_memory[];` at file scope becomes the declaration of a function
// that returns the address of such an array: the shared memory of the caller's block.
#define __shared__
#define shared_memory (*cuda_on_host_shared_memory())
extern unsigned char (*cuda_on_host_shared_memory())[];

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};

namespace cuda_on_host {

// A line of the kernels' text, so that a message can say where a thread waits.
struct Place {
  const char* what;
  const char* file;
  int line;
};

// What a thread may ask about itself. The runtime's own record of the thread begins with it.
struct Self {
  uint3 thread_index, block_index;
  dim3 block_size, grid_size;
};
extern __thread Self* self;

using Wide = unsigned long long;

enum class Reduction { kNone, kOr, kAnd };

// What a lane shows to the others, and in which of its meetings.
struct Shown {
  std::uint64_t bits;
  std::uint64_t meeting;
};

int wait_block(Place place, Reduction reduction, int value);
// Meets the other lanes of the warp and shows them `bits`; what they show stays readable until the lane meets them again.
const Shown* meet_warp(Place place, unsigned mask, std::uint64_t bits);
void wait_cluster(Place place);
unsigned char* shared_memory_of_rank(void* own, unsigned rank);
// Barriers of PTX (mbarrier), one in eight bytes of shared memory, and stores to another block that they count (st.async).
void start_arrivals(Wide* own, unsigned blocks);
void arrive(Wide* at, unsigned bytes);
void await_arrivals(Place place, Wide* own, unsigned parity);
void store_async(void* to, const void* value, unsigned bytes, Wide* arrivals);
// Copies to shared memory that go on beside the thread (cp.async), until it waits for all but the last `left` ended groups.
void copy_async(void* to, const void* from, unsigned bytes);
void end_copies();
void wait_for_copies(unsigned left);
unsigned cluster_rank();
void fence();
void rest(unsigned nanoseconds);
// Around each atomic operation: the memory order that the fences of this thread call for.
int order_of_atomic(const volatile void* address);

template <typename T>
std::uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= 8, "warp operations move 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline int own_lane() {
  return static_cast<int>(self->thread_index.x % 32);
}

// The value of `lane`, or the own one where no such lane has come.
template <typename T>
T shuffle(Place place, unsigned mask, T value, int lane) {
  const Shown* shown = meet_warp(place, mask, bits_of(value));
  const bool there = lane >= 0 && lane < 32 && shown[lane].meeting == shown[own_lane()].meeting;
  return from_bits<T>(shown[there ? lane : own_lane()].bits);
}

// The lanes that have come with a vote of `wanted`.
inline unsigned lanes_that_vote(Place place, unsigned mask, bool vote, bool wanted) {
  const Shown* shown = meet_warp(place, mask, vote);
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (shown[lane].meeting == shown[own_lane()].meeting && (shown[lane].bits != 0) == wanted) lanes |= 1u << lane;
  return lanes;
}

// Calls a kernel with arguments that lie in slots of eight bytes each.
template <typename... Parameters, std::size_t... I>
void call(void (*kernel)(Parameters...), const std::uint64_t* slots, std::index_sequence<I...>) {
  kernel(from_bits<Parameters>(slots[I])...);
}
template <typename... Parameters>
void call(void (*kernel)(Parameters...), const std::uint64_t* slots) {
  call(kernel, slots, std::index_sequence_for<Parameters...>());
}

// The kind of a parameter, in the letters of Python's struct module; P is a pointer.
template <typename T>
constexpr char letter() {
  if (std::is_pointer<T>::value) return 'P';
  if (std::is_floating_point<T>::value) return sizeof(T) == 8 ? 'd' : 'f';
  const char unsigned_one = sizeof(T) == 8 ? 'Q' : sizeof(T) == 4 ? 'I' : sizeof(T) == 2 ? 'H' : 'B';
  return static_cast<char>(std::is_signed<T>::value ? unsigned_one - 'A' + 'a' : unsigned_one);
}

// Of the numbers of __launch_bounds__ or __cluster_dims__.
inline int first(int number, int = 1, int = 1) { return number; }

template <typename... Parameters>
const char* signature(void (*)(Parameters...)) {
  static const char letters[] = {letter<Parameters>()..., '\0'};
  return letters;
}

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::self->thread_index)
#define blockIdx (cuda_on_host::self->block_index)
#define blockDim (cuda_on_host::self->block_size)
#define gridDim (cuda_on_host::self->grid_size)

#define CUDA_ON_HOST_HERE(what) cuda_on_host::Place{what, __builtin_FILE(), __builtin_LINE()}
#define CUDA_ON_HOST_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_ON_HOST_CALLER) {
  cuda_on_host::wait_block({"__syncthreads", file, line}, cuda_on_host::Reduction::kNone, 0);
}
inline int __syncthreads_or(int value, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::wait_block({"__syncthreads_or", file, line}, cuda_on_host::Reduction::kOr, value);
}
inline int __syncthreads_and(int value, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::wait_block({"__syncthreads_and", file, line}, cuda_on_host::Reduction::kAnd, value);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_HOST_CALLER) {
  cuda_on_host::meet_warp({"__syncwarp", file, line}, mask, 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::shuffle({"__shfl_sync", file, line}, mask, value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::shuffle({"__shfl_xor_sync", file, line}, mask, value, cuda_on_host::own_lane() ^ lanes);
}
inline unsigned __ballot_sync(unsigned mask, int vote, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::lanes_that_vote({"__ballot_sync", file, line}, mask, vote != 0, true);
}
inline int __any_sync(unsigned mask, int vote, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::lanes_that_vote({"__any_sync", file, line}, mask, vote != 0, true) != 0;
}
inline int __all_sync(unsigned mask, int vote, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::lanes_that_vote({"__all_sync", file, line}, mask, vote != 0, false) == 0;
}

inline void __threadfence() {
  cuda_on_host::fence();
}
inline void __nanosleep(unsigned nanoseconds) {
  cuda_on_host::rest(nanoseconds);
}

// Atomic operations are relaxed, as on the device; the fences around them make them publish and receive.
template <typename T>
T atomicAdd(T* address, std::common_type_t<T> value) {
  return cuda_on_host::order_of_atomic(address) ? __atomic_fetch_add(address, value, __ATOMIC_RELEASE)
                                                : __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMax(T* address, std::common_type_t<T> value) {
  T seen = atomicAdd(address, T(0));
  while (seen < value) {
    const int order = cuda_on_host::order_of_atomic(address) ? __ATOMIC_RELEASE : __ATOMIC_RELAXED;
    if (__atomic_compare_exchange_n(address, &seen, value, false, order, __ATOMIC_RELAXED)) break;
  }
  return seen;
}

// A product that no compiler fuses with a sum.
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __int_as_float(int value) {
  return cuda_on_host::from_bits<float>(cuda_on_host::bits_of(value));
}
inline int __float_as_int(float value) {
  return cuda_on_host::from_bits<int>(cuda_on_host::bits_of(value));
}
inline float __uint_as_float(unsigned value) {
  return __int_as_float(static_cast<int>(value));
}
inline unsigned __float_as_uint(float value) {
  return static_cast<unsigned>(__float_as_int(value));
}
inline int __ffs(int value) {
  return __builtin_ffs(value);
}
inline int __popc(unsigned value) {
  return __builtin_popcount(value);
}

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return float4{x, y, z, w};
}

template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  if constexpr (std::is_floating_point<std::common_type_t<A, B>>::value) return std::fmin(a, b);
  return b < a ? b : a;
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  if constexpr (std::is_floating_point<std::common_type_t<A, B>>::value) return std::fmax(a, b);
  return a < b ? b : a;
}
using std::exp;
using std::fma;
using std::log;
using std::log1p;

#endif  // CUDA_ON_HOST_H_
