// The (t, u) grid of transducers: equations (20)-(23) of fsachain/grid.py, in float64 logs.
//
// One block works on one sequence, a step at a time, and one barrier ends a step. Step r has the nodes with t + SLOPE u = r:
// SLOPE is 1, so that steps are anti-diagonals, where an arc may pass no frame, and 0, so that steps are frames, where every
// arc passes one. An arc of kind k then leads from step r to step r + d_k + SLOPE l_k, at least one further. Thread i has the
// nodes u = i, i + THREADS, ... of a step; a node is one sum in the order of the kinds, so no bit depends on THREADS.
//
// Sequences are worked on at the same time, the steps of one after each other: T + SLOPE U times the latency of an exp, a log
// and a barrier is what a launch takes. More threads or blocks for a sequence would not shorten that chain.
//
// What lies where. alpha is kept by steps, [step][u], so that neighbouring threads write and read neighbours. Scores stay in
// the caller's boxes, where the nodes of an anti-diagonal are `by_label - by_frame` apart: a load of a warp then touches a
// sector of memory for each thread, but the other numbers of the sector are those of the following steps, which find them in
// the cache of the first level. Scores of the next step are loaded into registers (HELD) while this one is worked on. A copy
// in the order of steps would need as much memory again as the scores, and a pass of its own.
//
// Shared memory of a block, `depth` steps of `columns` nodes:
//     Kind kinds[KINDS]                       what the sequence's boxes say about each kind of arc
//     double alpha[depth][columns]            (20): the last steps, as far back as arcs reach
//     double nodes[depth][columns]            (22) only: n of the steps ahead, and alpha again
// The two lie in global memory (`room`) where ON_CHIP is 0.

#include "elements.cuh"

#ifndef VALUE
#define VALUE float
#endif
#ifndef BACK
#define BACK unsigned char
#endif
#ifndef KINDS
#define KINDS 2
#endif
#ifndef SLOPE
#define SLOPE 1
#endif
#ifndef THREADS
#define THREADS 512
#endif
#ifndef HELD
#define HELD 1
#endif
#ifndef ON_CHIP
#define ON_CHIP 1
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

constexpr int kUnroll = KINDS <= 24 ? KINDS : 1;  // of loops over kinds

// The arcs of one kind of one sequence: sources (t, u) are those with t < num_frames and u < num_labels, and their scores
// stand at first + t by_frame + u by_label.
struct Kind {
  long long first, by_frame, by_label;
  int frames, labels, num_frames, num_labels, steps;

  __device__ __forceinline__ long long place(int t, int u) const { return first + t * by_frame + u * by_label; }
};
static_assert(sizeof(Kind) == 48, "cuda_grid.py counts on it");

struct Grid {
  int num_frames, num_labels, num_steps;  // T, U, and the number of steps
  int depth, columns;
  const Kind* kinds;
  double* alpha;  // [depth][columns]
  double* nodes;

  // Rows are used in turn, one for a step: that of a slot, which may be below 0 by no more than `depth`.
  __device__ __forceinline__ const double* step(const double* rows, int slot) const {
    return rows + static_cast<long long>(slot < 0 ? slot + depth : slot) * columns;
  }
};

__device__ __forceinline__ double nothing() { return -static_cast<double>(infinity()); }

// What the host's arrays say about sequence n: arcs [KINDS][3], sizes [N][4], boxes [N][KINDS][5], see `GridBatch`.
__device__ inline Grid grid_of(long long n, const long long* arcs, const long long* sizes, const long long* boxes,
                               int depth, double* room, long long room_per_block) {
  const long long* size = sizes + 4 * n;
  Kind* kinds = reinterpret_cast<Kind*>(shared_memory);
  for (int k = threadIdx.x; k < KINDS; k += THREADS) {
    const long long* arc = arcs + 3 * k;
    const long long* box = boxes + 5 * (n * KINDS + k);
    Kind kind;
    kind.first = box[0] + size[0] * box[1] + size[1] * box[2];
    kind.by_frame = box[1];
    kind.by_label = box[2];
    kind.frames = static_cast<int>(arc[0]);
    kind.labels = static_cast<int>(arc[1]);
    kind.num_frames = static_cast<int>(min(size[2] - arc[0] - arc[2] + 1, box[3] - size[0]));
    kind.num_labels = static_cast<int>(min(size[3] - arc[1] + 1, box[4] - size[1]));
    kind.steps = kind.frames + SLOPE * kind.labels;
    kinds[k] = kind;
  }
  Grid grid;
  grid.num_frames = static_cast<int>(size[2]);
  grid.num_labels = static_cast<int>(size[3]);
  grid.num_steps = grid.num_frames + SLOPE * grid.num_labels + 1;
  grid.depth = depth;
  grid.columns = grid.num_labels + 1;
  grid.kinds = kinds;
#if ON_CHIP
  grid.alpha = reinterpret_cast<double*>(kinds + KINDS);
#else
  grid.alpha = room + blockIdx.x * room_per_block;
#endif
  grid.nodes = grid.alpha + static_cast<long long>(depth) * grid.columns;
  __syncthreads();
  return grid;
}

