"""Kaldi's files looked at: `fsachain kaldi show` prints them, `fsachain kaldi objf` compares our objective with a log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.cli.options import INPUT_FILE, track
from fsachain.data.kaldi_examples import read_examples
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.examples import ChainExample, read_example
from fsachain.kaldi.lattice import CompactLattice, read_lattice
from fsachain.kaldi.training_log import LoggedObjective, read_objective
from fsachain.kaldi.transitions import read_topology, read_transition_model
from fsachain.kaldi.tree import read_tree
from fsachain.kaldi.values import Floats, read_alignment, read_matrix, read_posterior, read_vector
from fsachain.openfst import Transducer, read_fst
from fsachain.stream import Cursor
from fsachain.table import compile_table

DIFFERENT = 1  # exit status of `objf`
CLAMP = 30.0  # Kaldi's denominator takes scores within +-30
PRINTED = 1e-5  # relative: logs have six digits
IMPOSSIBLE_OBJF = -10.0  # what Kaldi counts per frame where a numerator has no path


Lines = Iterable[str]


# Text as copy-feats, copy-int-vector, copy-post, fstcopy and show-transitions print it with `ark,t:-`.


def _number(value: float) -> str:
    return f"{value:.7g}"


def _matrix(key: str, matrix: Floats) -> Lines:
    rows = ["  " + " ".join(map(_number, row)) for row in matrix.tolist()]
    yield f"{key}  ["
    yield from rows[:-1]
    yield f"{rows[-1] if rows else ''} ]"


def _vector(key: str, vector: Floats) -> Lines:
    yield f"{key}  [ {' '.join(map(_number, vector.tolist()))} ]"


def _alignment(key: str, alignment: np.ndarray) -> Lines:
    yield f"{key} {' '.join(map(str, alignment.tolist()))}"


def _posterior(key: str, posterior: list[list[tuple[int, float]]]) -> Lines:
    frames = (
        "[ " + "".join(f"{label} {_number(weight)} " for label, weight in frame) + "]" for frame in posterior
    )
    yield f"{key} {' '.join(frames)}"


def _fst_lines(fst: Transducer) -> Lines:
    """AT&T text, the start state's lines first, with costs."""
    columns = (fst.src, fst.dst, fst.ilabel, fst.olabel, fst.log_prob)
    arcs: list[list[str]] = [[] for _ in range(fst.num_states)]
    for src, dst, ilabel, olabel, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        arcs[src].append(f"{src}\t{dst}\t{ilabel}\t{olabel}\t{_number(0.0 - log_prob)}")
    for state in [fst.start, *(state for state in range(fst.num_states) if state != fst.start)]:
        yield from arcs[state]
        if fst.final_log_prob[state] > -math.inf:
            yield f"{state}\t{_number(0.0 - fst.final_log_prob[state])}"


def _lattice(key: str, compact: CompactLattice) -> Lines:
    yield key
    lattice = compact.expanded()
    columns = (
        lattice.src,
        lattice.dst,
        lattice.transition,
        lattice.word,
        lattice.graph_cost,
        lattice.acoustic_cost,
    )
    for *fields, graph, acoustic in zip(*(column.tolist() for column in columns), strict=True):
        yield "\t".join([*map(str, fields), f"{_number(graph)},{_number(acoustic)}"])
    for state in np.flatnonzero(lattice.final_graph_cost < math.inf).tolist():
        costs = lattice.final_graph_cost[state], lattice.final_acoustic_cost[state]
        yield f"{state}\t{','.join(map(_number, costs))}"
    yield ""


def _example(key: str, example: ChainExample) -> Lines:
    for part in example.inputs:
        rows, columns = part.features.shape
        times = part.indexes.t
        yield f"{key} input {part.name}: {rows} rows of {columns}, times {times.min()} to {times.max()}"
    for output in example.outputs:
        arcs = sum(fsa.num_arcs for fsa in output.fsas)
        kind = "end-to-end" if output.end_to_end else "from alignments"
        yield (
            f"{key} output {output.name}: {output.num_sequences} sequences of {output.frames_per_sequence} frames, "
            f"{output.label_dim} pdfs, weight {_number(output.weight)}, {kind}, {len(output.fsas)} graphs, {arcs} arcs"
        )


def _model(path: str) -> Lines:
    model = read_transition_model(path)
    table = model.transitions
    yield f"{model.num_phones} phones, {model.num_pdfs} pdfs, {len(table.pdf) - 1} transition ids"
    yield "transition\tphone\tstate\tpdf\tself-loop\tlast\tlog-prob"
    for number in range(1, len(table.pdf)):
        marks = ("yes" if mark[number] else "no" for mark in (table.is_self_loop, table.is_final))
        fields = [number, table.phone[number], table.hmm_state[number], table.pdf[number], *marks]
        yield "\t".join([*map(str, fields), _number(model.log_probs[number])])


def _topology(path: str) -> Lines:
    for phone, states in sorted(read_topology(path).items()):
        for number, state in enumerate(states[:-1]):
            ways = ", ".join(f"{target} ({_number(prob)})" for target, prob in state.transitions)
            classes = f"pdf classes {state.forward_class} and {state.self_loop_class}"
            yield f"phone {phone}, state {number}: {classes}, to {ways}"


def _tree(path: str) -> Lines:
    tree = read_tree(path)
    yield f"context-width {tree.context_width}"
    yield f"central-position {tree.central_position}"
    yield f"num-pdfs {tree.decisions.num_pdfs}"


