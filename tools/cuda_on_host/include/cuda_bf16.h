// bfloat16 numbers as CUDA names them: the upper half of a float.

#ifndef CUDA_ON_HOST_CUDA_BF16_H_
#define CUDA_ON_HOST_CUDA_BF16_H_

#include "cuda_on_host.h"

struct __nv_bfloat16 {
  unsigned short bits;
  operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return value;
}

// To the nearest, of two to the even one; NaN stays NaN.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return {0x7fff};
  return {static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

#endif  // CUDA_ON_HOST_CUDA_BF16_H_
