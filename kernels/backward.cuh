// Equations (5), (6): a frame first makes v(pair) = prob x beta(dst) of the pairs, then gathers arcs by source from them.

#ifndef FSACHAIN_BACKWARD_CUH_
#define FSACHAIN_BACKWARD_CUH_

#include "recursion.cuh"

namespace fsachain {

// Where a group's values lie; `shared_bytes` of plan.py counts the rows on chip, `make_groups` those in memory.
struct BackwardMemory {
  Value* values;  // v of all pairs
  Value* betas;   // on chip those of the block's own states
  Row* ring;      // see WindowProbs
  Row* prefetched;   // on chip u of the block's own pairs, of frame t at prefetched_at(t): copied while others sum their arcs
  long long pairs;   // rows of a frame there
  Value* partials;
  PeerSum sum;

  DEVICE BackwardMemory(const long long* group, Value* work, unsigned char*& free) : pairs(group[kMaxShardPairs]) {
#if ON_CHIP
    values = reinterpret_cast<Value*>(take<Row>(free, group[kPairs]));
    betas = reinterpret_cast<Value*>(take<Row>(free, group[kMaxShardStates]));
    ring = take<Row>(free, kRing * group[kColumns]);
    prefetched = take<Row>(free, (1 + AHEAD) * pairs);
    partials = reinterpret_cast<Value*>(take<Row>(free, group[kBackwardPartials]));
    sum = peer_sum(nullptr, 0, free);
#else
    values = work + group[kWork];
    betas = values + group[kPairs] * kSequences;
    ring = prefetched = nullptr;
    partials = betas + group[kStates] * kSequences;
    sum = peer_sum(partials + group[kBackwardPartials] * kSequences, group[kShards], free);
#endif
  }
  // The row of a state's beta, less its number in the table.
  DEVICE int beta_base(const Shard& shard) const { return ON_CHIP ? -shard.state_base : 0; }
  DEVICE Row* prefetched_at(int t) const { return prefetched + t % (1 + AHEAD) * pairs; }
  // `history`: of frame t.
  DEVICE void prefetch_history(const Shard& shard, const Value* history, int t) const {
#if ON_CHIP
    copy_rows(prefetched_at(t), reinterpret_cast<const Row*>(history) + shard.pair_base, shard.pair_rows);
#endif
  }
};

// Sums of a shard's gammas by column: those from `begin` to `end`, whose pairs end in `rows` where `ends` tells.
struct ColumnSums {
  const int* ends;
  const int* rows;
  int begin, end;

  // `lists`: see `with_column_sums` of layout.py.
  DEVICE ColumnSums(const int* lists, int shards, int shard)
      : ends(lists + shards + 1), rows(ends + lists[shards]), begin(lists[shard]), end(lists[shard + 1]) {}
};

// One frame as a thread sees it.
struct BackwardFrame {
  const Value* probs;
  Value* history;        // of this frame
  Row* prefetched;       // its part of the block's own pairs, on chip
  const Value* finals;
  Row total;             // sum of init beta' behind the frame
  Value leak;            // c
  unsigned from_final;   // a bit for each lane whose last frame this is, or that has ended
  bool has_betas;        // some lane goes on behind this frame

  // beta(t + 1, state) of one lane from beta', scaled as plain numbers need it.
  DEVICE Value beta(Value behind, int state, int v) const {
    Value b = from_final >> v & 1 ? finals[state] : behind;
    if (LEAK) {
      b = Number::normalize(Number::sum(b, Number::product(leak, total.lane[v])));
      b = Number::scaled(b, Number::scale(total.lane[v], 0));
    }
    return b;
  }

  // Equation (6) for the pairs of a shard, in place of u, and their v.
  DEVICE void pairs(const Shard& shard, const BackwardMemory& memory, const Exchange& exchange) const {
#pragma unroll 1
    for (int q = first_row(); q < shard.pair_rows; q += row_step()) {
      const Pair pair = shard.pairs[q];
      if (pair.column < 0) continue;
      Row value = zero_row(), prob, u;
      if (has_betas) load(value, memory.betas, pair.state + memory.beta_base(shard));
      load(prob, probs, pair.column);
#if ON_CHIP
      u = prefetched[q];
#else
      load(u, history, shard.pair_base + q);
#endif
      for (int v = 0; v < LANES; ++v) {
        const Value b = beta(value.lane[v], pair.state, v);
        u.lane[v] = Number::product(u.lane[v], b);
        value.lane[v] = Number::normalize(Number::product(prob.lane[v], b));
      }
#if SUM_COLUMNS
      prefetched[q] = u;
#else
      store_once(history, shard.pair_base + q, u);
#endif
      exchange.store(row_of(memory.values, shard.pair_base + q), value);
    }
  }

