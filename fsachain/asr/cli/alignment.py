"""When words and phones are said: align, align-long; in Python `Aligner`."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.asr.cli.decoding import network_outputs
from fsachain.asr.cli.graphs import build_numerators, normalization_option
from fsachain.asr.cli.lang import Lang, load_lang
from fsachain.asr.cli.model import (
    TRAINED,
    AcousticModel,
    check_lang,
    lang_of,
    model_lang_option,
    normalise_set,
)
from fsachain.asr.cli.options import DATA, FILE, OUT, command, fresh, option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.cli.use import stream_outputs, utterance_name, with_progress
from fsachain.asr.data.audio import Recording, Resampler, count_samples, read_audio
from fsachain.asr.data.dataset import Example
from fsachain.asr.data.features import compute_features
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault, Utterance
from fsachain.asr.decode.align import (
    LONGEST_PHONE,
    SHORTEST_OTHER,
    STRICT,
    Alignment,
    LongAligner,
    Tolerance,
    alignment_numerator,
)
from fsachain.asr.decode.align import align as align_outputs
from fsachain.asr.decode.ctm import read_ctm, textgrid_name, write_ctm, write_textgrid
from fsachain.asr.decode.times import BOUNDARIES, LEAST_SECONDS, MOST_SECONDS, BoundaryModel, boundary_errors
from fsachain.errors import AlignmentError, ConfigError, DataError, ShapeError, brief_of, but_for, counted
from fsachain.files import said_words, write_text
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, transcript_tokens
from fsachain.progress import counter

NOT_SAID = "not_said.txt"
Sounds = Mapping[str, Callable[[], Iterable[Any]]]  # what reads an utterance's samples [L], in blocks
AT_ONCE = 256  # utterances of which outputs are held while boundaries are learned; so many have their features cached
WORST = 5  # words that the summary of align-long names
Samples = NDArray[np.float32]
WHOLE_SECONDS = 120.0  # longer recordings go through the network block by block

coarse_option = option(
    bool,
    "Leave boundaries between the network's frames, 30 ms apart: they are not moved to where the sound changes.",
    "--coarse",
)


class Spoken(NamedTuple):
    """A recording and its transcript, as `Aligner.align` takes them."""

    audio: Any
    sample_rate: int | None
    text: str | Sequence[str]
    name: str | None = None


class Aligner:
    """A trained model that says when the words of a recording are said; see docs/alignment.md.

    `tolerance` is what transcripts may be wrong in when `tolerant=True`; `boundaries` moves boundaries to where the sound
    changes.
    """

    __repr__ = brief_of("model", "tolerance", "boundaries")

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
            text: words, or a line of them. Each is looked up as written, then in another case and without punctuation
                around it; words of the alignment are as written. A word that the lexicon lacks is parted at dashes and
                slashes, is spelled by the lexicon's rule, if it has one, or matches anything. Marks alone are no words.
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
        scores = None if isinstance(samples, Recording) else self._outputs([samples])[0]
        return self._aligned(spoken, samples, scores, tolerant)

    def align_many(
        self, items: Iterable[Spoken | tuple[Any, ...]], *, tolerant: bool = False, batch_size: int = 16
    ) -> Iterator[Alignment]:
        """An `Alignment` for each (audio, sample_rate, text) or (audio, sample_rate, text, name), in order.

        `batch_size` recordings go through the network at once. One that cannot be read, or has no words, is not `ok` and has
        the reason.
        """
        rest = iter(items)
        while batch := [Spoken(*item) for item in islice(rest, batch_size)]:
            made: list[Any] = []  # samples, or why there are none
            for spoken in batch:
                try:
                    made.append(self._samples(spoken))
                except (DataError, ShapeError) as error:
                    made.append(error)
            short = [n for n, one in enumerate(made) if isinstance(one, np.ndarray)]
            outputs = dict(zip(short, self._outputs([made[n] for n in short]), strict=True))
            for n, spoken in enumerate(batch):
                try:
                    if isinstance(made[n], Exception):
                        raise made[n]
                    yield self._aligned(spoken, made[n], outputs.get(n), tolerant)
                except (DataError, ShapeError) as error:
                    yield Alignment(_name(spoken), -math.inf, reason=str(error))

    def _aligned(
        self, spoken: Spoken, samples: Samples | Recording, outputs: Samples | None, tolerant: bool
    ) -> Alignment:
        """From network outputs, or from those of a long recording block by block."""
        tokens = transcript_tokens(spoken.text or "", self.lang.lexicon)
        blocks: Iterable[Any] = [samples]
        scores: Iterable[Any] = [outputs]
        if isinstance(samples, Recording):
            blocks, scores = samples.blocks(), stream_outputs(self.model, samples)
        words = [token.word for token in tokens]
        found = self.align_scores(_name(spoken), words, scores, tolerant=tolerant).as_written(tokens)
        if self.boundaries is not None:
            found = self.boundaries.refine(blocks, found)
        rate = self.model.experiment.features.sample_rate
        seconds = samples.seconds if isinstance(samples, Recording) else round(len(samples) / rate, 6)
        return replace(found, seconds=seconds) if found.ok else found

    def _samples(self, spoken: Spoken) -> Any:
        """Samples at the model's rate; a long recording as it is."""
        wanted = self.model.experiment.features.sample_rate
        if isinstance(spoken.audio, str | Path):
            recording = Recording(spoken.audio, wanted)
            return (
                recording if recording.seconds > WHOLE_SECONDS else np.concatenate(list(recording.blocks()))
            )
        samples, rate = np.asarray(spoken.audio), spoken.sample_rate
        if rate is None or rate < 1 or rate % 1 != 0:
            raise ShapeError(f"sample_rate = {rate}; expected that of the samples, in whole Hz")
        if (
            samples.ndim not in (1, 2)
            or samples.dtype.kind not in "fi"
            or (samples.ndim == 2 and samples.shape[0] > samples.shape[1] > 0)  # [L, channels]
        ):
            raise ShapeError(
                f"audio has shape {list(samples.shape)} and dtype {samples.dtype}; expected samples [L] or [channels, L]"
            )
        scale = 1.0 if samples.dtype.kind == "f" else 1.0 / 32768.0
        mono = samples.astype(np.float32) if samples.ndim == 1 else samples.astype(np.float32).mean(axis=0)
        if not np.isfinite(mono).all():
            raise DataError("audio has NaN or infinite samples")
        resampler = Resampler(int(rate), wanted)
        return np.concatenate([resampler.accept(mono * np.float32(scale)), resampler.finish()])

    def _outputs(self, batch: Sequence[Samples]) -> list[Samples]:
        """Network outputs [T, P] of each."""
        config = self.model.experiment.features
        examples = [Example(str(n), str(n), (), compute_features(x, config)) for n, x in enumerate(batch)]
        found = self.model.outputs(normalise_set([e for e in examples if e.num_frames], self.model.cmvn))
        none = np.zeros((0, self.model.network.num_pdfs), np.float32)
        return [found.get(example.id, none) for example in examples]

    def align_scores(
        self, name: str, words: Sequence[str], scores: Iterable[Samples], *, tolerant: bool = False
    ) -> Alignment:
        """The same for the network's outputs, in blocks [T, P]; words are as they are given."""
        if not words:
            raise DataError(f"utterance {name!r}: the text has no words")
        tolerance = self.tolerance if tolerant else STRICT
        aligner = _aligner(self.model, self.lang, words, tolerance, name)
        try:
            for block in scores:
                aligner.accept(block)
            return aligner.alignment(self.lang.lexicon.phones, self.model.timing)
        except AlignmentError as error:
            return Alignment(name, -math.inf, reason=str(error))


