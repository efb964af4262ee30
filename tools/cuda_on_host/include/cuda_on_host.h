// What CUDA C++ gives without an include, for a host compiler: built-in variables, barriers, warp operations, atomics.
//
// Every CUDA thread is a thread of the host. The text of a kernel is compiled as it stands, with this file before it;
// runtime.cc runs it. Only what the kernels of fsachain use is here.

#ifndef CUDA_ON_HOST_H_
#define CUDA_ON_HOST_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#define CUDA_ON_HOST 1

#ifndef __global__  // what lists the kernels of a text keeps these three
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#endif
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
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
void wait_grid(Place place);
void arrive_cluster(Place place);
void wait_cluster(Place place);
unsigned char* shared_memory_of_rank(void* own, unsigned rank);
// Barriers of PTX (mbarrier), one in eight bytes of shared memory, and stores to another block that they count (st.async).
void start_arrivals(Wide* own, unsigned blocks);
void arrive(Wide* at, unsigned bytes);
void await_arrivals(Place place, Wide* own, unsigned parity);
void store_async(void* to, const void* value, unsigned bytes, Wide* arrivals);
unsigned cluster_rank();
unsigned cluster_blocks();
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

inline Place here(const char* what, const char* file, int line) {
  return Place{what, file, line};
}

// Calls a kernel with arguments that lie in slots of eight bytes each.
template <typename... Parameters>
struct Kernel {
  template <std::size_t... I>
  struct Indices {};
  template <std::size_t N, std::size_t... I>
  struct Count : Count<N - 1, N - 1, I...> {};
  template <std::size_t... I>
  struct Count<0, I...> {
    using type = Indices<I...>;
  };
  template <std::size_t... I>
  static void spread(void (*kernel)(Parameters...), const std::uint64_t* slots, Indices<I...>) {
    (void)slots;
    kernel(from_bits<Parameters>(slots[I])...);
  }
  static void call(void (*kernel)(Parameters...), const std::uint64_t* slots) {
    spread(kernel, slots, typename Count<sizeof...(Parameters)>::type());
  }
};

template <typename... Parameters>
void call(void (*kernel)(Parameters...), const std::uint64_t* slots) {
  Kernel<Parameters...>::call(kernel, slots);
}

// The kind of a parameter, in the letters of Python's struct module; P is a pointer.
template <typename T>
struct Letter {
  static const char value = sizeof(T) == 8   ? (T(-1) < T(0) ? 'q' : 'Q')
                            : sizeof(T) == 4 ? (T(-1) < T(0) ? 'i' : 'I')
                            : sizeof(T) == 2 ? (T(-1) < T(0) ? 'h' : 'H')
                                             : (T(-1) < T(0) ? 'b' : 'B');
};
template <>
struct Letter<float> {
  static const char value = 'f';
};
template <>
struct Letter<double> {
  static const char value = 'd';
};
template <typename T>
struct Letter<T*> {
  static const char value = 'P';
};

// Of the numbers of __launch_bounds__ or __cluster_dims__.
inline int first(int number, int = 1, int = 1) { return number; }

template <typename... Parameters>
const char* signature(void (*)(Parameters...)) {
  static const char letters[] = {Letter<Parameters>::value..., '\0'};
  return letters;
}

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::self->thread_index)
#define blockIdx (cuda_on_host::self->block_index)
#define blockDim (cuda_on_host::self->block_size)
#define gridDim (cuda_on_host::self->grid_size)
static const int warpSize = 32;

#define CUDA_ON_HOST_HERE(what) cuda_on_host::here(what, __builtin_FILE(), __builtin_LINE())
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
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::shuffle({"__shfl_down_sync", file, line}, mask, value,
                               cuda_on_host::own_lane() + static_cast<int>(delta));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, CUDA_ON_HOST_CALLER) {
  return cuda_on_host::shuffle({"__shfl_up_sync", file, line}, mask, value,
                               cuda_on_host::own_lane() - static_cast<int>(delta));
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
#define CUDA_ON_HOST_ATOMIC(T)                                                                             \
  inline T atomicAdd(T* address, T value) {                                                                \
    return cuda_on_host::order_of_atomic(address) ? __atomic_fetch_add(address, value, __ATOMIC_RELEASE)   \
                                                  : __atomic_fetch_add(address, value, __ATOMIC_RELAXED);  \
  }                                                                                                        \
  inline T atomicSub(T* address, T value) {                                                                \
    return atomicAdd(address, static_cast<T>(T(0) - value));                                               \
  }                                                                                                        \
  inline T atomicExch(T* address, T value) {                                                               \
    return cuda_on_host::order_of_atomic(address) ? __atomic_exchange_n(address, value, __ATOMIC_RELEASE)  \
                                                  : __atomic_exchange_n(address, value, __ATOMIC_RELAXED); \
  }                                                                                                        \
  inline T atomicCAS(T* address, T expected, T value) {                                                    \
    if (cuda_on_host::order_of_atomic(address))                                                            \
      __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);   \
    else                                                                                                   \
      __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);   \
    return expected;                                                                                       \
  }                                                                                                        \
  inline T atomicMax(T* address, T value) {                                                                \
    T seen = atomicAdd(address, T(0));                                                                     \
    while (seen < value) {                                                                                 \
      const T before = atomicCAS(address, seen, value);                                                    \
      if (before == seen) break;                                                                           \
      seen = before;                                                                                       \
    }                                                                                                      \
    return seen;                                                                                           \
  }                                                                                                        \
  inline T atomicOr(T* address, T value) {                                                                 \
    return cuda_on_host::order_of_atomic(address) ? __atomic_fetch_or(address, value, __ATOMIC_RELEASE)    \
                                                  : __atomic_fetch_or(address, value, __ATOMIC_RELAXED);   \
  }
