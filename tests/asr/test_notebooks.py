"""What objects show in a notebook and at a prompt: pictures and tables of bounded size, and reprs of a few lines."""

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fsachain import ContextTree, DenominatorGraph, Fsa, Lexicon, Topology, build_numerator
from fsachain.asr.decode.wer import score
from fsachain.asr.kaldi.lattice import CompactLattice, Lattice
from fsachain.asr.kaldi.model import State, Topologies, TransitionModel, Tuple
from fsachain.asr.plot import plot_graph
from fsachain.graph.numerator import made_with
from fsachain.notebook import MOST_ROWS, html_table

ROOT = Path(__file__).resolve().parents[2]
MOST_CHARACTERS = 1500  # of a repr: a dozen lines of a terminal
MOST_HTML = 200_000


def big_fsa(num_states):
    states = np.arange(num_states)
    src, dst = np.append(states, states), np.append(states, (states + 1) % num_states)
    return Fsa(num_states, src, dst, src % 50, np.full(2 * num_states, -0.7), np.zeros(num_states))


def big_lexicon():
    phones = [f"p{n}" for n in range(60)]
    return Lexicon.from_entries(
        [(f"w{n}", 1.0, [phones[n % 60], phones[n % 59]]) for n in range(2000)], silence=None
    )


def big_lattice():
    states = np.arange(5000, dtype=np.int32)
    costs = np.ones(5000)
    return Lattice(5001, 0, states, states + 1, states, states, costs, costs, np.ones(5001), np.ones(5001))


def big_tree():
    return ContextTree.biphone(big_lexicon().phones, Topology.chain())


def big_numerator():
    lexicon = big_lexicon()
    return build_numerator(
        [f"w{n}" for n in range(400)], lexicon, ContextTree.monophone(lexicon.phones, Topology.chain())
    )


def big_report():
    words = [f"w{n}" for n in range(1000)]
    names = [f"u{n}" for n in range(300)]
    return score(dict.fromkeys(names, words[:9]), {}, speakers={name: f"<b>{name}" for name in names})


def big_transition_model():
    state = State(0, 1, ((0, 0.5), (1, 0.5)))
    topology = Topologies({phone: (state, State(-1, -1, ())) for phone in range(1, 200)})
    tuples = tuple(Tuple(phone, 0, phone, phone) for phone in range(1, 200))
    return TransitionModel(topology, tuples, np.zeros(399), "final.mdl")


BIG = {
    "Fsa": lambda: big_fsa(20_000),
    "Numerator": big_numerator,
    "DenominatorGraph": lambda: DenominatorGraph(big_fsa(2000), 50),
    "Lattice": big_lattice,
    "ContextTree": big_tree,
    "WerReport": big_report,
}


@pytest.mark.parametrize("make", BIG.values(), ids=BIG.keys())
def test_large_objects_show_a_picture_or_a_table_of_bounded_size(make):
    shown = make()
    html = [getattr(shown, name)() for name in ("_repr_html_", "_repr_svg_") if hasattr(shown, name)]
    assert any(html) and max(len(text) for text in html if text) < MOST_HTML
    assert len(repr(shown)) < MOST_CHARACTERS and repr(shown).count("\n") < 12


