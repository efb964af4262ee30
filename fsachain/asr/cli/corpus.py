"""A folder of recordings and their transcripts, aligned: `fsachain align-corpus`, which trains the model if there is none.

data/              the corpus as a data directory: what was found beside each recording, in the words of the lexicon
model/, second/    of a model trained here: the folders of `fsachain run`, first from transcripts, then from its times
aligned.jsonl      a line for each utterance that is done, as `Alignment.to_dict`, with the times of the other files; done
                   again where model, text or recording changed
words.ctm phones.ctm, one TextGrid for each recording in the tree of the corpus
training.log       what a training here told: objectives of each epoch, sizes, times of stages
summary.tsv index.html    utterances, the most suspicious first; index.html has sound
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from fsachain.asr.cli.alignment import Aligner, coarse_option, refined, sounds_of, tell_lacking
from fsachain.asr.cli.config import Experiment, LossConfig, config_options
from fsachain.asr.cli.decoding import network_outputs
from fsachain.asr.cli.lang import spell
from fsachain.asr.cli.model import FINAL_MODEL, MODEL, AcousticModel, lang_of
from fsachain.asr.cli.options import FILE, FOLDER, OUT, command, option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.cli.run import Run, perform
from fsachain.asr.cli.use import in_one_word, unique_names
from fsachain.asr.data.audio import Recording, audio_identity
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault, Utterance, UtteranceError
from fsachain.asr.decode.align import TIERS, Alignment
from fsachain.asr.decode.ctm import CtmEntry, textgrid_name, write_ctm, write_textgrid
from fsachain.asr.decode.textgrid import read_textgrid
from fsachain.asr.report.page import render_page
from fsachain.errors import ConfigError, DataError, LeftOutError, counted, require
from fsachain.files import binary_lines, naming, parse_json, replacing, said_words, write_text
from fsachain.graph.lexicon import Lexicon, Token, transcript_tokens
from fsachain.progress import counter, messages_to

# What soundfile reads and knows by itself.
AUDIO = frozenset(
    {
        ".wav",
        ".flac",
        ".mp3",
        ".ogg",
        ".oga",
        ".opus",
        ".aif",
        ".aiff",
        ".aifc",
        ".au",
        ".snd",
        ".caf",
        ".w64",
        ".rf64",
    }
    | {".sph", ".nist", ".voc"}
)
TEXTS = (".lab", ".txt", ".textgrid")  # beside a recording: the first that is there has its words
DONE = "aligned.jsonl"
LOG = "training.log"
WIDE_BAND = 16000  # Hz, at most, where the configuration names no rate
POOR = 0.3  # confidence of a word that index.html marks
SUSPICIOUS = 0.3  # suspicion of an utterance whose words fit badly; right texts have 0.05 to 0.25
WORST = 5  # utterances that the command names
SHOWN = 200  # utterances with sound in index.html
AT_ONCE = 64  # utterances between two writes of what is done
# With the 4-gram of little text and hardly a leak the denominator knows what comes next, and the network need not: right
# words were heard as not said, 211 of 1,352 digits and 213 of 1,979 words of prompts; with this leak 0 and 7. With a 2-gram
# and this leak none are, but twice as many words of the digits begin more than 0.1 s off.
alignment_config_option = config_options(
    Experiment(loss=LossConfig(leaky_hmm_coefficient=0.1)), "the defaults, but for a leak of 0.1"
)
DEV_SHARE = 20  # of so many utterances one is looked at while a model trains


@dataclass
class Part(Utterance):
    """One utterance as it lies in the corpus: a recording or a stretch of it; its TextGrid goes to `place` in the output."""

    place: Path = Path()

    @property
    def file(self) -> Path:
        return Path(self.audio or "")

    def tokens(self, lexicon: Lexicon | None) -> list[Token]:
        """Its words as they are written, and as they are looked up in the lexicon or spelled by their characters."""
        return transcript_tokens(self.words, lexicon)


def find_parts(corpus: Path, out: Path) -> tuple[list[Part], list[Fault]]:
    """The utterances of a folder as the Montreal Forced Aligner lays it out; recordings and transcripts without the other.

    Beside a recording stands x.lab or x.txt, which has its words, or x.TextGrid, whose intervals are its utterances and
    whose tiers are speakers; of several the first in this order counts. The speaker of the former is the folder; of
    recordings in the corpus's own folder, the recording. Any other x.txt may be a note, and is only reported. What lies in
    `out` is not part of the corpus.
    """
    parts, faults, own = [], [], out.resolve()
    files = [
        path for path in sorted(corpus.rglob("*")) if path.is_file() and own not in path.resolve().parents
    ]
    recordings: dict[Path, Path] = {}  # by the path without its ending
    texts: dict[Path, dict[str, Path]] = {}  # the same, and by the ending in lower case
    for path in files:
        where, ending = path.relative_to(corpus).with_suffix(""), path.suffix.lower()
        if ending in TEXTS:
            texts.setdefault(where, {})[ending] = path
        elif ending in AUDIO and recordings.setdefault(where, path) is not path:
            faults.append(Fault(str(path), f"{path}: has the name of {recordings[where]}", "duplicate id"))
    names = _names(list(recordings))
    for where, audio in recordings.items():
        try:
            parts += _beside(audio, names[where], where, texts.get(where, {}))
        except UtteranceError as error:
            faults.append(error.fault)
        except DataError as error:
            faults.append(Fault(names[where], str(error), "table"))
    _tell_several([texts[where] for where in recordings if len(texts.get(where, ())) > 1])
    alone = {where: found for where, found in texts.items() if where not in recordings}
    notes = [str(found[".txt"].relative_to(corpus)) for found in alone.values() if ".txt" in found]
    if notes:
        named = ", ".join([*notes[:WORST], *(["..."] if len(notes) > WORST else [])])
        click.echo(f"{corpus}: {counted(len(notes), '.txt file')} without a recording beside: {named}")
    kinds = ", ".join(sorted(AUDIO))
    for where, found in alone.items():
        for ending, path in found.items():
            if ending != ".txt":
                reason = f"{path}: no recording beside it ({kinds})"
                faults.append(Fault(_joined(where), reason, "no recording"))
    return parts, faults


def _joined(where: Path) -> str:
    """The name of a recording by its path below the corpus."""
    return "-".join("_".join(part.split()) for part in where.parts)


def _names(places: Sequence[Path]) -> dict[Path, str]:
    """The name of each recording; those of which two would be called the same, such as a-b and a/b, keep their slashes."""
    forms = ([_joined(where) for where in places], [in_one_word(where) for where in places])
    return dict(zip(places, unique_names(places, forms), strict=True))


def _tell_several(beside: Sequence[Mapping[str, Path]]) -> None:
    """Which of several transcripts of a recording counts, once for all, and which TextGrids are an aligner's output."""
    if not beside:
        return
    order = ", ".join(f"x{ending}" for ending in TEXTS).replace("textgrid", "TextGrid")
    click.echo(
        f"{counted(len(beside), 'recording')} with more than one of {order} beside: the first in this order is read"
    )
    aligned = []
    for found in beside:
        if ".textgrid" in found:
            with suppress(DataError):  # it is not read as a transcript, so that its faults do not matter
                tiers = read_textgrid(found[".textgrid"])
                if tiers and all(tier.is_aligned for tier in tiers):
                    aligned.append(found[".textgrid"])
    if aligned:
        click.echo(
            f"{counted(len(aligned), 'TextGrid')} beside recordings are the output of an aligner (tiers words, phones), "
            f"such as {aligned[0]}; `fsachain compare-times` compares them with those made here"
        )


