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

#endif  // CUDA_ON_HOST_CUDA_FP16_H_
