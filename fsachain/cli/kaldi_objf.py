"""The objective of Kaldi's chain examples, as it is and as Kaldi counts it, beside what a Kaldi log says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.cli.options import track
from fsachain.data.kaldi_examples import SupervisedExample, read_examples
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.training_log import LoggedObjective
from fsachain.kaldi.values import read_matrix
from fsachain.table import compile_table

CLAMP = 30.0  # Kaldi's denominator takes scores within +-30
PRINTED = 1e-5  # relative: logs have six digits
IMPOSSIBLE_OBJF = -10.0  # what Kaldi counts per frame where a numerator has no path


@dataclass(frozen=True)
class ExampleObjf:
    """Numerator and denominator of one example, log-probabilities of all its frames.

    Attributes:
        name: key of the example.
        num_frames: of the output.
        weight: of the example.
        num_log_prob, den_log_prob: log Z.
        clamped_den_log_prob: log Z of the denominator over scores clamped to +-30.
        squares: sum of the squared scores.
        ok: numerator and denominator have a path.
    """

    name: str
    num_frames: int
    weight: float
    num_log_prob: float
    den_log_prob: float
    clamped_den_log_prob: float
    squares: float
    ok: bool

    @property
    def objf(self) -> float:
        """Numerator less denominator, both weighted."""
        return self.weight * (self.num_log_prob - self.den_log_prob)

    @property
    def kaldi_objf(self) -> float:
        """As Kaldi counts an end-to-end example: scores clamped in the denominator, the numerator's value not weighted."""
        if not self.ok:
            return IMPOSSIBLE_OBJF * self.weight * self.num_frames
        return self.num_log_prob - self.weight * self.clamped_den_log_prob

    def __str__(self) -> str:
        objf = (self.num_log_prob - self.den_log_prob) / self.num_frames
        fields = (self.num_frames, self.weight, self.num_log_prob, self.den_log_prob, objf)
        return "\t".join(
            [self.name, *(f"{value:.6g}" for value in fields), "ok" if self.ok else "impossible"]
        )


TITLES = "example\tframes\tweight\tnumerator\tdenominator\tobjf per frame\t"


@dataclass(frozen=True)
class Totals:
    """Over all examples; objectives and the l2 term are per weighted frame.

    Attributes:
        objf: of the possible examples alone; NaN if there is none.
        frames: weighted frames of these.
        kaldi_objf: of all examples, as Kaldi counts them.
        l2_term: of all possible examples over the frames of all, as Kaldi counts it.
        kaldi_frames: weighted frames of all.
        num_impossible: examples without a path.
    """

    objf: float
    frames: float
    kaldi_objf: float
    l2_term: float
    kaldi_frames: float
    num_impossible: int

    @classmethod
    def of(cls, found: Iterable[ExampleObjf], l2_regularize: float) -> Totals:
        """Sum up; DataError if there is no example."""
        examples = list(found)
        possible = [example for example in examples if example.ok]
        frames = sum(example.weight * example.num_frames for example in possible)
        all_frames = sum(example.weight * example.num_frames for example in examples)
        if not all_frames:
            raise DataError(f"{len(examples)} examples: expected some with a weight above 0")
        return cls(
            sum(example.objf for example in possible) / frames if frames else float("nan"),
            frames,
            sum(example.kaldi_objf for example in examples) / all_frames,
            -0.5 * l2_regularize * sum(example.weight * example.squares for example in possible) / all_frames,
            all_frames,
            len(examples) - len(possible),
        )

    def __str__(self) -> str:
        if not self.frames:
            return "all: none"
        return f"all: objf per frame {self.objf:.6g} over {self.frames:g} weighted frames"


@dataclass(frozen=True)
class Parity:
    """Totals of ours beside those of a Kaldi log; `tolerance` is the largest difference per frame that agrees."""

    ours: Totals
    theirs: LoggedObjective
    tolerance: float

    def rows(self) -> list[tuple[str, float, float, float]]:
        """(what, ours, Kaldi's, allowed difference)."""
        frames = self.ours.kaldi_frames
        return [
            ("objf per frame", self.ours.kaldi_objf, self.theirs.objf, self.tolerance),
            ("l2 term per frame", self.ours.l2_term, self.theirs.l2_term, self.tolerance),
            ("weighted frames", frames, self.theirs.weight, PRINTED * frames),
        ]

    def __bool__(self) -> bool:
        return all(abs(ours - theirs) <= allowed for _, ours, theirs, allowed in self.rows())

    def __str__(self) -> str:
        lines = [f"{'':20}{'ours':>14}{'Kaldi':>14}{'difference':>12}{'allowed':>10}"]
        lines += [
            f"{what:20}{ours:14.6g}{theirs:14.6g}{ours - theirs:12.1e}{allowed:10.0e}"
            for what, ours, theirs, allowed in self.rows()
        ]
        if self.ours.num_impossible:
            lines.append(
                f"{self.ours.num_impossible} impossible: counted with {IMPOSSIBLE_OBJF:g} per frame each; Kaldi counts all "
                "sequences of their minibatches so"
            )
        return "\n".join([*lines, "equal" if self else "different"])


def example_objfs(
    examples: str, outputs: str, den: Path, leaky_hmm_coefficient: float
) -> Iterator[ExampleObjf]:
    """The objective of each chain example.

    Args:
        examples: archive of chain examples.
        outputs: archive of network outputs [frames, pdfs] by the examples' keys, as nnet3-compute writes them.
        den: den.fst.
        leaky_hmm_coefficient: as in training; 0.1 in Kaldi's end-to-end recipes.

    Raises:
        DataError: an example without outputs, or with outputs of other sizes.
    """
    scores = dict(read_table(outputs, read_matrix))
    graph: DenominatorGraph | None = None
    for example in track(list(read_examples(examples)), "examples"):
        matrix = _scores_of(example, scores, outputs)
        if graph is None:
            graph = DenominatorGraph(Fsa.read(den), example.num_pdfs)
        yield _objf(example, matrix, graph, leaky_hmm_coefficient)


def _objf(
    example: SupervisedExample, matrix: np.ndarray, graph: DenominatorGraph, leak: float
) -> ExampleObjf:
    num = forward_backward(
        TableBatch.pack([compile_table(example.numerator, example.num_pdfs)]), matrix[None]
    )
    clamped = matrix.clip(-CLAMP, CLAMP)
    both = forward_backward(graph.batch(2), np.stack([matrix, clamped]), leaky_hmm_coefficient=leak)
    squares = float(np.square(matrix, dtype=np.float64).sum())
    return ExampleObjf(
        example.example.id,
        len(matrix),
        example.weight,
        float(num.log_prob[0]),
        float(both.log_prob[0]),
        float(both.log_prob[1]),
        squares,
        bool(num.ok[0] and both.ok.all()),
    )


def _scores_of(example: SupervisedExample, scores: Mapping[str, np.ndarray], where: str) -> np.ndarray:
    name = example.example.id
    if name not in scores:
        raise DataError(f"{where}: no outputs for the example {name!r}")
    assert example.example.window is not None
    expected = (example.example.window.length, example.num_pdfs)
    if scores[name].shape != expected:
        raise DataError(
            f"{where}: outputs of {name!r} are {list(scores[name].shape)}; expected {list(expected)}"
        )
    return scores[name]
