"""The commands `fsachain kaldi ...`: files of Kaldi in, files for Kaldi out."""

from __future__ import annotations

from pathlib import Path

import click

from fsachain.cli.options import (
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    cache_option,
    commands_option,
    jobs_option,
    lang_option,
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
def import_den(den: Path, out: Path, lang: Path) -> None:
    """Take over a denominator graph.

    In: DEN, den.fst of a Kaldi model.

    Out: folder OUT with den.fst and normalization.fst, as `fsachain den-graph` makes it.
    """
    from fsachain.cli.steps.kaldi import import_denominator
    from fsachain.cli.steps.lang import load_lang

    click.echo(f"{import_denominator(load_lang(lang), den, out)} -> {out}")


@kaldi.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_FOLDER)
@click.argument("out", type=OUTPUT)
@cache_option
@workers_option
@commands_option
def outputs(
    model: Path, data: Path, out: Path, cache: Path | None, workers: int, allow_commands: bool
) -> None:
    """Write network outputs for Kaldi's own decoders, such as latgen-faster-mapped.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.

    Out: OUT, a matrix archive (.ark), and an scp file beside it.
    """
    from fsachain.cli.steps.decoding import network_outputs
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.data.kaldi_dir import DataDir
    from fsachain.kaldi.writing import write_matrices

    utterances = DataDir.read(data, allow_commands=allow_commands)
    found = network_outputs(AcousticModel.load(model), utterances, cache, workers)
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


@kaldi.command()
@click.argument("examples")
@click.argument("matrices")
@click.argument("den", type=INPUT_FILE)
@click.option("--leaky-hmm-coefficient", type=float, default=0.1, show_default=True, help="As in training.")
def objf(examples: str, matrices: str, den: Path, leaky_hmm_coefficient: float) -> None:
    """Compute the objective of chain examples, to be compared with a Kaldi log.

    In: EXAMPLES, cegs.*.ark of an end-to-end recipe; MATRICES, the network's outputs for them; DEN, den.fst.

    Out: a line for each example and one for all, printed.
    """
    from fsachain.cli.steps.kaldi import TITLES, example_objfs

    click.echo(TITLES)
    total = frames = 0.0
    for found in example_objfs(examples, matrices, den, leaky_hmm_coefficient):
        click.echo(str(found))
        if found.ok:
            total += found.weight * (found.num_log_prob - found.den_log_prob)
            frames += found.weight * found.num_frames
    click.echo(
        f"all: objf per frame {total / frames:.6g} over {frames:g} weighted frames" if frames else "all: none"
    )