def _beside(audio: Path, name: str, where: Path, texts: Mapping[str, Path]) -> list[Part]:
    """The utterances of a recording, by the first of the texts in the order of `TEXTS`."""
    ending = next((one for one in TEXTS if one in texts), None)
    if ending is None:
        raise UtteranceError("missing file", name, f"{audio}: no .TextGrid, .lab or .txt beside it")
    if ending == ".textgrid":
        return _of_grid(texts[ending], audio, name, where)
    said = tuple(said_words(texts[ending]))
    speaker = where.parent.as_posix().replace("/", "-") if where.parent.name else name
    return [Part(name, "_".join(speaker.split()), said, str(audio), place=where)]


def _of_grid(path: Path, audio: Path, name: str, place: Path) -> list[Part]:
    """An utterance for each interval with a text, in order of time, on tiers that no aligner wrote."""
    tiers = read_textgrid(path)
    written = [tier for tier in tiers if not tier.is_aligned]
    spoken = [(one.start, tier.name, one) for tier in written for one in tier.spoken]
    if not spoken and any(tier.spoken for tier in tiers):
        named = ", ".join(tier.name for tier in tiers)
        raise UtteranceError(
            "empty text",
            name,
            f"{path}: its tiers are the output of an aligner ({named}), and are not read as a transcript; expected what is "
            f"said in {path.with_suffix('.lab').name} or {path.with_suffix('.txt').name}",
        )
    if not spoken:
        points = " (points are not read)" if any(tier.is_points for tier in tiers) else ""
        reason = f"{path}: no interval has a text{points}; expected one for each stretch that is spoken"
        raise UtteranceError("empty text", name, reason)
    parts = []
    for n, (start, tier, interval) in enumerate(sorted(spoken, key=lambda row: row[:2])):
        speaker, said = "_".join(tier.split()) or name, tuple(interval.text.split())
        parts.append(Part(f"{name}-{n:04d}", speaker, said, str(audio), start, interval.end, place=place))
    return parts


