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

A target that may be wrong (`fsachain.graph.forgive`) has stars. Where a label lasts a frame or more so does a star, its
frames need not be alike, and a blank stands between it and what is beside it, so that here as well a frame sequence has one
path for each script. Under "minimal" a star takes one frame, under "selfless" one and the blanks beside it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Floats, Fsa, Ints
from fsachain.graph.forgive import Forgiveness

CtcTopology = Literal["standard", "compact", "selfless", "minimal"]
_TOPOLOGIES = get_args(CtcTopology)


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
    if topology not in _TOPOLOGIES:
        raise ConfigError(f"topology = {topology!r}; expected one of {list(_TOPOLOGIES)}")


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


def ctc_graph(
    targets: Any,
    blank: int = 0,
    topology: CtcTopology = "standard",
    *,
    forgive: Forgiveness | None = None,
    star: int | None = None,
) -> Fsa:
    """The acceptor of all frame sequences that spell a target, or what may have been said in its place.

    Args:
        targets: [U] labels, integers >= 0 that are not the blank; may be empty.
        blank: the blank's class.
        topology: "standard", "compact", "selfless" or "minimal": see the table of this module.
        forgive: penalties for labels that are wrong, too many or missing; None: there are none.
        star: a class for the star, whose scores are the log-mean or log-sum over the units, frame by frame; needed where
            `forgive` has stars.

    Returns:
        An acceptor whose pdfs are classes. Without `forgive` weights and final weights are 0.

    Raises:
        GraphError: a target that is no list of labels.
        ConfigError: an unknown topology, a negative blank, or a star that is missing or the blank or a label.
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
    classes = np.append(blank, labels).astype(np.int64)
    if forgive is not None:
        if forgive.has_star and (star is None or star < 0 or star in classes):
            raise ConfigError(f"star = {star}; expected a class of its own, neither the blank nor a label")
        return forgiving_graph(labels, np.append(classes, -1 if star is None else star), topology, forgive)
    arcs = ctc_arcs(len(labels), topology)
    kept = ~arcs.must_differ(topology) | differs_from_previous(labels)[arcs.label]
    src, dst, pdf = arcs.src[kept], arcs.dst[kept], classes[arcs.label[kept]]
    return Fsa(arcs.num_states, src, dst, pdf, np.zeros(len(src)), final_log_probs(len(labels), topology))


def forgiving_graph(labels: Ints, classes: Ints, topology: CtcTopology, forgive: Forgiveness) -> Fsa:
    """The acceptor of a target that may be wrong.

    classes [U + 2]: pdfs of the blank, the labels one by one, and the star. States are those of `CtcArcs`, then, but under
    "minimal", those of stars: U + 1 + q for one that ends with q labels behind it.
    """
    check_topology(topology)
    count = len(labels)
    star = count + 1
    place = np.arange(count + 1)
    is_minimal = topology == "minimal"
    blank, own, starred = (
        (place, place, place) if is_minimal else (2 * place, 2 * place - 1, 2 * count + 1 + place)
    )
    step = forgive.label_log_prob + forgive.stop_log_prob
    parts = [_weighted(blank, blank, 0 * place)]
    if not is_minimal:
        parts.append(_weighted(own[1:], blank[1:], 0 * place[1:]))
        if topology != "selfless":
            parts.append(_weighted(own[1:], own[1:], place[1:]))
    if forgive.has_star and not is_minimal:
        parts.append(_weighted(starred, blank, 0 * place))
        if topology != "selfless":
            parts.append(_weighted(starred, starred, 0 * place + star))
    if forgive.deletion < np.inf:
        parts.append(_weighted(blank, starred, 0 * place + star, -forgive.deletion))
    if forgive.substitution < np.inf:
        parts.append(_weighted(blank[:-1], starred[1:], 0 * place[1:] + star, step - forgive.substitution))
    final = np.full(count + 1, -np.inf)
    for left_out in range(1 + (0 if forgive.insertion == np.inf else min(count, forgive.most_left_out))):
        paid = left_out * (step - forgive.insertion) if left_out else 0.0
        final[count - left_out] = paid + forgive.stop_log_prob
        before, after = place[: count - left_out], place[left_out + 1 :]
        parts.append(_weighted(blank[before], own[after], after, paid + step))
        if not is_minimal:
            before, after = before[1:], after[1:]
            if topology != "compact":
                differs = labels[before - 1] != labels[after - 1]
                before, after = before[differs], after[differs]
            parts.append(_weighted(own[before], own[after], after, paid + step))
    src, dst, label, log_prob = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not is_minimal:
        ends = np.full(2 * count + 1, -np.inf)
        ends[blank], ends[own[1:]] = final, final[1:]
        final = np.append(ends, final) if forgive.has_star else ends
    return Fsa(len(final), src, dst, classes[label], log_prob, final)


def _weighted(src: Ints, dst: Ints, label: Ints, log_prob: float = 0.0) -> list[npt.NDArray[Any]]:
    return [src, dst, label, np.full(len(src), log_prob)]


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
