"""How many states a text may have, by the lines that name them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fsachain.fsa import NamedStates


def named(lines: Iterable[tuple[int, ...]]) -> NamedStates:
    states = NamedStates()
    for line in lines:
        states.add(line)
    return states


@pytest.mark.parametrize("count", [1, 5, 3_000, 12_000])
def test_states_of_which_each_has_a_line_are_possible_in_any_order(count: int) -> None:
    lines = [(state, state + 1) for state in range(count)]
    for order in (lines, lines[::-1]):
        states = named(order)
        assert states.are_possible and (states.lowest, states.highest) == (0, count)
        assert states.start == order[0][0]


@pytest.mark.parametrize(
    ("lines", "far"), [(0, 1_000), (2_000, 3_001), (20_000, 10_001)], ids=["short", "long", "longer"]
)
def test_states_beyond_what_the_lines_pay_for_are_not(lines: int, far: int) -> None:
    near: list[tuple[int, ...]] = [(0,)] * lines
    assert named([*near, (0, far - 1)]).are_possible
    assert not named([*near, (0, far + 1)]).are_possible


def test_nothing_and_negative_states() -> None:
    assert named([]).start == -1 and named([]).highest == -1
    assert not named([(0, 1), (-1, 0)]).are_possible
