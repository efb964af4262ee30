"""The public names of `fsachain`, each imported on first use."""

import ast
from pathlib import Path

import pytest

import fsachain
from fsachain import Fsa


def test_type_checkers_see_the_same_names_in_the_same_modules():
    stub = ast.parse(Path(fsachain.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == fsachain._HOME_OF
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_every_public_name_is_there_and_documented():
    assert set(fsachain.__all__) <= set(dir(fsachain))
    assert [name for name in fsachain.__all__ if not getattr(fsachain, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fsachain' has no attribute 'forward'"):
        _ = fsachain.forward


def test_a_notebook_draws_what_came_from_the_package():
    fsa = Fsa(2, [0], [1], [0], [0.0], [-float("inf"), 0.0])
    assert fsa._repr_svg_().startswith("<svg")
