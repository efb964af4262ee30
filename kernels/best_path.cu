// The best path of every sequence: equations (8) and (9) of fsachain/recursion.py, in float64 logs.
//
// One block works on one sequence, and one barrier ends each frame. LANES neighbouring threads share a state: each looks at
// every LANES-th of the arcs that enter it, and shuffles find the best of them. Among equals the arc of the lowest number
// wins, then the state of the lowest number; sums are formed in the order of the CPU backend, and nothing but additions and
// comparisons happens, so that paths and scores are the same bits there and here.
//
// Shared memory of a block, S states and K active pdfs:
//     double tops[2][32]      the largest score of a frame that each warp saw, +inf for an illegal one
//     double best[32], int state[32]        the reduction of (9)
//     double delta[2][S], frame[2][K]       in place of this in global memory (`room`) where ON_CHIP is 0
// delta and frame alternate: while frame t is worked on, frame t + 1 is already on its way from global memory.
//
// BACK is the type of a back pointer: the number of an arc among those that enter its state. All back pointers of a sequence
// are kept where they fit; else delta is kept every `every` frames, and back pointers are found again from there, window by
// window from the last (`best_path_window`), which changes no bit.

#include "elements.cuh"

#ifndef BACK
#define BACK unsigned int
#endif
#ifndef THREADS
#define THREADS 1024
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef ON_CHIP
#define ON_CHIP 1
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

constexpr int kWarps = 32;    // at most, of a block
constexpr int kAhead = 2;     // scores of the next frame that a thread holds in registers
constexpr int kNoArc = 0x7fffffff;
constexpr int kFields = 6;    // of a row of `places`

// The acceptor of one sequence; arcs are sorted by destination, those of state j stand at offsets[j] .. offsets[j + 1] - 1.
struct Acceptor {
  int num_states, num_columns;
  long long row;  // of this sequence's states among those of all sequences
  const int* offsets;
  const int* src;
  const int* column;
  const double* log_prob;
  const int* arc;
  const int* active;
  const double* initial;
  const double* finals;
};

struct Shared {
  double* tops;
  double* best;
  int* state;
  double* delta;
  double* frame;
};

__device__ inline Shared shared_parts(const Acceptor& acceptor, double* room, long long room_per_block) {
  Shared parts;
  parts.tops = reinterpret_cast<double*>(shared_memory);
  parts.best = parts.tops + 2 * kWarps;
  parts.state = reinterpret_cast<int*>(parts.best + kWarps);
#if ON_CHIP
  parts.delta = reinterpret_cast<double*>(parts.state + kWarps);
#else
  parts.delta = room + blockIdx.x * room_per_block;
#endif
  parts.frame = parts.delta + 2ll * acceptor.num_states;
  return parts;
}

// Columns k = threadIdx.x, threadIdx.x + THREADS, ... of frame t. The first kAhead of a thread are fetched early.
struct Fetch {
  ELEMENT held[kAhead];

  __device__ __forceinline__ void begin(const Elements& scores, const Acceptor& acceptor, long long n, long long t) {
    const ELEMENT* row = scores.row(n, t);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const int k = threadIdx.x + r * THREADS;
      if (k < acceptor.num_columns) held[r] = scores.at(row, acceptor.active[k]);
    }
  }

  // Writes the columns to frame [K] and this warp's largest to tops.
  __device__ __forceinline__ void finish(const Elements& scores, const Acceptor& acceptor, long long n, long long t,
                                         double* frame, double* tops) {
    const ELEMENT* row = scores.row(n, t);
    double top = -infinity();
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const int k = threadIdx.x + r * THREADS;
      if (k < acceptor.num_columns) keep(number_of(held[r]), frame[k], top);
    }
    for (long long k = threadIdx.x + static_cast<long long>(kAhead) * THREADS; k < acceptor.num_columns;
         k += THREADS)
      keep(number_of(scores.at(row, acceptor.active[k])), frame[k], top);
    for (int apart = 16; apart > 0; apart /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, top, apart);
      top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  }

  // NaN and +inf are illegal; both make the frame's largest +inf.
  static __device__ __forceinline__ void keep(double value, double& place, double& top) {
    place = value;
    if (!(value < infinity())) top = infinity();
    if (value > top) top = value;
  }
};

