"""One line of the agreement table, and how two arrays become one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain import Fsa
from fsachain.backends.dispatch import BackendName
from tests import tolerances


@dataclass(frozen=True)
class Row:
    """A quantity, ours and theirs; for an array the element that differs most, relative to what is allowed there."""

    case: str  # file the values come from, without its suffix
    quantity: str
    ours: float
    theirs: float
    difference: float  # 0 for equal infinities, inf where only one side is finite or a number
    allowed: float  # largest difference that counts as agreement

    @property
    def ratio(self) -> float:
        """At most 1 where the two agree."""
        return self.difference / self.allowed if self.difference else 0.0

    @property
    def agrees(self) -> bool:
        return self.difference <= self.allowed


# A quantity, ours, theirs, and what is allowed: a number, or a function that gives one for each element of theirs.
Compared = tuple[str, Any, Any, Any]


@dataclass(frozen=True)
class Case:
    """Values of one file, and how ours are computed: by the file's path, its arrays and a backend."""

    name: str
    path: Path
    compute: Callable[[Path, Any, BackendName], Iterable[Compared]]

    def rows(self, backend: BackendName) -> list[Row]:
        return [compare(self.name, *each) for each in self.compute(self.path, np.load(self.path), backend)]


def compare(case: str, quantity: str, ours: Any, theirs: Any, allowed: Any) -> Row:
    """The worst element of two arrays of one shape."""
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"{case}, {quantity}: our shape {list(ours.shape)}, theirs {list(theirs.shape)}")
    limits = np.broadcast_to(allowed(theirs) if callable(allowed) else allowed, ours.shape)
    if not ours.size:
        return Row(case, quantity, 0.0, 0.0, 0.0, 0.0)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    difference = np.where(ours == theirs, 0.0, np.where(np.isnan(difference), math.inf, difference))
    at = np.unravel_index(int(np.argmax(difference / limits)), ours.shape)
    return Row(case, quantity, float(ours[at]), float(theirs[at]), float(difference[at]), float(limits[at]))


def log_prob_limits(theirs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The contract's bound for each log Z; 0 distance is asked of infinities."""
    finite = np.nan_to_num(theirs, neginf=0.0)
    return tolerances.LOG_PROB_RELATIVE * np.maximum(tolerances.LOG_PROB_FLOOR, np.abs(finite))


def cost_limits(theirs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The allowed relative difference of peers' values, of those below one as if they were one."""
    return tolerances.PEER_COST_RELATIVE * np.maximum(1.0, np.abs(theirs))


def kaldi_fsa(values: Any, prefix: str) -> Fsa:
    """An acceptor stored with labels pdf + 1 and costs under keys that begin with `prefix`."""
    return Fsa(
        int(values[f"{prefix}num_states"]),
        values[f"{prefix}arc_src"],
        values[f"{prefix}arc_dst"],
        values[f"{prefix}arc_label"] - 1,
        -values[f"{prefix}arc_cost"].astype(np.float64),
        -values[f"{prefix}final_cost"].astype(np.float64),
        int(values[f"{prefix}start"]),
    )


def graph_fsa(values: Any) -> Fsa:
    """An acceptor stored with pdfs from 0 and log weights, as the benchmark graphs are."""
    arrays = (values[name] for name in ("src", "dst", "pdf", "logweight", "final"))
    return Fsa(int(values["num_states"]), *arrays, int(values["start"]))
