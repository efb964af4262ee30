// Equations (5), (6): a frame first makes v(pair) = prob x beta(dst) of the pairs, then gathers arcs by source from them.

#ifndef FSACHAIN_BACKWARD_CUH_
#define FSACHAIN_BACKWARD_CUH_

#include "recursion.cuh"

namespace fsachain {

// Where a group's values lie; `cuda_place` counts the rows on chip, `cuda_group` those in memory.
struct BackwardMemory {
  Value* values;  // v of all pairs
  Value* betas;   // on chip those of the block's own states
  Row* ring;      // see WindowProbs
  Row* brought;   // on chip u of the block's own pairs, copied while the frame before sums its arcs
  Value* partials;
  TeamSum sum;

  DEVICE BackwardMemory(const long long* group, Value* work, unsigned char*& free) {
#if PLACE == 0
    values = reinterpret_cast<Value*>(take<Row>(free, group[kPairs]));
    betas = reinterpret_cast<Value*>(take<Row>(free, group[kOwnStates]));
    ring = take<Row>(free, 2 * group[kColumns]);
    brought = take<Row>(free, group[kOwnPairs]);
    partials = reinterpret_cast<Value*>(take<Row>(free, group[kBackwardParts]));
    sum = team_sum(nullptr, 0, free);
#else
    values = work + group[kWork];
    betas = values + group[kPairs] * kSequences;
    ring = brought = nullptr;
    partials = betas + group[kStates] * kSequences;
    sum = team_sum(partials + group[kBackwardParts] * kSequences, group[kShares], free);
#endif
  }
  // The row of a state's beta, less its number in the table.
  DEVICE int beta_base(const Share& share) const { return PLACE == 0 ? -share.state_base : 0; }
  DEVICE void bring_history(const Share& share, const Value* history) const {
#if PLACE == 0
    copy_rows(brought, reinterpret_cast<const Row*>(history) + share.pair_base, share.pair_rows);
#endif
  }
};

// One frame as a thread sees it.
struct BackwardFrame {
  const Value* probs;
  Value* history;        // of this frame
  const Value* finals;
  Row total;             // sum of init beta' behind the frame
  Value leak;            // c
  unsigned from_final;   // a bit for each lane whose last frame this is, or that has ended
  bool has_betas;        // some lane goes on behind this frame

  // beta(t + 1, state) of one lane from beta', scaled as plain numbers need it.
  DEVICE Value beta(Value behind, int state, int v) const {
    Value b = from_final >> v & 1 ? finals[state] : behind;
    if (LEAK) {
      b = Number::tidy(Number::sum(b, Number::product(leak, total.lane[v])));
      b = Number::scaled(b, Number::scale(total.lane[v], 0));
    }
    return b;
  }

  // Equation (6) for the pairs of a share, in place of u, and their v.
  DEVICE void pairs(const Share& share, const BackwardMemory& memory) const {
#pragma unroll 1
    for (int q = first_row(); q < share.pair_rows; q += row_step()) {
      const Pair pair = share.pairs[q];
      if (pair.column < 0) continue;
      Row value = zero_row(), prob, brought;
      if (has_betas) load(value, memory.betas, pair.state + memory.beta_base(share));
      load(prob, probs, pair.column);
#if PLACE == 0
      brought = memory.brought[q];
#else
      load(brought, history, share.pair_base + q);
#endif
      for (int v = 0; v < LANES; ++v) {
        const Value b = beta(value.lane[v], pair.state, v);
        brought.lane[v] = Number::product(brought.lane[v], b);
        value.lane[v] = Number::tidy(Number::product(prob.lane[v], b));
      }
      store(history, share.pair_base + q, brought);
      publish(memory.values, share.pair_base + q, value);
    }
  }

