"""Random accepted paths of an acceptor, and whether two acceptors give random sequences the same scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsachain import reachability
from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Fsa

SEMIRINGS = ("log", "tropical")
Path = npt.NDArray[np.int64]


def random_paths(fsa: Fsa, count: int, *, seed: int = 0, mean_frames: int = 50) -> list[Path]:
    """`count` accepted paths, each an int64 array of arc numbers, one for each frame.

    From each state one of the arcs that lead on to a final state is drawn, all alike, weights aside. In a final
    state a path ends with probability 1 / mean_frames; after 2 x mean_frames frames it takes the shortest way
    to the end. So paths are about as long as asked for, where the graph allows it, and all are accepted.

    Raises:
        GraphError: the acceptor accepts nothing.
        ConfigError: mean_frames is below 1.
    """
    if mean_frames < 1:
        raise ConfigError(f"mean_frames = {mean_frames}: expected at least 1")
    walker = _Walker(fsa)
    rng = np.random.default_rng(seed)
    return [walker.walk(rng, mean_frames) for _ in range(count)]


class _Walker:
    """The arcs that lead to a final state, by source, and how far each state is from the end."""

    def __init__(self, fsa: Fsa) -> None:
        usable = np.flatnonzero(fsa.log_prob > -math.inf)
        finals = np.flatnonzero(fsa.final_log_prob > -math.inf)
        # One more state, behind all final ones: its distance backwards is the way to the end.
        src = np.concatenate([fsa.dst[usable], np.full(len(finals), fsa.num_states)])
        dst = np.concatenate([fsa.src[usable], finals])
        distance = reachability.arcs_from(fsa.num_states, fsa.num_states + 1, src, dst)[:-1] - 1
        if not math.isfinite(distance[fsa.start]):
            raise GraphError(
                f"the acceptor ({fsa.num_states} states, {fsa.num_arcs} arcs) accepts no sequence: it has no paths"
            )
        alive = usable[np.isfinite(distance[fsa.dst[usable]])]
        order = alive[np.argsort(fsa.src[alive], kind="stable")]
        self.fsa, self.distance, self.arcs = fsa, distance, order
        self.offsets = np.searchsorted(fsa.src[order], np.arange(fsa.num_states + 1))

    def walk(self, rng: np.random.Generator, mean_frames: int) -> Path:
        fsa, state, path = self.fsa, self.fsa.start, list[int]()
        while True:
            leaving = self.arcs[self.offsets[state] : self.offsets[state + 1]]
            is_final = fsa.final_log_prob[state] > -math.inf
            if is_final and (
                not len(leaving) or len(path) >= 2 * mean_frames or rng.random() * mean_frames < 1
            ):
                return np.array(path, dtype=np.int64)
            if len(path) >= 2 * mean_frames:
                arc = int(leaving[np.argmin(self.distance[fsa.dst[leaving]])])
            else:
                arc = int(leaving[rng.integers(len(leaving))])
            path.append(arc)
            state = int(fsa.dst[arc])


class SequenceScorer:
    """Scores of pdf sequences in one acceptor.

    Args:
        fsa: the acceptor.
        semiring: "log": the log-sum over all paths, as equation (4) with y = 0; "tropical": the best path.
    """

    def __init__(self, fsa: Fsa, semiring: str = "log") -> None:
        if semiring not in SEMIRINGS:
            raise ConfigError(f"semiring = {semiring!r}: expected one of {', '.join(SEMIRINGS)}")
        self.fsa = fsa
        self.add = np.logaddexp if semiring == "log" else np.maximum
        order = np.lexsort((fsa.pdf, fsa.src))
        self.arcs = order
        keys = fsa.src[order].astype(np.int64) * self.num_pdfs + fsa.pdf[order]
        self.keys = keys

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf of an arc."""
        return int(self.fsa.pdf.max(initial=-1)) + 1

    def __call__(self, pdfs: Sequence[int] | npt.NDArray[np.integer]) -> float:
        """The score of one pdf sequence; -inf where no path accepts it."""
        fsa = self.fsa
        scores = {fsa.start: 0.0}
        for pdf in np.asarray(pdfs, dtype=np.int64).tolist():
            reached: dict[int, float] = {}
            for state, score in scores.items() if pdf < self.num_pdfs else ():
                key = state * self.num_pdfs + pdf
                first, end = np.searchsorted(self.keys, (key, key + 1))
                for arc in self.arcs[first:end].tolist():
                    dst = int(fsa.dst[arc])
                    reached[dst] = float(self.add(reached.get(dst, -math.inf), score + fsa.log_prob[arc]))
            scores = reached
        total = -math.inf
        for state, score in scores.items():
            total = float(self.add(total, score + fsa.final_log_prob[state]))
        return total


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `equivalent` found.

    Attributes:
        num_sequences: pdf sequences compared, from both acceptors.
        worst_difference: largest difference of two scores; inf where one acceptor refuses a sequence.
        worst_sequence: the pdfs it was found for.
        scores: of that sequence in the first and in the second acceptor.
        tolerance: what counts as equal, relative to max(1, |score|).
    """

    num_sequences: int
    worst_difference: float
    worst_sequence: npt.NDArray[np.integer]
    scores: tuple[float, float]
    tolerance: float

    def __bool__(self) -> bool:
        """No difference beyond the tolerance was found."""
        if not math.isfinite(self.worst_difference):
            return False
        return self.worst_difference <= self.tolerance * max(1.0, abs(self.scores[0]))

    def __str__(self) -> str:
        shown = " ".join(map(str, self.worst_sequence[:12].tolist())) + (
            " ..." if len(self.worst_sequence) > 12 else ""
        )
        verdict = "no difference found" if self else "different"
        return (
            f"{verdict}: {self.num_sequences} sequences, worst difference {self.worst_difference:.3g} "
            f"({self.scores[0]:.6g} and {self.scores[1]:.6g}), on {len(self.worst_sequence)} frames: {shown}"
        )


def equivalent(
    first: Fsa,
    second: Fsa,
    *,
    count: int = 100,
    semiring: str = "log",
    tolerance: float = 1e-4,
    seed: int = 0,
    mean_frames: int = 50,
) -> Comparison:
    """Compare the scores of random accepted sequences of each acceptor in both.

    A sample: it finds differences that many sequences show, and proves nothing where it finds none. Scores that
    differ by a constant on all sequences are different.

    Args:
        first: an acceptor that accepts something.
        second: another.
        count: sequences drawn from each.
        semiring: as for `SequenceScorer`; determinisation keeps scores in the semiring it was made in alone.
        tolerance: largest difference that counts as none, relative to max(1, |score|).
        seed: of the paths.
        mean_frames: as for `random_paths`.

    Raises:
        GraphError: one of them accepts nothing.
    """
    scorers = SequenceScorer(first, semiring), SequenceScorer(second, semiring)
    worst = Comparison(2 * count, 0.0, np.empty(0, np.int32), (0.0, 0.0), tolerance)
    worst_share = -1.0
    for fsa in (first, second):
        for path in random_paths(fsa, count, seed=seed, mean_frames=mean_frames):
            pdfs = fsa.pdf[path]
            scores = scorers[0](pdfs), scorers[1](pdfs)
            difference = 0.0 if scores[0] == scores[1] else abs(scores[0] - scores[1])
            share = difference / max(1.0, abs(scores[0])) if math.isfinite(difference) else math.inf
            if share > worst_share:
                worst_share = share
                worst = Comparison(2 * count, difference, pdfs, scores, tolerance)
    return worst
