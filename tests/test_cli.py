"""The command `fsachain`: steps document themselves, mistakes cost one line, and the files fit together."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("click", reason="the command line needs fsachain[recipes]")
pytest.importorskip("pywrapfst", reason="the graph commands need fsachain[graph]")

from fsachain.cli import EXIT_INTERRUPTED, EXIT_USER_ERROR, main
from fsachain.cli.app import app
from fsachain.cli.config import Experiment
from fsachain.errors import ConfigError

LEXICON = "yes Y EH S\nno N OW\n"
TEXT = "u1 yes no\nu2 no\nu3 no no yes\n"
STEPS = ("lang", "phone-lm", "den-graph", "num-graphs", "train", "decode", "align", "score", "info")


class Outcome:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def fsachain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fsachain", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    data = tmp_path / "data"
    data.mkdir()
    (data / "text").write_text(TEXT)
    (data / "wav.scp").write_text("".join(f"{line.split()[0]} absent.wav\n" for line in TEXT.splitlines()))
    return tmp_path


def test_every_step_is_a_command() -> None:
    assert set(STEPS) == set(app.commands)


@pytest.mark.parametrize("step", STEPS)
def test_help_says_what_comes_in_and_what_goes_out(fsachain, step: str) -> None:
    outcome = fsachain(step, "--help")
    assert outcome.status == 0
    assert "In: " in outcome.out
    assert "Out: " in outcome.out


def test_graph_commands_read_each_others_files(fsachain, corpus: Path) -> None:
    lang, graphs = corpus / "lang", corpus / "graphs"
    config = corpus / "config.yaml"
    config.write_text("phone_lm: {ngram_order: 2, no_prune_ngram_order: 2}\n")
    steps = [
        ("lang", corpus / "lexicon.txt", lang, "--config", config),
        ("phone-lm", corpus / "data" / "text", graphs / "phone_lm.fst", "--lang", lang, "--config", config),
        ("den-graph", graphs / "phone_lm.fst", graphs, "--lang", lang),
        ("num-graphs", corpus / "data", graphs / "train.npz", "--lang", lang, "--den", graphs),
    ]
    for step in steps:
        outcome = fsachain(*step)
        assert outcome.status == 0, outcome.err
    assert "3 numerators" in outcome.out
    assert "3 utterances, 6 words" in fsachain("info", graphs / "train.npz").out
    assert "pdfs: 12" in fsachain("info", lang).out  # five phones and silence, two pdfs each
    assert "acceptor: " in fsachain("info", graphs / "den.fst").out


def test_utterance_with_unknown_word_is_named_and_left_out(fsachain, corpus: Path) -> None:
    assert fsachain("lang", corpus / "lexicon.txt", corpus / "lang").status == 0
    (corpus / "data" / "text").write_text(TEXT.replace("u2 no", "u2 maybe"))
    outcome = fsachain("num-graphs", corpus / "data", corpus / "n.npz", "--lang", corpus / "lang")
    assert outcome.status == 0
    assert "2 numerators" in outcome.out
    assert "1 utterances excluded" in outcome.out
    assert "'u2'" in outcome.out
    assert "'maybe'" in outcome.out


def test_score_prints_the_word_error_rate(fsachain, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a one two\nb three\n")
    (tmp_path / "hyp").write_text("a one\nb three three\n")
    outcome = fsachain("score", tmp_path / "ref", tmp_path / "hyp", "--out", tmp_path / "scored")
    assert outcome.status == 0
    assert "WER 66.67 % [ 2 / 3, 1 ins, 1 del, 0 sub ]" in outcome.out
    assert (tmp_path / "scored" / "wer.json").is_file()


def test_user_mistake_is_one_line_without_traceback(fsachain, corpus: Path) -> None:
    (corpus / "broken.txt").write_text("yes\n")
    outcome = fsachain("lang", corpus / "broken.txt", corpus / "lang")
    assert outcome.status == EXIT_USER_ERROR
    assert outcome.err.startswith("error: ")
    assert "broken.txt" in outcome.err
    assert outcome.err.count("\n") == 1


def test_wrong_usage_has_its_own_exit_status(fsachain) -> None:
    assert fsachain("score", "no-such-file", "neither").status == 2


def test_interruption_has_its_own_exit_status(
    fsachain, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fsachain.cli.steps.lang.make_lang", interrupt)
    assert fsachain("lang", corpus / "lexicon.txt", corpus / "lang").status == EXIT_INTERRUPTED


def test_commands_in_wav_scp_are_refused_unless_asked_for(fsachain, corpus: Path) -> None:
    assert fsachain("lang", corpus / "lexicon.txt", corpus / "lang").status == 0
    (corpus / "data" / "wav.scp").write_text("u1 cat x |\nu2 cat x |\nu3 cat x |\n")
    step = ("num-graphs", corpus / "data", corpus / "n.npz", "--lang", corpus / "lang")
    assert fsachain(*step).status == EXIT_USER_ERROR
    assert fsachain(*step, "--allow-commands").status == 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"trian": {}}, "train"),
        ({"train": {"num_epoch": 3}}, "num_epochs"),
        ({"network": {"chanels": 3}}, "channels"),
        ({"network": {"num_pdfs": 3}}, "follows from features and tree"),
        ({"lang": {"context": "triphone"}}, "monophone, biphone"),
    ],
)
def test_configuration_refuses_what_it_does_not_know(sections: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment.from_dict(sections)


def test_configuration_survives_its_own_dictionary() -> None:
    experiment = Experiment.from_dict({"lang": {"silence": None}, "network": {"channels": 32}})
    assert Experiment.from_dict(experiment.to_dict()) == experiment