def _aligner(
    model: AcousticModel, lang: Lang, words: Sequence[str], tolerance: Tolerance, name: str, **frames: int
) -> LongAligner:
    filled, seconds = tolerance.other < math.inf, model.timing.frame_seconds
    shortest = math.ceil(SHORTEST_OTHER / seconds - 1e-6)
    numerator = alignment_numerator(
        words, lang.lexicon, lang.tree, tolerance, shortest_other=shortest, name=name
    )
    longest = LONGEST_PHONE / seconds if filled else math.inf
    return LongAligner(numerator, lang.tree.num_pdfs, longest=longest, name=name, **frames)


def tell_lacking(said: Sequence[str], lexicon: Lexicon) -> None:
    """Print how many of the words the lexicon lacks, and which most often."""
    lacking = Counter(word for word in said if lexicon.known_form(word) is None)
    if lacking:
        most = ", ".join(f"{word} {count}" for word, count in lacking.most_common(WORST))
        click.echo(
            f"{lacking.total()} of {counted(len(said), 'word')} are not in the lexicon; most often: {most}"
        )


def _name(spoken: Spoken) -> str:
    if spoken.name is not None:
        return spoken.name
    return Path(spoken.audio).stem if isinstance(spoken.audio, str | Path) else "recording"


@command(model=TRAINED, data=DATA, out=OUT)
def align(
    model: AcousticModel,
    data: DataDir,
    out: Path,
    lang: Lang = model_lang_option,
    normalization: Fsa | None = normalization_option(": needed for supervise"),
    textgrid: Path | None = option(OUT, "Folder for a TextGrid of each utterance, for Praat."),
    coarse: bool = coarse_option,
    resources: Resources = with_resources("cache", "workers", "bad_data", "commands", as_written=True),
) -> str:
    """Find when each word and phone of the transcripts is said.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory. With --den only phone sequences that
    the denominator has are looked for; `fsachain supervise` takes no others, and is content with --coarse.
    Out: folder OUT with words.ctm and phones.ctm (utterance channel start duration label confidence, in seconds), words as
    they are written in DATA;
    boundaries.npz, by which boundaries were moved, unless one lies beside the model or less than a minute is said;
    faults.jsonl if utterances cannot be used.
    Example: fsachain align model/model.safetensors train aligned --lang lang --den graphs
    """
    # Without --den the graphs are the plain numerators: once the words are known, the phone language model has no say.
    fresh(out, "words.ctm", "phones.ctm", BOUNDARIES)
    tokens = {one.id: transcript_tokens(one.words, lang.lexicon) for one in data}
    said = [replace(one, words=tuple(token.word for token in tokens[one.id])) for one in data]
    data, found, faults = _alignments(model, lang, DataDir(said), resources, normalization)
    resources.leave_out(faults, len(found), f"{out}: alignments")
    if not coarse:
        found = refined(found, sounds_of(data, model.experiment.features.sample_rate), model, out)
    found = {name: result.as_written(tokens[name]) for name, result in found.items()}
    write_ctm(out / "words.ctm", (entry for result in found.values() for entry in result.words))
    write_ctm(out / "phones.ctm", (entry for result in found.values() for entry in result.phones))
    if textgrid is not None:
        rate = model.experiment.features.sample_rate
        for one in (one for one in data if one.id in found):
            result = found[one.id]
            seconds = result.seconds if one.audio is None else count_samples(one, rate) / rate
            replace(result, seconds=seconds).to_textgrid(textgrid / textgrid_name(one.id))
    return f"{counted(len(found), 'utterance')} aligned{but_for(len(faults))}"


