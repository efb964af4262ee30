"""Where the files of an experiment lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsachain.errors import DataError
from fsachain.report.events import read_events

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