__device__ __forceinline__ double largest(const double* tops) {
  double top = -infinity();
  constexpr int warps = THREADS / 32;
  for (int w = 0; w < warps; ++w) top = tops[w] > top ? tops[w] : top;
  return top;
}

// Back pointers of frames first.., [frame][state]; a sequence's rows follow one another.
struct KeepBack {
  BACK* rows;
  long long first, num_states;

  __device__ __forceinline__ void arc(long long t, int state, int number) const {
    rows[(t - first) * num_states + state] = static_cast<BACK>(number);
  }
  __device__ __forceinline__ void delta(const double*) const {}
};

// delta before frames 0, every, 2 every, ...; `row` is where the next goes, `wait` frames from now.
struct KeepDelta {
  double* row;
  int every, num_states, wait;

  __device__ __forceinline__ void arc(long long, int, int) const {}
  __device__ __forceinline__ void delta(const double* values) {
    if (wait-- > 0) return;
    for (int i = threadIdx.x; i < num_states; i += THREADS) row[i] = values[i];
    row += num_states;
    wait = every - 1;
  }
};

// Equation (8) for one frame: `now` from `before` and the columns of `frame`, less `shift`.
template <typename Keep>
__device__ __forceinline__ void advance_frame(const Acceptor& acceptor, const double* before, const double* frame,
                                              double shift, long long t, const Keep& keep, double* now) {
  constexpr int groups = THREADS / LANES;
  const int lane = threadIdx.x % LANES;
  const int rounds = (acceptor.num_states + groups - 1) / groups;
  for (int round = 0; round < rounds; ++round) {  // all threads take all rounds, because of the shuffles
    const int j = round * groups + static_cast<int>(threadIdx.x) / LANES;
    const bool exists = j < acceptor.num_states;
    const int first = exists ? acceptor.offsets[j] : 0, last = exists ? acceptor.offsets[j + 1] : 0;
    double best = -infinity();
    int arc = kNoArc;
    for (int e = first + lane; e < last; e += LANES) {
      const double x = before[acceptor.src[e]] + acceptor.log_prob[e] + (frame[acceptor.column[e]] - shift);
      if (x > best) {
        best = x;
        arc = e;
      }
    }
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, best, apart);
      const int other_arc = __shfl_xor_sync(0xffffffffu, arc, apart);
      if (other > best || (other == best && other_arc < arc)) {
        best = other;
        arc = other_arc;
      }
    }
    if (exists && lane == 0) {
      now[j] = best;
      keep.arc(t, j, arc == kNoArc ? 0 : arc - first);
    }
  }
}

// Frames [first, last), from the row delta[0]; the result stands in row (last - first) % 2. The shifts are added to `total`.
// False, at once and for all threads, where a score is illegal.
template <typename Keep>
__device__ bool advance(const Acceptor& acceptor, const Elements& scores, long long n, long long first, long long last,
                        const Shared& parts, Keep keep, double& total) {
  Fetch fetch;
  if (first < last) {
    fetch.begin(scores, acceptor, n, first);
    fetch.finish(scores, acceptor, n, first, parts.frame, parts.tops);
  }
  __syncthreads();
  keep.delta(parts.delta);
  for (long long t = first; t < last; ++t) {
    const int half = (t - first) & 1, other = 1 - half;
    const bool more = t + 1 < last;
    if (more) fetch.begin(scores, acceptor, n, t + 1);
    double shift = largest(parts.tops + half * kWarps);
    if (shift == infinity()) return false;
    if (shift == -infinity()) shift = 0.0;
    total += shift;
    double* now = parts.delta + other * acceptor.num_states;
    advance_frame(acceptor, parts.delta + half * acceptor.num_states, parts.frame + half * acceptor.num_columns, shift, t,
                  keep, now);
    if (more)
      fetch.finish(scores, acceptor, n, t + 1, parts.frame + other * acceptor.num_columns, parts.tops + other * kWarps);
    __syncthreads();
    keep.delta(now);
  }
  return true;
}

