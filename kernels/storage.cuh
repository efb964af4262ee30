// Where the values of a frame lie, and how the blocks that work on one group of sequences meet.
//
// ON_CHIP 1: the blocks of a cluster (CLUSTER of them, a shard each) hold all alphas in shared memory. A block writes its
// states' new alphas into the shared memory of every block; one `Exchange` ends a frame. A thread has a segment to itself and
// LANES sequences.
// ON_CHIP 0: alphas in global memory, 32 / CHUNK sequences of a group side by side. Several blocks work through the shards
// and meet at a counter in memory. With CHUNK 1 a warp has a segment and a lane of it a sequence: what is read for an arc are
// 32 neighbours. A group of own tables has one sequence and CHUNK 32.
//
// Row r of either lies at r * kSequences + the thread's first sequence.

#ifndef FSACHAIN_STORAGE_CUH_
#define FSACHAIN_STORAGE_CUH_

#include "cluster.cuh"
#include "layout.cuh"
#include "numbers.cuh"

#ifndef LEAK
#define LEAK 0
#endif
#ifndef ON_CHIP
#define ON_CHIP 1
#endif
#ifndef ARCS_ON_CHIP
#define ARCS_ON_CHIP 1
#endif
#ifndef FORWARD_METADATA
#define FORWARD_METADATA 0  // of chunks, segments and entries: the first so many are in shared memory too
#endif
#ifndef BACKWARD_METADATA
#define BACKWARD_METADATA 0  // the same of chunks, segments, pairs and entries
#endif
#ifndef HELD_CHUNKS
#define HELD_CHUNKS 0  // of each kind, whose place and length a thread keeps in registers
#endif
#ifndef AHEAD
#define AHEAD 0  // frames whose probabilities and history are on their way beside those of the next one
#endif
#ifndef TILES
#define TILES 0  // 1: twins stand in tile chunks
#endif
#ifndef SUM_COLUMNS
#define SUM_COLUMNS 0
#endif
#ifndef THREADS
#define THREADS 256
#endif

// Two blocks of 256 threads leave a thread 128 registers; in memory this is what lets RESIDENT_BLOCKS of plan.py run at
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

static const int kAcross = 32 / CHUNK;              // sequences side by side in a warp
static const int kSequences = kAcross * LANES;      // sequences of a group

DEVICE int lane_of_warp() { return threadIdx.x % 32; }
DEVICE int warp_of_block() { return threadIdx.x / 32; }
DEVICE int warps_of_block() { return blockDim.x / 32; }
// Which segment of a chunk, and which sequence of a group is the thread's first.
DEVICE int slot_of_thread() { return CHUNK == 32 ? lane_of_warp() : 0; }
DEVICE int first_lane() { return CHUNK == 32 ? 0 : lane_of_warp(); }
// The thread that speaks for the sequences it has: one of each.
DEVICE bool leads_lanes() { return threadIdx.x < kAcross; }

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
  if constexpr (sizeof(T) == 16)  // past the first-level cache: what is copied is read once
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(address), "l"(from), "n"(sizeof(T)) : "memory");
#elif defined(__CUDA_ARCH__)
  *to = *from;
#else
  cuda_on_host::copy_async(to, from, sizeof(T));
#endif
}

// The copies that the thread has started since the last call belong together.
DEVICE void end_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#elif !defined(__CUDA_ARCH__)
  cuda_on_host::end_copies();
#endif
}
// Until all of the thread's have come but the last AHEAD of what `end_copies` has ended.
DEVICE void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(AHEAD) : "memory");
#elif !defined(__CUDA_ARCH__)
  cuda_on_host::wait_for_copies(AHEAD);
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

