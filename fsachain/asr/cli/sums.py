"""The commands objf and sum: graphs as files, and network outputs as matrices, whoever made them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from fsachain.asr.cli.inspect import GRAPH, read_graph
from fsachain.asr.cli.options import OUT, command, option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.data.utterance import Fault
from fsachain.asr.decode.wer import write_text
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.values import read_matrix, write_matrices
from fsachain.backends.dispatch import best_path, forward_backward
from fsachain.batch import Graph, TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError, counted
from fsachain.files import read_npz, replacing
from fsachain.fsa import Fsa, read_fsa
from fsachain.graph.numerator import load_numerators
from fsachain.progress import counter

LANES = 16  # utterances that share a call

Scores = npt.NDArray[np.floating]


def _target(value: str) -> Path:
    """Of `ark:out.ark`, or a file's name alone."""
    return Path(value.removeprefix("ark:"))


leaky_option = option(
    float,
    "Of the denominator, as in training; 0.1 in Kaldi's end-to-end recipes.",
    "--leaky-hmm-coefficient",
    default=1e-5,
)


def read_graphs(source: str) -> Mapping[str, Fsa] | Fsa:
    """The graphs of an archive or scp file, or of `fsachain num-graphs`, by utterance; or one graph for all."""
    if source.endswith(".npz"):
        return {name: numerator.fsa for name, numerator in load_numerators(source).items()}
    if source.endswith((".ark", ".scp")) or source.partition(":")[0].split(",")[0] in ("ark", "scp"):
        return dict(read_table(source, read_fsa))
    return read_graph(Path(source))


def read_scores(source: str) -> Iterator[tuple[str, Scores]]:
    """Matrices [T, P] of an archive or scp file, by utterance; of an npz file, by array; or the one of an npy file."""
    path = Path(source)
    if path.suffix not in (".npy", ".npz"):
        yield from read_table(source, read_matrix)
        return
    try:
        arrays = read_npz(path) if path.suffix == ".npz" else {path.stem: np.load(path, allow_pickle=False)}
    except ValueError as error:
        raise DataError(f"{path}: no arrays of NumPy ({error})") from error
    yield from arrays.items()


# Utterances that are computed at once: names, graphs (one for all, or one each), scores [N, T, P], lengths.
Run = tuple[list[str], Fsa | list[Fsa], Scores, list[int]]


def runs(
    graphs: Mapping[str, Fsa] | Fsa, scores: Iterator[tuple[str, Scores]], resources: Resources
) -> Iterator[Run]:
    """What has both a graph and scores, with a bar; scores without a graph are left out."""

    def usable() -> Iterator[tuple[str, Scores]]:
        for done, (name, matrix) in enumerate(scores):
            update(done, None)
            if matrix.ndim != 2 or matrix.dtype.kind != "f" or not matrix.shape[1]:
                found = f"{matrix.dtype} {list(matrix.shape)}"
                raise DataError(
                    f"scores of {name!r} are {found}; expected floating-point numbers [frames, pdfs]"
                )
            if isinstance(graphs, Fsa) or name in graphs:
                yield name, matrix
            else:
                resources.note([Fault(name, "has scores and no graph")], "scores")

    pairs = usable()
    with counter("utterances") as update:
        while batch := list(islice(pairs, LANES)):
            names, matrices = [name for name, _ in batch], [matrix for _, matrix in batch]
            width, lengths = matrices[0].shape[1], list(map(len, matrices))
            for name, matrix in batch:
                if matrix.shape[1] != width:
                    raise DataError(
                        f"scores of {name!r} have {counted(matrix.shape[1], 'column')}; expected {width} "
                        f"as those of {names[0]!r}"
                    )
            padded = np.zeros((len(batch), max(lengths), width), np.result_type(*matrices))
            for row, matrix in zip(padded, matrices, strict=True):
                row[: len(matrix)] = matrix
            own = graphs if isinstance(graphs, Fsa) else [graphs[name] for name in names]
            yield names, own, padded, lengths


_denominator = lru_cache(maxsize=LANES)(DenominatorGraph)


def _batch(graphs: Fsa | list[Fsa], scores: Scores, *, begins: str = "start") -> TableBatch:
    """For scores [N, T, P]; `begins` anywhere: each graph as a denominator."""
    size, _, width = scores.shape
    every = graphs if isinstance(graphs, list) else [graphs]
    used: list[Graph] = [fsa if begins == "start" else _denominator(fsa, width) for fsa in every]
    return TableBatch.pack(used) if isinstance(graphs, list) else TableBatch.share(used[0], size)


def _write(matrices: Iterator[tuple[str, Scores]], path: Path | None) -> None:
    """To an npz file, or an archive and its scp file; what is to be printed is printed by the way."""
    if path is None:
        deque(matrices, maxlen=0)
    elif path.suffix == ".npz":
        found: dict[str, Any] = dict(matrices)
        with replacing(path) as file:
            np.savez(file, **found)
        count = len(found)
    else:
        count = write_matrices(path, matrices)
    if path is not None:
        click.echo(f"{counted(count, 'utterance')} -> {path}")


def _impossible(name: str, frames: int, resources: Resources) -> None:
    fault = Fault(name, f"no path of {counted(frames, 'frame')}, or NaN or +inf among its scores", "no path")
    resources.note([fault], "scores")


