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
