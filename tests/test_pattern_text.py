"""Patterns written as text are the patterns they say, and what is no pattern is refused with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsachain.errors import GraphError
from fsachain.graph.patterns import OneOf, optional, parse_pattern
from fsachain.graph.spelling import phone_loop

LOOP = phone_loop([1, 2])
SPELL = phone_loop([1])
PARTS = {"<loop>": LOOP, "<spell>": SPELL}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("", []),
        ("a b a", ["a", "b", "a"]),
        ("ask <loop> now", ["ask", LOOP, "now"]),
        ("* hey robin *", [optional([LOOP]), "hey", "robin", optional([LOOP])]),
        ("a [ b c ] d", ["a", optional(["b", "c"]), "d"]),
        ("( 0.7 a b | 0.3 c ) d", [OneOf([(0.7, ["a", "b"]), (0.3, ["c"])]), "d"]),
        ("( 0.5 <spell> | 5e-1 )", [OneOf([(0.5, [SPELL]), (0.5, [])])]),
        (
            "( 1 a [ ( 0.2 b | 0.8 ) ] )",
            [OneOf([(1.0, ["a", optional([OneOf([(0.2, ["b"]), (0.8, [])])])])])],
        ),
        (r"\* \( \<loop> \x 0.7", ["*", "(", "<loop>", r"\x", "0.7"]),
    ],
)
def test_a_line_is_the_pattern_that_it_says(text, pattern):
    assert parse_pattern(text, PARTS) == pattern
    assert parse_pattern(text.split(), PARTS) == pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a )", r"no bracket is open at '\)' \(field 2 of 2\)"),
        ("a | b", r"no bracket is open at '\|'"),
        ("( 0.5 a", r"expected \| or \) at the end \(field 4 of 3\)"),
        ("[ a", "expected ] at the end"),
        ("[ a | b ]", r"expected ] at '\|'"),
        ("( 0.5 a ]", r"expected \| or \) at '\]'"),
        ("( a | b )", "expected the probability of an alternative at 'a'"),
        ("(", "expected the probability of an alternative at the end"),
        ("( -1 a )", "probability -1"),
        ("( nan a )", "probability nan"),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_place(text, message):
    with pytest.raises(GraphError, match=message):
        parse_pattern(text, PARTS)


def test_a_gap_needs_a_loop():
    with pytest.raises(GraphError, match=r"a gap needs the part <loop> at '\*' \(field 2 of 2\)"):
        parse_pattern("a *", {})


items = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["a", "b", LOOP]),
        st.lists(items, max_size=3).map(optional),
        st.lists(
            st.tuples(st.sampled_from([0.25, 0.5, 1.0]), st.lists(items, max_size=3)), min_size=1, max_size=3
        ).map(OneOf),
    )
)


def written(pattern):
    fields = []
    for item in pattern:
        if isinstance(item, OneOf):
            ways = [" ".join([repr(prob), *written(alternative)]) for prob, alternative in item.alternatives]
            fields += ["(", *" | ".join(ways).split(), ")"]
        else:
            fields.append("<loop>" if item is LOOP else item)
    return fields


@given(st.lists(items, max_size=5))
def test_every_pattern_can_be_written_down(pattern):
    assert parse_pattern(" ".join(written(pattern)), PARTS) == pattern


@given(st.lists(st.sampled_from(["(", ")", "[", "]", "|", "*", "0.5", "a", "<loop>"]), max_size=12))
def test_any_line_is_a_pattern_or_a_graph_error(fields):
    try:
        assert isinstance(parse_pattern(fields, PARTS), list)
    except GraphError as error:
        assert "field" in str(error) or "OneOf" in str(error)