def in_words_of(text: str, lexicon: Lexicon | None) -> list[str]:
    """The words of a line: as the lexicon has them where it does, else bare, in lower case and composed (NFC)."""
    return [token.word for token in transcript_tokens(text, lexicon)]


def of_data(data: DataDir) -> list[Part]:
    """The utterances of a data directory; TextGrids go into a folder for each speaker."""
    parts = []
    for one in data:
        if one.audio is None or one.audio_part is not None:
            raise DataError(f"utterance {one.id!r} has no recording in a file of its own; expected one")
        whole = one.start == 0.0 and one.end is None
        name = one.id if whole else Path(one.audio).stem
        speaker, own = (textgrid_name(part).removesuffix(".TextGrid") for part in (one.speaker, name))
        stretch = one.id, one.speaker, one.words, one.audio, one.start, one.end
        parts.append(Part(*stretch, place=Path(speaker, own)))
    return parts


def write_data(parts: Sequence[Part], lexicon: Lexicon | None, sample_rate: int, out: Path) -> list[Fault]:
    """Write a data directory; faults are utterances without words, or of recordings that cannot be read.

    Recordings at another rate are converted.
    """
    soundfile = require("soundfile", extra="recipes")
    lines: dict[str, list[str]] = {"wav.scp": [], "segments": [], "text": [], "utt2spk": []}
    faults, recordings, converted = [], dict[Path, str](), out.resolve() / "audio"
    for part in parts:
        words = [token.word for token in part.tokens(lexicon)]
        if not words:
            faults.append(Fault(part.id, f"utterance {part.id!r}: the transcript is empty", "empty text"))
            continue
        if part.file not in recordings:
            try:
                recording = Recording(part.file, sample_rate)
                path = part.file.resolve()
                if recording.native_rate != sample_rate:
                    path = converted / f"{textgrid_name(part.id).removesuffix('.TextGrid')}.flac"
                    if not path.is_file() or path.stat().st_mtime <= part.file.stat().st_mtime:
                        with (
                            replacing(path) as file,
                            soundfile.SoundFile(file, "w", sample_rate, 1, format="FLAC") as sink,
                        ):
                            for block in recording.blocks():
                                sink.write(block)
            except (DataError, RuntimeError) as error:
                faults.append(Fault(part.id, str(error), "unreadable audio"))
                continue
            recordings[part.file] = part.id
            lines["wav.scp"].append(f"{part.id} {path}")
        end = -1.0 if part.end is None else part.end
        lines["segments"].append(f"{part.id} {recordings[part.file]} {part.start:.12g} {end:.12g}")
        lines["text"].append(" ".join([part.id, *words]))
        lines["utt2spk"].append(f"{part.id} {part.speaker}")
    for name, table in lines.items():
        write_text(out / name, "".join(f"{line}\n" for line in table))
    return faults


