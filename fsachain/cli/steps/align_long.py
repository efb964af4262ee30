"""From a long recording and its text to the time of each word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fsachain.cli.steps.decoding import check_lang
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.live import open_recording, stream_outputs
from fsachain.cli.steps.model import AcousticModel
from fsachain.cli.steps.transcribe import utterance_name
from fsachain.decode.align import Alignment, FrameTiming, alignment_of
from fsachain.decode.ctm import CtmEntry, write_ctm
from fsachain.decode.long_alignment import Float32Array, LongAligner
from fsachain.decode.textgrid import write_textgrid
from fsachain.errors import DataError
from fsachain.files import text_lines
from fsachain.graph.numerator import build_numerator

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


def align_long(
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
