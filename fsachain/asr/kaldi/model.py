"""Kaldi's models: topology and transition model (0.trans_mdl, the head of final.mdl), and the decision tree beside them.

Formats: Kaldi's hmm/transition-model.cc, hmm/hmm-topology.cc, tree/context-dep.cc and tree/event-map.cc. A transition id
counts from 1 over the transitions of all (phone, HMM state, pdfs), in the order of the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.asr.kaldi.values import read_vector
from fsachain.errors import DataError, GraphError, brief, counted
from fsachain.graph.context import NO_BRANCH, ContextTree, DecisionTree, Leaf, Node, Split, Table
from fsachain.graph.topology import HmmState, Topology
from fsachain.openfst import Transducer
from fsachain.stream import Cursor, open_file

MAX_PHONE = 65_535  # far above what any phone list has; ids are places in an array
MAX_TOPOLOGY = 1000  # states and transitions of a phone that become a `Topology`; Kaldi's largest has 23
LOG_TOLERANCE = 1e-4  # log-probabilities are float32 and may have been text
_NO_PDF = -1
MAX_WIDTH = 16  # of a context


class State(NamedTuple):
    """One state of a topology: pdf classes (-1: none, the end), and (next state, probability) pairs."""

    forward_class: int
    self_loop_class: int
    transitions: tuple[tuple[int, float], ...]


class Topologies(dict[int, tuple[State, ...]]):
    """States by phone id, in rising order; phones of one entry share their states."""

    def __repr__(self) -> str:
        different = len(set(self.values()))
        return f"Topologies({counted(len(self), 'phone')}, {different} different)"


def read_topology(path: str | os.PathLike[str]) -> Topologies:
    """States of each phone of a `topo` file, binary or text."""
    cursor = open_file(path)
    cursor.detect_binary()
    return parse_topology(cursor)


def parse_topology(cursor: Cursor) -> Topologies:
    """The topology at the cursor, as in a `topo` file or at the head of a transition model."""
    begin = cursor.position
    cursor.expect("<Topology>")
    found = _binary_topology(cursor) if cursor.binary else _text_topology(cursor)
    if not found or 0 in found:
        cursor.fail("a topology without phones, or with a phone id below 1", begin)
    for phone, states in {id(states): (phone, states) for phone, states in found.items()}.values():
        targets = [target for state in states for target, _ in state.transitions]
        if len(states) < 2 or states[-1].transitions or max(targets, default=0) >= len(states):
            cursor.fail(
                f"phone {phone}: expected at least one emitting state, then an end without transitions", begin
            )
    return Topologies(sorted(found.items()))


def _binary_topology(cursor: Cursor) -> dict[int, tuple[State, ...]]:
    begin = cursor.position
    phones, entry_of = cursor.integers("phones"), cursor.integers("topology of each phone")
    if max(len(phones), len(entry_of)) > MAX_PHONE + 1:
        cursor.fail(
            f"{counted(len(phones), 'phone')}, {counted(len(entry_of), 'id')}: expected ids of at most {MAX_PHONE}",
            begin,
        )
    count = cursor.integer("number of topologies", -1)
    has_loop_class = count == -1
    if has_loop_class:
        count = cursor.integer("number of topologies", 0)

    def state() -> State:
        forward = cursor.integer("pdf class", _NO_PDF)
        loop = cursor.integer("pdf class of the self-loop", _NO_PDF) if has_loop_class else forward
        moves = range(cursor.integer("number of transitions", 0))
        return State(
            forward, loop, tuple((cursor.integer("next state", 0), cursor.real("probability")) for _ in moves)
        )

    entries = [tuple(state() for _ in range(cursor.integer("number of states", 0))) for _ in range(count)]
    cursor.expect("</Topology>")
    found: dict[int, tuple[State, ...]] = {}
    for phone in map(int, phones):
        if not 0 <= phone < len(entry_of) or not 0 <= entry_of[phone] < count:
            cursor.fail(f"phone {phone} has none of the {count} topologies")
        found[phone] = entries[entry_of[phone]]
    return found


def _text_topology(cursor: Cursor) -> dict[int, tuple[State, ...]]:
    found: dict[int, tuple[State, ...]] = {}
    names = ("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>")
    while cursor.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        cursor.expect("<ForPhones>")
        phones = set()
        while cursor.peek_token() not in ("</ForPhones>", ""):
            phones.add(cursor.integer("phone", 1, MAX_PHONE))
        cursor.expect("</ForPhones>")
        states: list[State] = []
        while cursor.expect("<State>", "</TopologyEntry>") == "<State>":
            cursor.integer("state", len(states), len(states))
            forward = loop = _NO_PDF
            transitions = []
            while (name := cursor.expect(*names)) != "</State>":
                if name == "<Transition>":
                    transitions.append((cursor.integer("next state", 0), cursor.real("probability")))
                    continue
                pdf_class = cursor.integer("pdf class", 0)
                forward = forward if name == "<SelfLoopPdfClass>" else pdf_class
                loop = loop if name == "<ForwardPdfClass>" else pdf_class
            states.append(State(forward, loop, tuple(transitions)))
        found |= dict.fromkeys(phones, tuple(states))
    return found


class Tuple(NamedTuple):
    """What some transitions share: phone id, HMM state, pdf of the first and of further frames."""

    phone: int
    hmm_state: int
    forward_pdf: int
    self_loop_pdf: int


class Transitions(NamedTuple):
    """By transition id (entry 0 is unused): int32 arrays and booleans; `entry` counts `tuples` from 0."""

    entry: npt.NDArray[np.int32]
    phone: npt.NDArray[np.int32]
    hmm_state: npt.NDArray[np.int32]
    pdf: npt.NDArray[np.int32]
    is_self_loop: npt.NDArray[np.bool_]
    is_final: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        return brief(self)


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """Topology, tuples and log-probabilities of a Kaldi model.

    `states` are by phone id; the order of `tuples` numbers transition ids; `log_probs` is float [1 + transition ids], entry
    0 unused; `name` is that of the file.
    """

    states: Topologies
    tuples: tuple[Tuple, ...]
    log_probs: npt.NDArray[np.floating]
    name: str

    def __repr__(self) -> str:
        sizes = f"{counted(len(self.states), 'phone')}, {counted(self.num_pdfs, 'pdf')}"
        return f"TransitionModel({self.name}: {sizes}, {counted(len(self.log_probs) - 1, 'transition id')})"

    @property
    def num_phones(self) -> int:
        """The largest phone id."""
        return max(self.states)

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf."""
        return max(max(one.forward_pdf, one.self_loop_pdf) for one in self.tuples) + 1

    @cached_property
    def transitions(self) -> Transitions:
        rows = [(-1, 0, 0, -1, 0, 0)]
        for entry, (phone, state, forward_pdf, self_loop_pdf) in enumerate(self.tuples):
            states = self.states[phone]
            for target, _ in states[state].transitions:
                loop, final = target == state, target == len(states) - 1
                rows.append((entry, phone, state, self_loop_pdf if loop else forward_pdf, loop, final))
        columns = list(np.array(rows, dtype=np.int32).T.copy())
        return Transitions(*columns[:4], *(column.astype(np.bool_) for column in columns[4:]))

    def pdfs(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Pdf of each frame of an alignment of transition ids."""
        return self.transitions.pdf[self._ids(alignment)]

    def phones(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> list[tuple[int, int, int]]:
        """(phone id, first frame, frame after the last) of each phone of an alignment of transition ids.

        A phone begins where the last ended: with a transition out of its final state, and the self-loops that Kaldi's
        reordered graphs put after it.
        """
        ids = self._ids(alignment)
        if not len(ids):
            return []
        table = self.transitions
        phone, loop, final = table.phone[ids], table.is_self_loop[ids], table.is_final[ids]
        # In reordered graphs self-loops follow the transition that leaves their state; the first change of state tells.
        entry = table.entry[ids]
        changes = np.flatnonzero((entry[1:] != entry[:-1]) & (loop[1:] | loop[:-1]))
        if loop[changes[0]] if changes.size else not loop[0]:
            left = np.maximum.accumulate(np.where(~loop, np.arange(len(ids)), -1))
            ended = (left >= 0) & final[np.maximum(left, 0)]
            cut = ended[:-1] & ~loop[1:]
        else:
            cut = final[:-1]
        first = np.append(0, 1 + np.flatnonzero(cut | (phone[1:] != phone[:-1])))
        ends = np.append(first[1:], len(ids))
        return list(zip(phone[first].tolist(), first.tolist(), ends.tolist(), strict=True))

    def _ids(self, alignment: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        ids = np.asarray(alignment, dtype=np.int64)
        bad = np.flatnonzero((ids < 1) | (ids >= len(self.transitions.pdf)))
        if bad.size:
            raise DataError(
                f"frame {bad[0]} has {ids[bad[0]]}: expected a transition id of {self.name}, 1 to "
                f"{len(self.transitions.pdf) - 1}"
            )
        return ids

    def topology(self) -> Topology:
        """The topology of all phones, with the model's transition probabilities.

        `Topology` has one for all: GraphError where phones have different topologies or transition probabilities, or a state
        before the end has no pdf.
        """
        model = self.tuples[0].phone
        first = self.states[model]
        size = len(first) + sum(len(state.transitions) for state in first)
        if size > MAX_TOPOLOGY:
            raise GraphError(
                f"{self.name}: phone {model} has {counted(size, 'state')} and transitions; expected at most {MAX_TOPOLOGY}"
            )
        for phone, states in self.states.items():
            if states != first:
                raise GraphError(
                    f"{self.name}: phone {phone} has another topology than others; expected one for all"
                )
        log_probs = self._log_probs_by_move()
        hmm_states = []
        for number, state in enumerate(first[:-1]):
            targets = [target for target, _ in state.transitions]
            if state.forward_class < 0 or len(set(targets)) < len(targets) or not set(targets) - {number}:
                raise GraphError(
                    f"{self.name}: state {number} has pdf class {state.forward_class} and goes to {targets}; expected a "
                    "class of at least 0, and distinct states, itself not alone"
                )
            values = {target: log_probs.get((number, place), 0.0) for place, target in enumerate(targets)}
            loop_class = state.self_loop_class if number in values else None
            forward, loop = values.pop(number + 1, -math.inf), values.pop(number, 0.0)
            hmm_states.append(HmmState(state.forward_class, loop_class, forward, loop, tuple(values.items())))
        return Topology(tuple(hmm_states))

    def _log_probs_by_move(self) -> dict[tuple[int, int], float]:
        """Log-probability of each (HMM state, place among its transitions), which all phones share."""
        found: dict[tuple[int, int], list[float]] = {}
        values = map(float, self.log_probs[1:])
        for one in self.tuples:
            for place in range(len(self.states[one.phone][one.hmm_state].transitions)):
                found.setdefault((one.hmm_state, place), []).append(next(values))
        for (state, _), same in found.items():
            if max(same) - min(same) > LOG_TOLERANCE:
                raise GraphError(
                    f"{self.name}: transition log-probabilities of state {state} reach from {min(same):g} to "
                    f"{max(same):g}; expected one for all phones (chain models have those of the topology)"
                )
        return {move: min(_double(same[0]), 0.0) for move, same in found.items()}


def _double(value: float) -> float:
    """The float64 log-probability that a float32 value stands for: the log of a probability of six decimals, if near it."""
    prob = round(math.exp(value), 6)
    exact = math.log(prob) if prob > 0 else value
    return exact if abs(exact - value) <= LOG_TOLERANCE else value


def read_transition_model(path: str | os.PathLike[str]) -> TransitionModel:
    """Read `0.trans_mdl`, or the transition model that `final.mdl` begins with; what follows it is not read."""
    cursor = open_file(path)
    cursor.detect_binary()
    cursor.expect("<TransitionModel>")
    states = parse_topology(cursor)
    kind = cursor.expect("<Tuples>", "<Triples>")
    tuples, num_transitions = list[Tuple](), 0
    for _ in range(cursor.integer("number of tuples", 1)):
        begin = cursor.position
        numbers = [cursor.integer("field of a tuple", 0) for _ in range(4 if kind == "<Tuples>" else 3)]
        entry = Tuple(*numbers, *numbers[2:3]) if kind == "<Triples>" else Tuple(*numbers)
        own = states.get(entry.phone, ())
        if entry.hmm_state >= len(own) - 1:
            cursor.fail(f"state {entry.hmm_state} of phone {entry.phone}, which the topology lacks", begin)
        tuples.append(entry)
        num_transitions += len(own[entry.hmm_state].transitions)
    cursor.expect(kind.replace("<", "</"))
    cursor.expect("<LogProbs>")
    begin = cursor.position
    log_probs = read_vector(cursor)
    cursor.expect("</LogProbs>")
    cursor.expect("</TransitionModel>")
    if len(log_probs) != num_transitions + 1:
        cursor.fail(
            f"{counted(len(log_probs), 'log-probability')}; expected {num_transitions + 1}, one more than transitions",
            begin,
        )
    return TransitionModel(states, tuple(tuples), log_probs, cursor.name)


def pdf_graph(hclg: Transducer, model: TransitionModel) -> Transducer:
    """HCLG with pdf + 1 in place of the transition ids of `model`; costs, output labels and epsilons stay.

    Kaldi's decoders look each transition id up at each frame; here that is done once. `pdf_graph(...).to_openfst()` is the
    argument of `fsachain.asr.decode.decoder.Decoder`.
    """
    table = model.transitions.pdf.astype(np.int64) + 1  # entry 0, epsilon, is -1 + 1
    bad = np.flatnonzero((hclg.ilabel < 0) | (hclg.ilabel >= len(table)))
    if bad.size:
        raise DataError(
            f"arc {bad[0]} has input label {hclg.ilabel[bad[0]]}; {model.name} has the transition ids 1 to {len(table) - 1}"
        )
    return replace(hclg, ilabel=table[hclg.ilabel].astype(np.int32))


class ContextDependency(NamedTuple):
    context_width: int
    central_position: int
    decisions: DecisionTree


def read_tree(path: str | os.PathLike[str]) -> ContextDependency:
    cursor = open_file(path)
    cursor.detect_binary()
    cursor.expect("ContextDependency")
    width = cursor.integer("context width", 1, MAX_WIDTH)
    centre = cursor.integer("central position", 0, width - 1)
    if cursor.expect("ToPdf", "ToLength") == "ToLength":
        _read_decisions(cursor, width)
        cursor.expect("ToPdf")
    decisions = _read_decisions(cursor, width)
    cursor.expect("EndContextDependency")
    return ContextDependency(width, centre, decisions)


def read_context_tree(
    tree: str | os.PathLike[str], model: str | os.PathLike[str], phones: Sequence[str]
) -> ContextTree:
    """The context and topology of a Kaldi directory, for everything that takes a `ContextTree`.

    `model` is `0.trans_mdl` or `final.mdl`, whose head is the transition model; `phones` are in id order, as `read_phones`
    gives them. GraphError: a topology that `Topology` cannot be; see `TransitionModel.topology`.
    """
    found, transitions = read_tree(tree), read_transition_model(model)
    if transitions.num_phones != len(phones):
        raise DataError(
            f"{model}: {counted(transitions.num_phones, 'phone')}; expected {len(phones)}, as in the phone list"
        )
    if transitions.num_pdfs > found.decisions.num_pdfs:
        raise DataError(
            f"{model}: {counted(transitions.num_pdfs, 'pdf')}, but {tree} has {found.decisions.num_pdfs}: "
            "they do not belong "
            "together"
        )
    context = ContextTree(
        phones,
        transitions.topology(),
        found.context_width,
        [(phone,) for phone in range(1, len(phones) + 1)],
        frozenset(),
        found.decisions,
        found.central_position,
    )
    unmet: dict[int, set[int]] = {}  # by pdf the phones that have it in the model, but at no leaf
    for one in transitions.tuples:
        unmet.setdefault(one.forward_pdf, set()).add(one.phone)
        unmet.setdefault(one.self_loop_pdf, set()).add(one.phone)
    for pdf, path in context.contexts():
        unmet[pdf] = unmet.get(pdf, set()) - path[context.central_position]
    for pdf, left in unmet.items():
        if left:
            raise DataError(
                f"{tree} and {model}: pdf {pdf} belongs to phone {min(left)} in the model and not in the tree; they do "
                "not belong together"
            )
    return context


class _Question(NamedTuple):
    """A table, or a split by `values`, whose branches follow in the file; `number` is that of its node."""

    number: int
    key: int
    size: int
    values: frozenset[int] | None
    branches: list[int]


def _read_decisions(cursor: Cursor, width: int) -> DecisionTree:
    """The nodes in file order, with an explicit stack: a file may nest them deeper than Python recurses."""
    begin = cursor.position
    nodes: list[Node] = []
    waiting: list[_Question] = []
    while not nodes or waiting:
        may_be_null = bool(waiting) and waiting[-1].values is None
        kind = cursor.expect("CE", "TE", "SE", *(("NULL",) if may_be_null else ()))
        if waiting:
            waiting[-1].branches.append(NO_BRANCH if kind == "NULL" else len(nodes))
        if kind == "CE":
            nodes.append(Leaf(cursor.integer("pdf", 0)))
        elif kind != "NULL":
            waiting.append(_read_question(cursor, kind, width, len(nodes)))
            nodes.append(Leaf(0))  # until its branches are read
        while waiting and len(waiting[-1].branches) == waiting[-1].size:
            number, key, _, values, branches = waiting.pop()
            nodes[number] = Table(key, tuple(branches)) if values is None else Split(key, values, *branches)
            cursor.expect(")" if values is None else "}")
    try:
        return DecisionTree(nodes)
    except GraphError as error:
        cursor.fail(str(error), begin)


def _read_question(cursor: Cursor, kind: str, width: int, number: int) -> _Question:
    key = cursor.integer("key of a question", -1, width - 1)
    if kind == "SE":
        place = cursor.position
        values = np.unique(cursor.integers("values of a split"))
        if values.size and not -(2**31) <= values[0] <= values[-1] < 2**31:
            cursor.fail("values of a split: expected integers of 32 bits", place)
        cursor.expect("{")
        return _Question(number, key, 2, frozenset(values.tolist()), [])
    size = cursor.integer("branches of a table", 0, 2**32 - 1)
    cursor.expect("(")
    return _Question(number, key, size, None, [])
