"""`fsachain run`: one command from data sets and a lexicon to a report, which goes on where it stood."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_fixtures import TEXT, assert_one_line

import fsachain.progress as lines
from fsachain.asr.cli import EXIT_INTERRUPTED, EXIT_LEFT_OUT
from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.cli.run import Run
from fsachain.asr.decode.wer import read_text
from fsachain.asr.report.collect import read_stages
from fsachain.files import locked
from fsachain.fsa import Fsa
from fsachain.graph.numerator import load_numerators
from fsachain.graph.patterns import parse_pattern

FIRST = ["lang", "features", "graphs", "train", "decode", "align", "report"]
INPUTS = (
    "--train data --dev data --test data --lexicon lexicon.txt --config small.yaml --workers 1 "
    "--set train.num_threads=1 --set train.average_last=1 "
    "--set decoding.lm_weights=[1.0] --set decoding.word_insertion_penalties=[0.0] --set rescoring.speeds=[]"
)
CTC = "--set lang.topology=ctc --set phone_lm.ngram_order=0 --set loss.leaky_hmm_coefficient=0.0"


@pytest.fixture
def inputs(recorded):
    """The same five recordings thrice, as a training takes them where their words agree."""
    config = recorded / "small.yaml"
    config.write_text(config.read_text().replace("sample_rate: 8000, num_mel_bins: 8", ""))
    return INPUTS


@pytest.fixture
def exp(recorded):
    return recorded / "exp"


def stages_of(out):
    return [line[4:] for line in out.splitlines() if line.startswith("--- ")]


def test_a_run_that_was_begun_with_other_stars_goes_on_with_them_and_is_refused_without(
    fsachain, exp, inputs
):
    forgiving = f"run exp {inputs} --to train --set forgive.substitution=3 --set train.num_epochs=1"
    fsachain.ok(f"{forgiving} --set forgive.star=sum")
    assert "all is done" in fsachain.ok("run exp --to train").out
    assert_one_line(fsachain(forgiving), "forgive.star was 'sum', is 'frames'")
    plain = f"run plain {inputs} --to graphs"
    fsachain.ok(f"{plain} --set forgive.star=sum")  # as earlier versions wrote it, with nothing forgiven
    assert "all is done" in fsachain.ok(plain).out


def test_one_command_leads_to_a_report_and_does_nothing_twice(fsachain, exp, inputs):
    outcome = fsachain.ok(f"run exp {inputs} --seed 3")
    assert stages_of(outcome.out) == FIRST
    assert "features, as the recordings have them: 40 fbank at 8000 Hz" in outcome.out
    assert re.search(r"dev: 5 utterances, .* minutes, 5 of them in train as well\n", outcome.out)
    assert (exp / "report.txt").read_text().startswith("test         WER ")
    assert "<audio" in (exp / "report.html").read_text()  # the test set is found without data/test
    kept = Experiment.read(exp / "config.yaml")
    assert (kept.train.seed, kept.features.sample_rate, kept.features.num_mel_bins) == (3, 8000, 40)
    again = fsachain.ok("run exp")
    assert "configuration: exp/config.yaml" in again.out and "all is done" in again.out
    assert stages_of(again.out) == []


def test_changed_options_and_data_are_noticed(fsachain, exp, inputs, recorded):
    fsachain.ok(f"run exp {inputs}")
    outcome = fsachain.ok("run exp --set decoding.ngram_order=2 --set decoding.lm_weights=[0.5] --to decode")
    assert "done before: lang, features, graphs, train" in outcome.out
    assert stages_of(outcome.out) == ["decode"]
    assert (exp / "decode" / "grammar.arpa").is_file()
    assert json.loads((exp / "decode" / "tuning.json").read_text())["best"]["lm_weight"] == 0.5
    boundaries = exp / "model" / "boundaries.npz"
    boundaries.write_text("of an earlier training")
    assert stages_of(fsachain("run exp").out) == ["align", "report"]
    assert not boundaries.exists()
    other = fsachain("run exp --set network.channels=4")
    assert_one_line(other, "holds a training with other options")
    (recorded / "data" / "text").write_text(TEXT.replace("u2 no", "u2 yes"))
    assert stages_of(fsachain("run exp --to graphs").out) == ["lang", "features", "graphs"]


def test_a_word_network_of_the_training_text_and_sums_over_paths_rescore(fsachain, exp, inputs):
    fsachain.ok(f"run exp {inputs} --to decode")
    network = "--set rescoring.network_epochs=2 --set rescoring.speeds=[0.9,1.0] --set decoding.ngram_order=2"
    assert stages_of(fsachain.ok(f"run exp {network}").out) == ["decode", "rescore", "align", "report"]
    assert (exp / "decode" / "dev" / "lattices.ark").is_file() and (exp / "rescore" / "wer.json").is_file()
    assert "rescored " in (exp / "report.txt").read_text()
    spelt = fsachain(f"run exp {network} --set decoding.open_vocabulary=true --to rescore")
    assert_one_line(spelt, "rescoring.network_epochs: expected 0")
    options = "--set decoding.open_vocabulary=true --set rescoring.network_epochs=0"
    assert_one_line(fsachain(f"run exp {options} --to rescore"), "rescoring.speeds = [0.9, 1]: expected []")
    assert "rescore" in Run(exp, Experiment(), {"rescore": exp}).stages


def test_rescore_with_the_word_network_that_a_run_kept_finds_what_the_run_found(
    fsachain, exp, inputs, recorded
):
    options = "--set rescoring.network_epochs=2 --set decoding.ngram_order=2"
    told = fsachain.ok(f"run exp {inputs} {options} --to rescore").out
    assert told.count("dev   WER") == 2, "the search's choice and that of rescoring"
    arpa, model = "exp/decode/grammar.arpa", "exp/model/model.safetensors"
    search = f"--arpa {arpa} --dev data --lattices exp/decode --workers 1"
    command = f"rescore {model} data {arpa} again {search} --word-network"
    fsachain.ok(f"{command} exp/rescore/word_network.safetensors")
    for name in ("hyp.txt", "tuning.txt"):
        assert (recorded / "again" / name).read_text() == (exp / "rescore" / name).read_text()
    other = fsachain(f"{command} {model}")
    assert_one_line(other, "holds no word network")


def test_options_that_a_training_refuses_are_forgotten(fsachain, exp, inputs):
    """The folder is as it was: without them the run is done, and other options do not meet them again."""
    fsachain.ok(f"run exp {inputs} --to train")
    outcome = fsachain("run exp --set network.channels=16 --to train")
    assert outcome.status == 1 and "network.channels was 8, is 16" in outcome.err
    assert stages_of(fsachain.ok("run exp --to train").out) == []


def test_options_count_also_where_no_stage_is_left_to_do(fsachain, exp, inputs, recorded):
    """The next plain call takes them; but not those that the training there was not made with."""
    fsachain.ok(f"run exp {inputs} --to train")
    told = fsachain.ok("run exp --set decoding.ngram_order=2 --to lang").out
    assert "all is done that was asked for; still to be made: decode, align, report\n" in told
    assert Experiment.read(exp / "config.yaml").decoding.ngram_order == 2
    told = fsachain.ok("run exp --set network.channels=16 --to lang").out
    assert "still to be made: train, decode, align, report; options are those of before again" in told
    (recorded / "data").rename(recorded / "moved")
    fsachain.ok("run exp --to train", *inputs.replace("data", "moved").split())
    assert stages_of(fsachain.ok("run exp --to train").out) == []


def test_a_stage_that_fails_on_its_data_leaves_those_behind_it_done(fsachain, exp, inputs, recorded):
    """They are as the right data made them; but what --from asks for is made anew, also after a failure."""
    fsachain.ok(f"run exp {inputs}")
    (recorded / "wrong.txt").write_text("no\n")
    assert_one_line(fsachain("run exp --lexicon wrong.txt"), "wrong.txt")
    assert_one_line(fsachain(f"run other {inputs} --first exp"), "holds no training that is done")
    right = fsachain.ok("run exp --lexicon lexicon.txt")
    assert stages_of(right.out) == ["lang"] and "done before: features, graphs, train, decode" in right.out
    assert_one_line(fsachain("run exp --lexicon wrong.txt --from lang --to train"), "wrong.txt")
    assert stages_of(fsachain.ok("run exp --lexicon lexicon.txt").out) == FIRST[:4]


def test_what_leads_to_no_training_where_there_is_one_is_forgotten(fsachain, exp, inputs, recorded):
    """Another seed, which the training refuses, and a lexicon of other words: plain calls make what was there again."""
    fsachain.ok(f"run exp {inputs}")
    before = {name: (exp / name).read_bytes() for name in ("config.yaml", "run.json", "graphs/den.fst")}
    (recorded / "other.txt").write_text("other AH\n")
    for options, message in (
        ("--seed 9 --set lang.silence_prob=0.2", "holds a training with other options"),
        ("--lexicon other.txt", "no utterance is left"),
    ):
        refused = fsachain(f"run exp {options}")
        assert refused.status == 1 and message in refused.err, options
        assert "options and data are those of before again" in refused.out, options
        assert "not among" not in fsachain.ok("run exp").out, options
        assert {name: (exp / name).read_bytes() for name in before} == before, options
    assert stages_of(fsachain.ok("run exp").out) == []


def test_a_second_run_in_a_folder_is_refused_while_the_first_works_and_changes_nothing(fsachain, exp, inputs):
    fsachain.ok(f"run exp {inputs} --to graphs")
    before = {path: path.read_bytes() for path in exp.rglob("*") if path.is_file()}
    with locked(exp, "a run"):
        outcome = fsachain(f"run exp {inputs} --seed 7")
    assert (
        outcome.status == 1 and "exp: a run is running in this folder; choose another or wait" in outcome.err
    )
    assert {path: path.read_bytes() for path in exp.rglob("*") if path.is_file()} == before
    assert stages_of(fsachain.ok(f"run exp {inputs} --to train").out) == ["train"]


def test_interrupted_run_goes_on_with_the_stage_that_was_broken_off(fsachain, exp, inputs, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def broken_off(line: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("fsachain.asr.cli.run.Recogniser.decode", interrupt)
            assert fsachain(line).status == EXIT_INTERRUPTED

    broken_off(f"run exp {inputs}")
    with (exp / "stages.jsonl").open("a") as log:
        log.write('{"event": "fail')  # cut short by a crash
    assert stages_of(fsachain(f"run exp {inputs}").out) == ["decode", "align", "report"]
    assert read_stages(exp / "stages.jsonl").num_unreadable == 0
    broken_off("run exp --from decode")
    assert stages_of(fsachain("run exp").out) == ["decode", "align", "report"]
    broken_off("run exp --set decoding.lm_weights=[0.5]")
    assert stages_of(fsachain(f"run exp {inputs}").out) == ["decode"], "begun with other options"


def test_what_else_may_have_been_said_becomes_numerators(fsachain, exp, inputs, recorded):
    """`mend --alternatives` writes patterns, which `run --patterns` trains on in place of the transcripts."""
    fsachain.ok(f"run exp {inputs} --to train")
    penalties = "--substitution 0.5 --insertion 0.5 --deletion 0.5"
    fsachain.ok(f"mend exp/model/model.safetensors data mended {penalties} --alternatives 3")
    lines = (recorded / "mended" / "patterns.txt").read_text().splitlines()
    assert any("|" in line for line in lines)
    best = read_text(recorded / "mended" / "text")
    for name, line in (line.split(maxsplit=1) for line in lines):
        found = parse_pattern(line, {})
        if "|" in line:
            probs, words = zip(*found[0].alternatives, strict=True)
            assert sum(probs) == pytest.approx(1.0, abs=1e-5) and list(probs) == sorted(probs, reverse=True)
            found = words[0]
        assert tuple(found) == best[name]
    shutil.copy(recorded / "mended" / "text", recorded / "data" / "text")
    fsachain.ok(f"run second {inputs} --patterns mended/patterns.txt --to train")
    numerators = load_numerators(recorded / "second" / "graphs" / "train.npz")
    assert any(len(numerator.words) > len(best[name]) for name, numerator in numerators.items())


def test_patterns_take_the_place_of_transcripts_that_cannot_be_used(fsachain, exp, inputs, recorded):
    """An empty transcript, and one with a word that the lexicon lacks; patterns of nobody are refused."""
    train, patterns = recorded / "patterned", recorded / "patterns.txt"
    shutil.copytree(recorded / "data", train)
    (train / "text").write_text("u1\nu2 maybe\nu3 yes\nu4 no\nu5 no yes\n")
    patterns.write_text("u1 ( 0.6 yes | 0.4 no )\nu2 * no *\nu9 yes\n")
    given = f"{inputs.replace('--train data', '--train patterned')} --patterns patterns.txt --to graphs"
    outcome = fsachain(f"run exp {given}")
    assert outcome.status == EXIT_LEFT_OUT, outcome.err  # of the phone language model
    assert set(load_numerators(exp / "graphs" / "train.npz")) == {"u1", "u2", "u3", "u4", "u5"}
    patterns.write_text("u9 yes\n")
    assert_one_line(
        fsachain(f"run other {given}"), "patterns.txt: has 1 utterance, the first is 'u9'; expected some of"
    )


def test_second_pass_trains_on_chunks_in_a_folder_of_its_own(fsachain, exp, inputs, monkeypatch):
    shares, mean_with = [], AcousticModel.mean_with
    monkeypatch.setattr(AcousticModel, "mean_with", lambda *how: shares.append(how[-1]) or mean_with(*how))
    first = f"{inputs} --set phone_lm.ngram_order=2 --set phone_lm.no_prune_ngram_order=2"
    fsachain.ok(f"run exp {first} --to train")
    second = exp.with_name("second")
    mean = "--set supervision.chunk_frames=60 --set decoding.first_pass_share=0.5"
    begin = "--set network.init_from=exp/model/model.safetensors"
    outcome = fsachain.ok(f"run second --first exp {mean} {begin}")
    assert set(shares) == {0.5} and "init_from exp/model/model.safetensors: " in outcome.err
    assert stages_of(outcome.out) == ["align-train", "supervise", *FIRST[3:]]
    assert Experiment.read(second / "config.yaml").phone_lm.ngram_order == 2
    assert (second / "report.html").is_file() and not (second / "lang").exists()
    assert_one_line(fsachain("run exp --first exp"), "is EXP itself")
    alone = fsachain(f"run third {inputs} {mean}")
    assert_one_line(alone, "decoding.first_pass_share = 0.5 without --first")


def test_ctc_by_run_and_by_single_commands_has_one_denominator(fsachain, exp, inputs, recorded):
    fsachain.ok(f"run exp {inputs} {CTC} --to train")
    fsachain.ok(f"lang lexicon.txt ctc-lang --config small.yaml {CTC}")
    fsachain.ok("phone-lm data/text ctc.fst --lang ctc-lang")
    fsachain.ok("den-graph ctc.fst ctc-den --lang ctc-lang")
    fsachain.ok("num-graphs data ctc.npz --lang ctc-lang --den ctc-den")
    fsachain.ok("train data ctc.npz model --lang ctc-lang --den ctc-den")
    free = Fsa.read(recorded / "ctc-den/den.fst")
    assert free.num_states == 1 and free.pdf.tolist() == list(range(7)) and not free.log_prob.any()
    for name in ("den.fst", "normalization.fst"):
        assert (recorded / "ctc-den" / name).read_bytes() == (exp / "graphs" / name).read_bytes()


def test_utterances_left_out_are_told_once_and_end_with_status_3(fsachain, exp, inputs, recorded):
    (recorded / "data" / "text").write_text(TEXT.replace("u2 no", "u2 maybe"))
    outcome = fsachain(f"run exp {inputs}")
    assert outcome.status == EXIT_LEFT_OUT, outcome.err
    assert stages_of(outcome.out) == FIRST
    faults = [json.loads(line) for line in (exp / "faults.jsonl").read_text().splitlines()]
    assert len(faults) == len({(fault["id"], fault["kind"]) for fault in faults})
    assert {fault["id"] for fault in faults if fault["kind"] == "unknown word"} == {"u2"}
    stopped = fsachain(f"run exp {inputs} --bad-data stop --from graphs")
    assert_one_line(stopped, "--bad-data is stop", "u2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--from decode", "--from decode: exp has no stage lang that is done"),
        ("--from graphs --to lang", "--from graphs: exp has no stage lang"),
        (
            "--set decoding.open_vocabulary=true --set rescoring.network_epochs=2",
            "rescoring.network_epochs: expected 0",
        ),
        (
            "--set decoding.open_vocabulary=true --set rescoring.speeds=[0.9]",
            "rescoring.speeds = [0.9]: expected []",
        ),
        ("--set network.init_from=gone.safetensors", "network.init_from: gone.safetensors: no such file"),
        ("--to supervise", "--to supervise: this run has the stages lang, features, graphs"),
    ],
)
def test_stages_that_cannot_be_are_named(fsachain, exp, inputs, options, message):
    outcome = fsachain(f"run exp {inputs} {options}")
    assert_one_line(outcome, message)
    assert stages_of(outcome.out) == [], "before any work is done"


def test_missing_input_is_named(fsachain, exp, inputs):
    outcome = fsachain(f"run exp {inputs.removeprefix('--train data ')}")
    assert outcome.status == 2 and "Missing option '--train'" in outcome.err


# What a person sees of long work: lines where there is no terminal, one display of bars where there is one.


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("calls", "seconds", "expected"),
    [
        ([], 65.0, "graphs: 1:05 so far"),
        ([(1, 4)], 10.0, "graphs: 1 of 4, 0:30 left"),
        ([(1, 4), (3, 4)], 30.0, "graphs: 3 of 4, 0:10 left"),
        ([(51, 100), (60, 100)], 20.0, "graphs: 60 of 100, 1:20 left"),  # fifty were done before
        ([(1, 7201)], 1.0, "graphs: 1 of 7201, 2:00:00 left"),
    ],
)
def test_line_says_what_is_done_and_how_long_the_rest_takes(calls, seconds, expected):
    with lines.Lines("graphs", sys.stderr) as progress:
        for call in calls:
            progress(*call)
        assert progress.line(seconds) == expected
        lines.wait_for("compiling")
        assert progress.line(seconds) == f"{expected}; compiling"
        lines.go_on()
        assert progress.line(seconds) == expected


def test_lines_come_in_time_and_end_with_the_work(monkeypatch, capsys):
    monkeypatch.setattr(lines, "SECONDS", 0.01)
    with lines.counter("slow work") as update:
        update(1, 2)
        until = time.monotonic() + 10
        told = ""
        while told.count("slow work: 1 of 2, 0:00 left\n") < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
            told += capsys.readouterr().err
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_all_long_work_of_a_run_is_counted_to_its_end(fsachain, exp, inputs, monkeypatch):
    found = {}

    class Noted:
        def __init__(self, what, stream):
            self.what = what
            found.setdefault(what, (0, 0))

        def __call__(self, done, total, text=""):
            found[self.what] = (done, total)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(lines, "Lines", Noted)
    fsachain.ok(f"run exp {inputs}")
    counted = {"features", "numerators", "network", "decoding", "aligning", "epoch 1/1"}
    assert counted | {"phone language model", "denominator graph", "decoding graph", "report"} <= set(found)
    for what in counted:
        done, total = found[what]
        assert done == total > 0, what


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_within_bars_share_one_display_which_tells_what_they_wait_for():
    """rich allows one; the bar outside goes on when the one inside is gone."""
    terminal = Terminal()
    with lines.counter("outside", terminal) as outer:
        outer(1, 2)
        with lines.counter("inside", terminal) as inner:
            inner(3, 4, "objf -0.1")
            time.sleep(0.3)
        lines.wait_for("compiling a kernel")
        time.sleep(0.3)
        lines.go_on()
        before = terminal.getvalue()
        terminal.truncate(0)
        outer(2, 2)
        time.sleep(0.3)
    before, after = (re.sub(r"\x1b\[[0-9;?]*\w", "", told) for told in (before, terminal.getvalue()))
    assert all(part in before for part in ("outside", "inside", "3/4", "objf -0.1", "compiling a kernel"))
    assert "2/2" in after and "compiling" not in after


def test_kernels_that_are_compiled_appear_in_the_bar_of_the_work(tmp_path):
    """Those of a first call; work that is shown by nothing compiles in silence but for one line."""
    work = (
        "import numpy, sys, time; from fsachain import progress; from fsachain.backends.cpu.jit import jit\n"
        "@jit\ndef twice(x):\n    return 2 * x\n"
        "told = []; wait_for = progress.wait_for\n"
        "progress.wait_for = lambda what: (told.append(what), wait_for(what))\n"
        "print(twice(1.0), twice(2.0), twice(1), told, progress._waiting)"
    )
    (tmp_path / "work.py").write_text(work)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, tmp_path / "work.py"], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "2.0 4.0 2 ['compiling work.twice', 'compiling work.twice'] []\n"


def options_of(exp):
    return json.loads((exp / "run.json").read_text())["options"]


def test_options_are_chosen_for_the_data_and_kept_with_their_reasons(fsachain, exp, inputs):
    told = fsachain.ok(f"run exp {inputs} --to lang").out
    assert "Data: 5 utterances" in told and "Chosen for the data" in told
    chosen, given = options_of(exp)["chosen"], options_of(exp)["given"]
    assert given["decoding.lm_weights"] == [1.0] and given.keys().isdisjoint(chosen)
    head = [line for line in (exp / "config.yaml").read_text().splitlines() if line.startswith("# ")]
    config = Experiment.read(exp / "config.yaml").to_dict()
    assert chosen
    for option, (value, reason) in chosen.items():
        assert f"#   {option} = {json.dumps(value)}: {reason}" in head
        section, name = option.split(".", maxsplit=1)
        assert config[section].get(name, value) == value
    assert config["loss"]["leaky_hmm_coefficient"] == chosen["loss.leaky_hmm_coefficient"][0] == 0.1
    again = fsachain.ok(f"run exp {inputs} --to lang").out
    assert "all is done" in again and "Chosen" not in again, (
        "the same options of the same data are not chosen twice"
    )
    fsachain.ok("run exp --to lang --set loss.leaky_hmm_coefficient=0.2")
    assert "loss.leaky_hmm_coefficient" not in options_of(exp)["chosen"]
    assert options_of(exp)["given"]["loss.leaky_hmm_coefficient"] == 0.2
    spelt = "run exp --to lang --set decoding.open_vocabulary=true"
    fsachain.ok(f"{spelt} --set rescoring.network_epochs=0")
    assert not [option for option in options_of(exp)["chosen"] if option.startswith("rescoring.")]


def test_a_folder_of_an_earlier_version_goes_on_with_its_own_options(fsachain, exp, inputs):
    fsachain.ok(f"run exp {inputs} --to lang --as-given --set loss.leaky_hmm_coefficient=1e-5")
    assert "options" not in json.loads((exp / "run.json").read_text())
    assert not (exp / "config.yaml").read_text().startswith("#")
    for command in ("run exp --to lang", f"run exp {inputs} --to lang"):
        told = fsachain.ok(command).out
        assert "all is done" in told and "Chosen" not in told
        config = Experiment.read(exp / "config.yaml")
        assert (config.loss.leaky_hmm_coefficient, config.network.get("xent")) == (1e-5, None)


def test_choices_are_printed_as_a_file_for_other_commands(fsachain, recorded):
    told = fsachain.ok("config --for data --lexicon lexicon.txt --with data").out
    (recorded / "chosen.yaml").write_text(told)
    config = Experiment.read(recorded / "chosen.yaml")
    assert config.loss.leaky_hmm_coefficient == 0.1 and config.network["xent"] == "branch"
    assert "#   loss.leaky_hmm_coefficient = 0.1: " in told
    fsachain.ok("lang lexicon.txt lang --config chosen.yaml")
    assert fsachain("config --lexicon lexicon.txt").status == 2
