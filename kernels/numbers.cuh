// The three kinds of positive numbers in which the sums over paths are computed; the kernels' text is the same for all.
//
//   Plain (KIND 0): a float. Sequences of a shared graph with a leak; the kernels scale by powers of two, and (13) is
// checked.   Wide (KIND 1): m 2^e, m a float in [1, 2) and e an int, so that no product of common scores leaves the range. A
// sum     aligns exponents by integer instructions; nothing has to be scaled from frame to frame.
//   Log (KIND 2): the logarithm in double: any finite score, and scores that come in double, for which weights are logs too;
//     else it reads the weights of wide numbers, so that nothing has to be brought to the device for a kind that few need.
//
// A Value is stored with alphas and betas; an Entry holds the weight of an arc. Products are fused explicitly and nowhere
// else, so that each kind gives the same bits however many sequences a thread works on. from_log wants a finite log in Wide.

#ifndef FSACHAIN_NUMBERS_CUH_
#define FSACHAIN_NUMBERS_CUH_

#include "log_add.cuh"

#ifndef KIND
#define KIND 1
#endif
#ifndef LANES
#define LANES 1  // sequences of one thread
#endif
#ifndef EXPONENTS
#define EXPONENTS 1  // wide weights of arcs have exponents; 0: all are floats within 2^40 of one
#endif

#ifndef LOGS
#define LOGS 1  // logs have weights of arcs of their own; 0: those of wide numbers
#endif

#define DEVICE __device__ __forceinline__

namespace fsachain {

const double kLogTwo = 0.69314718055994530942;

// 2^n for -127 <= n <= 127; 0 for -127.
DEVICE float power_of_two(int n) { return __int_as_float((n + 127) << 23); }
// n with 2^n <= x < 2^(n + 1) for a normal x > 0.
DEVICE int exponent_of(float x) { return ((__float_as_int(x) >> 23) & 255) - 127; }

struct Plain {
  typedef float Value;
  struct __align__(8) Entry {
    int index;
    float weight;
  };
  typedef Entry Arc;
  static const int kShift = 60;  // alphas of a frame sum to about 2^60: as far from the floats' end as from their beginning

  static DEVICE Value zero() { return 0.0f; }
  static DEVICE Value from_log(double x) { return static_cast<float>(exp(x)); }
  static DEVICE Value product(Value x, Value y) { return __fmul_rn(x, y); }
  static DEVICE Value sum(Value x, Value y) { return x + y; }
  template <typename E>
  static DEVICE Value add_product(Value sum, Value x, const E& entry) {
    return fmaf(x, entry.weight, sum);
  }
  static DEVICE Value normalize(Value x) { return x; }
  static DEVICE bool is_zero(Value x) { return x == 0.0f; }
  static DEVICE Value shuffle_xor(Value x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
  // n for which 2^n x is in [2^shift, 2^(shift + 1)), as far as 2^n is a float.
  static DEVICE int scale(Value x, int shift) { return min(max(shift - exponent_of(x), -126), 127); }
  static DEVICE Value scaled(Value x, int n) { return __fmul_rn(x, power_of_two(n)); }
  static DEVICE double log_of(Value x) { return log(static_cast<double>(x)); }
  static DEVICE double ratio(Value x, Value total) { return static_cast<double>(x / total); }
};

struct Wide {
  struct __align__(8) Value {
    float m;
    int e;
  };
  struct __align__(16) Entry {
    int index;
    float weight;
    int exponent, unused;
  };
#if EXPONENTS
  typedef Entry Arc;
#else
  typedef Plain::Entry Arc;
#endif
  static const int kShift = 0;
  // Below every other exponent by more than any sum or product of four of them; see layout.py.
  static const int kZero = -(1 << 29);

