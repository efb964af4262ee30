// What the forward and the backward pass share: whose frames a block works on, its part of the table, sums of arcs.

#ifndef FSACHAIN_RECURSION_CUH_
#define FSACHAIN_RECURSION_CUH_

#include "storage.cuh"

namespace fsachain {

// The sequences of a thread: one of each group that runs in this kind of number, others have the length 0.
struct Sequences {
  int length[LANES];
  int longest;  // of the group

  DEVICE Sequences(const int* sequences, const int* lengths, const int* kinds, long long group) {
    longest = -1;
    for (int v = 0; v < LANES; ++v) {
      const long long lane = group * kSequences + first_lane() + v;
      const int n = sequences[lane];
      const bool runs = n >= 0 && kinds[n] == KIND;
      length[v] = runs ? lengths[lane] : 0;
      longest = max(longest, runs ? length[v] : -1);
    }
    if (CHUNK == 1) {
      for (int lanes = 16; lanes > 0; lanes /= 2)
        longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, lanes));
    }
  }
  DEVICE bool none() const { return longest < 0; }
};

// Frames of a group that its blocks work on without a break.
struct Turn {
  long long group;
  int begin, end;
  bool of_two;  // another cluster has the group's other frames
};

// What a cluster does in a launch: all frames of a window of one group; or, where more groups share a table than run at once,
// a piece of the row in which all groups stand, longest first, each from its last frame to its first, after McNaughton (1959).
// No piece is shorter than a group, so that two clusters have a group at most; its first frames are what one of them begins
// with, its last are what the other ends with, which need not wait long. That has the larger number: it began later, so
// that nobody waits for what cannot begin.
struct Turns {
  const int* lengths;
  int groups, from, to, group, start;  // `start`: where the group's first frame stands in the row
  Turn turn;

  // `span`: frames of a piece, 0 where each group has a cluster. The backward pass has the last frames first.
  DEVICE Turns(const int* lengths, int groups, int span, int cluster, int clusters, const Turn& window, bool is_backward)
      : lengths(lengths), groups(groups), from(0), to(0), group(0), start(0), turn(window) {
    if (!ON_CHIP || span == 0) return;
    from = span * (is_backward ? cluster : clusters - 1 - cluster);
    to = from + span;
    while (start + frames() <= from) start += frames(), ++group;
    if (is_backward)
      while (group + 1 < groups && start + frames() < to) start += frames(), ++group;
    read();
  }
  DEVICE bool forward() {
    if (!ON_CHIP || to == 0) return false;
    start += frames();
    return read(++group < groups && start < to);
  }
  DEVICE bool backward() {
    if (!ON_CHIP || start <= from) return false;
    --group;
    start -= frames();
    return read(true);
  }

 private:
  DEVICE int frames() const { return max(lengths[group * kSequences], 1); }
  DEVICE bool read(bool there = true) {
    if (!there) return false;
    __syncthreads();  // what the turn before has read may be written
    const int end = start + frames();
    turn = {group, max(end - to, 0), min(end - from, frames()), start < from || end > to};
    return true;
  }
};

// The shards of the group's table. A block works on those from its rank on, in steps of the peers; the first stays loaded.
template <int kMetadata>
struct BlockShards {
  Shards<kMetadata> all;
  Peers peers;
  long long first_shard;
  int shards;
  Shard loaded;
  int loaded_number;

  DEVICE BlockShards(const Shards<kMetadata>& all, const Peers& peers, const long long* group, unsigned char*& free)
      : all(all),
        peers(peers),
        first_shard(group[kFirstShard]),
        shards(static_cast<int>(group[kShards])),
        loaded(all.shard(free, first_shard + min(peers.rank, shards - 1))),
        loaded_number(min(peers.rank, shards - 1)) {}
  // On chip a block has one shard.
  DEVICE bool has(int s) const { return ON_CHIP ? s == peers.rank : s < shards; }
  DEVICE int next(int s) const { return ON_CHIP ? -1 : s + peers.blocks; }
  DEVICE const Shard& get(int s) {
#if !ON_CHIP
    if (s != loaded_number) {
      unsigned char* nothing = nullptr;
      loaded = all.shard(nothing, first_shard + s);
      loaded_number = s;
    }
#endif
    return loaded;
  }
};

