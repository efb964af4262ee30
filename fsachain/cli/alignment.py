"""Alignment with a trained model in Python: `Aligner`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsachain.cli.lang import Lang, load_lang
from fsachain.cli.model import AcousticModel, check_lang, lang_of, normalise_set
from fsachain.cli.use import stream_outputs
from fsachain.data.audio import Recording, Resampler
from fsachain.data.dataset import Example
from fsachain.data.features import compute_features
from fsachain.decode.align import (
    LONGEST_PHONE,
    STRICT,
    Alignment,
    LongAligner,
    Tolerance,
    alignment_numerator,
)
from fsachain.decode.times import BoundaryModel
from fsachain.errors import AlignmentError, ConfigError, DataError, ShapeError

Samples = NDArray[np.float32]
WHOLE_SECONDS = 120.0  # longer recordings go through the network block by block


class Spoken(NamedTuple):
    """A recording and its transcript.

    audio: a path, or samples [L] or [channels, L], floats in [-1, 1) or 16-bit integers; sample_rate: Hz, of samples alone;
    text: words, or a line of them.
    """

    audio: Any
    sample_rate: int | None
    text: str | Sequence[str]
    name: str | None = None


class Aligner:
    """A trained model that says when the words of a recording are said; see docs/alignment.md.

    `tolerance` is what transcripts may be wrong in when `tolerant=True`; `boundaries` moves boundaries to where the sound
    changes.
    """

    def __init__(
        self,
        model: AcousticModel,
        lang: Lang,
        *,
        tolerance: Tolerance | None = None,
        boundaries: BoundaryModel | None = None,
    ) -> None:
        check_lang(model, lang)
        rate = model.experiment.features.sample_rate
        if boundaries is not None and boundaries.sample_rate != rate:
            raise ConfigError(
                f"boundaries are of recordings at {boundaries.sample_rate} Hz; the model's are at {rate} Hz"
            )
        self.model, self.lang, self.boundaries = model, lang, boundaries
        self.tolerance = tolerance or Tolerance()

    @classmethod
    def load(
        cls, model: str | Path, lang: str | Path | None = None, *, boundaries: str | Path | None = None
    ) -> Aligner:
        """Read a model that `fsachain train` made, and its words: those that it holds, or a language folder `lang`.

        `boundaries` is a file that `fsachain align` or `align-corpus` wrote, by default boundaries.npz beside the
        model, if it is there.

        Raises:
            DataError: no such files, or ones that do not belong together.
        """
        acoustic = AcousticModel.load(Path(model))
        words = lang_of(acoustic) if lang is None else load_lang(Path(lang))
        known = BoundaryModel.beside(Path(model)) if boundaries is None else BoundaryModel.load(boundaries)
        return cls(acoustic, words, boundaries=known)

    def align(
        self,
        audio: Any,
        sample_rate: int | None,
        text: str | Sequence[str],
        *,
        tolerant: bool = False,
        name: str | None = None,
    ) -> Alignment:
        """When the words of `text` are said in `audio`.

        Args:
            audio: path of a recording, or samples [L] or [channels, L], floats in [-1, 1) or 16-bit integers; numpy or
                torch.
            sample_rate: of samples, in Hz; any. None for a path.
            text: words, or a line of them. Case and punctuation are those of the lexicon where it has the word in
                another case or without punctuation. A word that it lacks is spelled by its rule, if it has one, or
                matches anything.
            tolerant: words may be skipped, said again, replaced, and other things said between them.
            name: of the utterance; by default that of the file.

        Returns:
            An `Alignment`; not `ok`, with a reason, where the text cannot be said in so few frames.

        Raises:
            DataError: audio that cannot be read, or a text without words.
            ShapeError: samples of a wrong shape, or without a sample rate.
        """
        spoken = Spoken(audio, sample_rate, text, name)
        samples = self._samples(spoken)
        long = isinstance(samples, Recording)
        scores = stream_outputs(self.model, samples) if long else self._outputs([samples])
        found = self.align_scores(_name(spoken), self._words(spoken), scores, tolerant=tolerant)
        return self._refined(samples, found)

    def align_many(
        self, items: Iterable[Spoken | tuple[Any, ...]], *, tolerant: bool = False, batch_size: int = 16
    ) -> Iterator[Alignment]:
        """An `Alignment` for each (audio, sample_rate, text) or (audio, sample_rate, text, name), in order.

        `batch_size` recordings go through the network at once. One that cannot be read, or has no words, is not `ok` and has
        the reason.
        """
        rest = iter(items)
        while batch := [Spoken(*item) for item in islice(rest, batch_size)]:
            found: dict[int, Any] = {}
            reasons: dict[int, str] = {}
            for n, spoken in enumerate(batch):
                try:
                    found[n] = self._samples(spoken)
                except (DataError, ShapeError) as error:
                    reasons[n] = str(error)
            short = [n for n, samples in found.items() if not isinstance(samples, Recording)]
            outputs = dict(zip(short, self._outputs([found[n] for n in short]), strict=True))
            for n, spoken in enumerate(batch):
                if n in reasons:
                    yield Alignment(_name(spoken), -math.inf, reason=reasons[n])
                    continue
                try:
                    scores = [outputs[n]] if n in outputs else stream_outputs(self.model, found[n])
                    done = self.align_scores(_name(spoken), self._words(spoken), scores, tolerant=tolerant)
                    yield self._refined(found[n], done)
                except DataError as error:
                    yield Alignment(_name(spoken), -math.inf, reason=str(error))

    def _samples(self, spoken: Spoken) -> Any:
        """Samples at the model's rate; a long recording as it is."""
        wanted = self.model.experiment.features.sample_rate
        if isinstance(spoken.audio, str | Path):
            recording = Recording(spoken.audio, wanted)
            return (
                recording if recording.seconds > WHOLE_SECONDS else np.concatenate(list(recording.blocks()))
            )
        samples = np.asarray(spoken.audio)
        if spoken.sample_rate is None or spoken.sample_rate < 1:
            raise ShapeError(f"sample_rate = {spoken.sample_rate}; expected that of the samples, in Hz")
        if samples.ndim not in (1, 2) or samples.dtype.kind not in "fi":
            raise ShapeError(
                f"audio has shape {list(samples.shape)} and dtype {samples.dtype}; expected samples [L] or [channels, L]"
            )
        scale = 1.0 if samples.dtype.kind == "f" else 1.0 / 32768.0
        mono = samples.astype(np.float32) if samples.ndim == 1 else samples.astype(np.float32).mean(axis=0)
        if not np.isfinite(mono).all():
            raise DataError("audio has NaN or infinite samples")
        resampler = Resampler(spoken.sample_rate, wanted)
        return np.concatenate([resampler.accept(mono * np.float32(scale)), resampler.finish()])

    def _outputs(self, batch: Sequence[Samples]) -> list[Samples]:
        """Network outputs [T, P] of each."""
        config = self.model.experiment.features
        examples = [Example(str(n), str(n), (), compute_features(x, config)) for n, x in enumerate(batch)]
        found = self.model.outputs(normalise_set([e for e in examples if e.num_frames], self.model.cmvn))
        none = np.zeros((0, self.model.network.num_pdfs), np.float32)
        return [found.get(example.id, none) for example in examples]

    def _refined(self, audio: Samples | Recording, found: Alignment) -> Alignment:
        if self.boundaries is None:
            return found
        return self.boundaries.refine(audio.blocks() if isinstance(audio, Recording) else [audio], found)

    def _words(self, spoken: Spoken) -> list[str]:
        if not isinstance(spoken.text, str):
            return list(spoken.text)
        # Marks between words are no words.
        has = self.lang.lexicon.has
        return [word for word in spoken.text.split() if has(word) or any(map(str.isalnum, word))]

    def align_scores(
        self, name: str, words: Sequence[str], scores: Iterable[Samples], *, tolerant: bool = False
    ) -> Alignment:
        """The same for the network's outputs, in blocks [T, P]."""
        if not words:
            raise DataError(f"utterance {name!r}: the text has no words")
        tolerance = self.tolerance if tolerant else STRICT
        tree, lexicon = self.lang.tree, self.lang.lexicon
        filled = tolerance.other < math.inf
        aligner = LongAligner(
            alignment_numerator(words, lexicon, tree, tolerance, name=name),
            tree.num_pdfs,
            longest=LONGEST_PHONE / self.model.timing.frame_seconds if filled else math.inf,
            name=name,
        )
        try:
            for block in scores:
                aligner.accept(block)
            return aligner.alignment(lexicon.phones, self.model.timing)
        except AlignmentError as error:
            return Alignment(name, -math.inf, reason=str(error))


def _name(spoken: Spoken) -> str:
    if spoken.name is not None:
        return spoken.name
    return Path(spoken.audio).stem if isinstance(spoken.audio, str | Path) else "recording"
