"""Sums over the batches of an epoch, and the figures per frame made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

EDITS = ("substituted", "inserted", "deleted")  # in a summary per word


@dataclass
class EpochSums:
    """Sums over the sequences that took part, of all processes; natural logs."""

    objf: float = 0.0  # weighted num - den
    num_log_prob: float = 0.0
    den_log_prob: float = 0.0
    l2_term: float = 0.0
    out_of_range_term: float = 0.0  # the penalty on outputs beyond +-30
    xent_objf: float = 0.0
    consistency_term: float = 0.0  # what two views of each utterance differ by
    weight: float = 0.0  # times output frames
    output_frames: int = 0
    input_frames: int = 0  # of excluded sequences too: what went through the network
    words: float = 0.0  # of the utterances whose edits were counted, see `ForgivingNumerators.edits`
    substituted: float = 0.0  # of these words, expected numbers
    inserted: float = 0.0
    deleted: float = 0.0  # places between them

    # The figures before are added up over processes; these are equal in all of them, or the first one's.
    batches: int = 0
    grad_norm: float = 0.0  # before clipping, of the batches that moved parameters
    max_grad_norm: float = 0.0
    moved_batches: int = 0
    skipped_batches: int = 0  # a number was not finite
    excluded: list[str] = field(default_factory=list)  # names, as often as the loss left them out
    seconds: float = 0.0  # of the steps, in the first process; the next three are parts of it
    loss_seconds: float = 0.0
    data_seconds: float = 0.0  # waiting for the next batch
    world_seconds: float = 0.0  # waiting for the other processes and adding up
    limited_steps: int = 0  # scaled down by `max_change`
    limited_components: int = 0  # by `max_change_per_component`

    def numbers(self) -> list[float]:
        return [float(getattr(self, name)) for name in SUMMED]

    def add_numbers(self, values: Sequence[float], names: Sequence[str] = ()) -> None:
        for name, value in zip(names or SUMMED, values, strict=True):
            before = getattr(self, name)
            setattr(self, name, before + type(before)(value))

    def add_record(self, record: Any, lengths: list[int]) -> None:
        """`lengths` are the output frames of the record's sequences."""
        ok = [bool(value) for value in record.ok]
        self.objf += float(record.objf_ok)
        self.num_log_prob += _sum_ok(record.num_log_prob, ok)
        self.den_log_prob += _sum_ok(record.den_log_prob, ok)
        self.l2_term += float(record.l2_term)
        self.out_of_range_term += float(record.out_of_range_term)
        self.xent_objf += 0.0 if record.xent_objf is None else float(record.xent_objf)
        self.consistency_term += float(
            getattr(record, "consistency_term", 0.0)
        )  # not of every loss of one's own
        self.weight += float(record.weight_ok)
        self.output_frames += sum(length for length, good in zip(lengths, ok, strict=True) if good)
        self.excluded += [str(name) for name in record.excluded]

    def add_norm(self, norm: float) -> None:
        self.grad_norm += norm
        self.max_grad_norm = max(self.max_grad_norm, norm)
        self.moved_batches += 1

    def left_out(self) -> list[str]:
        """The first 5,000 different names of `excluded`, sorted, which keeps a line of the log short."""
        return sorted(set(self.excluded))[:5000]

    def summary(self) -> dict[str, Any]:
        """Figures per frame and per second; NaN where nothing was counted."""
        return {
            "objf": _ratio(self.objf, self.weight),
            "num": _ratio(self.num_log_prob, self.output_frames),
            "den": _ratio(self.den_log_prob, self.output_frames),
            "l2": _ratio(self.l2_term, self.weight),
            "out_of_range": _ratio(self.out_of_range_term, self.weight),
            "xent": _ratio(self.xent_objf, self.weight),
            "consistency": _ratio(self.consistency_term, self.weight),
            "grad_norm": _ratio(self.grad_norm, self.moved_batches),
            "max_grad_norm": self.max_grad_norm if self.moved_batches else math.nan,
            "output_frames": self.output_frames,
            "frames_per_second": _ratio(self.input_frames, self.seconds),
            "seconds": self.seconds,
            "loss_share": _ratio(self.loss_seconds, self.seconds),
            "data_share": _ratio(self.data_seconds, self.seconds),
            "world_share": _ratio(self.world_seconds, self.seconds),
            "max_change": _ratio(self.limited_steps, self.moved_batches),
            "max_change_components": _ratio(self.limited_components, self.moved_batches),
            "excluded": len(self.excluded),
            "skipped_batches": self.skipped_batches,
            **{name: getattr(self, name) / self.words for name in EDITS if self.words},
        }


SUMMED = tuple(itertools.takewhile(lambda name: name != "batches", EpochSums.__dataclass_fields__))


def _sum_ok(values: Any, ok: list[bool]) -> float:
    return sum(float(value) for value, good in zip(values.tolist(), ok, strict=True) if good)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
