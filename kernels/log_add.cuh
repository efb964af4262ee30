// The (+) of the log semiring: log_add(a, b) = log(exp(a) + exp(b)).
//
// Valid CUDA C++ and, with FSACHAIN_DEVICE left empty, valid host C++11, so that a test can run it without a GPU.

#ifndef FSACHAIN_LOG_ADD_CUH_
#define FSACHAIN_LOG_ADD_CUH_

#ifdef __CUDACC__
#define FSACHAIN_DEVICE __device__ __forceinline__
#else
#include <cmath>
#define FSACHAIN_DEVICE inline
#endif

namespace fsachain {

// Natural-log sum of two log-probabilities of type float or double, each finite or -inf.
// The larger operand is factored out, so exp never overflows and the error stays below one rounding of the result.
template <typename Real>
FSACHAIN_DEVICE Real log_add(Real a, Real b) {
  const Real larger = a > b ? a : b;
  const Real smaller = a > b ? b : a;
  // -inf is the zero of the semiring. The difference of two zeros is NaN, hence a branch of its own for equal operands.
  const bool both_log_zero = larger == smaller && larger - larger != Real(0);
  if (both_log_zero) return larger;
#ifdef __CUDACC__
  return larger + log1p(exp(smaller - larger));
#else
  return larger + std::log1p(std::exp(smaller - larger));
#endif
}

}  // namespace fsachain

#endif  // FSACHAIN_LOG_ADD_CUH_
