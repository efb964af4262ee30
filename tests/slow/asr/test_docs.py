"""What README.md, docs/ and the help of the commands print runs as it is printed there.

The programs of a page run in order, in one namespace and in an empty folder. What a page says is the reader's own comes from
docs_inputs.py. A program that cannot run here has a comment `<!-- not run: why -->` on the line above it.
"""

import ast
import importlib
import inspect
import pydoc
import re
import shlex
import shutil
from pathlib import Path

import click
import docs_inputs
import numpy as np
import pytest
import yaml
from cli_fixtures import run_command

from fsachain.asr.cli.app import COMMANDS, app
from fsachain.asr.decode.wer import read_text

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"  # which has commands between its programs: a test of its own runs both
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(
    r"(?P<skipped>^<!-- not run: [^\n]+? -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def blocks(page):
    """(whether it cannot run here, language, text behind as many empty lines as stand before it on the page) of each."""
    whole = page.read_text(encoding="utf-8")
    return [
        (match["skipped"] is not None, match["language"], "\n" * whole.count("\n", 0, match.start("text")) + match["text"])
        for match in _BLOCK.finditer(whole)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != TUTORIAL and any(language == "python" for _, language, _ in blocks(page))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)  # fmt: skip
def test_programs_of_a_page_run_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = docs_inputs.GIVEN.get(page.name)
    names = {} if given is None else given(tmp_path)
    for skipped, language, text in blocks(page):
        if language == "python":
            code = compile(text, str(page), "exec")
            if not skipped:
                exec(code, names)


# The first parts of names by which pages call modules of fsachain; not `train` and `network`, which are sections of options.
MODULES = ("backends", "data", "decode", "graph", "kaldi", "openfst", "plot", "stream")
_NAME = re.compile(rf"`((?:fsachain|{'|'.join(MODULES)})(?:\.[a-z]\w*)*\.\w+)(?:\([^`]*)?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_modules_and_functions_that_a_page_names_are_there(page):
    for name in _NAME.findall(page.read_text(encoding="utf-8")):
        if Path(name).suffix not in (".md", ".py", ".npz", ".html", ".scp"):
            assert pydoc.locate(name) or pydoc.locate(f"fsachain.{name}"), name


def test_every_public_name_is_on_one_page_of_the_api():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    found = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    for package in ("fsachain", "fsachain.asr.data", "fsachain.asr.nn", "fsachain.asr.plot"):
        here = [name.rpartition(".")[2] for name in found if name.rpartition(".")[0] == package]
        assert sorted(here) == sorted(importlib.import_module(package).__all__)


def test_every_name_that_a_program_imports_is_on_a_page_of_the_api():
    api = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: (\S+)$", api, re.MULTILINE))
    short = {name.rpartition(".")[2] for name in documented}
    missing = set()
    for page in PAGES:
        for _, language, text in blocks(page):
            if language != "python":
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsachain"):
                    modules = {
                        a.name
                        for a in node.names
                        if inspect.ismodule(pydoc.locate(f"{node.module}.{a.name}"))
                    }
                    names = {alias.name for alias in node.names} - modules
                    missing |= {(page.name, name) for name in names - short}
    assert not missing


# The tutorial's commands and programs, in their order, on a few recorded digits: a reader who copies them gets a report.


UTTERANCES = {"jackson": 9, "lucas": 9, "nicolas": 9, "theo": 3, "yweweler": 3}
SMALLER = {
    "network": {"channels": 32, "bottleneck": 16},
    "train": {"num_epochs": 2, "batch_size": 9, "num_threads": 1},
}


def write_table(digits, folder):
    """Recordings and transcripts as a reader has them."""
    source = digits / "connected" / "train"
    (folder / "audio").mkdir()
    rows = []
    for speaker, count in UTTERANCES.items():
        texts = {
            name: words for name, words in read_text(source / "text").items() if name.startswith(speaker)
        }
        for name in list(texts)[:count]:
            (folder / "audio" / f"{name}.flac").symlink_to(source / "audio" / f"{name}.flac")
            rows.append(f"{name}.flac\t{speaker}\t{' '.join(texts[name])}\n")
    (folder / "transcripts.tsv").write_text("".join(rows))


def test_ten_steps_lead_from_recordings_to_a_report(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(shared / "data" / "digits", tmp_path)
    commands = []
    for skipped, language, text in blocks(TUTORIAL):
        if skipped:
            continue
        if language == "python":
            exec(compile(text, str(TUTORIAL), "exec"), {})
        elif language == "yaml":
            config = yaml.safe_load(text)
            for section, options in SMALLER.items():
                config[section] |= options
            Path("config.yaml").write_text(yaml.safe_dump(config))
        else:
            assert language == "sh"
            for line in filter(None, text.splitlines()):
                assert run_command(*shlex.split(line)[1:]) == 0, (line, capsys.readouterr())
                commands.append(line.split()[1])
    assert commands[-1] == "report"
    assert {split: len(read_text(Path(split, "text"))) for split in ("train", "dev", "test")} == {
        "train": 27,
        "dev": 3,
        "test": 3,
    }
    assert set(read_text(Path("decoded/hyp.txt"))) == set(read_text(Path("test/text")))
    assert Path("aligned/words.ctm").read_text()
    assert "<audio" in Path("report.html").read_text()


# The example that ends the help of each command, run as it is printed there, each on what those before it made.


# Beside the commands of a group of their own: what the others need, with their files.
ORDER = """
    config, spell, lang, validate, phone-lm, word-lm, estimate-arpa, arpa-lm, den-graph, num-graphs, num-tables,
    num-patterns, num-fsts, train, align, supervise, tie-tree, decode, rescore, transcribe, align-long, align-corpus,
    compare-times, suspicious, mend, keyword, export, kaldi outputs, objf, sum, minimize, equivalent, random-paths, dot,
    determinize, info, score, tensorboard, report, plot occupancy, plot trellis, plot alignment, plot graph, plot
    training, plot wer, kaldi show, run
"""
# On files of Kaldi's programs, which the tests of these commands make: here they are read as a command line alone.
OF_KALDI = ["lang", "den", "phone-lm", "ctm", "egs", "supervise", "decode", "objf"]


def examples():
    context = click.Context(app)
    for name in COMMANDS:
        command = app.get_command(context, name)
        for inner, one in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), one


@pytest.fixture
def world(recorded, monkeypatch):
    """Recordings of five utterances as training, development and test set, and what the examples have besides."""
    monkeypatch.chdir(recorded)
    data, audio = recorded / "data", recorded / "audio"
    audio.mkdir()
    table = []
    for line in (data / "text").read_text().splitlines():
        name, words = line.split(maxsplit=1)
        shutil.move(data / f"{name[1:]}.wav", audio)
        (audio / f"{name[1:]}.txt").write_text(words)
        table.append(f"{name} {audio}/{name[1:]}.wav\n")
    (data / "wav.scp").write_text("".join(table))
    for split in ("train", "dev", "test"):
        shutil.copytree(data, recorded / split)
    config = (recorded / "small.yaml").read_text()
    (recorded / "config.yaml").write_text(
        config + "decoding: {lm_weights: [1.0], word_insertion_penalties: [0.0]}\n"
    )
    (recorded / "patterns.txt").write_text("u1 yes [ no ]\n")
    (recorded / "word.txt").write_text("0 1 1 1\n1\n")
    (recorded / "graphs.scp").write_text("u1 word.txt\n")
    logits = np.random.default_rng(1).normal(size=(1, 6, 3, 4)).astype(np.float32)
    np.savez("transducer.npz", logits=logits, targets=[[1, 2]], logit_lengths=[6], target_lengths=[2])
    for folder in ("lang", "den"):
        shutil.rmtree(recorded / folder)
    return recorded


def test_every_command_ends_in_an_example_that_runs(world, capsys):
    found = {}
    for name, command in examples():
        *_, last = command.help.strip().split("\n")
        match = re.fullmatch(r"Example: fsachain (.*)", last.strip())
        assert match and match[1].startswith(name) and len(match[1]) < 110, name
        found[name] = shlex.split(match[1].split(" > ")[0])  # what is printed may go to a file
    order = [" ".join(name.split()) for name in ORDER.split(",")]
    assert {*order, "warmup", *(f"kaldi {name}" for name in OF_KALDI)} == set(found)
    failed = {}
    for name in order:
        status = run_command(*found[name])
        told = capsys.readouterr()
        if status not in (0, 3):
            failed[name] = f"{name}: status {status}: {told.err}"
        if name == "num-graphs":
            for split in ("dev", "test"):
                assert run_command("num-graphs", split, f"graphs/{split}.npz", *found[name][3:]) == 0
        elif name == "estimate-arpa":
            shutil.copy("grammar.arpa", "large.arpa")
        elif name == "align-corpus":
            shutil.copytree("aligned", "by_hand")
    assert not failed, "\n".join(failed.values())
    for name, command in examples():
        if name not in order and name != "warmup":
            arguments = found[name][len(name.split()) :]
            # The parser knows the options and takes so many arguments.
            command.make_parser(click.Context(command)).parse_args(arguments)