def test_small_graphs_are_drawn_below_their_sizes():
    lexicon = Lexicon.from_entries([("yes", 1.0, ["Y", "EH", "S"])], silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    numerator = build_numerator(["yes"], lexicon, tree)
    denominator = DenominatorGraph(big_fsa(3), 50)
    for shown, sizes in (
        (numerator, "<td>yes</td><td>4</td>"),
        (denominator, "<td>3</td><td>6</td><td>50</td>"),
    ):
        html = shown._repr_html_()
        assert sizes in html and html.count("<svg") == 1


def test_names_in_tables_are_no_markup():
    assert html_table(["<i>"], [["<script>"]]).count("<script>") == 0
    assert "&lt;b&gt;u0" in big_report()._repr_html_()


def test_a_table_says_how_many_rows_it_leaves_out():
    assert f"{1000 - MOST_ROWS} more" in html_table(["n"], [[n] for n in range(1000)])
    assert "more" not in html_table(["n"], [[n] for n in range(MOST_ROWS)])


def test_a_figure_shows_itself_where_pyplot_never_ran():
    shown = plot_graph(big_fsa(3))._repr_png_()
    assert shown.startswith(b"\x89PNG")


def test_the_tables_of_a_lattice_and_a_tree_have_their_first_rows():
    html = big_lattice()._repr_html_()
    assert "5001 states, 5000 arcs" in html and html.count("<tr>") == MOST_ROWS + 2
    compact = CompactLattice(
        2,
        0,
        *(np.array([n], np.int32) for n in (0, 1, 7)),
        np.ones((3, 2)),
        np.array([2, 2, 2]),
        np.array([3, 4], np.int32),
    )
    assert "CompactLattice: " in compact._repr_html_()
    tree = ContextTree.monophone(("a", "b"), Topology.chain())
    assert "<td>0</td><td>a</td><td>(any)</td><td>0</td>" in tree._repr_html_()


# Reprs


def test_topologies_and_transition_models_are_a_line():
    assert repr(Topology.chain()) == "Topology(1 state with 2 pdf classes, blank='none')"
    assert repr(Topology.left_to_right(3)) == "Topology(3 states with 3 pdf classes, blank='none')"
    model = big_transition_model()
    assert repr(model) == "TransitionModel(final.mdl: 199 phones, 200 pdfs, 398 transition ids)"
    assert repr(model.states) == "Topologies(199 phones, 1 different)"
    assert repr(big_report()).startswith("WerReport(WER 100.00 % [ 2700 / 2700")


def test_the_hash_of_a_tree_in_files_is_that_of_earlier_versions():
    lexicon = Lexicon.from_entries([("yes", 1.0, ["Y", "EH", "S"]), ("no", 0.5, ["N", "OW"])], silence=None)
    tree = ContextTree.biphone(lexicon.phones, Topology.chain())
    made = made_with(lexicon, tree)
    assert made["tree"] == "2cbab55dc34efbc29cec058bc9a7bc731d1f882a4bd595cfbf71b5fa23b0c1a6"
    assert made["lexicon"] == "e9c18573ed230bb24e0e2420d0cb6124fb084dca4dfffb83f391f2b520be2e48"


PACKAGES = ("fsachain", "fsachain.asr.data", "fsachain.asr.nn", "fsachain.asr.plot")
_HOLDS_MANY = re.compile(
    r"NDArray|\bInts\b|\bFloats\b|Tensor|Array|Mapping|\bdict\b|\blist\b|Sequence|tuple\[(?!float|int)"
)


def public_classes():
    names = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    pages = (ROOT / "docs" / "api").glob("*.md")
    names |= {
        name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M)
    }
    found = {}
    for name in sorted(names):
        module, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(module), last, None)
        if inspect.isclass(value) and not issubclass(value, BaseException | torch.nn.Module):
            found[name] = value
    return found


def prints_all_of_its_fields(one):
    made_by_dataclass = hasattr(one.__repr__, "__wrapped__")
    made_by_namedtuple = issubclass(one, tuple) and one.__repr__.__module__ == "collections"
    return made_by_dataclass or made_by_namedtuple


@pytest.mark.parametrize(("name", "one"), public_classes().items(), ids=public_classes())
def test_a_public_class_that_holds_many_things_has_a_short_repr_of_its_own(name, one):
    fields = " ".join(str(kind) for kind in getattr(one, "__annotations__", {}).values())
    # Configurations and states have a few numbers each, which a reader wants to see.
    is_configuration = one.__name__.endswith(("Config", "Experiment", "HmmState", "Layout", "Scoring"))
    if _HOLDS_MANY.search(fields) and not is_configuration:
        assert not prints_all_of_its_fields(one), f"{name}: {fields}"
