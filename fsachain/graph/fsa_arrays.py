"""Many acceptors as a few long arrays, end to end with their sizes, for files that hold thousands of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.fsa import Fsa
from fsachain.graph.archive import Arrays, join, numbers, offsets
from fsachain.on_access import OnAccess

_ARC_ARRAYS = {"src": np.int32, "dst": np.int32, "pdf": np.int32, "log_prob": np.float64}


def join_fsas(fsas: Sequence[Fsa]) -> dict[str, npt.NDArray[Any]]:
    """Sizes [N] (num_states, num_arcs, start), arcs [sum of A] and final weights [sum of S] of N acceptors."""
    arrays: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(fsa, name) for fsa in fsas], dtype=np.int64)
        for name in ("num_states", "num_arcs", "start")
    }
    arrays["final_log_prob"] = join([fsa.final_log_prob for fsa in fsas])
    return arrays | {
        name: join([getattr(fsa, name) for fsa in fsas], dtype) for name, dtype in _ARC_ARRAYS.items()
    }


class JoinedFsas(OnAccess[Fsa]):
    """The acceptors that `join_fsas` joined, in their order; each is made anew when it is asked for.

    Attributes:
        first_arc: int64 [N + 1], where the arcs of each acceptor begin, and where those of the last end.

    Raises:
        KeyError, ValueError: an array is missing, of another type or length.
        GraphError: as `Fsa` for the first acceptor that cannot be.
    """

    def __init__(self, arrays: Arrays) -> None:
        num_states = numbers(arrays, "num_states", np.int64)
        num_arcs = numbers(arrays, "num_arcs", np.int64, len(num_states))
        self._start = numbers(arrays, "start", np.int64, len(num_states))
        self._final = numbers(arrays, "final_log_prob", np.float64)
        self._first_state = offsets(num_states, len(self._final), "num_states")
        self.first_arc = offsets(num_arcs, len(arrays["src"]), "num_arcs")
        total = int(self.first_arc[-1])
        self._arcs = [numbers(arrays, name, dtype, total) for name, dtype in _ARC_ARRAYS.items()]
        for column in (self._final, *self._arcs):
            column.setflags(write=False)  # then acceptors have views of it
        for _ in self:  # made once and thrown away: what is wrong is told now
            pass

    def __len__(self) -> int:
        return len(self._start)

    def at(self, place: int) -> Fsa:
        """The acceptor at a place in [0, len)."""
        states = slice(*self._first_state[place : place + 2].tolist())
        arcs = slice(*self.first_arc[place : place + 2].tolist())
        src, dst, pdf, log_prob = (column[arcs] for column in self._arcs)
        final = self._final[states]
        return Fsa(len(final), src, dst, pdf, log_prob, final, int(self._start[place]))