// Arcs are what is read most: they stay in shared memory where they fit, and as many of chunks, segments, pairs and entries
// as fit beside them. The others are left to the first-level cache, for which everything else makes way: see `store_once`.
template <typename T>
DEVICE const T* resident(bool on_chip, unsigned char*& free, const T* from, long long count) {
  if (!on_chip) return from;
  T* to = take<T>(free, count);
#pragma unroll 4
  for (long long i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
  return to;
}

// What is read beside the arcs: forward of each pair its pdf's column, and what leaks to it; backward of each segment init of
// its state. Without a leak the list of pairs has all that.
#if LEAK
typedef Number::Entry Entry;
DEVICE int column_of(const Entry& entry) { return entry.index; }
#else
typedef Pair Entry;
DEVICE int column_of(const Entry& entry) { return entry.column; }
#endif

// What a thread reads of a chunk and its segment there.
struct Work {
  int first_arc, first_pair, row, length;
};

// The chunks of one kind that a warp works on: first, first + step, ... of those before `end`.
struct Works {
  int first, step, end;
#if HELD_CHUNKS > 0
  Work held[HELD_CHUNKS];
#endif
};

// The arrays of one shard in one direction.
struct Shard {
  const Chunk* chunks;
  const Segment* segments;
  const Arc* arcs;
  const Entry* entries;
  const Pair* pairs;
  int whole_chunks, part_chunks, split_chunks, tile_chunks;
  int pair_base, pair_rows, state_base, states, partial_base;
  Works whole, part, split;
  int first_tile;  // of the warp

  DEVICE Work work(int i) const {
    const Chunk chunk = chunks[i];
    const Segment segment = segments[i * CHUNK + slot_of_thread()];
    return {chunk.first_arc + slot_of_thread(), chunk.first_pair + slot_of_thread(), segment.row, segment.length};
  }
  // The work of chunk i, the k-th of `works`. Which registers hold it must be known when this is compiled: hence no index.
  DEVICE Work work(const Works& works, int k, int i) const {
#if HELD_CHUNKS > 0
    if (k < HELD_CHUNKS) {
      Work found = works.held[0];
#pragma unroll
      for (int j = 1; j < HELD_CHUNKS; ++j)
        if (j == k) found = works.held[j];
      return found;
    }
#endif
    return work(i);
  }
  DEVICE void start(Works& works, int begin, int end, int warp) const {
    works.first = begin + warp;
    works.step = warps_of_block();
    works.end = end;
#if HELD_CHUNKS > 0
#pragma unroll
    for (int k = 0; k < HELD_CHUNKS; ++k)
      if (works.first + k * works.step < end) works.held[k] = work(works.first + k * works.step);
#endif
  }
};

// The same of all shards, as the host gives them. kMetadata: FORWARD_METADATA or BACKWARD_METADATA.
template <int kMetadata>
struct Shards {
  const long long* fields;
  const Chunk* chunks;
  const Segment* segments;
  const Arc* arcs;
  const Entry* entries;
  const Pair* pairs;

  DEVICE Shard shard(unsigned char*& free, long long s) const {
    const long long* field = fields + s * kShardFields;
    Shard shard;
    shard.whole_chunks = static_cast<int>(field[kWholeChunks]);
    shard.part_chunks = static_cast<int>(field[kPartChunks]);
    shard.split_chunks = static_cast<int>(field[kSplitChunks]);
    shard.tile_chunks = TILES ? static_cast<int>(field[kTileChunks]) : 0;
    shard.pair_base = static_cast<int>(field[kPairBase]);
    shard.pair_rows = static_cast<int>(field[kPairRows]);
    shard.state_base = static_cast<int>(field[kStateBase]);
    shard.states = static_cast<int>(field[kShardStates]);
    shard.partial_base = static_cast<int>(field[kPartialBase]);
    shard.arcs = resident(ON_CHIP && ARCS_ON_CHIP, free, arcs + field[kFirstArc], field[kArcs]);
    const int count = shard.whole_chunks + shard.part_chunks + shard.split_chunks;
    shard.chunks = resident(kMetadata > 0, free, chunks + field[kFirstChunk], count);
    shard.segments = resident(kMetadata > 1, free, segments + field[kFirstSegment], field[kSegments]);
    shard.pairs = nullptr;
    if (pairs != nullptr) shard.pairs = resident(kMetadata > 2, free, pairs + field[kFirstPair], field[kPairRows]);
    // Without a leak the backward pass reads none.
    shard.entries = nullptr;
    if (LEAK || pairs == nullptr)
      shard.entries = resident(kMetadata > (pairs == nullptr ? 2 : 3), free, entries + field[kFirstEntry], field[kEntries]);
    if (kMetadata > 0) __syncthreads();  // work may be read
    // Parts from the last warp on: the first ones have the longest of the whole segments.
    const int warp = warp_of_block(), parts = shard.whole_chunks + shard.part_chunks, last = warps_of_block() - 1;
    shard.start(shard.whole, 0, shard.whole_chunks, warp);
    const int turned = (2 * last + 1 - warp - shard.tile_chunks / 2 % (last + 1)) % (last + 1);  // behind those with tiles
    shard.start(shard.part, shard.whole_chunks + shard.tile_chunks, parts, turned);
    shard.first_tile = shard.whole_chunks + 2 * (last - warp);
    shard.start(shard.split, parts, count, warp);
    return shard;
  }
};

DEVICE Row* row_of(Value* rows, long long r) { return reinterpret_cast<Row*>(rows + r * kSequences + first_lane()); }
DEVICE void load(Row& row, const Value* rows, long long r) {
  row = *reinterpret_cast<const Row*>(rows + r * kSequences + first_lane());
}
DEVICE void store(Value* rows, long long r, const Row& row) { *row_of(rows, r) = row; }

// To global memory, for another kernel: the first-level cache is left to what each frame reads again.
DEVICE void store_once(Value* rows, long long r, const Row& row) {
#if defined(__CUDA_ARCH__)
  unsigned part[sizeof(Row) / 4];
  memcpy(part, &row, sizeof(Row));
  Row* const to = row_of(rows, r);
  if constexpr (sizeof(Row) == 4)
    asm volatile("st.global.L1::no_allocate.b32 [%0], %1;" ::"l"(to), "r"(part[0]) : "memory");
  else if constexpr (sizeof(Row) == 8)
    asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(part[0]), "r"(part[1]) : "memory");
  else
    for (unsigned i = 0; i < sizeof(Row) / 4; i += 4)
      asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<unsigned*>(to) + i),
                   "r"(part[i]), "r"(part[i + 1]), "r"(part[i + 2]), "r"(part[i + 3])
                   : "memory");
