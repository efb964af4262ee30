"""Commands on graphs: tie a tree, compare, walk, draw, make smaller."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fsachain.cli.bad_data import BadData
from fsachain.cli.config import Experiment
from fsachain.cli.lang import Lang, save_lang
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    config_option,
    lang_option,
    seed_option,
    track,
    workers_option,
)
from fsachain.data.dataset import load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.align import aligned_phones
from fsachain.decode.ctm import by_utterance, read_ctm
from fsachain.errors import DataError
from fsachain.graph.supervision import AlignedPhone
from fsachain.graph.tied_tree import BiphoneStatistics, build_tied_tree

DIFFERENT = 1  # exit status of `equivalent`

semiring_option = click.option(
    "--semiring",
    type=click.Choice(["log", "tropical"]),
    required=True,
    help="Weights of all paths of a sequence added up, or the best of them.",
)


@click.command("tie-tree")
@click.argument("data", type=INPUT_DATA)
@click.argument("alignment", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--num-pdfs", type=click.IntRange(min=1), required=True, help="Leaves of the tree, at most.")
@click.option("--min-frames", type=float, default=100.0, show_default=True, help="Of each side of a split.")
@config_option
@cache_option
@workers_option
@bad_data_option
@commands_option
def tie_tree(data: Path, alignment: Path, out: Path, lang: Path, **arguments: Any) -> None:
    """Tie the left biphones of a language by the aligned frames of an end-to-end model.

    In: DATA, a Kaldi data directory, and ALIGNMENT, the phones.ctm that `fsachain align` wrote for it; the sections
    features and network of the configuration.

    Out: language folder OUT, the lexicon of --lang with the new tree.
    """
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.lang import load_lang

    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        summary = make_tied_tree(
            arguments["experiment"],
            load_lang(lang),
            bad_data.read(data),
            alignment,
            out,
            num_pdfs=arguments["num_pdfs"],
            min_frames=arguments["min_frames"],
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")


@click.command()
@click.argument("first", type=INPUT_FILE)
@click.argument("second", type=INPUT_FILE)
@click.option(
    "--count", type=click.IntRange(min=1), default=100, show_default=True, help="Paths drawn from each."
)
@click.option(
    "--mean-frames", type=click.IntRange(min=1), default=50, show_default=True, help="Length of the paths."
)
@click.option("--tolerance", type=float, default=1e-4, show_default=True, help="Relative to max(1, |score|).")
@semiring_option
@seed_option
@click.pass_context
def equivalent(
    context: click.Context,
    first: Path,
    second: Path,
    count: int,
    mean_frames: int,
    tolerance: float,
    semiring: str,
    seed: int,
) -> None:
    """Compare two graphs by the scores of random sequences that each accepts.

    In: FIRST and SECOND, OpenFst files or AT&T text: acceptors over pdfs.

    Out: the largest difference and where it was found, printed; exit status 1 if it is beyond the tolerance.
    """
    from fsachain.cli.inspect import read_graph
    from fsachain.graph.algorithms import equivalent as compare

    found = compare(
        read_graph(first),
        read_graph(second),
        count=count,
        semiring=semiring,
        tolerance=tolerance,
        seed=seed,
        mean_frames=mean_frames,
    )
    click.echo(str(found))
    context.exit(0 if found else DIFFERENT)


@click.command("random-paths")
@click.argument("graph", type=INPUT_FILE)
@click.option("--count", type=click.IntRange(min=1), default=10, show_default=True, help="Paths to draw.")
@click.option(
    "--mean-frames", type=click.IntRange(min=1), default=50, show_default=True, help="Length of the paths."
)
@seed_option
def paths(graph: Path, count: int, mean_frames: int, seed: int) -> None:
    """Draw random accepted paths.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.

    Out: one line for each path, printed: the score of its sequence over all paths, then its pdfs.
    """
    from fsachain.cli.inspect import read_graph
    from fsachain.graph.algorithms import SequenceScorer, random_paths

    fsa = read_graph(graph)
    score = SequenceScorer(fsa)
    for path in random_paths(fsa, count, seed=seed, mean_frames=mean_frames):
        pdfs = fsa.pdf[path]
        click.echo(f"{score(pdfs):.6g}\t{' '.join(map(str, pdfs.tolist()))}")


@click.command()
@click.argument("graph", type=INPUT_FILE)
def dot(graph: Path) -> None:
    """Print a small graph for Graphviz: fsachain dot den.fst | dot -Tsvg > den.svg.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.

    Out: Graphviz text, printed.
    """
    from fsachain.cli.inspect import read_graph
    from fsachain.graph.algorithms import to_dot

    click.echo(to_dot(read_graph(graph)), nl=False)


@click.command()
@click.argument("graph", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@semiring_option
def determinize(graph: Path, out: Path, semiring: str) -> None:
    """Give each accepted sequence one path, with its score in the semiring.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs, acyclic or deterministic already.

    Out: OUT, an OpenFst acceptor.
    """
    from fsachain.cli.inspect import read_graph
    from fsachain.graph import algorithms

    _write(algorithms.determinize(read_graph(graph), semiring=semiring), out)


@click.command()
@click.argument("graph", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@semiring_option
def minimize(graph: Path, out: Path, semiring: str) -> None:
    """Make a deterministic graph as small as it can be, weights pushed to the start in the semiring.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.

    Out: OUT, an OpenFst acceptor.
    """
    from fsachain.cli.inspect import read_graph
    from fsachain.graph import algorithms

    _write(algorithms.minimize(read_graph(graph), semiring=semiring), out)


def _write(fsa: object, out: Path) -> None:
    from fsachain.fsa import Fsa

    assert isinstance(fsa, Fsa)
    out.parent.mkdir(parents=True, exist_ok=True)
    fsa.write(out)
    click.echo(f"{fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


GRAPH_COMMANDS = (equivalent, paths, dot, determinize, minimize)


# A language folder whose tree is tied from an alignment.


@dataclass(frozen=True)
class TreeSummary:
    """What `make_tied_tree` made it of."""

    lang: Lang
    num_utterances: int
    num_frames: int

    def __str__(self) -> str:
        return f"{self.lang}, tied from {self.num_frames} output frames of {self.num_utterances} utterances"


def make_tied_tree(
    experiment: Experiment,
    lang: Lang,
    data: DataDir,
    alignment: Path,
    out: Path,
    *,
    num_pdfs: int,
    min_frames: float = 100.0,
    cache: Path | None = None,
    num_workers: int = 1,
    bad_data: BadData | None = None,
) -> TreeSummary:
    """Tie left biphones by the features at the centres of the output frames, and write the language folder `out`.

    Args:
        experiment: sections features and network; the latter has the subsampling.
        lang: lexicon and topology; the silence phone ignores its left neighbour.
        data: utterances; those that the alignment lacks are left out.
        alignment: phones.ctm of `fsachain align`.
        out: folder.
        num_pdfs: as for `build_tied_tree`.
        min_frames: as for `build_tied_tree`.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        bad_data: as for `make_supervision`.

    Raises:
        DataError: the alignment has none of the utterances, or a line that cannot be read.
    """
    spoken = by_utterance(read_ctm(alignment))
    network = experiment.network_spec(lang.tree.num_pdfs)
    subsampling, time_offset = network.subsampling, network.time_offset
    shift = experiment.features.frame_shift_ms / 1000.0
    statistics = BiphoneStatistics(
        len(lang.lexicon.phones), lang.tree.topology, experiment.features.num_features
    )
    used = frames = 0
    if bad_data is None:
        examples = load_examples(data, experiment.features, cache_dir=cache, num_workers=num_workers)
    else:
        _, (examples,) = bad_data.load(data, experiment.features, cache=cache, num_workers=num_workers)
    for example in track([e for e in examples if e.id in spoken], "statistics"):
        thinned = example.features[time_offset::subsampling]
        phones = aligned_phones(spoken[example.id], lang.lexicon.phones, shift)
        statistics.accumulate(thinned, _thinned(phones, subsampling, len(thinned)))
        used, frames = used + 1, frames + len(thinned)
    if not used:
        raise DataError(f"{alignment}: has none of the {len(data)} utterances")
    independent = () if lang.lexicon.silence is None else (lang.lexicon.silence,)
    tree = build_tied_tree(
        lang.lexicon.phones,
        lang.tree.topology,
        statistics,
        num_pdfs=num_pdfs,
        min_frames=min_frames,
        context_independent=independent,
    )
    made = Lang(lang.lexicon, tree)
    save_lang(made, out)
    return TreeSummary(made, used, frames)


def _thinned(phones: list[AlignedPhone], subsampling: int, num_frames: int) -> list[AlignedPhone]:
    """Spans in output frames: frame t belongs to the phone at its centre, input frame subsampling * t + offset."""

    def frame(time: int) -> int:
        return min(num_frames, max(0, math.ceil((time - subsampling // 2) / subsampling)))

    return [AlignedPhone(phone.phone, frame(phone.start), frame(phone.end)) for phone in phones]