  // Equation (5), beta', for the states of a share; the thread's part of the sum of init beta'.
  DEVICE Row states(const Share& share, const BackwardMemory& memory) const {
    Row share_total = zero_row();
    Value* partials = partials_of(share, memory.partials);
    sum_parts(share, memory.values, partials);
    if (share.split_slices > 0) __syncthreads();
    const int count = share.whole_slices + share.part_slices + share.split_slices;
    for (int i = warp_of_block(); i < count; i += warps_of_block()) {
      if (i >= share.whole_slices && i < share.whole_slices + share.part_slices) continue;
      const Slice slice = share.slices[i];
      const Unit unit = share.units[slice.first_unit + slot_of_thread()];
      if (unit.row < 0) continue;
      const Value* rows = i < share.whole_slices ? memory.values : partials;
      const Row beta = sum_arcs(share.arcs + slice.first_arc + slot_of_thread(), unit.length, rows);
      store(memory.betas, unit.row + memory.beta_base(share), beta);
      if (LEAK) add_product(share_total, beta, share.entries[slice.first_unit + slot_of_thread()]);
    }
    return share_total;
  }
};

// The betas of a share's states with which the window behind this one began.
DEVICE void start_betas(const Share& share, const BackwardMemory& memory, const Value* state) {
#pragma unroll 1
  for (int i = first_row(); i < share.states; i += row_step()) {
    Row row;
    load(row, state, share.state_base + i);
    store(memory.betas, share.state_base + i + memory.beta_base(share), row);
  }
}

// The betas of a share's states for the window before this one.
DEVICE void keep_betas(const Share& share, const BackwardMemory& memory, Value* state) {
#pragma unroll 1
  for (int i = first_row(); i < share.states; i += row_step()) {
    Row row;
    load(row, memory.betas, share.state_base + i + memory.beta_base(share));
    store(state, share.state_base + i, row);
  }
}

}  // namespace fsachain

// From the betas at `end` to those at `begin`; turns u(t, pair) of `history` into gamma(t, pair), unnormalised. Lanes that
// end after frame t begin with beta'(t + 1) = final there.
ENTRY backward(const long long* groups, const long long* share_fields, const fsachain::Slice* slices,
               const fsachain::Unit* units, const fsachain::Arc* arcs, const fsachain::Entry* entries,
               const fsachain::Pair* pair_list, const fsachain::Value* vectors, const int* sequences, const int* lengths,
               const int* kinds, const fsachain::Value* probs, fsachain::Value* history, const fsachain::Value* state_in,
               fsachain::Value* state_out, fsachain::Value* work, unsigned* counters, int first_group, int team_blocks,
               int begin, int end, double log_leak) {
  using namespace fsachain;
  const long long index = first_group + blockIdx.x / team_blocks;
  const long long* group = groups + index * kGroupFields;
  const Sequences own(sequences, lengths, kinds, index);
  const int last = min(end, own.longest);
  if (own.none() || last <= begin) return;
  const Team team = {counters + index, team_blocks, static_cast<int>(blockIdx.x % team_blocks)};
  const long long states = group[kStates], frame_rows = group[kPairs] * kSequences;
  const Value* vector = vectors + group[kVectors];
  history += group[kHistory];

  unsigned char* free = shared_memory;
  const BackwardMemory memory(group, work, free);
  OwnShares shares({share_fields, slices, units, arcs, entries, pair_list}, team, group, free);
  const WindowProbs prob = {probs + group[kProbs], memory.ring, group[kColumns], begin};

  Row total = zero_row();
  if (state_in != nullptr && last == end) {
    for (int s = team.rank; shares.has(s); s = shares.next(s))
      start_betas(shares.get(s), memory, state_in + group[kState]);
    load(total, state_in + group[kState], states);
  }
  prob.bring(last - 1);
  memory.bring_history(shares.kept, history + (last - 1 - begin) * frame_rows);
  wait_for_copies();
  team.meet();
  const Value leak = LEAK ? Number::from_log(log_leak) : Number::zero();
  for (int t = last - 1; t >= begin; --t) {
    Value* const frame_history = history + (t - begin) * frame_rows;
    BackwardFrame frame = {prob.of(t), frame_history, vector + states, total, leak, 0, t + 1 < own.longest};
    for (int v = 0; v < LANES; ++v) {
      if (t + 1 < own.length[v]) continue;
      frame.from_final |= 1u << v;
      frame.total.lane[v] = vector[2 * states + 1];
    }
    for (int s = team.rank; shares.has(s); s = shares.next(s)) frame.pairs(shares.get(s), memory);
    team.meet();
    // What the next frame reads comes while this one sums its arcs.
    if (t > begin) prob.bring(t - 1);
    if (t > begin) memory.bring_history(shares.kept, frame_history - frame_rows);
    for (int s = team.rank; shares.has(s); s = shares.next(s)) {
      const Row share_total = frame.states(shares.get(s), memory);
      if (LEAK) memory.sum.give(t & 1, s, share_total);
    }
    wait_for_copies();
    team.meet();
    total = LEAK ? memory.sum.total(t & 1) : frame.total;
  }

  if (state_out == nullptr) return;
  for (int s = team.rank; shares.has(s); s = shares.next(s)) keep_betas(shares.get(s), memory, state_out + group[kState]);
  if (team.rank == 0 && speaks_for_lanes()) store(state_out + group[kState], states, total);
}

#endif  // FSACHAIN_BACKWARD_CUH_
