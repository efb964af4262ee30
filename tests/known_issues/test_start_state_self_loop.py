"""A start state with a self-loop is left more than once on a path.

A program that subtracts an offset from the arcs out of the start and adds it back once per path is therefore wrong: on
graphs like these it misses all but one of the times that the start is left.
"""

import numpy as np
import pytest
import tolerances

from fsachain import Fsa, TableBatch, compile_table, forward_backward


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_self_loop_on_the_start_state_counts_every_time(backend):
    """start -> start and start -> end, end -> end: one path for each of the four frames at which the start is left."""
    cost = 0.7
    fsa = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 0, 0], [-cost] * 3, [-np.inf, -cost])
    result = forward_backward(TableBatch.pack([compile_table(fsa)]), np.zeros((1, 4, 1)), backend=backend)
    assert result.log_prob[0] == pytest.approx(np.log(4.0) - 5 * cost, abs=tolerances.ROUNDING)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_cycle_through_the_start_state_counts_every_time(backend):
    """0 -> 1 -> 0 with log weights +2 and -1, which an offset on the start's arcs would get wrong."""
    fsa = Fsa(2, [0, 1], [1, 0], [0, 1], [2.0, -1.0], [0.0, -np.inf])
    result = forward_backward(TableBatch.pack([compile_table(fsa)]), np.zeros((1, 6, 2)), backend=backend)
    assert result.log_prob[0] == pytest.approx(3 * (2.0 - 1.0), abs=tolerances.ROUNDING)