def _alignments(
    model: AcousticModel, lang: Lang, data: DataDir, resources: Resources, normalization: Fsa | None = None
) -> tuple[DataDir, dict[str, Alignment], list[Fault]]:
    """The utterances that can be used, alignments between the network's frames, and those without."""
    data, outputs = network_outputs(model, data, resources, frame_shift=0)
    numerators, faults = build_numerators(lang, data, normalization)
    usable = {name: scores for name, scores in outputs.items() if name in numerators}
    with counter("aligning") as update:
        found, failed = align_outputs(usable, numerators, lang.lexicon.phones, model.timing, progress=update)
    faults += [Fault(name, f"utterance {name!r}: {reason}", "no path") for name, reason in failed.items()]
    return data, found, faults


def learn_boundaries(model: AcousticModel, lang: Lang, data: DataDir, resources: Resources) -> None:
    """Learn where sounds change from a minute to an hour of `data`, and keep it beside the model."""
    assert model.path is not None
    model.path.with_name(BOUNDARIES).unlink(missing_ok=True)
    every, found, seconds = tuple(data), dict[str, Alignment](), 0.0
    parts = [every[first : first + AT_ONCE] for first in range(0, len(every), AT_ONCE)]
    random.Random(0).shuffle(parts)
    while parts and seconds < MOST_SECONDS:
        _, new, _ = _alignments(model, lang, DataDir(parts.pop()), resources)
        found |= new
        seconds += sum(one.seconds for one in new.values() if one.ok)
    sounds = sounds_of(data, model.experiment.features.sample_rate)
    if boundaries_for(found, sounds, model, model.path.parent) is not None:
        click.echo(f"boundaries learned from {counted(min(seconds, MOST_SECONDS) / 60, 'minute', '.1f')}")