@command(nnet_output=str, num=str, den=GRAPH)
def objf(
    nnet_output: str,
    num: str,
    den: Fsa,
    leaky_hmm_coefficient: float = leaky_option,
    deriv: Path | None = option(
        _target, "Archive (ark:OUT) or npz file for the derivatives by NNET_OUTPUT.", metavar="ARK:OUT"
    ),
    resources: Resources = with_resources("bad_data", files=("deriv",)),
) -> None:
    """Compute the LF-MMI objective of network outputs and graphs as they are, and its derivatives.

    In: NNET_OUTPUT, an archive or scp file of matrices [frames, pdfs]; NUM, one of numerators: FSTs over pdf + 1 with the
    normalization composed in, or what `fsachain num-graphs` made; DEN, den.fst: an OpenFst file or AT&T text.
    Out: a line for each utterance and one for all, printed; with --deriv matrices of numerator less denominator occupancies,
    which are 0 for an utterance without a path. Utterances without a graph or a path are listed, and in faults.jsonl.
    Example: fsachain objf nnet_output.ark graphs/test.npz graphs/den.fst --deriv ark:deriv.ark
    """
    graphs = read_graphs(num)
    totals, num_possible = np.zeros(3), 0  # numerator, denominator, frames

    def derivatives() -> Iterator[tuple[str, Scores]]:
        nonlocal num_possible
        click.echo("utterance\tframes\tnumerator\tdenominator\tobjf per frame\t")
        for names, fsas, scores, lengths in runs(graphs, read_scores(nnet_output), resources):
            above = forward_backward(_batch(fsas, scores), scores, lengths)
            shared = _batch(den, scores, begins="anywhere")
            below = forward_backward(shared, scores, lengths, leaky_hmm_coefficient=leaky_hmm_coefficient)
            for n, (name, frames) in enumerate(zip(names, lengths, strict=True)):
                values = above.log_prob[n], below.log_prob[n]
                ok = above.ok[n] and below.ok[n]
                per_frame = (values[0] - values[1]) / max(frames, 1) if ok else -np.inf
                shown = "\t".join(f"{value:.6g}" for value in (*values, per_frame))
                click.echo(f"{name}\t{frames}\t{shown}\t{'ok' if ok else 'impossible'}")
                if ok:
                    totals[:] += *values, frames
                    num_possible += 1
                else:
                    _impossible(name, frames, resources)
                if deriv:
                    yield name, ok * (above.occupancy[n, :frames] - below.occupancy[n, :frames])

    _write(derivatives(), deriv)
    resources.check_left(resources.faults, num_possible, nnet_output)
    click.echo(
        f"all: objf per frame {(totals[0] - totals[1]) / totals[2]:.6g} over {counted(totals[2], 'frame', '.0f')}"
    )


@command(graph=str, scores=str)
def sum(
    graph: str,
    scores: str,
    begins: str = option(
        click.Choice(["start", "anywhere"]),
        "anywhere: as a denominator, by stationary probabilities, and it ends anywhere.",
        default="start",
    ),
    leaky_hmm_coefficient: float = leaky_option,
    best: Path | None = option(
        OUT, "File for the pdfs of the best paths, a line for each utterance.", "--best-path"
    ),
    occupancy: Path | None = option(
        _target, "Archive (ark:OUT) or npz file for the occupancies [frames, pdfs].", metavar="ARK:OUT"
    ),
    resources: Resources = with_resources("bad_data", files=("occupancy", "best")),
) -> None:
    """Add up the paths of graphs through matrices of scores: log Z, the best path, occupancies.

    In: GRAPH, an OpenFst file or AT&T text over pdf + 1, for all SCORES; or an archive of such graphs, or what `fsachain
    num-graphs` made, by utterance. SCORES, an archive or scp file of matrices [frames, pdfs], natural logs; or an npz or npy
    file.
    Out: utterance, frames, log Z and the best path's score, printed; what the options ask for. Utterances without a graph or
    a path are listed, and in faults.jsonl.
    Example: fsachain sum graphs/den.fst nnet_output.ark
    """
    graphs, paths = read_graphs(graph), dict[str, list[str]]()
    leak = leaky_hmm_coefficient if begins == "anywhere" else 0.0

    def occupancies() -> Iterator[tuple[str, Scores]]:
        click.echo("utterance\tframes\tlog Z\tbest path")
        for names, fsas, values, lengths in runs(graphs, read_scores(scores), resources):
            batch = _batch(fsas, values, begins=begins)
            found, ways = (
                forward_backward(batch, values, lengths, leaky_hmm_coefficient=leak),
                best_path(batch, values, lengths),
            )
            for n, (name, frames) in enumerate(zip(names, lengths, strict=True)):
                click.echo(f"{name}\t{frames}\t{found.log_prob[n]:.6g}\t{ways.score[n]:.6g}")
                if found.ok[n]:
                    paths[name] = list(map(str, ways.pdfs[n].tolist()))
                else:
                    _impossible(name, frames, resources)
                if occupancy:
                    yield name, found.occupancy[n, :frames]

    _write(occupancies(), occupancy)
    resources.check_left(resources.faults, len(paths), scores)
    if best is not None:
        write_text(best, paths)
        click.echo(f"{counted(len(paths), 'path')} -> {best}")
