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

from fsachain.errors import ConfigError, GraphError, integer
from fsachain.fsa import Floats, Fsa, Ints
from fsachain.graph.forgive import NOTHING, Forgiveness, check_forgiveness

CtcTopology = Literal["standard", "compact", "selfless", "minimal"]
_TOPOLOGIES = get_args(CtcTopology)


class CtcArcs(NamedTuple):
    """The arcs for any target of U labels; the start is state 0.

    label [A] is 0 for the blank and k for the k-th label of the target, counted from 1, or for a star that has k labels
    before it, as stars [A] says; repeats [A] marks one more frame of the same label. An arc exists only where its label
    differs from the one of number apart [A], 0 for none. It weighs `ctc_prices` [price [A]].
    """

    num_states: int
    src: Ints
    dst: Ints
    label: Ints
    stars: npt.NDArray[np.bool_]
    repeats: npt.NDArray[np.bool_]
    apart: Ints
    price: Ints


FREE, DELETED, SUBSTITUTED, KEPT = range(4)  # of `ctc_prices`; from KEPT on by how many labels are left out


def ctc_prices(forgive: Forgiveness) -> Floats:
    """Log-weights: of no price, of a star that the target lacks, of one in place of a label, of labels, and of ends.

    The last two are as many as there are numbers of labels that may be left out before: 0, 1, ...
    """
    step = forgive.label_log_prob + forgive.stop_log_prob
    left_out = np.arange(forgive.longest_gap + 1)
    paid = np.append(0.0, left_out[1:] * (step - forgive.insertion))
    stars = [0.0, -forgive.deletion, step - forgive.substitution]
    return np.concatenate([stars, paid + step, paid + forgive.stop_log_prob])


def check_topology(topology: str) -> None:
    if topology not in _TOPOLOGIES:
        raise ConfigError(f"topology = {topology!r}; expected one of {list(_TOPOLOGIES)}")


def ctc_arcs(num_labels: int, topology: CtcTopology, forgive: Forgiveness) -> CtcArcs:
    """For the kinds of errors that `forgive` has; their penalties matter to `ctc_prices` alone.

    States are those of the table above; then, but under "minimal", those of stars: 2 U + 1 + k for one that has k labels
    before it.
    """
    check_topology(topology)
    place, is_minimal = np.arange(num_labels + 1), topology == "minimal"
    num_states = num_labels + 1
    blank, own, starred = place, place, place
    if not is_minimal:
        blank, own, starred = 2 * place, 2 * place - 1, 2 * num_labels + 1 + place
        num_states = (3 if forgive.has_star else 2) * num_labels + (2 if forgive.has_star else 1)
    lasts = not is_minimal and topology != "selfless"
    parts = [_part(blank, blank, 0 * place)]
    if not is_minimal:
        parts.append(_part(own[1:], blank[1:], 0 * place[1:]))
    for left_out in range(min(num_labels, forgive.longest_gap + 1)):
        before, after = place[: num_labels - left_out], place[left_out + 1 :]
        price = KEPT + left_out
        parts.append(_part(blank[before], own[after], after, price=price))
        if not is_minimal:
            before, after = before[1:], after[1:]
            apart = 0 if topology == "compact" else before
            parts.append(_part(own[before], own[after], after, apart=apart, price=price))
    if lasts:
        parts.append(_part(own[1:], own[1:], place[1:], repeats=True))
    if forgive.has_star and not is_minimal:
        parts.append(_part(starred, blank, 0 * place))
        if lasts:
            parts.append(_part(starred, starred, place, stars=True))
    if forgive.deletion < np.inf:
        parts.append(_part(blank, starred, place, stars=True, price=DELETED))
    if forgive.substitution < np.inf:
        parts.append(_part(blank[:-1], starred[1:], place[1:], stars=True, price=SUBSTITUTED))
    return CtcArcs(num_states, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _part(
    src: Ints,
    dst: Ints,
    label: Ints,
    *,
    stars: bool = False,
    repeats: bool = False,
    apart: Any = 0,
    price: int = FREE,
) -> list[npt.NDArray[Any]]:
    """The fields of `CtcArcs` but the first."""
    return [src, dst, label, *(np.full(len(src), value) for value in (stars, repeats, apart, price))]


def final_states(
    counts: Any, num_labels: int, topology: CtcTopology, forgive: Forgiveness
) -> tuple[Ints, Ints]:
    """Where targets of counts [...] labels end among the arcs of `num_labels`: states [..., F], -1 for none; prices [F]."""
    gap = forgive.longest_gap
    place = np.asarray(counts)[..., None] - np.arange(gap + 1)
    kinds = [place]
    if topology != "minimal":
        kinds = [np.where(place > 0, 2 * place - 1, -1), 2 * place]
        if forgive.has_star:
            kinds.append(2 * num_labels + 1 + place)
    states = np.concatenate([np.where(place >= 0, states, -1) for states in kinds], axis=-1)
    return states, np.tile(KEPT + gap + 1 + np.arange(gap + 1), len(kinds))


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
    expected = "a class, counted from 0"
    blank = integer("blank", blank, expected=expected)
    if blank < 0:
        raise ConfigError(f"blank = {blank}; expected {expected}")
    bad = np.flatnonzero((labels < 0) | (labels == blank))
    if bad.size:
        raise GraphError(
            f"targets[{bad[0]}] = {labels[bad[0]]}; expected labels >= 0 other than the blank, {blank}"
        )
    options = NOTHING if forgive is None else forgive
    check_forgiveness(options)
    classes = np.append(blank, labels).astype(np.int64)
    if options.has_star and (star is None or star < 0 or star in classes):
        raise ConfigError(f"star = {star}; expected a class of its own, neither the blank nor a label")
    return target_graph(labels, classes, classes, -1 if star is None else star, topology, options)


def target_graph(
    labels: Ints, firsts: Ints, repeats: Ints, star: int, topology: CtcTopology, forgive: Forgiveness
) -> Fsa:
    """The acceptor of a target, of which only matters which labels are equal.

    Its pdfs are those of the blank and of each label's first frames [U + 1], of their further frames, and of the star.
    """
    arcs, prices = ctc_arcs(len(labels), topology, forgive), ctc_prices(forgive)
    ends, price = final_states(len(labels), len(labels), topology, forgive)
    final = np.full(arcs.num_states, -np.inf)
    final[ends[ends >= 0]] = prices[price[ends >= 0]]
    pdf = np.where(arcs.repeats, repeats[arcs.label], firsts[arcs.label])
    pdf[arcs.stars] = star
    before = np.append(-1, labels)
    kept = (arcs.apart == 0) | (before[arcs.label] != before[arcs.apart])
    return Fsa(arcs.num_states, arcs.src[kept], arcs.dst[kept], pdf[kept], prices[arcs.price[kept]], final)


def differs_from_previous(labels: Ints) -> npt.NDArray[np.bool_]:
    """bool [..., U + 1] for labels [..., U]: entry k says whether the k-th label differs from the one before it."""
    result = np.ones((*labels.shape[:-1], labels.shape[-1] + 1), dtype=np.bool_)
    result[..., 2:] = labels[..., 1:] != labels[..., :-1]
    return result
