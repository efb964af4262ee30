"""The commands `fsachain kaldi ...`: files of Kaldi in, files for Kaldi out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from fsachain.cli.graphs import write_denominator
from fsachain.cli.lang import Lang, save_lang
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    config_option,
    jobs_option,
    lang_option,
    merge_option,
    workers_option,
)
from fsachain.decode.decoder import decode
from fsachain.decode.wer import write_text
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.decoding import pdf_graph
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import read_transition_model
from fsachain.kaldi.tree import read_context_tree
from fsachain.kaldi.values import read_matrix
from fsachain.openfst import read_fst

# Commands `fsachain kaldi ...` on single files: alignments, phone sequences, examples, anything to be looked
# at.


@click.command("phone-lm")
@click.argument("phones")
@click.argument("out", type=OUTPUT)
@click.option("--ngram-order", type=click.IntRange(min=2), default=4, show_default=True, help="As in Kaldi.")
@click.option(
    "--num-extra-lm-states", type=click.IntRange(min=0), default=1000, show_default=True, help="As in Kaldi."
)
@click.option(
    "--no-prune-ngram-order", type=click.IntRange(min=1), default=3, show_default=True, help="As in Kaldi."
)
def phone_lm(
    phones: str, out: Path, ngram_order: int, num_extra_lm_states: int, no_prune_ngram_order: int
) -> None:
    """Estimate a phone language model as chain-est-phone-lm does, arc for arc.

    In: PHONES, an archive of phone ids by utterance, such as ali-to-phones writes.

    Out: OUT, phone_lm.fst, for `fsachain den-graph`.
    """
    from fsachain.cli.kaldi_corpora import estimate_lm_of_phones

    fsa = estimate_lm_of_phones(
        phones,
        out,
        ngram_order=ngram_order,
        num_extra_lm_states=num_extra_lm_states,
        no_prune_ngram_order=no_prune_ngram_order,
    )
    click.echo(f"phone language model of {fsa.num_states} states, {fsa.num_arcs} arcs -> {out}")


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("phones", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.argument("alignments", nargs=-1, required=True)
@click.option(
    "--frame-shift",
    type=float,
    default=0.01,
    show_default=True,
    help="Seconds for each frame of the alignments: 0.03 for chain models that see one frame in three.",
)
def ctm(model: Path, phones: Path, out: Path, alignments: tuple[str, ...], frame_shift: float) -> None:
    """Write the phones of alignments with their times.

    In: MODEL, the 0.trans_mdl or final.mdl of the alignments; PHONES, its phones.txt; ALIGNMENTS, ali.*.gz.

    Out: OUT, a CTM file, which `fsachain supervise` and `fsachain tie-tree` take.
    """
    from fsachain.cli.kaldi_corpora import alignments_to_ctm

    count = alignments_to_ctm(alignments, model, phones, out, frame_shift=frame_shift)
    click.echo(f"{count} utterances -> {out}")


@click.command()
@click.argument("out", type=OUTPUT)
@click.argument("examples", nargs=-1, required=True)
def egs(out: Path, examples: tuple[str, ...]) -> None:
    """Take over chain examples, end-to-end or made from alignments, merged or not.

    In: EXAMPLES, cegs.*.ark.

    Out: folder OUT with data, a data directory of features, and chunks.npz: what `fsachain train` takes as data and
    numerators, with `features: {kind: archive, num_columns: ...}` in its configuration.
    """
    from fsachain.cli.kaldi_corpora import import_examples

    click.echo(f"{import_examples(examples, out)} -> {out}")


@click.command()
@click.argument(
    "kind",
    type=click.Choice(
        [
            "matrix",
            "vector",
            "alignment",
            "posterior",
            "fst",
            "lattice",
            "example",
            "fst-file",
            "model",
            "topo",
            "tree",
        ]
    ),
)
@click.argument("source")
def show(kind: str, source: str) -> None:
    """Print a file of Kaldi as text.

    In: KIND and SOURCE: an archive or scp file of matrices, vectors, alignments, posteriors, FSTs, lattices or chain
    examples; or one FST, transition model, topo or tree. The lattices are those of lat.*.gz, the model 0.trans_mdl or
    final.mdl.

    Out: text, printed: archives as Kaldi's ark,t:- does, FSTs in AT&T form, of examples a line for each input and output.
    """
    from fsachain.cli.kaldi_values import describe_values

    for line in describe_values(kind, source):
        click.echo(line)


KALDI_FILE_COMMANDS = (phone_lm, ctm, egs, show)


# The command `fsachain kaldi objf`: our objective beside Kaldi's own log.

DIFFERENT = 1  # exit status


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
    from fsachain.cli.kaldi_objf import TITLES, ExampleObjf, Parity, Totals, example_objfs
    from fsachain.kaldi.training_log import read_objective

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


@click.group()
def kaldi() -> None:
    """Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide."""


@kaldi.command("lang")
@click.argument("lexicon", type=INPUT_FILE)
@click.argument("model_dir", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@click.option("--silence", default="SIL", show_default=True, help="Phone that may stand between words.")
@click.option("--silence-prob", type=float, default=0.5, show_default=True, help="At each such place.")
@click.option("--oov", help="Word that stands for all that the lexicon lacks.")
def import_lang(
    lexicon: Path, model_dir: Path, out: Path, silence: str, silence_prob: float, oov: str | None
) -> None:
    """Take over phones, tree and topology of a Kaldi model.

    In: LEXICON, lexicon.txt or lexiconp.txt, and MODEL_DIR with tree, 0.trans_mdl or final.mdl, and phones.txt.

    Out: language folder OUT, for all other commands.
    """
    made = import_lang_kaldi(lexicon, model_dir, out, silence=silence, silence_prob=silence_prob, oov=oov)
    click.echo(f"{made} -> {out}")


@kaldi.command("den")
@click.argument("den", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@merge_option
def import_den(den: Path, out: Path, lang: Path, merge: Literal["sum", "min"]) -> None:
    """Take over a denominator graph.

    In: DEN, den.fst of a Kaldi model.

    Out: folder OUT with den.fst and normalization.fst, as `fsachain den-graph` makes it.
    """
    from fsachain.cli.lang import load_lang

    click.echo(f"{import_denominator(load_lang(lang), den, out, merge)} -> {out}")


@kaldi.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@cache_option
@workers_option
@bad_data_option
@commands_option
def outputs(model: Path, data: Path, out: Path, **arguments: Any) -> None:
    """Write network outputs for Kaldi's own decoders, such as latgen-faster-mapped.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.

    Out: OUT, a matrix archive (.ark), and an scp file beside it.
    """
    from fsachain.cli.bad_data import bad_data_of, faults_beside
    from fsachain.cli.decoding import network_outputs
    from fsachain.cli.model import AcousticModel
    from fsachain.kaldi.values import write_matrices

    acoustic, resources = AcousticModel.load(model), (arguments["cache"], arguments["workers"])
    with bad_data_of(arguments, faults_beside(out)) as bad_data:
        found = network_outputs(acoustic, bad_data.read(data), *resources, bad_data=bad_data)
        out.parent.mkdir(parents=True, exist_ok=True)
        click.echo(f"{write_matrices(out, found)} utterances -> {out}")


@kaldi.command("decode")
@click.argument("matrices")
@click.argument("hclg", type=INPUT_FILE)
@click.argument("model", type=INPUT_FILE)
@click.argument("words", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.option("--acoustic-scale", type=float, default=1.0, show_default=True, help="1.0 for chain models.")
@jobs_option
def decode_archive(
    matrices: str, hclg: Path, model: Path, words: Path, out: Path, acoustic_scale: float, jobs: int
) -> None:
    """Decode network outputs with a graph of Kaldi.

    In: MATRICES, an archive or scp file of network outputs; HCLG, HCLG.fst; MODEL, the 0.trans_mdl or final.mdl it was
    made with; WORDS, words.txt.

    Out: folder OUT with hyp.txt.
    """
    count = decode_archive_kaldi(
        matrices, hclg, model, words, out, acoustic_scale=acoustic_scale, num_workers=jobs
    )
    click.echo(f"{count} utterances -> {out}")


@kaldi.command("supervise")
@click.argument("data", type=INPUT_DATA)
@click.argument("model", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@click.argument("lattices", nargs=-1, required=True)
@lang_option
@click.option("--den", type=INPUT_FOLDER, required=True, help="Folder made by `fsachain den-graph`.")
@click.option(
    "--phones", type=INPUT_FILE, help="phones.txt of MODEL; without it its phones are those of --lang."
)
@click.option(
    "--lm-scale",
    type=click.FloatRange(min=0),
    help="Factor on graph costs, for whole utterances (supervision.chunk_frames: null): 0.5 unless given.",
)
@click.option(
    "--lattice-subsampling",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Input frames per frame of the lattices: 3 for chain models, 1 for GMMs.",
)
@config_option
@cache_option
@workers_option
@jobs_option
@bad_data_option
@commands_option
def supervise_by_lattices(
    data: Path, model: Path, out: Path, lattices: tuple[str, ...], **arguments: Any
) -> None:
    """Make numerators of lattices, for audio without transcripts.

    In: DATA, a Kaldi data directory, whose text may hold names alone; MODEL, the 0.trans_mdl or final.mdl that decoded;
    LATTICES, lat.*.gz; the sections supervision (tolerances, chunks), perturbation, features and network of the
    configuration. Utterances without lattice or path are named and left out.

    Out: OUT, one npz file, which `fsachain train` takes in place of numerators.
    """
    from fsachain.cli.bad_data import bad_data_of, faults_beside
    from fsachain.cli.graphs import load_normalization
    from fsachain.cli.lang import load_lang
    from fsachain.cli.supervision import make_lattice_supervision

    language = load_lang(arguments["lang"])
    with bad_data_of(arguments, faults_beside(out)) as bad_data:
        summary = make_lattice_supervision(
            arguments["experiment"],
            language,
            bad_data.read(data),
            lattices,
            model,
            out,
            load_normalization(language, arguments["den"]),
            phones=arguments["phones"],
            lm_scale=arguments["lm_scale"],
            lattice_subsampling=arguments["lattice_subsampling"],
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            jobs=arguments["jobs"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")


for command in (objf, *KALDI_FILE_COMMANDS):
    kaldi.add_command(command)


# From Kaldi's directories and archives to folders of ours.

MODELS = ("0.trans_mdl", "final.mdl")


def import_lang_kaldi(
    lexicon: Path, model_dir: Path, out: Path, *, silence: str, silence_prob: float, oov: str | None
) -> Lang:
    """A language folder with the phones, tree and topology of a Kaldi model.

    Args:
        lexicon: lexicon.txt or lexiconp.txt, over the phones of the model.
        model_dir: has tree, 0.trans_mdl or final.mdl, and phones.txt.
        out: folder.
        silence: as for `Lexicon.read`.
        silence_prob: as for `Lexicon.read`.
        oov: as for `Lexicon.read`.

    Raises:
        DataError: a file of the model is missing, damaged or of another model.
    """
    for name in ("tree", "phones.txt"):
        if not (model_dir / name).is_file():
            raise DataError(f"{model_dir}: no {name}; expected tree, phones.txt and {' or '.join(MODELS)}")
    model = next((model_dir / name for name in MODELS if (model_dir / name).is_file()), None)
    if model is None:
        raise DataError(f"{model_dir}: no {' or '.join(MODELS)}")
    phones = read_phones(model_dir / "phones.txt")
    words = Lexicon.read(lexicon, silence=silence, silence_prob=silence_prob, oov=oov, phones=phones)
    lang = Lang(words, read_context_tree(model_dir / "tree", model, phones))
    save_lang(lang, out)
    return lang


def import_denominator(
    lang: Lang, den: Path, out: Path, merge: Literal["sum", "min"] = "sum"
) -> DenominatorGraph:
    """A denominator folder from Kaldi's den.fst; the normalization is computed from it, not read.

    Raises:
        GraphError: no acceptor, or with pdfs that the tree of `lang` does not have.
    """
    denominator = DenominatorGraph(Fsa.read(den), lang.tree.num_pdfs)
    write_denominator(lang, denominator, out, merge)
    return denominator


def decode_archive_kaldi(
    outputs: str, hclg: Path, model: Path, words: Path, out: Path, *, acoustic_scale: float, num_workers: int
) -> int:
    """Decode an archive of network outputs with Kaldi's HCLG; writes hyp.txt to `out`; returns the utterances.

    Raises:
        DataError: a file cannot be read, or graph, model and outputs do not fit each other.
    """
    graph = pdf_graph(read_value(hclg, read_fst), read_transition_model(model)).to_openfst()
    matrices = {name: acoustic_scale * matrix for name, matrix in read_table(outputs, read_matrix)}
    found = decode(matrices, graph, read_symbols(words), num_workers=num_workers)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "hyp.txt", {name: hypothesis.words for name, hypothesis in found.items()})
    return len(found)
