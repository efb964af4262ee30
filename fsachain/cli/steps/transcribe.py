"""From recordings to words with times and confidences."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.steps.decoding import DecodingGraphs, check_lang
from fsachain.cli.steps.live import open_recording, stream_outputs
from fsachain.cli.steps.model import AcousticModel
from fsachain.decode.decoder import Decoder
from fsachain.decode.pauses import PauseCutter, silence_pdfs
from fsachain.decode.transcribe import RecognisedWord, Transcriber

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