// Scores of all kinds of arcs that end in node (t, u), or that begin there; -inf where there is none.
struct Scores {
  VALUE of[KINDS];

  __device__ __forceinline__ void load_ending(const Grid& grid, const VALUE* values, int t, int u) {
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k) {
      const Kind& kind = grid.kinds[k];
      load(kind, values, t - kind.frames, u - kind.labels, of[k]);
    }
  }
  __device__ __forceinline__ void load_beginning(const Grid& grid, const VALUE* values, int t, int u) {
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k) load(grid.kinds[k], values, t, u, of[k]);
  }
  static __device__ __forceinline__ void load(const Kind& kind, const VALUE* values, int t, int u, VALUE& score) {
    const bool exists = t >= 0 && t < kind.num_frames && u >= 0 && u < kind.num_labels;
    score = exists ? values[kind.place(t, u)] : static_cast<VALUE>(-infinity());
  }
};

// Equation (20): the log-sum of KINDS numbers in their order.
struct LogSum {
  double* alpha;  // [step][u] of this sequence, or null

  __device__ __forceinline__ double join(const double (&x)[KINDS], long long) const {
    double top = nothing(), total = 0.0;
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k) top = x[k] > top ? x[k] : top;
    if (top == nothing()) return top;
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k) total += exp(x[k] - top);
    return top + log(total);
  }
  __device__ __forceinline__ void keep(long long place, double value) const {
    if (alpha) alpha[place] = value;
  }
};

// Equation (23): the largest of KINDS numbers; the first of equals is what the back pointer names.
struct Largest {
  BACK* back;  // [step][u] of this sequence

  __device__ __forceinline__ double join(const double (&x)[KINDS], long long place) const {
    double best = nothing();
    int kind = 0;
#pragma unroll kUnroll
    for (int k = 0; k < KINDS; ++k)
      if (x[k] > best) {
        best = x[k];
        kind = k;
      }
    back[place] = static_cast<BACK>(kind);
    return best;
  }
  __device__ __forceinline__ void keep(long long, double) const {}
};

// All steps from (0, 0) on; the number of (T, U), NaN where a score that an arc has is NaN or +inf.
template <typename Join>
__device__ double advance(const Grid& grid, const VALUE* values, const Join& join) {
  const int own = threadIdx.x;
  Scores held, next;
  bool legal = true;
  int slot = 0;
  if (HELD) held.load_ending(grid, values, -SLOPE * own, own);
  for (int r = 0; r < grid.num_steps; ++r) {
    if (HELD) next.load_ending(grid, values, r + 1 - SLOPE * own, own);
    double* row = grid.alpha + static_cast<long long>(slot) * grid.columns;
    for (int u = own; u <= grid.num_labels; u += THREADS) {
      const int t = r - SLOPE * u;
      if (t < 0 || t > grid.num_frames) continue;
      Scores now;
      if (HELD && u == own) {
        now = held;
      } else {
        now.load_ending(grid, values, t, u);
      }
      double x[KINDS];
#pragma unroll kUnroll
      for (int k = 0; k < KINDS; ++k) {
        const Kind& kind = grid.kinds[k];
        const double score = now.of[k];
        legal = legal && score < infinity();
        x[k] = nothing();
        if (score > nothing()) x[k] = grid.step(grid.alpha, slot - kind.steps)[u - kind.labels] + score;
      }
      const long long place = static_cast<long long>(r) * grid.columns + u;
      const double joined = join.join(x, place);
      const double value = r == 0 && u == 0 ? 0.0 : joined;
      row[u] = value;
      join.keep(place, value);
    }
    if (HELD) held = next;
    slot = slot + 1 == grid.depth ? 0 : slot + 1;
    __syncthreads();
  }
  legal = __syncthreads_and(legal);
  return legal ? grid.step(grid.alpha, slot - 1)[grid.num_labels] : static_cast<double>(not_a_number());
}

