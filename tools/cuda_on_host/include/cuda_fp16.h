// IEEE half precision numbers as CUDA names them: stored in 16 bits, worked on as float.

#ifndef CUDA_ON_HOST_CUDA_FP16_H_
#define CUDA_ON_HOST_CUDA_FP16_H_

#include "cuda_on_host.h"

struct __half;
inline float __half2float(__half value);

struct __half {
  unsigned short bits;
  operator float() const { return __half2float(*this); }
};

inline float __half2float(__half value) {
  const unsigned sign = static_cast<unsigned>(value.bits >> 15) << 31;
  const unsigned exponent = value.bits >> 10 & 31u;
  const unsigned fraction = value.bits & 1023u;
  // A subnormal number is its fraction times 2^-24.
  if (exponent == 0) return __uint_as_float(__float_as_uint(ldexpf(static_cast<float>(fraction), -24)) | sign);
  // Infinity and NaN keep their fraction; the bias of all others changes from 15 to 127.
  const unsigned wide = exponent == 31 ? 255u : exponent + 112u;
  return __uint_as_float(sign | wide << 23 | fraction << 13);
}

// To the nearest, of two to the even one; infinity from 65520 on; NaN stays NaN.
inline __half __float2half_rn(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (value != value) return {static_cast<unsigned short>(0x7fff)};
  if (magnitude >= 0x477ff000u) return {static_cast<unsigned short>(sign | 0x7c00u)};
  // Below 2^-14 steps are 2^-24: adding 1/2, whose own steps are that, rounds to them.
  if (magnitude < 0x38800000u)
    return {static_cast<unsigned short>(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - __float_as_uint(0.5f)))};
  const unsigned rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return {static_cast<unsigned short>(sign | rounded >> 13)};
}

#endif  // CUDA_ON_HOST_CUDA_FP16_H_
