"""One corpus, transcripts corrupted by a seed: trained as they are, forgiving and mended, beside clean ones, then one table.

A forgiving training goes on from the plain one, since a network that knows nothing cannot tell a word from a star; a control
goes on as long and believes them. Mended transcripts are those of the network before, and train a new one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fsachain.cli import call
from recipes.digits.prepare import prepare as prepare_digits
from recipes.pipeline.corpus import prepare_data_dirs
from recipes.pipeline.main import DONE, REPOSITORY, Prepare, run_recipe
from recipes.pipeline.results import Result, add_options, publish, read_result
from recipes.weak_transcripts.corrupt import SAID, Rates, corrupt_text, precision_at

RECALL = 0.8
PRECISION = "precision.txt"
MENDED = "mended"  # folder of a run that is made of mended transcripts

CORPORA: dict[str, Prepare] = {
    "digits": prepare_digits,
    "prompts": prepare_data_dirs,
    "dialogue": prepare_data_dirs,
}
ERRORS = {"17/17/17": Rates(0.17, 0.17, 0.17), "0/0/70": Rates(0.0, 0.0, 0.7)}
# By corpus: a word of a larger vocabulary is a weaker sign of itself. What is missing costs as much as a star's length wins.
WRONG = {
    "digits": {"substitution": 5.0, "insertion": 5.0},
    "prompts": {"substitution": 6.0, "insertion": 7.0},
    "dialogue": {"substitution": 6.0, "insertion": 7.0},
}
MISSING = {"deletion": -3.0}
GOING_ON = {"num_epochs": 12, "schedule.peak": 3e-3}  # section train
WAYS = ("plain", "control", "forgiving", "mended", "mended again")
JUDGES = {"mended": "plain", "mended again": "mended"}
# The search that mends: a low weight of a language model of the corrupted text.
MENDING = {"digits": ["--word-insertion-penalty=-2"]}
USUAL_MENDING = ["--lm-weight=0.7"]
# A network that was let to leave words out needs a bonus for them.
DECODING = {"decoding": {"word_insertion_penalties": [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0]}}
CTC: dict[str, dict[str, Any]] = {
    "lang": {"topology": "ctc"},
    "phone_lm": {"ngram_order": 0},
    "network": {"xent": "none"},
}
OBJECTIVES: dict[str, dict[str, dict[str, Any]]] = {
    "LF-MMI": {},
    "CTC": {
        **CTC,
        "loss": {"leaky_hmm_coefficient": 0.0, "xent_regularize": 0.0},
        "forgive": {"star": "mean"},
    },
}


class Run(NamedTuple):
    """`errors` are those of the transcripts, None for clean ones; `way` is one of `WAYS`."""

    corpus: str
    objective: str
    errors: str | None
    way: str
    seed: int

    @property
    def kind(self) -> str:
        return self.objective + ("" if self.errors is None else f", {self.errors}, {self.way}")

    @property
    def folder(self) -> str:
        parts = (self.corpus, self.objective, self.errors or "clean", self.way, self.seed)
        return "-".join(map(str, parts)).lower().replace("/", "_").replace(" ", "_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the first run that fails, or 0."""
    parser = argparse.ArgumentParser(prog="recipes/weak_transcripts/run.py", description=__doc__)
    parser.add_argument("--corpus", choices=CORPORA, default="digits")
    parser.add_argument(
        "--data", type=Path, required=True, help="corpus folder, see the README of the corpus's recipe"
    )
    parser.add_argument("--objectives", choices=OBJECTIVES, nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--errors", choices=ERRORS, nargs="+", default=list(ERRORS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    add_options(parser, "weak_transcripts")
    options = parser.parse_args(arguments)
    results: dict[Run, tuple[Result, float | None]] = {}
    for objective in options.objectives:
        for seed in options.seeds:
            runs = [Run(options.corpus, objective, None, "plain", seed)]
            runs += [Run(options.corpus, objective, e, way, seed) for e in options.errors for way in WAYS]
            for run in runs:
                print(f"=== {run.corpus}, {run.kind}, seed {run.seed}", flush=True)
                status = _train(run, options)
                if status not in DONE:
                    return status
                file = options.exp / run.folder / "doubts" / PRECISION
                precision = float(file.read_text(encoding="utf-8")) if file.is_file() else None
                results[run] = (
                    read_result(options.exp / run.folder, run.corpus, run.kind, run.seed),
                    precision,
                )
                publish(table_lines(results), options.exp)
    return 0


def _train(run: Run, options: argparse.Namespace) -> int:
    exp, text = options.exp / run.folder, None
    if run.way in JUDGES:
        status = _mend(run, options.exp)
        if status not in DONE:
            return status
        text = (exp / MENDED / "text").read_text(encoding="utf-8")

    def prepare(corpus: Path | None, out: Path, seed: int) -> None:
        CORPORA[run.corpus](corpus, out, seed)
        if run.errors is not None:
            corrupt_text(out / "train" / "text", ERRORS[run.errors], seed)
        if text is not None:
            (out / "train" / "text").write_text(text, encoding="utf-8")

    own: dict[str, dict[str, Any]] = {}
    if run.way in ("control", "forgiving"):
        plain = options.exp / run._replace(way="plain").folder / "model" / "model.safetensors"
        own = {"network": {"init_from": str(plain.resolve())}, "train": GOING_ON}
    if run.way == "forgiving":
        own["forgive"] = MISSING | (WRONG[run.corpus] if ERRORS[run.errors or ""].substitution else {})
    changes = [
        f"{section}.{option}={json.dumps(value)}"
        for table in (OBJECTIVES[run.objective], DECODING, own)
        for section, values in table.items()
        for option, value in values.items()
    ]
    status = run_recipe(
        REPOSITORY / "recipes" / run.corpus,
        prepare,
        [
            f"--exp={exp}",
            f"--seed={run.seed}",
            f"--corpus={options.data}",
            "--to=decode",
            *(f"--set={change}" for change in (*changes, *options.set)),
        ],
        made_of={"errors": run.errors, "mended": text and hashlib.sha256(text.encode()).hexdigest()},
    )
    if status not in DONE or run.way != "forgiving" or not ERRORS[run.errors or ""].substitution:
        return status
    doubts, data = exp / "doubts", exp / "data" / "train"
    model = exp / "model" / "model.safetensors"
    status = call(["suspicious", str(model), str(data), str(doubts), f"--den={exp / 'graphs'}"])
    if status in DONE:
        precision = precision_at(RECALL, doubts / "words.txt", data / SAID)
        (doubts / PRECISION).write_text(f"{precision}\n", encoding="utf-8")
    return status


def _mend(run: Run, folder: Path) -> int:
    """The corrupted transcripts as the network before hears them."""
    plain, judge = (folder / run._replace(way=way).folder for way in ("plain", JUDGES[run.way]))
    rates, out = ERRORS[run.errors or ""], folder / run.folder / MENDED
    absent = [name for name in ("substitution", "insertion") if not getattr(rates, name)]
    arpa = plain / "decode" / "grammar.arpa"
    more = [*(f"--{name}=inf" for name in absent), "--deletion=1", *MENDING.get(run.corpus, USUAL_MENDING)]
    more += [f"--arpa={arpa}"] if arpa.is_file() else []
    model = judge / "model" / "model.safetensors"
    return call(["mend", str(model), str(plain / "data" / "train"), str(out), *more])


def table_lines(results: Mapping[Run, tuple[Result, float | None]]) -> list[str]:
    """A Markdown table of the WER on test, a line for each corpus, objective, kind of error and seed."""
    head = ["corpus", "objective", "errors", "seed", *WAYS, "clean", "precision at 80 % recall"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for run in results:
        if run.errors is None or run.way != "plain":
            continue
        told = [*(run._replace(way=way) for way in WAYS), run._replace(errors=None)]
        wers = [f"{results[one][0].wer:.2f} %" if one in results else "" for one in told]
        precision = results[told[2]][1] if told[2] in results else None
        share = "" if precision is None else f"{precision:.2f}"
        lines.append(
            f"| {run.corpus} | {run.objective} | {run.errors} | {run.seed} | {' | '.join(wers)} | {share} |"
        )
    return lines
