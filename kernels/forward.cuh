// Equations (1)-(3): a frame gathers arcs by destination, forms u = prob x (sum of w alpha + c tot r) for each pair, r the
// sum of w init, and adds the pairs of a state.

#ifndef FSACHAIN_FORWARD_CUH_
#define FSACHAIN_FORWARD_CUH_

#include "recursion.cuh"

namespace fsachain {

// Where a group's values lie; `shared_bytes` of plan.py counts the rows on chip, `make_groups` those in memory.
struct ForwardMemory {
  long long states;
  Value* alphas;  // of two frames: those before frame t at alphas_at(t)
  Row* ring;      // see WindowProbs
  Value* partials;
  PeerSum sum;

  DEVICE ForwardMemory(const long long* group, Value* work, unsigned char*& free) : states(group[kStates]) {
#if ON_CHIP
    alphas = reinterpret_cast<Value*>(take<Row>(free, 2 * states));
    ring = take<Row>(free, kRing * group[kColumns]);
    partials = reinterpret_cast<Value*>(take<Row>(free, group[kForwardPartials]));
    sum = peer_sum(nullptr, 0, free);
#else
    alphas = work + group[kWork];
    ring = nullptr;
    partials = alphas + 2 * states * kSequences;
    sum = peer_sum(partials + group[kForwardPartials] * kSequences, group[kShards], free);
#endif
  }
  DEVICE Value* alphas_at(int t) const { return alphas + (t & 1) * states * kSequences; }
};

// What goes from frame to frame beside the alphas.
struct Carried {
  Row total;  // tot
  int exponent[LANES];
  unsigned inexact;  // a bit for each lane

  // As frame 0 begins (`state` null), or as the window before this one ended.
  DEVICE Carried(const Value* state, long long states, const Value* vector, const int* exponents) : inexact(0) {
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
      if (!(now.lane[v] >= least && now.lane[v] <= 3.0e38f)) inexact |= 1u << v;
#endif
    }
  }
};

// One frame as a thread sees it.
struct ForwardFrame {
  const Exchange& exchange;
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
    load(prob, probs, column_of(pair));
    for (int v = 0; v < LANES; ++v) {
      // What depends on tot alone is made anew for each pair: registers are scarcer than instructions here.
#if LEAK
      sum.lane[v] = Number::normalize(Number::add_product(sum.lane[v], Number::product(leak, total.lane[v]), pair));
#endif
      const int scale = Number::scale(total.lane[v], Number::kShift);
      sum.lane[v] = Number::normalize(Number::product(sum.lane[v], Number::scaled(prob.lane[v], scale)));
    }
    if (history != nullptr) store_once(history, number, sum);
    return sum;
  }

  // Equation (2) for a segment of state `work.row`, from rows of alphas or of partials.
  DEVICE Row state(const Shard& shard, const Work& work, const Value* rows) const {
    const Arc* arc = shard.arcs + work.first_arc;
    int pair = work.first_pair;
    Row state = zero_row(), sum = zero_row();
    // The arc and the entry that come next are on their way while these are used.
    Arc next;
    Entry entry;
    if (work.length > 0) next = arc[0], entry = shard.entries[pair];
    for (int k = 0; k < work.length; ++k) {
      const Arc one = next;
      const bool is_last = k + 1 == work.length;
      if (!is_last) next = arc[(k + 1) * CHUNK];
      Row row;
      load(row, rows, index_of(one.index));
      add_product(sum, row, one);
      if (ends_pair(one.index)) {
        normalize(sum);
        sum = close(sum, entry, shard.pair_base + pair);
        for (int v = 0; v < LANES; ++v) state.lane[v] = Number::sum(state.lane[v], sum.lane[v]);
        sum = zero_row();
        pair += CHUNK;
        if (!is_last) entry = shard.entries[pair];
      }
    }
    normalize(state);
    return state;
  }

  // The states of some chunks; `shard_total` gathers their sum.
  DEVICE void states(const Shard& shard, const Works& works, const Value* rows, Row& shard_total) const {
    for (int i = works.first, k = 0; i < works.end; i += works.step, ++k) {
      const Work work = shard.work(works, k, i);
      if (work.row < 0) continue;
      Row alpha = state(shard, work, rows);
      if (ended != 0) {
        Row old;
        load(old, alphas, work.row);
        for (int v = 0; v < LANES; ++v)
          if (ended >> v & 1) alpha.lane[v] = old.lane[v];
      }
      exchange.store(row_of(next_alphas, work.row), alpha);
      if (LEAK)
        for (int v = 0; v < LANES; ++v) shard_total.lane[v] = Number::sum(shard_total.lane[v], alpha.lane[v]);
    }
  }

  // The states of a shard; the thread's part of their sum.
  DEVICE Row shard(const Shard& shard, Value* partials) const {
    Row shard_total = zero_row();
    partials = partials_of(shard, partials);
    sum_parts(shard, alphas, partials);
    states(shard, shard.whole, alphas, shard_total);
    if (shard.split_chunks > 0) {
      __syncthreads();  // the partials of a state come from other threads of the block
      states(shard, shard.split, partials, shard_total);
    }
    return shard_total;
  }
};

