"""One corpus, transcripts corrupted by a seed: trained as they are, forgiving and mended, beside clean ones, then one table.

A forgiving training goes on from the plain one, since a network that knows nothing cannot tell a word from a star; or, where
words are missing alone, from one of the utterances with most words for their duration. A control goes on as long as it, and
believes them. Mended transcripts are those of the forgiving network, and train a new one; then those of
networks that had other parts of the training set alone, since one that has heard an utterance agrees with its transcript.
`--help` lists what can be chosen.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

RECIPES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(RECIPES.parent))  # so that the script starts from any folder

from fsachain.asr.cli import call
from fsachain.asr.decode.wer import read_text
from recipes.digits.prepare import prepare as prepare_digits
from recipes.pipeline.corpus import prepare_data_dirs, read_data_dirs, write_data_dir
from recipes.pipeline.main import Prepare
from recipes.pipeline.results import Result, add_options, finish, publish, read_result, run_with, settings
from recipes.weak_transcripts.corrupt import SAID, Rates, corrupt_text, densest, precision_at

RECALL = 0.8
MODEL = Path("model") / "model.safetensors"  # in the folder of a run
MENDED = "mended"  # folder of a run that is made of mended transcripts
PATTERNS = "patterns.txt"  # there: what else may have been said
MADE_OF = "made_of"  # there: digest of what it was made of

CORPORA: dict[str, Prepare] = {
    "digits": prepare_digits,
    "prompts": prepare_data_dirs,
    "dialogue": prepare_data_dirs,
}
ERRORS = {"17/17/17": Rates(0.17, 0.17, 0.17), "0/0/70": Rates(0.0, 0.0, 0.7)}
# By objective and corpus: a word of a larger vocabulary is a weaker sign of itself, and a network that hears little needs
# stronger ones. With CTC none was found that helps dialogue; these do least harm on its dev set: see RESULTS.md.
WRONG = {
    "LF-MMI": {
        "digits": {"substitution": 5.0, "insertion": 5.0},
        "prompts": {"substitution": 6.0, "insertion": 7.0},
        "dialogue": {"substitution": 12.0, "insertion": 14.0},
    },
    "CTC": {
        "digits": {"substitution": 5.0, "insertion": 5.0},
        "prompts": {"substitution": 12.0, "insertion": 14.0, "deletion": 0.0},
        "dialogue": {"substitution": 20.0, "insertion": 22.0, "deletion": 2.0},
    },
}
# By objective and errors. Beside a penalty a star costs its length, in LF-MMI by the phone model and in CTC some 2.5 nats;
# both together should be above 0 and at most -log p, with p the share of the words that are left out, as
# docs/weak_transcripts.md derives. A network that is unsure needs dearer ones: WRONG may have a deletion of its own.
MISSING = {
    "LF-MMI": {"17/17/17": -3.0, "0/0/70": -3.0},
    "CTC": {"17/17/17": -1.5, "0/0/70": 0.0},  # the latter by the counts in the log: see RESULTS.md
}
# With stars of frames, which cost something to begin and for each frame, in place of these.
OF_FRAMES = {"digits": {}, "prompts": {"substitution": 8.0, "insertion": 8.0}, "dialogue": {}}
# A star of CTC may have a silence behind each phone, and pays where it has none; blanks serve there.
FORGIVING: dict[str, dict[str, dict[str, Any]]] = {"LF-MMI": {}, "CTC": {"lang": {"silence_prob": 0.05}}}
# Section train. Where words are missing alone, a star may take ever more of the speech: shorter.
GOING_ON = {
    "17/17/17": {"num_epochs": 12, "schedule.peak": 3e-3},
    "0/0/70": {"num_epochs": 6, "schedule.peak": 2e-3},
}
# The network that a way starts from: goes on with, or has its transcripts mended by. Where one that may be left out is, what
# it would have started from takes its place; but that which is trained on the densest utterances starts from nothing.
BEFORE = {
    "control": "plain",
    "dense": "plain",
    "forgiving": "dense",
    "mended": "forgiving",
    "mended crosswise": "mended",
    "mended crosswise twice": "mended crosswise",
}
MAY_BE_LEFT_OUT = ("dense", "forgiving")
DENSEST = 0.5  # share of the utterances
NUM_PARTS = 4
WAYS = ("plain", *BEFORE)
# The search that mends, by corpus or else by objective: a low weight of a language model of the corrupted text; with CTC the
# one that dev asks for, where lattices are up to ten times smaller. A network that has not heard the utterance does not lean
# to what was written, and changes it at a smaller price.
MENDING = {"digits": ["--word-insertion-penalty=-2"]}
USUAL_MENDING = {"LF-MMI": ["--lm-weight=0.7"], "CTC": ["--lm-weight=1.5"]}
# Where words are missing as often as there are too many, the last round adds as many as it takes out: a network whose
# transcripts lack words leaves them out itself.
BALANCED = {"prompts": ["--word-insertion-penalty=-1"]}
CHANGES, CHANGES_CROSSWISE = 6.0, 4.0  # nats
NUM_ALTERNATIVES = 8
# Section by section, for networks that mend the transcripts that they have not heard: masks and two views of each utterance
# keep them from learning by heart what is wrong in the others. The network that is kept does better without.
JUDGES: dict[str, dict[str, dict[str, Any]]] = {
    "prompts": {
        "augment": {
            "time_masks": 1,
            "time_mask_frames": 15,
            "frequency_masks": 1,
            "frequency_mask_bins": 6,
        },
        "loss": {"consistency": 0.2},
        "train": {"num_epochs": 18},
    }
}
# A network that was let to leave words out needs a bonus for them.
DECODING = {"decoding": {"word_insertion_penalties": [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0]}}
OBJECTIVES: dict[str, dict[str, dict[str, Any]]] = {
    "LF-MMI": {},
    "CTC": {
        "lang": {"topology": "ctc"},
        "phone_lm": {"ngram_order": 0},
        "network": {"xent": "none"},
        "loss": {"leaky_hmm_coefficient": 0.0, "xent_regularize": 0.0},
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


def main(arguments: Sequence[str] | None = None) -> None:
    """A run that fails ends the program."""
    parser = argparse.ArgumentParser(prog="recipes/weak_transcripts/run.py", description=__doc__)
    parser.add_argument("--corpus", choices=CORPORA, default="digits")
    parser.add_argument(
        "--data", type=Path, required=True, help="corpus folder, see the README of the corpus's recipe"
    )
    parser.add_argument("--objectives", choices=OBJECTIVES, nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--errors", choices=ERRORS, nargs="+", default=list(ERRORS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument(
        "--ways", choices=WAYS, nargs="+", default=list(WAYS), help="of training; default: all"
    )
    parser.add_argument(
        "--star",
        choices=["sum", "frames"],
        default="frames",
        help="of forgiving LF-MMI; take another --exp for each; default: %(default)s",
    )
    add_options(parser, "weak_transcripts")
    options = parser.parse_args(arguments)
    for way in options.ways:
        if _before(way, options.ways) not in options.ways:
            parser.error(
                f"--ways: {way!r} starts from {_before(way, options.ways)!r}, which is not among them"
            )
    results: dict[Run, tuple[Result, float | None]] = {}
    for objective in options.objectives:
        for seed in options.seeds:
            runs = [Run(options.corpus, objective, None, "plain", seed)]
            runs += [
                Run(options.corpus, objective, errors, way, seed)
                for errors in options.errors
                for way in _ways(errors, options)
            ]
            for run in runs:
                print(f"=== {run.corpus}, {run.kind}, seed {run.seed}", flush=True)
                precision, exp = _train(run, options), options.exp / run.folder
                results[run] = read_result(exp, run.corpus, run.kind, run.seed), precision
                publish(table_of(results), options.exp)


def _ways(errors: str | None, options: argparse.Namespace) -> list[str]:
    """Those that were asked for. Where words are planted, the densest utterances have most of them."""
    planted = errors is not None and ERRORS[errors].insertion > 0
    return [way for way in WAYS if way in options.ways and not (planted and way == "dense")]


def _before(way: str, ways: Collection[str]) -> str:
    """What a way starts from: see `BEFORE`."""
    before = BEFORE.get(way, "plain")
    while before in MAY_BE_LEFT_OUT and before not in ways:
        before = BEFORE[before]
    return before


def _train(run: Run, options: argparse.Namespace) -> float | None:
    """The share of the words that a forgiving network doubts most which were planted, where words were; see `RECALL`."""
    exp, mended = options.exp / run.folder, None
    before = options.exp / run._replace(way=_before(run.way, _ways(run.errors, options))).folder
    own: dict[str, dict[str, Any]] = {}
    if run.way.startswith(MENDED):
        plain = options.exp / run._replace(way="plain").folder
        mended = exp / MENDED
        if "crosswise" in run.way:
            _mend_crosswise(run, options, before, plain)
        else:
            _mend(run, before / MODEL, plain / "data" / "train", plain, mended, CHANGES)
    elif run.way not in ("plain", "dense"):
        own = {"network": {"init_from": str((before / MODEL).resolve())}, "train": GOING_ON[run.errors or ""]}
    if run.way == "forgiving":
        assert run.errors is not None
        wrong = WRONG[run.objective][run.corpus] if ERRORS[run.errors].substitution else {}
        own |= FORGIVING[run.objective] | {
            "forgive": {"deletion": MISSING[run.objective][run.errors]} | wrong
        }
        if run.objective == "LF-MMI":
            own["forgive"] |= {"star": options.star}
            if options.star == "frames":
                own["forgive"] |= {"deletion": 0.0} | (OF_FRAMES[run.corpus] if wrong else {})
    _run(run, options, exp, "decode", own, mended)
    if run.way != "forgiving" or not ERRORS[run.errors or ""].substitution:
        return None
    doubts, data = exp / "doubts", exp / "data" / "train"
    finish(call(["suspicious", str(exp / MODEL), str(data), str(doubts), f"--den={exp / 'graphs'}"]))
    return precision_at(RECALL, doubts / "words.txt", data / SAID)


def _run(
    run: Run,
    options: argparse.Namespace,
    exp: Path,
    to: str,
    own: Mapping[str, Mapping[str, Any]],
    mended: Path | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Train on the corrupted transcripts or on those of the folder `mended`, but for some; `to` is the last stage."""
    text = {} if mended is None else read_text(mended / "text")
    text = {name: words for name, words in text.items() if name not in left_out}
    features = exp / "cache"  # of all runs, which differ in transcripts alone
    if not features.exists():
        (options.exp / "cache" / run.corpus).mkdir(parents=True, exist_ok=True)
        exp.mkdir(parents=True, exist_ok=True)
        features.symlink_to(options.exp.resolve() / "cache" / run.corpus, target_is_directory=True)

    def prepare(corpus: Path | None, out: Path, seed: int) -> None:
        CORPORA[run.corpus](corpus, out, seed)
        if text:
            said = read_data_dirs([out / "train"])
            write_data_dir(
                out / "train", [replace(one, words=text[one.id]) for one in said if one.id in text]
            )
        elif run.errors is not None:
            corrupt_text(out / "train" / "text", ERRORS[run.errors], seed)
        if run.way == "dense":
            write_data_dir(out / "train", densest(read_data_dirs([out / "train"]), DENSEST))

    changes = [one for table in (OBJECTIVES[run.objective], DECODING, own) for one in settings(table)]
    given = [f"--seed={run.seed}", f"--corpus={options.data}", f"--to={to}"]
    given += [] if mended is None else [f"--patterns={mended / PATTERNS}"]
    made_of: dict[str, Any] = {"errors": run.errors}
    made_of["mended"] = hashlib.sha256(repr(sorted(text.items())).encode()).hexdigest()
    if run.way == "dense":
        made_of["densest"] = DENSEST
    run_with(RECIPES / run.corpus, prepare, exp, (*changes, *options.set), *given, made_of=made_of)