def boundaries_for(
    found: Mapping[str, Alignment], sounds: Sounds, model: AcousticModel, out: Path
) -> BoundaryModel | None:
    """The boundaries.npz beside the model, or else one learned from these alignments, kept in `out`."""
    heard = {name: alignment for name, alignment in found.items() if alignment.ok and name in sounds}
    rate, seconds = model.experiment.features.sample_rate, sum(one.seconds for one in heard.values())
    known = BoundaryModel.beside(model.path)
    if known is not None and known.sample_rate != rate:
        raise DataError(
            f"{BOUNDARIES} beside the model is of {known.sample_rate} Hz; the model's rate is {rate} Hz"
        )
    if known is not None or not heard:
        return known
    if seconds < LEAST_SECONDS:
        click.echo(
            f"boundaries stay between the network's frames: {seconds:.0f} s of speech, at least {LEAST_SECONDS:.0f} "
            "are needed to learn where sounds change"
        )
        return None
    with counter("boundaries") as update:
        learned = BoundaryModel.fit(((sounds[name](), one) for name, one in heard.items()), rate, update)
    learned.save(out / BOUNDARIES)
    return learned


def refined(
    found: Mapping[str, Alignment], sounds: Sounds, model: AcousticModel, out: Path
) -> dict[str, Alignment]:
    """The alignments with boundaries moved; see `boundaries_for`."""
    boundaries = boundaries_for(found, sounds, model, out)
    return {
        name: boundaries.refine(sounds[name](), one) if boundaries is not None and name in sounds else one
        for name, one in found.items()
    }


def sounds_of(data: DataDir, sample_rate: int) -> Sounds:
    """For each utterance with a recording, what reads its samples."""

    def read(one: Utterance) -> list[Any]:
        return [read_audio(one, sample_rate)]

    return {one.id: partial(read, one) for one in data if one.audio is not None}


def lines_of_errors(data: Path, out: Path, silence: str | None) -> list[str]:
    """Lines that compare the times in `out` with the words.ctm and phones.ctm of a data directory, which may have none."""
    reference, own = (
        {
            tier: read_ctm(folder / f"{tier}.ctm")
            for tier in ("words", "phones")
            if (folder / f"{tier}.ctm").is_file()
        }
        for folder in (data, out)
    )
    errors = boundary_errors(reference, own, silence)
    return [f"{name:<12} {error}" for name, error in errors.items() if name in reference]


