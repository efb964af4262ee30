"""The public names of the application, and what the library's graphs look like with it."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from attribute_docs import undocumented_attributes

import fsachain
from fsachain import Fsa
from fsachain.asr.data import Batch
from fsachain.errors import brief


def test_every_public_name_is_documented():
    assert [name for name in fsachain.__all__ if not getattr(fsachain, name).__doc__] == []


PUBLIC = ("fsachain", "fsachain.asr.data", "fsachain.asr.nn", "fsachain.asr.plot")


@pytest.mark.parametrize("package", PUBLIC)
def test_every_attribute_is_in_the_docstring_of_its_class(package):
    module = importlib.import_module(package)
    for kind in filter(inspect.isclass, (getattr(module, name) for name in module.__all__)):
        assert undocumented_attributes(kind) == [], kind


def test_what_is_many_is_counted_and_what_is_one_number_shown():
    batch = Batch(("a", "b", "c", "d"), (), (), torch.zeros(4, 2, 3), torch.tensor(1.5))
    expected = "Batch(ids=('a', 'b', 'c', ... 4 in all), speakers=(), words=(), features=float32 [4, 2, 3], lengths=1.5"
    assert brief(batch) == f"{expected}, windows=None, views=1)"


def test_a_notebook_draws_what_came_from_the_package():
    pytest.importorskip("pygraphviz")
    fsa = Fsa(2, [0], [1], [0], [0.0], [-float("inf"), 0.0])
    assert fsa._repr_svg_().startswith("<svg")


def test_a_graph_of_its_own_module_is_drawn(monkeypatch):
    """Whether or not a name of the package itself was used before."""
    fsa = Fsa(2, [0], [1], [0], [0.0], [-np.inf, 0.0])
    monkeypatch.setattr("fsachain.asr.plot.graph.graph_svg", lambda graph: f"<svg {graph.num_arcs}")
    assert fsa._repr_svg_() == "<svg 1"
    monkeypatch.setattr("fsachain.fsa._PICTURES", "fsachain.asr.plot.nothing_here")
    assert fsa._repr_svg_() is None
