"""The commands that change nothing: `score` compares two transcripts, `info` describes a file."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import click

from fsachain.cli.options import INPUT_FILE, INPUT_PATH, OUTPUT
from fsachain.data.cuts import holds_cuts
from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.algorithms import graph_facts, transducer_facts
from fsachain.graph.shards import SUFFIX
from fsachain.kaldi.archive import read_value
from fsachain.openfst import MAGIC, read_fst
from fsachain.stream import open_file


@click.command()
@click.argument("reference", type=INPUT_FILE)
@click.argument("hypothesis", type=INPUT_FILE)
@click.option("--utt2spk", type=INPUT_FILE, help="Kaldi's table of speakers, for a table of theirs.")
@click.option("--out", type=OUTPUT, help="Folder for wer.txt and wer.json.")
def score(reference: Path, hypothesis: Path, utt2spk: Path | None, out: Path | None) -> None:
    """Compare two transcripts.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...).

    Out: the word error rate, the table of speakers and every wrong utterance, printed;
    with --out also as files.
    """
    from fsachain.decode.wer import read_text
    from fsachain.decode.wer import score as score_words
    from fsachain.errors import DataError

    speakers = None
    if utt2spk is not None:
        speakers = {name: words[0] for name, words in read_text(utt2spk).items() if words}
    references = read_text(reference)
    if not references:
        raise DataError(f"{reference}: no utterances; expected lines of an utterance and its words")
    report = score_words(references, read_text(hypothesis), speakers=speakers)
    if out is not None:
        report.write(out)
    click.echo(report.to_text(), nl=False)


@click.command()
@click.argument("path", type=INPUT_PATH)
def info(path: Path) -> None:
    """Describe a file: OpenFst graph, numerators, compiled tables, model, language folder or data directory.

    In: PATH.

    Out: a few lines, printed. Of a graph: states, arcs, pdfs, self-loops, cycles, final states, shortest path, sums
    of its states, memory and work per frame.
    """
    click.echo(describe_path(path))


# A few lines about any file or folder that the commands make.

GRAPHS = (".fst", ".txt")
_SAFETENSORS = ".safetensors"


def describe_path(path: Path) -> str:
    """What the file or folder is and how large, in a few lines.

    Raises:
        FsachainError: it is of no known kind, or damaged.
    """
    if path.suffix == SUFFIX or (path.is_dir() and any(path.glob(f"*{SUFFIX}"))):
        return describe_shards(path)
    if holds_cuts(path):
        return describe_data(path)
    if path.is_dir():
        return describe_folder(path)
    if path.suffix in GRAPHS:
        return describe_graph(path)
    if path.suffix == ".npz":
        from fsachain.graph.chunks import holds_chunks

        return describe_chunks(path) if holds_chunks(path) else describe_numerators(path)
    if path.suffix == _SAFETENSORS:
        return describe_model(path)
    raise DataError(
        f"{path}: expected a file that ends in {', '.join(GRAPHS)}, .npz, {SUFFIX} or {_SAFETENSORS}, or a folder; other "
        "files of Kaldi are shown by `fsachain kaldi show`"
    )


def read_graph(path: Path) -> Fsa:
    """An acceptor over pdfs from an OpenFst file or AT&T text, told apart by content.

    Raises:
        GraphError: neither, or another kind of FST.
    """
    return Fsa.read(path) if open_file(path).peek(len(MAGIC)) == MAGIC else Fsa.from_text(path)


def describe_graph(path: Path) -> str:
    """Facts about an acceptor over pdfs, or the sizes of another FST.

    Raises:
        FsachainError: no FST.
    """
    graph = read_value(path, read_fst)
    try:
        return str(graph_facts(read_graph(path)))
    except GraphError:
        return str(transducer_facts(graph))


def describe_folder(path: Path) -> str:
    """A language folder or a data directory."""
    from fsachain.cli.lang import LEXICON, load_lang

    if (path / LEXICON).is_file():
        lang = load_lang(path)
        lexicon, tree = lang.lexicon, lang.tree
        num_pronunciations = sum(len(entries) for entries in lexicon.pronunciations)
        return "\n".join(
            [
                f"language folder: {len(lexicon.words)} words, {num_pronunciations} pronunciations",
                f"phones: {len(lexicon.phones)}, silence {lexicon.silence} ({lexicon.silence_prob:g})",
                f"pdfs: {tree.num_pdfs}, context of {tree.context_width} phones",
            ]
        )
    if not (path / "text").is_file():
        raise DataError(f"{path}: expected a language folder ({LEXICON}) or a data directory (text, wav.scp)")
    return describe_data(path)


def describe_data(path: Path) -> str:
    """Sizes of a data set."""
    data, faults = DataDir.check(path, allow_commands=True)  # nothing is run: only the tables are read
    num_words = sum(len(utterance.words) for utterance in data)
    speakers = {utterance.speaker for utterance in data}
    kind = "cuts of lhotse" if holds_cuts(path) else "data directory"
    head = f"{kind}: {len(data)} utterances, {num_words} words, {len(speakers)} speakers"
    return f"{head}; {len(faults)} faults, see `fsachain validate`" if faults else head


def describe_shards(path: Path) -> str:
    """Number and size of the compiled tables of one folder or file."""
    from fsachain.graph.shards import TableShards
    from fsachain.table_file import TableFile

    files = TableShards(path).files if path.is_dir() else [TableFile(path)]
    num_bytes = sum(Path(file.path).stat().st_size for file in files)
    excluded = sum(len(file.facts.get("excluded", ())) for file in files)
    return (
        f"compiled tables: {sum(map(len, files))} in {len(files)} files, {num_bytes:,} bytes, {excluded} utterances "
        "excluded"
    )


def describe_numerators(path: Path) -> str:
    """Number and size of the numerators in one file."""
    from fsachain.graph.numerator import load_numerators

    numerators = load_numerators(path)
    words = sum(len(numerator.words) for numerator in numerators.values())
    arcs = [numerator.fsa.num_arcs for numerator in numerators.values()]
    return f"numerators: {len(arcs)} utterances, {words} words, {sum(arcs)} arcs, at most {max(arcs, default=0)} in one"


def describe_chunks(path: Path) -> str:
    """Number and size of the chunks in one file."""
    from fsachain.graph.chunks import load_chunks

    utterances = load_chunks(path)
    copies, frames, arcs = 0, [], 0
    for lists in utterances.values():
        copies = max(copies, len(lists))
        for chunk in chain.from_iterable(lists):
            frames.append(chunk.end - chunk.start)
            arcs += chunk.fsa.num_arcs
    return "\n".join(
        [
            f"chunks: {len(frames)} of {len(utterances)} utterances in {copies} copies",
            f"at most {max(frames, default=0)} output frames in one, {sum(frames)} in all, {arcs} arcs",
        ]
    )


def describe_model(path: Path) -> str:
    """Size and inputs of a trained model."""
    from fsachain.cli.model import AcousticModel
    from fsachain.nn.network import num_parameters

    model = AcousticModel.load(path)
    network, features = model.network, model.experiment.features
    return "\n".join(
        [
            f"model: {num_parameters(network)} parameters, {network.num_pdfs} pdfs, {model.kind}",
            f"input: {features.num_features} {features.kind} features at {features.sample_rate} Hz, "
            f"normalised per {model.cmvn.config.scope}",
            f"output: one frame every {1000 * model.timing.frame_seconds:g} ms",
        ]
    )
