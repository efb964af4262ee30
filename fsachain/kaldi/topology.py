"""Kaldi's HMM topologies: a `topo` file, or the head of a transition model.

Format: Kaldi's hmm/hmm-topology.cc.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from fsachain.kaldi.stream import Cursor, open_file

_NO_PDF = -1


class State(NamedTuple):
    """One state of a topology: pdf classes (-1: none, the end), and (next state, probability) pairs."""

    forward_class: int
    self_loop_class: int
    transitions: tuple[tuple[int, float], ...]


def read_topology(path: str | os.PathLike[str]) -> dict[int, tuple[State, ...]]:
    """States of each phone of a `topo` file, binary or text.

    Raises:
        DataError: no topology, or cut short.
    """
    cursor = open_file(path)
    cursor.detect_binary()
    return parse_topology(cursor)


def parse_topology(cursor: Cursor) -> dict[int, tuple[State, ...]]:
    """The topology at the cursor, from its first token to its last; errors as for `read_topology`."""
    begin = cursor.position
    cursor.expect("<Topology>")
    found = _binary_topology(cursor) if cursor.binary else _text_topology(cursor)
    if not found or min(found) < 1:
        cursor.fail("a topology without phones, or with a phone id below 1", begin)
    for phone, states in found.items():
        targets = [target for state in states for target, _ in state.transitions]
        if len(states) < 2 or states[-1].transitions or any(not 0 <= t < len(states) for t in targets):
            cursor.fail(
                f"phone {phone}: expected at least one emitting state, then an end without transitions", begin
            )
    return found


def _binary_topology(cursor: Cursor) -> dict[int, tuple[State, ...]]:
    phones = cursor.integers("phones").tolist()
    entry_of = cursor.integers("topology of each phone").tolist()
    count = cursor.integer("number of topologies", -1)
    has_loop_class = count == -1
    if has_loop_class:
        count = cursor.integer("number of topologies", 0)
    entries = []
    for _ in range(count):
        states = []
        for _ in range(cursor.integer("number of states", 0)):
            forward = cursor.integer("pdf class", _NO_PDF)
            loop = cursor.integer("pdf class of the self-loop", _NO_PDF) if has_loop_class else forward
            pairs = range(cursor.integer("number of transitions", 0))
            arcs = tuple((cursor.integer("next state", 0), cursor.real("probability")) for _ in pairs)
            states.append(State(forward, loop, arcs))
        entries.append(tuple(states))
    cursor.expect("</Topology>")
    for phone in phones:
        if not 0 <= phone < len(entry_of) or not 0 <= entry_of[phone] < len(entries):
            cursor.fail(f"phone {phone} has none of the {len(entries)} topologies")
    return {phone: entries[entry_of[phone]] for phone in phones}


def _text_topology(cursor: Cursor) -> dict[int, tuple[State, ...]]:
    found: dict[int, tuple[State, ...]] = {}
    while cursor.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        cursor.expect("<ForPhones>")
        phones = []
        while cursor.peek_token() not in ("</ForPhones>", ""):
            phones.append(cursor.integer("phone", 1))
        cursor.expect("</ForPhones>")
        states: list[State] = []
        while cursor.expect("<State>", "</TopologyEntry>") == "<State>":
            cursor.integer("state", len(states), len(states))
            states.append(_text_state(cursor))
        found |= dict.fromkeys(phones, tuple(states))
    return found


def _text_state(cursor: Cursor) -> State:
    forward = loop = _NO_PDF
    arcs = []
    names = ("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>")
    while (name := cursor.expect(*names)) != "</State>":
        if name == "<Transition>":
            arcs.append((cursor.integer("next state", 0), cursor.real("probability")))
            continue
        pdf_class = cursor.integer("pdf class", 0)
        if name != "<SelfLoopPdfClass>":
            forward = pdf_class
        if name != "<ForwardPdfClass>":
            loop = pdf_class
    return State(forward, loop, tuple(arcs))
