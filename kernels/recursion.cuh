// What the forward and the backward pass share: whose frames a block works on, its part of the table, sums of arcs.

#ifndef FSACHAIN_RECURSION_CUH_
#define FSACHAIN_RECURSION_CUH_

#include "place.cuh"

#ifndef LEAK
#define LEAK 0
#endif

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
    if (SLICE == 1) {
      for (int lanes = 16; lanes > 0; lanes /= 2)
        longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, lanes));
    }
  }
  DEVICE bool none() const { return longest < 0; }
};

// The shares of the group's table. A block works on those from its rank on, in steps of the team; the first stays loaded.
struct OwnShares {
  Shares all;
  Team team;
  long long first_share;
  int shares;
  Share kept;
  int kept_number;

  DEVICE OwnShares(const Shares& all, const Team& team, const long long* group, unsigned char*& free)
      : all(all),
        team(team),
        first_share(group[kFirstShare]),
        shares(static_cast<int>(group[kShares])),
        kept(all.share(free, first_share + min(team.rank, shares - 1))),
        kept_number(min(team.rank, shares - 1)) {}
  // On chip a block has one share.
  DEVICE bool has(int s) const { return PLACE == 0 ? s == team.rank : s < shares; }
  DEVICE int next(int s) const { return PLACE == 0 ? -1 : s + team.blocks; }
  DEVICE const Share& get(int s) {
#if PLACE == 1
    if (s != kept_number) {
      unsigned char* nothing = nullptr;
      kept = all.share(nothing, first_share + s);
      kept_number = s;
    }
#endif
    return kept;
  }
};

// Rows dealt over the threads of a block, each thread its own sequences: its first row, and the step to the next.
DEVICE int first_row() { return SLICE == 32 ? threadIdx.x : warp_of_block(); }
DEVICE int row_step() { return SLICE == 32 ? blockDim.x : warps_of_block(); }

DEVICE void fill_lanes(Row& row, Value value) {
  for (int v = 0; v < LANES; ++v) row.lane[v] = value;
}

// Probabilities of a window of frames. On chip those of two frames are in shared memory: one in use, one on its way.
struct WindowProbs {
  const Value* all;  // of the frames from `begin` on
  Row* ring;
  long long columns;
  int begin;

  DEVICE const Value* of(int t) const {
#if PLACE == 0
    return reinterpret_cast<const Value*>(ring + (t & 1) * columns);
#else
    return all + (t - begin) * columns * kSequences;
#endif
  }
  // Starts to copy those of frame t; `wait_for_copies` and a barrier come before `of(t)` is read.
  DEVICE void bring(int t) const {
#if PLACE == 0
    copy_rows(ring + (t & 1) * columns, reinterpret_cast<const Row*>(all) + (t - begin) * columns, columns);
#endif
  }
};

// The sum of a unit's arcs over `rows`: alphas, pair values or partials.
DEVICE Row sum_arcs(const Arc* arc, int length, const Value* rows) {
  Row sum = zero_row();
  for (int k = 0; k < length; ++k) {
    const Arc one = arc[k * SLICE];
    Row row;
    load(row, rows, index_of(one.index));
    add_product(sum, row, one);
  }
  tidy(sum);
  return sum;
}

// Sums of the units of states that have too many arcs for one; `partials` are those of the share.
DEVICE void sum_parts(const Share& share, const Value* rows, Value* partials) {
  // From the last warp on: the first ones have the longest of the whole units.
  for (int s = warps_of_block() - 1 - warp_of_block(); s < share.part_slices; s += warps_of_block()) {
    const Slice slice = share.slices[share.whole_slices + s];
    const Unit unit = share.units[slice.first_unit + slot_of_thread()];
    if (unit.row < 0) continue;
    store(partials, unit.row, sum_arcs(share.arcs + slice.first_arc + slot_of_thread(), unit.length, rows));
  }
}

// Where the partials of a share begin: on chip a block has those of its share alone.
DEVICE Value* partials_of(const Share& share, Value* partials) {
  return PLACE == 0 ? partials : partials + static_cast<long long>(share.partial_base) * kSequences;
}

}  // namespace fsachain

#endif  // FSACHAIN_RECURSION_CUH_
