// Between the logits of a transducer and the scores of its grid: equations (24)-(29) of fsachain/grid.py.
//
// A row is the logits x(t, u, v) of one node. LANES neighbouring threads share a row, and hold HELD of its classes each in
// registers, class v = lane + LANES r of each; WHOLE says that this is all of a row, so that it is read once. Then the next
// of `span` rows that follow one another. Scores, statistics and gradients are a row's own: no bit depends on `span`, the
// batch or the blocks. Logits are read once for their scores and once for their gradient, which is written once and may lie in
// the same place; beside both there are 2 numbers of statistics for each row. Rows of padding are never read. No barrier
// but those of a warp, no shared memory.
//
// `stats` [2][rows] keeps the largest logit of a row and 1 / sum exp(x - largest): probabilities are exact at any magnitude.
// Where a row ends with scores of durations, whose softmax is the second (DURATIONS), there are as many again for these; where
// a class has a sigmoid of its own (SIGMOID), the softmax of classes leaves it out. exp is 2^(x log2 e), whose rounding error is below one of the sum, since what it multiplies is small where it is large. Sums
// are formed in halves, in float64 where rows are long.
//
// A few entries of a row are factors of arcs: lanes share them, and write them after the rest of the row; one lane for each.

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
  return label >= 0 && label < table.num_classes ? static_cast<int>(label) : kWrong;
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

// log of x in a softmax. A class of -inf stays so, whatever the sum; but an illegal row is illegal for all of its classes.
__device__ __forceinline__ double log_share(double x, double largest, double log_total) {
  const double score = x - largest;
  return score > -infinity() || log_total != log_total ? score - log_total : score;
}

// log sigma(x); NaN for an illegal logit, which `sign` x was.
__device__ __forceinline__ double log_sigma(double x, double sign) {
  if (!(sign * x < infinity())) return not_a_number();
  return (x < 0.0 ? x : 0.0) - log1p(exp(x < 0.0 ? x : -x));
}
__device__ __forceinline__ Real sigma(Real x) {
  const Real small = exp_of(x < 0 ? x : -x);
  return (x < 0 ? small : static_cast<Real>(1)) / (1 + small);
}

struct LogSum {
  double largest, log_total;
};

// Equation (24) for all kinds at a node, with the factors of (28) and (29), by the lanes of its row.
__device__ __forceinline__ void write_scores(const Table& table, const Walk& walk, const Logits& logits,
                                             const LogSum& of_classes, const LogSum& of_durations, const double* charges,
                                             double* values) {
  const double late = 0.5 * (walk.num_frames - 1) - walk.t;
  const int label = label_of(table, walk);
  const auto logit = [&](long long v) { return static_cast<double>(number_of(*logits.place(walk.row(), v))); };
#pragma unroll 1
  for (int k = threadIdx.x % LANES; k < KINDS; k += LANES) {
    const int entry = class_of(table, k, label);
    if (entry == kNone) continue;
    double score = not_a_number();
    if (SIGMOID && entry == table.alone) {
      score = log_sigma(logit(entry), 1.0);
    } else if (entry >= 0) {
      score = log_share(logit(entry), of_classes.largest, of_classes.log_total);
      if (SIGMOID) score += log_sigma(-logit(table.alone), -1.0);
      if (DURATIONS && table.durations[k] >= 0)
        score += log_share(logit(table.durations[k]), of_durations.largest, of_durations.log_total);
    }
    values[k * table.num_cells + walk.cell()] = score + (charges[k] * late - charges[KINDS + k]);
  }
}

__device__ __forceinline__ long long first_row(long long span) {
  return (static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES) * span;
}

// The entries of a row that are factors of arcs, those of this lane: which they are, their logits before these are
// overwritten, and their g, added up over the kinds that have this factor; kNone for those which another entry stands for.
struct Arcs {
  int entry[kEntries];
  double own[kEntries];
  Real x[kEntries];
  double total, of_classes, of_durations;  // of g: all, of kinds with a class in the softmax, of kinds with a duration

  static __device__ __forceinline__ int factor(const Table& table, int i, int label) {
    const int k = DURATIONS && i >= KINDS ? i - KINDS : i;
    const int entry = class_of(table, k, label);
    return entry < 0 || k == i ? entry : static_cast<int>(table.durations[k]);
  }
  // Nothing where there is no node.
  __device__ __forceinline__ void load(const Table& table, const Walk& walk, const double* occupancy) {
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      entry[e] = kNone;
      own[e] = 0.0;
      x[e] = 0;
    }
    total = of_classes = of_durations = 0.0;
    if (!walk.is_real()) return;
    const int label = label_of(table, walk);
    const auto g = [&](int i) { return occupancy[i % KINDS * table.num_cells + walk.cell()]; };
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k) {
      const int of_kind = class_of(table, k, label);
      if (of_kind < 0) continue;
      total += g(k);
      if (!SIGMOID || of_kind != table.alone) of_classes += g(k);
      if (DURATIONS && table.durations[k] >= 0) of_durations += g(k);
    }
    if (total == 0.0) return;
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      const int i = threadIdx.x % LANES + e * LANES;
      if (i < kFactors) entry[e] = factor(table, i, label);
      if (entry[e] < 0) continue;
      bool is_first = true;
