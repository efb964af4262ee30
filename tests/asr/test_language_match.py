"""Models and graphs belong to one language folder: another one, of the same size, is refused with what differs first."""

from pathlib import Path

import numpy as np
import pytest
from cli_fixtures import ARPA, assert_one_line
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fsachain.asr.cli.lang import load_lang
from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.train.checkpoint import load_tensors, save_tensors
from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon, phone_difference
from fsachain.graph.numerator import build_numerator, load_numerators, save_numerators
from fsachain.graph.topology import Topology

LEXICON = "yes Y EH S\nno N OW\n"
OTHERS = {  # lexicon, context, what is named; the first two have as many pdfs
    "renamed": ("yes Y IH S\nno N OW\n", "monophone", "phone 2 is 'EH' in the model, 'IH' in "),
    "swapped": ("yes Y OW S\nno N EH\n", "monophone", "'yes' is said 'Y EH S' in the model, 'Y OW S' in "),
    "wide": (LEXICON, "biphone", "the window of a pdf is 1 phone in the model, 2 phones in "),
}


@pytest.fixture
def trained(fsachain, trained: Path) -> Path:
    """With the folders of `OTHERS`, and a grammar."""
    for name, (text, context, _) in OTHERS.items():
        (trained / f"{name}.txt").write_text(text)
        fsachain.ok(f"lang {name}.txt {name} --set lang.context={context}")
    (trained / "words.arpa").write_text(ARPA)
    (trained / "said.txt").write_text("yes no\n")
    return trained


MODEL = "exp/model.safetensors"
DECODE = f"decode {MODEL} data out"
COMMANDS = (
    DECODE,
    f"align {MODEL} data out",
    f"keyword {MODEL} data 'no no' out",
    f"rescore {MODEL} data words.arpa out --dev data",
    f"transcribe {MODEL} data/1.wav",
    f"align-long {MODEL} data/1.wav said.txt out",
)


def test_another_language_folder_is_refused_with_the_first_difference(fsachain, trained) -> None:
    sizes = [load_lang(trained / name).tree.num_pdfs for name in ("lang", *OTHERS)]
    assert sizes == [12, 12, 12, 72]
    for command in COMMANDS:
        for name, (*_, difference) in OTHERS.items():
            assert_one_line(fsachain(f"{command} --lang {name}"), difference + name)
    assert not (trained / "out").exists()


def test_a_model_holds_its_language_and_needs_no_folder(fsachain, trained) -> None:
    """In its absence too; the words recognised are those with the folder. More words, or ways to say one, are welcome."""
    told = {command: fsachain(f"{command} --lang lang") for command in COMMANDS}
    held = AcousticModel.load(trained / "exp/model.safetensors").lang
    assert held is not None and held.difference(load_lang(trained / "lang")) is None
    (trained / "lang").rename(trained / "away")
    for command in COMMANDS:
        assert fsachain.ok(command) == told[command], command
    (trained / "more.txt").write_text(LEXICON + "yes Y EH\nnose N OW S\n")
    fsachain.ok("lang more.txt more")
    told = [line for command in COMMANDS for line in fsachain.ok(f"{command} --lang more").err.splitlines()]
    assert told[0].endswith("1 word more ('nose'), 1 word with other pronunciations ('yes')")  # said once
    assert len([line for line in told if "word more" in line]) == 1


def test_a_model_of_an_earlier_version_is_read_and_said_to_be_unchecked(fsachain, trained) -> None:
    model = trained / MODEL
    tensors, header = load_tensors(model)
    save_tensors(model, {name: one for name, one in tensors.items() if not name.startswith("lang.")}, header)
    outcome = fsachain.ok(f"{DECODE} --lang renamed")
    assert "holds no words, phones and tree" in outcome.err and "is not checked" in outcome.err
    assert_one_line(fsachain(f"{DECODE} --lang wide"), "the model has 12 pdfs, ", "wide 72")
    (trained / "lang").rename(trained / "exp/lang")
    fsachain.ok(DECODE)