def train_on(
    data: Path, lexicon: Path | None, experiment: Experiment, out: Path, resources: Resources
) -> AcousticModel:
    """A model of the corpus itself: flat start, then once more on the times that the first model finds.

    All of it is trained on; the development set that shows how training goes is a part of it.
    """
    said = DataDir.read(data)
    dev = out / "dev"
    shown = [one for n, one in enumerate(said) if n % DEV_SHARE == 0]
    names = {one.id for one in shown}
    for table in ("wav.scp", "segments", "text", "utt2spk"):
        lines = (data / table).read_text(encoding="utf-8").splitlines()
        kept = lines if table == "wav.scp" else [line for line in lines if line.split(None, 1)[0] in names]
        write_text(dev / table, "".join(f"{line}\n" for line in kept))
    if lexicon is None:
        lexicon = out / "lexicon.txt"
        spell(said.transcripts, lexicon, resources)
    inputs = {"train": data, "dev": dev, "test": dev, "lexicon": lexicon}
    passes = (
        ("model", None, "from transcripts alone"),
        ("second", out / "model", "on the times of the first"),
    )
    for number, (name, first, how) in enumerate(passes, start=1):
        click.echo(f"training model {number} of {len(passes)}, {how}; {out / LOG} has the figures")
        # What cannot be trained on is listed in the folder of the run, and may still be aligned.
        own = replace(resources, cache=out / "model" / "cache", faults=[])
        with (
            suppress(LeftOutError),
            (out / LOG).open("a", encoding="utf-8") as log,
            messages_to(log),
            redirect_stdout(log),
        ):
            perform(Run(out / name, experiment, inputs, own, first=first), end="train")
    return AcousticModel.load(out / "second" / "model" / FINAL_MODEL)


class Kept:
    """aligned.jsonl: a line about model and tolerance, then a line for each utterance that is done.

    Times are those of the other files. Where they were moved from between the network's frames, `between_frames` has them as
    they were, so that a second call goes on from the same ones.
    """

    def __init__(self, aligner: Aligner, data: DataDir, out: Path, tolerant: bool) -> None:
        model = aligner.model.path
        version = hashlib.sha256(model.read_bytes() if model else b"").hexdigest()[:16]
        self.path, self._head = out / DONE, {"model": version, "tolerant": tolerant}
        self._made_of = {
            one.id: {"read_as": " ".join(one.words), "recording": audio_identity(one)} for one in data
        }

    def read(self) -> dict[str, Alignment]:
        """The alignments between frames that were made of the same model, text and recording; the others are taken out."""
        found: dict[str, Alignment] = {}
        lines = [line_of(self._head)]
        if self.path.is_file():
            kept = [parse_json(line, f"{self.path}:{number}") for number, line in binary_lines(self.path)]
            for row in kept[1:] if kept[:1] == [self._head] else ():
                made_of = self._made_of.get(row["utterance"])
                if made_of is not None and made_of == {key: row.get(key) for key in made_of}:
                    found[row["utterance"]] = _between_frames(row)
                    lines.append(line_of(row))
        write_text(self.path, "".join(lines))
        return found

    def row(self, alignment: Alignment) -> dict[str, Any]:
        """What is kept of an alignment between frames."""
        return alignment.to_dict() | self._made_of[alignment.utterance]

    def write(self, alignments: Iterable[Alignment], between_frames: Mapping[str, Alignment]) -> None:
        """All of the file, with the times that the alignments have in the end."""
        lines = [line_of(self._head)]
        for one in alignments:
            row = one.to_dict() | {"text": " ".join(one.transcript)} | self._made_of[one.utterance]
            before = between_frames[one.utterance]
            if any(_times(one, tier) != _times(before, tier) for tier in TIERS):
                row |= {"between_frames": {tier: _entries(before, tier) for tier in TIERS}}
            lines.append(line_of(row))
        write_text(self.path, "".join(lines))


