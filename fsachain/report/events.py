"""Logs of one JSON object per line, read while they are written and after a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsachain.errors import DataError


@dataclass(frozen=True)
class EventLog:
    """The events of a log, and how many lines are none: cut short, or damaged."""

    events: tuple[dict[str, Any], ...]
    num_unreadable: int = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.get("event") == kind]


def read_events(path: Path) -> EventLog:
    """The events of a log; lines that are no JSON object are counted and passed over, wherever they stand.

    `fsachain.train.log.read_log` is the strict reader. This one is for looking: a report of a damaged log is worth more
    than none.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the log: {error.strerror}") from error
    events, unreadable = [], 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or brackets without end
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            unreadable += 1
    return EventLog(tuple(events), unreadable)


def number(table: Any, *path: str) -> float | None:
    """The finite number at a place in nested tables; None where there is none."""
    value = table
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def text(table: Mapping[str, Any], name: str) -> str:
    """The string of that name; empty where there is none."""
    value = table.get(name)
    return value if isinstance(value, str) else ""


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list; empty where it is no list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


# Where the files of an experiment lie.

STAGE_LOG = "stages.jsonl"


@dataclass(frozen=True)
class Layout:
    """The folders and files that a report is made of; none of them need exist yet.

    Attributes:
        exp: the experiment.
        stage_log: what ran and what it took, one line of JSON for each event; the model's own where a command trained it.
        model: the training's folder: train.jsonl, model.safetensors, experiment.json.
        decoded: the decoder's: hyp.txt, wer.json, tuning.json.
        aligned: the aligner's: words.ctm, phones.ctm.
        lang: lexicon.json, tree.npz.
        graphs: den.fst, normalization.fst, phone_lm.fst, train.npz.
        data: data directories by name; `test` is the one that was decoded.
        pictures: figures that somebody drew, to be shown too.
    """

    exp: Path
    stage_log: Path
    model: Path
    decoded: Path
    aligned: Path
    lang: Path
    graphs: Path
    data: dict[str, Path]
    pictures: Path

    @classmethod
    def find(cls, exp: Path, *, base: Path | None = None, test: Path | None = None) -> Layout:
        """The layout of a folder, as a recipe leaves it or as in docs/training.md.

        Args:
            exp: the experiment's folder.
            base: the folder that has data, lang and graphs, where that is another one; by default what a recipe's second
                pass noted as its first, else `exp`.
            test: the data directory that was decoded; by default `data/test` or `test` of `base`.

        Raises:
            DataError: there is no such folder.
        """
        if not exp.is_dir():
            raise DataError(f"{exp}: no such folder; expected that of an experiment")
        base = base or _first_pass(exp / STAGE_LOG) or exp
        data = {name: _either(base / "data" / name, base / name) for name in ("train", "dev", "test")}
        return cls(
            exp=exp,
            stage_log=_either(exp / STAGE_LOG, exp / "model" / STAGE_LOG),
            model=exp / "model",
            decoded=_either(exp / "decode", exp / "decoded"),
            aligned=_either(exp / "align", exp / "aligned"),
            lang=base / "lang",
            graphs=base / "graphs",
            data=data if test is None else {**data, "test": test},
            pictures=exp / "pictures",
        )


def _either(first: Path, second: Path) -> Path:
    return second if second.exists() and not first.exists() else first


def _first_pass(log: Path) -> Path | None:
    """The folder of the first pass as the newest run of a second pass names it."""
    if not log.is_file():
        return None
    for event in reversed(read_events(log).events):
        first = event.get("first")
        if event.get("event") == "run" and isinstance(first, str) and first:
            return Path(first)
    return None
