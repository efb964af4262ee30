"""One stretch of speech: where its samples or features are, who speaks, what is said."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fsachain.errors import DataError


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a file that holds a file of its own, such as a member of a tar archive.

    Attributes:
        path: the file.
        offset, size: where the part is, in bytes.
        kind: what it is: "audio" for whatever soundfile reads, "npy" or "llc" for a matrix of features [T, F] by NumPy or
            lilcom.
        num_frames: T of features, as the manifest says; None: not known.
    """

    path: str
    offset: int
    size: int
    kind: str
    num_frames: int | None = None

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            DataError: the file cannot be read or ends before.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(descriptor, self.size, self.offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        if len(found) != self.size:
            raise DataError(
                f"{self.path}: ends after {len(found)} of the {self.size} bytes at byte {self.offset}"
            )
        return found


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that lhotse itself reads, because there is more to it than a stretch of a file.

    Attributes:
        text: the cut as JSON, with absolute paths; see `fsachain.data.lhotse_cut`.
        num_frames: of its stored features, as the manifest says; None for audio.
    """

    text: str
    num_frames: int | None = None


Part = Member | Cut


@dataclass(frozen=True, slots=True)
class Utterance:
    """One stretch of speech by one speaker.

    Attributes:
        id: unique name of the utterance.
        speaker: the speaker's name; the utterance's own id where the directory has no `utt2spk`.
        words: the transcript, split at white space; empty where nothing is said or known.
        audio: path of the recording, or a shell command that ends in `|`; None when only features exist.
        start: first second of the utterance in its recording.
        end: second where it ends, exclusive; None for the end of the recording.
        feats: a Kaldi matrix address `file.ark:offset`, or None when features are computed from the audio.
        channel: of the recording, from 0; None for the mean of all.
        audio_part: how the recording is read where it is no whole file; `audio` names it for messages then, and ends in `|`
            if a command or a URL has a part in it. `start` and `end` count in a member; a cut has applied its own, and `end`
            is its length.
        feats_part: the same for features, and `feats`.
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


def is_command(location: str) -> bool:
    """Whether a `wav.scp` or `feats.scp` value is a shell command rather than a path."""
    return location.endswith("|") or location.startswith("|")
