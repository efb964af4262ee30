"""Commands on data of which some utterances cannot be used: the others are done, and the rest is listed and counted."""

import json

import numpy as np
import pytest
import soundfile
from cli_fixtures import assert_one_line, save_untrained

from fsachain.cli.resources import Resources
from fsachain.errors import DataError, counted
from fsachain.train.config import load_yaml

USABLE = ("u1", "u4")
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-0.5 </s>\n-0.5 yes\n-0.5 no\n\n\\end\\\n"
OPTIONS = {"lang": "lang", "den": "den", "config": "small.yaml"}
BROKEN = {"u2": "unreadable audio", "u3": "sampling rate", "u5": "no recording"}


@pytest.fixture
def broken(recorded):
    """Two sound utterances, and three that are each broken in another way; a model that was not trained."""
    data = recorded / "data"
    (data / "2.wav").write_bytes(b"RIFF, and nothing more")
    soundfile.write(data / "3.wav", np.zeros(8000), 16000)
    (data / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 5)))
    save_untrained(recorded / "model.safetensors", recorded / "lang", load_yaml(recorded / "small.yaml"))
    return recorded


def command(name, corpus):
    """The words of a command on the corpus, its first output, and its list of faults."""
    data, out, model, ctm = (corpus / path for path in ("data", "out", "model.safetensors", "phones.ctm"))
    lang, den, config = ((f"--{word}", corpus / path) for word, path in OPTIONS.items())
    times = "".join(f"u{n} 1 {0.5 * k} 0.5 {p}\n" for n in range(1, 6) for k, p in enumerate(("N", "OW")))
    ctm.write_text(times)
    (corpus / "words.arpa").write_text(ARPA)
    words, made = {
        "decode": (["decode", model, data, out, *lang, "--dev", data], out / "hyp.txt"),
        "align": (["align", model, data, out, *lang], out / "words.ctm"),
        "supervise": (
            ["supervise", data, ctm, corpus / "made.npz", *lang, *den, *config],
            corpus / "made.npz",
        ),
        "keyword": (["keyword", model, data, "no no", out, *lang], out / "scores.txt"),
        "suspicious": (["suspicious", model, data, out, *lang, *den], out / "words.txt"),
        "mend": (["mend", model, data, out, *lang], out / "text"),
        "rescore": (
            ["rescore", model, data, corpus / "words.arpa", out, *lang, "--dev", data],
            out / "hyp.txt",
        ),
        "tie-tree": (["tie-tree", data, ctm, out, *lang, *config, "--num-pdfs", 8], out / "tree.npz"),
        "kaldi outputs": (["kaldi", "outputs", model, data, corpus / "made.ark"], corpus / "made.ark"),
        "num-graphs": (["num-graphs", data, corpus / "made.npz", *lang], corpus / "made.npz"),
        "num-tables": (["num-tables", data, out, *lang], out / "00000.tables"),
    }[name]
    return words, made, out / "faults.jsonl" if made.parent == out else corpus / "made.faults.jsonl"


TABLES_ALONE = ("num-graphs", "num-tables")
WITH_RECORDINGS = ["decode", "align", "supervise", "keyword", "suspicious", "mend", "rescore", "tie-tree"]


@pytest.mark.parametrize("name", [*WITH_RECORDINGS, "kaldi outputs", *TABLES_ALONE])
def test_usable_utterances_are_done_the_others_listed_and_the_status_says_so(fsachain, broken, name):
    """The policy "stop" ends the command before it writes anything."""
    words, made, listed = command(name, broken)
    stopped = fsachain(*words, "--bad-data", "stop")
    assert_one_line(stopped, "--bad-data is stop")
    assert "u5" in stopped.out and not made.exists()
    _, out, err = fsachain.ends(3, *words)
    assert made.is_file()
    faults = [json.loads(line) for line in listed.read_text().splitlines()]
    found = {fault["id"]: fault["kind"] for fault in faults}
    assert found == ({"u5": "no recording"} if name in TABLES_ALONE else BROKEN)
    # Kernels may be compiled, for minutes.
    assert len([line for line in err.splitlines() if "so far" not in line]) == 1
    assert f"done, but {counted(len(faults), 'utterance')} left out" in err
    for identity, kind in found.items():
        assert identity in out
        assert kind in out


def test_what_is_left_out_is_not_scored(fsachain, broken):
    words, _, _ = command("decode", broken)
    fsachain.ends(3, *words)
    report = json.loads((broken / "out" / "wer.json").read_text())
    assert report["total"]["utterances"] == len(USABLE)
    assert not report["missing"]
    assert [line.split()[0] for line in (broken / "out" / "hyp.txt").read_text().splitlines()] == list(USABLE)


def test_a_list_of_faults_goes_when_the_faults_do(fsachain, broken):
    words, _, listed = command("align", broken)
    fsachain.ends(3, *words)
    assert listed.exists()
    for number in (2, 3, 5):
        soundfile.write(broken / "data" / f"{number}.wav", np.full(8000, 0.1), 8000)
    (broken / "data" / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 6)))
    fsachain.ok(*words)
    assert not listed.exists()


def test_an_utterance_can_be_drawn_whatever_is_wrong_with_others(fsachain, broken):
    words = ["plot", "trellis", broken / "model.safetensors", broken / "data", broken / "one.png"]
    words += ["--lang", broken / "lang", "--den", broken / "den", "--utterance"]
    fsachain.ok(*words, "u1")
    assert_one_line(fsachain(*words, "u5"), "u5")


def test_faults_of_several_data_sets_add_up(broken):
    bad = Resources(bad_data="exclude")
    bad.read(broken / "data")
    bad.read(broken / "data")
    assert len(bad.faults) == 2
    with pytest.raises(DataError, match="does not exist"):
        bad.read(broken / "nowhere")


RESULTS = {
    "decode": ("hyp.txt", "wer.txt", "wer.json", "tuning.txt", "tuning.json"),
    "rescore": ("hyp.txt", "wer.txt", "wer.json", "tuning.txt", "tuning.json"),
    "align": ("words.ctm", "phones.ctm"),
    "keyword": ("scores.txt",),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_folder_holds_the_results_of_one_run(fsachain, broken, name):
    """Those of an earlier run are gone where a later one fails, and a tuning where a later one tunes nothing."""
    words, made, _ = command(name, broken)
    fsachain.ends(3, *words)
    assert {path.name for path in made.parent.iterdir()} == {*RESULTS[name], "faults.jsonl"}
    if name == "decode":
        fsachain.ends(3, *words[: words.index("--dev")])
        assert {path.name for path in made.parent.iterdir()} == {*RESULTS[name][:3], "faults.jsonl"}
    (broken / "data" / "1.wav").unlink()
    (broken / "data" / "4.wav").unlink()
    assert_one_line(fsachain(*words), "no utterance is left")
    assert [path.name for path in made.parent.iterdir()] == ["faults.jsonl"]  # of this run
