// Equations (1)-(3): a frame gathers arcs by destination, forms u = prob x (sum of w alpha + c tot r) for each pair, r the
// sum of w init, and adds the pairs of a state.

#ifndef FSACHAIN_FORWARD_CUH_
#define FSACHAIN_FORWARD_CUH_

#include "recursion.cuh"

namespace fsachain {

// Where a group's values lie; `cuda_place` counts the rows on chip, `cuda_group` those in memory.
struct ForwardMemory {
  long long states;
  Value* alphas;  // of two frames: those before frame t at alphas_at(t)
  Row* ring;      // see WindowProbs
  Value* partials;
  TeamSum sum;

  DEVICE ForwardMemory(const long long* group, Value* work, unsigned char*& free) : states(group[kStates]) {
#if PLACE == 0
    alphas = reinterpret_cast<Value*>(take<Row>(free, 2 * states));
    ring = take<Row>(free, 2 * group[kColumns]);
    partials = reinterpret_cast<Value*>(take<Row>(free, group[kForwardParts]));
    sum = team_sum(nullptr, 0, free);
#else
    alphas = work + group[kWork];
    ring = nullptr;
    partials = alphas + 2 * states * kSequences;
    sum = team_sum(partials + group[kForwardParts] * kSequences, group[kShares], free);
#endif
  }
  DEVICE Value* alphas_at(int t) const { return alphas + (t & 1) * states * kSequences; }
};

// What goes from frame to frame beside the alphas.
struct Carried {
  Row total;  // tot
  int exponent[LANES];
  unsigned doubtful;  // a bit for each lane

  // As frame 0 begins (`state` null), or as the window before this one ended.
  DEVICE Carried(const Value* state, long long states, const Value* vector, const int* exponents) : doubtful(0) {
    if (state == nullptr)
      fill_lanes(total, vector[2 * states]);
    else
      load(total, state, states);
    for (int v = 0; v < LANES; ++v) exponent[v] = state == nullptr ? Number::kShift : exponents[v];
  }

  // Counts by what frame t scales its alphas; a bit for each lane that has ended and keeps them.
  DEVICE unsigned begin_frame(const Sequences& own, int t) {
    unsigned ended = 0;
    for (int v = 0; v < LANES; ++v) {
      if (t >= own.length[v])
        ended |= 1u << v;
      else
        exponent[v] += Number::scale(total.lane[v], Number::kShift);
    }
    return ended;
  }

  DEVICE void end_frame(const Row& now, unsigned ended, float least) {
    for (int v = 0; v < LANES; ++v) {
      if (ended >> v & 1) continue;
      total.lane[v] = now.lane[v];
#if KIND == 0
      if (!(now.lane[v] >= least && now.lane[v] <= 3.0e38f)) doubtful |= 1u << v;
#endif
    }
  }
};

// One frame as a thread sees it.
struct ForwardFrame {
  const Value* alphas;
  Value* next_alphas;
  const Value* probs;
  Value* history;  // of this frame, or null
  Row total;       // tot
  Value leak;      // c
  unsigned ended;  // a bit for each lane that keeps its alphas

  // Ends a pair whose arcs sum to `sum`: what it adds to its state.
  DEVICE Row close(Row sum, const Entry& pair, int number) const {
    Row prob;
    load(prob, probs, pair.index);
    for (int v = 0; v < LANES; ++v) {
      // What depends on tot alone is made anew for each pair: registers are scarcer than instructions here.
      if (LEAK)
        sum.lane[v] = Number::tidy(Number::add_product(sum.lane[v], Number::product(leak, total.lane[v]), pair));
      const int scale = Number::scale(total.lane[v], Number::kShift);
      sum.lane[v] = Number::tidy(Number::product(sum.lane[v], Number::scaled(prob.lane[v], scale)));
    }
    if (history != nullptr) store(history, number, sum);
    return sum;
  }

  // Equation (2) for a unit of state `unit.row`, from rows of alphas or of partials.
  DEVICE Row state(const Share& share, const Slice& slice, const Unit& unit, const Value* rows) const {
    const Arc* arc = share.arcs + slice.first_arc + slot_of_thread();
    int pair = slice.first_pair + slot_of_thread();
    Row state = zero_row(), sum = zero_row();
    for (int k = 0; k < unit.length; ++k) {
      const Arc one = arc[k * SLICE];
      Row row;
      load(row, rows, index_of(one.index));
      add_product(sum, row, one);
      if (ends_pair(one.index)) {
        tidy(sum);
        sum = close(sum, share.entries[pair], share.pair_base + pair);
        for (int v = 0; v < LANES; ++v) state.lane[v] = Number::sum(state.lane[v], sum.lane[v]);
        sum = zero_row();
        pair += SLICE;
      }
    }
    tidy(state);
    return state;
  }

  // The states of one slice; `share_total` gathers their sum.
  DEVICE void states(const Share& share, int s, const Value* rows, Row& share_total) const {
    const Slice slice = share.slices[s];
    const Unit unit = share.units[slice.first_unit + slot_of_thread()];
    if (unit.row < 0) return;
    Row alpha = state(share, slice, unit, rows);
    if (ended != 0) {
      Row kept;
      load(kept, alphas, unit.row);
      for (int v = 0; v < LANES; ++v)
        if (ended >> v & 1) alpha.lane[v] = kept.lane[v];
    }
    publish(next_alphas, unit.row, alpha);
    if (LEAK)
      for (int v = 0; v < LANES; ++v) share_total.lane[v] = Number::sum(share_total.lane[v], alpha.lane[v]);
  }