CUDA_ON_HOST_ATOMIC(int)
CUDA_ON_HOST_ATOMIC(unsigned)
CUDA_ON_HOST_ATOMIC(cuda_on_host::Wide)
#undef CUDA_ON_HOST_ATOMIC

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcg(T* address, T value) {
  *address = value;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}

#define CUDA_ON_HOST_CAST(name, To, From)                             \
  inline To name(From value) {                                        \
    return cuda_on_host::from_bits<To>(cuda_on_host::bits_of(value)); \
  }
// A product that no compiler fuses with a sum.
inline float __fmul_rn(float x, float y) {
  return x * y;
}
CUDA_ON_HOST_CAST(__int_as_float, float, int)
CUDA_ON_HOST_CAST(__float_as_int, int, float)
CUDA_ON_HOST_CAST(__uint_as_float, float, unsigned)
CUDA_ON_HOST_CAST(__float_as_uint, unsigned, float)
CUDA_ON_HOST_CAST(__longlong_as_double, double, long long)
CUDA_ON_HOST_CAST(__double_as_longlong, long long, double)
#undef CUDA_ON_HOST_CAST
inline int __double2hiint(double value) {
  return static_cast<int>(__double_as_longlong(value) >> 32);
}
inline int __double2loint(double value) {
  return static_cast<int>(__double_as_longlong(value));
}
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(static_cast<std::uint64_t>(static_cast<unsigned>(high)) << 32 |
                                                     static_cast<unsigned>(low)));
}
inline int __float2int_rn(float value) {
  return static_cast<int>(rintf(value));
}
inline int __double2int_rn(double value) {
  return static_cast<int>(rint(value));
}
inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline int __ffs(int value) {
  return __builtin_ffs(value);
}
inline int __popc(unsigned value) {
  return __builtin_popcount(value);
}

#define CUDA_ON_HOST_VECTOR(T, name, bytes2, bytes4)  \
  struct alignas(bytes2) name##2 {                    \
    T x, y;                                           \
  };                                                  \
  struct alignas(bytes4) name##4 {                    \
    T x, y, z, w;                                     \
  };                                                  \
  inline name##2 make_##name##2(T x, T y) {           \
    return name##2 {x, y};                            \
  }                                                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { \
    return name##4 {x, y, z, w};                      \
  }
CUDA_ON_HOST_VECTOR(float, float, 8, 16)
CUDA_ON_HOST_VECTOR(int, int, 8, 16)
CUDA_ON_HOST_VECTOR(unsigned, uint, 8, 16)
CUDA_ON_HOST_VECTOR(short, short, 4, 8)
CUDA_ON_HOST_VECTOR(unsigned short, ushort, 4, 8)
CUDA_ON_HOST_VECTOR(unsigned char, uchar, 2, 4)
#undef CUDA_ON_HOST_VECTOR
struct alignas(16) double2 {
  double x, y;
};
inline double2 make_double2(double x, double y) {
  return double2{x, y};
}

#define CUDA_ON_HOST_MIN_MAX(T) \
  inline T min(T a, T b) {      \
    return b < a ? b : a;       \
  }                             \
  inline T max(T a, T b) {      \
    return a < b ? b : a;       \
  }
CUDA_ON_HOST_MIN_MAX(int)
CUDA_ON_HOST_MIN_MAX(unsigned)
CUDA_ON_HOST_MIN_MAX(long)
CUDA_ON_HOST_MIN_MAX(unsigned long)
CUDA_ON_HOST_MIN_MAX(long long)
CUDA_ON_HOST_MIN_MAX(unsigned long long)
#undef CUDA_ON_HOST_MIN_MAX
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}
using std::exp;
using std::fma;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::ldexp;
using std::log;
using std::log1p;
using std::rint;

#endif  // CUDA_ON_HOST_H_
