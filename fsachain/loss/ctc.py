"""The CTC loss (Graves et al., ICML 2006), called as torch's: from log-probabilities, or from logits in one pass."""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fsachain.backends.arrays import check_budget, new_like
from fsachain.backends.ctc import Checks, CtcProblem, Rows, check_labels, joined_names, make_problem, name_of
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import ctc as cuda_ctc
from fsachain.backends.cuda.device import DeviceArray
from fsachain.backends.dispatch import BackendName, bind, ctc_backend, is_on_device
from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, DataError, ShapeError, warn
from fsachain.fsa import Floats
from fsachain.graph.ctc import CtcTopology, target_graph
from fsachain.graph.forgive import NOTHING, Forgiveness, Star, check_forgiveness
from fsachain.loss.arguments import (
    REDUCTIONS,
    NormalizationWarning,
    as_labels,
    check_choice,
    check_counts,
    check_penalty,
    is_set,
    most_off,
    reduce_on_host,
    room_for_loss,
)
from fsachain.loss.autograd import (
    Operator,
    add_at,
    as_tensor,
    beside,
    check_constant,
    new_buffer,
    refuse_jit_trace,
    scale_rows,
    wants_gradient,
)
from fsachain.table import compile_table

# With unnormalized="warn" a call adds up the probabilities of a third of the frames, the next call those of another third:
# all of them take 5 to 7 % of the loss, see docs/losses.md.
_TURNS = 3

_calls = itertools.count()
_warned_under: Any = None  # the list of filters under which the warning was given


class CtcCall(NamedTuple):
    """Arguments of the operator, as those of `ctc_loss`.

    scores [T, N, C]; log_priors [C], or empty; names of the utterances, one in a line, or empty for numbers; penalties,
    star and most_left_out: those of `Forgiveness`, or no penalties.
    """

    scores: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    log_priors: Tensor
    blank: int
    inputs: str
    topology: str
    delay_penalty: float
    unnormalized: str
    names: str
    backend: str
    reduction: str
    zero_infinity: bool
    with_gradient: bool
    memory_budget: float | None
    penalties: list[float]
    star: str
    most_left_out: int

    def problem(self, targets: Tensor) -> CtcProblem:
        """On the host."""
        num_frames, size, num_classes = self.scores.shape
        priors = self.log_priors.detach().double().cpu().numpy() if self.log_priors.numel() else _NO_PRIORS
        return make_problem(
            targets.numpy(force=True),
            self.input_lengths.numpy(force=True),
            self.target_lengths.numpy(force=True),
            (size, num_frames, num_classes),
            self.blank,
            cast(CtcTopology, self.topology),
            priors,
            self.delay_penalty,
            self.names,
            self.forgive,
        )

    @property
    def forgive(self) -> Forgiveness:
        """An operator takes its fields apart."""
        if not self.penalties:
            return NOTHING
        wrong, too_many, missing = self.penalties
        return Forgiveness(wrong, too_many, missing, cast(Star, self.star), self.most_left_out)


class CtcLosses(NamedTuple):
    """What `ctc_loss` returns, and the derivatives [T, N, C] of the sequences' losses.

    The derivatives are made in forward, by the recursion that makes the losses, and empty unless asked for; backward scales
    them. A loss that is not finite has none.
    """

    loss: Tensor
    gradient: Tensor


