"""Commands on graphs: tie a tree, compare, walk, draw, make smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
    workers_option,
)

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
    from fsachain.cli.steps.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.tree import make_tied_tree

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
    from fsachain.cli.steps.inspect import read_graph
    from fsachain.graph.random_paths import equivalent as compare

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
    from fsachain.cli.steps.inspect import read_graph
    from fsachain.graph.random_paths import SequenceScorer, random_paths

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
    from fsachain.cli.steps.inspect import read_graph
    from fsachain.graph.dot import to_dot

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
    from fsachain.cli.steps.inspect import read_graph
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
    from fsachain.cli.steps.inspect import read_graph
    from fsachain.graph import algorithms

    _write(algorithms.minimize(read_graph(graph), semiring=semiring), out)


def _write(fsa: object, out: Path) -> None:
    from fsachain.fsa import Fsa

    assert isinstance(fsa, Fsa)
    out.parent.mkdir(parents=True, exist_ok=True)
    fsa.write(out)
    click.echo(f"{fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


GRAPH_COMMANDS = (equivalent, paths, dot, determinize, minimize)