// Equation (9) without the shifts: the largest delta + final and the first state that has it, for all threads.
__device__ double best_end(const Acceptor& acceptor, const double* delta, const Shared& parts, int& state) {
  double best = -infinity();
  state = kNoArc;
  for (long long i = threadIdx.x; i < acceptor.num_states; i += THREADS) {
    const double x = delta[i] + acceptor.finals[i];
    if (x > best) {
      best = x;
      state = static_cast<int>(i);
    }
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, best, apart);
    const int other_state = __shfl_xor_sync(0xffffffffu, state, apart);
    if (other > best || (other == best && other_state < state)) {
      best = other;
      state = other_state;
    }
  }
  if (threadIdx.x % 32 == 0) {
    parts.best[threadIdx.x / 32] = best;
    parts.state[threadIdx.x / 32] = state;
  }
  __syncthreads();
  constexpr int warps = THREADS / 32;
  for (int w = 0; w < warps; ++w)
    if (parts.best[w] > best || (parts.best[w] == best && parts.state[w] < state)) {
      best = parts.best[w];
      state = parts.state[w];
    }
  return best;
}

// Follows back pointers of frames [first, last) from `state`, writes the caller's numbers of the arcs; the state before.
__device__ int trace(const Acceptor& acceptor, const BACK* rows, long long first, long long last, int state, int* arcs) {
  for (long long t = last - 1; t >= first; --t) {
    const int e = acceptor.offsets[state] + static_cast<int>(rows[(t - first) * acceptor.num_states + state]);
    arcs[t] = acceptor.arc[e];
    state = acceptor.src[e];
  }
  return state;
}

// Where the parts of a sequence's acceptor begin. places [kFields] of each sequence, or of the one that all share: states,
// their number, arcs, active pdfs, their number, offsets.
__device__ inline Acceptor acceptor_of(long long n, const long long* places, int is_shared, const int* offsets,
                                       const int* src, const int* column, const double* log_prob, const int* arc,
                                       const int* active, const double* initial, const double* finals) {
  const long long* place = places + (is_shared ? 0 : n * kFields);
  Acceptor acceptor;
  acceptor.num_states = static_cast<int>(place[1]);
  acceptor.num_columns = static_cast<int>(place[4]);
  acceptor.row = is_shared ? n * place[1] : place[0];
  acceptor.offsets = offsets + place[5];
  acceptor.src = src + place[2];
  acceptor.column = column + place[2];
  acceptor.log_prob = log_prob + place[2];
  acceptor.arc = arc + place[2];
  acceptor.active = active + place[3];
  acceptor.initial = initial + place[0];
  acceptor.finals = finals + place[0];
  return acceptor;
}

}  // namespace fsachain

#define ACCEPTORS                                                                                                      \
  const long long *places, int is_shared, const int *offsets, const int *src, const int *column,                       \
      const double *log_prob, const int *arc, const int *active, const double *initial, const double *finals
#define ACCEPTOR_OF(n) \
  fsachain::acceptor_of(n, places, is_shared, offsets, src, column, log_prob, arc, active, initial, finals)
#define SCORES const ELEMENT *scores, long long by_sequence, long long by_frame, long long by_pdf
#define ROOM double *room, long long room_per_block

