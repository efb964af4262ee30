"""The public names of `fsachain`, each imported on first use."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import docs_inputs
import numpy as np
import pytest
import torch

import fsachain
from fsachain import Fsa
from fsachain.brief import brief


def test_type_checkers_see_the_same_names_in_the_same_modules():
    stub = ast.parse(Path(fsachain.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == fsachain._HOME_OF
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_every_public_name_is_there_and_documented_and_no_other_listed():
    assert dir(fsachain) == sorted([*fsachain.__all__, "__version__"])
    assert [name for name in fsachain.__all__ if not getattr(fsachain, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fsachain' has no attribute 'forward'"):
        _ = fsachain.forward


def test_a_notebook_draws_what_came_from_the_package():
    fsa = Fsa(2, [0], [1], [0], [0.0], [-float("inf"), 0.0])
    assert fsa._repr_svg_().startswith("<svg")


PUBLIC = ("fsachain", "fsachain.data", "fsachain.nn", "fsachain.plot")


@pytest.mark.parametrize("package", PUBLIC)
def test_every_attribute_is_in_the_docstring_of_its_class(package):
    """Fields, and what methods set; of the classes that a public one is made of, too."""
    module = importlib.import_module(package)
    for kind in filter(inspect.isclass, (getattr(module, name) for name in module.__all__)):
        if issubclass(kind, Exception):
            continue
        own = [base for base in kind.__mro__ if base.__module__.startswith("fsachain.")]
        text = "\n".join(base.__doc__ or "" for base in own)
        source = "\n".join(map(inspect.getsource, own))
        found = re.findall(r"^    ([a-z]\w*): (?!ClassVar)", source, re.MULTILINE)
        found += re.findall(r"self\.([a-z]\w*)(?:, self\.\w+)*(?:: [^=\n]+)? = ", source)
        assert [name for name in found if not re.search(rf"\b{name}\b", text)] == [], kind


def test_records_and_graphs_of_many_sequences_print_as_one_line(tmp_path):
    given = docs_inputs.phone_graphs(tmp_path)
    lexicon, tree, denominator = given["lexicon"], given["tree"], given["denominator"]
    numerator = fsachain.build_numerator(given["transcripts"]["utterance-1"], lexicon, tree)
    scores, graphs = torch.zeros(200, 40, tree.num_pdfs), [numerator] * 200
    losses = fsachain.LFMMILoss(denominator), fsachain.MBRLoss(denominator)
    lattice = fsachain.rnnt_lattice(
        torch.zeros(2, 600, 4, 4), torch.ones(2, 3, dtype=torch.int32), [600, 600], [3, 3]
    )
    shown = [
        *(lexicon, tree, denominator, numerator, numerator.fsa, given["phone_lm"]),
        *(fsachain.compile_table(numerator.fsa), fsachain.TableBatch.pack(graphs)),
        *(fsachain.forward_backward(graphs, scores), fsachain.best_path(graphs, scores)),
        *(fsachain.n_best(graphs, scores, 2), fsachain.sample_paths(graphs, scores, 2, seed=1)),
        *(loss.objective(scores, [40] * 200, graphs) for loss in losses),
        *(lattice, lattice.occupancy(), lattice.best_alignment()[0]),
    ]
    for one in shown:
        text = repr(one)
        assert text.startswith(type(one).__name__) and "\n" not in text and len(text) < 500, text
    assert "objf=" in repr(shown[-5]) and "num_log_prob=float64 [200]" in repr(shown[-5])


def test_what_is_many_is_counted_and_what_is_one_number_shown():
    batch = fsachain.data.Batch(("a", "b", "c", "d"), (), (), torch.zeros(4, 2, 3), torch.tensor(1.5))
    expected = "Batch(ids=('a', 'b', 'c', ... 4 in all), speakers=(), words=(), features=float32 [4, 2, 3], lengths=1.5"
    assert brief(batch) == f"{expected}, windows=None)"
    path = fsachain.BestPath(np.zeros(2), [np.zeros(3, np.int32)] * 2, [], [])
    assert repr(path) == "BestPath(score=float64 [2], pdfs=[int32 [3], int32 [3]], states=[], arcs=[])"
