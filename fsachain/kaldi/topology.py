"""Kaldi's HMM topologies: a `topo` file, or the head of a transition model.

Format: Kaldi's hmm/hmm-topology.cc.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fsachain.kaldi.stream import Cursor, open_file

MAX_PHONE = 65_535  # far above what any phone list has; ids are places in an array
_NO_PDF = -1
_NO_ENTRY = -1


class State(NamedTuple):
    """One state of a topology: pdf classes (-1: none, the end), and (next state, probability) pairs."""

    forward_class: int
    self_loop_class: int
    transitions: tuple[tuple[int, float], ...]


class Topologies(Mapping[int, tuple[State, ...]]):
    """The states of each phone id, in rising order of these; equal to any mapping of the same.

    Phones of one entry of the file share its states, which are columns; a `State` is made on access.
    """

    def __init__(self) -> None:
        self._entry_of = array("i")  # by phone id
        self._entry_ends = array("I")  # of each entry, among the states
        self._forward, self._loop, self._state_ends = (
            array("i"),
            array("i"),
            array("I"),
        )  # the last among the arcs
        self._targets, self._probs = array("i"), array("d")

    def add_arc(self, target: int, prob: float) -> None:
        """One more transition of the state that `add_state` completes next."""
        self._targets.append(target)
        self._probs.append(prob)

    def add_state(self, forward_class: int, self_loop_class: int) -> None:
        """One more state of the entry that `add_entry` completes next."""
        self._forward.append(forward_class)
        self._loop.append(self_loop_class)
        self._state_ends.append(len(self._targets))

    def add_entry(self) -> None:
        """The states since the last call are those of some phones."""
        self._entry_ends.append(len(self._forward))

    def give(self, phone: int, entry: int) -> None:
        """A phone has the states of an entry, counted from 0, which may be added later."""
        if phone >= len(self._entry_of):
            self._entry_of.extend(array("i", [_NO_ENTRY]) * (phone + 1 - len(self._entry_of)))
        self._entry_of[phone] = entry

    @property
    def num_entries(self) -> int:
        """Entries that have been added."""
        return len(self._entry_ends)

    @property
    def num_unfinished_states(self) -> int:
        """States since the last entry."""
        return len(self._forward) - (self._entry_ends[-1] if self._entry_ends else 0)

    def entry(self, phone: int) -> int:
        """Which entry a phone has; KeyError for a phone that has none."""
        if phone not in self:
            raise KeyError(phone)
        return self._entry_of[phone]

    def states(self, phone: int) -> range:
        """Numbers of the states of a phone among those of all entries."""
        entry = self.entry(phone)
        return range(self._entry_ends[entry - 1] if entry else 0, self._entry_ends[entry])

    def arcs(self, state: int) -> range:
        """Numbers of the transitions of a state among those of all."""
        return range(self._state_ends[state - 1] if state else 0, self._state_ends[state])

    def size(self, phone: int) -> int:
        """How many states and transitions a phone has."""
        states = self.states(phone)
        return len(states) + sum(len(self.arcs(state)) for state in states)

    def target(self, arc: int) -> int:
        """The state, counted from 0 in its entry, that a transition leads to."""
        return self._targets[arc]

    def __getitem__(self, phone: int) -> tuple[State, ...]:
        return tuple(map(self._state, self.states(phone)))

    def _state(self, number: int) -> State:
        transitions = tuple((self._targets[arc], self._probs[arc]) for arc in self.arcs(number))
        return State(self._forward[number], self._loop[number], transitions)

    def __contains__(self, phone: object) -> bool:
        return (
            isinstance(phone, int) and 0 <= phone < len(self._entry_of) and self._entry_of[phone] != _NO_ENTRY
        )

    def __iter__(self) -> Iterator[int]:
        return (phone for phone, entry in enumerate(self._entry_of) if entry != _NO_ENTRY)

    def __len__(self) -> int:
        return len(self._entry_of) - self._entry_of.count(_NO_ENTRY)

    def ends_well(self, phone: int) -> bool:
        """Whether a phone has an emitting state and then an end without transitions, and all lead to one of its states."""
        states = self.states(phone)
        if len(states) < 2 or self.arcs(states[-1]):
            return False
        arcs = range(self.arcs(states[0]).start, self.arcs(states[-1]).stop)
        return all(0 <= self._targets[arc] < len(states) for arc in arcs)


def read_topology(path: str | os.PathLike[str]) -> Topologies:
    """States of each phone of a `topo` file, binary or text.

    Raises:
        DataError: no topology, cut short, or with a phone id above `MAX_PHONE`.
    """
    cursor = open_file(path)
    cursor.detect_binary()
    return parse_topology(cursor)


def parse_topology(cursor: Cursor) -> Topologies:
    """The topology at the cursor, from its first token to its last; errors as for `read_topology`."""
    begin = cursor.position
    cursor.expect("<Topology>")
    found = _binary_topology(cursor) if cursor.binary else _text_topology(cursor)
    if not found or 0 in found:
        cursor.fail("a topology without phones, or with a phone id below 1", begin)
    checked = bytearray(found.num_entries)  # one entry may be that of many phones
    for phone in found:
        if not checked[found.entry(phone)] and not found.ends_well(phone):
            cursor.fail(
                f"phone {phone}: expected at least one emitting state, then an end without transitions", begin
            )
        checked[found.entry(phone)] = True
    return found


def _binary_topology(cursor: Cursor) -> Topologies:
    begin = cursor.position
    phones, entry_of = cursor.integers("phones"), cursor.integers("topology of each phone")
    if max(len(phones), len(entry_of)) > MAX_PHONE + 1:
        cursor.fail(f"{len(phones)} phones, {len(entry_of)} ids: expected ids of at most {MAX_PHONE}", begin)
    count = cursor.integer("number of topologies", -1)
    has_loop_class = count == -1
    if has_loop_class:
        count = cursor.integer("number of topologies", 0)
    found = Topologies()
    for _ in range(count):
        for _ in range(cursor.integer("number of states", 0)):
            forward = cursor.integer("pdf class", _NO_PDF)
            loop = cursor.integer("pdf class of the self-loop", _NO_PDF) if has_loop_class else forward
            for _ in range(cursor.integer("number of transitions", 0)):
                found.add_arc(cursor.integer("next state", 0), cursor.real("probability"))
            found.add_state(forward, loop)
        found.add_entry()
    cursor.expect("</Topology>")
    for phone in map(int, phones):
        if not 0 <= phone < len(entry_of) or not 0 <= entry_of[phone] < count:
            cursor.fail(f"phone {phone} has none of the {count} topologies")
        found.give(phone, int(entry_of[phone]))
    return found


def _text_topology(cursor: Cursor) -> Topologies:
    found = Topologies()
    while cursor.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        cursor.expect("<ForPhones>")
        while cursor.peek_token() not in ("</ForPhones>", ""):
            found.give(cursor.integer("phone", 1, MAX_PHONE), found.num_entries)
        cursor.expect("</ForPhones>")
        while cursor.expect("<State>", "</TopologyEntry>") == "<State>":
            number = found.num_unfinished_states
            cursor.integer("state", number, number)
            _read_text_state(cursor, found)
        found.add_entry()
    return found


def _read_text_state(cursor: Cursor, found: Topologies) -> None:
    forward = loop = _NO_PDF
    names = ("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>")
    while (name := cursor.expect(*names)) != "</State>":
        if name == "<Transition>":
            found.add_arc(cursor.integer("next state", 0), cursor.real("probability"))
            continue
        pdf_class = cursor.integer("pdf class", 0)
        if name != "<SelfLoopPdfClass>":
            forward = pdf_class
        if name != "<ForwardPdfClass>":
            loop = pdf_class
    found.add_state(forward, loop)
