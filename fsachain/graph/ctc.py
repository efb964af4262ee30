"""CTC topologies as acceptors: which frame sequences spell a target.

A state says how many labels are spelled and what the last frame was. The start state is also the one before the first
label in which blanks are spent. Weights are zero: the scores alone decide. After Graves et al., ICML 2006 ("standard"), and
Laptev, Majumdar and Ginsburg, Interspeech 2022 (the others).

| topology | a label lasts | the blank between two labels | states |
|---|---|---|---|
| "standard" | a frame or more | may be left out, except between equal labels | 2 U + 1 |
| "compact" | a frame or more | may be left out | 2 U + 1 |
| "selfless" | one frame | may be left out, except between equal labels | 2 U + 1 |
| "minimal" | one frame | may be left out | U + 1 |

Under "compact" frames A A A spell the target A A in two ways, which are both counted; in the other topologies each frame
sequence has one path at most, so that the probability of a target is at most one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Floats, Fsa, Ints

CtcTopology = Literal["standard", "compact", "selfless", "minimal"]


class CtcArcs(NamedTuple):
    """The arcs for any target of U labels; the start is state 0.

    label [A] is 0 for the blank, k for the k-th label of the target, counted from 1; repeats [A] marks one more frame
    of the same label, skips [A] arcs from one label to the next, without a blank.
    """

    num_states: int
    src: Ints
    dst: Ints
    label: Ints
    repeats: npt.NDArray[np.bool_]
    skips: npt.NDArray[np.bool_]

    def must_differ(self, topology: CtcTopology) -> npt.NDArray[np.bool_]:
        """bool [A]: arcs that exist only where the label differs from the one before it."""
        return self.skips & (topology in ("standard", "selfless"))


def check_topology(topology: str) -> None:
    if topology not in get_args(CtcTopology):
        raise ConfigError(f"topology = {topology!r}; expected one of {list(get_args(CtcTopology))}")


def ctc_arcs(num_labels: int, topology: CtcTopology) -> CtcArcs:
    check_topology(topology)
    labels = np.arange(1, num_labels + 1)
    if topology == "minimal":
        blanks = np.arange(num_labels + 1)
        parts = [_part(blanks, blanks, 0 * blanks), _part(labels - 1, labels, labels)]
        return _join(parts, num_labels + 1)
    blanks, own = 2 * np.arange(num_labels + 1), 2 * labels - 1
    parts = [
        _part(blanks, blanks, 0 * blanks),
        _part(own, own + 1, 0 * own),
        _part(own - 1, own, labels),
        _part(own[:-1], own[1:], labels[1:], skips=True),
    ]
    if topology != "selfless":
        parts.append(_part(own, own, labels, repeats=True))
    return _join(parts, 2 * num_labels + 1)


def final_states(num_labels: Any, topology: CtcTopology) -> tuple[Any, Any]:
    """The two final states (twice the same where there is one) for `num_labels` labels, a number or an array."""
    if topology == "minimal":
        return num_labels, num_labels
    return np.maximum(2 * num_labels - 1, 0), 2 * num_labels


def final_log_probs(num_labels: int, topology: CtcTopology) -> Floats:
    """Final weights [S]: 0 for the final states."""
    num_states = num_labels + 1 if topology == "minimal" else 2 * num_labels + 1
    final = np.full(num_states, -np.inf)
    final[list(final_states(num_labels, topology))] = 0.0
    return final


def ctc_graph(targets: Any, blank: int = 0, topology: CtcTopology = "standard") -> Fsa:
    """The acceptor of all frame sequences that spell a target.

    Args:
        targets: [U] labels, integers >= 0 that are not the blank; may be empty.
        blank: the blank's class.
        topology: "standard", "compact", "selfless" or "minimal": see the table of this module.

    Returns:
        An acceptor whose pdfs are classes; weights and final weights are 0.

    Raises:
        GraphError: a target that is no list of labels.
        ConfigError: an unknown topology or a negative blank.
    """
    labels = np.asarray(targets)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise GraphError(
            f"targets has shape {list(labels.shape)} and dtype {labels.dtype}; expected a list of integers"
        )
    if blank < 0:
        raise ConfigError(f"blank = {blank}; expected a class, counted from 0")
    bad = np.flatnonzero((labels < 0) | (labels == blank))
    if bad.size:
        raise GraphError(
            f"targets[{bad[0]}] = {labels[bad[0]]}; expected labels >= 0 other than the blank, {blank}"
        )
    arcs = ctc_arcs(len(labels), topology)
    pdf = np.append(blank, labels).astype(np.int64)[arcs.label]
    kept = ~arcs.must_differ(topology) | differs_from_previous(labels)[arcs.label]
    src, dst, pdf = arcs.src[kept], arcs.dst[kept], pdf[kept]
    return Fsa(arcs.num_states, src, dst, pdf, np.zeros(len(src)), final_log_probs(len(labels), topology))


def differs_from_previous(labels: Ints) -> npt.NDArray[np.bool_]:
    """bool [..., U + 1] for labels [..., U]: entry k says whether the k-th label differs from the one before it."""
    result = np.ones((*labels.shape[:-1], labels.shape[-1] + 1), dtype=np.bool_)
    result[..., 2:] = labels[..., 1:] != labels[..., :-1]
    return result


def _part(src: Ints, dst: Ints, label: Ints, **marks: bool) -> list[npt.NDArray[Any]]:
    """The last five fields of `CtcArcs`."""
    flags = [np.full(len(src), marks.get(name, False)) for name in ("repeats", "skips")]
    return [src, dst, label, *flags]


def _join(parts: list[list[npt.NDArray[Any]]], num_states: int) -> CtcArcs:
    return CtcArcs(num_states, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))