def _ctc(call: CtcCall) -> CtcLosses:
    scores = call.scores
    if is_on_device(scores, call.backend):
        problem = call.problem(call.targets if call.penalties else _known_labels(call))
        check_labels(problem)
        if call.unnormalized == "error" and call.inputs != "logits":
            _check_sums_there(scores, call.input_lengths, call.names)
        return _forgiving(call, problem) if call.penalties else _on_device(call, problem)
    problem, rows, is_logits = call.problem(call.targets), _rows(scores), call.inputs == "logits"
    gradient = _new_gradient(scores, call.with_gradient)
    module, out = ctc_backend(call.backend, scores), gradient.numpy().reshape(-1)
    size, num_frames, _ = rows.shape
    statistics = np.zeros((2, size, num_frames)) if is_logits else _NO_STATISTICS
    checks = None if is_logits else _checks(call.unnormalized)
    sums = np.empty((size, num_frames) if checks else (0, 0))
    sums.fill(1.0)
    shares = _shares(call, problem)
    rest = np.array(shares), call.memory_budget
    log_z = module.log_probs(problem, rows, statistics, sums, checks or Checks(), out, *rest).tolist()
    if any(map(math.isnan, log_z)):  # as an illegal label gives, among others
        check_labels(problem)
    if checks and _is_far(sums, scores.dtype):
        if checks.every > 1:  # of all rows the worst is named
            module.log_probs(problem, rows, statistics, sums, Checks(), out[:0], *rest)
        _refuse_sums(sums, scores, call.unnormalized, call.names)
    losses = [0.0 - z for z in log_z]  # -z would be -0 for a probability of one
    if problem.is_probability and any(loss < 0.0 for loss in losses):
        # A probability of one may come out above one by what rounding does to each frame; its loss is then 0.
        rounding = _rounding(scores, problem).tolist()
        losses = [0.0 if -most <= loss < 0.0 else loss for loss, most in zip(losses, rounding, strict=True)]
    loss = reduce_on_host(losses, shares, call.reduction, call.zero_infinity, _wide(scores))
    if call.with_gradient and _is_batch_first(scores):
        gradient = gradient.transpose(0, 1)
    return CtcLosses(loss, gradient)


def _rounding(scores: Tensor, problem: CtcProblem) -> Floats:
    """How far below 0 rounding may take the loss of a probability, [N]."""
    return np.asarray(8.0 * torch.finfo(scores.dtype).eps * (problem.frame_counts + 1.0))


def _shares(call: CtcCall, problem: CtcProblem) -> list[float]:
    """[N]: what each sequence's loss is multiplied by."""
    counts, is_mean = problem.label_counts.tolist(), call.reduction == "mean"
    return [1.0 / (max(count, 1) * len(counts)) if is_mean else 1.0 for count in counts]


def _reduced(call: CtcCall) -> tuple[Tensor, cuda.Reduced]:
    """On a device: the loss, which `Reduced` has to be given for."""
    scores = call.scores
    return room_for_loss(scores, scores.shape[1], call.reduction, call.zero_infinity, _wide(scores))


