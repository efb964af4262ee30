// Where the values of a frame lie, and how the blocks that share a group meet.
//
// PLACE 0, on chip: the blocks of a cluster (CLUSTER of them, a share each) hold all alphas in shared memory. A block writes
//   its states' new alphas into the shared memory of every block; one barrier of the cluster ends a frame. A thread has a
//   unit to itself and LANES sequences.
// PLACE 1, in memory: alphas in global memory, 32 / SLICE sequences of a group side by side. A team of blocks works through
//   the shares and meets at a counter in memory. With SLICE 1 a warp has a unit and a lane of it a sequence: what is read for
//   an arc are 32 neighbours. A group of own tables has one sequence and SLICE 32.
//
// Row r of either lies at r * kSequences + the thread's first sequence.

#ifndef FSACHAIN_PLACE_CUH_
#define FSACHAIN_PLACE_CUH_

#include "cluster.cuh"
#include "layout.cuh"
#include "numbers.cuh"

#ifndef PLACE
#define PLACE 0
#endif
#ifndef ARCS_ON_CHIP
#define ARCS_ON_CHIP 1
#endif
#ifndef THREADS
#define THREADS 256
#endif

// Two blocks of 256 threads leave a thread 128 registers; in memory this is what lets RESIDENT_BLOCKS of `cuda_plan` run at
// once. Several sequences for each thread need more of them, and their blocks fill a multiprocessor's shared memory anyway.
#if THREADS <= 256 && LANES == 1
#define BLOCKS_AT_ONCE 2
#else
#define BLOCKS_AT_ONCE 1
#endif
#if CLUSTER > 1
#define ENTRY extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE) __cluster_dims__(CLUSTER, 1, 1)
#else
#define ENTRY extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
#endif

extern __shared__ __align__(16) unsigned char shared_memory[];

namespace fsachain {

static const int kAcross = 32 / SLICE;              // sequences side by side in a warp
static const int kSequences = kAcross * LANES;      // sequences of a group

DEVICE int lane_of_warp() { return threadIdx.x % 32; }
DEVICE int warp_of_block() { return threadIdx.x / 32; }
DEVICE int warps_of_block() { return blockDim.x / 32; }
// Which unit of a slice, and which sequence of a group is the thread's first.
DEVICE int slot_of_thread() { return SLICE == 32 ? lane_of_warp() : 0; }
DEVICE int first_lane() { return SLICE == 32 ? 0 : lane_of_warp(); }
// The thread that speaks for the sequences it has: one of each.
DEVICE bool speaks_for_lanes() { return threadIdx.x < kAcross; }

template <typename T>
DEVICE T* take(unsigned char*& free, long long count) {
  T* first = reinterpret_cast<T*>(free);
  free += (count * sizeof(T) + 15) / 16 * 16;
  return first;
}

// One piece of at most 16 bytes from global to shared memory, without waiting for it where the GPU can do so.
template <typename T>
DEVICE void copy_piece(T* to, const T* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(address), "l"(from), "n"(sizeof(T)) : "memory");
#else
  *to = *from;
#endif
}

DEVICE void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;\n" ::: "memory");
#endif
}

// A row as it is copied: pieces of at most 16 bytes.
struct __align__(alignof(Row)) Piece {
  unsigned char bytes[alignof(Row)];
};

DEVICE void copy_rows(Row* to, const Row* from, long long count) {
  const long long pieces = count * (sizeof(Row) / sizeof(Piece));
#pragma unroll 1
  for (long long i = threadIdx.x; i < pieces; i += blockDim.x)
    copy_piece(reinterpret_cast<Piece*>(to) + i, reinterpret_cast<const Piece*>(from) + i);
}

