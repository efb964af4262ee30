"""The commands that use a trained model on recordings: transcribe, align-long, export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.cli.decoding import DecodingGraphs, check_lang
from fsachain.cli.lang import Lang
from fsachain.cli.model import AcousticModel
from fsachain.cli.options import INPUT_FILE, INPUT_FOLDER, OUTPUT
from fsachain.data.cmvn import SlidingCmvn
from fsachain.data.features import FeatureStream
from fsachain.data.recording import Recording
from fsachain.decode.align import Alignment, Float32Array, FrameTiming, LongAligner, alignment_of
from fsachain.decode.ctm import CtmEntry, write_ctm, write_textgrid
from fsachain.decode.decoder import Decoder
from fsachain.decode.transcribe import PauseCutter, RecognisedWord, Transcriber, silence_pdfs
from fsachain.errors import DataError
from fsachain.files import text_lines
from fsachain.graph.numerator import build_numerator
from fsachain.nn.export import export_onnx
from fsachain.nn.streaming import StreamingModel

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
    from fsachain.cli.decoding import DecodingGraphs
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel
    from fsachain.cli.options import counter
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
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel
    from fsachain.cli.options import counter

    with counter("aligning") as update:
        summary = align_long_align_long(
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
    from fsachain.cli.model import AcousticModel

    click.echo(f"{export_model(AcousticModel.load(model), out)} -> {out}")


USE_COMMANDS = (transcribe, align_long, export)


# From a recording to network outputs, block by block: what transcribing and aligning long recordings begin
# with.

Features = NDArray[np.float32]
CMVN_SECONDS = 30.0
CONTEXT_SECONDS = 15.0  # to each side, of networks that see whole utterances


def open_recording(model: AcousticModel, path: Path) -> Recording:
    """A recording at the model's sampling rate.

    Raises:
        DataError: no such file, or none that soundfile reads.
    """
    return Recording(path, model.experiment.features.sample_rate)


def stream_outputs(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    """Network outputs [T', P] of a recording, block by block: together those of the whole, in the memory of a block.

    Where the configuration normalises by utterance or speaker, each frame is normalised by the `CMVN_SECONDS` around it: a
    recording that is no longer than that, as an utterance. A network that sees whole utterances is given the
    `CONTEXT_SECONDS` before and behind each block: a recording that is no longer than that, as a whole.

    Raises:
        ConfigError: the model takes features from archives.
        DataError: a damaged recording.
    """
    context = model.network.context
    if context is None:
        frames = max(1, round(CONTEXT_SECONDS / _frame_shift(model)))
        context = (frames, frames)
    network = StreamingModel(model.network, context)
    for features in _normalised(model, _features(model, recording)):
        yield network.accept(features).numpy()
    yield network.finish().numpy()


def _normalised(model: AcousticModel, blocks: Iterator[Features]) -> Iterator[Features]:
    config = model.cmvn.config
    if config.scope in ("none", "global"):
        for features in blocks:
            yield model.cmvn.apply(features, "")
        return
    sliding = SlidingCmvn(config.moments, max(1, round(CMVN_SECONDS / _frame_shift(model))))
    for features in blocks:
        yield sliding.accept(features)
    yield sliding.finish()


def _features(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    stream = FeatureStream(model.experiment.features)
    for samples in recording.blocks():
        yield stream.accept(samples)
    yield stream.finish()


def _frame_shift(model: AcousticModel) -> float:
    """Seconds from one frame of the features to the next."""
    return model.experiment.features.frame_shift_ms / 1000.0


# From recordings to words with times and confidences.

FORMATS = ("table", "text", "ctm", "json")


@dataclass(frozen=True)
class Transcript:
    """What was heard in a recording of so many seconds."""

    path: Path
    seconds: float
    words: tuple[RecognisedWord, ...]

    def to_text(self, form: str) -> str:
        """The transcript as "table" (for people), "text" (one line as in Kaldi's `text`), "ctm" or "json" (one line)."""
        return {"table": self._table, "text": self._text, "ctm": self._ctm, "json": self._json}[form]()

    def _table(self) -> str:
        lines = [f"{self.path}: {self.seconds:.2f} s, {len(self.words)} words"]
        if self.words:
            lines.append("    start       end  confidence  word")
        for word in self.words:
            end = word.start + word.duration
            lines.append(f"{word.start:9.2f} {end:9.2f} {word.confidence:11.3f}  {word.word}")
        return "\n".join(lines)

    def _text(self) -> str:
        return " ".join([self._name(), *(word.word for word in self.words)])

    def _ctm(self) -> str:
        return "\n".join(
            f"{self._name()} 1 {word.start:.3f} {word.duration:.3f} {word.word} {word.confidence:.3f}"
            for word in self.words
        )

    def _json(self) -> str:
        words = [
            {
                "word": word.word,
                "start": round(word.start, 3),
                "end": round(word.start + word.duration, 3),
                "confidence": round(word.confidence, 4),
            }
            for word in self.words
        ]
        record = {"file": str(self.path), "seconds": round(self.seconds, 3), "words": words}
        return json.dumps(record, ensure_ascii=False)

    def _name(self) -> str:
        """The file's name without its ending, as an utterance id: no white space."""
        return utterance_name(self.path)


def utterance_name(path: Path) -> str:
    """The name of a file without its ending; white space becomes "_"."""
    return "_".join(path.stem.split()) or "recording"


def make_transcriber(
    model: AcousticModel, graphs: DecodingGraphs, lm_weight: float, word_insertion_penalty: float
) -> Transcriber:
    """What recognises speech with this model, lexicon and grammar.

    Raises:
        DataError: a language folder of another width than the model's.
    """
    check_lang(model, graphs.lang)
    lexicon, tree = graphs.lang.lexicon, graphs.lang.tree
    graph = graphs.build(lm_weight, word_insertion_penalty)
    decoder = Decoder(graph, lexicon.words, model.experiment.decoding.search)
    return Transcriber(decoder, lexicon, tree, model.timing)


def transcribe_file(
    model: AcousticModel,
    transcriber: Transcriber,
    path: Path,
    *,
    max_seconds: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Transcript:
    """Recognise a recording of any length, rate and format that soundfile reads.

    Args:
        model: gives the network outputs.
        transcriber: made by `make_transcriber` for the same model.
        path: of the recording.
        max_seconds: a longer recording is cut at pauses into pieces of at most so many seconds, each recognised by itself.
        progress: called with (seconds done, seconds in all).

    Raises:
        DataError: the recording cannot be read.
        ConfigError: max_seconds is less than two output frames, or the model takes features from archives.
    """
    recording = open_recording(model, path)
    max_frames = int(max_seconds / model.timing.frame_seconds)
    cutter = PauseCutter(silence_pdfs(transcriber.lexicon, transcriber.tree), max_frames)
    words: list[RecognisedWord] = []
    done = 0
    for scores in stream_outputs(model, recording):
        for piece in cutter.accept(scores):
            words += transcriber.recognise(piece.scores, first_frame=piece.first_frame, name=str(path))
        done += len(scores)
        if progress is not None:
            progress(round(done * model.timing.frame_seconds), round(recording.seconds))
    for piece in cutter.finish():
        words += transcriber.recognise(piece.scores, first_frame=piece.first_frame, name=str(path))
    return Transcript(path, recording.seconds, tuple(words))


def lang_folder(model: Path, given: Path | None) -> Path:
    """The language folder: the one given, or `lang` in the model's folder or beside it."""
    if given is not None:
        return given
    beside: Sequence[Path] = (model.parent / "lang", model.parent.parent / "lang")
    return next((folder for folder in beside if folder.is_dir()), beside[1])


# From a long recording and its text to the time of each word.

LONGEST_TEXT = 1 << 26  # bytes of a line: a text may be all in one
WORST = 5  # words that the summary names
FILLER_COST = 1.0  # well-spoken words lie 0.2 below the best scores, wrong ones 1 to 4


@dataclass(frozen=True)
class LongAlignment:
    """A recording with its text.

    Attributes:
        alignment: the words and phones.
        seconds: of the recording.
        fits: of each word, the mean over its frames of (score of its pdf - best score of the frame): 0 where the network
            hears nothing but this word, and the lower the worse.
    """

    alignment: Alignment
    seconds: float
    fits: tuple[float, ...]

    def __str__(self) -> str:
        words = self.alignment.words
        lines = [f"{self.seconds:.1f} s, {len(words)} words, mean fit {np.mean(self.fits):.2f}; the worst:"]
        for index in np.argsort(self.fits, kind="stable")[:WORST].tolist():
            lines.append(f"  {words[index].start:10.2f} s  {self.fits[index]:8.2f}  {words[index].label}")
        return "\n".join(lines)


def align_long_align_long(
    model: AcousticModel,
    lang: Lang,
    recording_path: Path,
    text_path: Path,
    out: Path,
    *,
    window_seconds: float = 40.0,
    lookahead_seconds: float = 12.0,
    filler_cost: float = FILLER_COST,
    textgrid: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LongAlignment:
    """Align a recording of any length with its text; writes words.ctm, phones.ctm and fit.txt to `out`.

    Args:
        model: gives the network outputs.
        lang: what the model was trained with.
        recording_path: any format and rate that soundfile reads.
        text_path: the words spoken, in order, separated by white space, spelt as in the lexicon.
        out: folder.
        window_seconds: searched at once; see `LongAligner`.
        lookahead_seconds: at the end of each window, searched again in the next.
        filler_cost: for each output frame between words that is neither silence nor text; see `LongAligner`.
        textgrid: file for Praat.
        progress: called with (seconds done, seconds in all).

    Raises:
        DataError: a file cannot be read, the text has no words, or cannot be said in so short a time.
        GraphError: words that the lexicon refuses.
        ConfigError: window or lookahead out of range.
    """
    check_lang(model, lang)
    recording = open_recording(model, recording_path)
    name = utterance_name(recording_path)
    frame = model.timing.frame_seconds
    aligner = LongAligner(
        build_numerator(read_words(text_path), lang.lexicon, lang.tree, name=name),
        window=round(window_seconds / frame),
        lookahead=round(lookahead_seconds / frame),
        filler_cost=filler_cost,
        name=name,
    )
    done = 0
    for scores in stream_outputs(model, recording):
        aligner.accept(scores)
        done += len(scores)
        if progress is not None:
            progress(round(done * frame), round(recording.seconds))
    arcs, log_prob = aligner.finish()
    found = alignment_of(aligner.numerator, arcs, log_prob, lang.lexicon.phones, model.timing, name)
    write_ctm(out / "words.ctm", found.words)
    write_ctm(out / "phones.ctm", found.phones)
    result = LongAlignment(found, recording.seconds, _fits(found.words, aligner.margins(), model.timing))
    lines = [
        f"{entry.start:.3f} {fit:.3f} {entry.label}\n"
        for entry, fit in zip(found.words, result.fits, strict=True)
    ]
    (out / "fit.txt").write_text("".join(lines), encoding="utf-8")
    if textgrid is not None:
        write_textgrid(textgrid, {"words": found.words, "phones": found.phones}, recording.seconds)
    return result


def read_words(path: Path) -> list[str]:
    """The words of a text file.

    Raises:
        DataError: it cannot be read, or has none.
    """
    words = [word for _, line in text_lines(path, longest=LONGEST_TEXT) for word in line]
    if not words:
        raise DataError(f"{path}: has no words; expected those of the recording")
    return words


def _fits(words: tuple[CtmEntry, ...], margins: Float32Array, timing: FrameTiming) -> tuple[float, ...]:
    first = timing.start_of(0)
    fits = []
    for entry in words:
        begin = round((entry.start - first) / timing.frame_seconds)
        length = max(1, round(entry.duration / timing.frame_seconds))
        fits.append(float(margins[begin : begin + length].mean()))
    return tuple(fits)


# From a model to an ONNX file.


@dataclass(frozen=True)
class ExportSummary:
    """An ONNX file: its size, and how far it is from PyTorch relative to the largest output."""

    num_bytes: int
    difference: float

    def __str__(self) -> str:
        size, apart = f"{self.num_bytes / 1e6:.2f} MB", f"{self.difference:.1e}"
        return f"{size}; onnxruntime and PyTorch differ by {apart} of the largest output"


def export_model(model: AcousticModel, out: Path) -> ExportSummary:
    """Write the model with its CMVN as an ONNX file, checked against PyTorch.

    The metadata has, as JSON, `features` (options of Kaldi's features; samples are 16-bit integers), `cmvn`, `subsampling`
    (input frames per output frame) and `frame_shift_ms`.

    Raises:
        ConfigError, FsachainError, MissingExtraError: see `export_onnx`.
    """
    metadata = {
        "features": asdict(model.experiment.features),
        "cmvn": asdict(model.cmvn.config),
        "subsampling": model.timing.subsampling,
        "frame_shift_ms": model.experiment.features.frame_shift_ms,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    difference = export_onnx(out, model.network, model.cmvn, metadata)
    return ExportSummary(out.stat().st_size, difference)
