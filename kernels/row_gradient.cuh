// Equations (25), (27)-(29) of fsachain/grid.py: from the occupancies of a row's arcs to the gradient of its logits.

#ifndef FSACHAIN_ROW_GRADIENT_CUH_
#define FSACHAIN_ROW_GRADIENT_CUH_

#include "rows.cuh"

namespace fsachain {

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

// Equation (25) times weights [N], weight_step apart, for all rows, padding too; without `stats` rows are log-probs, whose gradient is -g.
template <bool kHasSoftmax>
__device__ __forceinline__ void write_gradient(const Table& table, const Logits& logits, const Real* stats,
                                               long long num_rows, long long span, const double* occupancy,
                                               const double* weights, long long weight_step, double limit,
                                               const Gradient& out) {
  for (long long n = blockIdx.y; n < table.num_sequences; n += gridDim.y) {
    const Bounds bounds{limit, weights[n * weight_step]};
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

#endif  // FSACHAIN_ROW_GRADIENT_CUH_