def test_graphs_of_another_language_folder_are_refused_with_the_first_difference(fsachain, trained) -> None:
    """Numerators, shards of them, chunks, the denominator and its phone language model."""
    fsachain.ok("num-tables data tables --lang lang --den den")
    fsachain.ok(f"align {MODEL} data ali --den den")
    fsachain.ok("supervise data ali/phones.ctm chunks.npz --lang lang --den den --config small.yaml")
    difference = "phone 2 is 'EH' in the file, 'IH' in renamed"
    for made in ("num.npz", "tables", "chunks.npz"):
        outcome = fsachain.ends(1, f"train data {made} new --lang renamed --den den --config small.yaml")
        assert f"{made}: made with another language folder: {difference}" in outcome.err
    for name, what in (("swapped", "words, pronunciations or silence of"), ("wide", "the tree of")):
        outcome = fsachain(f"train data num.npz new --lang {name} --den den")
        assert_one_line(outcome, f"made with another language folder: {what}")
    for step, made in (
        ("num-graphs data n.npz --den den", "den"),
        ("den-graph phone_lm.fst g", "phone_lm.fst"),
    ):
        assert_one_line(fsachain(f"{step} --lang renamed"), f"phone 2 is 'EH' in {made}, 'IH' in renamed")


def test_a_network_that_begins_with_weights_of_another_language_says_so(fsachain, trained) -> None:
    fsachain.ok("num-graphs data n.npz --lang swapped")
    config = f"--config small.yaml --set network.init_from={MODEL}"
    outcome = fsachain.ok(f"train data n.npz new --lang swapped --den den {config}")
    assert "was trained with other words or pdfs: 'yes' is said 'Y EH S' in the model" in outcome.err


def test_numerators_that_do_not_say_what_made_them_are_read_with_a_warning(fsachain, trained) -> None:
    save_numerators(trained / "num.npz", load_numerators(trained / "num.npz"))
    outcome = fsachain.ok("train data num.npz new --lang lang --den den --config small.yaml")
    assert "num.npz does not say what it was made with" in outcome.err


NAMES = st.lists(st.sampled_from("abcd"), max_size=5)


@given(one=NAMES, other=NAMES)
def test_lists_of_names_differ_at_the_place_that_is_named(one: list[str], other: list[str]) -> None:
    told = phone_difference(one, other, ("A", "B"))
    assert (told is None) == (one == other)
    if told is not None:
        number = int(told.split()[1])
        assert one[: number - 1] == other[: number - 1] and one[:number] != other[:number]


CHAIN = Topology.chain()


PLAIN = ContextTree.monophone("abc", CHAIN)
ALONE = {phone: ContextTree.biphone("abc", CHAIN, context_independent=[phone]) for phone in "ab"}


@pytest.mark.parametrize(
    ("tree", "other", "difference"),
    [
        (PLAIN, ContextTree.monophone("ab", CHAIN), "phone 3 is 'c' in A, B has 2"),
        (PLAIN, ContextTree.monophone("abd", CHAIN), "phone 3 is 'c' in A, 'd' in B"),
        (PLAIN, ContextTree.biphone("abc", CHAIN), "the window of a pdf is 1 phone in A, 2 phones in B"),
        (PLAIN, ContextTree.monophone("abc", Topology.left_to_right(3)), "number of pdfs is 6 in A, 9 in B"),
        (ALONE["a"], ALONE["b"], "pdf 0 is that of a, class 0 in A, of a after (none), class 0 in B"),
    ],
)
def test_trees_name_the_first_thing_in_which_they_differ(tree, other, difference) -> None:
    assert difference in (tree.difference(other, ("A", "B")) or "")
    assert tree.difference(tree) is None


def test_a_tree_of_other_phones_than_the_lexicons_is_refused_by_the_first() -> None:
    lexicon = Lexicon.from_entries([("x", 1.0, ["a", "b"])], silence=None)
    told, other = (
        "phone 2 is 'b' in the lexicon, 'c' in the tree: expected the same",
        ContextTree.monophone("ac", CHAIN),
    )
    refuses(GraphError, told, build_numerator, ["x"], lexicon, other)
    assert np.isfinite(build_numerator(["x"], lexicon, ContextTree.monophone("ab", CHAIN)).required_frames)