  // Equation (7), unnormalised, as far as a shard goes: the sums take the places of its first pairs in the history. Eight threads
  // share a sum, since a shard has fewer columns than a block has threads.
  DEVICE void columns(const Shard& shard, const ColumnSums& sums) const {
    const int kTogether = 8, at = lane_of_warp() / kTogether, lane = lane_of_warp() % kTogether;
#pragma unroll 1
    for (int first = sums.begin + warp_of_block() * (32 / kTogether); first < sums.end; first += blockDim.x / kTogether) {
      const int r = first + at;
      Row sum = zero_row();
      const int end = r < sums.end ? sums.ends[r] : 0;
      for (int i = (end > 0 && r > 0 ? sums.ends[r - 1] : 0) + lane; i < end; i += kTogether)
        add(sum, prefetched[sums.rows[i]]);
      for (int lanes = kTogether / 2; lanes > 0; lanes /= 2) add(sum, shuffle_xor(sum, lanes));
      if (end > 0 && lane == 0) store_once(history, shard.pair_base + r - sums.begin, sum);
    }
  }

  // Equation (5), beta', for the states of a shard; the thread's part of the sum of init beta'.
  DEVICE Row states(const Shard& shard, const BackwardMemory& memory) const {
    Row shard_total = zero_row();
    Value* partials = partials_of(shard, memory.partials);
    sum_parts(shard, memory.values, partials);
    states(shard, shard.whole, memory, memory.values, shard_total);
    if (shard.split_chunks > 0) {
      __syncthreads();
      states(shard, shard.split, memory, partials, shard_total);
    }
    return shard_total;
  }

 private:
  DEVICE void states(const Shard& shard, const Works& works, const BackwardMemory& memory, const Value* rows,
                     Row& shard_total) const {
    for (int i = works.first, k = 0; i < works.end; i += works.step, ++k) {
      const Work work = shard.work(works, k, i);
      if (work.row < 0) continue;
      const Row beta = sum_arcs(shard.arcs + work.first_arc, work.length, rows);
      store(memory.betas, work.row + memory.beta_base(shard), beta);
#if LEAK
      add_product(shard_total, beta, shard.entries[i * CHUNK + slot_of_thread()]);
#endif
    }
  }
};

// The betas of a shard's states with which the window behind this one began.
DEVICE void start_betas(const Shard& shard, const BackwardMemory& memory, const Value* state) {
#pragma unroll 1
  for (int i = first_row(); i < shard.states; i += row_step()) {
    Row row;
    load(row, state, shard.state_base + i);
    store(memory.betas, shard.state_base + i + memory.beta_base(shard), row);
  }
}

// The betas of a shard's states for the window before this one.
DEVICE void keep_betas(const Shard& shard, const BackwardMemory& memory, Value* state) {
#pragma unroll 1
  for (int i = first_row(); i < shard.states; i += row_step()) {
    Row row;
    load(row, memory.betas, shard.state_base + i + memory.beta_base(shard));
    store(state, shard.state_base + i, row);
  }
}

}  // namespace fsachain

