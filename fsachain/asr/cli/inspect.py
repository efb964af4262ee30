"""Commands to look at results and graphs: score, info; equivalent, random-paths, dot; determinize and minimize.

What brings PyTorch is imported where it is needed: most of these commands start without it.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import click

from fsachain.asr.cli.options import COUNT, FILE, OUT, PATH, Read, command, option, seed_option
from fsachain.asr.decode.equivalence import Equivalences
from fsachain.asr.decode.nist import FORMATS, Format, read_pair, write_trn
from fsachain.asr.decode.wer import SAMPLES, Costs, WerReport, read_text
from fsachain.asr.decode.wer import score as score_words
from fsachain.asr.kaldi.archive import read_value
from fsachain.errors import DataError, GraphError, but_for, counted
from fsachain.fsa import Fsa
from fsachain.graph import algorithms
from fsachain.graph.lexicon import folded
from fsachain.graph.numerator import load_numerators
from fsachain.graph.shards import SUFFIX, TableShards
from fsachain.graph.supervision import holds_chunks, load_chunks
from fsachain.openfst import MAGIC, read_fst
from fsachain.progress import counter
from fsachain.stream import open_file
from fsachain.table import TableFile

DIFFERENT = 1  # exit status of `equivalent`
GRAPHS = (".fst", ".txt")
SAFETENSORS = ".safetensors"


def read_graph(path: Path) -> Fsa:
    """An acceptor over pdfs from an OpenFst file or AT&T text, told apart by content."""
    return Fsa.read(path) if open_file(path).peek(len(MAGIC)) == MAGIC else Fsa.from_text(path)


GRAPH = Read(read_graph)

speakers_option = option(
    Read(lambda path: {name: words[0] for name, words in read_text(path).items() if words}),
    "Kaldi's table of speakers, for a table of theirs.",
    "--utt2spk",
    "speakers",
)
semiring_option = option(
    click.Choice(["log", "tropical"]),
    "Weights of all paths of a sequence added up, or the best of them.",
    "--semiring",
    required=True,
)
mean_frames_option = option(COUNT, "Length of the paths.", "--mean-frames", default=50)


@command(reference=FILE, hypothesis=FILE)
def score(
    reference: Path,
    hypothesis: Path,
    speakers: dict[str, str] | None = speakers_option,
    out: Path | None = option(OUT, "Folder for wer.txt and wer.json."),
    cer: bool = option(bool, "Count character errors as well; spaces do not count."),
    glm: Equivalences | None = option(
        Read(Equivalences.read),
        "Spellings that count as equal, as in a .glm file of NIST: gonna => going to.",
    ),
    costs: Costs | None = option(
        click.Choice(["kaldi", "sclite"]),
        "kaldi: each error costs 1; sclite: a substitution costs 4, an insertion or a deletion 3. By default kaldi for "
        "two files of Kaldi's, else sclite.",
    ),
    case: str | None = option(
        click.Choice(["exact", "fold"]),
        "fold: words are equal that differ in case alone. By default exact for two files of Kaldi's, else fold.",
    ),
    fragments: bool = option(bool, "th- and -ing match words that begin or end so, as sclite's -F."),
    keep_optional: bool = option(
        bool, "Parentheses around a word mean nothing, as in sclite without -D; else (uh) may be missing."
    ),
    reference_format: Format | None = option(
        click.Choice(FORMATS), "Of REFERENCE; by default what its name ends in, else Kaldi's txt."
    ),
    hypothesis_format: Format | None = option(
        click.Choice(FORMATS), "Of HYPOTHESIS; by default what its name ends in, else Kaldi's txt."
    ),
    nist: bool = option(
        bool, "With --out, write ref.trn and hyp.trn as well: what was compared, for sclite."
    ),
    samples: int = option(
        click.IntRange(1, 10_000_000), "Test sets that the bootstrap draws for the interval.", default=SAMPLES
    ),
    seed: int = seed_option,
) -> None:
    """Compare two transcripts.

    In: REFERENCE and HYPOTHESIS in Kaldi's text format (utterance word ...), or NIST's trn, stm or ctm, by the ends of
    their names. A CTM is cut by the segments of an STM. In NIST's formats, and with --glm, { a / b } leaves a choice and
    (uh) may be missing. The interval is of the bootstrap over speakers where they are known, else over utterances.
    Out: rates, the table of speakers and every wrong utterance, printed; with --out also as files.
    Example: fsachain score test/text decoded/hyp.txt
    """
    if nist and out is None:
        raise click.UsageError("--nist: expected --out as well, the folder for ref.trn and hyp.trn")
    pair = read_pair(
        reference,
        hypothesis,
        reference_format=reference_format,
        hypothesis_format=hypothesis_format,
        fold=case != "exact",
    )
    chosen: dict[str, Any] = {"fragments": fragments, "optional": not keep_optional, "rules": glm}
    chosen |= {} if costs is None else {"costs": costs}
    chosen |= {} if case is None else {"fold_case": case == "fold"}
    how = pair.scoring(**chosen)
    report = score_words(
        pair.references, pair.hypotheses, speakers=speakers or pair.speakers, scoring=how, characters=cer
    )
    text = report.to_text(samples=samples, seed=seed)
    if out is not None:
        report.write(out, samples=samples, seed=seed)
    if nist and out is not None:
        for side, transcripts in (("ref", pair.references), ("hyp", pair.hypotheses)):
            compared = {name: how.prepared(words, side, name) for name, words in transcripts.items()}
            write_trn(out / f"{side}.trn", compared)
    click.echo(text, nl=False)
    wrong = (
        words
        for one in report.utterances
        for words, kind in zip(one.alignment, one.kinds, strict=True)
        if kind == "substitution"
    )
    alike = sum(folded(ref) == folded(hyp) for ref, hyp in wrong)
    if alike:
        click.echo(f"{counted(alike, 'wrong word')} differ in case or Unicode form (NFC, NFD) alone")


def compare(reference: Path, hypothesis: Path, speakers: dict[str, str] | None) -> WerReport:
    """Score two files with the defaults of their formats."""
    pair = read_pair(reference, hypothesis)
    return score_words(
        pair.references, pair.hypotheses, speakers=speakers or pair.speakers, scoring=pair.scoring()
    )


@command(path=PATH)
def info(path: Path) -> None:
    """Describe a file: OpenFst graph, numerators, compiled tables, model, word network, language folder or data directory.

    In: PATH.
    Out: a few lines, printed. Of a graph: states, arcs, pdfs, self-loops, cycles, final states, shortest path, sums
    of its states, memory and work per frame.
    Example: fsachain info model/model.safetensors
    """
    if path.suffix == SUFFIX or (path.is_dir() and any(path.glob(f"*{SUFFIX}"))):
        text = _describe_shards(path)
    elif path.suffix in GRAPHS:
        graph = read_value(path, read_fst)
        try:
            text = str(algorithms.graph_facts(read_graph(path)))
        except GraphError:  # no acceptor over pdfs
            text = algorithms.describe_transducer(graph)
    elif path.suffix == ".npz":
        text = _describe_numerators(path)
    elif path.suffix == SAFETENSORS:
        text = _describe_model(path)
    else:
        text = _describe_folder(path)
    click.echo(text)


def _describe_shards(path: Path) -> str:
    files = TableShards(path).files if path.is_dir() else [TableFile(path)]
    num_bytes = sum(Path(file.path).stat().st_size for file in files)
    excluded = sum(len(file.facts.get("excluded", ())) for file in files)
    sizes = f"{sum(map(len, files))} in {counted(len(files), 'file')}, {counted(num_bytes, 'byte', ',')}"
    return f"compiled tables: {sizes}{but_for(excluded)}"


def _describe_numerators(path: Path) -> str:
    if not holds_chunks(path):
        numerators = load_numerators(path)
        words = sum(len(numerator.words) for numerator in numerators.values())
        arcs = [numerator.fsa.num_arcs for numerator in numerators.values()]
        sizes = (
            f"{counted(words, 'word')}, {counted(sum(arcs), 'arc')}, at most {max(arcs, default=0)} in one"
        )
        return f"numerators: {counted(len(arcs), 'utterance')}, {sizes}"
    utterances = load_chunks(path)
    copies = max((len(lists) for lists in utterances.values()), default=0)
    chunks = [chunk for lists in utterances.values() for chunk in chain.from_iterable(lists)]
    frames = [chunk.end - chunk.start for chunk in chunks]
    num_arcs = sum(chunk.fsa.num_arcs for chunk in chunks)
    return (
        f"{counted(len(frames), 'chunk')} of {counted(len(utterances), 'utterance')}, speeds: {copies}\n"
        f"at most {counted(max(frames, default=0), 'output frame')} in one, {sum(frames)} in all, "
        f"{counted(num_arcs, 'arc')}"
    )


def _describe_model(path: Path) -> str:
    from fsachain.asr.cli.model import WORD_KIND, AcousticModel, load_word_network
    from fsachain.asr.nn.network import num_parameters
    from fsachain.asr.nn.word_network import CONTEXT
    from fsachain.asr.train.checkpoint import load_tensors

    if load_tensors(path)[1].get("kind") == WORD_KIND:
        words = load_word_network(path)
        text = f"{counted(len(words.counts), 'word')} of a text of {sum(words.counts.values())}"
        return (
            f"word network: {counted(num_parameters(words), 'parameter')}, {text}, {len(words.new_words)} that it lacks\n"
            f"reads {CONTEXT} words back, and {counted(len(words.read_letters), 'letter sequence')} of theirs"
        )
    model = AcousticModel.load(path)
    network, features = model.network, model.experiment.features
    return (
        f"model: {counted(num_parameters(network), 'parameter')}, {counted(network.num_pdfs, 'pdf')}, {model.kind}\n"
        f"input: {counted(features.num_features, 'column')} ({features.told}), normalised per {model.cmvn.config.scope}\n"
        f"output: one frame every {1000 * model.timing.frame_seconds:g} ms\n"
        f"language: {model.lang or 'none, an earlier version wrote the file'}"
    )


def _describe_folder(path: Path) -> str:
    from fsachain.asr.cli.lang import LEXICON, load_lang
    from fsachain.asr.data.cuts import holds_cuts
    from fsachain.asr.data.kaldi_dir import DataDir

    cuts = holds_cuts(path)
    if not cuts and not path.is_dir():
        raise DataError(
            f"{path}: expected a file that ends in {', '.join(GRAPHS)}, .npz, {SUFFIX} or {SAFETENSORS}, or a folder; other "
            "files of Kaldi are shown by `fsachain kaldi show`"
        )
    if not cuts and (path / LEXICON).is_file():
        lang = load_lang(path)
        lexicon, tree = lang.lexicon, lang.tree
        ways = sum(map(len, lexicon.pronunciations))
        return (
            f"language folder: {counted(len(lexicon.words), 'word')}, {counted(ways, 'pronunciation')}\n"
            f"phones: {len(lexicon.phones)}, silence {lexicon.silence} ({lexicon.silence_prob:g})\n"
            f"pdfs: {tree.num_pdfs}, context of {counted(tree.context_width, 'phone')}"
        )
    if not cuts and not (path / "text").is_file():
        raise DataError(f"{path}: expected a language folder ({LEXICON}) or a data directory (text, wav.scp)")
    data, faults = DataDir.check(path, allow_commands=True)  # nothing is run: only the tables are read
    num_words = sum(len(utterance.words) for utterance in data)
    speakers = {utterance.speaker for utterance in data}
    kind = "cuts of lhotse" if cuts else "data directory"
    head = f"{kind}: {counted(len(data), 'utterance')}, {counted(num_words, 'word')}, {counted(len(speakers), 'speaker')}"
    return f"{head}; {counted(len(faults), 'fault')}, see `fsachain validate`" if faults else head


@command(first=GRAPH, second=GRAPH)
@option(COUNT, "Paths drawn from each.", "--count", default=100)
@mean_frames_option
@option(float, "Largest difference, relative to max(1, |score|).", "--tolerance", default=1e-4)
@semiring_option
@seed_option
@click.pass_context
def equivalent(context: click.Context, first: Fsa, second: Fsa, **options: Any) -> None:
    """Compare two graphs by the scores of random sequences that each accepts.

    In: FIRST and SECOND, OpenFst files or AT&T text: acceptors over pdfs.
    Out: the largest difference and where it was found, printed; exit status 1 if it is beyond the tolerance.
    Example: fsachain equivalent graphs/den.fst minimal.fst --semiring log
    """
    with counter("paths"):
        found = algorithms.equivalent(first, second, **options)
    click.echo(str(found))
    context.exit(0 if found else DIFFERENT)


@command(graph=GRAPH)
def random_paths(
    graph: Fsa,
    count: int = option(COUNT, "Paths to draw.", default=10),
    mean_frames: int = mean_frames_option,
    seed: int = seed_option,
) -> None:
    """Draw random accepted paths.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.
    Out: one line for each path, printed: the score of its sequence over all paths, then its pdfs.
    Example: fsachain random-paths graphs/den.fst
    """
    sequence_score = algorithms.SequenceScorer(graph)
    for path in algorithms.random_paths(graph, count, seed=seed, mean_frames=mean_frames):
        pdfs = graph.pdf[path]
        click.echo(f"{sequence_score(pdfs):.6g}\t{' '.join(map(str, pdfs.tolist()))}")


@command(graph=GRAPH)
def dot(graph: Fsa) -> None:
    """Print a small graph for Graphviz: fsachain dot den.fst | dot -Tsvg > den.svg.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.
    Out: Graphviz text, printed.
    Example: fsachain dot graphs/phone_lm.fst
    """
    click.echo(algorithms.to_dot(graph), nl=False)


@command(graph=GRAPH, out=OUT)
def determinize(graph: Fsa, out: Path, semiring: str = semiring_option) -> str:
    """Give each accepted sequence one path, with its score in the semiring.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs, acyclic or deterministic already.
    Out: OUT, an OpenFst acceptor.
    Example: fsachain determinize minimal.fst determinate.fst --semiring log
    """
    with counter("determinize"):
        return _write(algorithms.determinize(graph, semiring=semiring), out)


@command(graph=GRAPH, out=OUT)
def minimize(graph: Fsa, out: Path, semiring: str = semiring_option) -> str:
    """Make a deterministic graph as small as it can be, weights pushed to the start in the semiring.

    In: GRAPH, an OpenFst file or AT&T text: an acceptor over pdfs.
    Out: OUT, an OpenFst acceptor.
    Example: fsachain minimize graphs/den.fst minimal.fst --semiring log
    """
    with counter("minimize"):
        return _write(algorithms.minimize(graph, semiring=semiring), out)


def _write(fsa: Fsa, out: Path) -> str:
    fsa.write(out)
    return f"{counted(fsa.num_states, 'state')}, {counted(fsa.num_arcs, 'arc')}"
