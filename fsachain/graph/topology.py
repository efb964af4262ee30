"""HMM topology of one phone: which pdf classes its frames use, and the transition probabilities between them.

A phone begins in state 0 and goes from state to state, as a rule to the next; states may be skipped or come again.
Entering state k spends one frame on its entry class; each further frame in state k spends its self-loop class. Every
frame pays one transition: staying, going on, or leaving. This gives each pdf sequence the score that Kaldi's reordered
transitions give it. Where two ways through the states spend the same classes, both count, in numerators too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fsachain.errors import GraphError, counted
from fsachain.graph.ctc import CtcTopology, check_topology

BLANKS = ("none", "between", "optional")
LOG_HALF = math.log(0.5)


@dataclass(frozen=True)
class HmmState:
    """One emitting state of a phone.

    Attributes:
        entry_class: pdf class of the first frame in the state.
        loop_class: pdf class of every further frame; None: the state lasts exactly one frame.
        leave_log_prob: natural log probability of leaving for the next state, or from the last state for what comes
            behind the phone; paid at the end of the utterance too. -inf: only `skips` lead on.
        loop_log_prob: natural log probability of one more frame.
        skips: (state, natural log probability) of further transitions; a state number one above the last leaves the phone.
    """

    entry_class: int
    loop_class: int | None
    leave_log_prob: float = LOG_HALF
    loop_log_prob: float = LOG_HALF
    skips: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Topology:
    """The HMM states that each phone expands to.

    Attributes:
        states: emitting states in order; at least one.
        blank: "none", or "between": a blank pdf (pdf 0 of the tree, shared by all phones) may fill any number
            of frames before, between and after phones, and must separate two equal phones, as in CTC; or "optional":
            it may do so, and need not separate anything.
    """

    states: tuple[HmmState, ...]
    blank: str = "none"

    def __post_init__(self) -> None:
        if not self.states:
            raise GraphError("states is empty: a topology needs at least one emitting state")
        if self.blank not in BLANKS:
            raise GraphError(f"blank = {self.blank!r}: expected one of {', '.join(map(repr, BLANKS))}")
        classes = sorted(self._classes())
        if classes != list(range(len(classes))):
            raise GraphError(f"pdf classes {classes}: expected 0, 1, ... without gaps")
        for index, state in enumerate(self.states):
            self._check_state(index, state)
        if not self._ends():
            raise GraphError(
                f"no way leads from states[0] out of the {counted(len(self.states), 'state')} of a phone"
            )

    def __repr__(self) -> str:
        states = counted(len(self.states), "state")
        classes = counted(self.num_pdf_classes, "pdf class")
        return f"Topology({states} with {classes}, blank={self.blank!r})"

    @property
    def fingerprint(self) -> str:
        """Everything that the topology is made of, as text; files of graphs keep a hash of it."""
        return f"Topology(states={self.states!r}, blank={self.blank!r})"

    def _check_state(self, index: int, state: HmmState) -> None:
        values = {"leave_log_prob": state.leave_log_prob, "loop_log_prob": state.loop_log_prob}
        if state.leave_log_prob == -math.inf and state.skips:
            del values["leave_log_prob"]
        values |= {f"skips: state {target}": log_prob for target, log_prob in state.skips}
        for name, value in values.items():
            if not -math.inf < value <= 0:
                raise GraphError(
                    f"states[{index}].{name} = {value}: expected a finite log-probability, at most 0"
                )
        targets = [target for target, _ in state.skips]
        expected = set(range(len(self.states) + 1)) - {index, index + 1}
        if len(set(targets)) < len(targets) or not expected.issuperset(targets):
            raise GraphError(
                f"states[{index}].skips leads to {targets}: expected distinct states among {sorted(expected)}"
            )

    def moves(self, index: int) -> list[tuple[int, float]]:
        """(state, log-probability) of all ways on from a state but staying; the state behind the last is the end."""
        state = self.states[index]
        following = [(index + 1, state.leave_log_prob)] if state.leave_log_prob > -math.inf else []
        return [*following, *state.skips]

    def _ends(self) -> bool:
        reached = [0]
        for index in reached:  # grows while it is read
            if index < len(self.states):
                reached += [target for target, _ in self.moves(index) if target not in reached]
        return len(self.states) in reached

    def _classes(self) -> set[int]:
        entries = {state.entry_class for state in self.states}
        return entries | {state.loop_class for state in self.states if state.loop_class is not None}

    @property
    def num_pdf_classes(self) -> int:
        """Number of pdf classes of one phone in one context."""
        return len(self._classes())

    @classmethod
    def chain(cls) -> Topology:
        """Kaldi's chain topology: first frame class 0, then a self-loop of class 1, each with 0.5."""
        return cls((HmmState(0, 1),))

    @classmethod
    def chain_one_pdf(cls) -> Topology:
        """The chain topology with one pdf: first frame and self-loop share class 0."""
        return cls((HmmState(0, 0),))

    @classmethod
    def left_to_right(cls, num_states: int) -> Topology:
        """`num_states` states without skips, one pdf class each, self-loop probability 0.5."""
        if num_states < 1:
            raise GraphError(f"num_states = {num_states}: expected at least 1")
        return cls(tuple(HmmState(index, index) for index in range(num_states)))

    @classmethod
    def ctc(cls, topology: CtcTopology = "standard") -> Topology:
        """CTC: one pdf per phone, a blank around phones, no weights.

        Args:
            topology: "standard", "compact", "selfless" or "minimal": see the table of `fsachain.graph.ctc`.

        Raises:
            ConfigError: an unknown topology.
        """
        check_topology(topology)
        loop_class = 0 if topology in ("standard", "compact") else None
        blank = "between" if topology in ("standard", "selfless") else "optional"
        return cls((HmmState(0, loop_class, 0.0, 0.0),), blank)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `from_dict` reads them."""
        fields = [
            [
                s.entry_class,
                s.loop_class,
                s.leave_log_prob if s.leave_log_prob > -math.inf else None,
                s.loop_log_prob,
                *([list(map(list, s.skips))] if s.skips else []),
            ]
            for s in self.states
        ]
        return {"states": fields, "blank": self.blank}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Topology:
        """The topology that `to_dict` described."""
        states = []
        for entry, loop, leave, loop_log_prob, *skips in record["states"]:
            further = tuple((int(target), float(weight)) for target, weight in (skips[0] if skips else ()))
            states.append(
                HmmState(entry, loop, -math.inf if leave is None else leave, loop_log_prob, further)
            )
        return cls(tuple(states), record["blank"])
