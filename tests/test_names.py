"""Strings in one buffer: as a tuple of them, in little memory."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsachain.names import Names, Strings

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=40)


@given(TEXTS)
def test_strings_behave_as_a_tuple_does(texts: list[str]) -> None:
    strings, expected = Strings(texts), tuple(texts)
    assert strings == expected and list(strings) == texts and len(strings) == len(texts)
    assert strings[1:-1:2] == expected[1:-1:2]
    assert [strings[place] for place in range(-len(texts), len(texts))] == texts + texts
    assert strings != (*expected, "x") and (not texts or strings != expected[1:])
    with pytest.raises(IndexError):
        strings[len(texts)]


@given(TEXTS, TEXTS)
def test_names_are_found_where_they_stand_first(texts: list[str], others: list[str]) -> None:
    names = Names(texts)
    for one in (names, pickle.loads(pickle.dumps(names))):
        for text in {*texts, *others}:
            assert one.place(text) == (texts.index(text) if text in texts else None)
            assert (text in one) == (text in texts)
    assert names.repeats().tolist() == [n for n, text in enumerate(texts) if text in texts[:n]]
    assert all(names.index(text) == texts.index(text) for text in texts)


@given(TEXTS, TEXTS)
def test_added_names_are_numbered_as_a_dictionary_numbers_them(known: list[str], texts: list[str]) -> None:
    distinct = list(dict.fromkeys(known))
    names = Names(distinct)
    expected = {text: place for place, text in enumerate(distinct)}
    for text in texts:
        assert names.add(text) == expected.setdefault(text, len(expected))
    assert list(names) == list(expected)


def test_index_takes_the_bounds_of_a_tuple() -> None:
    names = Names(["a", "b", "a"])
    assert names.index("a", 1) == 2
    with pytest.raises(ValueError):
        names.index("b", 2)
    with pytest.raises(ValueError):
        names.index("c")


def test_a_name_takes_thirteen_bytes_beside_its_letters() -> None:
    count = 50_000
    tracemalloc.start()
    try:
        names = Names(f"{number:06d}" for number in range(count))
        assert names.place("000017") == 17
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (6 + 13) * count
