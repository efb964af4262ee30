"""Pronunciations in little memory are what lists of tuples are, however their entries are ordered and saved."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsachain.errors import GraphError
from fsachain.graph.lexicon import Lexicon

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "S", "P"]), min_size=1, max_size=3)
PROBS = st.one_of(st.just(1.0), st.floats(0.0, 1.0, exclude_min=True))
ENTRIES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ç", "😀"]), PROBS, st.lists(NAMES, min_size=1, max_size=5)),
    min_size=1,
    max_size=12,
    unique_by=lambda entry: (entry[0], tuple(entry[2])),
)


def grouped(entries):
    found: dict[str, list[tuple[list[str], float]]] = {}
    for word, prob, names in entries:
        found.setdefault(word, []).append((names, prob))
    return found


def spelled(lexicon):
    return {
        word: [([lexicon.phones[phone - 1] for phone in phones], prob) for phones, prob in ways]
        for word, ways in zip(lexicon.words, lexicon.pronunciations, strict=True)
    }


@settings(deadline=None)
@given(ENTRIES)
def test_entries_in_any_order_are_grouped_by_word(tmp_path_factory, entries):
    lexicon = Lexicon.from_entries(entries)
    spoken = {name for _, _, names in entries for name in names}
    assert list(lexicon.phones) == ["SIL", *sorted(spoken - {"SIL"})]
    expected = grouped(entries)
    assert spelled(lexicon) == expected and list(lexicon.words) == list(expected)
    path = tmp_path_factory.getbasetemp() / "entries"
    path.write_text("".join(f"{word} {prob!r} {' '.join(names)}\n" for word, prob, names in entries))
    lexicon.save(path.with_suffix(".json"))
    as_tuples = Lexicon(tuple(lexicon.words), tuple(lexicon.phones), tuple(lexicon.pronunciations))
    for same in (
        Lexicon.read(path, format="lexiconp"),
        Lexicon.load(path.with_suffix(".json")),
        pickle.loads(pickle.dumps(lexicon)),
        as_tuples,
    ):
        assert (same.words, same.phones) == (lexicon.words, lexicon.phones)
        assert same.pronunciations == lexicon.pronunciations == tuple(lexicon.pronunciations)
        assert [same.pronunciations[n] for n in range(len(same.words))] == list(lexicon.pronunciations)


SAVED = """{"format": "fsachain-lexicon-2", "silence": null, "silence_prob": 0.5, "oov": null, "phones": 2, \
"pronunciations": 3}
"A"
"B"
["yes", 1.0, [1, 2]]
["no", 1.0, [2]]
["yes", 0.25, [1]]
"""


def test_the_saved_form_may_be_written_by_others(tmp_path):
    path = tmp_path / "lexicon.json"
    path.write_text(SAVED)
    assert spelled(Lexicon.load(path)) == {"yes": [(["A", "B"], 1.0), (["A"], 0.25)], "no": [(["B"], 1.0)]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lexicon-2", "lexicon-1", "not a lexicon of format .*make the folder anew"),
        ('"phones": 2', '"phones": 99999999999999999999', "not a lexicon"),
        ('["yes", 0.25, [1]]\n', "", "2 phones and 2 pronunciations; expected 2 and 3"),
        ('"B"\n', '"A"\n', "2 phones, 1 of them distinct"),
        ("[2]", "[3]", r"json:5: word 'no' has phone ids \[3\]: expected some in \[1, 2\]"),
        ("[2]", "[1.5]", "json:5: not a word, its probability and its phone ids"),
        ('"no", 1.0', '"no", NaN', "json:5: word 'no' has a pronunciation of probability nan"),
        ('["no", 1.0, [2]]', "[[", "json:5: no JSON"),
        ('["no", 1.0, [2]]', "[" + "[]," * 90_000 + "1]", "json:5: a line of more than"),
        ('"oov": null', '"oov": "what"', "lexicon.json: oov = 'what' is not a word"),
    ],
)
def test_a_saved_lexicon_is_refused_by_line(tmp_path, old, new, message):
    path = tmp_path / "lexicon.json"
    path.write_text(SAVED.replace(old, new))
    with pytest.raises(GraphError, match=message):
        Lexicon.load(path)
