// How the host lays out tables and groups of sequences; layout.py and plan.py of fsachain/backends/cuda fill it in.
//
// A shard is a part of a table's states, with all arcs into them (forward) and out of them (backward). The arcs of a shard
// stand in segments: up to some dozens of arcs of one state, or the partial sums of a state that has more arcs than that.
// Segments are sorted by length and stand in chunks of CHUNK (the sparse format SELL-C-sigma): arc k of the segments of a
// chunk are neighbours, so that the threads of a warp read them together. Chunks of `whole` segments come first, then of
// `part` segments, whose sums are numbered partials, then of `split` segments, which sum partials. A pair is all arcs of one
// segment with one destination and one pdf.
//
// Twins are two part segments with the same sources (or pairs) in the same order: a row is read once for both.

#ifndef FSACHAIN_LAYOUT_CUH_
#define FSACHAIN_LAYOUT_CUH_

#ifndef CHUNK
#define CHUNK 32  // segments of a chunk: 32, a thread each; or 1, a warp each
#endif

namespace fsachain {

// Fields of a group of sequences that run together; 64 bits each.
enum GroupField {
  kShards,           // of its table
  kFirstShard,       // its table's first among the shards of all tables
  kStates,           // S
  kPairs,            // rows of `pairs`, those between chunks included
  kColumns,          // active pdfs
  kVectors,          // first of the table's vectors: initial [S], final [S], then sum of initial, sum of init final
  kFirstColumn,      // the table's first in the list of active pdfs and in the rows of pairs by column
  kFirstPairRow,     // the table's first in the list of pairs sorted by column
  kProbs,            // first value of the group's probabilities of a window of frames
  kHistory,          // the same of its history
  kState,            // the same of its states between windows
  kWork,             // the same of its alphas, betas and pair values where they lie in memory
  kForwardPartials,  // partials of a shard (on chip: of the largest shard; in memory: of all shards)
  kBackwardPartials,
  kMaxShardStates,   // states of the shard with most of them
  kMaxShardPairs,    // rows of pairs likewise
  kFilledPairs,      // rows of `pairs` without holes
  kGrowth,           // by how much arcs and finals may change an exponent, in powers of two
  kGroupFields
};

// Fields of a shard, in one direction; 64 bits each.
enum ShardField {
  kWholeChunks,
  kPartChunks,
  kSplitChunks,
  kTileChunks,       // of the part chunks: the first, of which every other one has the twins of that before
  kFirstChunk,
  kFirstSegment,
  kSegments,
  kFirstArc,
  kArcs,
  kFirstEntry,
  kEntries,
  kFirstPair,        // the shard's rows of `pairs`, counted over all tables
  kPairRows,
  kPairBase,         // the number of its first row within its table
  kStateBase,        // the number of its first state
  kShardStates,
  kPartialBase,      // the number of its first partial within its table
  kShardFields
};

// Segments of a chunk: `first_arc` and `first_segment` are those of its first segment and `first_pair` of that segment's
// first pair, all counted within the shard; `length` is that of its longest segment.
struct __align__(16) Chunk {
  int first_arc, length, first_segment, first_pair;
};

// `row`: the state or partial that the sum is for, -1 for none. Its arcs are CHUNK apart.
struct __align__(8) Segment {
  int row, length;
};

// A pair as the backward pass needs it. `column` is -1 where a chunk has a hole.
struct __align__(8) Pair {
  int column, state;
};

// The index of an arc: of a state (forward), a pair (backward) or a partial; the sign tells that it ends a pair.
__device__ __forceinline__ int index_of(int index) { return index & 0x7fffffff; }
__device__ __forceinline__ bool ends_pair(int index) { return index < 0; }

}  // namespace fsachain

#endif  // FSACHAIN_LAYOUT_CUH_