// From the betas at `end` to those at `begin`; turns u(t, pair) of `history` into gamma(t, pair), unnormalised. Lanes that
// end after frame t begin with beta'(t + 1) = final there. The turn of a group's first frames goes on from `state_out`.
ENTRY backward(const long long* groups, const long long* shard_fields, const fsachain::Chunk* chunks,
               const fsachain::Segment* segments, const fsachain::Arc* arcs, const fsachain::Entry* entries,
               const fsachain::Pair* pair_list, const int* column_sums, const fsachain::Value* vectors,
               const int* sequences, const int* lengths, const int* kinds, const fsachain::Value* probs,
               fsachain::Value* history, const fsachain::Value* state_in, fsachain::Value* state_out, fsachain::Value* work,
               unsigned* counters, int num_peers, int span, int num_groups, int begin, int end, double log_leak) {
  using namespace fsachain;
  const int cluster = blockIdx.x / num_peers;
  const Peers peers = {counters + cluster, num_peers, static_cast<int>(blockIdx.x % num_peers)};
  Turns turns(lengths, num_groups, span, cluster, gridDim.x / num_peers, {cluster, begin, end, false}, true);
  if (span == 0 && Sequences(sequences, lengths, kinds, cluster).longest <= begin) return;

  unsigned char* free = shared_memory;
  // What is the same for all groups of a table.
  const long long* group = groups + turns.turn.group * kGroupFields;
  Exchange exchange(take<Arrivals>(free, kArrivals), peers.rank);
  const BackwardMemory memory(group, work, free);
  BlockShards<BACKWARD_METADATA> shards({shard_fields, chunks, segments, arcs, entries, pair_list}, peers, group, free);
  const long long states = group[kStates], frame_rows = group[kPairs] * kSequences, columns = group[kColumns];
  const long long filled = group[kFilledPairs];
  const Value* vector = vectors + group[kVectors];
  const Value leak = LEAK ? Number::from_log(log_leak) : Number::zero();
  do {
    const Turn turn = turns.turn;
    const bool is_second = turn.of_two && turn.begin == begin;
    if (is_second) take_over(counters + turn.group, 2 * num_peers);  // the forward pass has handed it on once
    const Sequences own(sequences, lengths, kinds, turn.group);
    const int last = min(turn.end, own.longest);
    if (last > turn.begin) {
      group = groups + turn.group * kGroupFields;
      Value* const frames = history + group[kHistory];
      const WindowProbs prob = {probs + group[kProbs], memory.ring, columns, begin};

      Row total = zero_row();
      const Value* state = turn.of_two ? state_out : state_in;
      if (state != nullptr && last == turn.end && (!turn.of_two || last < own.longest)) {
        for (int s = peers.rank; shards.has(s); s = shards.next(s))
          start_betas(shards.get(s), memory, state + group[kState]);
        load(total, state + group[kState], states);
      }
      for (int t = last - 1; t >= last - 1 - AHEAD; --t) {
        if (t >= turn.begin) prob.prefetch(t);
        if (t >= turn.begin) memory.prefetch_history(shards.loaded, frames + (t - begin) * frame_rows, t);
        end_copies();
      }
      wait_for_copies();
      peers.sync();
      for (int t = last - 1; t >= turn.begin; --t) {
        Value* const frame_history = frames + (t - begin) * frame_rows;
        BackwardFrame frame = {
            prob.of(t), frame_history, memory.prefetched_at(t), vector + states, total, leak, 0, t + 1 < own.longest};
        for (int v = 0; v < LANES; ++v) {
          if (t + 1 < own.length[v]) continue;
          frame.from_final |= 1u << v;
          frame.total.lane[v] = vector[2 * states + 1];
        }
        for (int s = peers.rank; shards.has(s); s = shards.next(s)) frame.pairs(shards.get(s), memory, exchange);
        peers.arrive(exchange, filled);
#if SUM_COLUMNS
        frame.columns(shards.loaded, ColumnSums(column_sums, CLUSTER, peers.rank));
#endif
        peers.wait(exchange);
#if SUM_COLUMNS
        __syncthreads();
#endif
        // What later frames read comes while this one sums its arcs.
        const int later = t - 1 - AHEAD;
        if (later >= turn.begin) prob.prefetch(later);
        if (later >= turn.begin) memory.prefetch_history(shards.loaded, frames + (later - begin) * frame_rows, later);
        end_copies();
        for (int s = peers.rank; shards.has(s); s = shards.next(s)) {
          const Row shard_total = frame.states(shards.get(s), memory);
          if (LEAK) memory.sum.give(t & 1, s, shard_total, exchange);
        }
        wait_for_copies();
        peers.sync(exchange, LEAK ? memory.sum.count : 0);
        total = LEAK ? memory.sum.total(t & 1) : frame.total;
      }

      if (state_out != nullptr && !is_second) {
        for (int s = peers.rank; shards.has(s); s = shards.next(s))
          keep_betas(shards.get(s), memory, state_out + group[kState]);
        if (peers.rank == 0 && leads_lanes()) store(state_out + group[kState], states, total);
      }
    }
    if (turn.of_two && !is_second) hand_on(counters + turn.group);
  } while (turns.backward());
}

#endif  // FSACHAIN_BACKWARD_CUH_