#else
  store(rows, r, row);
#endif
}

// The blocks that work on one group: which this one is, and their barrier, after which each sees what the others wrote.
struct Peers {
  unsigned* counter;
  int blocks, rank;

  DEVICE void sync() const {
#if !ON_CHIP
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
    sync_cluster();
#endif
  }
  // The same at the end of an exchange of rows, of which each block is given so many.
  DEVICE void sync(Exchange& exchange, long long rows) const {
    arrive(exchange, rows);
    wait(exchange);
  }
  // In between a block may go on with what its own threads have written.
  DEVICE void arrive(const Exchange& exchange, long long rows) const {
#if ON_CHIP
    exchange.arrive(static_cast<unsigned>(rows * sizeof(Row)));
#endif
  }
  DEVICE void wait(Exchange& exchange) const {
#if ON_CHIP
    exchange.wait();
#else
    sync();
#endif
  }
};

// For the blocks of another cluster, which go on with a group: what this block has written is theirs.
DEVICE void hand_on(unsigned* counter) {
  __syncthreads();
  if (threadIdx.x > 0) return;
  __threadfence();
  atomicAdd(counter, 1u);
}
// Until so many blocks have handed the group on.
DEVICE void take_over(unsigned* counter, unsigned blocks) {
  if (threadIdx.x == 0) {
    while (atomicAdd(counter, 0u) < blocks) __nanosleep(40);
    __threadfence();
  }
  __syncthreads();
}

// The sum over the threads of a warp that have the same sequences, in every one of them.
DEVICE Row warp_sum(Row x) {
  if (CHUNK == 32) {
    for (int lanes = 16; lanes > 0; lanes /= 2) add(x, shuffle_xor(x, lanes));
  }
  return x;
}

// Sums over all threads of the peers. A shard's sum is collected from its block's warps, then all shards' are added in
// order.
struct PeerSum {
  Value* collected;  // rows: of each warp of each block (on chip), of each shard (in memory); twice, taken in turn
  Value* of_warps;   // rows in shared memory, one for each warp
  int count;

  DEVICE void give(int turn, int shard, Row sum, const Exchange& exchange) const {
    sum = warp_sum(sum);
#if ON_CHIP
    const int r = (turn * CLUSTER + shard) * warps_of_block() + warp_of_block();
    if (lane_of_warp() < kAcross) exchange.store(row_of(collected, r), sum);
#else
    if (lane_of_warp() < kAcross) store(of_warps, warp_of_block(), sum);
    __syncthreads();
    const long long r = static_cast<long long>(turn) * count + shard;
    if (threadIdx.x < kAcross) store(collected, r, sum_rows(of_warps, warps_of_block(), 1, 0));
    __syncthreads();
#endif
  }

  // Valid after the peers' barrier, in every thread.
  DEVICE Row total(int turn) const {
    const Value* rows = collected + static_cast<long long>(turn) * count * kSequences;
    if (CHUNK == 32) return warp_sum(sum_rows(rows, count, 32, lane_of_warp()));
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
    normalize(sum);
    return sum;
  }
};

// On chip: memory for the warps of all blocks. In memory: for the shards, at `in_memory`.
DEVICE PeerSum peer_sum(Value* in_memory, long long shards, unsigned char*& free) {
#if ON_CHIP
  const int count = CLUSTER * warps_of_block();
  return {reinterpret_cast<Value*>(take<Row>(free, 2 * count)), nullptr, count};
#else
  return {in_memory, reinterpret_cast<Value*>(take<Row>(free, warps_of_block())), static_cast<int>(shards)};
#endif
}

}  // namespace fsachain

#endif  // FSACHAIN_STORAGE_CUH_
