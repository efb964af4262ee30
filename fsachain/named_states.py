"""The states that lines of text name, and whether the highest number is one that so much text may have.

Arrays by state have an entry for every number up to the highest. A short file that names a state two billion must not
have them made; in a sound one all states are named, each new one by a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

_SPARE = 1000  # states that no line names
_FAR = 10_000  # lines that name such a state are long enough to pay for it, those before pay for arcs alone


class NamedStates:
    """What is known of the states of a graph while its lines are read.

    Attributes:
        start: the first state that was named; -1 before.
        lowest, highest: of all named, and of 0 and -1.
    """

    def __init__(self) -> None:
        self.start, self.lowest, self.highest = -1, 0, -1
        self._lines = self._far = 0

    def add(self, states: Sequence[int]) -> None:
        """The states of one line: one or two."""
        first, last = states[0], states[-1]
        if self._lines == 0:
            self.start = first
        if last < first:
            first, last = last, first
        self.lowest, self.highest = min(self.lowest, first), max(self.highest, last)
        self._lines += 1
        self._far += last >= _FAR

    @property
    def are_possible(self) -> bool:
        """Whether none is negative, and the highest not beyond what the lines pay for."""
        return self.lowest >= 0 and self.highest < min(_SPARE + self._lines, _FAR + self._far)
