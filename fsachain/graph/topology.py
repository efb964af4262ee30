"""HMM topology of one phone: which pdf classes its frames use, and the transition probabilities between them.

A phone is a chain of emitting states without skips. Entering state k spends one frame on its entry class;
each further frame in state k spends its self-loop class. Every frame pays one transition: staying or leaving.
This gives each pdf sequence the score that Kaldi's reordered transitions give it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fsachain.errors import GraphError

LOG_HALF = math.log(0.5)


@dataclass(frozen=True)
class HmmState:
    """One emitting state of a phone.

    Attributes:
        entry_class: pdf class of the first frame in the state.
        loop_class: pdf class of every further frame; None: the state lasts exactly one frame.
        leave_log_prob: natural log probability of leaving for what comes next; paid at the end of the
            utterance too.
        loop_log_prob: natural log probability of one more frame.
    """

    entry_class: int
    loop_class: int | None
    leave_log_prob: float = LOG_HALF
    loop_log_prob: float = LOG_HALF


@dataclass(frozen=True)
class Topology:
    """The chain of HMM states that each phone expands to.

    Attributes:
        states: emitting states in order; at least one.
        blank: "none", or "between": a blank pdf (pdf 0 of the tree, shared by all phones) may fill any number
            of frames before, between and after phones, and must separate two equal phones, as in CTC.
    """

    states: tuple[HmmState, ...]
    blank: str = "none"

    def __post_init__(self) -> None:
        if not self.states:
            raise GraphError("states is empty: a topology needs at least one emitting state")
        if self.blank not in ("none", "between"):
            raise GraphError(f"blank = {self.blank!r}: expected 'none' or 'between'")
        classes = sorted(self._classes())
        if classes != list(range(len(classes))):
            raise GraphError(f"pdf classes {classes}: expected 0, 1, ... without gaps")
        for index, state in enumerate(self.states):
            for name in ("leave_log_prob", "loop_log_prob"):
                value = getattr(state, name)
                if not -math.inf < value <= 0:
                    raise GraphError(
                        f"states[{index}].{name} = {value}: expected a finite log-probability, at most 0"
                    )

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
    def ctc(cls) -> Topology:
        """CTC: one pdf per phone, an optional blank around phones, no weights."""
        return cls((HmmState(0, 0, 0.0, 0.0),), blank="between")

    def to_dict(self) -> dict[str, Any]:
        """A form that JSON can hold; `from_dict` reads it."""
        fields = [[s.entry_class, s.loop_class, s.leave_log_prob, s.loop_log_prob] for s in self.states]
        return {"states": fields, "blank": self.blank}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Topology:
        """The topology that `to_dict` described."""
        return cls(tuple(HmmState(*fields) for fields in record["states"]), record["blank"])