def _wide(scores: Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def _fake_ctc(call: CtcCall) -> CtcLosses:
    scores, size, with_gradient = call.scores, call.scores.shape[1], call.with_gradient
    loss = scores.new_empty((size,) if call.reduction == "none" else (), dtype=_wide(scores))
    gradient = scores.new_empty(scores.shape if with_gradient else (0, 0, 0), dtype=_wide(scores))
    if with_gradient and _is_batch_first(scores):
        gradient = gradient.transpose(0, 1).contiguous().transpose(0, 1)
    return CtcLosses(loss, gradient)


def _ctc_gradient(
    factor: Tensor, gradient: Tensor, scores: Tensor, is_last: bool
) -> dict[str, Tensor | None]:
    if not factor.ndim:
        return {"scores": scale_rows(gradient, factor, scores, is_last)}
    return {"scores": scale_rows(gradient.transpose(0, 1), factor, scores, is_last).transpose(0, 1)}


ctc = Operator(_ctc, _fake_ctc, _ctc_gradient, by={"scores": "with_gradient"})


def _forgiving(call: CtcCall, problem: CtcProblem) -> CtcLosses:
    """On a device, where such targets have graphs of their own."""
    scores, with_gradient = call.scores, call.with_gradient
    wide = scores.detach() if scores.element_size() >= 4 else scores.detach().float()
    log_probs = normalized = wide.log_softmax(2) if call.inputs == "logits" else wide
    if call.log_priors.numel():
        log_probs = normalized - call.log_priors.to(wide)
    shares = beside(torch.from_numpy(np.array(_shares(call, problem))), scores)
    rest = call.backend, with_gradient, call.memory_budget
    log_prob, gradient = forgiving_ctc(log_probs, problem, *rest, shares)
    if with_gradient and call.inputs == "logits":  # rows of frames that count sum to minus the share
        lengths = beside(torch.from_numpy(problem.frame_counts), scores)
        real = torch.arange(len(scores), device=scores.device)[:, None] < lengths
        real &= torch.isfinite(log_prob)
        softmax = normalized.exp() * shares.to(wide.dtype).view(-1, 1)
        gradient += torch.where(real.unsqueeze(2), softmax, 0.0)
    loss, reduced = _reduced(call)
    device, found = cuda.find_device(scores), cuda.view(log_prob)
    rounding = float(_rounding(scores, problem).max(initial=0.0)) if problem.is_probability else 0.0
    cuda.reduce_losses(device, found, True, len(log_prob), cuda.view(shares), reduced, rounding)
    return CtcLosses(loss, gradient)


def forgiving_ctc(
    scores: Tensor,
    problem: CtcProblem,
    backend: Any,
    with_gradient: bool,
    memory_budget: float | None,
    shares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """log Z [N], float64, of log-probabilities [T, N, C]; derivatives of -log Z times shares [N], empty unless asked for.

    By the graphs of `fsachain.graph.ctc` over the columns blank, labels and star: a target reads few classes and the star,
    which is a log-sum over all units of a frame. Only these columns are made, and their gradient goes back to the scores in
    one buffer: that of the star is spread over the units by their share of its sum.
    """
    (size, most), forgive = problem.labels.shape, problem.forgive
    classes = np.column_stack([np.full(size, problem.blank), problem.labels])
    tables = []
    for labels, count in zip(problem.labels, problem.label_counts.tolist(), strict=True):
        columns = np.arange(count + 1)
        graph = target_graph(labels[:count], columns, columns, most + 1, problem.topology, forgive)
        tables.append(compile_table(graph, most + 2))
    batch = TableBatch.pack(tables)
    index = beside(torch.from_numpy(classes), scores).expand(len(scores), -1, -1)
    star = _star(scores, problem.blank)
    mean = math.log(max(1, problem.num_classes - 1)) if forgive.star == "mean" else 0.0
    read = (
        torch.cat([scores.gather(2, index), (star - mean).unsqueeze(2)], dim=2).transpose(0, 1).contiguous()
    )
    occupancy = new_buffer(read, with_gradient)
    call = bind(batch, read, problem.frame_counts, backend, memory_budget)
    log_prob = call.add_occupancy(batch, 0.0, shares, occupancy).log_prob
    if not with_gradient:
        return log_prob, scores.new_empty((0, 0, 0))
    taken = occupancy.neg_().transpose(0, 1)
    stars = taken[:, :, -1:]  # 0 in padding and in sequences without paths, where scores may be anything
    found = (scores - star.unsqueeze(2)).exp_().mul_(stars).masked_fill_(stars == 0, 0.0)
    found[:, :, problem.blank] = 0.0
    return log_prob, add_at(found, index, taken[:, :, :-1])


def _star(scores: Tensor, blank: int) -> Tensor:
    """The log-sum over all classes but the blank [T, N]."""
    parts = [part.logsumexp(2) for part in (scores[:, :, :blank], scores[:, :, blank + 1 :]) if part.shape[2]]
    return torch.stack(parts).logsumexp(0) if parts else scores.new_full(scores.shape[:2], -math.inf)


def _new_gradient(scores: Tensor, wanted: bool) -> Tensor:
    """Uninitialised, as contiguous as the scores, [T, N, C] or batch first; empty where none is wanted."""
    if not wanted:
        return scores.new_empty((0, 0, 0), dtype=_wide(scores))
    return new_like(scores.transpose(0, 1) if _is_batch_first(scores) else scores, "empty")


_NO_PRIORS = np.empty(0)
_NO_STATISTICS = np.empty((0, 0, 0))
_NONE = torch.empty(0)


def _is_batch_first(scores: Tensor) -> bool:
    """Scores [T, N, C] of which those of one sequence lie together."""
    return not scores.is_contiguous() and scores.transpose(0, 1).is_contiguous()


def _rows(scores: Tensor) -> Rows:
    """The scores [T, N, C] as float32 or float64 rows; a copy only where their type or order asks for one."""
    num_frames, size, num_classes = scores.shape
    wide = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    strides = num_classes, size * num_classes
    if _is_batch_first(wide):
        strides, wide = (num_frames * num_classes, num_classes), wide.transpose(0, 1)
    flat = wide.contiguous().numpy(force=True).reshape(-1)
    return Rows(flat, strides, (size, num_frames, num_classes))


def _is_far(sums: Floats, dtype: torch.dtype) -> bool:
    """Whether a sum misses one, by more than rounding of the scores."""
    most, flat = most_off(dtype), sums.reshape(-1)
    if not flat.size:
        return False
    # A NaN is the least and the largest.
    return not (flat[flat.argmin()] >= 1.0 - most and flat[flat.argmax()] <= 1.0 + most)


def _checks(unnormalized: str) -> Checks | None:
    """Which rows are looked at, None for none."""
    if unnormalized == "error":
        return Checks()
    if unnormalized == "ignore" or _warned_under is warnings.filters:
        return None
    return Checks(_TURNS, next(_calls) % _TURNS)


def _refuse_sums(sums: Floats, scores: Tensor, mode: str, names: str) -> None:
    """Warn or raise with the row that is farthest from a sum of one; padding counts as one."""
    global _warned_under
    if mode == "warn" and _warned_under is warnings.filters:
        return
    n, t = np.unravel_index(int(np.abs(sums - 1.0).argmax()), sums.shape)  # the first NaN, if there is one
    total = float(scores[int(t), int(n)].double().exp().sum())
    message = (
        f"{name_of(names, int(n))}: the probabilities of frame {t} sum to {total:.6g}; expected 1: log_probs must be the "
        "output of log_softmax over all classes; for scores that are not normalized pass inputs='logits'; if this is meant, "
        "pass unnormalized='ignore'"
    )
    if mode == "error":
        raise DataError(message)
    _warned_under = warnings.filters  # once, and again where someone set filters anew
    warn(message, NormalizationWarning)


def _check_sums_there(scores: Tensor, lengths: Tensor, names: str) -> None:
    """Wait for the device and raise where a real frame's probabilities do not sum to one."""
    frames = torch.arange(scores.shape[0], device=scores.device)[:, None] < lengths.to(scores.device)
    sums = torch.where(frames, scores.detach().double().exp().sum(dim=2), 1.0)
    on_host = sums.T.cpu().numpy()
    if _is_far(on_host, scores.dtype):
        _refuse_sums(on_host, scores.detach(), "error", names)


def _on_device(call: CtcCall, problem: CtcProblem) -> CtcLosses:
    """The host waits for lengths and priors that are on the device, and for nothing else.

    Labels are checked if the host has them; else they stay where they are, and an illegal one makes its loss NaN.
    """
    scores, is_logits = call.scores, call.inputs == "logits"
    device = cuda.find_device(scores)
    gradient = _new_gradient(scores, call.with_gradient)
    if call.with_gradient and _is_batch_first(scores):
        gradient = gradient.transpose(0, 1)
    priors = problem.log_prior if problem.log_prior.size else None
    loss, reduced = _reduced(call)
    shares = np.array(_shares(call, problem))
    cuda_ctc.ctc(
        device,
        cuda.view(scores.detach().transpose(0, 1)),
        cuda_ctc.Targets(_labels(call.targets, scores, problem), problem.label_counts),
        problem.frame_counts,
        cuda_ctc.Task(problem.blank, is_logits, problem.topology, priors, problem.delay_penalty, shares),
        cuda.view(gradient.transpose(0, 1)) if len(gradient) else None,
        call.memory_budget,
        reduced=reduced,
    )
    return CtcLosses(loss, gradient)


def _is_beside(targets: Tensor, scores: Tensor) -> bool:
    """Labels are where the scores are; the host does not know them."""
    return targets.device == scores.device and targets.device.type != "cpu"


def _known_labels(call: CtcCall) -> Tensor:
    """The labels on the host; where it does not know them, legal ones in their place."""
    if not _is_beside(call.targets, call.scores):
        return call.targets
    some = as_tensor((call.blank + 1) % max(1, call.scores.shape[2]), call.targets.dtype)
    return some.expand(call.targets.shape)


def _labels(targets: Tensor, scores: Tensor, problem: CtcProblem) -> DeviceArray | npt.NDArray[np.int64]:
    if _is_beside(targets, scores):
        known = targets.dtype in (torch.int32, torch.int64)
        return cuda.view(targets if known else targets.to(torch.int64))
    return problem.labels


Inputs = Literal["log_probs", "logits"]
Reduction = Literal["none", "mean", "sum"]
Unnormalized = Literal["warn", "error", "ignore"]


def ctc_loss(
    log_probs: Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
    *,
    inputs: Inputs = "log_probs",
    topology: CtcTopology = "standard",
    log_priors: Tensor | None = None,
    delay_penalty: float = 0.0,
    unnormalized: Unnormalized = "warn",
    forgive: Forgiveness | None = None,
    names: Sequence[str] | None = None,
    backend: BackendName = "auto",
    memory_budget: float | None = None,
) -> Tensor:
    """Minus the log-probability of each target, summed over all ways to spell it: -log Z of equation (4).

    The first seven arguments are those of `torch.nn.functional.ctc_loss`, with the same values and, through `log_softmax`,
    the same gradients. See docs/losses.md for what the gradient of log-probabilities is, and for the traps.

    Args:
        log_probs: [T, N, C], or [T, C] for one sequence; float16, bfloat16, float32 or float64; outputs of `log_softmax`,
            or logits (see `inputs`). Frames beyond a sequence's length may hold anything.
        targets: [N, S] padded with anything, or all labels one after another; [S] for one sequence. Integers in [0, C) other
            than the blank.
        input_lengths, target_lengths: [N] integers, tensors or lists; of one sequence a number.
        blank: the blank's class.
        reduction: "none", "sum" over sequences, or "mean": each loss over its target's length (at least 1), then the mean.
        zero_infinity: a loss of a sequence that no path can spell is 0 instead of infinite. Its gradient is 0 either way.
        inputs: "logits": scores that are not normalized; the log-softmax is part of the loss.
        topology: which frame sequences spell a target: see `fsachain.graph.ctc`.
        log_priors: [C], taken off the scores: the logs of label priors times a scale (Huang et al., ICASSP 2024, for
            alignments that are less peaky). The loss is then not that of a probability and may be negative.
        delay_penalty: d in nats for each frame; a label's first frame t gains d ((T_n - 1) / 2 - t), so that late labels
            cost (Yao et al., ICASSP 2023). Part of the reported loss, which may then be negative.
        unnormalized: what happens if probabilities of a frame do not sum to one: "warn" looks at a third of the frames,
            another one in the next call, and gives one `NormalizationWarning`, "error" looks at all, "ignore" at none. On a
            device "warn" does nothing, since the host would have to wait, and "error" waits.
        forgive: penalties for labels that are wrong, too many or missing (see docs/weak_transcripts.md); None: there are
            none. There is no delay penalty then; on a device graphs are made for each call, and its labels waited for.
        names: [N] utterances, for messages.
        backend: "auto" follows the scores' device; "cpu" and "reference" take scores of the host.
        memory_budget: bytes for the alphas of all frames, as for `forward_backward`; no bit of the result depends on it.

    Returns:
        A scalar, or [N] for "none" (a scalar for one sequence); float64 for float64 scores, else float32. A sequence that is
        too short for its target has the loss inf, one with NaN among its scores NaN; both have zero gradient. Never negative
        for normalized scores, but for equal labels in a row under "compact". Differentiating twice raises.

    Raises:
        ShapeError: an argument of the wrong shape or dtype, a length out of range, no sequences.
        DataError: a label that is the blank or no class, named with its utterance; or unnormalized="error".
        ConfigError: an unknown option.
        BackendUnavailable: scores on a device for which there is no backend.
    """
    scores = _check_scores(log_probs, inputs, reduction, unnormalized)
    padded, known = as_labels(targets, "targets")
    labels = _on_host_or_beside(padded, "targets", scores)
    counts = _lengths(target_lengths, "target_lengths", scores)
    if known is not None:
        check_counts(known, counts, "targets", "target_lengths")
    check_budget(memory_budget)
    labels = labels.unsqueeze(0) if log_probs.ndim == 2 and labels.ndim == 1 else labels
    frames = _lengths(input_lengths, "input_lengths", scores)
    priors = _NONE if log_priors is None else as_tensor(log_priors, name="log_priors")
    check_constant(priors, "log_priors")
    joined = joined_names(names, scores.shape[1])
    penalties: list[float] = []
    star, most_left_out = "mean", 0
    if forgive is not None:
        check_forgiveness(forgive)
        if is_set(delay_penalty):
            raise ConfigError(f"delay_penalty = {delay_penalty} with forgive; expected 0")
        penalties = [forgive.substitution, forgive.insertion, forgive.deletion]
        star, most_left_out = forgive.star, forgive.most_left_out
    delay = check_penalty("delay_penalty", delay_penalty)
    given = scores, labels, frames, counts, priors, blank, inputs, topology, delay, unnormalized
    rest = joined, backend, reduction, zero_infinity, wants_gradient(scores), memory_budget
    loss: Tensor = ctc(CtcCall(*given, *rest, penalties, star, most_left_out)).loss
    return loss[0] if reduction == "none" and log_probs.ndim == 2 else loss


_OPTIONS = [n for n in list(inspect.signature(ctc_loss).parameters)[4:] if n not in ("log_priors", "names")]


class CTCLoss(nn.Module):
    """`ctc_loss` as a module; options are its arguments of the same names.

    Attributes:
        log_priors: a buffer [C], or None.
    """

    log_priors: Tensor | None

    def __init__(
        self,
        blank: int = 0,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
        *,
        inputs: Inputs = "log_probs",
        topology: CtcTopology = "standard",
        log_priors: Tensor | None = None,
        delay_penalty: float = 0.0,
        unnormalized: Unnormalized = "warn",
        forgive: Forgiveness | None = None,
        backend: BackendName = "auto",
        memory_budget: float | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("log_priors", log_priors)
        given = locals()
        self._options = {name: given[name] for name in _OPTIONS}

    def extra_repr(self) -> str:
        """Options, for `repr`."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options.items())

    def forward(
        self,
        log_probs: Tensor,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        names: Sequence[str] | None = None,
    ) -> Tensor:
        """The loss of a batch; arguments, result and errors as for `ctc_loss`."""
        return ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            log_priors=self.log_priors,
            names=names,
            **self._options,
        )


def _check_scores(log_probs: Tensor, inputs: str, reduction: str, unnormalized: str) -> Tensor:
    """The scores as [T, N, C]."""
    refuse_jit_trace()
    check_choice(inputs, "inputs", ("log_probs", "logits"))
    check_choice(reduction, "reduction", REDUCTIONS)
    check_choice(unnormalized, "unnormalized", ("warn", "error", "ignore"))
    if not isinstance(log_probs, Tensor):
        raise ShapeError(f"log_probs is a {type(log_probs).__name__}; expected a torch tensor")
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"log_probs has shape {list(log_probs.shape)}; expected [T, N, C] or [T, C]")
    if not log_probs.is_floating_point():
        raise ShapeError(
            f"log_probs has dtype {log_probs.dtype}; expected float16, bfloat16, float32 or float64"
        )
    return log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)


def _on_host_or_beside(values: Any, name: str, scores: Tensor) -> Tensor:
    if isinstance(values, Tensor) and values.is_cpu:
        return values
    tensor = as_tensor(values, name=name)
    if tensor.device.type != "cpu" and tensor.device != scores.device:
        raise ShapeError(
            f"{name} is on {tensor.device}, log_probs on {scores.device}; expected one device, or {name} on the host"
        )
    return tensor


def _lengths(values: Any, name: str, scores: Tensor) -> Tensor:
    tensor = _on_host_or_beside(values, name, scores)
    return tensor.reshape(1) if tensor.ndim == 0 else tensor
