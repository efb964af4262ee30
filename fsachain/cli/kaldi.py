"""The commands `fsachain kaldi ...`: files of Kaldi in, files for Kaldi out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from fsachain.cli.decoding import network_outputs
from fsachain.cli.graphs import Merge, write_denominator
from fsachain.cli.kaldi_inspect import objf, show
from fsachain.cli.lang import Lang, lang_option
from fsachain.cli.language_models import PhoneLmSummary, write_fsa
from fsachain.cli.model import AcousticModel
from fsachain.cli.options import INPUT_DATA, INPUT_FILE, INPUT_FOLDER, OUTPUT, jobs_option, merge_option
from fsachain.cli.resources import Resources, with_resources
from fsachain.cli.supervision import supervise_by_lattices
from fsachain.data.kaldi_examples import read_examples
from fsachain.decode.ctm import CtmEntry, write_ctm
from fsachain.decode.decoder import decode
from fsachain.decode.wer import write_text
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, save_chunks
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.decoding import pdf_graph
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import read_transition_model
from fsachain.kaldi.tree import read_context_tree
from fsachain.kaldi.values import read_alignment, read_matrix, write_matrices
from fsachain.openfst import read_fst

MODELS = ("0.trans_mdl", "final.mdl")


@click.group()
def kaldi() -> None:
    """Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide."""


for command in (objf, show, supervise_by_lattices):
    kaldi.add_command(command)


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
    for name in ("tree", "phones.txt"):
        if not (model_dir / name).is_file():
            raise DataError(f"{model_dir}: no {name}; expected tree, phones.txt and {' or '.join(MODELS)}")
    model = next((model_dir / name for name in MODELS if (model_dir / name).is_file()), None)
    if model is None:
        raise DataError(f"{model_dir}: no {' or '.join(MODELS)}")
    phones = read_phones(model_dir / "phones.txt")
    words = Lexicon.read(lexicon, silence=silence, silence_prob=silence_prob, oov=oov, phones=phones)
    made = Lang(words, read_context_tree(model_dir / "tree", model, phones))
    made.save(out)
    click.echo(f"{made} -> {out}")


@kaldi.command("den")
@click.argument("den", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@merge_option
def import_den(den: Path, out: Path, lang: Lang, merge: Merge) -> None:
    """Take over a denominator graph.

    In: DEN, den.fst of a Kaldi model.

    Out: folder OUT with den.fst and normalization.fst, as `fsachain den-graph` makes it.
    """
    denominator = DenominatorGraph(Fsa.read(den), lang.tree.num_pdfs)
    write_denominator(lang, denominator, out, merge)  # the normalization is computed, not read
    click.echo(f"{denominator} -> {out}")


@kaldi.command("phone-lm")
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
    sequences = [ids.tolist() for _, ids in read_table(phones, read_alignment)]
    if not sequences:
        raise DataError(f"{phones}: no sequence of phones")
    fsa = estimate_phone_lm(
        sequences,
        ngram_order=ngram_order,
        num_extra_lm_states=num_extra_lm_states,
        no_prune_ngram_order=no_prune_ngram_order,
    )
    click.echo(f"{PhoneLmSummary(write_fsa(out, fsa), {})} -> {out}")


@kaldi.command()
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
    if not 0 < frame_shift < float("inf"):
        raise ConfigError(f"frame_shift = {frame_shift}: expected seconds above 0")
    transitions, names = read_transition_model(model), read_phones(phones)
    if transitions.num_phones != len(names):
        raise DataError(f"{model} has {transitions.num_phones} phones; expected {len(names)}, as in {phones}")
    entries: list[CtmEntry] = []
    seen: set[str] = set()
    for table in alignments:
        for name, alignment in read_table(table, read_alignment):
            if name in seen:
                raise DataError(f"{table}: the alignment of {name!r} is in another table too")
            seen.add(name)
            try:
                spans = transitions.phones(alignment)
            except DataError as error:
                raise DataError(f"{table}: utterance {name!r}: {error}") from error
            entries += [
                CtmEntry(name, frame_shift * first, frame_shift * (end - first), names[phone - 1])
                for phone, first, end in spans
            ]
    write_ctm(out, entries)
    click.echo(f"{len(seen)} utterances -> {out}")


@dataclass(frozen=True)
class ExampleSummary:
    num_examples: int
    num_features: int
    num_pdfs: int
    subsampling: int
    num_speaker_vectors: int

    def __str__(self) -> str:
        text = (
            f"{self.num_examples} examples of {self.num_features} features and {self.num_pdfs} pdfs, one output for "
            f"{self.subsampling} frames"
        )
        if self.num_speaker_vectors:
            text += f"; {self.num_speaker_vectors} speaker vectors left out, our networks take none"
        return text


@kaldi.command()
@click.argument("out", type=OUTPUT)
@click.argument("examples", nargs=-1, required=True)
def egs(out: Path, examples: tuple[str, ...]) -> None:
    """Take over chain examples, end-to-end or made from alignments, merged or not.

    In: EXAMPLES, cegs.*.ark.

    Out: folder OUT with data, a data directory of features, and chunks.npz: what `fsachain train` takes as data and
    numerators, with `features: {kind: archive, num_columns: ...}` in its configuration.
    """
    features: dict[str, np.ndarray] = {}
    chunks: dict[str, list[list[Chunk]]] = {}
    kinds: set[tuple[int, int, int]] = set()
    speakers = 0
    for table in examples:
        for found in read_examples(table):
            name, matrix, window = found.example.id, found.example.features, found.example.window
            if name in features:
                raise DataError(f"{table}: the example {name!r} is in another table too")
            kinds.add((matrix.shape[1], found.num_pdfs, found.subsampling))
            if len(kinds) > 1:
                raise DataError(
                    f"{table}: example {name!r}: examples have (features, pdfs, subsampling) of {sorted(kinds)}; expected "
                    "one kind"
                )
            assert window is not None
            # The graphs that Kaldi made, normalization included; weights of examples become factors on derivatives.
            chunk = Chunk(
                name,
                window.first,
                window.first + window.length,
                -(-found.example.num_frames // found.subsampling),
                found.numerator,
                np.float32(found.weight) * window.frame_weights,
            )
            features[name], chunks[name] = matrix, [[chunk]]
            speakers += found.speaker_vector is not None
    if not features:
        raise DataError(f"{', '.join(examples)}: no example")
    data = (out / "data").resolve()
    data.mkdir(parents=True, exist_ok=True)
    write_matrices(data / "feats.ark", features)
    (data / "text").write_text("".join(f"{name}\n" for name in features), encoding="utf-8")
    save_chunks(out / "chunks.npz", chunks)
    click.echo(f"{ExampleSummary(len(features), *kinds.pop(), speakers)} -> {out}")


@kaldi.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@with_resources("cache", "workers", "bad_data", beside=True)
def outputs(model: Path, data: Path, out: Path, resources: Resources) -> None:
    """Write network outputs for Kaldi's own decoders, such as latgen-faster-mapped.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.

    Out: OUT, a matrix archive (.ark), and an scp file beside it.
    """
    _, found = network_outputs(AcousticModel.load(model), resources.read(data), resources)
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
    graph = pdf_graph(read_value(hclg, read_fst), read_transition_model(model)).to_openfst()
    scores = {name: acoustic_scale * matrix for name, matrix in read_table(matrices, read_matrix)}
    found = decode(scores, graph, read_symbols(words), num_workers=jobs)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "hyp.txt", {name: hypothesis.words for name, hypothesis in found.items()})
    click.echo(f"{len(found)} utterances -> {out}")
