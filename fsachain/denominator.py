"""The denominator of LF-MMI: one graph of all phone sequences, shared by every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, GraphError, counted, integer
from fsachain.fsa import Floats, Fsa, Ints
from fsachain.notebook import html_table, with_picture
from fsachain.recursion import log_add, log_sum_rows
from fsachain.table import TransitionTable, compile_table

MERGES = ("sum", "min")


def normalization_fsa(
    fsa: Fsa, initial_probs: npt.ArrayLike, merge: str = "sum", final_log_prob: Floats | None = None
) -> Fsa:
    """The denominator `fsa` with `initial_probs` [S] turned into a new start state (Hadian et al., Interspeech 2018).

    A numerator composed with it scores its paths as the denominator does, so that log Z of the numerator never exceeds
    that of the denominator. The new start has one arc for each (pdf, dst): the merge over states s of
    log initial_probs[s] + the arc's log_prob. All other arcs stay; every state is final with probability one, or as
    `final_log_prob` [S] says, except the new start, since an utterance has at least one frame. States that the new start
    does not reach are left out.

    Merge "sum", the log-sum, is exact: log Z is that of the denominator at leaky coefficient 0. "min" takes the best
    term alone, as Kaldi's epsilon removal in the tropical semiring does.
    """
    if merge not in MERGES:
        raise GraphError(f"merge = {merge!r}: expected one of {', '.join(MERGES)}")
    pdf, dst, log_prob = _first_arcs(fsa, np.asarray(initial_probs, dtype=np.float64), merge)
    start = fsa.num_states
    return Fsa(
        start + 1,
        np.concatenate([np.full(len(dst), start), fsa.src]),
        np.concatenate([dst, fsa.dst]),
        np.concatenate([pdf, fsa.pdf]),
        np.concatenate([log_prob, fsa.log_prob]),
        np.append(np.zeros(start) if final_log_prob is None else final_log_prob, -np.inf),
        start,
    ).trim()


def _first_arcs(fsa: Fsa, probs: Floats, merge: str = "sum") -> tuple[Ints, Ints, Floats]:
    """pdf, dst and log_prob of what leaves the states, each with its probability [S], merged by (pdf, dst)."""
    usable = np.flatnonzero((probs[fsa.src] > 0) & (fsa.log_prob > -np.inf))
    log_prob = np.log(probs[fsa.src[usable]]) + fsa.log_prob[usable]
    key = fsa.pdf[usable].astype(np.int64) * fsa.num_states + fsa.dst[usable]
    order = np.argsort(key, kind="stable")
    merged_key, first = np.unique(key[order], return_index=True)
    reduce = np.logaddexp if merge == "sum" else np.maximum
    merged = reduce.reduceat(log_prob[order], first) if len(first) else np.empty(0)
    return merged_key // fsa.num_states, merged_key % fsa.num_states, merged


STAR_BEGINS, STAR_LASTS = 3.0, 0.3  # nats, of a star and of each of its frames


def add_star(
    fsa: Fsa,
    star_pdf: int,
    pdf: Ints,
    dst: Ints,
    log_prob: Floats,
    begins: float = STAR_BEGINS,
    lasts: float = STAR_LASTS,
) -> Fsa:
    """The graph and one state more, the star: frames of a pdf of their own, which may begin wherever an arc may.

    What follows it are arcs (pdf, dst, log_prob), those with which a sequence begins. It costs `begins` and `lasts` for each
    frame. Since denominator and normalization get the same star, log Z of a numerator stays at most that of the denominator,
    whatever the star's pdf scores.
    """
    star = fsa.num_states
    every, stars = np.arange(star), np.full(star + 1, star)
    return Fsa(
        star + 1,
        np.concatenate([fsa.src, every, [star], np.full(len(dst), star)]),
        np.concatenate([fsa.dst, stars, dst]),
        np.concatenate([fsa.pdf, np.full(star + 1, star_pdf), pdf]),
        np.concatenate([fsa.log_prob, np.full(star, -begins - lasts), [-lasts], log_prob]),
        np.append(fsa.final_log_prob, 0.0),
        fsa.start,
    )


@lru_cache(maxsize=4)  # an Fsa is immutable and hashed by identity
def normalization_with_star(
    fsa: Fsa, star_pdf: int, begins: float = STAR_BEGINS, lasts: float = STAR_LASTS
) -> Fsa:
    """Of a `normalization_fsa`, that of the denominator with a star, as `add_star` makes it; itself if it has one."""
    if star_pdf in fsa.pdf:
        return fsa
    first = fsa.src == fsa.start
    return add_star(fsa, star_pdf, fsa.pdf[first], fsa.dst[first], fsa.log_prob[first], begins, lasts)


NUM_STEPS = 100


def stationary_probs(fsa: Fsa) -> npt.NDArray[np.float64]:
    """float64 [S], summing to one: `init` of equation (3).

    p_0 is one at the start state; p_{k+1} is one step along the arcs, each state's arcs and its own final weight
    normalised to one, then rescaled to sum one; the result is the mean of p_0..p_99 (Povey et al., Interspeech 2016).
    A graph without a cycle has none: all mass dies within the 100 steps, which is a GraphError.
    """
    transition = _step_matrix(fsa)
    probs = np.zeros(fsa.num_states)
    probs[fsa.start] = 1.0
    total = np.zeros(fsa.num_states)
    for step in range(NUM_STEPS):
        total += probs
        if step == NUM_STEPS - 1:
            break
        probs = transition @ probs
        mass = probs.sum()
        if mass <= 0.0:
            raise GraphError(
                f"all probability leaves the graph after {counted(step, 'arc')}, so it has no stationary "
                "distribution; expected a "
                "cycle that the start state reaches (use initial='start' for a graph without one)"
            )
        probs /= mass
    return total / total.sum()


def _step_matrix(fsa: Fsa) -> sparse.csr_array:
    """[S, S] with entry (j, i): the normalised probability of a step from i to j."""
    order = np.argsort(fsa.src, kind="stable")
    offsets = np.searchsorted(fsa.src[order], np.arange(fsa.num_states + 1)).astype(np.int64)
    totals: Floats = log_add(log_sum_rows(fsa.log_prob[order], offsets), fsa.final_log_prob)
    usable = fsa.log_prob > -np.inf
    probs = np.exp(fsa.log_prob[usable] - totals[fsa.src[usable]])
    return sparse.csr_array(
        (probs, (fsa.dst[usable], fsa.src[usable])), shape=(fsa.num_states, fsa.num_states)
    )


class DenominatorGraph:
    """A denominator with its initial probabilities.

    With the defaults it is Kaldi's: a sequence may begin in any state with its stationary probability and end anywhere,
    as if it had been cut from a longer recording. `initial="start", final="fsa"` is the graph as it stands.

    Attributes:
        fsa: the graph.
        num_pdfs: P, the width of the network output.
        table: its `TransitionTable`, with `leaky_log_prob` set wherever the graph has a stationary distribution.
        without_star: of a graph made by `with_star`, what it was made of; else None.
    """

    def __init__(
        self,
        fsa: Fsa,
        num_pdfs: int,
        *,
        initial: Literal["stationary", "start"] = "stationary",
        final: Literal["one", "fsa"] = "one",
    ) -> None:
        """Compile the graph.

        Args:
            fsa: any acceptor, for example from `build_denominator`.
            num_pdfs: P; every pdf of the graph must be below it.
            initial: "stationary" (see `stationary_probs`) or "start": the graph's own start state only.
            final: "one": every state is final with probability one; "fsa": the graph's own final weights.

        Raises:
            GraphError: a pdf out of range, or `initial="stationary"` for a graph in which all mass dies.
            ConfigError: an unknown value of `initial` or `final`.
        """
        if not isinstance(fsa, Fsa):
            raise GraphError(
                f"fsa is a {type(fsa).__name__}; expected an Fsa, such as that of build_denominator"
            )
        if initial not in ("stationary", "start"):
            raise ConfigError(f"initial = {initial!r}; expected 'stationary' or 'start'")
        if final not in ("one", "fsa"):
            raise ConfigError(f"final = {final!r}; expected 'one' or 'fsa'")
        self.fsa = fsa
        self.num_pdfs = integer("num_pdfs", num_pdfs, GraphError)
        self.without_star: DenominatorGraph | None = None
        self._initial_probs: Floats | None = None
        try:
            self._initial_probs = stationary_probs(fsa)
        except GraphError:
            if initial == "stationary":
                raise
        table = compile_table(fsa, self.num_pdfs, name="denominator")
        if self._initial_probs is not None:
            with np.errstate(divide="ignore"):
                log_init = np.log(self._initial_probs)
            table = replace(table, leaky_log_prob=log_init)
            if initial == "stationary":
                table = replace(table, initial_log_prob=log_init)
        if final == "one":
            table = replace(table, final_log_prob=np.zeros(fsa.num_states))
        self.table: TransitionTable = table
        self._begin_probs = self.initial_probs if initial == "stationary" else np.exp(table.initial_log_prob)

    def __repr__(self) -> str:
        return (
            f"DenominatorGraph({counted(self.fsa.num_states, 'state')}, {counted(self.fsa.num_arcs, 'arc')}, "
            f"{counted(self.num_pdfs, 'pdf')})"
        )

    def _repr_html_(self) -> str:
        """Sizes, and the most probable part of the graph, for notebooks."""
        leak = (
            "with stationary probabilities"
            if self._initial_probs is not None
            else "no stationary probabilities"
        )
        sizes = [self.fsa.num_states, self.fsa.num_arcs, self.num_pdfs, leak]
        table = html_table(("states", "arcs", "pdfs", "start"), [sizes], title="DenominatorGraph")
        return with_picture(table, self.fsa._repr_svg_())

    @property
    def initial_probs(self) -> Floats:
        """float64 [S], summing to one: the stationary probabilities, `init` of equation (3).

        Raises:
            GraphError: the graph has none (see `stationary_probs`).
        """
        return stationary_probs(self.fsa) if self._initial_probs is None else self._initial_probs

    def batch(self, size: int, names: Sequence[str] | None = None) -> TableBatch:
        """A batch of `size` sequences that share this graph."""
        return TableBatch.share(self.table, size, names)

    # As `torch.compiler.assume_constant_result` says it, without torch: a compiler takes the batch as it is.
    batch._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def normalization_fsa(self, merge: Literal["sum", "min"] = "sum") -> Fsa:
        """The graph to compose numerators with, so that log Z of a numerator never exceeds that of the denominator.

        A new start state takes the place of the probabilities with which the denominator begins; all other states are final
        as they are there. Its arcs of one (pdf, dst) are merged: "sum" adds their probabilities, which is exact, "min"
        takes the best, as Kaldi does.
        """
        return normalization_fsa(self.fsa, self._begin_probs, merge, self.table.final_log_prob)

    def with_star(self) -> DenominatorGraph:
        """This graph and a star of any frames, `add_star`, for numerators with `Forgiveness(star="frames")`.

        These take their normalization from either graph. `num_pdfs` stays P: `LFMMILoss` makes the score of the star's pdf.

        Raises:
            ConfigError: the graph has a star.
        """
        if self.without_star is not None:
            raise ConfigError("with_star: the denominator has a star; expected one without")
        made, table, never = copy(self), self.table, -np.inf
        assert table.leaky_log_prob is not None
        made.without_star = self
        made.fsa = add_star(self.fsa, self.num_pdfs, *_first_arcs(self.fsa, self._begin_probs))
        made._initial_probs = np.append(self.initial_probs, 0.0)
        made._begin_probs = np.append(self._begin_probs, 0.0)
        made.table = replace(
            compile_table(made.fsa, self.num_pdfs + 1, name="denominator"),
            initial_log_prob=np.append(table.initial_log_prob, never),
            final_log_prob=np.append(table.final_log_prob, 0.0),
            leaky_log_prob=np.append(table.leaky_log_prob, never),
        )
        return made
