"""The command line in this process, a small corpus with its graphs, a server of files: fixtures."""

import sys
import threading
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

TEXT = "u1 yes no\nu2 no\nu3 no no yes\nu4 yes no no\nu5 yes yes\n"


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


def assert_one_line(outcome: Outcome, *parts: str) -> None:
    """A mistake of the user: one line of error without traceback, with these parts."""
    assert outcome.status == 1, outcome.out
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    for part in parts:
        assert part in outcome.err


def run_command(*arguments: object) -> int:
    """Exit status of `fsachain arguments...` in this process."""
    from fsachain.cli import main

    with patch.object(sys, "argv", ["fsachain", *map(str, arguments)]), pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def save_untrained(path: Path, lang: Path, sections: dict) -> Path:
    """An acoustic model whose network nobody trained, for a language folder; `sections` are those of its configuration."""
    import torch

    from fsachain.cli.config import Experiment
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel
    from fsachain.data.cmvn import Cmvn
    from fsachain.nn.tdnnf import Tdnnf

    experiment, language = Experiment.from_dict(sections), load_lang(lang)
    torch.manual_seed(1)
    network = Tdnnf(experiment.network_spec(language.tree.num_pdfs).config).eval()
    path.parent.mkdir(exist_ok=True)
    AcousticModel(experiment, network, Cmvn(experiment.cmvn), language).save(path)
    return path


class CommandLine:
    """Runs commands in this process and gives their status and what they wrote."""

    def __init__(self, capsys) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Outcome:
        status = run_command(*arguments)
        captured = self.capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def ok(self, *arguments: object) -> Outcome:
        """Of a command that has to succeed."""
        outcome = self(*arguments)
        assert outcome.status == 0, outcome.err
        return outcome


@pytest.fixture
def fsachain(capsys):
    return CommandLine(capsys)


@pytest.fixture
def built(fsachain, tmp_path) -> Path:
    """A corpus without recordings, a language folder, a denominator."""
    (tmp_path / "lexicon.txt").write_text("yes Y EH S\nno N OW\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / "text").write_text(TEXT)
    (data / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 6)))
    lang = ("--lang", tmp_path / "lang")
    fsachain.ok("lang", tmp_path / "lexicon.txt", tmp_path / "lang")
    fsachain.ok("phone-lm", data / "text", tmp_path / "phone_lm.fst", *lang)
    fsachain.ok("den-graph", tmp_path / "phone_lm.fst", tmp_path / "den", *lang)
    return tmp_path


@pytest.fixture
def recorded(built) -> Path:
    """The same with recordings of a second each, and a configuration of a small network."""
    import soundfile  # which not everyone has installed

    rng = np.random.default_rng(0)
    for n in range(1, 6):
        soundfile.write(built / f"data/{n}.wav", 0.1 * rng.normal(size=8000), 8000)
    (built / "small.yaml").write_text(
        "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"
        "train: {num_epochs: 1, num_threads: 1}\ncmvn: {scope: none}\n"
    )
    return built


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def serve():
    """A function that serves a folder on this machine, and gives the address."""
    with ExitStack() as stack:

        def start(folder: Path) -> str:
            server = stack.enter_context(
                ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
            )
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start