  // The states of a share; the thread's part of their sum.
  DEVICE Row share(const Share& share, Value* partials) const {
    Row share_total = zero_row();
    partials = partials_of(share, partials);
    sum_parts(share, alphas, partials);
    for (int i = warp_of_block(); i < share.whole_slices; i += warps_of_block()) states(share, i, alphas, share_total);
    if (share.split_slices > 0) {
      // The partials of a state come from other threads of the block.
      __syncthreads();
      for (int i = warp_of_block(); i < share.split_slices; i += warps_of_block())
        states(share, share.whole_slices + share.part_slices + i, partials, share_total);
    }
    return share_total;
  }
};

// The alphas (1), or those with which the window before this one ended, before frame `t`.
DEVICE void start_alphas(Value* alphas, long long states, const Value* state, const Value* vector, const Team& team) {
  // On chip each block has all of them, in memory the team has them once.
  const int loader = PLACE == 0 ? 0 : team.rank, loaders = PLACE == 0 ? 1 : team.blocks;
#pragma unroll 1
  for (long long i = loader * row_step() + first_row(); i < states; i += loaders * row_step()) {
    Row row;
    if (state == nullptr)
      fill_lanes(row, vector[i]);
    else
      load(row, state, i);
    store(alphas, i, row);
  }
}

// Alphas and tot for the next window, or for `finish`: each block has them all, the states are dealt over the team.
DEVICE void keep_alphas(Value* state, long long states, const Value* alphas, const Row& total, const Team& team) {
#pragma unroll 1
  for (long long i = team.rank * row_step() + first_row(); i < states; i += team.blocks * row_step()) {
    Row row;
    load(row, alphas, i);
    store(state, i, row);
  }
  if (team.rank == 0 && speaks_for_lanes()) store(state, states, total);
}

}  // namespace fsachain

// From the alphas before frame `begin` to those before frame `end`; `history` [frames, pairs] of u(t, pair), or null.
// Lanes past their length keep their alphas. `exponents` [lanes]: the powers of two by which plain alphas were multiplied.
// `least`: a plain sequence whose sum of alphas falls below it, or above all floats, is handed to wide numbers.
ENTRY forward(const long long* groups, const long long* share_fields, const fsachain::Slice* slices,
              const fsachain::Unit* units, const fsachain::Arc* arcs, const fsachain::Entry* entries,
              const fsachain::Value* vectors, const int* sequences, const int* lengths, int* kinds,
              const fsachain::Value* probs, fsachain::Value* history, const fsachain::Value* state_in,
              fsachain::Value* state_out, int* exponents, fsachain::Value* work, unsigned* counters, int first_group,
              int team_blocks, int begin, int end, double log_leak, float least) {
  using namespace fsachain;
  const long long index = first_group + blockIdx.x / team_blocks, lane = index * kSequences + first_lane();
  const long long* group = groups + index * kGroupFields;
  const Sequences own(sequences, lengths, kinds, index);
  if (own.none()) return;
  const Team team = {counters + index, team_blocks, static_cast<int>(blockIdx.x % team_blocks)};
  const long long states = group[kStates], frame_rows = group[kPairs] * kSequences;
  const Value* vector = vectors + group[kVectors];
  const Value* state = state_in == nullptr ? nullptr : state_in + group[kState];
  if (history != nullptr) history += group[kHistory];
  const int last = min(end, own.longest);

  unsigned char* free = shared_memory;
  const ForwardMemory memory(group, work, free);
  OwnShares shares({share_fields, slices, units, arcs, entries, nullptr}, team, group, free);
  const WindowProbs prob = {probs + group[kProbs], memory.ring, group[kColumns], begin};

  start_alphas(memory.alphas_at(begin), states, state, vector, team);
  Carried carried(state, states, vector, exponents + lane);
  if (begin < last) prob.bring(begin);
  wait_for_copies();
  team.meet();
  const Value leak = LEAK ? Number::from_log(log_leak) : Number::zero();
  for (int t = begin; t < last; ++t) {
    if (t + 1 < last) prob.bring(t + 1);
    ForwardFrame frame = {memory.alphas_at(t), memory.alphas_at(t + 1), prob.of(t), nullptr, carried.total, leak, 0};
    if (history != nullptr) frame.history = history + (t - begin) * frame_rows;
    frame.ended = carried.begin_frame(own, t);
    for (int s = team.rank; shares.has(s); s = shares.next(s)) {
      const Row share_total = frame.share(shares.get(s), memory.partials);
      if (LEAK) memory.sum.give(t & 1, s, share_total);
    }
    wait_for_copies();
    team.meet();
    if (LEAK) carried.end_frame(memory.sum.total(t & 1), frame.ended, least);
  }

  if (state_out != nullptr)
    keep_alphas(state_out + group[kState], states, memory.alphas_at(max(begin, last)), carried.total, team);
  if (team.rank > 0 || !speaks_for_lanes()) return;
  for (int v = 0; v < LANES; ++v) {
    exponents[lane + v] = carried.exponent[v];
    if (carried.doubtful >> v & 1) kinds[sequences[lane + v]] = KIND + 1;
  }
}

#endif  // FSACHAIN_FORWARD_CUH_