// Arcs are what is read most: they stay in shared memory where they fit. Units and entries, of which there are fewer, come
// through the cache.
DEVICE const Arc* resident(unsigned char*& free, const Arc* from, long long count) {
#if ARCS_ON_CHIP && PLACE == 0
  Arc* to = take<Arc>(free, count);
#pragma unroll 4
  for (long long i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
  return to;
#else
  return from;
#endif
}

// The arrays of one share in one direction.
struct Share {
  const Slice* slices;
  const Unit* units;
  const Arc* arcs;
  const Entry* entries;
  const Pair* pairs;
  int whole_slices, part_slices, split_slices;
  int pair_base, pair_rows, state_base, states, partial_base;
};

// The same of all shares, as the host gives them.
struct Shares {
  const long long* fields;
  const Slice* slices;
  const Unit* units;
  const Arc* arcs;
  const Entry* entries;
  const Pair* pairs;

  DEVICE Share share(unsigned char*& free, long long s) const {
    const long long* field = fields + s * kShareFields;
    Share share;
    share.whole_slices = static_cast<int>(field[kWholeSlices]);
    share.part_slices = static_cast<int>(field[kPartSlices]);
    share.split_slices = static_cast<int>(field[kSplitSlices]);
    share.pair_base = static_cast<int>(field[kPairBase]);
    share.pair_rows = static_cast<int>(field[kPairRows]);
    share.state_base = static_cast<int>(field[kStateBase]);
    share.states = static_cast<int>(field[kShareStates]);
    share.partial_base = static_cast<int>(field[kPartialBase]);
    share.slices = slices + field[kFirstSlice];
    share.units = units + field[kFirstUnit];
    share.arcs = resident(free, arcs + field[kFirstArc], field[kArcs]);
    share.entries = entries + field[kFirstEntry];
    share.pairs = pairs == nullptr ? nullptr : pairs + field[kFirstPair];
    return share;
  }
};

DEVICE void load(Row& row, const Value* rows, long long r) {
  row = *reinterpret_cast<const Row*>(rows + r * kSequences + first_lane());
}
DEVICE void store(Value* rows, long long r, const Row& row) {
  *reinterpret_cast<Row*>(rows + r * kSequences + first_lane()) = row;
}

// Writes a row at the same place of every block that shares the group.
DEVICE void publish(Value* rows, long long r, const Row& row) {
#if PLACE == 0 && CLUSTER > 1
  for (int rank = 0; rank < CLUSTER; ++rank) store(of_block(rows, rank), r, row);
#else
  store(rows, r, row);
#endif
}

// The blocks that share a group: which this one is, and their barrier, after which each sees what the others wrote.
struct Team {
  unsigned* counter;
  int blocks, rank;

  DEVICE void meet() const {
#if PLACE == 1
    __syncthreads();
    if (threadIdx.x == 0 && blocks > 1) {
      __threadfence();
      const unsigned ticket = atomicAdd(counter, 1u);
      const unsigned last = (ticket / blocks + 1) * blocks;
      while (static_cast<int>(atomicAdd(counter, 0u) - last) < 0) __nanosleep(40);
      __threadfence();
    }
    __syncthreads();
#else
    meet_cluster();
#endif
  }
};

// The sum over the threads of a warp that have the same sequences, in every one of them.
DEVICE Row warp_sum(Row x) {
  if (SLICE == 32) {
    for (int lanes = 16; lanes > 0; lanes /= 2)
      for (int v = 0; v < LANES; ++v)
        x.lane[v] = Number::tidy(Number::sum(x.lane[v], Number::from_xor(x.lane[v], lanes)));
  }
  return x;
}

// Sums over all threads of a team. A share's sum is collected from its block's warps, then all shares' are added in order.
struct TeamSum {
  Value* collected;  // rows: of each warp of each block (on chip), of each share (in memory); twice, taken in turn
  Value* of_warps;   // rows in shared memory, one for each warp
  int count;

  DEVICE void give(int turn, int share, Row sum) const {
    sum = warp_sum(sum);
#if PLACE == 0
    if (lane_of_warp() < kAcross) publish(collected, (turn * CLUSTER + share) * warps_of_block() + warp_of_block(), sum);
#else
    if (lane_of_warp() < kAcross) store(of_warps, warp_of_block(), sum);
    __syncthreads();
    const long long place = static_cast<long long>(turn) * count + share;
    if (threadIdx.x < kAcross) store(collected, place, sum_rows(of_warps, warps_of_block(), 1, 0));
    __syncthreads();
#endif
  }

  // Valid after the team's barrier, in every thread.
  DEVICE Row total(int turn) const {
    const Value* rows = collected + static_cast<long long>(turn) * count * kSequences;
    if (SLICE == 32) return warp_sum(sum_rows(rows, count, 32, lane_of_warp()));
    Row sum = sum_rows(rows, count, warps_of_block(), warp_of_block());
    store(of_warps, warp_of_block(), sum);
    __syncthreads();
    sum = sum_rows(of_warps, warps_of_block(), 1, 0);
    __syncthreads();
    return sum;
  }

 private:
  static DEVICE Row sum_rows(const Value* rows, int count, int step, int first) {
    Row sum = zero_row();
#pragma unroll 1
    for (int r = first; r < count; r += step) {
      Row row;
      load(row, rows, r);
      for (int v = 0; v < LANES; ++v) sum.lane[v] = Number::sum(sum.lane[v], row.lane[v]);
    }
    tidy(sum);
    return sum;
  }
};

// On chip: memory for the warps of all blocks. In memory: for the shares, at `in_memory`.
DEVICE TeamSum team_sum(Value* in_memory, long long shares, unsigned char*& free) {
#if PLACE == 0
  const int count = CLUSTER * warps_of_block();
  return {reinterpret_cast<Value*>(take<Row>(free, 2 * count)), nullptr, count};
#else
  return {in_memory, reinterpret_cast<Value*>(take<Row>(free, warps_of_block())), static_cast<int>(shares)};
#endif
}

}  // namespace fsachain

#endif  // FSACHAIN_PLACE_CUH_
