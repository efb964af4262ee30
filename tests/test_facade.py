"""The public names of `fsachain`, each imported on first use."""

import pytest

import fsachain


def test_all_lists_exactly_the_names_that_have_a_home():
    assert fsachain.__all__ == sorted(fsachain._HOME_OF)
    assert set(fsachain.__all__) <= set(dir(fsachain))


def test_every_public_name_is_there_and_documented():
    assert [name for name in fsachain.__all__ if not getattr(fsachain, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fsachain' has no attribute 'forward'"):
        _ = fsachain.forward
