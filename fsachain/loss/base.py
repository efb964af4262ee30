"""What the losses of a numerator and a denominator share: arguments, penalties, the cross-entropy branch, the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.backends import arrays, dispatch
from fsachain.backends.arrays import check_budget
from fsachain.backends.cuda import backend as cuda
from fsachain.batch import Graphs, TableBatch, find_batch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import (
    BackendUnavailable,
    ConfigError,
    ShapeError,
    as_number,
    brief,
    check_finite,
    counted,
    warn_once,
)
from fsachain.loss.autograd import (
    Operator,
    as_tensor,
    beside,
    check_constant,
    is_watched,
    new_buffer,
    packed,
    scale_rows,
    wants_gradient,
)
from fsachain.loss.registered import number_option

# Per frame, for every excluded sequence: Kaldi's figure, so that the exclusion shows in the log.
EXCLUDED_OBJF = -10.0
_NONE = torch.zeros(0)
_NO_KEYS = torch.zeros(0, dtype=torch.int64)


class ObjectiveWarning(UserWarning):
    """A batch teaches nothing, or its numerators outweigh the denominator: see `LFMMILoss`."""


@dataclass(frozen=True, kw_only=True)
class LossRecord:
    """Detached float64 results of one batch, where the scores live; sums over the batch are 0-dimensional tensors.

    Attributes:
        objf: the objective in nats (`MBRRecord`: in frames), larger is better, with a value for each excluded sequence.
        objf_ok: the same over ok sequences only: what the loss uses.
        num_log_prob, den_log_prob: [N] log Z of numerator and denominator; -inf: impossible, NaN: illegal score.
        l2_term, out_of_range_term: the penalties, <= 0, already times their factors.
        xent_objf: sum_n w_n sum_t,p occupancy_num xent_log_probs, before `xent_regularize`; 0 without that branch.
        consistency_term: `LFMMILoss` of two views of each utterance, <= 0, already times its factor; else 0.
        weight: sum_n w_n T_n in output frames, so that objf / weight is per frame; weight_ok: over ok sequences.
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
    consistency_term: Tensor
    weight: Tensor
    weight_ok: Tensor
    ok: Tensor
    batch: TableBatch

    __repr__ = brief

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


@dataclass(frozen=True, kw_only=True, repr=False)
class LFMMIRecord(LossRecord):
    """What `LFMMILoss` found; fields as in `fsachain.loss.base.LossRecord`.

    objf is sum_n w_n (num - s den) over ok sequences, and -10 w_n T_n for each excluded one. Where the loss boosts,
    `den_log_prob` is log Z of the boosted scores, so that objf may reach boost times the frames.
    """


@dataclass(frozen=True, kw_only=True, repr=False)
class MBRRecord(LossRecord):
    """What `MBRLoss` found; fields as in `fsachain.loss.base.LossRecord`.

    objf is sum_n w_n E_n[A]; an excluded sequence adds 0, as if it had no frame right.

    Attributes:
        expected_accuracy: [N] E_n[A], frames that a path of the denominator is expected to have right, in [0, T_n] but for
            rounding; -inf: impossible, NaN: illegal score.
    """

    expected_accuracy: Tensor


# In the operators of `LFMMILoss` and `MBRLoss` scores, frame weights and results live on one device, weights there or on the
# host, the others on the host; nothing waits for the device.

OUT_OF_RANGE = 30.0  # as in Kaldi: scores within +-30 are never penalised


class SequenceCall(NamedTuple):
    """Arguments of the operators.

    weights: w_n, float64 [N]; frame_weights: [N, T], or empty; denominator_keys: of a batch of each denominator, without
    stars; star_keys: with them, empty where there are none; denominator_of [N]: which of these a sequence
    has; the last two say which buffers of `Terms` are wanted.
    """

    nnet_output: Tensor
    lengths: Tensor
    weights: Tensor
    frame_weights: Tensor
    numerator_key: Tensor
    denominator_keys: Tensor
    star_keys: Tensor
    denominator_of: Tensor
    leaky_hmm_coefficient: float
    denominator_scale: float
    l2_regularize: float
    out_of_range_regularize: float
    boost: float
    consistency: float
    memory_budget: float | None
    with_gradient: bool
    with_numerator: bool


