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


@dataclass(frozen=True)
class Row:
    """A quantity, ours and theirs; for an array the element that differs most, relative to what is allowed there."""

    case: str  # file the values come from, without its suffix
    quantity: str
    ours: float
    theirs: float
    difference: (
        float  # |ours - theirs|; 0 for equal infinities, inf where only one side is finite or a number
    )
    allowed: float  # largest difference that counts as agreement

    @property
    def ratio(self) -> float:
        """At most 1 where the two agree."""
        return self.difference / self.allowed if self.difference else 0.0

    @property
    def agrees(self) -> bool:
        return self.difference <= self.allowed


@dataclass(frozen=True)
class Case:
    """Values of one file and how ours are computed; `rows(backend)` compares them."""

    name: str
    rows: Callable[[BackendName], Iterable[Row]]


def compare(case: str, quantity: str, ours: Any, theirs: Any, allowed: npt.ArrayLike) -> Row:
    """The worst element of two arrays of one shape; `allowed` is a number or an array of that shape."""
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"{case}, {quantity}: our shape {list(ours.shape)}, theirs {list(theirs.shape)}")
    if not ours.size:
        return Row(case, quantity, 0.0, 0.0, 0.0, float(np.max(allowed, initial=0.0)))
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs)
    difference = np.where(ours == theirs, 0.0, np.where(np.isnan(difference), math.inf, difference))
    limits = np.broadcast_to(np.asarray(allowed, dtype=np.float64), ours.shape)
    at = np.unravel_index(int(np.argmax(difference / limits)), ours.shape)
    return Row(case, quantity, float(ours[at]), float(theirs[at]), float(difference[at]), float(limits[at]))


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
    return Fsa(
        int(values["num_states"]),
        values["src"],
        values["dst"],
        values["pdf"],
        values["logweight"],
        values["final"],
        int(values["start"]),
    )


def graph_files(shared: Path, values: Any) -> list[Fsa]:
    names = values["graph_files"] if "graph_files" in values else [values["graph_file"]]
    return [graph_fsa(np.load(shared / "data" / "graphs" / Path(str(name)).name)) for name in np.ravel(names)]
