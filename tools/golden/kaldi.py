"""Kaldi's numerator, denominator and objective.

Where Kaldi is not the truth the mathematics is followed instead; each such place says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fsachain import DenominatorGraph, GraphError, LFMMILoss, TableBatch, compile_table, forward_backward
from fsachain.backends.dispatch import BackendName
from tests import tolerances
from tools.golden.rows import Case, Compared, kaldi_fsa, log_prob_limits

# Its start state is entered again, and Kaldi's offset on the arcs out of state 0 is then undone too rarely: both value
# and derivative are wrong, and the float64 value that was stored beside them is taken.
OFFSET_WRONG = {"n18_start_revisited"}
NO_CYCLE = {"d16_acyclic"}
HOT = 100.0


def cases(shared: Path) -> list[Case]:
    kinds = {"num": numerator_rows, "den": denominator_rows, "objf": objective_rows}
    return [
        Case(f"kaldi/{kind}/{path.stem}", path, rows)
        for kind, rows in kinds.items()
        for path in sorted((shared / "golden" / "kaldi" / kind).glob("*.npz"))
    ]


def sequences(values: Any, key: str) -> npt.NDArray[Any]:
    """[N, T, P] from Kaldi's matrix, whose row t * N + n is frame t of sequence n."""
    frames, size = int(values["frames"]), int(values["num_seqs"])
    return np.ascontiguousarray(values[key].reshape(frames, size, -1).transpose(1, 0, 2))


def derivative_limit(scores: npt.NDArray[Any]) -> float:
    """What float32 programs reach on scores of this size."""
    hot = np.abs(scores[np.isfinite(scores)]).max(initial=0.0) > HOT
    return tolerances.KALDI_DERIVATIVE_HOT if hot else tolerances.KALDI_DERIVATIVE


def numerator_rows(path: Path, values: Any, backend: BackendName) -> Iterator[Compared]:
    """GenericNumeratorComputation.

    Kaldi gives NaN for the whole batch if one sequence has no path; ours gives -inf for that one, so that there the
    float64 values are compared and no derivative is.
    """
    scores = sequences(values, "nnet_output")
    size, num_pdfs = len(scores), scores.shape[2]
    graphs = [kaldi_fsa(values, f"fst{n}_") for n in range(size)]
    result = forward_backward(
        TableBatch.pack([compile_table(graph, num_pdfs) for graph in graphs]), scores, backend=backend
    )
    exact = values["ref64_per_seq_loglike"]
    theirs = exact if path.stem in OFFSET_WRONG else values["per_seq_loglike"].astype(np.float64)
    theirs = np.where(np.isnan(theirs), exact, theirs)
    yield "log Z", result.log_prob, theirs, log_prob_limits
    yield "log Z, float64 check", result.log_prob, exact, log_prob_limits
    yield "ok", result.ok, np.isfinite(exact), tolerances.YES_OR_NO
    derivative = sequences(values, "nnet_output_deriv")
    if path.stem not in OFFSET_WRONG and np.isfinite(derivative).all() and np.asarray(result.ok).all():
        ours = float(values["weight"]) * np.asarray(result.occupancy, dtype=np.float64)
        yield "derivative", ours, derivative, derivative_limit(scores)


def denominator_rows(path: Path, values: Any, backend: BackendName) -> Iterator[Compared]:
    """DenominatorComputation.

    Kaldi aborts on leaky coefficients 0 and 1, on very high scores and on a graph without a cycle. Ours computes the
    first three, which are compared with the oracle, and refuses the last.
    """
    scores = sequences(values, "nnet_output")
    fsa = kaldi_fsa(values, "den_")
    if path.stem in NO_CYCLE:
        yield "refused", float(_is_refused(fsa, scores.shape[2])), 1.0, tolerances.YES_OR_NO
        return
    denominator = DenominatorGraph(fsa, scores.shape[2])
    batch, leaky = denominator.batch(len(scores)), float(values["leaky"])
    result = forward_backward(batch, scores, leaky_hmm_coefficient=leaky, backend=backend)
    if "initial_probs" in values:
        limit = tolerances.KALDI_INITIAL_PROBS
        yield "initial probs", denominator.initial_probs, values["initial_probs"], limit
    if "per_seq_logprob" not in values:
        exact = forward_backward(batch, scores, leaky_hmm_coefficient=leaky, backend="reference")
        yield "log Z, oracle", result.log_prob, exact.log_prob, log_prob_limits
        yield "occupancy, oracle", result.occupancy, exact.occupancy, tolerances.OCCUPANCY
        return
    for name, key in (("log Z", "per_seq_logprob"), ("log Z, float64 check", "ref64_per_seq_logprob")):
        yield name, result.log_prob, values[key], log_prob_limits
    ours = float(values["deriv_weight"]) * np.asarray(result.occupancy, dtype=np.float64)
    yield "derivative", ours, sequences(values, "nnet_output_deriv"), derivative_limit(scores)


