// Equations (1)-(6) of fsachain/recursion.py for groups of sequences, a launch for a window of frames [begin, end).
//
//   forward    (1)-(3): from the alphas before frame `begin` to those before frame `end`; keeps u(t, pair), the part of
//              alpha(t + 1, dst) that a pair brings, as the window's history where one is given.
//   finish     (4).
//   backward   (5), (6): from the betas at `end` to those at `begin`; turns u(t, pair) into gamma(t, pair), unnormalised.
//
// Each has a file; recursion.cuh holds what forward and backward shard, storage.cuh says where values lie, numbers.cuh what
// they are. Every sum has one order, fixed by table and plan.

#include "backward.cuh"
#include "finish.cuh"
#include "forward.cuh"

// What the kernels of a call change: in which kind each sequence runs, and the counters of the peers' barriers or of groups that
// are handed on, which every launch leaves as a later one of as many blocks needs them. lists: of `write_occupancies`, or null;
// a sequence without occupancies has none.
extern "C" __global__ void __launch_bounds__(256)
prepare(const int* first_kinds, int* kinds, int num_kinds, unsigned* counters, int num_counters, int* lists,
        long long list_step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num_kinds) kinds[i] = first_kinds[i];
  if (i < num_kinds && lists) lists[i * list_step] = lists[i * list_step + 1] = 0;
  if (i < num_counters) counters[i] = 0;
}
