// How the host lays out tables and groups of sequences; `fsachain/backends/cuda/layout.py` and `cuda_place.py` fill it in.
//
// A share is a part of a table's states, with all arcs into them (forward) and out of them (backward). The arcs of a share
// stand in units: up to some dozens of arcs of one state, or the partial sums of a state that has more arcs than that. Units
// are sorted by length and stand in slices of SLICE: arc k of the units of a slice are neighbours, so that the threads of a
// warp read them together. Slices of `whole` units come first, then `part` units, whose sums are numbered partials, then
// `split` units, which sum partials. A pair is all arcs of one unit with one destination and one pdf.

#ifndef FSACHAIN_LAYOUT_CUH_
#define FSACHAIN_LAYOUT_CUH_

#ifndef SLICE
#define SLICE 32  // units of a slice: 32, a thread each; or 1, a warp each
#endif

namespace fsachain {

// Fields of a group of sequences that run together; 64 bits each.
enum GroupField {
  kShares,         // of its table
  kFirstShare,     // its table's first among the shares of all tables
  kStates,         // S
  kPairs,          // rows of `pairs`, those between slices included
  kColumns,        // active pdfs
  kVectors,        // first of the table's vectors: initial [S], final [S], then sum of initial, sum of init final
  kFirstColumn,    // the table's first in the list of active pdfs and in the rows of pairs by column
  kFirstPairRow,   // the table's first in the list of pairs sorted by column
  kProbs,          // first value of the group's probabilities of a window of frames
  kHistory,        // the same of its history
  kState,          // the same of its states between windows
  kWork,           // the same of its alphas, betas and pair values where they lie in memory
  kForwardParts,   // partials of a share (on chip: of the largest share; in memory: of all shares)
  kBackwardParts,
  kOwnStates,      // states of the share with most of them
  kOwnPairs,       // rows of pairs likewise
  kReach,          // by how much arcs and finals may change an exponent, in powers of two
  kGroupFields
};

// Fields of a share, in one direction; 64 bits each.
enum ShareField {
  kWholeSlices,
  kPartSlices,
  kSplitSlices,
  kFirstSlice,
  kFirstUnit,
  kUnits,
  kFirstArc,
  kArcs,
  kFirstEntry,
  kEntries,
  kFirstPair,     // the share's rows of `pairs`, counted over all tables
  kPairRows,
  kPairBase,      // the number of its first row within its table
  kStateBase,     // the number of its first state
  kShareStates,
  kPartialBase,   // the number of its first partial within its table
  kShareFields
};

// Units of a slice: `first_arc` and `first_unit` are those of its first unit and `first_pair` of that unit's first pair, all
// counted within the share; `length` is that of its longest unit.
struct __align__(16) Slice {
  int first_arc, length, first_unit, first_pair;
};

// `row`: the state or partial that the sum is for, -1 for none. Its arcs are SLICE apart.
struct __align__(8) Unit {
  int row, length;
};

// A pair as the backward pass needs it. `column` is -1 where a slice has a hole.
struct __align__(8) Pair {
  int column, state;
};

// The index of an arc: of a state (forward), a pair (backward) or a partial; the sign tells that it ends a pair.
__device__ __forceinline__ int index_of(int index) { return index & 0x7fffffff; }
__device__ __forceinline__ bool ends_pair(int index) { return index < 0; }

}  // namespace fsachain

#endif  // FSACHAIN_LAYOUT_CUH_