def _is_refused(fsa: Any, num_pdfs: int) -> bool:
    try:
        DenominatorGraph(fsa, num_pdfs)
    except GraphError:
        return True
    return False


def objective_rows(path: Path, values: Any, backend: BackendName) -> Iterator[Compared]:
    """ComputeChainObjfAndDeriv.

    Kaldi's numerator value is not multiplied by the supervision weight, its derivative is: ours weights both, and the
    comparison puts ours together Kaldi's way. The out-of-range derivative of Kaldi is applied on a coin toss, which
    came up "no" in these files; ours is switched off. One impossible sequence spoils the whole minibatch in Kaldi (-10
    for each of its frames, derivative 0); ours leaves out that sequence alone, so that only the objective of the
    excluded ones is compared there.
    """
    if backend == "reference":
        return
    if bool(values["penalize_out_of_range_applied"]):
        raise ValueError(f"{path}: the out-of-range derivative was applied; expected files without it")
    record, output, xent = _evaluate(values, "cuda" if backend == "cuda" else "cpu")
    weight, ok = float(values["sup_weight"]), record.ok.numpy()
    yield "weight", record.weight, values["weight"], tolerances.KALDI_WEIGHT
    if not ok.all():
        expected = -10.0 * weight * int(values["frames"]) * (~ok).sum()
        yield "objf of the excluded", record.objf - record.objf_ok, expected, tolerances.FLOAT64
        return
    objf = float(record.num_log_prob.sum() - weight * record.den_log_prob.sum())
    per_frame = tolerances.OBJF_PER_FRAME * float(values["weight"])
    yield "objf", objf, values["objf"], per_frame
    yield "l2 term", record.l2_term, values["l2_term"], log_prob_limits
    limit = tolerances.KALDI_DERIVATIVE
    frames = float(record.weight_ok)
    derivative = -output.grad.numpy() * frames
    yield "derivative", derivative, sequences(values, "nnet_output_deriv"), limit
    if xent is not None:
        yield "xent objf", record.xent_objf, values["xent_objf"], log_prob_limits
        theirs = sequences(values, "xent_output_deriv_scaled")
        yield "xent derivative", -xent.grad.numpy() * frames, theirs, limit


def _evaluate(values: Any, device: str = "cpu") -> tuple[Any, Any, Any]:
    """The record of one minibatch, and the two network outputs with their gradients; computed there, all on the host."""
    size, frames = int(values["num_seqs"]), int(values["frames"])
    denominator = DenominatorGraph(kaldi_fsa(values, "den_"), int(values["num_pdfs"]))
    loss = LFMMILoss(
        denominator,
        leaky_hmm_coefficient=float(values["leaky_hmm_coefficient"]),
        l2_regularize=float(values["l2_regularize"]),
        out_of_range_regularize=0.0,
        xent_regularize=float(values["xent_regularize"]),
    )
    output = torch.from_numpy(sequences(values, "nnet_output")).requires_grad_()
    xent = None
    if "xent_output" in values:
        xent = torch.from_numpy(sequences(values, "xent_output")).requires_grad_()
    frame_weights = None
    if "deriv_weights" in values:
        frame_weights = torch.from_numpy(sequences(values, "deriv_weights")[:, :, 0])
    numerators = [kaldi_fsa(values, f"fst{n}_") for n in range(size)]
    weights = [float(values["sup_weight"])] * size
    there = [None if tensor is None else tensor.to(device) for tensor in (output, frame_weights, xent)]
    loss(there[0], [frames] * size, numerators, weights, *there[1:]).backward()
    record = loss.last_record
    tensors = {field.name: getattr(record, field.name) for field in fields(record) if field.name != "batch"}
    return replace(record, **{name: value.cpu() for name, value in tensors.items()}), output, xent
