"""State-level minimum Bayes risk: the frames that a path of the denominator is expected to have right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fsachain.backends.dispatch import BackendName
from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss import mbr_operator
from fsachain.loss.base import Call, SequenceLoss
from fsachain.loss.operators import budget_number
from fsachain.loss.record import MBRRecord, common_fields


class MBRLoss(SequenceLoss[MBRRecord]):
    """-(objf + l2_term + out_of_range_term + xent_regularize xent_objf) / frames, over the sequences that are possible.

        objf   = sum_n w_n E_n[A]
        E_n[A] = sum over paths of the denominator, each with its probability given y_n, of sum_t a(t, pdf of the path at t)
        a(t,p) = occupancy_num(t, p), taken as a constant

    The other terms, and what becomes of impossible sequences, are those of `LFMMILoss`. E_n[A] is in [0, T_n] and bounded,
    unlike log-probabilities: a sequence that is all wrong has little gradient, so that MBR is for models that LF-MMI has
    trained. Povey and Kingsbury, ICASSP 2007; Vesely et al., Interspeech 2013 (state-level); here without lattices.

    Attributes:
        last_record: `MBRRecord` of the last call, None before the first.
    """

    def __init__(
        self,
        denominator: DenominatorGraph | Mapping[str, DenominatorGraph],
        *,
        leaky_hmm_coefficient: float = 1e-5,
        l2_regularize: float = 0.0,
        out_of_range_regularize: float = 0.01,
        xent_regularize: float = 0.0,
        memory_budget: float | None = None,
    ) -> None:
        """Set up the loss.

        Args:
            denominator: the graph, or several by name (then each call says `denominator_of`).
            leaky_hmm_coefficient: c of equation (3), in [0, 1]; a leak itself has neither right nor wrong frames.
            l2_regularize: l2 >= 0; 5e-5 is usual.
            out_of_range_regularize: o >= 0, holds scores near [-30, 30].
            xent_regularize: factor of the cross-entropy branch; 0.1 is usual.
            memory_budget: bytes, beside scores, accuracy and gradient, for the alphas of all frames, of the numerators and
                then of the denominators; None: a share of the free memory, infinity: no limit. Where they need more, about
                2 sqrt(T) of T are kept and the others computed again: no bit of the loss or its gradient changes, and it
                takes at most 1.6 times as long.

        Raises:
            ConfigError: a negative factor or budget, no denominator, or denominators that differ in their number of pdfs.
        """
        super().__init__(
            denominator,
            leaky_hmm_coefficient=leaky_hmm_coefficient,
            l2_regularize=l2_regularize,
            out_of_range_regularize=out_of_range_regularize,
            xent_regularize=xent_regularize,
            memory_budget=memory_budget,
        )

    def _options(self) -> list[float]:
        penalties = [self.l2_regularize, self.out_of_range_regularize]
        return [self.leaky_hmm_coefficient, *penalties, budget_number(self.memory_budget)]

    def _operate(self, *arguments: Any) -> tuple[Tensor, ...]:
        return mbr_operator.mbr(*arguments)

    def _record(self, call: Call, results: tuple[Tensor, ...], xent_objf: Tensor) -> MBRRecord:
        expected = results[10]
        fields = common_fields(call.batch, results, xent_objf, expected)
        return MBRRecord(objf=fields["objf_ok"], expected_accuracy=expected, **fields)


def expected_accuracy(
    batch: TableBatch,
    scores: Tensor,
    accuracy: Tensor,
    lengths: Any = None,
    *,
    leaky_hmm_coefficient: float = 0.0,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> Tensor:
    """E[A] of every sequence, A(path) being the sum over frames t of accuracy(t, pdf of the path at t).

    Equations (M1)-(M6) of `fsachain.backends.reference_mbr`.

    Args:
        batch: the acceptors of N sequences.
        scores: [N, T, P] float16, bfloat16, float32 or float64; the gradient comes in the same dtype.
        accuracy: [N, T, P], float as well: any finite numbers; E[A] is linear in them, and its gradient by them is the
            occupancy, equation (7).
        lengths: [N] integers on the host; None takes all T frames.
        leaky_hmm_coefficient: c in [0, 1]; above 0 the tables must carry `leaky_log_prob`. A leak adds nothing to A.
        backend: "auto" or "cpu"; "reference" for the oracle. Scores of a device are copied to the host, and results back.
        memory_budget: bytes for the alphas of all frames, as for `forward_backward`; no bit of the results depends on it.

    Returns:
        float64 [N]; -inf (no path) and NaN (illegal score, or an accuracy of an active pdf that is not finite) have zero
        gradient. Differentiating twice raises.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: as `forward_backward`.
    """
    for name, value in (("scores", scores), ("accuracy", accuracy)):
        if not isinstance(value, Tensor):
            raise ShapeError(f"{name} is a {type(value).__name__}; expected a torch tensor")
    if accuracy.shape != scores.shape or not accuracy.is_floating_point():
        raise ShapeError(
            f"accuracy has shape {list(accuracy.shape)} and dtype {accuracy.dtype}; "
            f"expected floating-point numbers of shape {list(scores.shape)} as in scores"
        )
    if accuracy.device != scores.device:
        raise BackendUnavailable(f"accuracy is on {accuracy.device}; expected {scores.device} as the scores")
    frames = torch.full((scores.shape[0],), scores.shape[1]) if lengths is None else torch.as_tensor(lengths)
    wanted = (torch.is_grad_enabled() and tensor.requires_grad for tensor in (scores, accuracy))
    key = torch.from_numpy(batch.key)
    return mbr_operator.expected_accuracy(
        scores,
        accuracy,
        frames,
        key,
        leaky_hmm_coefficient,
        backend,
        *wanted,
        budget_number(memory_budget),
    )[0]