def line_of(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _times(alignment: Alignment, tier: str) -> list[list[float]]:
    return [[entry.start, entry.end] for entry in getattr(alignment, tier)]


def _entries(alignment: Alignment, tier: str) -> list[list[Any]]:
    """Start, end, label and confidence of each entry. Refined times may have other pauses, so labels are kept too."""
    return [[entry.start, entry.end, entry.label, entry.confidence] for entry in getattr(alignment, tier)]


def _between_frames(row: Mapping[str, Any]) -> Alignment:
    """The alignment of a line of aligned.jsonl as it was found: in the lexicon's words, with times between frames."""
    alignment = Alignment.from_dict(row)
    tiers = row.get("between_frames")
    if tiers is None:
        tiers = {tier: _entries(alignment, tier) for tier in TIERS}
        if alignment.normalised:
            words = zip(tiers["words"], alignment.normalised, strict=True)
            tiers["words"] = [[start, end, label, sure] for (start, end, _, sure), label in words]
    as_found: dict[str, Any] = {
        tier: tuple(CtmEntry.between(alignment.utterance, *entry) for entry in tiers[tier]) for tier in TIERS
    }
    return replace(alignment, normalised=(), transcript=(), **as_found)


def align_all(
    aligner: Aligner, data: DataDir, kept: Kept, tolerant: bool, resources: Resources
) -> dict[str, Alignment]:
    """An alignment of each utterance between the network's frames, in the words of `data`; what is kept is not made anew."""
    found = kept.read()
    rest = (one for one in data if one.id not in found)
    with counter("aligning") as update, kept.path.open("a", encoding="utf-8") as file:
        while batch := list(islice(rest, AT_ONCE)):
            usable, outputs = network_outputs(aligner.model, DataDir(tuple(batch)), resources, frame_shift=0)
            rows = []
            for one in usable:
                made = aligner.align_scores(one.id, one.words, [outputs[one.id]], tolerant=tolerant)
                rows.append(kept.row(made))
                found[one.id] = _between_frames(rows[-1])  # rounded as a second call reads it
            with naming(kept.path):
                file.writelines(map(line_of, rows))
                file.flush()
            update(len(found), len(data))
    return {one.id: found[one.id] for one in data if one.id in found}


@dataclass(frozen=True)
class Checked:
    """What the summary says of an utterance.

    `suspicion` is the share of its words that were not said, plus the share of its time in which something else was,
    plus one minus the mean confidence of its words; of an utterance without alignment it is 3.
    """

    part: Part
    words: Sequence[str]
    alignment: Alignment

    @property
    def confidences(self) -> list[float]:
        return [word.confidence or 0.0 for word in self.alignment.words]

    @property
    def confidence(self) -> float:
        return sum(self.confidences) / len(self.confidences) if self.confidences else 0.0

    @property
    def other(self) -> float:
        """Seconds."""
        return sum(stretch.duration for stretch in self.alignment.other)

    @property
    def suspicion(self) -> float:
        if not self.alignment.ok:
            return 3.0
        skipped = len(self.alignment.skipped) / len(self.words)
        return skipped + self.other / max(self.alignment.seconds, 1e-3) + 1.0 - self.confidence

    def row(self) -> str:
        found = self.alignment
        numbers = f"{found.seconds:.2f}\t{len(self.words)}\t{self.confidence:.3f}\t{min(self.confidences, default=0.0):.3f}"
        return (
            f"{self.part.id}\t{self.part.speaker}\t{self.suspicion:.3f}\t{numbers}\t{len(found.skipped)}\t{self.other:.2f}"
            f"\t{' '.join(self.words[n] for n in found.skipped)}\t{found.reason}\n"
        )

    @property
    def findings(self) -> list[str]:
        """What somebody should check, in words; empty: nothing."""
        found = self.alignment
        if not found.ok:
            return [f"could not be aligned: {found.reason}"]
        told = []
        if found.skipped:
            words = ", ".join(self.words[n] for n in found.skipped)
            told.append(f"{counted(len(found.skipped), 'word')} of {len(self.words)} not heard: {words}")
        if found.other:
            told.append(f"{self.other:.1f} s of something that the text lacks")
        if self.suspicion >= SUSPICIOUS:
            poor = sum(confidence < POOR for confidence in self.confidences)
            told.append(f"{counted(poor, 'word')} that hardly fit" if poor else "words fit badly")
        return told

    def shown(self, out: Path) -> dict[str, Any]:
        """What index.html needs."""
        found, part = self.alignment, self.part
        place = quote(os.path.relpath(part.file.resolve(), out.resolve()))
        end = "" if part.end is None else f",{part.end:.12g}"
        stretch = f"#t={part.start:.12g}{end}" if part.start or end else ""
        return {
            "id": part.id,
            "speaker": part.speaker,
            "suspicion": self.suspicion,
            "seconds": found.seconds,
            "confidence": self.confidence,
            "findings": self.findings,
            "words": self._marked_words(),
            "sound": place + stretch,
        }

    def _marked_words(self) -> list[dict[str, str]]:
        """Words and what was said between them in order of time; words that were not said stand where the text has them."""
        found, left = self.alignment, list(self.alignment.skipped)
        positions = dict(zip(found.words, found.positions, strict=True))
        words = []
        for entry in sorted([*found.words, *found.other], key=lambda entry: entry.start):
            position = positions.get(entry)
            while left and position is not None and left[0] < position:
                words.append(self._not_said(left.pop(0)))
            kind = "insertion" if position is None else ""
            if position is not None and self.findings and (entry.confidence or 0.0) < POOR:
                kind = "substitution"
            title = f"{entry.start:.2f} to {entry.end:.2f} s, confidence {entry.confidence or 0.0:.2f}"
            words.append({"label": entry.label, "kind": kind, "title": title})
        return words + [self._not_said(position) for position in left]

    def _not_said(self, position: int) -> dict[str, str]:
        return {"label": self.words[position], "kind": "deletion", "title": "not heard"}


SUMMARY = "utterance\tspeaker\tsuspicion\tseconds\twords\tconfidence\tlowest\tskipped\tother_seconds\tnot_said\treason\n"


def write_found(checked: Sequence[Checked], out: Path) -> list[Checked]:
    """Write CTM files, TextGrids, summary.tsv and index.html; returns the utterances, the most suspicious first."""
    soundfile = require("soundfile", extra="recipes")
    write_ctm(out / "words.ctm", (entry for one in checked for entry in one.alignment.words))
    write_ctm(out / "phones.ctm", (entry for one in checked for entry in one.alignment.phones))
    grids: dict[Path, list[Checked]] = {}
    for one in checked:
        grids.setdefault(one.part.place, []).append(one)
    for place, group in grids.items():
        speakers = {one.part.speaker for one in group}
        tiers: dict[str, list[CtmEntry]] = {}
        for one in sorted(group, key=lambda one: one.part.start):
            before = f"{one.part.speaker} - " if len(speakers) > 1 else ""
            for tier in ("words", "phones"):
                shifted = [
                    entry._replace(start=entry.start + one.part.start)
                    for entry in getattr(one.alignment, tier)
                ]
                tiers.setdefault(before + tier, []).extend(_after(tiers.get(before + tier, []), shifted))
        seconds = soundfile.info(group[0].part.file).duration
        write_textgrid(out / place.with_name(f"{place.name}.TextGrid"), tiers, seconds)
    ordered = sorted(checked, key=lambda one: -one.suspicion)
    write_text(out / "summary.tsv", SUMMARY + "".join(one.row() for one in ordered))
    words = sum(len(one.words) for one in checked)
    skipped = sum(len(one.alignment.skipped) for one in checked)
    said = f"{counted(words, 'word')}, of which {skipped} not said"
    about = f"{counted(len(checked), 'utterance')}, {said}; summary.tsv has all"
    marked = [one for one in ordered if one.findings]
    values = {
        "title": out.resolve().name,
        "about": about,
        "marked": [one.shown(out) for one in marked[:SHOWN]],
        "num_marked": len(marked),
        "others": [one.shown(out) for one in ordered if not one.findings][: max(0, SHOWN - len(marked))],
        "threshold": SUSPICIOUS,
        "poor": POOR,
    }
    page = render_page("alignments.html", media="*", **values)
    write_text(out / "index.html", page)
    return ordered


def _after(before: Sequence[CtmEntry], entries: Sequence[CtmEntry]) -> list[CtmEntry]:
    """Entries of a stretch that do not begin before the last one ended: the last frame of a stretch may reach beyond it."""
    end = before[-1].start + before[-1].duration if before else 0.0
    cut = []
    for entry in entries:
        stop, start = entry.start + entry.duration, max(entry.start, end)
        if stop > start:
            cut.append(entry._replace(start=start, duration=stop - start))
    return cut


@command(corpus=FOLDER, out=OUT)
def align_corpus(
    corpus: Path,
    out: Path,
    model: AcousticModel | None = option(MODEL, "Made by `fsachain train`; without it one is trained here."),
    lexicon: Path | None = option(
        FILE, "Of the model to be trained; without it words are spelled by characters."
    ),
    coarse: bool = coarse_option,
    strict: bool = option(bool, "Take all words as said, and nothing else."),
    experiment: Experiment = alignment_config_option,
    resources: Resources = with_resources("workers", "bad_data"),
) -> None:
    """Find when each word and phone of a whole corpus is said, and where text and recordings differ.

    In: CORPUS, a Kaldi data directory, or a folder with recordings (a folder for each speaker) beside which stand their
    words, x.lab or x.txt, or x.TextGrid with the stretches that are spoken. Without --model a model is trained on CORPUS
    itself, twice: from the transcripts alone, and on the times that the first finds.
    Out: folder OUT with a TextGrid for each recording, words.ctm and phones.ctm, summary.tsv and index.html (the most
    suspicious utterances first; index.html with sound). Called again, it goes on where it was stopped.
    Example: fsachain align-corpus audio textgrids --model model/model.safetensors
    """
    if model is not None and lexicon is not None:
        raise click.UsageError("--lexicon is that of a model to be trained: with --model expected without it")
    if corpus.resolve() == out.resolve():
        raise ConfigError(
            f"{out}: is CORPUS itself, whose TextGrids would be replaced; expected another folder"
        )
    parts, faults = (
        (of_data(resources.read(corpus)), []) if (corpus / "text").is_file() else find_parts(corpus, out)
    )
    if not parts:
        raise DataError(
            f"{corpus}: no recordings with transcripts; expected x.wav beside x.lab, x.txt or x.TextGrid"
        )
    resources.leave_out(faults, len(parts), str(corpus))
    if model is not None:
        rate = model.experiment.features.sample_rate
        known: Lexicon | None = lang_of(model).lexicon
    else:
        features = experiment.features
        rate = features.sample_rate or min(WIDE_BAND, features.fitted(parts).sample_rate or WIDE_BAND)
        known = None if lexicon is None else Lexicon.read(lexicon, silence=experiment.lang.silence)
        experiment = replace(experiment, features=replace(features, sample_rate=rate).fitted(parts))
    data = out / "data"
    unusable = write_data(parts, known, rate, data)
    resources.leave_out(unusable, len(parts) - len(unusable), str(corpus))
    if model is None:
        model = train_on(data, lexicon, experiment, out, resources)
    aligner, spoken = Aligner(model, lang_of(model)), DataDir.read(data)
    tell_lacking([word for one in spoken for word in one.words], aligner.lang.lexicon)
    kept = Kept(aligner, spoken, out, not strict)
    found = between_frames = align_all(aligner, spoken, kept, not strict, resources)
    if not coarse:
        found = refined(found, sounds_of(spoken, rate), model, out)
    by_id = {part.id: part for part in parts}
    found = {name: one.as_written(by_id[name].tokens(known)) for name, one in found.items()}
    kept.write(found.values(), between_frames)
    checked = [Checked(by_id[name], one.transcript, one) for name, one in found.items()]
    ordered = write_found(checked, out)
    bad = [Fault(one.part.id, one.alignment.reason, "no path") for one in checked if not one.alignment.ok]
    resources.leave_out(bad, len(checked) - len(bad), str(corpus))
    marked = [one for one in ordered if one.findings]
    told = (
        f"{len(marked)} of them to be checked, the most suspicious first:"
        if marked
        else "nothing to be checked"
    )
    click.echo(f"{counted(len(checked), 'utterance')} aligned; {told}")
    for one in marked[:WORST]:
        click.echo(f"  {one.part.id}: {'; '.join(one.findings)[:120]}")
    click.echo(f"-> {out / 'index.html'}")
