// What scores and gradients of rows share: which rows there are, which classes a lane holds, sums over a row's lanes.

#ifndef FSACHAIN_ROWS_CUH_
#define FSACHAIN_ROWS_CUH_

#include "elements.cuh"

#ifndef OUT
#define OUT float
#endif
#ifndef INTEGER
#define INTEGER long long
#endif
#ifndef KINDS
#define KINDS 2
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef HELD
#define HELD 16
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef DURATIONS
#define DURATIONS 0
#endif
#ifndef SIGMOID
#define SIGMOID 0
#endif
#ifndef DENSE
#define DENSE 0
#endif
#ifndef THREADS
#define THREADS 256
#endif


namespace fsachain {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kFactors = DURATIONS ? 2 * KINDS : KINDS;    // classes of all kinds, then their durations
constexpr int kEntries = (kFactors + LANES - 1) / LANES;  // of a lane
constexpr int kUnroll = KINDS <= 2 ? KINDS : 1;           // of loops over kinds

template <bool kIsWhole, typename Short, typename Long>
struct Choice {
  using Type = Short;
};
template <typename Short, typename Long>
struct Choice<false, Short, Long> {
  using Type = Long;
};

using Real = decltype(number_of(*static_cast<const ELEMENT*>(nullptr)));
using Sum = Choice<(WHOLE != 0), Real, double>::Type;
// Of a multiprocessor, at least: float32 classes side by side leave registers for 1024 threads.
constexpr int kBlocks = (sizeof(Real) == 4 && DENSE ? 1024 : 512) / THREADS;

__device__ __forceinline__ float exp_of(float x) { return exp2f(x * 1.44269504f); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }

// Over the LANES lanes of a row, for all of them.
template <typename T>
__device__ __forceinline__ T group_sum(T value) {
  for (int apart = LANES / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(kAll, value, apart);
  return value;
}
template <typename T>
__device__ __forceinline__ T group_largest(T value) {
  for (int apart = LANES / 2; apart > 0; apart /= 2) {
    const T other = __shfl_xor_sync(kAll, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

// Arrays of `Rows`: sequences [N][8], classes and durations [KINDS]; first [N, T] (null: zeros) and targets [N, U] by their
// strides. The `alone`-th of num_classes classes has a sigmoid; entries from num_classes to width are durations.
struct Table {
  const long long* sequences;
  long long num_sequences;
  const long long* first;
  long long first_by_sequence, first_by_frame;
  const INTEGER* targets;
  long long by_sequence, by_label;
  const long long* classes;
  const long long* durations;
  int num_classes, width, alone;
  long long num_cells;
};

// Rows of a sequence one after another: row j of frame t is node (t, u).
struct Walk {
  const long long* own;    // of the sequence, in `sequences`
  const long long* first;  // of the sequence, or null
  long long by_frame;
  const INTEGER* targets;  // of the sequence
  long long row_of_frame, cell_of_frame;
  int left, per_frame, num_frames, num_labels, t, j, u;

  // `span` rows from `begin` on, as far as there are any; frames past the sequence's end only `with_padding`.
  __device__ __forceinline__ Walk(const Table& table, long long n, long long begin, long long span, bool with_padding) {
    own = table.sequences + 8 * n;
    first = table.first ? table.first + n * table.first_by_sequence : nullptr;
    by_frame = table.first_by_frame;
    targets = table.targets + n * table.by_sequence;
    per_frame = static_cast<int>(own[3]);
    num_frames = static_cast<int>(own[4]);
    num_labels = static_cast<int>(own[5]);
    const long long count = (with_padding ? own[2] : min(own[2], own[4])) * per_frame;
    left = static_cast<int>(max(min(span, count - begin), 0LL));
    t = left > 0 ? static_cast<int>(begin / per_frame) : 0;
    begin_frame();
    j = left > 0 ? static_cast<int>(begin - static_cast<long long>(t) * per_frame) : 0;
    u += j;
  }
  __device__ __forceinline__ void begin_frame() {
    j = 0;
    u = left > 0 && first ? static_cast<int>(first[t * by_frame]) : 0;
    row_of_frame = own[0] + t * own[1];
    cell_of_frame = own[6] + t * own[7];
  }
  __device__ __forceinline__ bool exists() const { return left > 0; }
  __device__ __forceinline__ bool is_real() const { return left > 0 && t < num_frames && u <= num_labels; }
  __device__ __forceinline__ long long row() const { return row_of_frame + j; }
  __device__ __forceinline__ long long cell() const { return cell_of_frame + u; }
  __device__ __forceinline__ void next() {
    --left;
    ++u;
    if (++j < per_frame) return;
    ++t;
    begin_frame();
  }
};

// Classes of arcs at a node: kNone where there is no arc, kWrong for a target that is no class.
constexpr int kNone = -1, kWrong = -2;

__device__ __forceinline__ int label_of(const Table& table, const Walk& walk) {
  if (walk.u >= walk.num_labels) return kNone;
  const long long label = walk.targets[walk.u * table.by_label];
  const bool is_class = label >= 0 && label < table.num_classes && !(SIGMOID && label == table.alone);
  return is_class ? static_cast<int>(label) : kWrong;
}

__device__ __forceinline__ int class_of(const Table& table, int k, int label) {
  const long long entry = table.classes[k];
  return entry >= 0 ? static_cast<int>(entry) : label;
}

// Rows of logits or of the gradient.
template <typename Element>
struct Matrix {
  Element* first;
  long long by_row, by_class;

  __device__ __forceinline__ Element* place(long long row, long long v) const {
    return first + row * by_row + (DENSE ? v : v * by_class);
  }
  // Classes v and v + distance lie so far apart.
  __device__ __forceinline__ long long apart(int distance) const { return DENSE ? distance : distance * by_class; }
};
using Logits = Matrix<const ELEMENT>;
using Gradient = Matrix<OUT>;

template <int kCount>
__device__ __forceinline__ Real sum_in_halves(const Real* x) {
  return sum_in_halves<kCount / 2>(x) + sum_in_halves<kCount / 2>(x + kCount / 2);
}
template <>
__device__ __forceinline__ Real sum_in_halves<1>(const Real* x) {
  return x[0];
}

// Classes v, v + LANES, v + 2 LANES, ... of a row, as many as a lane holds; -inf, which adds nothing, past the end.
struct Classes {
  Real of[HELD];

  // `rest`: how many there are from v on, of all lanes; `skip`: how far from v one is left out, if SIGMOID.
  __device__ __forceinline__ void load(const Logits& logits, const ELEMENT* from, int rest, int skip) {
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const bool is_used = LANES * r < rest && !(SIGMOID && LANES * r == skip);
      of[r] = is_used ? number_of(from[logits.apart(LANES * r)]) : static_cast<Real>(-infinity());
    }
  }
  __device__ __forceinline__ Real largest() const {
    Real top = -infinity();
#pragma unroll
    for (int r = 0; r < HELD; ++r) top = of[r] > top ? of[r] : top;
    return top;
  }
  // The sum of exp(x - shift); `of` becomes its terms.
  __device__ __forceinline__ Real sum_of_exp(Real shift) {
#pragma unroll
    for (int r = 0; r < HELD; ++r) of[r] = exp_of(of[r] - shift);
    return sum_in_halves<HELD>(of);
  }
};

__device__ __forceinline__ Real zero_for_nothing(Real top) {
  return top == static_cast<Real>(-infinity()) ? static_cast<Real>(0) : top;
}

// A softmax over entries begin .. end - 1 of a row, but for entry `skip`.
struct Part {
  int begin, end, skip;
};

__device__ __forceinline__ Part classes_of(const Table& table) { return Part{0, table.num_classes, table.alone}; }
__device__ __forceinline__ Part durations_of(const Table& table) { return Part{table.num_classes, table.width, -1}; }

// The largest logit of a softmax, 0 where all are -inf, and the sum of exp(x - largest): NaN where one is NaN or +inf. All
// lanes of a warp must come here; those without a row have an empty part.
__device__ __forceinline__ void statistics(const Logits& logits, long long row, const Part& part, Real& largest, Sum& sum) {
  Classes held;
  int v = part.begin + threadIdx.x % LANES;
#if WHOLE
  held.load(logits, logits.place(row, v), part.end - v, part.skip - v);
  // A NaN may be passed over here, but not in the sum; with +inf, whose difference from itself is NaN, it is the same.
  largest = zero_for_nothing(group_largest(held.largest()));
  sum = group_sum(held.sum_of_exp(largest));
#else
  Real top = -infinity();
  Sum own = 0;
  for (; v < part.end; v += LANES * HELD) {
    held.load(logits, logits.place(row, v), part.end - v, part.skip - v);
    const Real now = held.largest();
    if (now > top) {
      own *= exp_of(top - now);
      top = now;
    }
    own += held.sum_of_exp(zero_for_nothing(top));
  }
  largest = group_largest(top);
  if (top < largest) own *= exp_of(top - largest);
  largest = zero_for_nothing(largest);
  sum = group_sum(own);
#endif
}

__device__ __forceinline__ Real sigma(Real x) {
  const Real small = exp_of(x < 0 ? x : -x);
  return (x < 0 ? small : static_cast<Real>(1)) / (1 + small);
}

__device__ __forceinline__ long long first_row(long long span) {
  return (static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES) * span;
}

}  // namespace fsachain

#endif  // FSACHAIN_ROWS_CUH_