class Terms(NamedTuple):
    """The weighted sums of a batch over ok sequences; float64 but for ok and the buffers.

    total: objf and the three terms, divided unless the numerator was asked for, to which a cross-entropy is added first;
    the only result with a gradient. values [N]: what each sequence adds to objf, before its weight; not finite where it is
    not ok. sums: see `SUMS`. gradient [N, T, P]: d total / d nnet_output, not divided; numerator [N, T, P]: w_n times the
    numerator's occupancy; each is empty unless asked for. numbers [3, N]: see `placed_numbers`.
    """

    total: Tensor
    num_log_prob: Tensor
    den_log_prob: Tensor
    values: Tensor
    ok: Tensor
    sums: Tensor
    gradient: Tensor
    numerator: Tensor
    numbers: Tensor


# Sums over a batch, fields of `LossRecord`, as they lie in `Terms`; of a cross-entropy branch 0. The divisor is that of the
# objective in the loss: -weight_ok, and -1 where all are excluded, since every term is zero then, and so is its gradient.
SUMS = (
    "objf",
    "objf_ok",
    "l2_term",
    "out_of_range_term",
    "xent_objf",
    "consistency_term",
    "weight",
    "weight_ok",
    "divisor",
)


def fake_terms(call: SequenceCall) -> Terms:
    def new(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return call.nnet_output.new_empty(shape, dtype=dtype)

    size = call.nnet_output.shape[0]
    output = call.nnet_output
    buffers = new_buffer(output, call.with_gradient), new_buffer(output, call.with_numerator)
    ok = new(size, dtype=torch.bool)
    values = new(size), new(size), new(size)
    return Terms(new(), *values, ok, new(len(SUMS)), *buffers, new(3, size))


def terms_gradient(
    factor: Tensor, gradient: Tensor, nnet_output: Tensor, sums: Tensor, with_numerator: bool, is_last: bool
) -> dict[str, Tensor | None]:
    factor = factor if with_numerator else factor / sums[-1]
    return {"nnet_output": scale_rows(gradient, factor, nnet_output, is_last)}


class GradientCall(NamedTuple):
    """On a device: what `finish_there` left for the backward pass, which knows the factor [1]; divisor [1], or empty."""

    gradient: Tensor
    nnet_output: Tensor
    numbers: Tensor
    ok: Tensor
    frame_weights: Tensor
    l2_regularize: float
    out_of_range_regularize: float
    factor: Tensor
    divisor: Tensor

    def new(self) -> Tensor:
        return torch.empty_like(self.gradient, dtype=self.nnet_output.dtype)


def _finished_gradient(given: GradientCall) -> Tensor:
    return _finished_in(given, given.new())


def _finished_in(given: GradientCall, out: Tensor) -> Tensor:
    factors = given.l2_regularize, given.out_of_range_regularize, OUT_OF_RANGE
    device, each = cuda.find_device(given.nnet_output), given.frame_weights
    where = cuda.view(given.gradient), cuda.view(given.nnet_output.detach())
    numbers = cuda.view(given.numbers), cuda.view(given.ok)
    divisor = cuda.view(given.divisor) if given.divisor.numel() else None
    by_frame = cuda.view(each.double().contiguous()) if each.numel() else None
    cuda.finish_gradient(
        device, *where, *numbers, factors, by_frame, cuda.view(given.factor), divisor, cuda.view(out)
    )
    return out.detach()


_finished_apart = Operator(_finished_gradient, GradientCall.new)


def finished_gradient(
    factor: Tensor, sums: Tensor, with_numerator: bool, is_last: bool, **kept: Any
) -> dict[str, Tensor | None]:
    """As `terms_gradient`; on a device penalties and frame weights are the same pass as the factor.

    kept: the other fields of `GradientCall`, which the operator `needs`.
    """
    gradient, nnet_output = kept["gradient"], kept["nnet_output"]
    if arrays.home_of(gradient) != "cuda":
        return terms_gradient(factor, gradient, nnet_output, sums, with_numerator, is_last)
    divisor = sums[:0] if with_numerator else sums[-1:]
    call = GradientCall(**kept, factor=factor.double().reshape(1), divisor=divisor)
    if not is_last:
        return {"nnet_output": _finished_apart(call)}
    same = gradient.dtype == nnet_output.dtype
    return {"nnet_output": _finished_in(call, gradient if same else call.new())}


def placed_numbers(given: SequenceCall, batch: TableBatch, call: dispatch.Call) -> Tensor:
    """w_n, T_n and -s w_n, s the denominator's scale, on the device of the scores: float64 [3, N].

    Only weights on the host are checked to be finite and >= 0.
    """
    weights, scale = given.weights, -given.denominator_scale
    if not weights.is_cpu:
        return torch.stack([weights, call.place(call.lengths.astype(np.float64)), scale * weights])
    values = weights.numpy()
    bad = np.flatnonzero(~((values >= 0.0) & np.isfinite(values)))
    if bad.size:
        n = int(bad[0])
        raise ConfigError(f"weights[{n}] = {values[n]} ({batch.names[n]}); expected a finite number >= 0")
    numbers: Tensor = call.place(np.stack([values, call.lengths, scale * values]))
    return numbers


def by_denominator(
    given: SequenceCall,
    call: dispatch.Call,
    run: Callable[[TableBatch, dispatch.Call, Any, Tensor], tuple[Tensor, ...]],
    out: Tensor,
) -> tuple[Tensor, ...]:
    """The results [N] of `run` for the sequences of each denominator; adds derivatives to `out`.

    run(batch, call, at, out): one float64 tensor [L] for each result; derivatives are added to out [L, T, P]. `at` indexes
    the L of N sequences that these are, a slice where they are all.
    """
    which, results = given.denominator_of.numpy(), None
    for index, key in enumerate(given.denominator_keys.tolist()):
        chosen = np.flatnonzero(which == index)
        if not chosen.size:
            continue
        shared = TableBatch.share(find_batch(key).tables[0], len(chosen))
        if len(chosen) == len(which):
            return run(shared, call, slice(None), out)
        at = call.place(chosen)
        own = out.new_zeros((len(chosen), *out.shape[1:]) if len(out) else out.shape)
        found = run(shared, call.part(chosen), at, own)
        if len(out):
            out[at] += own
        results = results or tuple(value.new_empty(len(which)) for value in found)
        for result, value in zip(results, found, strict=True):
            result[at] = value
    return results or ()


def finish(
    given: SequenceCall,
    call: dispatch.Call,
    found: dict[str, Tensor],
    buffers: tuple[Tensor, Tensor],
    consistency_term: Tensor | None = None,
    excluded_objf: float = 0.0,
) -> Terms:
    """The terms of num_log_prob, den_log_prob, values and numbers, for scores of the host.

    The buffers, gradient and numerator, may be empty: rows of sequences that are not ok become 0, the penalties'
    derivatives are added to the gradient, and frame weights multiply it. excluded_objf: of a frame that is not ok.
    """
    (weights, frames, _), ok = found["numbers"], torch.isfinite(found["values"])
    gradient, numerator = buffers
    if given.with_gradient and not ok.any():
        _warn_of_nothing(given, found["num_log_prob"], found["den_log_prob"])
    for buffer in buffers:
        if len(buffer):
            buffer.numpy()[~ok.numpy()] = 0.0
    objf = torch.where(ok, weights * found["values"], 0.0).sum()
    penalties = objf.new_zeros(2)
    if given.l2_regularize or given.out_of_range_regularize:
        factors = given.l2_regularize, given.out_of_range_regularize, OUT_OF_RANGE
        penalties = call.add_penalties(torch.where(ok, weights, 0.0), factors, gradient)
    zero = objf.new_zeros(())
    consistency = zero if consistency_term is None else consistency_term
    if given.frame_weights.numel():
        real = real_frames(given.frame_weights, frames)
        for n, t in (~torch.isfinite(real)).nonzero()[:1].tolist():
            name = find_batch(int(given.numerator_key.item())).names[n]
            raise ConfigError(
                f"frame_weights[{n}, {t}] = {real[n, t].item()} ({name}); expected a finite number"
            )
        if len(gradient):
            gradient *= real.to(gradient.dtype).unsqueeze(2)
    each = weights * frames
    weight, weight_ok = each.sum(), torch.where(ok, each, 0.0).sum()
    with_excluded = objf + excluded_objf * (weight - weight_ok)
    divisor = -torch.where(weight_ok > 0, weight_ok, 1.0)
    total = objf + penalties.sum() + consistency
    sums = with_excluded, objf, *penalties, zero, consistency, weight, weight_ok, divisor
    return Terms(
        total=total if given.with_numerator else total / divisor + 0.0,  # 0 and not -0
        ok=ok,
        sums=torch.stack(sums),
        gradient=gradient,
        numerator=numerator,
        **found,
    )


def _warn_of_nothing(given: SequenceCall, num: Tensor, den: Tensor) -> None:
    names, frames = find_batch(int(given.numerator_key.item())).names, int(given.lengths[0])
    without = "numerator" if torch.isneginf(num[0]) else "denominator" if torch.isneginf(den[0]) else ""
    why = (
        f"the {without} has no path of {counted(frames, 'frame')}"
        if without
        else "NaN or +inf among its scores"
    )
    every = "the only sequence" if len(names) == 1 else f"all {counted(len(names), 'sequence')}"
    warn_once(
        "nothing",
        f"the loss is 0 and has no gradient: {every} of the batch had to be left out ({names[0]}: {why}); "
        "lengths are frames of nnet_output, and last_record.excluded names what was left out",
        ObjectiveWarning,
    )


def _warn_of_no_branch(xent_regularize: float) -> None:
    warn_once(
        "branch",
        f"xent_regularize = {xent_regularize} and no xent_log_probs: the loss has no cross-entropy in it. Pass the "
        "log-softmax output of a second head, or leave the option at 0",
        ObjectiveWarning,
    )


def _warn_of_no_log_probs(xent_objf: Tensor, weight: Tensor) -> None:
    if torch.compiler.is_compiling() or is_watched() or arrays.home_of(xent_objf) != "cpu":
        return
    value = xent_objf.item()
    if value > 1e-3 * weight.item():  # and not what rounding leaves of probabilities of one
        warn_once(
            "xent",
            f"the cross-entropy branch has an objective of {value:.6g}, above 0, as no log-probabilities have; expected "
            "xent_log_probs to be the log-softmax output of a second head",
            ObjectiveWarning,
        )


def finish_there(
    given: SequenceCall,
    call: dispatch.Call,
    found: dict[str, Tensor],
    buffers: tuple[Tensor, Tensor],
    consistency_term: Tensor | None = None,
    excluded_objf: float = 0.0,
    rounding: tuple[float, float] = (0.0, 0.0),
) -> Terms:
    """As `finish`, on a device, of numerators and denominators, without values.

    What is done to the gradient is left to `finished_gradient`.
    """
    gradient, numerator = buffers
    device, num, den = cuda.find_device(call.scores), found["num_log_prob"], found["den_log_prob"]
    sums, total = num.new_empty(len(SUMS)), num.new_empty(())
    values, ok = torch.empty_like(num), torch.empty_like(num, dtype=torch.bool)
    out = cuda.LossTerms(*map(cuda.view, (values, ok, sums, total)))
    cuda.loss_terms(
        *(device, cuda.view(call.scores), int(call.lengths.max(initial=0)), cuda.view(found["numbers"])),
        *((cuda.view(num), cuda.view(den)), given.denominator_scale, excluded_objf),
        (given.l2_regularize, given.out_of_range_regularize, OUT_OF_RANGE),
        None if consistency_term is None else cuda.view(consistency_term),
        not given.with_numerator,
        out,
        rounding=rounding,
    )
    if len(numerator):
        cuda.clear_rows(device, cuda.view(numerator), out.ok)
    return Terms(total, values=values, ok=ok, sums=sums, gradient=gradient, numerator=numerator, **found)


def real_frames(values: Tensor, frames: Tensor) -> Tensor:
    """Values [N, T] with 0 beyond the lengths `frames` [N], where they may hold anything."""
    times = torch.arange(values.shape[1], device=values.device)
    return torch.where(times < frames.view(-1, 1), values, 0.0)


Record = TypeVar("Record", bound=LossRecord)


def check_factor(name: str, value: float) -> float:
    """A finite number >= 0; for the leaky-HMM coefficient at most 1."""
    if name == "leaky_hmm_coefficient" and as_number(name, value) > 1.0:
        raise ConfigError(f"{name} = {value}; expected a number in [0, 1]")
    return check_finite(name, value, least=0.0)


class SequenceLoss(nn.Module, Generic[Record]):
    """-(objective + l2_term + out_of_range_term + xent_regularize xent_objf) / frames; a subclass has the objective.

    Attributes:
        last_record: what the last call found, None before the first.
    """

    last_record: Record | None
    leaky_hmm_coefficient = number_option("leaky_hmm_coefficient", check_factor)
    l2_regularize = number_option("l2_regularize", check_factor)
    out_of_range_regularize = number_option("out_of_range_regularize", check_factor)
    xent_regularize = number_option("xent_regularize", check_factor)
    denominator_scale = 1.0  # these three are options of `LFMMILoss`
    boost = 0.0
    consistency = 0.0
    _operator: ClassVar[Operator]  # from a `SequenceCall` to `Terms`
    _options_to_adjust: ClassVar[tuple[str, ...]] = (
        "leaky_hmm_coefficient",
        "l2_regularize",
        "out_of_range_regularize",
        "xent_regularize",
    )

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
        """Set up the loss; arguments and errors are those of `LFMMILoss`, which has two more."""
        super().__init__()
        self.denominators = (
            dict(denominator) if isinstance(denominator, Mapping) else {"denominator": denominator}
        )
        for name, graph in self.denominators.items():
            if not isinstance(graph, DenominatorGraph):
                raise ConfigError(f"{name} is a {type(graph).__name__}; expected a DenominatorGraph")
        widths = {graph.num_pdfs for graph in self.denominators.values()}
        if len(widths) != 1:
            raise ConfigError(
                f"denominators have {sorted(widths)} pdfs; expected one graph or more, all of one width"
            )
        if len({graph.without_star is None for graph in self.denominators.values()}) != 1:
            raise ConfigError("some denominators have a star and some have none; expected all or none")
        self.num_pdfs = widths.pop()
        self.leaky_hmm_coefficient = leaky_hmm_coefficient
        self.l2_regularize = l2_regularize
        self.out_of_range_regularize = out_of_range_regularize
        self.xent_regularize = xent_regularize
        check_budget(memory_budget)
        self.memory_budget = memory_budget
        self.last_record = None
        graphs = self.denominators.items()
        self._batches = [(graph.without_star or graph).batch(1, [name]) for name, graph in graphs]
        self._with_star = [graph.batch(1, [name]) for name, graph in graphs if graph.without_star]

    def adjust(self, **options: float) -> None:
        """Change options from the next call on, for instance the leak or a scale by a schedule.

        Nothing is prepared anew: tables hold the probabilities of a leak's targets, and the coefficient is a number of each
        call. Only from 0 to a positive leak or back is a denominator's layout made once more, the first time.

        Args:
            options: `leaky_hmm_coefficient`, `l2_regularize`, `out_of_range_regularize`, `xent_regularize`, and what else
                the loss documents, in the ranges that its constructor takes.

        Raises:
            ConfigError: an unknown name or a value out of range; nothing is changed then.
        """
        for name in options:
            if name not in self._options_to_adjust:
                raise ConfigError(
                    f"{name!r} is no option to adjust of {type(self).__name__}; expected one of "
                    f"{', '.join(self._options_to_adjust)}"
                )
        for name, value in options.items():
            check_factor(name, value)
        for name, value in options.items():
            setattr(self, name, float(value))

    def extra_repr(self) -> str:
        """Denominators and options, for `repr`."""
        return f"{', '.join(self.denominators)}; {counted(self.num_pdfs, 'pdf')}, leaky {self.leaky_hmm_coefficient}"

    def forward(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Graphs,
        weights: Any = None,
        frame_weights: Tensor | None = None,
        xent_log_probs: Tensor | None = None,
        denominator_of: Sequence[str] | None = None,
        views: int = 1,
    ) -> Tensor:
        """The loss of a batch, a float64 scalar.

        Args:
            nnet_output: [N, T, P], float16 to float64: the scores y, not normalised. Loss and record live on its device.
            lengths: [N] integers on the host: frames of each sequence.
            numerators: a `TableBatch`, or a list of N `Fsa`, `Numerator` or `TransitionTable`, packed here.
            weights: [N] w_n >= 0; None: all one. Only weights on the host are checked: a device is not waited for.
            frame_weights: [N, T] factors of the derivatives only, as Kaldi's deriv_weights; no value changes. Like `weights`
                they are constants, and refused where they want a gradient.
            xent_log_probs: [N, T, P] log-softmax output of the cross-entropy branch, on the same device.
            denominator_of: [N] names, needed where there are several denominators.
            views: 2: rows n and n + N / 2 are two views of one utterance, for losses with an option `consistency`.

        Raises:
            ShapeError: an argument of the wrong shape, or two views that differ in their lengths.
            ConfigError: an unknown denominator name, a negative weight, weights that want a gradient, or views that are
                neither 1 nor 2.
            BackendUnavailable: a device that cannot be used, or two devices.
        """
        given = nnet_output, lengths, numerators, weights, frame_weights, xent_log_probs, denominator_of
        loss, self.last_record = self._evaluate(*self._checked(*given, views), xent_log_probs)
        return loss

    @torch.no_grad()
    def objective(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Graphs,
        weights: Any = None,
        frame_weights: Tensor | None = None,
        xent_log_probs: Tensor | None = None,
        denominator_of: Sequence[str] | None = None,
    ) -> Record:
        """The record alone; arguments as for the call. Occupancies are made only where the values need them."""
        given = nnet_output, lengths, numerators, weights, frame_weights, xent_log_probs, denominator_of
        return self._evaluate(*self._checked(*given), xent_log_probs)[1]

    def _evaluate(
        self, batch: TableBatch, call: SequenceCall, xent_log_probs: Tensor | None
    ) -> tuple[Tensor, Record]:
        """The loss and the record."""
        terms = self._operator(call)
        loss, sums = terms.total, dict(zip(SUMS, terms.sums.unbind(), strict=True))
        divisor = sums.pop("divisor")
        if xent_log_probs is not None:
            xent_objf = _xent_objf(terms, xent_log_probs, call.frame_weights)
            _warn_of_no_log_probs(xent_objf, sums["weight"])
            loss = (loss + self.xent_regularize * xent_objf) / divisor + 0.0
            sums["xent_objf"] = xent_objf.detach()
        log_probs = {"num_log_prob": terms.num_log_prob, "den_log_prob": terms.den_log_prob}
        return loss, self._record(terms, **sums, **log_probs, ok=terms.ok, batch=batch)

    def _record(self, terms: Terms, **fields: Any) -> Record:
        """The record; fields are those of `LossRecord`."""
        raise NotImplementedError

    def _checked(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Graphs,
        weights: Any,
        frame_weights: Tensor | None,
        xent_log_probs: Tensor | None,
        denominator_of: Sequence[str] | None,
        views: int = 1,
    ) -> tuple[TableBatch, SequenceCall]:
        if not isinstance(nnet_output, Tensor):
            raise ShapeError(f"nnet_output is a {type(nnet_output).__name__}; expected a torch tensor")
        shape = list(nnet_output.shape)
        if len(shape) != 3 or shape[2] != self.num_pdfs:
            raise ShapeError(f"nnet_output has shape {shape}; expected [N, T, {self.num_pdfs}]")
        batch = packed(numerators, "numerators")
        if batch.size != shape[0]:
            raise ShapeError(
                f"numerators holds {counted(batch.size, 'graph')}; expected {shape[0]} as in nnet_output {shape}"
            )
        factors = _NONE if frame_weights is None else as_tensor(frame_weights, name="frame_weights")
        if frame_weights is not None and list(factors.shape) != shape[:2]:
            raise ShapeError(f"frame_weights has shape {list(factors.shape)}; expected {shape[:2]}")
        if xent_log_probs is not None and list(xent_log_probs.shape) != shape:
            raise ShapeError(f"xent_log_probs has shape {list(xent_log_probs.shape)}; expected {shape}")
        if xent_log_probs is not None and xent_log_probs.device != nnet_output.device:
            raise BackendUnavailable(
                f"xent_log_probs is on {xent_log_probs.device}; expected {nnet_output.device} as nnet_output"
            )
        if lengths is None:
            raise ShapeError(f"lengths is None; expected the frames of each sequence, {shape[:1]} integers")
        frames = as_tensor(lengths, name="lengths")
        if list(frames.shape) != shape[:1]:
            raise ShapeError(f"lengths has shape {list(frames.shape)}; expected {shape[:1]}")
        ones = torch.ones(shape[0], dtype=torch.float64, device="cpu")
        sequence_weights = ones if weights is None else as_tensor(weights, torch.float64, "weights")
        if list(sequence_weights.shape) != shape[:1]:
            raise ShapeError(f"weights has shape {list(sequence_weights.shape)}; expected {shape[:1]}")
        check_constant(factors, "frame_weights")
        check_constant(sequence_weights, "weights")
        is_without_branch = xent_log_probs is None and wants_gradient(nnet_output)
        if is_without_branch and not torch.compiler.is_compiling() and self.xent_regularize:
            _warn_of_no_branch(self.xent_regularize)
        if views not in (1, 2):
            raise ConfigError(f"views is {views!r}; expected 1 or 2")
        if shape[0] % views:
            raise ShapeError(
                f"views is 2 and the batch has {counted(shape[0], 'sequence')}; expected an even number"
            )
        return batch, SequenceCall(
            nnet_output,
            frames,
            sequence_weights,
            beside(factors, nnet_output) if factors.numel() else factors,
            torch.from_numpy(batch.key),
            torch.cat([torch.from_numpy(one.key) for one in self._batches]),
            torch.cat([torch.from_numpy(one.key) for one in self._with_star])
            if self._with_star
            else _NO_KEYS,
            self._denominator_indices(denominator_of, batch),
            self.leaky_hmm_coefficient,
            self.denominator_scale,
            self.l2_regularize,
            self.out_of_range_regularize,
            self.boost,
            0.0 if views == 1 else self.consistency,
            self.memory_budget,
            with_gradient=wants_gradient(nnet_output),
            with_numerator=xent_log_probs is not None,
        )

    def _denominator_indices(self, names: Sequence[str] | None, batch: TableBatch) -> Tensor:
        if names is None:
            if len(self.denominators) > 1:
                raise ConfigError(
                    f"denominator_of is None; expected one of {list(self.denominators)} for each sequence"
                )
            return torch.zeros(batch.size, dtype=torch.int64, device="cpu")
        if len(names) != batch.size:
            raise ShapeError(f"denominator_of has {counted(len(names), 'name')}; expected {batch.size}")
        index = {name: position for position, name in enumerate(self.denominators)}
        for n, name in enumerate(names):
            if name not in index:
                raise ConfigError(
                    f"denominator_of[{n}] = {name!r} ({batch.names[n]}); expected one of {list(index)}"
                )
        return as_tensor([index[name] for name in names])


def _xent_objf(terms: Terms, log_probs: Tensor, frame_weights: Tensor) -> Tensor:
    """Sum of numerator occupancy times log_probs; frame weights scale its derivative but not its value."""
    numerator = terms.numerator
    # Padding, where the occupancy is 0, may hold NaN; and 0 times -inf would be NaN as well.
    usable = torch.where(numerator != 0, log_probs.to(numerator.dtype), 0)
    value = (numerator * usable).sum(dtype=torch.float64)
    if not frame_weights.numel():
        return value
    factors = real_frames(frame_weights, terms.numbers[1]).to(numerator.dtype).unsqueeze(2)
    scaled = (numerator * factors * usable).sum(dtype=torch.float64)
    return scaled + (value - scaled).detach()
