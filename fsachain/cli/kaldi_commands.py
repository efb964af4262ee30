"""The commands `fsachain kaldi ...`: files of Kaldi in, files for Kaldi out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from fsachain.cli.kaldi_file_commands import KALDI_FILE_COMMANDS
from fsachain.cli.kaldi_parity import objf
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
    from fsachain.cli.steps.kaldi import import_lang as make

    made = make(lexicon, model_dir, out, silence=silence, silence_prob=silence_prob, oov=oov)
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
    from fsachain.cli.steps.kaldi import import_denominator
    from fsachain.cli.steps.lang import load_lang

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
    from fsachain.cli.steps.bad_data import bad_data_of, faults_beside
    from fsachain.cli.steps.decoding import network_outputs
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.kaldi.writing import write_matrices

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
    from fsachain.cli.steps.kaldi import decode_archive as run

    count = run(matrices, hclg, model, words, out, acoustic_scale=acoustic_scale, num_workers=jobs)
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
    from fsachain.cli.steps.bad_data import bad_data_of, faults_beside
    from fsachain.cli.steps.graphs import load_normalization
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.lattices import make_lattice_supervision

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
