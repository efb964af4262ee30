// Elements of the caller's arrays: what type they have and where they lie.
//
// The host says with -D ELEMENT=... of which type the scores are: float, double, __half or __nv_bfloat16. Half types are
// read into float, which holds every one of their values.

#ifndef FSACHAIN_ELEMENTS_CUH_
#define FSACHAIN_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif

namespace fsachain {

// NVRTC has no <cmath>, whose macros these would be.
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }

__device__ __forceinline__ float number_of(float x) { return x; }
__device__ __forceinline__ double number_of(double x) { return x; }
__device__ __forceinline__ float number_of(__half x) { return __half2float(x); }
__device__ __forceinline__ float number_of(__nv_bfloat16 x) { return __bfloat162float(x); }

// Writes a number, float or double, as an element; half types round to the nearest.
template <typename Real>
__device__ __forceinline__ void put(float* to, Real x) { *to = static_cast<float>(x); }
template <typename Real>
__device__ __forceinline__ void put(double* to, Real x) { *to = static_cast<double>(x); }
template <typename Real>
__device__ __forceinline__ void put(__half* to, Real x) { *to = __float2half_rn(static_cast<float>(x)); }
template <typename Real>
__device__ __forceinline__ void put(__nv_bfloat16* to, Real x) { *to = __float2bfloat16_rn(static_cast<float>(x)); }

// Rows of an array [N, T, P] with any strides, in elements; 64 bits, because N T P may exceed 2^31.
struct Elements {
  const ELEMENT* first;
  long long by_sequence, by_frame, by_pdf;

  __device__ __forceinline__ const ELEMENT* row(long long n, long long t) const {
    return first + n * by_sequence + t * by_frame;
  }
  __device__ __forceinline__ ELEMENT at(const ELEMENT* row, int pdf) const {
    return row[pdf * by_pdf];
  }
};

}  // namespace fsachain

#endif  // FSACHAIN_ELEMENTS_CUH_
