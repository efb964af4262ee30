"""What is wrong with utterances, and how it is shown: one table, by kind."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, overload

from fsachain.data.utterance import ByRow, SharedColumn
from fsachain.errors import DataError, printable
from fsachain.files import replacing
from fsachain.names import Names

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
MOST_NAMELESS = 500  # faulty lines that name no utterance
LONGEST_DETAIL = 400  # letters


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


class Form(NamedTuple):
    """What faults that differ only in utterance, line and a detail have in common.

    Attributes:
        kind: one of `KINDS`.
        path: the file.
        text: what is wrong, as a format for `name` and `detail`.
    """

    kind: str
    path: str
    text: str

    def fault(self, name: str, line: int, detail: str) -> Fault:
        """One of them; without a name it is the line's, without a line (0) the file's."""
        where = f"{self.path}:{line}" if line else self.path
        return Fault(name or where, f"{where}: {self.text.format(name=name, detail=detail)}", self.kind)


class Faults(Sequence[Fault]):
    """What is wrong with utterances, the first fault of each in the order of their ids, then lines that name none.

    A fault takes six bytes beside its detail and is made when asked for; one in the middle is reached by counting.

    Args:
        ids: of the utterances; an id that is reported is added.

    Attributes:
        ids: as given.
    """

    def __init__(self, ids: Names) -> None:
        self.ids = ids
        self._numbers: dict[Form, int] = {}  # from 1
        self._forms = ByRow("H")  # of an utterance: the number of the form; 0: nothing is wrong
        self._lines = ByRow()
        self._details = SharedColumn(Names())  # those of a kind are often the same
        self._nameless: list[Fault] = []
        self._count = 0

    def report(
        self, kind: str, name: str, path: str | Path, line: int, text: str, detail: object = ""
    ) -> None:
        """Keep a fault if it is the first of its utterance.

        Args:
            kind: one of `KINDS`.
            name: of the utterance; empty where that is not known.
            path, line: where it is; line 0: nowhere in particular.
            text: what is wrong, as a format for `name` and `detail`.
            detail: what differs between faults of a kind; cut after `LONGEST_DETAIL` letters.

        Raises:
            DataError: too many lines name no utterance; the file is something else.
        """
        form = Form(kind, str(path), text)
        if not name:
            self._nameless.append(form.fault(name, line, _cut(detail)))
            if len(self._nameless) > MOST_NAMELESS:
                last = self._nameless[-1].reason
                raise DataError(f"more than {MOST_NAMELESS} lines are none of such a file; the last: {last}")
            return
        row = self.ids.add(name)
        if self.holds(row):
            return
        self._count += 1
        self._forms[row] = self._numbers.setdefault(form, len(self._numbers) + 1)
        if line:
            self._lines[row] = line
        if detail != "":
            self._details.share(row, _cut(detail))

    def holds(self, row: int) -> bool:
        """Whether something is wrong with the utterance of this place in the ids."""
        return self._forms[row] != 0

    def __len__(self) -> int:
        return self._count + len(self._nameless)

    def __iter__(self) -> Iterator[Fault]:
        forms = list(self._numbers)
        for row, name in enumerate(self.ids):
            if self.holds(row):
                form = forms[self._forms[row] - 1]
                yield form.fault(name, self._lines[row], self._details.get(row) or "")
        yield from self._nameless

    @overload
    def __getitem__(self, place: int) -> Fault: ...

    @overload
    def __getitem__(self, place: slice) -> list[Fault]: ...

    def __getitem__(self, place: int | slice) -> Fault | list[Fault]:
        if isinstance(place, slice):
            return list(self)[place]
        return next(islice(self, range(len(self))[place], None))


class NoFaults(Faults):
    """No fault is kept: the first is an error."""

    def report(
        self, kind: str, name: str, path: str | Path, line: int, text: str, detail: object = ""
    ) -> None:
        """Raise the fault.

        Raises:
            UtteranceError: always.
        """
        fault = Form(kind, str(path), text).fault(name, line, _cut(detail))
        raise UtteranceError(fault.kind, fault.id, fault.reason)


def fault_table(faults: Iterable[Fault], shown: int = SHOWN) -> str:
    """The faults as text: for each kind their number, and the first `shown` with their reasons."""
    counts: Counter[str] = Counter()
    examples: defaultdict[str, list[str]] = defaultdict(list)
    for fault in faults:
        counts[fault.kind] += 1
        if counts[fault.kind] <= shown:
            examples[fault.kind].append(f"{'':>9}{printable(str(fault))}")
    lines = []
    for kind in KINDS:
        if counts[kind]:
            lines += [f"{counts[kind]:>7}  {kind}", *examples[kind]]
        if counts[kind] > shown:
            lines.append(f"{'':>9}and {counts[kind] - shown} more")
    return "\n".join(lines)


def _cut(detail: object) -> str:
    text = str(detail)
    return text if len(text) <= LONGEST_DETAIL else f"{text[:LONGEST_DETAIL]}..."


def write_faults(path: str | Path, faults: Iterable[Fault]) -> None:
    """All faults, one JSON object (id, reason, kind) per line; the file is written all or nothing."""
    with replacing(path) as file:
        file.writelines(json.dumps(asdict(fault)).encode() + b"\n" for fault in faults)
