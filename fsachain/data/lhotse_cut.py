"""Samples and features of cuts that only lhotse can read: with transforms, mixed, or with stored features.

The JSON of such a cut has passed `fsachain.data.cuts`, which refuses sources that run commands or fetch URLs unless
the reader of the manifest allowed them, and which makes paths absolute.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.errors import DataError, require

_MOST_SECONDS = 7200.0  # of an utterance, as `fsachain.data.audio.MAX_SECONDS`
_MOST_UPSAMPLING = 20
_RANGES = {
    "duration": (0.0, _MOST_SECONDS),
    "offset": (0.0, _MOST_SECONDS),
    "num_samples": (0, _MOST_SECONDS * 192_000),
    "num_frames": (0, _MOST_SECONDS * 1000),
    "num_features": (0, 100_000),
    "factor": (0.1, 10.0),
    "sampling_rate": (1, 1_000_000),
    "source_sampling_rate": (1, 1_000_000),
    "target_sampling_rate": (1, 1_000_000),
}
_OF_TRANSFORMS = ("factor", "source_sampling_rate", "target_sampling_rate")


def cut_of(content: dict[str, Any]) -> Any:
    """The lhotse object of a cut in its JSON form.

    Raises:
        DataError: it is none.
    """
    serialization = require("lhotse.serialization", extra="lhotse")
    try:
        return serialization.deserialize_item(copy.deepcopy(content))  # which takes its argument apart
    except Exception as error:  # lhotse checks by assertions and by whatever breaks
        raise DataError(f"no cut that lhotse reads ({type(error).__name__}: {error})") from error


def cut_samples(text: str, sample_rate: int) -> NDArray[np.float32]:
    """Samples of a cut, float32 [L]; the mean of the channels where there are several.

    Raises:
        DataError: a file is missing or no regular file, it has another rate, or lhotse cannot read it.
    """
    cut = _checked(text)
    if cut.sampling_rate != sample_rate:
        raise DataError(
            f"has {cut.sampling_rate} Hz, expected {sample_rate} Hz; resample the cuts or change sample_rate"
        )
    try:
        samples = np.asarray(cut.load_audio(), np.float32)
    except Exception as error:  # as above
        raise DataError(f"lhotse cannot read it ({type(error).__name__}: {error})") from error
    return samples[0] if len(samples) == 1 else samples.mean(axis=0)


def cut_features(text: str) -> NDArray[np.float32]:
    """Stored features of a cut, float32 [T, F].

    Raises:
        DataError: a file is missing or no regular file, or lhotse cannot read it.
    """
    cut = _checked(text)
    try:
        return np.asarray(cut.load_features(), np.float32)
    except Exception as error:  # as above
        raise DataError(f"lhotse cannot read it ({type(error).__name__}: {error})") from error


def cut_identity(text: str) -> str | None:
    """A string that changes when the audio does; None where a command or a URL makes it.

    Raises:
        OSError: a file is missing.
    """
    content = json.loads(text)
    if not from_files(content):
        return None
    status = [Path(path).stat() for path in _files(content)]
    return "|".join([text, *(f"{one.st_size}|{one.st_mtime_ns}" for one in status)])


def from_files(content: Any) -> bool:
    """Whether all audio of a cut comes from files, none from a command or URL."""
    return all(source.get("type") == "file" for source in _sources(content))


def _checked(text: str) -> Any:
    """The cut, once its files are known to be files: lhotse opens what looks like a pipe or a URL as such."""
    content = json.loads(text)
    check_sizes(content)
    for path in _files(content):
        if not Path(path).is_file():
            raise DataError(f"{path!r} is missing or no regular file")
    return cut_of(content)


def check_sizes(content: Any) -> None:
    """Refuse what would take memory for hours of silence or for a change of rate that nobody asks for.

    The length of a cut is claimed in several places, of which lhotse believes each where it needs it.

    Raises:
        DataError: a number of the cut, of a cut in it, or of a transform is none or out of range.
    """
    for part in _dicts(content):
        whole = (
            "sources" in part or "storage_type" in part
        )  # a recording or features, of which a cut is a stretch
        for name, (lowest, highest) in _RANGES.items():
            if name in part and not (whole and name not in _OF_TRANSFORMS):
                _check_range(name, part[name], lowest, highest)
        rate, wanted = part.get("source_sampling_rate"), part.get("target_sampling_rate")
        if rate is not None and wanted is not None and wanted > _MOST_UPSAMPLING * rate:
            raise DataError(
                f"a transform from {rate} to {wanted} Hz; expected at most {_MOST_UPSAMPLING} times"
            )


def _check_range(name: str, value: Any, lowest: float, highest: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise DataError(f"{name} = {value!r:.40}; expected {lowest:g} to {highest:g}")


def _files(content: Any) -> Iterator[str]:
    """Every file that the cut's samples or features come from."""
    for source in _sources(content):
        if source.get("type") == "file":
            yield str(source["source"])
    for part in _dicts(content):
        if "storage_type" in part:
            path = Path(part["storage_path"])
            yield str(path if part["storage_type"] == "lilcom_chunky" else path / part["storage_key"])


def _sources(content: Any) -> Iterator[dict[str, Any]]:
    for part in _dicts(content):
        yield from (source for source in part.get("sources") or () if isinstance(source, dict))


def _dicts(content: Any) -> Iterator[dict[str, Any]]:
    """Every table in a JSON value, the outermost first."""
    if isinstance(content, dict):
        yield content
        content = list(content.values())
    if isinstance(content, list):
        for inner in content:
            yield from _dicts(inner)
