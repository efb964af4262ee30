"""Models and graphs belong to one language folder: another one, of the same size, is refused with what differs first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_fixtures import assert_one_line, graphs_of
from hypothesis import given
from hypothesis import strategies as st

from fsachain.cli.lang import load_lang
from fsachain.cli.model import AcousticModel
from fsachain.errors import GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon, phone_difference
from fsachain.graph.numerator import build_numerator, load_numerators, save_numerators
from fsachain.graph.topology import Topology
from fsachain.train.checkpoint import load_tensors, save_tensors

LEXICON = "yes Y EH S\nno N OW\n"
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-0.5 </s>\n-0.5 yes\n-0.5 no\n\n\\end\\\n"
OTHERS = {  # lexicon, context, what is named; the first two have as many pdfs
    "renamed": ("yes Y IH S\nno N OW\n", "monophone", "phone 2 is 'EH' in the model, 'IH' in "),
    "swapped": (
        "yes Y OW S\nno N EH\n",
        "monophone",
        "'yes' is said 'Y EH S' in the model, 'Y OW S' in ",
    ),
    "wide": (LEXICON, "biphone", "the window of a pdf is 1 phone in the model, 2 phones in "),
}


@pytest.fixture
def trained(fsachain, trained: Path) -> Path:
    """With the folders of `OTHERS`, and a grammar."""
    for name, (text, context, _) in OTHERS.items():
        (trained / f"{name}.txt").write_text(text)
        fsachain.ok("lang", trained / f"{name}.txt", trained / name, "--set", f"lang.context={context}")
    (trained / "words.arpa").write_text(ARPA)
    return trained


def commands(folder: Path) -> dict[str, tuple[object, ...]]:
    model, data, out = folder / "exp/model.safetensors", folder / "data", folder / "out"
    (folder / "said.txt").write_text("yes no\n")
    return {
        "decode": ("decode", model, data, out),
        "align": ("align", model, data, out),
        "keyword": ("keyword", model, data, "no no", out),
        "rescore": ("rescore", model, data, folder / "words.arpa", out, "--dev", data),
        "transcribe": ("transcribe", model, data / "1.wav"),
        "align-long": ("align-long", model, data / "1.wav", folder / "said.txt", out),
    }


def test_another_language_folder_is_refused_with_the_first_difference(fsachain, trained) -> None:
    sizes = [load_lang(trained / name).tree.num_pdfs for name in ("lang", *OTHERS)]
    assert sizes == [12, 12, 12, 72]
    for words in commands(trained).values():
        for name, (*_, difference) in OTHERS.items():
            assert_one_line(fsachain(*words, "--lang", trained / name), difference + str(trained / name))
    assert not (trained / "out").exists()


def test_a_model_holds_its_language_and_needs_no_folder(fsachain, trained) -> None:
    """In its absence too; the words recognised are those with the folder. More words, or ways to say one, are welcome."""
    told = {name: fsachain(*words, "--lang", trained / "lang") for name, words in commands(trained).items()}
    held = AcousticModel.load(trained / "exp/model.safetensors").lang
    assert held is not None and held.difference(load_lang(trained / "lang")) is None
    (trained / "lang").rename(trained / "away")
    for name, words in commands(trained).items():
        outcome = fsachain(*words)
        assert outcome == told[name] and outcome.status == 0, name
    (trained / "more.txt").write_text(LEXICON + "yes Y EH\nnose N OW S\n")
    fsachain.ok("lang", trained / "more.txt", trained / "more")
    told = []
    for words in commands(trained).values():
        outcome = fsachain.ok(*words, "--lang", trained / "more")
        told += outcome.err.splitlines()
    assert told[0].endswith("1 word more ('nose'), 1 word with other pronunciations ('yes')")  # said once
    assert len([line for line in told if "word more" in line]) == 1


def test_a_model_of_an_earlier_version_is_read_and_said_to_be_unchecked(fsachain, trained) -> None:
    model = trained / "exp/model.safetensors"
    tensors, header = load_tensors(model)
    save_tensors(model, {name: one for name, one in tensors.items() if not name.startswith("lang.")}, header)
    step = commands(trained)["decode"]
    outcome = fsachain.ok(*step, "--lang", trained / "renamed")
    assert "holds no words, phones and tree" in outcome.err and "is not checked" in outcome.err
    assert_one_line(fsachain(*step, "--lang", trained / "wide"), "the model has 12 pdfs, ", "wide 72")
    (trained / "lang").rename(trained / "exp/lang")
    fsachain.ok(*step)


def test_graphs_of_another_language_folder_are_refused_with_the_first_difference(fsachain, trained) -> None:
    """Numerators, shards of them, chunks, the denominator and its phone language model."""
    data, den, graphs = trained / "data", ("--den", trained / "den"), graphs_of(trained)
    fsachain.ok("num-tables", data, trained / "tables", *graphs)
    fsachain.ok("align", trained / "exp/model.safetensors", data, trained / "ali", *den)
    config = ("--config", trained / "small.yaml")
    chunks = ("supervise", data, trained / "ali/phones.ctm", trained / "chunks.npz", *graphs, *config)
    fsachain.ok(*chunks)
    renamed = ("--lang", trained / "renamed")
    difference = f"phone 2 is 'EH' in the file, 'IH' in {trained}/renamed"
    for made in ("num.npz", "tables", "chunks.npz"):
        step = ("train", data, trained / made, trained / "new", *renamed, *den, *config)
        outcome = fsachain(*step)
        assert outcome.status == 1
        assert f"{made}: made with another language folder: {difference}" in outcome.err
    for name, what in (("swapped", "words, pronunciations or silence of"), ("wide", "the tree of")):
        step = ("train", data, trained / "num.npz", trained / "new", "--lang", trained / name, *den)
        assert_one_line(fsachain(*step), f"made with another language folder: {what}")
    outcome = fsachain("num-graphs", data, trained / "n.npz", *renamed, *den)
    assert_one_line(outcome, f"phone 2 is 'EH' in {trained}/den, 'IH' in {trained}/renamed")
    outcome = fsachain("den-graph", trained / "phone_lm.fst", trained / "g", *renamed)
    assert_one_line(outcome, f"phone 2 is 'EH' in {trained}/phone_lm.fst, 'IH' in {trained}/renamed")


def test_a_network_that_begins_with_weights_of_another_language_says_so(fsachain, trained) -> None:
    graphs, start = ("--lang", trained / "swapped"), trained / "exp/model.safetensors"
    fsachain.ok("num-graphs", trained / "data", trained / "n.npz", *graphs)
    config = ("--config", trained / "small.yaml", "--set", f"network.init_from={start}")
    step = ("train", trained / "data", trained / "n.npz", trained / "new", *graphs, "--den", trained / "den")
    outcome = fsachain.ok(*step, *config)
    assert "was trained with other words or pdfs: 'yes' is said 'Y EH S' in the model" in outcome.err


def test_numerators_that_do_not_say_what_made_them_are_read_with_a_warning(fsachain, trained) -> None:
    save_numerators(trained / "num.npz", load_numerators(trained / "num.npz"))
    step = ("train", trained / "data", trained / "num.npz", trained / "new", "--den", trained / "den")
    outcome = fsachain.ok(*step, "--lang", trained / "lang", "--config", trained / "small.yaml")
    assert "num.npz does not say what it was made with" in outcome.err


NAMES = st.lists(st.sampled_from("abcd"), max_size=5)


@given(one=NAMES, other=NAMES)
def test_lists_of_names_differ_at_the_place_that_is_named(one: list[str], other: list[str]) -> None:
    told = phone_difference(one, other, ("A", "B"))
    assert (told is None) == (one == other)
    if told is not None:
        number = int(told.split()[1])
        assert one[: number - 1] == other[: number - 1]
        assert one[:number] != other[:number]


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
def test_trees_name_the_first_thing_in_which_they_differ(
    tree: ContextTree, other: ContextTree, difference: str
) -> None:
    assert difference in (tree.difference(other, ("A", "B")) or "")
    assert tree.difference(tree) is None


def test_a_tree_of_other_phones_than_the_lexicons_is_refused_by_the_first() -> None:
    lexicon = Lexicon.from_entries([("x", 1.0, ["a", "b"])], silence=None)
    with pytest.raises(GraphError, match="phone 2 is 'b' in the lexicon, 'c' in the tree: expected the same"):
        build_numerator(["x"], lexicon, ContextTree.monophone("ac", CHAIN))
    assert np.isfinite(build_numerator(["x"], lexicon, ContextTree.monophone("ab", CHAIN)).required_frames)
