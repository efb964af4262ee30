"""The commands that use a trained model on recordings: transcribe, align-long, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fsachain.cli.options import INPUT_FILE, INPUT_FOLDER, OUTPUT

_lang_option = click.option(
    "--lang",
    type=INPUT_FOLDER,
    help="Folder made by `fsachain lang`; by default `lang` in the model's folder or beside it.",
)
_RECORDING = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("files", type=_RECORDING, nargs=-1, required=True)
@_lang_option
@click.option("--arpa", type=INPUT_FILE, help="Word language model, as for `fsachain decode`.")
@click.option(
    "--grammar",
    type=(INPUT_FILE, INPUT_FILE),
    metavar="G WORDS",
    help="The same as G.fst, and its words.txt.",
)
@click.option("--lm-weight", type=float, default=1.0, show_default=True)
@click.option("--word-insertion-penalty", type=float, default=0.0, show_default=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "text", "ctm", "json"]),
    default="table",
    show_default=True,
    help="For people; Kaldi's text; CTM with confidences; a line of JSON for each file.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=1.0),
    default=30.0,
    show_default=True,
    help="Longer recordings are cut at pauses into pieces of at most so many seconds.",
)
def transcribe(model: Path, files: tuple[Path, ...], **arguments: Any) -> None:
    """Recognise recordings, and print their words with times and confidences.

    In: MODEL, made by `fsachain train`, and FILES, recordings in any format, sampling rate and number of channels that
    soundfile reads (WAV, FLAC, Ogg, MP3, ...).

    Out: the words, printed. The confidence of a word is its posterior among the paths of the decoder's lattice. Files that
    cannot be read are named on the standard error, and the exit status is 1.
    """
    from fsachain.cli.progress import counter
    from fsachain.cli.steps.decoding import DecodingGraphs
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.cli.steps.transcribe import lang_folder, make_transcriber, transcribe_file
    from fsachain.errors import DataError

    acoustic = AcousticModel.load(model)
    graphs = DecodingGraphs(
        load_lang(lang_folder(model, arguments["lang"])), arguments["arpa"], arguments["grammar"]
    )
    recogniser = make_transcriber(
        acoustic, graphs, arguments["lm_weight"], arguments["word_insertion_penalty"]
    )
    refused = 0
    for path in files:
        try:
            with counter(path.name) as update:
                found = transcribe_file(
                    acoustic, recogniser, path, max_seconds=arguments["max_seconds"], progress=update
                )
        except DataError as error:
            click.echo(f"error: {error}", err=True)
            refused += 1
            continue
        text = found.to_text(arguments["form"])
        if text:
            click.echo(text)
    if refused:
        raise DataError(f"{refused} of {len(files)} recordings could not be transcribed")


@click.command("align-long")
@click.argument("model", type=INPUT_FILE)
@click.argument("recording", type=INPUT_FILE)
@click.argument("text", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@_lang_option
@click.option("--textgrid", type=OUTPUT, help="File for Praat.")
@click.option(
    "--window",
    type=click.FloatRange(min=1.0),
    default=40.0,
    show_default=True,
    help="Seconds searched at once: memory and time grow with it.",
)
@click.option(
    "--lookahead",
    type=click.FloatRange(min=0.1),
    default=12.0,
    show_default=True,
    help="Seconds at the end of each window that are searched again in the next.",
)
@click.option(
    "--filler-cost",
    type=click.FloatRange(min=0.0),
    default=1.0,
    show_default=True,
    help="Of an output frame between words that is neither silence nor text; inf: there are none.",
)
def align_long(model: Path, recording: Path, text: Path, out: Path, **arguments: Any) -> None:
    """Find when each word of a long recording is said, in memory that does not grow with it.

    In: MODEL, made by `fsachain train`; RECORDING, whatever soundfile reads; TEXT, its words in order, spelt as in the
    lexicon, separated by white space.

    Out: folder OUT with words.ctm and phones.ctm (recording channel start duration label, in seconds), and fit.txt (start,
    fit and label of each word). The fit is how far the word's scores are below the best ones, per frame: where it is far
    below the others, recording and text differ.
    """
    from fsachain.cli.progress import counter
    from fsachain.cli.steps.align_long import align_long as run
    from fsachain.cli.steps.lang import load_lang
    from fsachain.cli.steps.model import AcousticModel
    from fsachain.cli.steps.transcribe import lang_folder

    with counter("aligning") as update:
        summary = run(
            AcousticModel.load(model),
            load_lang(lang_folder(model, arguments["lang"])),
            recording,
            text,
            out,
            window_seconds=arguments["window"],
            lookahead_seconds=arguments["lookahead"],
            filler_cost=arguments["filler_cost"],
            textgrid=arguments["textgrid"],
            progress=update,
        )
    click.echo(f"{summary}\n-> {out}")


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
def export(model: Path, out: Path) -> None:
    """Write a model as an ONNX file, checked against PyTorch.

    In: MODEL, made by `fsachain train`.

    Out: OUT. Inputs: `features` [N, T, F], Kaldi's features without normalisation, and `lengths` [N]; outputs: `nnet_output`
    [N, ceil(T / s), P] and `nnet_lengths` [N]. CMVN and subsampling are inside; the metadata says how the features are made.
    """
    from fsachain.cli.steps.export import export_model
    from fsachain.cli.steps.model import AcousticModel

    click.echo(f"{export_model(AcousticModel.load(model), out)} -> {out}")


USE_COMMANDS = (transcribe, align_long, export)
