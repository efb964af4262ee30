"""The command line in this process, a small corpus with its graphs, a server of files: fixtures."""

import shlex
import shutil
import sys
import threading
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-0.5 </s>\n-0.5 yes\n-0.5 no\n\n\\end\\\n"
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
    from fsachain.asr.cli import main

    with patch.object(sys, "argv", ["fsachain", *map(str, arguments)]), pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def save_untrained(path: Path, lang: Path, sections: dict) -> Path:
    """An acoustic model whose network nobody trained, for a language folder; `sections` are those of its configuration."""
    import torch

    from fsachain.asr.cli.config import Experiment
    from fsachain.asr.cli.lang import load_lang
    from fsachain.asr.cli.model import AcousticModel
    from fsachain.asr.data.cmvn import Cmvn
    from fsachain.asr.nn.tdnnf import Tdnnf

    experiment, language = Experiment.from_dict(sections), load_lang(lang)
    torch.manual_seed(1)
    network = Tdnnf(experiment.network_spec(language.tree.num_pdfs).config).eval()
    path.parent.mkdir(exist_ok=True)
    AcousticModel(experiment, network, Cmvn(experiment.cmvn), language).save(path)
    return path


class CommandLine:
    """Runs commands in this process, in the folder of the test, and gives their status and what they wrote.

    The first argument is the line as it is typed, others follow its words as they are.
    """

    def __init__(self, capsys) -> None:
        self.capsys = capsys

    def __call__(self, line: str, *others: object) -> Outcome:
        status = run_command(*shlex.split(line), *others)
        captured = self.capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    def ends(self, status: int, line: str, *others: object) -> Outcome:
        """Of a command that has to end with this status."""
        outcome = self(line, *others)
        assert outcome.status == status, outcome.err
        return outcome

    def ok(self, line: str, *others: object) -> Outcome:
        """Of a command that has to succeed."""
        return self.ends(0, line, *others)


@pytest.fixture
def fsachain(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CommandLine(capsys)


def graphs_of(folder: Path) -> tuple[object, ...]:
    return "--lang", folder / "lang", "--den", folder / "den"


def _ok(*arguments: object) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        assert run_command(*arguments) == 0, said.getvalue()


def _build(folder: Path) -> None:
    (folder / "lexicon.txt").write_text("yes Y EH S\nno N OW\n")
    data = folder / "data"
    data.mkdir()
    (data / "text").write_text(TEXT)
    (data / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in range(1, 6)))
    lang = ("--lang", folder / "lang")
    _ok("lang", folder / "lexicon.txt", folder / "lang")
    _ok("phone-lm", data / "text", folder / "phone_lm.fst", *lang)
    _ok("den-graph", folder / "phone_lm.fst", folder / "den", *lang)


def _record(folder: Path) -> None:
    import soundfile  # which not everyone has installed

    rng = np.random.default_rng(0)
    for n in range(1, 6):
        soundfile.write(folder / f"data/{n}.wav", 0.1 * rng.normal(size=8000), 8000)
    (folder / "small.yaml").write_text(
        "features: {sample_rate: 8000, num_mel_bins: 8}\nnetwork: {channels: 8, time_strides: [1]}\n"
        "train: {num_epochs: 1, num_threads: 1}\ncmvn: {scope: none}\n"
    )


def _train(folder: Path) -> None:
    files, graphs = (folder / "data", folder / "num.npz"), graphs_of(folder)
    _ok("num-graphs", *files, *graphs)
    _ok("train", *files, folder / "exp", *graphs, "--config", folder / "small.yaml")


STEPS = {"built": _build, "recorded": _record, "trained": _train}


@pytest.fixture(scope="session")
def stages(tmp_path_factory):
    """A function that gives the folder of a step, made once, and copied by every test."""

    @cache
    def stage(name: str) -> Path:
        folder, earlier = tmp_path_factory.mktemp(name), [*STEPS][: [*STEPS].index(name)]
        if earlier:
            shutil.copytree(stage(earlier[-1]), folder, dirs_exist_ok=True)
        STEPS[name](folder)
        return folder

    return stage


@pytest.fixture
def built(stages, tmp_path) -> Path:
    """A corpus without recordings, a language folder, a denominator."""
    return shutil.copytree(stages("built"), tmp_path, dirs_exist_ok=True)


@pytest.fixture
def recorded(stages, tmp_path) -> Path:
    """The same with recordings of a second each, and a configuration of a small network."""
    return shutil.copytree(stages("recorded"), tmp_path, dirs_exist_ok=True)


@pytest.fixture
def trained(stages, tmp_path) -> Path:
    """The same with numerators and a model of one epoch in the folder exp."""
    return shutil.copytree(stages("trained"), tmp_path, dirs_exist_ok=True)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def serve():
    """A function that serves a folder on this machine, and gives the address."""
    with ExitStack() as stack:

        def start(folder: Path) -> str:
            server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
            stack.enter_context(server)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        yield start
