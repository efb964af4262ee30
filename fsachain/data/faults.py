"""What is wrong with utterances, and how it is shown: one table, by kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fsachain.errors import DataError, printable
from fsachain.files import write_text

# Every kind of fault, in the order of the table.
KINDS = (
    "table",
    "duplicate id",
    "no transcript",
    "no recording",
    "no speaker",
    "segment",
    "shell command",
    "missing file",
    "unreadable audio",
    "empty audio",
    "sampling rate",
    "unreadable features",
    "width of features",
    "features not finite",
    "no frames",
    "empty text",
    "unknown word",
    "no pronunciation",
    "no numerator",
    "too short",
    "no path",
)
SHOWN = 5  # utterances per kind; the others are counted


@dataclass(frozen=True)
class Fault:
    """An utterance that cannot be trained on, and why.

    Attributes:
        id: of the utterance; the file, for a fault of a whole table.
        reason: one line that names what is there and what is expected.
        kind: one of `KINDS`.
    """

    id: str
    reason: str
    kind: str = "no numerator"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DataError(f"kind of fault: {self.kind!r} is not one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.id}: {self.reason}"


class UtteranceError(DataError):
    """One utterance cannot be used; others may.

    Attributes:
        fault: the utterance, the kind of fault and the message.
    """

    def __init__(self, kind: str, utterance: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(utterance, message, kind)

    def __reduce__(self) -> tuple[type[UtteranceError], tuple[str, str, str]]:
        return type(self), (self.fault.kind, self.fault.id, self.fault.reason)


def fault_table(faults: Sequence[Fault], shown: int = SHOWN) -> str:
    """The faults as text: for each kind their number, and the first `shown` with their reasons."""
    lines = []
    for kind in KINDS:
        mine = [fault for fault in faults if fault.kind == kind]
        if not mine:
            continue
        lines.append(f"{len(mine):>7}  {kind}")
        lines += [f"{'':>9}{printable(str(fault))}" for fault in mine[:shown]]
        if len(mine) > shown:
            lines.append(f"{'':>9}and {len(mine) - shown} more")
    return "\n".join(lines)


def write_faults(path: str | Path, faults: Sequence[Fault]) -> None:
    """All faults, one JSON object (id, reason, kind) per line; the file is written all or nothing."""
    write_text(path, "".join(json.dumps(asdict(fault)) + "\n" for fault in faults))