// The alphas (1), or those with which the window before this one ended, before frame `t`.
DEVICE void start_alphas(Value* alphas, long long states, const Value* state, const Value* vector, const Peers& peers) {
  // On chip each block has all of them, in memory the peers have them once.
  const int loader = ON_CHIP ? 0 : peers.rank, loaders = ON_CHIP ? 1 : peers.blocks;
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

// Alphas and tot for the next window, or for `finish`: each block has them all, the states are dealt over the peers.
DEVICE void keep_alphas(Value* state, long long states, const Value* alphas, const Row& total, const Peers& peers) {
#pragma unroll 1
  for (long long i = peers.rank * row_step() + first_row(); i < states; i += peers.blocks * row_step()) {
    Row row;
    load(row, alphas, i);
    store(state, i, row);
  }
  if (peers.rank == 0 && leads_lanes()) store(state, states, total);
}

}  // namespace fsachain

// From the alphas before frame `begin` to those before frame `end`; `history` [frames, pairs] of u(t, pair), or null.
// Lanes past their length keep their alphas. `exponents` [lanes]: the powers of two by which plain alphas were multiplied.
// The second turn of a group goes on from `state_out`. `span`, `num_groups`: see `Turns`.
// `least`: a plain sequence whose sum of alphas falls below it, or above all floats, is handed to wide numbers.
ENTRY forward(const long long* groups, const long long* shard_fields, const fsachain::Chunk* chunks,
              const fsachain::Segment* segments, const fsachain::Arc* arcs, const fsachain::Entry* entries,
              const fsachain::Value* vectors, const int* sequences, const int* lengths, int* kinds,
              const fsachain::Value* probs, fsachain::Value* history, const fsachain::Value* state_in,
              fsachain::Value* state_out, int* exponents, fsachain::Value* work, unsigned* counters,
              int num_peers, int span, int num_groups, int begin, int end, double log_leak, float least) {
  using namespace fsachain;
  const int cluster = blockIdx.x / num_peers;
  const Peers peers = {counters + cluster, num_peers, static_cast<int>(blockIdx.x % num_peers)};
  Turns turns(lengths, num_groups, span, cluster, gridDim.x / num_peers, {cluster, begin, end, false}, false);
  if (span == 0 && Sequences(sequences, lengths, kinds, cluster).none()) return;

  unsigned char* free = shared_memory;
  // What is the same for all groups of a table.
  const long long* group = groups + turns.turn.group * kGroupFields;
  Exchange exchange(take<Arrivals>(free, kArrivals), peers.rank);
  const ForwardMemory memory(group, work, free);
  BlockShards<FORWARD_METADATA> shards({shard_fields, chunks, segments, arcs, entries, nullptr}, peers, group, free);
  const long long states = memory.states, frame_rows = group[kPairs] * kSequences, columns = group[kColumns];
  const Value* vector = vectors + group[kVectors];
  const Value leak = LEAK ? Number::from_log(log_leak) : Number::zero();
  const long long rows = states + (LEAK ? memory.sum.count : 0);
  do {
    const Turn turn = turns.turn;
    const bool is_second = turn.of_two && turn.begin > begin;
    if (is_second) take_over(counters + turn.group, num_peers);
    const Sequences own(sequences, lengths, kinds, turn.group);
    if (!own.none()) {
      group = groups + turn.group * kGroupFields;
      const Value* state = is_second ? state_out : state_in;
      if (state != nullptr) state += group[kState];
      Value* const frames = history == nullptr ? nullptr : history + group[kHistory];
      const long long lane = turn.group * kSequences + first_lane();
      const int last = min(turn.end, own.longest);
      const WindowProbs prob = {probs + group[kProbs], memory.ring, columns, begin};

      start_alphas(memory.alphas_at(turn.begin), states, state, vector, peers);
      Carried carried(state, states, vector, exponents + lane);
      for (int t = turn.begin; t <= turn.begin + AHEAD; ++t) {
        if (t < last) prob.prefetch(t);
        end_copies();
      }
      wait_for_copies();
      peers.sync();
      for (int t = turn.begin; t < last; ++t) {
        if (t + 1 + AHEAD < last) prob.prefetch(t + 1 + AHEAD);
        end_copies();
        ForwardFrame frame = {
            exchange, memory.alphas_at(t), memory.alphas_at(t + 1), prob.of(t), nullptr, carried.total, leak, 0};
        if (frames != nullptr) frame.history = frames + (t - begin) * frame_rows;
        frame.ended = carried.begin_frame(own, t);
        for (int s = peers.rank; shards.has(s); s = shards.next(s)) {
          const Row shard_total = frame.shard(shards.get(s), memory.partials);
          if (LEAK) memory.sum.give(t & 1, s, shard_total, exchange);
        }
        wait_for_copies();
        peers.sync(exchange, rows);
        if (LEAK) carried.end_frame(memory.sum.total(t & 1), frame.ended, least);
      }

      if (state_out != nullptr)
        keep_alphas(state_out + group[kState], states, memory.alphas_at(max(turn.begin, last)), carried.total, peers);
      if (peers.rank == 0 && leads_lanes()) {
        for (int v = 0; v < LANES; ++v) {
          exponents[lane + v] = carried.exponent[v];
          if (carried.inexact >> v & 1) kinds[sequences[lane + v]] = KIND + 1;
        }
      }
    }
    if (turn.of_two && !is_second) hand_on(counters + turn.group);
  } while (turns.forward());
}

#endif  // FSACHAIN_FORWARD_CUH_
