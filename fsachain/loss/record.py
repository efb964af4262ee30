"""What an evaluation of a loss found, besides the number to minimise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsachain.batch import TableBatch

# Per frame, for every excluded sequence: Kaldi's figure, so that the exclusion shows in the log.
EXCLUDED_OBJF = -10.0


@dataclass(frozen=True, kw_only=True)
class LossRecord:
    """Detached float64 results of one batch; scalars are 0-dimensional tensors.

    Attributes:
        objf: the objective, larger is better, with a value for each excluded sequence.
        objf_ok: the same over ok sequences only: what the loss uses.
        num_log_prob, den_log_prob: [N] log Z of numerator and denominator; -inf: impossible, NaN: illegal score.
        l2_term, out_of_range_term: the penalties, <= 0, already times their factors.
        xent_objf: sum_n w_n sum_t,p occupancy_num xent_log_probs, before `xent_regularize`; 0 without that branch.
        weight: sum_n w_n T_n in frames; weight_ok: over ok sequences.
        ok: bool [N].
        batch: the numerators; their names are the utterances'.
    """

    objf: Tensor
    objf_ok: Tensor
    num_log_prob: Tensor
    den_log_prob: Tensor
    l2_term: Tensor
    out_of_range_term: Tensor
    xent_objf: Tensor
    weight: Tensor
    weight_ok: Tensor
    ok: Tensor
    batch: TableBatch

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the N utterances."""
        return self.batch.names

    @property
    def excluded(self) -> tuple[str, ...]:
        """Names of the sequences that left the objective: no path of their length, or an illegal score.

        Reading it waits for the device of the scores.
        """
        return tuple(name for name, ok in zip(self.names, self.ok.tolist(), strict=True) if not ok)


@dataclass(frozen=True, kw_only=True)
class LFMMIRecord(LossRecord):
    """What `LFMMILoss` found; fields as in `LossRecord`.

    objf is sum_n w_n (num - s den) over ok sequences, and -10 w_n T_n for each excluded one. Where the loss boosts,
    `den_log_prob` is log Z of the boosted scores, so that objf may reach boost times the frames.
    """


@dataclass(frozen=True, kw_only=True)
class MBRRecord(LossRecord):
    """What `MBRLoss` found; fields as in `LossRecord`.

    objf is sum_n w_n E_n[A]; an excluded sequence adds 0, as if it had no frame right.

    Attributes:
        expected_accuracy: [N] E_n[A], frames that a path of the denominator is expected to have right, in [0, T_n] but for
            rounding; -inf: impossible, NaN: illegal score.
    """

    expected_accuracy: Tensor


def common_fields(
    batch: TableBatch, results: tuple[Tensor, ...], xent_objf: Tensor, values: Tensor
) -> dict[str, Any]:
    """All fields of `LossRecord` but objf, from an operator's results.

    values [N] is what each sequence adds to objf_ok, times its weight.
    """
    _, num, den, ok, l2_term, range_term, _, _, frames, weights = results[:10]
    per_sequence = weights * frames
    return {
        "objf_ok": torch.where(ok, weights * values, 0.0).sum(),
        "num_log_prob": num,
        "den_log_prob": den,
        "l2_term": l2_term.detach(),
        "out_of_range_term": range_term.detach(),
        "xent_objf": xent_objf,
        "weight": per_sequence.sum(),
        "weight_ok": torch.where(ok, per_sequence, 0.0).sum(),
        "ok": ok,
        "batch": batch,
    }
