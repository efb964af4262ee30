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

#endif  // CUDA_ON_HOST_CUDA_BF16_H_