@command(model=TRAINED, recording=FILE, text=FILE, out=OUT)
def align_long(
    model: AcousticModel,
    recording: Path,
    text: Path,
    out: Path,
    lang: Lang = model_lang_option,
    textgrid: Path | None = option(OUT, "File for Praat."),
    window: float = option(
        click.FloatRange(min=1.0), "Seconds searched at once: memory and time grow with it.", default=40.0
    ),
    lookahead: float = option(
        click.FloatRange(min=0.1),
        "Seconds at the end of each window that are searched again in the next.",
        default=12.0,
    ),
    filler_cost: float = option(
        click.FloatRange(min=0.0),
        "Of an output frame between words that is neither silence nor text; inf: there are none.",
        default=0.7,  # well-spoken words lie 0.2 below the best scores, wrong ones 1 to 4
    ),
    tolerant: bool = option(bool, "Words may be skipped, said again or replaced."),
    coarse: bool = coarse_option,
) -> None:
    """Find when each word of a long recording is said, in memory that does not grow with it.

    In: MODEL, made by `fsachain train`; RECORDING, whatever soundfile reads; TEXT, its words in order, separated by white
    space. Case and punctuation need not be those of the lexicon.
    Out: folder OUT with words.ctm and phones.ctm (recording channel start duration label, in seconds), fit.txt (start,
    fit and label of each word), not_said.txt where words are skipped (the number of each in TEXT, and the word), and
    boundaries.npz as of `align`. The fit is how far the word's scores are below the best ones, per frame: where it is far
    below the others, recording and text differ.
    Example: fsachain align-long model/model.safetensors audio/1.wav audio/1.txt long --lang lang
    """
    if not lookahead < window:
        raise click.UsageError(f"--lookahead {lookahead:g}: expected less than --window {window:g}")
    fresh(out, "words.ctm", "phones.ctm", "fit.txt", NOT_SAID, BOUNDARIES)
    audio = Recording(recording, model.experiment.features.sample_rate)
    name, timing = utterance_name(recording), model.timing
    tolerance = (Tolerance() if tolerant else STRICT)._replace(other=filler_cost)
    sizes = {"window": window, "lookahead": lookahead}
    frames = {key: round(seconds / timing.frame_seconds) for key, seconds in sizes.items()}
    tokens = transcript_tokens(read_words(text), lang.lexicon)
    said = [token.word for token in tokens]
    if not said:
        raise DataError(f"{text}: has marks alone; expected the words of the recording")
    tell_lacking(said, lang.lexicon)
    aligner = _aligner(model, lang, said, tolerance, name, **frames)
    for scores in with_progress(model, audio, "aligning"):
        aligner.accept(scores)
    found = aligner.alignment(lang.lexicon.phones, timing)
    if not coarse:
        found = refined({name: found}, {name: audio.blocks}, model, out)[name]
    found = found.as_written(tokens)
    words = found.words
    write_ctm(out / "words.ctm", words)
    write_ctm(out / "phones.ctm", found.phones)
    fits = np.log([word.confidence or 0.0 for word in words])
    lines = [f"{word.start:.3f} {fit:.3f} {word.label}\n" for word, fit in zip(words, fits, strict=True)]
    write_text(out / "fit.txt", "".join(lines))
    if textgrid is not None:
        write_textgrid(textgrid, {"words": words, "phones": found.phones}, audio.seconds)
    if found.skipped:
        skipped = [tokens[position] for position in found.skipped]
        lines = [f"{token.place + 1} {token.written}\n" for token in skipped]
        write_text(out / NOT_SAID, "".join(lines))
        warning = "; text and recording hardly fit" if 2 * len(lines) > len(said) else ""
        click.echo(f"{len(lines)} of {counted(len(said), 'word')} were not said: {out / NOT_SAID}{warning}")
    fit = f"mean fit {np.mean(fits):.2f}; the worst:" if words else "none of the text"
    click.echo(f"{audio.seconds:.1f} s, {counted(len(words), 'word')}, {fit}")
    for index in np.argsort(fits, kind="stable")[:WORST].tolist():
        click.echo(f"  {words[index].start:10.2f} s  {fits[index]:8.2f}  {words[index].label}")
    click.echo(f"-> {out}")


def read_words(path: Path) -> list[str]:
    words = said_words(path)
    if not words:
        raise DataError(f"{path}: has no words; expected those of the recording")
    return words
