"""What an LF-MMI evaluation found, besides the number to minimise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fsachain.batch import TableBatch

# Per frame, for every excluded sequence: Kaldi's figure, so that the exclusion shows in the log.
EXCLUDED_OBJF = -10.0


@dataclass(frozen=True)
class LFMMIRecord:
    """Detached float64 results of one batch; scalars are 0-dimensional tensors.

    Attributes:
        objf: sum_n w_n (num - s den) over ok sequences, and -10 w_n T_n for each excluded one.
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
        """Names of the sequences that left the objective: no path of their length, or an illegal score."""
        return tuple(name for name, ok in zip(self.names, self.ok.tolist(), strict=True) if not ok)


def make_record(
    parts: tuple[Tensor, ...],
    scale: float,
    weights: Tensor,
    frames: Tensor,
    xent_objf: Tensor,
    batch: TableBatch,
) -> LFMMIRecord:
    """Assemble the record from the operator's results; weights [N] and frames [N] are w_n and T_n."""
    num, den, ok, l2_term, range_term = parts
    per_sequence = weights * frames
    objf_ok = torch.where(ok, weights * (num - scale * den), 0.0).sum()
    excluded = EXCLUDED_OBJF * torch.where(ok, 0.0, per_sequence).sum()
    weight_ok = torch.where(ok, per_sequence, 0.0).sum()
    return LFMMIRecord(
        objf_ok + excluded,
        objf_ok,
        num,
        den,
        l2_term,
        range_term,
        xent_objf,
        per_sequence.sum(),
        weight_ok,
        ok,
        batch,
    )