// Rows dealt over the threads of a block, each thread its own sequences: its first row, and the step to the next.
DEVICE int first_row() { return CHUNK == 32 ? threadIdx.x : warp_of_block(); }
DEVICE int row_step() { return CHUNK == 32 ? blockDim.x : warps_of_block(); }

DEVICE void fill_lanes(Row& row, Value value) {
  for (int v = 0; v < LANES; ++v) row.lane[v] = value;
}

// Probabilities of a window of frames. On chip those of kRing frames are in shared memory: one in use, others on their way.
const int kRing = 2 + AHEAD;
struct WindowProbs {
  const Value* all;  // of the frames from `begin` on
  Row* ring;
  long long columns;
  int begin;

  DEVICE const Value* of(int t) const {
#if ON_CHIP
    return reinterpret_cast<const Value*>(ring + t % kRing * columns);
#else
    return all + (t - begin) * columns * kSequences;
#endif
  }
  // Starts to copy those of frame t; `wait_for_copies` and a barrier come before `of(t)` is read.
  DEVICE void prefetch(int t) const {
#if ON_CHIP
    copy_rows(ring + t % kRing * columns, reinterpret_cast<const Row*>(all) + (t - begin) * columns, columns);
#endif
  }
};

// The sum of a segment's arcs over `rows`: alphas, pair values or partials.
DEVICE Row sum_arcs(const Arc* arc, int length, const Value* rows) {
  Row sum = zero_row();
  for (int k = 0; k < length; ++k) {
    const Arc one = arc[k * CHUNK];
    Row row;
    load(row, rows, index_of(one.index));
    add_product(sum, row, one);
  }
  normalize(sum);
  return sum;
}

// The sums of two twins over `rows`, each of which is read once.
DEVICE void sum_twins(const Shard& shard, const Work& work, const Work& twin, const Value* rows, Value* partials) {
  const Arc *arc = shard.arcs + work.first_arc, *other = shard.arcs + twin.first_arc;
  Row sum = zero_row(), twin_sum = zero_row();
  for (int k = 0; k < work.length; ++k) {
    const Arc one = arc[k * CHUNK];
    Row row;
    load(row, rows, index_of(one.index));
    add_product(sum, row, one);
    add_product(twin_sum, row, other[k * CHUNK]);
  }
  normalize(sum);
  normalize(twin_sum);
  store(partials, work.row, sum);
  store(partials, twin.row, twin_sum);
}

// Sums of the segments of states that have too many arcs for one; `partials` are those of the shard.
DEVICE void sum_parts(const Shard& shard, const Value* rows, Value* partials) {
#if TILES
  for (int i = shard.first_tile; i < shard.whole_chunks + shard.tile_chunks; i += 2 * warps_of_block()) {
    const Work work = shard.work(i);
    if (work.row >= 0) sum_twins(shard, work, shard.work(i + 1), rows, partials);
  }
#endif
  for (int i = shard.part.first, k = 0; i < shard.part.end; i += shard.part.step, ++k) {
    const Work work = shard.work(shard.part, k, i);
    if (work.row >= 0) store(partials, work.row, sum_arcs(shard.arcs + work.first_arc, work.length, rows));
  }
}

// Where the partials of a shard begin: on chip a block has those of its shard alone.
DEVICE Value* partials_of(const Shard& shard, Value* partials) {
  return ON_CHIP ? partials : partials + static_cast<long long>(shard.partial_base) * kSequences;
}

}  // namespace fsachain

#endif  // FSACHAIN_RECURSION_CUH_
