"""Utterances: where the samples or features of each are, who speaks, what is said; and what can be wrong with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fsachain.errors import DataError, brief, counted, printable
from fsachain.files import replacing


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a file that holds a file of its own, such as a member of a tar archive; `offset` and `size` in bytes.

    `kind` is "audio" for whatever soundfile reads, "npy" or "llc" for a matrix of features [T, F] by NumPy or lilcom.
    `num_frames` is T as the manifest says.
    """

    path: str
    offset: int
    size: int
    kind: str
    num_frames: int | None = None

    def read(self) -> bytes:
        try:
            with open(self.path, "rb", buffering=0) as file:  # noqa: PTH123
                file.seek(self.offset)
                found = file.read(self.size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        if len(found) != self.size:
            raise DataError(
                f"{self.path}: ends after {len(found)} of the {counted(self.size, 'byte')} at byte {self.offset}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that lhotse itself reads, because it is more than a stretch of a file.

    `text` is the cut as JSON with absolute paths, checked by `fsachain.asr.data.cuts`; `num_frames` is that of stored
    features.
    """

    text: str
    num_frames: int | None = None


Part = Member | Cut


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that makes 100,000 of them take 0.4 s longer
class Utterance:
    """One stretch of speech by one speaker; not to be changed.

    Attributes:
        id: unique name of the utterance.
        speaker: the speaker's name; the utterance's own id where the directory has no `utt2spk`.
        words: the transcript, split at white space; empty where nothing is said or known.
        audio: path of the recording, or a shell command that ends in `|`; None when only features exist.
        start: first second of the utterance in its recording.
        end: second where it ends, exclusive; None for the end of the recording.
        feats: a Kaldi matrix address `file.ark:offset`, or None when features are computed from the audio.
        channel: of the recording, from 0; None for the mean of all.
        audio_part: how the recording is read where it is no whole file. For a `Member`, `audio` is its file, and `start`
            and `end` apply. For a `Cut`, which has applied its own start, `end` is its length, and `audio` a name for
            messages that ends in `|` if a command or a URL is part of the cut.
        feats_part: how features are read where they have no Kaldi address; `feats` then is the file or folder.
    """

    id: str
    speaker: str
    words: tuple[str, ...]
    audio: str | None
    start: float = 0.0
    end: float | None = None
    feats: str | None = None
    channel: int | None = None
    audio_part: Part | None = None
    feats_part: Part | None = None

    __repr__ = brief

    def unusable(self, kind: str, reason: str) -> UtteranceError:
        """The error that says so; `reason` goes on behind "utterance 'id'"."""
        return UtteranceError(kind, self.id, f"utterance {self.id!r}{reason}")


def is_command(location: str) -> bool:
    """Whether a `wav.scp` or `feats.scp` value is a shell command rather than a path."""
    return location.endswith("|") or location.startswith("|")


_KINDS = (
    "table, duplicate id, no transcript, no recording, no features, no speaker, segment, shell command, missing file, "
    "unreadable audio, empty audio, sampling rate, unreadable features, width of features, features not finite, no frames, "
    "digital silence, empty text, unknown word, no pronunciation, no alignment, no numerator, too short, no path"
)
KINDS = tuple(_KINDS.split(", "))  # of faults, in the order of `fault_table`
_MOST_KINDS = 3  # of faults in one line
SHOWN = 5  # utterances per kind; the others are counted
MOST_NAMELESS = 500  # faulty lines that name no utterance
LONGEST_DETAIL = 400  # letters


@dataclass(frozen=True)
class Fault:
    """An utterance that cannot be trained on (for a fault of a whole table, the file), and why.

    `reason` is one line that names what is there and what is expected, `kind` is one of `KINDS`.
    """

    id: str
    reason: str
    kind: str = "no numerator"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"kind of fault: {self.kind!r} is not one of {', '.join(KINDS)}")

    @property
    def without_id(self) -> str:
        """The reason, where it does not begin by naming the utterance."""
        bare = self.reason.removeprefix(f"utterance {self.id!r}").removeprefix(self.id)
        return bare.removeprefix(":").lstrip()

    def __str__(self) -> str:
        return f"{self.id}: {self.without_id}"


class UtteranceError(DataError):
    """One utterance cannot be used; others may be."""

    def __init__(self, kind: str, utterance: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(utterance, message, kind)

    def __reduce__(self) -> tuple[type[UtteranceError], tuple[str, str, str]]:
        return type(self), (self.fault.kind, self.fault.id, self.fault.reason)


class Faults:
    """What readers of tables and manifests find wrong: the first fault of each utterance.

    With `stop` the first fault is raised as `UtteranceError` instead.
    """

    def __init__(self, *, stop: bool) -> None:
        self.stop = stop
        self.by_id: dict[str, Fault] = {}
        self.nameless: list[Fault] = []  # of lines that name no utterance

    def report(self, kind: str, name: str, path: str | Path, line: int, message: str) -> None:
        """Keep a fault of the utterance `name` (empty: not known) in a line (0: none in particular) of a file."""
        if name in self.by_id:
            return
        where = f"{path}:{line}" if line else str(path)
        fault = Fault(name or where, f"{where}: {message}", kind)
        if self.stop:
            raise UtteranceError(kind, fault.id, fault.reason)
        if name:
            self.by_id[name] = fault
            return
        self.nameless.append(fault)
        if len(self.nameless) > MOST_NAMELESS:
            raise DataError(
                f"more than {MOST_NAMELESS} lines are none of such a file; the last: {fault.reason}"
            )


def told_tried() -> str:
    """Return where relative paths were looked for, for messages about a file that is not there."""
    return f"relative paths are tried from the folder of the table, then from {Path.cwd()}"


def shortened(detail: object) -> str:
    text = str(detail)
    return text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}..."


# What helps against faults whose reason does not say so itself, by kind.
_REMEDIES = {
    "no transcript": "every utterance needs a line in text",
    "no recording": "every utterance needs a line in wav.scp or segments, or in feats.scp",
    "no features": "delete feats.scp to have features computed from the recordings",
    "no speaker": "every utterance needs a line in utt2spk, or there is no such file",
    "sampling rate": "features.sample_rate is the rate that is expected; resample the recordings, or change it",
    "width of features": "features.num_mel_bins or features.num_columns is the width that is expected",
    "digital silence": "the recordings may be damaged",
    "empty text": "write the transcripts, or take the utterances out of the data set",
    "no alignment": "align this data set anew with `fsachain align`",
    "no numerator": "make the numerators of this data set anew with `fsachain num-graphs`",
    "too short": "do recordings and transcripts belong together? A network of less subsampling needs fewer frames",
}


def check_left_out(faults: Iterable[Fault], total: int, where: str, allowed: float) -> None:
    """Raise a DataError if more than the share `allowed` of `total` utterances have a fault.

    The message has the share, the commonest reasons, and what helps.
    """
    by_id = {fault.id: fault for fault in faults}
    if len(by_id) <= allowed * total:
        return
    share = f"{len(by_id):,} of {counted(total, 'utterance', ',')} ({100 * len(by_id) / total:.3g} %)"
    raise DataError(
        f"{where}: {share} would be left out, more than the {100 * allowed:g} % that --allow-left-out (in Python "
        f"allow_left_out) allows: {told_reasons(by_id.values())}"
    )


def told_reasons(faults: Iterable[Fault]) -> str:
    """The commonest kinds of the faults with their numbers, the first fault of the commonest, and what helps."""
    every = list(faults)
    kinds = Counter(fault.kind for fault in every).most_common(_MOST_KINDS)
    first = next(fault for fault in every if fault.kind == kinds[0][0])
    numbers = ", ".join(f"{number:,} x {kind}" for kind, number in kinds)
    remedy = f"; {_REMEDIES[first.kind]}" if first.kind in _REMEDIES else ""
    return f"{numbers}; the first: {first.reason}{remedy}"


def fault_table(faults: Iterable[Fault], shown: int = SHOWN) -> str:
    """The faults as text: for each kind their number, and the first `shown` with their reasons."""
    by_kind: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
    for fault in faults:
        by_kind[fault.kind].append(fault)
    lines = []
    for kind, found in by_kind.items():
        if found:
            lines.append(f"{len(found):>7}  {kind}")
            alike: dict[str, list[str]] = {}  # utterances by what is said of them
            for fault in found[:shown]:
                alike.setdefault(fault.without_id, []).append(fault.id)
            lines += [f"{'':>9}{printable(', '.join(names) + ': ' + why)}" for why, names in alike.items()]
        if len(found) > shown:
            lines.append(f"{'':>9}and {len(found) - shown} more")
    return "\n".join(lines)


def told_left_out(faults: Sequence[Fault], where: str = "") -> str:
    """How many utterances are left out, and `fault_table`."""
    verb = "is" if len(faults) == 1 else "are"
    return f"{counted(len(faults), 'utterance')} {verb} left out{where}:\n{fault_table(faults)}"


def write_faults(path: str | Path, faults: Iterable[Fault]) -> None:
    """All faults, one JSON object (id, reason, kind) per line; the file is written all or nothing."""
    with replacing(path) as file:
        file.writelines(json.dumps(asdict(fault)).encode() + b"\n" for fault in faults)
