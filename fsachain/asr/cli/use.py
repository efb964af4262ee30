"""A trained model on recordings of any length, and as an ONNX file: transcribe, export."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.asr.cli.decoding import DecodingGraphs, search_options
from fsachain.asr.cli.lang import Lang
from fsachain.asr.cli.model import TRAINED, AcousticModel, model_lang_option
from fsachain.asr.cli.options import OUT, command, many, option
from fsachain.asr.data.audio import Recording
from fsachain.asr.data.cmvn import SlidingCmvn
from fsachain.asr.data.features import FeatureStream
from fsachain.asr.decode.ctm import CtmEntry, ctm_lines
from fsachain.asr.decode.decoder import Decoder
from fsachain.asr.decode.transcribe import PauseCutter, Piece, RecognisedWord, Transcriber, silence_pdfs
from fsachain.asr.nn.export import export_onnx
from fsachain.asr.nn.streaming import StreamingModel
from fsachain.errors import DataError, LeftOutError, counted
from fsachain.progress import counter

Features = NDArray[np.float32]
CMVN_SECONDS = 30.0
CONTEXT_SECONDS = 15.0  # to each side, of networks that see whole utterances


def stream_outputs(model: AcousticModel, recording: Recording) -> Iterator[Features]:
    """Network outputs [T', P] of a recording, block by block: together those of the whole, in the memory of a block.

    Where the configuration normalises by utterance or speaker, each frame is normalised by the `CMVN_SECONDS` around it: a
    recording that is no longer than that, as an utterance. With scope "window" the frames are those of the configuration. A
    network that sees whole utterances is given the `CONTEXT_SECONDS` before and behind each block: a recording that is no
    longer than that, as a whole.
    """
    shift = model.experiment.features.frame_shift_ms / 1000.0
    whole = max(1, round(CONTEXT_SECONDS / shift))
    config = model.cmvn.config
    sliding = None
    if config.scope == "window":
        sliding = SlidingCmvn(model.cmvn.rule, config.window)
    elif config.scope in ("utterance", "speaker"):
        sliding = SlidingCmvn(model.cmvn.rule, max(1, round(CMVN_SECONDS / shift)))
    network = StreamingModel(model.network, model.network.context or (whole, whole))
    features = FeatureStream(model.experiment.features)

    def scores(block: Features) -> Features:
        normalised = model.cmvn.apply(block, "") if sliding is None else sliding.accept(block)
        return network.accept(normalised).numpy()

    for samples in recording.blocks():
        yield scores(features.accept(samples))
    yield scores(features.finish())
    if sliding is not None:
        yield network.accept(sliding.finish()).numpy()
    yield network.finish().numpy()


def with_progress(model: AcousticModel, recording: Recording, what: str) -> Iterator[Features]:
    """`stream_outputs` with a bar of seconds."""
    done = 0
    with counter(what) as update:
        for scores in stream_outputs(model, recording):
            yield scores
            done += len(scores)
            update(round(done * model.timing.frame_seconds), round(recording.seconds))


@command(model=TRAINED, files=many(click.Path(dir_okay=False, path_type=Path)))
@search_options
def transcribe(
    model: AcousticModel,
    files: tuple[Path, ...],
    lang: Lang = model_lang_option,
    form: str = option(
        click.Choice(["table", "text", "ctm", "json"]),
        "For people; Kaldi's text; CTM with confidences; a line of JSON for each file.",
        "--format",
        default="table",
    ),
    max_seconds: float = option(
        click.FloatRange(min=1.0),
        "Longer recordings are cut at pauses into pieces of at most so many seconds.",
        default=30.0,
    ),
    **search: Any,
) -> None:
    """Recognise recordings, and print their words with times and confidences.

    In: MODEL, made by `fsachain train`, and FILES, recordings in any format, sampling rate and number of channels that
    soundfile reads (WAV, FLAC, Ogg, MP3, ...).
    Out: the words, printed. The confidence of a word is its posterior among the paths of the decoder's lattice. Files that
    cannot be read are named on the standard error; the exit status is then 3, or 1 if there is no other.
    Example: fsachain transcribe model/model.safetensors audio/1.wav --lang lang --format text
    """
    lexicon, tree = lang.lexicon, lang.tree
    graphs, weights = DecodingGraphs.of(lang, **search)
    graph = graphs.build(weights)
    decoder = Decoder(graph, graphs.words, model.experiment.decoding.search)
    transcriber = Transcriber(decoder, lexicon, tree, model.timing)
    refused = 0
    for path, name in zip(files, utterance_names(files), strict=True):
        try:
            recording = Recording(path, model.experiment.features.sample_rate)
            words = _recognise(model, transcriber, recording, path, max_seconds)
        except DataError as error:
            click.echo(f"error: {error}", err=True)
            refused += 1
            continue
        text = transcript_text(path, name, recording.seconds, words, form)
        if text:
            click.echo(text)
    if refused:
        kind = LeftOutError if refused < len(files) else DataError
        raise kind(f"{refused} of {counted(len(files), 'recording')} could not be transcribed")


def _recognise(
    model: AcousticModel, transcriber: Transcriber, recording: Recording, path: Path, max_seconds: float
) -> list[RecognisedWord]:
    """The words of a recording, cut at pauses where it is longer than `max_seconds`."""
    silences = silence_pdfs(transcriber.lexicon, transcriber.tree)
    cutter = PauseCutter(silences, int(max_seconds / model.timing.frame_seconds))

    def pieces() -> Iterator[Piece]:
        for scores in with_progress(model, recording, path.name):
            yield from cutter.accept(scores)
        yield from cutter.finish()

    words: list[RecognisedWord] = []
    for piece in pieces():
        words += transcriber.recognise(piece.scores, first_frame=piece.first_frame, name=str(path))
    return words


def transcript_text(path: Path, name: str, seconds: float, words: Sequence[RecognisedWord], form: str) -> str:
    """A transcript as "table" (for people), "text" (one line as in Kaldi's `text`), "ctm" or "json" (one line).

    `name` is the utterance's in "text" and "ctm".
    """
    if form == "text":
        return " ".join([name, *(one.word for one in words)])
    if form == "ctm":
        entries = [
            CtmEntry.between(name, one.start, one.start + one.duration, one.word, one.confidence)
            for one in words
        ]
        return "\n".join(ctm_lines(entries))
    if form == "json":
        rows = [
            {
                "word": one.word,
                "start": round(one.start, 3),
                "end": round(one.start + one.duration, 3),
                "confidence": round(one.confidence, 4),
            }
            for one in words
        ]
        record = {"file": str(path), "seconds": round(seconds, 3), "words": rows}
        return json.dumps(record, ensure_ascii=False)
    lines = [f"{path}: {seconds:.2f} s, {counted(len(words), 'word')}"]
    if words:
        lines.append("    start       end  confidence  word")
    for one in words:
        lines.append(f"{one.start:9.2f} {one.start + one.duration:9.2f} {one.confidence:11.3f}  {one.word}")
    return "\n".join(lines)


def utterance_name(path: Path) -> str:
    """The name without its ending; white space becomes "_"."""
    return "_".join(path.stem.split()) or "recording"


def utterance_names(paths: Sequence[Path]) -> list[str]:
    """A name for each of several recordings, which no other has.

    The name of the file without its ending, as `utterance_name`; for files that would have the same, the path below the
    folder that all are in, without the ending or else with it. A file that is given twice has the same name twice.
    """
    whole = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 (links stay)
    common = Path(os.path.commonpath([path.parent for path in whole])) if whole else Path()
    below = [path.relative_to(common) for path in whole]
    forms = (
        [utterance_name(path) for path in paths],
        [in_one_word(path.with_suffix("")) for path in below],
        [in_one_word(path) for path in below],
        [in_one_word(path) for path in whole],
    )
    return unique_names(whole, forms)


def unique_names(things: Sequence[Hashable], forms: Sequence[Sequence[str]]) -> list[str]:
    """For each of the things the first of its forms that no other thing has."""
    names = [""] * len(things)
    for form in forms:
        taken = {name for name in names if name}
        owners: dict[str, set[Hashable]] = {}
        left = [place for place, name in enumerate(names) if not name]
        for place in left:
            owners.setdefault(form[place], set()).add(things[place])
        for place in left:
            if len(owners[form[place]]) == 1 and form[place] not in taken:
                names[place] = form[place]
    return names


def in_one_word(path: Path) -> str:
    """The path with white space as %20 and the like, so that it can be a key of Kaldi's tables."""
    return re.sub(r"\s", lambda found: f"%{ord(found[0]):02X}", path.as_posix())


@command(model=TRAINED, out=OUT)
def export(model: AcousticModel, out: Path) -> str:
    """Write a model as an ONNX file, checked against PyTorch.

    In: MODEL, made by `fsachain train`.
    Out: OUT. Inputs: `features` [N, T, F], Kaldi's features without normalisation, and `lengths` [N]; outputs: `nnet_output`
    [N, ceil(T / s), P] and `nnet_lengths` [N]. CMVN and subsampling are inside; the metadata says how the features are made.
    Example: fsachain export model/model.safetensors model.onnx
    """
    # As JSON; Kaldi's features are made of samples as 16-bit integers.
    metadata = {
        "features": asdict(model.experiment.features),
        "cmvn": asdict(model.cmvn.config),
        "subsampling": model.timing.subsampling,
        "frame_shift_ms": model.experiment.features.frame_shift_ms,
    }
    difference = export_onnx(out, model.network, model.cmvn, metadata)
    size = f"{out.stat().st_size / 1e6:.2f} MB"
    return f"{size}; onnxruntime and PyTorch differ by {difference:.1e} of the largest output"
