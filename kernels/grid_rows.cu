// Between the logits of a transducer and the scores of its grid: equations (24)-(29) of fsachain/grid.py.
//
// A row is the logits x(t, u, v) of one node. LANES neighbouring threads share a row, and hold HELD of its classes each in
// registers, class v = lane + LANES r of each; WHOLE says that this is all of a row, so that it is read once. Then the next
// of `span` rows that follow one another. Scores, statistics and gradients are a row's own: no bit depends on `span`, the
// batch or the blocks. Logits are read once for their scores and once for their gradient, which is written once and may lie
// in the same place; beside both there are 2 numbers of statistics for each row. Rows of padding are never read. No barrier but
// those of a warp, no shared memory.
//
// `stats` [2][rows] keeps the largest logit of a row and 1 / sum exp(x - largest): probabilities are exact at any magnitude.
// Where a row ends with scores of durations, whose softmax is the second (DURATIONS), there are as many again for these; where
// a class has a sigmoid of its own (SIGMOID), the softmax of classes leaves it out. exp is 2^(x log2 e), whose rounding error is
// below one of the sum, since what it multiplies is small where it is large. Sums are formed in halves, in float64 where rows
// are long.
//
// A few entries of a row are factors of arcs: lanes share them, and write them after the rest of the row; one lane for each.

#include "row_gradient.cuh"
#include "row_scores.cuh"

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
  const double *occupancy, const double *weights, long long weight_step, double limit, OUT *out, long long out_by_row, \
      long long out_by_class

extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks)
    softmax_gradient(ROWS, LOGITS, const void* stats, GRADIENT) {
  using namespace fsachain;
  write_gradient<true>(TABLE, Logits{logits, by_row, by_class}, static_cast<const Real*>(stats), num_rows, span,
                       occupancy, weights, weight_step, limit, Gradient{out, out_by_row, out_by_class});
}

extern "C" __global__ void __launch_bounds__(THREADS, fsachain::kBlocks) plain_gradient(ROWS, LOGITS, GRADIENT) {
  using namespace fsachain;
  write_gradient<false>(TABLE, Logits{logits, by_row, by_class}, nullptr, num_rows, span, occupancy, weights,
                        weight_step, limit, Gradient{out, out_by_row, out_by_class});
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
