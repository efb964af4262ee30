// Equation (4), from the last alphas of all windows.

#ifndef FSACHAIN_FINISH_CUH_
#define FSACHAIN_FINISH_CUH_

#include "recursion.cuh"

namespace fsachain {

// The sums of `value` and of `offset` over the threads of a block, in thread 0: a tree, whose order is fixed.
DEVICE void sum_block(Value& value, double& offset) {
  unsigned char* free = shared_memory;
  Value* values = take<Value>(free, blockDim.x);
  double* offsets = take<double>(free, blockDim.x);
  values[threadIdx.x] = value;
  offsets[threadIdx.x] = offset;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      values[threadIdx.x] = Number::normalize(Number::sum(values[threadIdx.x], values[threadIdx.x + half]));
      offsets[threadIdx.x] += offsets[threadIdx.x + half];
    }
  }
  value = values[threadIdx.x];
  offset = offsets[threadIdx.x];
}

// log Z of a sum in which plain numbers stand for 2^-exponent of them, and scores were taken relative to `offset`.
DEVICE double log_of_sum(Value z, double offset, int exponent) {
  if (Number::is_zero(z)) return -static_cast<double>(__int_as_float(0x7f800000));
  double result = Number::log_of(z);
  // Powers of two that were taken off plain scores and alphas add up exactly.
  if (KIND == 0) result = fma(offset - static_cast<double>(exponent), kLogTwo, result);
  if (KIND == 2) result += offset;
  return result;
}

}  // namespace fsachain

// A block for each lane. `offsets` [T, lanes]: what read_frames took off the scores of a frame.
extern "C" __global__ void __launch_bounds__(256)
finish(const long long* groups, const fsachain::Value* vectors, const int* sequences, const int* lengths,
       const int* kinds, const fsachain::Value* state, const double* offsets, const int* exponents, int num_lanes,
       double log_leak, double* log_prob, unsigned char* ok) {
  using namespace fsachain;
  const int lane = blockIdx.x, n = sequences[lane];
  if (n < 0) return;
  if (kinds[n] > 2 && threadIdx.x == 0) {
    log_prob[n] = static_cast<double>(__int_as_float(0x7fc00000));
    ok[n] = 0;
  }
  if (kinds[n] != KIND) return;
  const long long* group = groups + static_cast<long long>(lane / kSequences) * kGroupFields;
  const long long states = group[kStates];
  const Value* vector = vectors + group[kVectors];
  const Value* row = state + group[kState] + lane % kSequences;
  Value z = Number::zero();
  for (long long i = threadIdx.x; i < states; i += blockDim.x)
    z = Number::normalize(Number::sum(z, Number::normalize(Number::product(row[i * kSequences], vector[states + i]))));
  double offset = 0.0;
  if (KIND != 1)
    for (long long t = threadIdx.x; t < lengths[lane]; t += blockDim.x) offset += offsets[t * num_lanes + lane];
  sum_block(z, offset);
  if (threadIdx.x > 0) return;
  if (LEAK) {
    const Value leaked = Number::product(Number::from_log(log_leak), row[states * kSequences]);
    z = Number::normalize(Number::sum(z, Number::normalize(Number::product(leaked, vector[2 * states + 1]))));
  }
  log_prob[n] = log_of_sum(z, offset, exponents[lane]);
  ok[n] = !Number::is_zero(z);
}

#endif  // FSACHAIN_FINISH_CUH_
