"""`fsachain report` without a browser: what is on the page, what damaged and hostile files do to it."""

import base64
import hashlib
import io
import json
import re
import shutil
import struct
import sys
import time
from pathlib import Path

import html5lib
import numpy as np
import pytest
import report_inputs
import soundfile
from cli_fixtures import run_command
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsachain.asr.cli.record import record_run, recorded_stage
from fsachain.asr.cli.report import tensorboard
from fsachain.asr.report.collect import Layout, add_times, choose, clip, collect, read_stages
from fsachain.asr.report.page import NOTHING, all_tables, render, state, write_report
from fsachain.asr.train.log import JsonLinesLog, read_log
from fsachain.errors import ConfigError, DataError

DRAWN = "svg metadata defs style g path use clipPath rect pattern rdf cc dc image text tspan"
SECTIONS = ("errors", "utterances", "training", "graphs", "data", "stages", "run")


def parse(page):
    """The page as browsers parse it; markup that is not valid is an error."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)


def words_of(element):
    return " ".join("".join(element.itertext()).split())


def element(tree, tag, **attributes):
    return next(found for found in tree.iter(tag) if attributes.items() <= found.attrib.items())


@pytest.fixture(scope="module", params=["plain", "hostile"])
def names(request):
    return report_inputs.Names() if request.param == "plain" else report_inputs.HOSTILE


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    made = {}
    for given_names in (report_inputs.Names(), report_inputs.HOSTILE):
        exp = report_inputs.write_experiment(tmp_path_factory.mktemp("report") / "exp", given_names)
        write_report(Layout.find(exp), exp / "report.html", report_inputs.look(given_names), num_pictured=1)
        made[given_names] = (exp / "report.html").read_text(encoding="utf-8")
    return made


@pytest.fixture
def exp(tmp_path):
    return report_inputs.write_experiment(tmp_path / "exp")


def test_page_is_valid_and_needs_nothing_but_itself(pages, names):
    tree = parse(pages[names])
    for found in tree.iter():
        for attribute in ("src", "href", "srcset", "poster", "data", "action", "background"):
            assert found.get(attribute, "data:").startswith(("data:", "#")), (found.tag, attribute)
        assert not [name for name in found.attrib if name.startswith("on") or name == "style"]
    assert [
        found.tag for found in tree.iter() if found.tag in ("link", "iframe", "object", "embed", "base")
    ] == []
    ids = [found.get("id") for found in tree.iter() if found.get("id") is not None]
    assert len(ids) == len(set(ids))
    assert {found.get("href") for found in tree.iter("a")} == {f"#{name}" for name in SECTIONS}
    assert set(ids) == set(SECTIONS)
    assert "url(" not in words_of(element(tree, "style"))
    assert "@import" not in words_of(element(tree, "style"))


def test_hostile_names_change_no_element_of_the_page(pages):
    plain, hostile = (list(parse(page).iter()) for page in pages.values())
    assert [found.tag for found in plain] == [found.tag for found in hostile]
    assert [sorted(found.attrib) for found in plain] == [sorted(found.attrib) for found in hostile]
    shown = " ".join(words_of(found) for found in hostile if found.tag == "main")
    for name in (
        *report_inputs.HOSTILE.utterances,
        *report_inputs.HOSTILE.speakers,
        *report_inputs.HOSTILE.words,
    ):
        assert " ".join(name.split()) in shown
    for name in (report_inputs.HOSTILE.phone, report_inputs.HOSTILE.graph, report_inputs.HOSTILE.error):
        assert name in shown
    assert report_inputs.HOSTILE.option in shown


def test_drawings_hold_no_markup_of_hostile_names(pages):
    for uri in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", pages[report_inputs.HOSTILE]):
        drawing = base64.b64decode(uri).decode()
        tags = set(re.findall(r"<([a-zA-Z]+)", drawing))
        assert tags <= set(DRAWN.split()), tags


def test_policy_allows_the_pages_own_style_and_script_alone(pages, names):
    tree = parse(pages[names])
    policy = element(tree, "meta", **{"http-equiv": "Content-Security-Policy"}).attrib["content"]
    assert policy.startswith("default-src 'none'")
    for kind in ("style", "script"):
        (own,) = tree.iter(kind)
        digest = base64.b64encode(hashlib.sha256((own.text or "").encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy.split("; ")


def test_errors_are_marked_where_the_alignment_has_them(pages, names):
    one, two, three = names.words
    tree = parse(pages[names])
    article = next(found for found in tree.iter("article") if words_of(found[0]) == names.utterances[1])
    pairs = next(found for found in article.iter("p") if found.get("class") == "words")
    marks = [
        (found.get("class", "").removeprefix("error "), *((part.tag, part.text) for part in found))
        for found in pairs
    ]
    assert marks == [
        ("substitution", ("del", one), ("ins", three), ("abbr", "S")),
        ("deletion", ("del", two), ("abbr", "D")),
        ("",),
        ("",),
        ("insertion", ("ins", two), ("abbr", "I")),
    ]
    assert [words_of(found) for found in pairs[2:4]] == [three, one]


def test_tables_have_the_numbers_of_the_files(exp):
    tables = all_tables(collect(Layout.find(exp)))
    speakers = {row[0].text: [cell.key for cell in row[1:]] for row in tables["speakers"].rows}
    assert speakers["bob"] == [1, 1, 0, 0, 0, 0, 0.0]
    assert speakers["ann"][:-1] == [2, 7, 3, 1, 1, 1]
    assert speakers["ann"][-1] == pytest.approx(300 / 7)
    assert [cell.key for cell in tables["speakers"].total[1:3]] == [3, 8]
    assert {(row[0].text, row[1].text, row[2].text) for row in tables["confusions"].rows} == {
        ("substitution", "one", "three"),
        ("deletion", "two", NOTHING),
        ("insertion", NOTHING, "two"),
    }
    assert [row[1].key for row in tables["graphs"].rows[:5]] == [2, 3, 1, 2, 2]  # a column for each graph
    stages = {row[0].text: [cell.text for cell in row[1:]] for row in tables["stages"].rows}
    assert stages["decode"][0] == "done"
    assert stages["decode"][2:] == ["1 min 30 s", "250.0 MB"]
    assert stages["align"][0] == "failed: the disk is full"
    assert [row[1].key for row in tables["epochs"].rows] == [-1.0, -0.5, pytest.approx(-1 / 3)]
    (train, *_) = tables["data"].rows
    assert [cell.key for cell in train[1:5]] == [3, 8, 3, 2]
    assert train[5].key == pytest.approx(3 * report_inputs.SECONDS)
    assert [cell.text for cell in tables["config"].rows[0]] == ["train.note", "value"]
    names = report_inputs.Names()
    assert [[cell.text for cell in row] for row in tables["excluded"].rows] == [
        [names.utterances[0], names.error]
    ]


def test_a_second_pass_has_graphs_and_data_of_the_first_and_the_configuration_of_its_training(exp, tmp_path):
    (tmp_path / "second").mkdir()
    log = JsonLinesLog(tmp_path / "second" / "stages.jsonl")
    log.write("run", stages=["train", "report"], first=str(exp), config={"train": {"seed": 5}})
    log.write("run", stages=["report"], first=str(exp), config={"train": {"seed": 6}})
    found = collect(Layout.find(tmp_path / "second"))
    assert found.layout.graphs == exp / "graphs" and found.sizes[0].name == "train"
    assert found.config == {"train": {"seed": 5}}


INPUTS = {
    "train": "/corpus/train",
    "dev": "/corpus/dev",
    "test": "/corpus/test",
    "lexicon": "/corpus/lexicon.txt",
}


def test_a_run_that_went_on_lists_all_inputs_and_every_call(exp):
    """The second call names no inputs, and only the stages that were left."""
    log = JsonLinesLog(exp / "stages.jsonl")
    log.write("run", stages=["align", "report"], command=["fsachain", "run", "exp"], config={})
    kept = {"inputs": INPUTS, "done": {}, "stages": {}}
    (exp / "run.json").write_text(json.dumps(kept))
    tables = all_tables(collect(Layout.find(exp)))
    inputs = {row[0].text: row[1].text for row in tables["inputs"].rows}
    assert inputs == {f"--{name}": path for name, path in INPUTS.items()}
    calls = [[cell.text for cell in row[1:]] for row in tables["runs"].rows]
    assert calls == [["train decode align", "run.py value"], ["align report", "fsachain run exp"]]
    write_report(Layout.find(exp), exp / "report.html", None)
    page = (exp / "report.html").read_text(encoding="utf-8")
    assert all(path in page for path in INPUTS.values()) and "fsachain run exp" in page


def test_an_experiment_is_complete_when_all_stages_of_the_run_are_done_with_its_options(exp):
    def state_with(done, stages):
        (exp / "run.json").write_text(json.dumps({"inputs": INPUTS, "done": done, "stages": stages}))
        (exp / "data" / "test").rename(exp / "test")
        found = collect(Layout.find(exp, test=exp / "test"))
        (exp / "test").rename(exp / "data" / "test")
        return state(found)

    log = JsonLinesLog(exp / "stages.jsonl")
    wanted = {"train": "a", "decode": "b", "align": "c", "report": "d"}
    assert state_with(wanted, wanted) == "align failed"
    log.write("start", stage="align")
    log.write("end", stage="align", seconds=1.0)
    assert state_with(wanted, wanted) == "complete"
    without_report = {name: digest for name, digest in wanted.items() if name != "report"}
    assert state_with(without_report, wanted) == "complete"  # the report is what is being made
    assert state_with({"train": "a", "decode": "b"}, wanted) == "not complete: align to come"
    assert state_with({**wanted, "train": "other"}, wanted) == "not complete: train to come"
    training = (exp / "model" / "train.jsonl").read_text().splitlines(keepends=True)
    (exp / "model" / "train.jsonl").write_text("".join(training[:-1]))
    assert state_with(wanted, wanted) == "training: 3 of 3 epochs done"
    (exp / "model" / "train.jsonl").write_text("".join(training))
    hypotheses = (exp / "decode" / "hyp.txt").read_text().splitlines(keepends=True)
    (exp / "decode" / "hyp.txt").write_text("".join(hypotheses[1:]))
    assert state_with(wanted, wanted) == "complete but for 1 utterance"
    log.write("run", stages=["decode", "align"], command=[], config={})
    (exp / "run.json").unlink()
    assert (
        state(collect(Layout.find(exp))) == "complete but for 1 utterance"
    )  # a folder of an earlier version


@pytest.mark.parametrize(("rate", "expected"), [(8000, 8000), (44100, 16000)])
def test_a_clip_is_the_first_half_minute_at_a_rate_that_pages_can_hold(rate, expected):
    found = clip(report_inputs.tone(440.0, 31.0, rate).astype(np.float32), rate)
    heard, at = soundfile.read(
        io.BytesIO(base64.b64decode(found.uri.removeprefix("data:audio/flac;base64,")))
    )
    assert (at, len(heard), found.seconds, found.of_seconds) == (expected, 30 * expected, 30.0, 31.0)
    inner = slice(100, -100)  # filters have ends
    wanted = report_inputs.tone(440.0, 30.0, expected)[inner]
    np.testing.assert_allclose(heard[inner], wanted, atol=0.002 * np.abs(wanted).max())


# By file its section, and how one gets it.
MISSING = {
    "decode/hyp.txt": ("errors", "fsachain decode"),
    "model/train.jsonl": ("training", "fsachain train"),
    "stages.jsonl": ("stages", "fsachain run"),
    "graphs": ("graphs", "--base DIR"),
    "data/train": ("data", "--base DIR"),
    "data/test": ("data", "--test DIR"),
    "align/words.ctm": ("utterances", "fsachain align"),
}


def test_what_is_missing_is_said_in_its_section_and_the_rest_is_there(exp):
    for missing, (section, way) in MISSING.items():
        (exp / missing).rename(exp / "away")
        found = collect(Layout.find(exp))
        heard = choose(found, 3)
        add_times(found, heard["worst"])
        tree = parse(render(found, heard))
        (exp / "away").rename(exp / missing)
        notes = {
            name: [
                words_of(p) for p in element(tree, "section", id=name).iter("p") if p.get("class") == "note"
            ]
            for name in SECTIONS
        }
        assert any(f"Not there yet: {missing}." in note and way in note for note in notes[section])
        silent = set(SECTIONS) - {section, "utterances", "run"}
        assert not [name for name in silent if notes[name]]


DAMAGED = (
    "stages.jsonl",
    "model/train.jsonl",
    "decode/hyp.txt",
    "decode/tuning.json",
    "align/words.ctm",
    "graphs/den.fst",
)


@example(name="decode/hyp.txt", share=0.5, flip=96)  # a control character in a word
@settings(max_examples=8)
@given(name=st.sampled_from(DAMAGED), share=st.floats(0, 1), flip=st.integers(1, 255))
def test_report_of_cut_or_damaged_files_is_made(tmp_path_factory, name, share, flip):
    exp = report_inputs.write_experiment(tmp_path_factory.mktemp("cut") / "exp")
    whole = (exp / name).read_bytes()
    place = int(share * (len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= flip
    for content in (whole[:place], bytes(flipped)):
        (exp / name).write_bytes(content)
        found = collect(Layout.find(exp))
        tree = parse(render(found, choose(found, 3)))
        assert words_of(element(tree, "section", id="data"))
        assert "data" in all_tables(found)
    shutil.rmtree(exp)


def test_commands_of_a_data_directory_run_only_when_allowed(exp):
    marker = exp / "it ran"
    data = exp / "data" / "test"
    lines = (data / "wav.scp").read_text().splitlines()
    lines[1] = f"ann-2 touch '{marker}'; cat '{data}/1.wav' |"
    (data / "wav.scp").write_text("\n".join(lines) + "\n")
    (exp / "model" / "experiment.json").write_text(
        json.dumps({"features": {"sample_rate": report_inputs.RATE}})
    )
    (exp / "stages.jsonl").unlink()
    write_report(Layout.find(exp), exp / "report.html", num_pictured=0)
    tree = parse((exp / "report.html").read_text())
    assert not marker.exists()
    assert len(list(tree.iter("audio"))) == 2
    assert "--allow-commands runs it" in words_of(element(tree, "section", id="utterances"))
    write_report(Layout.find(exp), exp / "report.html", num_pictured=0, allow_commands=True)
    assert marker.exists()
    assert len(list(parse((exp / "report.html").read_text()).iter("audio"))) == 3


def test_command_writes_the_report_beside_the_experiment_and_names_it(exp, capsys):
    assert run_command("report", exp, "--pictured", 0, "--utterances", 1) == 0
    assert str(exp / "report.html") in capsys.readouterr().out
    assert len(list(parse((exp / "report.html").read_text()).iter("article"))) == 2
    elsewhere = exp.parent / "new" / "page.html"
    assert run_command("report", exp, elsewhere, "--utterances", 0) == 0
    assert elsewhere.is_file()


def test_stage_log_has_what_each_stage_took(tmp_path):
    log = JsonLinesLog(tmp_path / "stages.jsonl")
    record_run(log, ["large", "small", "broken", "ended", "later"], seed=3)
    with recorded_stage(log, "large"):
        np.ones(40_000_000)  # 320 MB
    with recorded_stage(log, "small"):
        pass
    with pytest.raises(DataError), recorded_stage(log, "broken"):
        raise DataError("no\nsuch file")
    with pytest.raises(KeyboardInterrupt), recorded_stage(log, "ended"):
        raise KeyboardInterrupt
    large, small, broken, ended, later = read_stages(log.path).stages
    states = [stage.state for stage in (large, small, broken, ended, later)]
    assert states == ["done", "done", "failed", "stopped", "to come"]
    assert broken.error == "no such file"
    assert large.seconds > small.seconds >= 0
    if not (Path("/proc/self/clear_refs").exists() and sys.platform == "linux"):
        pytest.skip("only Linux counts the largest memory of a stage alone")
    assert large.peak_rss - small.peak_rss > 250e6


def scalars(folder):
    """The scalars of event files: length, two checksums and a protocol buffer each, as TensorFlow writes records."""
    from tensorboardX.proto import event_pb2

    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = event_pb2.Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    yield value.tag, event.step, value.simple_value


def test_tensorboard_gets_every_number_of_every_epoch(exp, tmp_path):
    for _ in range(2):  # the second call replaces what the first one wrote
        assert tensorboard(exp / "model", tmp_path / "tb") == f"{report_inputs.EPOCHS} epochs"
    found = {(tag, step): value for tag, step, value in scalars(tmp_path / "tb")}
    expected = {}
    for event in read_log(exp / "model" / "train.jsonl"):
        if event["event"] == "epoch":
            expected |= {(f"train/{name}", event["step"]): value for name, value in event["train"].items()}
            expected[("dev/objf", event["step"])] = event["dev"]["objf"]
            expected[("learning_rate", event["step"])] = event["learning_rate"]
    assert found == pytest.approx(expected)  # single precision
    assert len(list(scalars(tmp_path / "tb"))) == len(expected)
    (tmp_path / "tb" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match=r"mine\.txt"):
        tensorboard(exp / "model", tmp_path / "tb")


def test_tensorboard_follows_a_training_to_its_end(exp, tmp_path, monkeypatch):
    lines = (exp / "model" / "train.jsonl").read_text().splitlines(keepends=True)
    log, places = tmp_path / "train.jsonl", iter(range(2, len(lines) + 1))
    log.write_text(lines[0])
    monkeypatch.setattr(time, "sleep", lambda _: log.write_text("".join(lines[: next(places)])))
    assert tensorboard(log, tmp_path / "tb", follow=True) == f"{report_inputs.EPOCHS} epochs"
