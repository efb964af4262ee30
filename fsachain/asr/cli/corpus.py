"""A folder of recordings and their transcripts, aligned: `fsachain align-corpus`, which trains the model if there is none.

data/              the corpus as a data directory: what was found beside each recording, in the words of the lexicon
model/, second/    of a model trained here: the folders of `fsachain run`, first from transcripts, then from its times
aligned.jsonl      a line for each utterance that is done, as `Alignment.to_dict`; done again where model, text or recording
                   changed
words.ctm phones.ctm, one TextGrid for each recording in the tree of the corpus
summary.tsv index.html    utterances, the most suspicious first; index.html has sound
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
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
from fsachain.asr.cli.model import FINAL_MODEL, AcousticModel, lang_of
from fsachain.asr.cli.options import FILE, FOLDER, OUT, Read, command, option
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.cli.run import Run, perform
from fsachain.asr.data.audio import Recording, audio_identity
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault, Utterance
from fsachain.asr.decode.align import Alignment
from fsachain.asr.decode.ctm import CtmEntry, textgrid_name, write_ctm, write_textgrid
from fsachain.asr.report.page import render_page
from fsachain.errors import ConfigError, DataError, LeftOutError, counted, require
from fsachain.files import binary_lines, naming, parse_json, replacing, said_words, write_text
from fsachain.graph.lexicon import Lexicon, bare
from fsachain.progress import counter

AUDIO = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff"})
TEXTS = (".TextGrid", ".lab", ".txt")  # beside a recording
DONE = "aligned.jsonl"
WIDE_BAND = 16000  # Hz, at most, where the configuration names no rate
POOR = 0.3  # confidence of a word that index.html marks
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


def find_parts(corpus: Path, out: Path) -> tuple[list[Part], list[Fault]]:
    """The utterances of a folder as the Montreal Forced Aligner lays it out; recordings and transcripts without the other.

    Beside a recording stands x.TextGrid, whose intervals are its utterances and whose tiers are speakers, or x.lab or x.txt,
    which has its words. The speaker of the latter is the folder; of recordings in the corpus's own folder, the recording.
    Any other x.txt may be a note: it is told, and no fault. What lies in `out` is not the corpus's.
    """
    parts, faults, own = [], [], out.resolve()
    files = [
        path for path in sorted(corpus.rglob("*")) if path.is_file() and own not in path.resolve().parents
    ]
    recordings = [path for path in files if path.suffix.lower() in AUDIO]

    def name_of(path: Path) -> str:
        return "-".join("_".join(part.split()) for part in path.relative_to(corpus).with_suffix("").parts)

    first = dict[str, Path]()  # recording of each name
    for audio in recordings:
        where, name = audio.relative_to(corpus).with_suffix(""), name_of(audio)
        if first.setdefault(name, audio) is not audio:
            faults.append(Fault(str(audio), f"{audio}: has the name of {first[name]}", "duplicate id"))
            continue
        grid, *texts = [audio.with_suffix(suffix) for suffix in TEXTS]
        text = next((path for path in texts if path.is_file()), None)
        try:
            if grid.is_file():
                parts += _of_grid(grid, audio, name, where)
            elif text is None:
                faults.append(Fault(name, f"{audio}: no .TextGrid, .lab or .txt beside it", "missing file"))
            else:
                said = tuple(said_words(text))
                speaker = where.parent.as_posix().replace("/", "-") if where.parent.name else name
                parts.append(Part(name, "_".join(speaker.split()), said, str(audio), place=where))
        except DataError as error:
            faults.append(Fault(name, str(error), "table"))
    recorded = {path.with_suffix("") for path in recordings}
    alone = [path for path in files if path.suffix in TEXTS and path.with_suffix("") not in recorded]
    notes = [str(path.relative_to(corpus)) for path in alone if path.suffix == ".txt"]
    if notes:
        named = ", ".join([*notes[:WORST], *(["..."] if len(notes) > WORST else [])])
        click.echo(f"{corpus}: {counted(len(notes), '.txt file')} without a recording beside: {named}")
    kinds = ", ".join(sorted(AUDIO))
    for path in alone:
        if path.suffix != ".txt":
            faults.append(Fault(name_of(path), f"{path}: no recording beside it ({kinds})", "no recording"))
    return parts, faults


def _of_grid(path: Path, audio: Path, name: str, place: Path) -> list[Part]:
    textgrid = require("praatio.textgrid", extra="recipes")
    try:
        grid = textgrid.openTextgrid(str(path), includeEmptyIntervals=False)
        tiers = [(tier, grid.getTier(tier)) for tier in grid.tierNames]
        rows = [
            (tier, entry) for tier, found in tiers if hasattr(found, "insertEntry") for entry in found.entries
        ]
    except Exception as error:  # whatever its parser meets in a damaged file
        raise DataError(f"{path}: cannot be read as a TextGrid: {error}") from error
    spoken = [row for row in sorted(rows, key=lambda row: row[1][0]) if row[1][2].strip()]
    parts = []
    for n, (tier, (start, end, text)) in enumerate(spoken):
        speaker, said = "_".join(tier.split()) or name, tuple(text.split())
        said_by = f"{name}-{n:04d}", speaker, said, str(audio)
        parts.append(Part(*said_by, float(start), float(end), place=place))
    return parts


def in_words_of(text: str, lexicon: Lexicon | None) -> list[str]:
    """The words of a line: as the lexicon has them where it does, else bare, in lower case and composed (NFC)."""
    found = []
    for written in text.split():
        known = lexicon.known_form(written) if lexicon else None
        word = unicodedata.normalize("NFC", bare(written).lower())
        if known or any(map(str.isalnum, word)):
            found.append(known or word)
    return found


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
        words = in_words_of(" ".join(part.words), lexicon)
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
    for folder, first in ((out / "model", None), (out / "second", out / "model")):
        # What cannot be trained on is listed in the folder of the run, and may still be aligned.
        own = replace(resources, cache=out / "model" / "cache", faults=[])
        with suppress(LeftOutError):
            perform(Run(folder, experiment, inputs, own, first=first), end="train")
    return AcousticModel.load(out / "second" / "model" / FINAL_MODEL)


def align_all(
    aligner: Aligner, data: DataDir, out: Path, tolerant: bool, resources: Resources
) -> dict[str, Alignment]:
    """An alignment of each utterance, those kept in aligned.jsonl of the same model, text and recording included."""
    model = aligner.model.path
    version = hashlib.sha256(model.read_bytes() if model else b"").hexdigest()[:16]
    head = {"model": version, "tolerant": tolerant}
    made_of = {one.id: {"text": " ".join(one.words), "recording": audio_identity(one)} for one in data}
    path, found, lines = out / DONE, dict[str, Alignment](), [json.dumps(head)]
    if path.is_file():
        kept = [parse_json(line, f"{path}:{number}") for number, line in binary_lines(path)]
        for row in kept[1:] if kept[:1] == [head] else ():
            if made_of.get(row["utterance"]) == {key: row.get(key) for key in ("text", "recording")}:
                found[row["utterance"]] = Alignment.from_dict(row)
                lines.append(json.dumps(row, ensure_ascii=False))
    write_text(path, "".join(f"{line}\n" for line in lines))
    rest = (one for one in data if one.id not in found)
    with counter("aligning") as update, path.open("a", encoding="utf-8") as file:
        while batch := list(islice(rest, AT_ONCE)):
            usable, outputs = network_outputs(aligner.model, DataDir(tuple(batch)), resources, frame_shift=0)
            rows = []
            for one in usable:
                found[one.id] = aligner.align_scores(one.id, one.words, [outputs[one.id]], tolerant=tolerant)
                rows.append(found[one.id].to_dict() | made_of[one.id])
            with naming(path):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
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

    def shown(self, out: Path) -> dict[str, Any]:
        """What index.html needs."""
        found, part = self.alignment, self.part
        said = sorted([*found.words, *found.other], key=lambda entry: entry.start)
        words = []
        for entry in said:
            kind = "insertion" if entry in found.other else ""
            if not kind and (entry.confidence or 0.0) < POOR:
                kind = "substitution"
            times = f"{entry.start:.2f} to {entry.start + entry.duration:.2f} s, confidence {entry.confidence:.2f}"
            words.append({"label": entry.label, "kind": kind, "title": times})
        words += [{"label": self.words[n], "kind": "deletion", "title": "not said"} for n in found.skipped]
        place = quote(os.path.relpath(part.file.resolve(), out.resolve()))
        end = "" if part.end is None else f",{part.end:.12g}"
        stretch = f"#t={part.start:.12g}{end}" if part.start or end else ""
        return {
            "id": part.id,
            "speaker": part.speaker,
            "seconds": found.seconds,
            "confidence": self.confidence,
            "reason": found.reason,
            "words": words,
            "sound": place + stretch,
        }


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
    shown = [one.shown(out) for one in ordered[:SHOWN]]
    page = render_page("alignments.html", media="*", title=out.resolve().name, about=about, utterances=shown)
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
    model: AcousticModel | None = option(
        Read(AcousticModel.load), "Made by `fsachain train`; without it one is trained here."
    ),
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
    resources.leave_out(write_data(parts, known, rate, data), len(parts), str(corpus))
    if model is None:
        model = train_on(data, lexicon, experiment, out, resources)
    aligner, spoken = Aligner(model, lang_of(model)), DataDir.read(data)
    tell_lacking([word for one in spoken for word in one.words], aligner.lang.lexicon)
    found = align_all(aligner, spoken, out, not strict, resources)
    if not coarse:
        found = refined(found, sounds_of(spoken, rate), model, out)
    texts, by_id = spoken.transcripts, {part.id: part for part in parts}
    checked = [Checked(by_id[name], texts[name], alignment) for name, alignment in found.items()]
    ordered = write_found(checked, out)
    bad = [Fault(one.part.id, one.alignment.reason, "no path") for one in checked if not one.alignment.ok]
    resources.leave_out(bad, len(checked) - len(bad), str(corpus))
    click.echo(f"{counted(len(checked), 'utterance')} aligned; the most suspicious:")
    for one in ordered[:WORST]:
        click.echo(f"  {one.suspicion:6.3f}  {one.part.id}  {' '.join(one.words)[:80]}")
    click.echo(f"-> {out / 'index.html'}")
