"""The example that ends the help of each command, run as it is printed there, each on what those before it made."""

import re
import shlex
import shutil

import click
import numpy as np
import pytest
from cli_fixtures import run_command

from fsachain.cli.app import COMMANDS, app

# Beside the commands of a group of their own: what the others need, with their files.
ORDER = """
    config, spell, lang, validate, phone-lm, word-lm, estimate-arpa, arpa-lm, den-graph, num-graphs, num-tables,
    num-patterns, num-fsts, train, align, supervise, tie-tree, decode, rescore, transcribe, align-long, align-corpus,
    suspicious, keyword, export, kaldi outputs, objf, sum, minimize, equivalent, random-paths, dot, determinize, info,
    score, tensorboard, report, plot occupancy, plot trellis, plot alignment, plot graph, plot training, plot wer,
    kaldi show, run
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
        found[name] = shlex.split(match[1])
    order = [name.strip() for name in ORDER.split(",")]
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
    assert not failed, "\n".join(failed.values())
    for name, command in examples():
        if name not in order and name != "warmup":
            arguments = found[name][len(name.split()) :]
            command.make_parser(click.Context(command)).parse_args(
                arguments
            )  # knows the options and takes so many
