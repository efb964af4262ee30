r"""Patterns of `fsachain.graph.patterns` as text, one line for each utterance.

    she had your dark suit                            words
    ( 0.7 she had | 0.3 she has ) your dark suit      one of several, each with its probability
    she had [ your ] dark suit                        with probability 0.5, else nothing
    ask <loop> now                                    a named part: any phones, one at least
    * dark suit *                                     a gap: `[ <loop> ]`, anything or nothing

Marks stand apart, with white space around them. A backslash before a mark makes it a word: `\*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from fsachain.errors import GraphError
from fsachain.fsa import Fsa
from fsachain.graph.patterns import Item, OneOf, Pattern, optional

LOOP = "<loop>"
GAP = "*"
_CLOSING = {"(": ")", "[": "]"}
_MARKS = frozenset({"(", ")", "[", "]", "|", GAP})


def parse_pattern(text: str | Sequence[str], parts: Mapping[str, Fsa]) -> Pattern:
    """The pattern that a line says.

    Args:
        text: the line, or its fields.
        parts: acceptors over phones by name; a gap needs the name `<loop>`.

    Raises:
        GraphError: a bracket without its other half, an alternative without a probability, a gap without a loop.
    """
    fields = text.split() if isinstance(text, str) else list(text)
    parser = _Parser(fields, parts)
    pattern = parser.items(())
    if parser.position < len(fields):
        parser.fail("no bracket is open")
    return pattern


class _Parser:
    def __init__(self, fields: list[str], parts: Mapping[str, Fsa]) -> None:
        self.fields, self.parts = fields, parts
        self.position = 0

    def fail(self, reason: str) -> NoReturn:
        shown = repr(self.fields[self.position]) if self.position < len(self.fields) else "the end"
        raise GraphError(f"pattern: {reason} at {shown} (field {self.position + 1} of {len(self.fields)})")

    def items(self, stops: Sequence[str]) -> list[Item]:
        """Items up to one of `stops`, which stays, or to a mark that begins none."""
        found: list[Item] = []
        while self.position < len(self.fields):
            field = self.fields[self.position]
            if field in stops or field in (")", "]", "|"):
                return found
            self.position += 1
            found.append(self.item(field))
        return found

    def item(self, field: str) -> Item:
        if field in _CLOSING:
            return self.bracket(field)
        if field == GAP:
            if LOOP not in self.parts:
                self.position -= 1
                self.fail(f"a gap needs the part {LOOP}")
            return optional([self.parts[LOOP]])
        if field in self.parts:
            return self.parts[field]
        return field[1:] if field[:1] == "\\" and (field[1:] in _MARKS or field[1:] in self.parts) else field

    def bracket(self, opening: str) -> OneOf:
        end = _CLOSING[opening]
        if opening == "[":
            found = optional(self.items((end,)))
            self.expect((end,))
            return found
        alternatives = [self.alternative()]
        while self.expect(("|", end)) == "|":
            alternatives.append(self.alternative())
        return OneOf(alternatives)

    def alternative(self) -> tuple[float, Pattern]:
        try:
            prob = float(self.fields[self.position])
        except (IndexError, ValueError):
            self.fail("expected the probability of an alternative")
        self.position += 1
        return prob, self.items(("|", ")"))

    def expect(self, marks: Sequence[str]) -> str:
        if self.position >= len(self.fields) or self.fields[self.position] not in marks:
            self.fail(f"expected {' or '.join(marks)}")
        self.position += 1
        return self.fields[self.position - 1]