  static DEVICE Value make(float m, int e) {
    Value x;
    x.m = m;
    x.e = e;
    return x;
  }
  static DEVICE int exponent(const Entry& entry) { return entry.exponent; }
  static DEVICE int exponent(const Plain::Entry&) { return 0; }
  static DEVICE Value zero() { return make(0.0f, kZero); }
  static DEVICE Value from_log(double x) {
    const double e = floor(x * 1.4426950408889634074);
    return normalize(make(static_cast<float>(exp(fma(e, -kLogTwo, x))), static_cast<int>(e)));
  }
  static DEVICE Value product(Value x, Value y) { return make(x.m * y.m, x.e + y.e); }
  // Of two numbers the one of the lower exponent is shifted to the other's; beyond 2^-127 it is nothing beside it.
  static DEVICE Value sum(Value x, Value y) {
    const int e = max(x.e, y.e);
    return make(fmaf(x.m, power_of_two(max(x.e - e, -127)), y.m * power_of_two(max(y.e - e, -127))), e);
  }
  template <typename E>
  static DEVICE Value add_product(Value sum, Value x, const E& entry) {
    const int n = x.e + exponent(entry);
    const int e = max(sum.e, n);
    const float kept = sum.m * power_of_two(max(sum.e - e, -127));
    return make(fmaf(x.m * power_of_two(max(n - e, -127)), entry.weight, kept), e);
  }
  static DEVICE Value normalize(Value x) {
    const int bits = __float_as_int(x.m);
    if (bits == 0) return zero();
    return make(__int_as_float((bits & 0x007fffff) | 0x3f800000), x.e + (bits >> 23) - 127);
  }
  static DEVICE bool is_zero(Value x) { return x.m == 0.0f; }
  static DEVICE int scale(Value, int) { return 0; }
  static DEVICE Value scaled(Value x, int) { return x; }
  static DEVICE Value shuffle_xor(Value x, int lanes) {
    return make(__shfl_xor_sync(0xffffffffu, x.m, lanes), __shfl_xor_sync(0xffffffffu, x.e, lanes));
  }
  static DEVICE double log_of(Value x) {
    return fma(static_cast<double>(x.e), kLogTwo, log(static_cast<double>(x.m)));
  }
  static DEVICE double ratio(Value x, Value total) {
    return static_cast<double>(x.m / total.m * power_of_two(min(max(x.e - total.e, -127), 127)));
  }
};

struct Log {
  typedef double Value;
#if LOGS
  struct __align__(16) Entry {
    int index, unused;
    double weight;
  };
  typedef Entry Arc;
  static DEVICE double log_weight(const Entry& entry) { return entry.weight; }
#else
  typedef Wide::Entry Entry;
  typedef Wide::Arc Arc;
  template <typename E>
  static DEVICE double log_weight(const E& entry) {
    return Wide::log_of(Wide::make(entry.weight, Wide::exponent(entry)));
  }
#endif
  static const int kShift = 0;

  static DEVICE Value zero() { return -static_cast<double>(__int_as_float(0x7f800000)); }
  static DEVICE Value from_log(double x) { return x; }
  static DEVICE Value product(Value x, Value y) { return x + y; }
  static DEVICE Value sum(Value x, Value y) { return log_add<double>(x, y); }
  template <typename E>
  static DEVICE Value add_product(Value sum, Value x, const E& entry) {
    return log_add<double>(sum, x + log_weight(entry));
  }
  static DEVICE Value normalize(Value x) { return x; }
  static DEVICE bool is_zero(Value x) { return x == zero(); }
  static DEVICE int scale(Value, int) { return 0; }
  static DEVICE Value scaled(Value x, int) { return x; }
  static DEVICE Value shuffle_xor(Value x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
  static DEVICE double log_of(Value x) { return x; }
  static DEVICE double ratio(Value x, Value total) { return exp(x - total); }
};

#if KIND == 0
typedef Plain Number;
#elif KIND == 1
typedef Wide Number;
#else
typedef Log Number;
#endif

typedef Number::Value Value;
typedef Number::Arc Arc;

// The values of one state, pair or pdf for the sequences of one thread: one load of at most 16 bytes, or two.
struct __align__(LANES * sizeof(Value) < 16 ? LANES * sizeof(Value) : 16) Row {
  Value lane[LANES];
};

DEVICE Row zero_row() {
  Row row;
  for (int v = 0; v < LANES; ++v) row.lane[v] = Number::zero();
  return row;
}

template <typename E>
DEVICE void add_product(Row& sum, const Row& x, const E& entry) {
  for (int v = 0; v < LANES; ++v) sum.lane[v] = Number::add_product(sum.lane[v], x.lane[v], entry);
}

DEVICE void normalize(Row& x) {
  for (int v = 0; v < LANES; ++v) x.lane[v] = Number::normalize(x.lane[v]);
}

DEVICE Row shuffle_xor(Row x, int lanes) {
  for (int v = 0; v < LANES; ++v) x.lane[v] = Number::shuffle_xor(x.lane[v], lanes);
  return x;
}

DEVICE void add(Row& sum, const Row& x) {
  for (int v = 0; v < LANES; ++v) sum.lane[v] = Number::normalize(Number::sum(sum.lane[v], x.lane[v]));
}

}  // namespace fsachain

#endif  // FSACHAIN_NUMBERS_CUH_