#pragma unroll kUnroll
      for (int other = 0; other < kFactors; ++other)
        if (factor(table, other, label) == entry[e]) {
          own[e] += g(other);
          is_first = is_first && other >= i;
        }
      if (!is_first) entry[e] = kNone;
    }
  }
  __device__ __forceinline__ void load_logits(const Logits& logits, long long row) {
#pragma unroll
    for (int e = 0; e < kEntries; ++e)
      if (entry[e] >= 0) x[e] = number_of(*logits.place(row, entry[e]));
  }
};

// exp(x - largest) scale is what a softmax leaves in the gradient; nothing where its kinds have no g, whatever x is.
struct Share {
  Real largest, scale;

  __device__ __forceinline__ Real of(Real x) const {
    return scale == static_cast<Real>(0) ? static_cast<Real>(0) : exp_of(x - largest) * scale;
  }
};

// Whether a number is 0 as an element, so that a row that it is the largest factor of may be left at 0.
__device__ __forceinline__ bool vanishes(double value) {
  using Wide = decltype(number_of(*static_cast<const OUT*>(nullptr)));
  return static_cast<Wide>(value) == static_cast<Wide>(0);
}

struct Bounds {
  double limit, weight;
};

// A softmax's part of a row of the gradient, without the arcs; zeros where the share is.
__device__ __forceinline__ void write_part(const Logits& logits, const Gradient& out, long long row, const Part& part,
                                           const Share& share, const Bounds& bounds) {
  const Real most = static_cast<Real>(bounds.limit), factor = static_cast<Real>(bounds.weight);
  const bool is_used = share.scale != static_cast<Real>(0);
  for (int v = part.begin + threadIdx.x % LANES; v < part.end; v += LANES * HELD) {
    Classes held;
    held.load(logits, logits.place(row, v), is_used ? part.end - v : 0, part.skip - v);
    OUT* into = out.place(row, v);
#pragma unroll
    for (int r = 0; r < HELD; ++r) {
      Real value = exp_of(held.of[r] - share.largest) * share.scale;
      value = (value > most ? most : value) * factor;
      if (LANES * r < part.end - v) put(into + out.apart(LANES * r), is_used ? value : static_cast<Real>(0));
    }
  }
}

// Equation (25) times weights [N] for all rows, padding too; without `stats` rows are log-probs, whose gradient is -g.
template <bool kHasSoftmax>
__device__ __forceinline__ void write_gradient(const Table& table, const Logits& logits, const Real* stats,
                                               long long num_rows, long long span, const double* occupancy,
                                               const double* weights, double limit, const Gradient& out) {
  for (long long n = blockIdx.y; n < table.num_sequences; n += gridDim.y) {
    const Bounds bounds{limit, weights[n]};
    Walk walk(table, n, first_row(span), span, true);
    for (; __any_sync(kAll, walk.exists()); walk.next()) {
      const long long row = walk.row();
      Arcs arcs;
      arcs.load(table, walk, occupancy);
      const bool is_used = arcs.total != 0.0 && !vanishes(arcs.total * bounds.weight);
      Share shares[1 + DURATIONS];
#pragma unroll
      for (int s = 0; s <= DURATIONS; ++s) {
        const double g = s == 0 ? arcs.of_classes : arcs.of_durations;
        shares[s] = Share{0, 0};
        if (kHasSoftmax && is_used && g != 0.0)
          shares[s] = Share{stats[2 * s * num_rows + row], static_cast<Real>(stats[(2 * s + 1) * num_rows + row] * g)};
      }
      if (kHasSoftmax && is_used) arcs.load_logits(logits, row);
      __syncwarp();  // the logits of all arcs are read
      if (walk.exists()) {
        write_part(logits, out, row, classes_of(table), shares[0], bounds);
        if (DURATIONS) write_part(logits, out, row, durations_of(table), shares[DURATIONS], bounds);
      }
      __syncwarp();  // and all of the row is written
#pragma unroll
      for (int e = 0; e < kEntries; ++e) {
        if (!is_used || arcs.entry[e] < 0) continue;
        double share = -arcs.own[e];
        if (SIGMOID && kHasSoftmax && arcs.entry[e] == table.alone) {
          share += arcs.total * sigma(arcs.x[e]);
        } else if (kHasSoftmax) {
          const bool is_duration = DURATIONS && arcs.entry[e] >= table.num_classes;
          share += is_duration ? shares[DURATIONS].of(arcs.x[e]) : shares[0].of(arcs.x[e]);
        }
        share = share > limit ? limit : share < -limit ? -limit : share;
        put(out.place(row, arcs.entry[e]), share * bounds.weight);
      }
    }
  }
}

}  // namespace fsachain

