"""Commands on data of which some utterances cannot be used: the others are done, and the rest is listed and counted."""

import json

import numpy as np
import pytest
import soundfile
from cli_fixtures import ARPA, save_untrained

from fsachain.asr.cli.resources import Resources
from fsachain.asr.train.config import load_yaml
from fsachain.errors import DataError, counted

USABLE = ("u1", "u4")
BROKEN = {"u2": "unreadable audio", "u3": "sampling rate", "u5": "no recording"}


@pytest.fixture
def broken(recorded):
    """Two sound utterances, and three that are each broken in another way; a model that was not trained."""
    data = recorded / "data"
    (data / "2.wav").write_bytes(b"RIFF, and nothing more")
    soundfile.write(data / "3.wav", np.zeros(8000), 16000)
    (data / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 5)))
    save_untrained(recorded / "model.safetensors", recorded / "lang", load_yaml(recorded / "small.yaml"))
    times = "".join(f"u{n} 1 {0.5 * k} 0.5 {p}\n" for n in range(1, 6) for k, p in enumerate(("N", "OW")))
    (recorded / "phones.ctm").write_text(times)
    (recorded / "words.arpa").write_text(ARPA)
    return recorded


MODEL = "model.safetensors data"
# The words of a command on the corpus, and its first output.
COMMANDS = {
    "decode": (f"decode {MODEL} out --lang lang --dev data", "out/hyp.txt"),
    "align": (f"align {MODEL} out --lang lang", "out/words.ctm"),
    "supervise": ("supervise data phones.ctm made.npz --lang lang --den den --config small.yaml", "made.npz"),
    "keyword": (f"keyword {MODEL} 'no no' out --lang lang", "out/scores.txt"),
    "suspicious": (f"suspicious {MODEL} out --lang lang --den den", "out/words.txt"),
    "mend": (f"mend {MODEL} out --lang lang", "out/text"),
    "rescore": (f"rescore {MODEL} words.arpa out --lang lang --dev data", "out/hyp.txt"),
    "tie-tree": ("tie-tree data phones.ctm out --lang lang --config small.yaml --num-pdfs 8", "out/tree.npz"),
    "kaldi outputs": (f"kaldi outputs {MODEL} made.ark", "made.ark"),
    "num-graphs": ("num-graphs data made.npz --lang lang", "made.npz"),
    "num-tables": ("num-tables data out --lang lang", "out/00000.tables"),
}
TABLES_ALONE = ("num-graphs", "num-tables")


@pytest.mark.parametrize("name", COMMANDS)
def test_usable_utterances_are_done_the_others_listed_and_the_status_says_so(fsachain, broken, name):
    """The policy "stop" ends the command before it writes anything."""
    command, made = COMMANDS[name][0], broken / COMMANDS[name][1]
    listed = broken / ("out/faults.jsonl" if made.parent.name == "out" else "made.faults.jsonl")
    _, out, err = fsachain.ends(1, f"{command} --bad-data stop")
    assert not made.exists() and "--bad-data is stop" in err and "u5" in out
    _, out, err = fsachain.ends(3, command)
    assert made.is_file()
    faults = [json.loads(line) for line in listed.read_text().splitlines()]
    found = {fault["id"]: fault["kind"] for fault in faults}
    assert found == ({"u5": "no recording"} if name in TABLES_ALONE else BROKEN)
    # Kernels may be compiled, for minutes.
    assert len([line for line in err.splitlines() if "so far" not in line]) == 1
    assert f"done, but {counted(len(faults), 'utterance')} left out" in err
    assert all(part in out for pair in found.items() for part in pair)


def test_what_is_left_out_is_not_scored(fsachain, broken):
    fsachain.ends(3, COMMANDS["decode"][0])
    report = json.loads((broken / "out/wer.json").read_text())
    assert report["total"]["utterances"] == len(USABLE) and not report["missing"]
    assert [line.split()[0] for line in (broken / "out/hyp.txt").read_text().splitlines()] == list(USABLE)


def test_a_list_of_faults_goes_when_the_faults_do(fsachain, broken):
    align, listed = COMMANDS["align"][0], broken / "out/faults.jsonl"
    fsachain.ends(3, align)
    assert listed.exists()
    for number in (2, 3, 5):
        soundfile.write(broken / "data" / f"{number}.wav", np.sin(np.arange(8000)), 8000)
    (broken / "data" / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 6)))
    fsachain.ok(align)
    assert not listed.exists()


def test_an_utterance_can_be_drawn_whatever_is_wrong_with_others(fsachain, broken):
    command = f"plot trellis {MODEL} one.png --lang lang --den den --utterance"
    fsachain.ok(f"{command} u1")
    assert "utterance 'u5' has neither a recording" in fsachain.ends(1, f"{command} u5").err


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
    command, out = COMMANDS[name][0], broken / "out"
    fsachain.ends(3, command)
    assert {path.name for path in out.iterdir()} == {*RESULTS[name], "faults.jsonl"}
    if name == "decode":
        fsachain.ends(3, command.removesuffix(" --dev data"))
        assert {path.name for path in out.iterdir()} == {*RESULTS[name][:3], "faults.jsonl"}
    (broken / "data" / "1.wav").unlink()
    (broken / "data" / "4.wav").unlink()
    assert "no utterance is left" in fsachain.ends(1, command).err
    assert [path.name for path in out.iterdir()] == ["faults.jsonl"]  # of this run