def _mend_crosswise(run: Run, options: argparse.Namespace, before: Path, plain: Path) -> None:
    """The corrupted transcripts of each part of the training set, as a network of the other parts hears them."""
    out = options.exp / run.folder / MENDED
    written = read_data_dirs([plain / "data" / "train"])
    out.mkdir(parents=True, exist_ok=True)
    parts = [out.with_name(f"part-{part}") for part in range(NUM_PARTS)]
    for number, part in enumerate(parts):
        unheard, judge = written[number::NUM_PARTS], JUDGES.get(run.corpus, {})
        _run(run, options, part, "train", judge, before / MENDED, {one.id for one in unheard})
        write_data_dir(part / "unheard", unheard)
        _mend(run, part / MODEL, part / "unheard", plain, part / MENDED, CHANGES_CROSSWISE)
    for name in ("text", PATTERNS):
        lines = "".join((part / MENDED / name).read_text(encoding="utf-8") for part in parts)
        (out / name).write_text(lines, encoding="utf-8")


def _mend(run: Run, model: Path, data: Path, plain: Path, out: Path, price: float) -> None:
    """The search has the word n-gram of the corrupted text, which the run `plain` made; `price` is that of a change."""
    rates = ERRORS[run.errors or ""]
    how = [
        f"--{name}={price if getattr(rates, name) else math.inf}" for name in ("substitution", "insertion")
    ]
    how += ["--deletion=1", f"--alternatives={NUM_ALTERNATIVES}"]
    how += MENDING.get(run.corpus, USUAL_MENDING[run.objective])
    how += BALANCED.get(run.corpus, []) if run.way == WAYS[-1] and rates.insertion == rates.deletion else []
    arpa, made = plain / "decode" / "grammar.arpa", out / MADE_OF
    read = [model, data / "text", *([arpa] if arpa.is_file() else [])]
    digest = hashlib.sha256(b"".join([repr(how).encode(), *(file.read_bytes() for file in read)])).hexdigest()
    if made.is_file() and made.read_text(encoding="utf-8") == digest:
        return
    how += [f"--arpa={arpa}"] if arpa in read else []
    finish(call(["mend", str(model), str(data), str(out), *how]))
    made.write_text(digest, encoding="utf-8")


def table_of(results: Mapping[Run, tuple[Result, float | None]]) -> list[list[str]]:
    """The WER on test, a row for each corpus, objective, kind of error and seed."""
    ways = [way for way in WAYS if any(run.way == way for run in results)]
    rows = [["corpus", "objective", "errors", "seed", *ways, "clean", "precision at 80 % recall"]]
    for run in results:
        if run.errors is None or run.way != "plain":
            continue
        told = [*(run._replace(way=way) for way in ways), run._replace(errors=None)]
        wers = [f"{results[one][0].wer:.2f} %" if one in results else "" for one in told]
        _, precision = results.get(run._replace(way="forgiving"), (None, None))
        share = "" if precision is None else f"{precision:.2f}"
        rows.append([run.corpus, run.objective, run.errors, str(run.seed), *wers, share])
    return rows


if __name__ == "__main__":
    main()
