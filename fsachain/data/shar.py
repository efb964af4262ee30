"""Where the data of Shar shards lie: members of tar archives, found without unpacking anything."""

from __future__ import annotations

import tarfile
from pathlib import Path

from fsachain.data.utterance import Member, Report

_MATRICES = {"npy": "npy", "llc": "llc"}
_EMPTY = ("json", "nodata", "nometa")
Members = dict[str, dict[str, Member]]  # by field and by cut


class Refusal(Exception):
    """A cut is not used: a kind of fault, and what is wrong."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def shard_members(cuts: Path, report: Report) -> Members:
    """Where the members of the tars beside a shard of cuts are."""
    number = cuts.name.removeprefix("cuts").partition(".jsonl")[0]
    found: Members = {}
    for field in ("recording", "features"):
        path = cuts.with_name(f"{field}{number}.tar")
        if path.is_file():
            try:
                found[field] = _members(path)
            except Refusal as error:
                report(error.kind, str(path), f"{path}: {error}")
    return found


def _members(path: Path) -> dict[str, Member]:
    size = path.stat().st_size
    found: dict[str, Member] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
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
                found[stem] = Member(str(path.absolute()), info.offset_data, info.size, kind)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise Refusal("table", f"no tar archive, or damaged ({error})") from error
    return found