namespace fsachain {

// Frames 0 .. lengths[n] - 1 and (9): score[n]; ends[n] is the last state, -1 where there is no path. False there.
template <typename Keep>
__device__ bool run_whole(const Acceptor& acceptor, const Elements& scores, const long long* lengths, const Shared& parts,
                          const Keep& keep, double* score, int* ends) {
  const long long n = blockIdx.x, last = lengths[n];
  for (long long i = threadIdx.x; i < acceptor.num_states; i += THREADS) parts.delta[i] = acceptor.initial[i];
  double total = 0.0;
  const bool legal = advance(acceptor, scores, n, 0, last, parts, keep, total);
  int state = kNoArc;
  const double best = legal ? best_end(acceptor, parts.delta + (last & 1) * acceptor.num_states, parts, state) : 0.0;
  const bool found = legal && best > -infinity();
  if (threadIdx.x == 0) {
    score[n] = legal ? (found ? total + best : -static_cast<double>(infinity())) : not_a_number();
    ends[n] = found ? state : -1;
  }
  return found;
}

// arcs [T] of a sequence: -1 from frame `length` on.
__device__ inline void clear(int* arcs, long long length, long long num_frames) {
  for (long long t = length + threadIdx.x; t < num_frames; t += THREADS) arcs[t] = -1;
}

}  // namespace fsachain

// All back pointers are kept: back [frames][states] of each sequence, `frames` rows. arcs [N][num_frames].
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    best_path_whole(SCORES, const long long* lengths, ACCEPTORS, ROOM, long long num_frames, long long frames, BACK* back,
                    double* score, int* ends, int* arcs) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  const Acceptor acceptor = ACCEPTOR_OF(n);
  const Shared parts = shared_parts(acceptor, room, room_per_block);
  BACK* rows = back + acceptor.row * frames;
  const bool found = run_whole(acceptor, Elements{scores, by_sequence, by_frame, by_pdf}, lengths, parts,
                               KeepBack{rows, 0, acceptor.num_states}, score, ends);
  clear(arcs + n * num_frames, found ? lengths[n] : 0, num_frames);
  __syncthreads();  // the back pointers of all threads are there
  if (threadIdx.x == 0 && found) trace(acceptor, rows, 0, lengths[n], ends[n], arcs + n * num_frames);
}

// delta is kept before every `every`-th frame: marks [count][states] of each sequence, `count` rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    best_path_marks(SCORES, const long long* lengths, ACCEPTORS, ROOM, long long num_frames, long long every,
                    long long count, double* marks, double* score, int* ends, int* arcs) {
  using namespace fsachain;
  const long long n = blockIdx.x;
  const Acceptor acceptor = ACCEPTOR_OF(n);
  const Shared parts = shared_parts(acceptor, room, room_per_block);
  const bool found = run_whole(acceptor, Elements{scores, by_sequence, by_frame, by_pdf}, lengths, parts,
                               KeepDelta{marks + acceptor.row * count, static_cast<int>(every), acceptor.num_states, 0},
                               score, ends);
  clear(arcs + n * num_frames, found ? lengths[n] : 0, num_frames);
}

// Frames [first, first + every), first = window * every, again from their mark, and the path through them; ends[n] moves to
// its begin.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    best_path_window(SCORES, const long long* lengths, ACCEPTORS, ROOM, long long num_frames, long long every,
                     long long count, const double* marks, long long window, BACK* back, int* ends, int* arcs) {
  using namespace fsachain;
  const long long n = blockIdx.x, first = window * every;
  const Acceptor acceptor = ACCEPTOR_OF(n);
  if (ends[n] < 0 || lengths[n] <= first) return;
  const Shared parts = shared_parts(acceptor, room, room_per_block);
  const double* mark = marks + (acceptor.row * count + window * acceptor.num_states);
  for (long long i = threadIdx.x; i < acceptor.num_states; i += THREADS) parts.delta[i] = mark[i];
  const long long last = lengths[n] < first + every ? lengths[n] : first + every;
  BACK* rows = back + acceptor.row * every;
  double total = 0.0;
  advance(acceptor, Elements{scores, by_sequence, by_frame, by_pdf}, n, first, last, parts,
          KeepBack{rows, first, acceptor.num_states}, total);
  if (threadIdx.x == 0) ends[n] = trace(acceptor, rows, first, last, ends[n], arcs + n * num_frames);
}
