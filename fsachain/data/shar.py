"""Where the data of Shar shards lie: members of tar archives, found without unpacking anything."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from fsachain.data.faults import Faults
from fsachain.data.utterance import Member

LONGEST_HEADER = 1 << 14  # bytes of a member's headers, long names included
_MATRICES = {"npy": "npy", "llc": "llc"}
_EMPTY = ("json", "nodata", "nometa")
Members = dict[str, dict[str, Member]]  # by field and by cut


class Refusal(Exception):
    """A cut is not used: a kind of fault, and what is wrong."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def shard_members(cuts: Path, faults: Faults) -> Members:
    """Where the members of the tars beside a shard of cuts are; `faults` is told of a tar that is left out."""
    number = cuts.name.removeprefix("cuts").partition(".jsonl")[0]
    found: Members = {}
    for field in ("recording", "features"):
        path = cuts.with_name(f"{field}{number}.tar")
        if path.is_file():
            try:
                found[field] = _members(path)
            except Refusal as error:
                faults.report(error.kind, "", path, 0, "{detail}", error)
    return found


class _Headers:
    """A file of which `tarfile` reads headers and nothing else, few bytes for each member."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, LONGEST_HEADER

    def read(self, size: int) -> bytes:
        """At most as many bytes as are left for the member."""
        self._left -= size
        if self._left < 0:
            raise Refusal("table", f"a header of more than {LONGEST_HEADER} bytes")
        return self._file.read(size)

    def begin(self) -> None:
        """The next member."""
        self._left = LONGEST_HEADER

    def seek(self, place: int) -> int:
        """As of the file."""
        return self._file.seek(place)

    def tell(self) -> int:
        """As of the file."""
        return self._file.tell()


def _infos(path: Path) -> Iterator[tarfile.TarInfo]:
    """What the headers of an archive say, one at a time."""
    with path.open("rb") as file:
        headers = _Headers(file)
        with tarfile.open(fileobj=cast(BinaryIO, headers), mode="r:") as tar:
            while (info := tar.next()) is not None:
                if tar.pax_headers:
                    raise Refusal("table", "headers for all members; expected none")
                yield info
                tar.members.clear()  # type: ignore[attr-defined]  # a kilobyte for each
                headers.begin()


def _members(path: Path) -> dict[str, Member]:
    size = path.stat().st_size
    place = str(path.absolute())
    found: dict[str, Member] = {}
    try:
        for info in _infos(path):
            stem, _, suffix = info.name.rpartition(".")
            if not info.isreg() or info.issparse():
                raise Refusal(
                    "table", f"the member {info.name!r} is no plain file; links and folders are refused"
                )
            if suffix in _EMPTY:
                continue
            if stem in found or info.offset_data + info.size > size:
                raise Refusal(
                    "table", f"the member {info.name!r} is there twice, or the file ends before it does"
                )
            kind = _MATRICES.get(suffix, "audio")
            found[stem] = Member(place, info.offset_data, info.size, kind)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise Refusal("table", f"no tar archive, or damaged ({error})") from error
    return found
