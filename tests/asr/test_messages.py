"""What messages tell people to do can be done: commands, options and places in a configuration exist, and names are near."""

import ast
import dataclasses
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

from fsachain.asr.cli.app import COMMANDS, app
from fsachain.asr.cli.config import BUILT_IN, NETWORKS, Experiment
from fsachain.errors import counted

ROOT = Path(__file__).resolve().parents[2] / "fsachain"
COMMAND = re.compile(r"fsachain ((?:(?:kaldi|plot) )?[a-z][a-z-]+)((?: [^`]*)?)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
PLACE = re.compile(
    rf"(?<![\w./`-])({'|'.join(one.name for one in dataclasses.fields(Experiment))})\.([a-z_]+)(?![\w/(])"
)
# Options of git, torchrun, TensorBoard, NVRTC and Kaldi; and the beginning of a name.
OF_OTHERS = {
    "abbrev",
    "always",
    "dirty",
    "exclude",
    "nproc-per-node",
    "logdir",
    "fmad",
    "std",
    "reorder",
    "utt",
    "center",
}
FILES = {"fst", "jsonl", "npz"}  # endings of names such as train.jsonl
# The names of modules of the package, such as loss.ctc, stand in one file.
MODULES = "__init__.py"


@cache
def commands() -> dict[str, click.Command]:
    """Every command by its name, those of groups as "kaldi lang"."""
    context = click.Context(app)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = app.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
    return found


def options_of(command: click.Command) -> set[str]:
    return {name.lstrip("-") for one in command.params for name in one.opts if name.startswith("--")} | {
        "help"
    }


def texts():
    """(place, text) of every string of the package; of one with values in it a text with `{}` in their place."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def test_commands_that_texts_name_exist_and_have_the_options_that_stand_behind_them():
    wrong, seen = [], 0
    for place, text in texts():
        for name, behind in COMMAND.findall(" ".join(text.split())):
            name = name.removesuffix("-")
            if name.split()[0] not in COMMANDS:
                if f"`fsachain {name}" in text or f"Example: fsachain {name}" in text:
                    wrong.append(f"{place}: fsachain {name}")
                continue
            command = commands().get(name, commands()[name.split()[0]])
            seen += 1
            if f"`fsachain {name}" in " ".join(text.split()):
                lacking = {one for one in OPTION.findall(behind) if one not in options_of(command)}
                wrong += [f"{place}: fsachain {name} --{one}" for one in lacking]
    assert not wrong and seen > 100


def test_options_that_texts_name_exist():
    every = {option for command in [app, *commands().values()] for option in options_of(command)}
    known = every | OF_OTHERS
    named = {(place, option) for place, text in texts() for option in OPTION.findall(text)}
    assert not [f"{place}: --{option}" for place, option in sorted(named) if option not in known]
    assert len(named) > 100


def test_options_of_a_configuration_that_texts_name_exist():
    sections = {one.name: getattr(Experiment(), one.name) for one in dataclasses.fields(Experiment)}
    known = {
        name: {one.name for one in dataclasses.fields(part)}
        for name, part in sections.items()
        if name != "network"
    }
    networks = (NETWORKS[kind] for kind in BUILT_IN)
    known["network"] = {"kind", "init_from"} | {
        one.name for part in networks for one in dataclasses.fields(part)
    }
    named = {
        (place, section, option)
        for place, text in texts()
        for section, option in PLACE.findall(text)
        if option not in FILES and not place.startswith(MODULES)
    }
    assert not [
        f"{place}: {section}.{name}" for place, section, name in sorted(named) if name not in known[section]
    ]
    assert len(named) > 20


@pytest.fixture
def kaldi(built, tmp_path):
    """Folders of Kaldi beside ours: lang, and a model with tree, denominator and network."""
    for name in ("L.fst", "phones.txt", "words.txt", "topo"):
        (tmp_path / "data_lang").mkdir(exist_ok=True)
        (tmp_path / "data_lang" / name).write_bytes(b"")
    (tmp_path / "chain").mkdir()
    for name in ("tree", "phones.txt", "den.fst"):
        (tmp_path / "chain" / name).write_bytes(b"")
    (tmp_path / "chain" / "final.mdl").write_bytes(b"\0B<TransitionModel> ")
    return built


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        (
            "phone-lm data/text lm.fst --lang data_lang",
            1,
            "lang folder of Kaldi: `fsachain kaldi lang LEXICON MODEL_DIR",
        ),
        (
            "phone-lm data/text lm.fst --lang chain",
            1,
            "model folder of Kaldi: `fsachain kaldi lang LEXICON chain OUT`",
        ),
        (
            "phone-lm data/text lm.fst --lang den",
            1,
            "den: no lexicon.json; it has the denominator graph, for --den",
        ),
        ("phone-lm data/text lm.fst --lang data", 1, "data: no lexicon.json; it is a data directory"),
        ("phone-lm data/text lm.fst --lang .", 1, "; expected lang"),
        (
            "num-graphs data num.npz --lang lang --den chain",
            1,
            "`fsachain kaldi den chain/den.fst OUT --lang LANG`",
        ),
        (
            "num-graphs data num.npz --lang lang --den lang",
            1,
            "lang: no normalization.fst; it is a language folder, for",
        ),
        ("num-graphs data num.npz --lang lang --den .", 1, "; expected den"),
        (
            "num-graphs data num.npz --lang lang --den chain/den.fst",
            2,
            "`fsachain kaldi den chain/den.fst OUT --lang LANG`",
        ),
        ("num-graphs data num.npz --lang lang --den den/den.fst", 2, "give its folder, den"),
        ("num-graphs lang num.npz --lang lang --den den", 1, "it is a language folder"),
        ("decode chain/final.mdl data out", 1, "a model of Kaldi, whose network is not read"),
        (
            "decode chain data out",
            1,
            "chain: no model.safetensors in this folder or in chain/model; it is a",
        ),
        ("decode lang data out", 1, "it is a language folder, for --lang"),
        ("lang data_lang out", 2, "lang folder of Kaldi"),
    ],
)
def test_what_stands_in_the_wrong_place_is_recognised(fsachain, kaldi, line, status, told):
    assert told in " ".join(fsachain.ends(status, line).err.split())


def test_a_model_is_found_in_the_folder_of_its_training(fsachain, trained):
    made = fsachain.ok("decode exp/model.safetensors data one").out
    assert fsachain.ok("decode exp data two").out.replace("two", "one") == made
    (trained / "run").mkdir()
    (trained / "exp").rename(trained / "run" / "model")
    assert fsachain.ok("decode run data one").out == made
    (trained / "run" / "model" / "model.safetensors").unlink()
    told = "run/model: no model.safetensors in this folder or in run/model/model; its training has not ended"
    assert told in fsachain.ends(1, "decode run/model data one").err


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("trian", "'train'"),
        ("num_graphs data out", "'num-graphs'"),
        ("Decode model data out", "'decode'"),
        ("kaldi lan a b c", "'lang'"),
        ("plot alignmnt", "'alignment'"),
    ],
)
def test_a_mistyped_command_is_told_the_nearest(fsachain, line, near):
    assert f"Did you mean {near}" in fsachain.ends(2, line).err


def test_commands_are_not_told_how_python_spells_it(fsachain, recorded):
    (recorded / "data" / "wav.scp").write_text("u1 cat 1.wav |\n")
    (recorded / "data" / "text").write_text("u1 yes\n")
    for line in ("num-graphs data num.npz --lang lang --den den", "validate data --config small.yaml"):
        outcome = fsachain.ends(1, line)
        assert "--allow-commands runs it" in outcome.out + outcome.err
        assert "in Python" not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("train:\n  num_epochs: [1\n", "", "bad.yaml:3: cannot read the options: expected ',' or ']'"),
        (
            "train: {seed: 1}\nfeatures:\n  num_mel_bins: x\n",
            "",
            "bad.yaml:3: features.num_mel_bins: expected int",
        ),
        ("features:\n  low_freq: 9000\n  sample_rate: 8000\n", "", "bad.yaml:2: features.low_freq"),
        (
            "train:\n  num_epocs: 3\n",
            "",
            "bad.yaml:2: train.num_epocs: unknown option; did you mean 'num_epochs'",
        ),
        ("trian: {}\n", "", "bad.yaml:1: trian: unknown option; did you mean 'train'"),
        ("network:\n  channels: x\n", "", "bad.yaml:2: network.channels"),
        (
            "train:\n  seed: 1\n",
            "--set train.seed=x",
            "error: --set train.seed=x: train.seed: expected int, got 'x'",
        ),
    ],
)
def test_faults_of_a_configuration_name_the_file_and_the_line_or_the_setting(
    fsachain, built, text, options, told
):
    (built / "bad.yaml").write_text(text)
    assert told in fsachain.ends(1, f"phone-lm data/text out --lang lang --config bad.yaml {options}").err


NOUNS = """
    arc array batch byte channel chunk column class entry epoch example field file frame graph history id integer label
    layer letter line minute model n-gram name node number numerator pdf phone recording row sample score second self-loop
    sequence shard speaker state step symbol table thread time token transcript utterance value vector weight word"""
COUNTED = NOUNS.split()
PLURALS = "|".join(sorted((counted(2, noun).removeprefix("2 ") for noun in COUNTED), key=len, reverse=True))
BEHIND = re.compile(rf" (?:(?!with )[a-z]+ )?({PLURALS})\b(?! the| no| it| them|/s)")


def is_fixed(node):
    """Whether a value of a text is no number, or one that is never 1: a limit, by its name."""
    source = ast.unparse(node)
    return source.startswith("counted(") or re.fullmatch(r"_?[A-Z][A-Z0-9_]+.*", source) is not None


# Texts with another word than a number before the noun.
WORDS = {
    "{of}", "{kind}", "{what}", "{argument}", "{name}", "{features.kind}", "{why}", "{where}", "{self.kind}", "{sizes}",
    "{sorted(widths)}", "{shape[:1]}", "{begun[-1].name}", "{self.index}", "{units}", "{header.arc_type}",
    "{value}", "{costs}",
    "{source.num_utterances}",  # of checkpoints, which older versions wrote so
    "{summary['frames_per_second']}",
}  # fmt: skip


def test_numbers_stand_before_their_nouns_by_the_one_helper():
    """So that no message says "1 frames"."""
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for value, text in pairwise(parts):
                if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                    continue
                found = BEHIND.match(str(text.value))
                shown = f"{{{ast.unparse(value.value)}}}"
                if found and not is_fixed(value.value) and shown not in WORDS:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {shown}{found[0]}")
    assert not wrong


@pytest.mark.parametrize(
    ("number", "noun", "how", "told"),
    [
        (1, "frame", {}, "1 frame"),
        (0, "time", {}, "0 times"),
        (2, "batch", {}, "2 batches"),
        (2, "index", {}, "2 indexes"),
        (3, "entry", {}, "3 entries"),
        (3, "way", {}, "3 ways"),
        (2, "pass", {}, "2 passes"),
        (1234, "arc", {"spec": ","}, "1,234 arcs"),
        (1.0, "frame", {"spec": ".0f"}, "1 frame"),
        (1, "byte", {"verb": "are"}, "1 byte is"),
        (2, "byte", {"verb": "are"}, "2 bytes are"),
    ],
)
def test_a_number_comes_with_its_noun(number, noun, how, told):
    assert counted(number, noun, **how) == told
