"""Bad data: each kind is found before a training begins, is named in one table, and never ends in a traceback."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import kaldi_bytes as kb
import numpy as np
import pytest
import soundfile

from fsachain.asr.cli import EXIT_USER_ERROR
from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.lang import load_lang
from fsachain.asr.cli.training import validate_data
from fsachain.asr.data import audio
from fsachain.asr.data.utterance import Fault, fault_table, told_left_out
from fsachain.asr.train.log import read_log
from fsachain.errors import DataError

RATE, WIDTH = 8000, 8
EXPERIMENT = Experiment.from_dict({"features": {"sample_rate": RATE, "num_mel_bins": WIDTH}})


def speak(path, seconds=1.0, rate=RATE, **options):
    samples = 0.1 * np.sin(np.arange(round(seconds * rate)) * 0.3)
    soundfile.write(path, samples, rate, **options)


@pytest.fixture
def corpus(recorded):
    """Five utterances without fault, of one speaker."""
    (recorded / "data/utt2spk").write_text("".join(f"u{n} anna\n" for n in range(1, 6)))
    return recorded / "data"


@pytest.fixture
def lang(recorded):
    return load_lang(recorded / "lang")


def edit(name, old, new):
    """Replace text in one of the tables."""

    def change(folder):
        content = (folder / name).read_text()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new).encode("utf-8", "surrogateescape"))

    return change


def samples(values, repeat=2000):
    def write(folder):
        soundfile.write(folder / "2.wav", np.tile(values, repeat), RATE, subtype="FLOAT")

    return write


def segment(line):
    """All utterances as segments of their recordings; that of u2 is `line`."""

    def change(folder):
        lines = [f"u{n} u{n} 0 1" for n in (1, 3, 4, 5)] + [f"u2 {line}"]
        (folder / "segments").write_text("\n".join(lines) + "\n")

    return change


def marked(folder):
    """As some editors on Windows save them."""
    for name in ("wav.scp", "text", "utt2spk"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def matrix(value):
    """Features of u2 in an archive; None: in one that is not there. Those of the others are sound."""

    def change(folder):
        matrices = dict.fromkeys(("u1", "u3", "u4", "u5"), np.random.default_rng(1).normal(size=(50, WIDTH)))
        for name, found in {**matrices, "u2": value}.items():
            if found is not None:
                (folder / f"{name}.ark").write_bytes(b"\0B" + kb.matrix(found))
        (folder / "feats.scp").write_text("".join(f"u{n} u{n}.ark:0\n" for n in range(1, 6)))

    return change


def stored_but_for_u2(folder):
    matrix(np.zeros((50, WIDTH)))(folder)
    edit("feats.scp", "u2 u2.ark:0\n", "")(folder)


NAN_ROW = np.vstack([np.zeros((50, WIDTH)), np.full((1, WIDTH), np.nan)])
# Kind of fault and what is said of it (a regular expression): what brings it about.
CASES: dict[str, Callable[[Path], object]] = {
    r"missing file: 2\.wav.*no such file": lambda f: (f / "2.wav").unlink(),
    r"missing file: 1\.wav:9': a recording within an archive": edit("wav.scp", "u2 2.wav", "u2 1.wav:9"),
    r"unreadable audio: cannot read .*2\.wav": lambda f: (f / "2.wav").write_bytes(b"this is a text"),
    "unreadable audio: 16000 bytes of samples in its header and 7978 in the file": cut("2.wav", 8022),
    "unreadable audio: not a regular file": lambda f: ((f / "2.wav").unlink(), (f / "2.wav").mkdir()),
    r"empty audio: 2\.wav' gives no frame": lambda f: speak(f / "2.wav", 0.0),
    "sampling rate: 16000 Hz, expected 8000 Hz": lambda f: speak(f / "2.wav", rate=16000),
    "features not finite: first in frame 0 of 50": samples([0.1, float("nan")]),
    "empty text: transcript is empty": edit("text", "u2 no\n", "u2\n"),
    "unknown word: 'maybe'": edit("text", "u2 no", "u2 maybe"),
    "too short: needs 7 output frames, has 2: 3 words in 5 frames of features": lambda f: speak(f / "3.wav", 0.05),
    "duplicate id: text:3: key 'u2' occurs twice, first on line 2": edit("text", "u2 no\n", "u2 no\nu2 yes\n"),
    r"duplicate id: wav\.scp:3: key 'u2'": edit("wav.scp", "u2 2.wav\n", "u2 2.wav\nu2 1.wav\n"),
    "no transcript: no transcript for utterance 'u2'": edit("text", "u2 no\n", ""),
    "no recording: 'u2' has neither a recording nor": edit("wav.scp", "u2 2.wav\n", ""),
    r"no recording: wav\.scp:2: 'u2' has no path": edit("wav.scp", "u2 2.wav", "u2"),
    "no speaker: no speaker for utterance 'u2'": edit("utt2spk", "u2 anna\n", ""),
    "no speaker: expected 'utterance speaker'": edit("utt2spk", "u2 anna\n", "u2 anna bert\n"),
    r"shell command: wav\.scp:2: 'u2' is a shell command": edit("wav.scp", "u2 2.wav", "u2 cat 2.wav |"),
    "table: wav.scp:2: a zero byte": edit("wav.scp", "2.wav", "u2\0.wav"),
    "table: wav.scp:1: a byte order mark": marked,
    "table: text:2: not a line of UTF-8": edit("text", "u2 no", "u2 n\udcff"),
    r"segment: segments:5: expected 'utterance recording start end', got 'u2 u2 0\.5'": segment("u2 0.5"),
    "no recording: recording 'u9' of 'u2' is not in wav.scp": segment("u9 0 1"),
    "segment: needs 0 <= start < end": segment("u2 nan 1"),
    r"segment: from 0\.0 to 3\.5 s .* has 1\.000 s": segment("u2 0 3.5"),
    r"unreadable features: cannot read .*u2\.ark": matrix(None),
    r"digital silence: 1 word in .*2\.wav', whose 100 frames are all the same": samples([0.0], 8000),
    r"digital silence: 1 word in .*u2\.ark:0', whose 50 frames": matrix(np.ones((50, WIDTH))),
    "no features: feats.scp: no features for utterance 'u2'": stored_but_for_u2,
    r"width of features: shape \(50, 5\), expected \[frames, 8\]": matrix(np.zeros((50, 5))),
    "features not finite: first in frame 50 of 51": matrix(NAN_ROW),
}  # fmt: skip


def test_a_corpus_without_fault_has_none(corpus, lang):
    assert validate_data(corpus, EXPERIMENT, lang) == (5, [])
    for name in ("text", "wav.scp", "utt2spk"):
        (corpus / name).write_bytes((corpus / name).read_bytes().replace(b"\n", b"\r\n"))
    assert validate_data(corpus, EXPERIMENT, lang) == (5, [])


@pytest.mark.parametrize("case", CASES)
def test_bad_data_is_named_by_kind_and_the_rest_is_usable(case, corpus, lang):
    kind, _, message = case.partition(": ")
    CASES[case](corpus)
    num_utterances, faults = validate_data(corpus, EXPERIMENT, lang)
    named = [fault for fault in faults if re.search(message, str(fault))]
    assert named, fault_table(faults)
    assert named[0].kind == kind and "\n" not in named[0].reason
    assert num_utterances == 4 and len(faults) == 1
    assert f"{kind}\n" in fault_table(faults)


def test_a_recording_longer_than_any_utterance_is_refused(corpus, lang, monkeypatch):
    monkeypatch.setattr(audio, "MAX_SECONDS", 2.0)
    speak(corpus / "2.wav", 3.0)
    _, (fault,) = validate_data(corpus, EXPERIMENT, lang)
    assert "3 s long, expected at most 2" in fault.reason


@pytest.mark.parametrize(
    ("name", "told"), [("text", "names alone where they are not known"), ("wav.scp", "")]
)
def test_a_directory_without_its_tables_is_an_error(name, told, corpus):
    (corpus / name).unlink()
    with pytest.raises(DataError, match=f"{re.escape(name)}.*{told}"):
        validate_data(corpus, EXPERIMENT)
    with pytest.raises(DataError, match="does not exist"):
        validate_data(corpus / "nowhere", EXPERIMENT)


def test_the_table_counts_by_kind_and_cannot_change_the_terminal():
    faults = [Fault(f"u{n}", "is not there", "missing file") for n in range(8)]
    faults.append(Fault("\x1b[2J", "title\x07", "no recording"))
    faults += [Fault(name, f"utterance '{name}': has no numerator") for name in "ab"]
    table = fault_table(faults, shown=2)
    assert "8  missing file" in table and "duplicate id" not in table
    assert "and 6 more" in table
    # Said once, without the names again.
    assert "u0, u1: is not there" in table and "a, b: has no numerator" in table
    assert told_left_out(faults[-1:]).startswith("1 utterance is left out:\n")
    assert table.index("no recording") < table.index("missing file")
    assert "\x1b" not in table
    assert "\\x1b[2J: title\\x07" in table
    with pytest.raises(DataError, match="kind of fault: 'odd'"):
        Fault("u1", "reason", "odd")


def break_two(corpus):
    (corpus / "1.wav").unlink()
    speak(corpus / "2.wav", rate=16000)


def test_the_command_lists_faults_and_its_status_follows_the_policy(fsachain, corpus):
    step = "validate data --config small.yaml"
    assert fsachain.ok(step).out == "5 utterances can be trained on, 0 faults\n"
    break_two(corpus)
    status, out, err = fsachain(f"{step} --out faults.jsonl")
    assert status == EXIT_USER_ERROR
    assert "3 utterances can be trained on, 2 faults" in out
    assert "1  missing file" in out
    assert err.count("\n") == 1
    faults = [json.loads(line) for line in (corpus.parent / "faults.jsonl").read_text().splitlines()]
    assert {fault["id"] for fault in faults} == {"u1", "u2"}
    fsachain.ok(f"{step} --policy exclude")
    for n in (3, 4, 5):
        (corpus / f"{n}.wav").unlink()
    assert fsachain(f"{step} --policy exclude").status == EXIT_USER_ERROR


@pytest.fixture
def training(fsachain, corpus):
    """A training on the corpus, for which all graphs have been made."""
    fsachain.ok("num-graphs data num.npz --lang lang --den den")
    return "train data num.npz model --lang lang --den den --config small.yaml"


def test_a_training_leaves_bad_utterances_out_and_lists_them(fsachain, training, corpus):
    break_two(corpus)
    (corpus / "text").write_text((corpus / "text").read_text() + "u7 yes\nu3 yes\n")
    speak(corpus / "new.wav")
    (corpus / "wav.scp").write_text((corpus / "wav.scp").read_text() + "u6 new.wav\n")
    (corpus / "utt2spk").write_text((corpus / "utt2spk").read_text() + "u6 anna\n")
    (corpus / "text").write_text((corpus / "text").read_text() + "u6 maybe\n")
    model = corpus.parent / "model"
    status, _, err = fsachain(f"{training} --bad-data stop")
    assert status == EXIT_USER_ERROR and "train.bad_data is 'stop'" in err
    assert not (model / "model.safetensors").exists()
    status, _, err = fsachain(training)
    assert status == EXIT_USER_ERROR, err
    assert "training set: 3 of 5 utterances (60 %) would be left out, more than the 50 %" in err
    training = f"{training} --allow-left-out 0.9"
    status, _, err = fsachain(training)
    assert status == 3, err
    log = [event for event in read_log(model / "train.jsonl") if event["event"] == "start"][-1:]
    assert {entry["id"]: entry["kind"] for entry in log[0]["excluded"]} == {
        "u1": "missing file",
        "u2": "sampling rate",
        "u3": "duplicate id",
        "u6": "unknown word",
        "u7": "no recording",
    }
    listed = [json.loads(line) for line in (model / "faults.jsonl").read_text().splitlines()]
    assert listed == log[0]["excluded"]
    assert log[0]["utterances"] == 2
    assert "5 utterances left out" in err
    assert "1  sampling rate" in err
    for path in corpus.glob("*.wav"):
        path.unlink()
    status, _, err = fsachain(training)
    last = err.splitlines()[-1]
    assert status == EXIT_USER_ERROR and err.count("error: ") == 1
    assert last.startswith("error: training set: no utterance is left: 4 x missing file, 1 x unknown word;")


def test_where_nothing_can_be_read_the_faults_are_told(fsachain, corpus):
    for path in corpus.glob("*.wav"):
        path.unlink()
    (corpus.parent / "plain.yaml").write_text("cmvn: {scope: none}\n")
    outcome = fsachain("validate data --config plain.yaml --lang lang")
    assert outcome.status == EXIT_USER_ERROR and "5  missing file" in outcome.out


def test_numerators_are_compared_with_checksums_and_transcripts(fsachain, training, corpus):
    top = corpus.parent
    fsachain.ok("num-tables data tables --lang lang")
    validate = "validate data --config small.yaml --numerators"
    for numerators in ("tables", "num.npz"):
        fsachain.ok(f"{validate} {numerators}")
    shard = top / "tables" / "00000.tables"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    status, out, _ = fsachain(f"{validate} tables")
    assert status == EXIT_USER_ERROR and "00000.tables" in out and "is damaged" in out
    status, _, err = fsachain("train data tables model --lang lang --den den")
    assert status == EXIT_USER_ERROR and "00000.tables" in err
    assert not (top / "model" / "checkpoints").exists()
    fsachain.ok("num-tables data tables --lang lang")
    fsachain.ok(f"{validate} tables")
    (corpus / "text").write_text((corpus / "text").read_text().replace("u1 yes", "u1 no"))
    for numerators in ("tables", "num.npz"):
        status, out, _ = fsachain(f"{validate} {numerators}")
        assert status == EXIT_USER_ERROR
        assert "has changed since its numerator was made" in out