// Equation (22), all steps from (T, U) back: scores give way to g. alpha [step][u] is what `advance` has kept.
__device__ inline void retreat(const Grid& grid, VALUE* values, const double* alpha) {
  const int own = threadIdx.x, last = grid.num_steps - 1;
  Scores held, next;
  double here_held = 0.0, here_next = 0.0;
  int slot = 0;
  const auto load = [&](int r, Scores& scores, double& here) {
    const int t = r - SLOPE * own;
    scores.load_beginning(grid, values, t, own);
    if (own <= grid.num_labels && t >= 0 && t <= grid.num_frames)
      here = alpha[static_cast<long long>(r) * grid.columns + own];
  };
  if (HELD) load(last, held, here_held);
  for (int r = last; r >= 0; --r) {
    if (HELD) load(r - 1, next, here_next);
    const long long row = static_cast<long long>(slot) * grid.columns;
    for (int u = own; u <= grid.num_labels; u += THREADS) {
      const int t = r - SLOPE * u;
      if (t < 0 || t > grid.num_frames) continue;
      Scores now;
      double here = here_held;
      if (HELD && u == own) {
        now = held;
      } else {
        now.load_beginning(grid, values, t, u);
        here = alpha[static_cast<long long>(r) * grid.columns + u];
      }
      double total = t == grid.num_frames && u == grid.num_labels ? 1.0 : 0.0;
#pragma unroll kUnroll
      for (int k = 0; k < KINDS; ++k) {
        const Kind& kind = grid.kinds[k];
        if (t >= kind.num_frames || u >= kind.num_labels) continue;
        const int column = u + kind.labels;
        const double ahead = grid.step(grid.nodes, slot - kind.steps)[column];
        double g = 0.0;  // also where both alphas are -inf
        if (ahead > 0.0)
          g = ahead * exp(here + static_cast<double>(now.of[k]) - grid.step(grid.alpha, slot - kind.steps)[column]);
        values[kind.place(t, u)] = static_cast<VALUE>(g);
        total += g;
      }
      grid.alpha[row + u] = here;
      grid.nodes[row + u] = total;
    }
    if (HELD) {
      held = next;
      here_held = here_next;
    }
    slot = slot + 1 == grid.depth ? 0 : slot + 1;
    __syncthreads();
  }
}

__device__ __forceinline__ bool is_finite(double value) { return value > nothing() && value < infinity(); }

}  // namespace fsachain

#define GRIDS const long long *arcs, const long long *sizes, const long long *boxes
#define ROOM int depth, double *room, long long room_per_block
#define GRID_OF(n) fsachain::grid_of(n, arcs, sizes, boxes, depth, room, room_per_block)

// log Z [N]; alphas of sequence n are kept from starts[n] on, where `alphas` is not null.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    grid_forward(GRIDS, ROOM, const VALUE* values, const long long* starts, double* alphas, double* log_prob) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  const Grid grid = GRID_OF(n);
  const double result = advance(grid, values, LogSum{alphas ? alphas + starts[n] : nullptr});
  if (threadIdx.x == 0) log_prob[n] = result;
}

// Scores of sequences whose log Z is finite give way to occupancies.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    grid_backward(GRIDS, ROOM, VALUE* values, const long long* starts, const double* alphas, const double* log_prob) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  if (!is_finite(log_prob[n])) return;
  retreat(GRID_OF(n), values, alphas + starts[n]);
}

// What `grid_backward` leaves of the boxes becomes 0. A warp takes lines of a box, its lanes the entries of a line, which are
// those that lie closer together; gridDim.x blocks share the lines of a sequence.
extern "C" __global__ void __launch_bounds__(256)
    grid_clear(GRIDS, long long num_sequences, VALUE* values, const double* log_prob) {
  using namespace fsachain;
  const long long warps = static_cast<long long>(gridDim.x) * (blockDim.x / 32);
  for (long long n = blockIdx.y; n < num_sequences; n += gridDim.y) {
    const long long* size = sizes + 4 * n;
    const bool has_occupancies = is_finite(log_prob[n]);
    for (int k = 0; k < KINDS; ++k) {
      const long long *arc = arcs + 3 * k, *box = boxes + 5 * (n * KINDS + k);
      const long long frames = min(size[2] - arc[0] - arc[2] + 1, box[3] - size[0]);
      const long long labels = min(size[3] - arc[1] + 1, box[4] - size[1]);
      const bool along_labels = box[2] <= box[1];
      const long long lines = along_labels ? box[3] : box[4], entries = along_labels ? box[4] : box[3];
      for (long long i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < lines; i += warps)
        for (long long j = threadIdx.x % 32; j < entries; j += 32) {
          const long long t = along_labels ? i : j, u = along_labels ? j : i;
          const long long of_t = t - size[0], of_u = u - size[1];
          const bool is_used = of_t >= 0 && of_t < frames && of_u >= 0 && of_u < labels;
          if (!has_occupancies || !is_used) values[box[0] + t * box[1] + u * box[2]] = 0;
        }
    }
  }
}

// The best paths: score[n], and from paths[n][most] the kinds of its arcs, which stand at the end of the row; -1 before them.
// back: a pointer for each node, those of sequence n from starts[n] on.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    grid_best_path(GRIDS, ROOM, const VALUE* values, const long long* starts, BACK* back, long long most, double* score,
                   int* paths) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  const Grid grid = GRID_OF(n);
  BACK* own = back + starts[n];
  int* path = paths + n * most;
  for (long long i = threadIdx.x; i < most; i += THREADS) path[i] = -1;
  const double best = advance(grid, values, Largest{own});  // whose barriers all threads have passed
  if (threadIdx.x != 0) return;
  score[n] = best;
  if (!(best > nothing())) return;
  int t = grid.num_frames, u = grid.num_labels;
  for (long long i = most - 1; t + u > 0; --i) {
    const int k = static_cast<int>(own[static_cast<long long>(t + SLOPE * u) * grid.columns + u]);
    path[i] = k;
    t -= grid.kinds[k].frames;
    u -= grid.kinds[k].labels;
  }
}
