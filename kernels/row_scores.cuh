// Equation (24), (28), (29) of fsachain/grid.py: from a row's logits and log-sums to the scores of its arcs.

#ifndef FSACHAIN_ROW_SCORES_CUH_
#define FSACHAIN_ROW_SCORES_CUH_

#include "rows.cuh"

namespace fsachain {

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

}  // namespace fsachain

#endif  // FSACHAIN_ROW_SCORES_CUH_