_TABLES: dict[str, tuple[Callable[[Cursor], Any], Callable[[str, Any], Lines]]] = {
    "matrix": (read_matrix, _matrix),
    "vector": (read_vector, _vector),
    "alignment": (read_alignment, _alignment),
    "posterior": (read_posterior, _posterior),
    "fst": (read_fst, lambda key, fst: [key, *_fst_lines(fst), ""]),
    "lattice": (read_lattice, _lattice),
    "example": (read_example, _example),
}
_FILES: dict[str, Callable[[str], Lines]] = {
    "fst-file": lambda path: _fst_lines(read_value(Path(path), read_fst)),
    "model": _model,
    "topo": _topology,
    "tree": _tree,
}
KINDS = (*_TABLES, *_FILES)


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("source")
def show(kind: str, source: str) -> None:
    """Print a file of Kaldi as text.

    In: KIND and SOURCE: an archive or scp file of matrices, vectors, alignments, posteriors, FSTs, lattices or chain
    examples; or one FST, transition model, topo or tree. The lattices are those of lat.*.gz, the model 0.trans_mdl or
    final.mdl.

    Out: text, printed: archives as Kaldi's ark,t:- does, FSTs in AT&T form, of examples a line for each input and output.
    """
    if kind in _FILES:
        for line in _FILES[kind](source):
            click.echo(line)
        return
    read, write = _TABLES[kind]
    for key, value in read_table(source, read):
        for line in write(key, value):
            click.echo(line)


# The objective of chain examples, as it is and as Kaldi counts it.


@dataclass(frozen=True)
class ExampleObjf:
    """log Z of numerator and denominator of one example, and what its objectives are made of.

    `clamped_den_log_prob` is that of scores clamped to +-30, `squares` the sum of the squared scores; `ok` means that
    numerator and denominator have a path.
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

    `objf` and `frames` are of the possible examples alone, `kaldi_objf` and `kaldi_frames` of all. `l2_term` sums over the
    possible ones and divides by the frames of all, as Kaldi does. Without a possible example `objf` is NaN.
    """

    objf: float
    frames: float
    kaldi_objf: float
    l2_term: float
    kaldi_frames: float
    num_impossible: int

    @classmethod
    def of(cls, found: Iterable[ExampleObjf], l2_regularize: float) -> Totals:
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
    scores = dict(read_table(outputs, read_matrix))
    graph: DenominatorGraph | None = None
    for example in track(list(read_examples(examples)), "examples"):
        name, window = example.example.id, example.example.window
        if name not in scores:
            raise DataError(f"{outputs}: no outputs for the example {name!r}")
        matrix = scores[name]
        assert window is not None
        expected = (window.length, example.num_pdfs)
        if matrix.shape != expected:
            raise DataError(
                f"{outputs}: outputs of {name!r} are {list(matrix.shape)}; expected {list(expected)}"
            )
        if graph is None:
            graph = DenominatorGraph(Fsa.read(den), example.num_pdfs)
        numerator = TableBatch.pack([compile_table(example.numerator, example.num_pdfs)])
        num = forward_backward(numerator, matrix[None])
        both = forward_backward(
            graph.batch(2),
            np.stack([matrix, matrix.clip(-CLAMP, CLAMP)]),
            leaky_hmm_coefficient=leaky_hmm_coefficient,
        )
        yield ExampleObjf(
            name,
            len(matrix),
            example.weight,
            num_log_prob=float(num.log_prob[0]),
            den_log_prob=float(both.log_prob[0]),
            clamped_den_log_prob=float(both.log_prob[1]),
            squares=float(np.square(matrix, dtype=np.float64).sum()),
            ok=bool(num.ok[0] and both.ok.all()),
        )


@click.command()
@click.argument("examples")
@click.argument("matrices")
@click.argument("den", type=INPUT_FILE)
@click.option("--leaky-hmm-coefficient", type=float, default=0.1, show_default=True, help="As in training.")
@click.option("--l2-regularize", type=float, default=0.0, show_default=True, help="As in training.")
@click.option("--log", type=INPUT_FILE, help="Log of nnet3-chain-compute-prob for these examples.")
@click.option("--output-name", default="output", show_default=True, help="The network's output in the log.")
@click.option(
    "--tolerance", type=float, default=1e-4, show_default=True, help="Largest difference per frame."
)
@click.pass_context
def objf(
    context: click.Context,
    examples: str,
    matrices: str,
    den: Path,
    leaky_hmm_coefficient: float,
    l2_regularize: float,
    log: Path | None,
    output_name: str,
    tolerance: float,
) -> None:
    """Compute the objective of chain examples, and compare it with a Kaldi log.

    In: EXAMPLES, cegs.*.ark or valid_diagnostic.cegs of an end-to-end recipe; MATRICES, the network's outputs for them;
    DEN, den.fst; --log compute_prob_valid.final.log, which Kaldi wrote for the same examples and network.

    Out: a line for each example and one for all, printed; with --log a table of ours and Kaldi's, counted as Kaldi does
    (docs/kaldi.md says how that differs). Exit status 1 if they differ by more than the tolerance.
    """
    theirs = None if log is None else read_objective(log, output_name)
    found: list[ExampleObjf] = []
    for example in example_objfs(examples, matrices, den, leaky_hmm_coefficient):
        click.echo(str(example) if found else f"{TITLES}\n{example}")
        found.append(example)
    totals = Totals.of(found, l2_regularize)
    click.echo(str(totals))
    if theirs is not None:
        parity = Parity(totals, theirs, tolerance)
        click.echo(str(parity))
        context.exit(0 if parity else DIFFERENT)