#define ROWS                                                                                                            \
  const long long *sequences, long long num_sequences, const long long *first, long long first_by_sequence,              \
      long long first_by_frame, const INTEGER *targets, long long by_sequence, long long by_label,                       \
      const long long *classes, const long long *durations, int num_classes, int width, int alone, long long num_cells, \
      long long span
#define TABLE                                                                                              \
  fsachain::Table {                                                                                        \
    sequences, num_sequences, first, first_by_sequence, first_by_frame, targets, by_sequence, by_label, classes, \
        durations, num_classes, width, alone, num_cells                                                    \
  }
#define LOGITS const ELEMENT *logits, long long by_row, long long by_class, long long num_rows

// values [KINDS][num_cells] and stats [2 (1 + DURATIONS)][num_rows] of logits.
extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks)
    softmax_scores(ROWS, LOGITS, const double* charges, double* values, void* stats) {
  using namespace fsachain;
  const Table table = TABLE;
  const Logits given{logits, by_row, by_class};
  Real* kept = static_cast<Real*>(stats);
  for (long long n = blockIdx.y; n < num_sequences; n += gridDim.y) {
    Walk walk(table, n, first_row(span), span, false);
    for (; __any_sync(kAll, walk.exists()); walk.next()) {
      const bool is_real = walk.is_real();
      const long long row = walk.row();
      LogSum found[1 + DURATIONS];
#pragma unroll
      for (int s = 0; s <= DURATIONS; ++s) {
        const Part part = s == 0 ? classes_of(table) : durations_of(table);
        Real largest;
        Sum sum;
        statistics(given, row, is_real ? part : Part{0, 0, -1}, largest, sum);
        found[s] = LogSum{static_cast<double>(largest), static_cast<double>(log_of(sum))};
        if (!is_real || threadIdx.x % LANES != 0) continue;
        kept[2 * s * num_rows + row] = largest;
        kept[(2 * s + 1) * num_rows + row] = sum == 0 ? static_cast<Real>(0) : static_cast<Real>(1 / sum);
      }
      if (is_real) write_scores(table, walk, given, found[0], found[DURATIONS], charges, values);
    }
  }
}

// The same of rows that are log-probs already.
extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks)
    plain_scores(ROWS, LOGITS, const double* charges, double* values) {
  using namespace fsachain;
  const Table table = TABLE;
  const LogSum nothing{0.0, 0.0};
  for (long long n = blockIdx.y; n < num_sequences; n += gridDim.y) {
    Walk walk(table, n, first_row(span), span, false);
    for (; walk.exists(); walk.next())
      if (walk.is_real())
        write_scores(table, walk, Logits{logits, by_row, by_class}, nothing, nothing, charges, values);
  }
}

#define GRADIENT \
  const double *occupancy, const double *weights, double limit, OUT *out, long long out_by_row, long long out_by_class

extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks)
    softmax_gradient(ROWS, LOGITS, const void* stats, GRADIENT) {
  using namespace fsachain;
  write_gradient<true>(TABLE, Logits{logits, by_row, by_class}, static_cast<const Real*>(stats), num_rows, span,
                       occupancy, weights, limit, Gradient{out, out_by_row, out_by_class});
}

extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks) plain_gradient(ROWS, LOGITS, GRADIENT) {
  using namespace fsachain;
  write_gradient<false>(TABLE, Logits{logits, by_row, by_class}, nullptr, num_rows, span, occupancy, weights, limit,
                        Gradient{out, out_by_row, out_by_class});
}

namespace fsachain {

// into(t, u) += from(t, u) at the nodes from which a label leads on; both are numbered by cells.
__device__ __forceinline__ void add_cells(const long long* sequences, long long num_sequences, double* into,
                                          const double* from) {
  for (long long n = blockIdx.y; n < num_sequences; n += gridDim.y) {
    const long long *own = sequences + 8 * n, labels = own[5], count = own[4] * labels;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<long long>(gridDim.x) * blockDim.x) {
      const long long cell = own[6] + i / labels * own[7] + i % labels;
      into[cell] += from[cell];
    }
  }
}

}  // namespace fsachain

// Equation (26) on scores [2][num_cells] of blanks and labels: those of labels.
extern "C" __global__ void __launch_bounds__(256)
    grid_constrain(const long long* sequences, long long num_sequences, long long num_cells, double* values) {
  fsachain::add_cells(sequences, num_sequences, values + num_cells, values + 1);
}

// What it asks of occupancies: those of blanks.
extern "C" __global__ void __launch_bounds__(256)
    grid_release(const long long* sequences, long long num_sequences, long long num_cells, double* occupancy) {
  fsachain::add_cells(sequences, num_sequences, occupancy + 1, occupancy + num_cells);
}

// values [KINDS][num_cells] times factors [KINDS], equation (27); kinds whose factor is 1 are not touched.
extern "C" __global__ void __launch_bounds__(256)
    grid_scale(long long num_cells, const double* factors, double* values) {
  const double factor = factors[blockIdx.y];
  if (factor == 1.0) return;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_cells;
       i += static_cast<long long>(gridDim.x) * blockDim.x)
    values[blockIdx.y * num_cells + i] *= factor;
}
