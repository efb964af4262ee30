"""The transducer loss with the joiner inside: logits exist for a few frames at a time and are computed again in backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.backends import dispatch
from fsachain.backends.dispatch import BackendName
from fsachain.backends.grid_call import Grid
from fsachain.errors import ConfigError, ShapeError, integer
from fsachain.grid import TOPOLOGIES, GridBatch, RnntType, dense_boxes
from fsachain.loss import arguments
from fsachain.loss.autograd import (
    beside,
    first_only,
    is_batched,
    refuse_watchers,
)
from fsachain.loss.registered import is_in_forward_mode, refuse_forward_mode
from fsachain.loss.rnnt import RnntCall, arc_kinds, arc_scores, rnnt_call


def random_state(like: Tensor) -> tuple[Tensor, ...]:
    """The states of the random numbers of the host and of the device of `like`; nothing waits for the device."""
    states = [torch.get_rng_state()]
    return (*states, torch.cuda.get_rng_state(like.device)) if like.is_cuda else tuple(states)


def set_random_state(like: Tensor, states: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if like.is_cuda:
        torch.cuda.set_rng_state(states[1], like.device)


def random_kept(like: Tensor) -> AbstractContextManager[None]:
    """What is drawn inside changes nothing outside."""
    return torch.random.fork_rng([like.device] if like.is_cuda else [])


def precision_of(like: Tensor) -> Callable[[], AbstractContextManager[None]]:
    """The autocast of now, of the host and of the device of `like`, to be entered again, in any thread.

    Without a cache: weights that were cast where no gradient is made, or for a graph that is gone, would be taken for
    those of a graph that is to have one.
    """
    kinds = dict.fromkeys(("cpu", like.device.type))
    states = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, dtype, enabled in states:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    return again


Joiner = Callable[[Tensor, Tensor], Tensor]
_OUTSIDE = "it outside of fullgraph=True, torch.export, make_fx and torch.func, where rnnt_loss may stand"
_CHUNK_ENTRIES = 1 << 22  # logits of a chunk where the caller does not say its frames: 16 MB


class Setting(NamedTuple):
    """call: whose logits are encoder_out; of those of a chunk, see `_chunk_call`."""

    joiner: Joiner
    call: RnntCall
    chunk_frames: int | None
    backend: Grid
    precision: Callable[[], AbstractContextManager[None]]


def transducer_loss(
    encoder_out: Tensor,
    predictor_out: Tensor,
    joiner: Joiner,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    *,
    chunk_frames: int | None = None,
    parameters: Sequence[Tensor] | None = None,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: RnntType = "regular",
    zero_infinity: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """`rnnt_loss` of joiner(encoder_out, predictor_out), without ever holding all logits: memory is O(N T U).

    Args:
        encoder_out: [N, T, D]. Frames beyond logit_lengths are ignored.
        predictor_out: [N, U + 1, E].
        joiner: takes [N, frames, 1, D] and [N, 1, U + 1, E], returns logits [N, frames, U + 1, V] as an elementwise joiner
            does by broadcasting. It is called again in backward and must then do the same: random numbers (dropout) are
            repeated; statistics kept from call to call (batch normalisation) would count twice.
        chunk_frames: frames of a call; None: as many as give about four million logits. A joiner that draws random numbers
            is called frame by frame whatever this is, so that its draws do not depend on the chunks.
        parameters: tensors that the joiner depends on beside its arguments and that need a gradient; None: those of the
            module, where the joiner is one or a method of one.
        the others: as for `rnnt_loss`.

    Returns:
        float64. Differentiable once in encoder_out, predictor_out and the parameters; neither the loss nor the gradients
        depend on the chunks but for rounding.

    Raises:
        ShapeError: shapes that do not fit; also the joiner's.
        ConfigError: an option with an illegal value; a joiner that needs `parameters` and has none.
    """
    refuse_watchers("transducer_loss", _OUTSIDE)
    arguments.check_logits(encoder_out, "encoder_out", "[N, T, D]")
    arguments.check_logits(predictor_out, "predictor_out", "[N, U + 1, E]")
    arguments.check_beside(predictor_out, "predictor_out", encoder_out, "encoder_out")
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    expected = "1 or more, or None"
    if chunk_frames is not None and integer("chunk_frames", chunk_frames, expected=expected) < 1:
        raise ConfigError(f"chunk_frames = {chunk_frames}; expected {expected}")
    given = arguments.given(encoder_out, targets, logit_lengths, target_lengths)
    arguments.check_frames(given, list(encoder_out.shape), list(predictor_out.shape))
    # Backward reads targets and lengths again, of which the caller may have written over his own.
    given = given._replace(targets=arguments.own(given.targets))
    given = given._replace(frames=given.frames.clone(), labels=given.labels.clone())
    call = rnnt_call(
        encoder_out.detach(),
        given,
        TOPOLOGIES[rnnt_type],
        [blank, -1],
        delays=[0.0, arguments.check_penalty("delay_penalty", delay_penalty)],
        fastemit=arguments.check_fastemit("fastemit_lambda", fastemit_lambda),
        clamp=arguments.check_clamp("clamp", clamp),
        is_constrained=rnnt_type == "constrained",
        backend=backend,
    )
    setting = Setting(
        joiner, call, chunk_frames, dispatch.grid(encoder_out, backend), precision_of(encoder_out)
    )
    used = list(parameters or _parameters(joiner))
    if is_in_forward_mode():
        refuse_forward_mode([encoder_out, predictor_out, *used])
    if not used and torch.is_grad_enabled():
        _check_closed(setting, encoder_out, predictor_out)
    log_prob = _Named.apply(setting, encoder_out, predictor_out, *used)
    return arguments.reduce_losses(log_prob, reduction, zero_infinity, is_probability=not delay_penalty)


def _parameters(joiner: Joiner) -> list[Tensor]:
    module = joiner if isinstance(joiner, nn.Module) else getattr(joiner, "__self__", None)
    return [p for p in module.parameters() if p.requires_grad] if isinstance(module, nn.Module) else []


def _check_closed(setting: Setting, encoder_out: Tensor, predictor_out: Tensor) -> None:
    """Raise before anything is computed if the joiner, which is no module, depends on tensors that need a gradient."""
    with random_kept(encoder_out):
        logits = _join(setting, encoder_out.detach(), predictor_out.detach(), 0, min(1, encoder_out.shape[1]))
    _check_known(logits, [])


def _check_known(logits: Tensor, known: Sequence[Tensor]) -> None:
    """Raise if the joiner's output depends on tensors that need a gradient other than those known."""
    leaves = {id(tensor) for tensor in known}
    seen = {(tensor.grad_fn, tensor.output_nr) for tensor in known}
    nodes = [(logits.grad_fn, 0)] if logits.grad_fn is not None else []
    while nodes:
        node, _ = edge = nodes.pop()
        if edge in seen:
            continue
        seen.add(edge)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in leaves:
            raise ConfigError(
                f"joiner depends on a tensor of shape {list(leaf.shape)} that needs a gradient and is not one of its "
                "module's parameters; expected all of them as parameters=[...]"
            )
        nodes += [(below, index) for below, index in node.next_functions if below is not None]


def _real(values: Tensor, lengths: Tensor) -> Tensor:
    """Values [N, L, ..] with 0 beyond the lengths: padding may be NaN, and 0 times NaN is NaN."""
    real = torch.arange(values.shape[1], device=values.device) < lengths.view(-1, 1)
    return torch.where(real.unsqueeze(2), values, 0)


def _lengths(setting: Setting, like: Tensor) -> tuple[Tensor, Tensor]:
    """Frames and labels [N] of each sequence, where `like` lives."""
    return beside(setting.call.frames, like), beside(setting.call.labels, like)


def _join(setting: Setting, encoder: Tensor, predictor: Tensor, first: int, last: int) -> Tensor:
    with setting.precision():
        logits = setting.joiner(encoder[:, first:last].unsqueeze(2), predictor.unsqueeze(1))
    expected = [len(encoder), last - first, predictor.shape[1]]
    if logits.ndim != 4 or list(logits.shape[:3]) != expected:
        raise ShapeError(
            f"joiner returned shape {list(logits.shape)}; expected {expected} and the classes: "
            "its arguments are [N, frames, 1, D] and [N, 1, U + 1, E]"
        )
    return logits


def _chunk_call(setting: Setting, logits: Tensor, first: int) -> RnntCall:
    """Of the logits of frames `first` and on, without delays, which are those of all frames."""
    call, width = setting.call, logits.shape[3]
    blank, *others = call.classes
    return call._replace(
        logits=logits.detach(),
        frames=(call.frames - first).clamp(0, logits.shape[1]),
        classes=[arguments.class_index(blank, width, "blank"), *others],
        heads=[width, -1],
        delays=[0.0, 0.0],
    )


class _Scores(NamedTuple):
    """Scores [2, N, T, U + 1] of all chunks; statistics of each chunk's rows; frames of a chunk; random state before."""

    values: Tensor
    stats: list[Tensor]
    step: int
    state: tuple[Tensor, ...]


def _all_scores(setting: Setting, encoder: Tensor, predictor: Tensor) -> _Scores:
    state = random_state(encoder)
    frames, labels = encoder.shape[1], predictor.shape[1]
    with random_kept(encoder):
        logits = _join(setting, encoder, predictor, 0, min(1, frames))
        is_random = not all(map(torch.equal, random_state(encoder), state))
    step = 1 if is_random else setting.chunk_frames or max(1, _CHUNK_ENTRIES // max(1, logits.numel()))
    values = encoder.new_empty(2, len(encoder), frames, labels, dtype=torch.float64)
    stats = []
    for first in range(0, frames, step):
        last = min(first + step, frames)
        logits = _join(setting, encoder, predictor, first, last)
        _, _, cells, own = arc_scores(_chunk_call(setting, logits, first))
        stats.append(own)
        values[:, :, first:last] = cells.view(2, len(encoder), last - first, labels)
    _, delay = setting.call.delays
    if delay:
        middle = 0.5 * (setting.call.frames.view(-1, 1).double() - 1.0)
        late = beside(middle - torch.arange(frames, device=middle.device), encoder)
        values[1] += delay * late.unsqueeze(2)
    return _Scores(values, stats, step, state)


def _occupancies(setting: Setting, values: Tensor) -> Tensor:
    """log Z [N]; values give way to g, scaled as in (27)."""
    _, size, frames, labels = values.shape
    sizes = np.array(arguments.spans(setting.call))
    batch = GridBatch(arc_kinds(tuple(setting.call.arcs)), sizes, dense_boxes(size, 2, frames, labels))
    log_prob: Tensor = setting.backend.forward_backward(batch, values.view(-1))
    if setting.call.fastemit:
        values[1] *= 1.0 + setting.call.fastemit
    return log_prob


class _Chunks(torch.autograd.Function):
    """log Z [N]; not a custom operator, because those cannot take a function."""

    @staticmethod
    def forward(
        ctx: Any, setting: Setting, encoder_out: Tensor, predictor_out: Tensor, *parameters: Tensor
    ) -> Tensor:
        frames, labels = _lengths(setting, encoder_out)
        encoder = _real(encoder_out.detach(), frames)
        predictor = _real(predictor_out.detach(), labels + 1)
        scores = _all_scores(setting, encoder, predictor)
        log_prob = _occupancies(setting, scores.values)
        ctx.setting, ctx.drawn = setting, (scores.step, scores.state)
        ctx.save_for_backward(
            *(encoder_out, predictor_out, *parameters), log_prob, scores.values, *scores.stats
        )
        ctx.num_inputs = 2 + len(parameters)
        return log_prob.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if is_batched(gradient):
            raise RuntimeError(
                "transducer_loss has one gradient at a time; expected it outside of is_grads_batched, vectorize and vmap"
            )
        saved = ctx.saved_tensors  # which may be made again each time they are read
        inputs, (log_prob, values, *stats) = saved[: ctx.num_inputs], saved[ctx.num_inputs :]
        scores = _Scores(values, stats, *ctx.drawn)
        with torch.no_grad():
            found = _gradients(ctx.setting, scores, log_prob, inputs, gradient)
        pairs = zip(found, inputs, strict=True)
        return None, *(None if value is None else first_only(value, like) for value, like in pairs)


def _gradients(
    setting: Setting, scores: _Scores, log_prob: Tensor, inputs: Sequence[Tensor], gradient: Tensor
) -> list[Tensor | None]:
    """Those of the inputs: encoder_out, predictor_out and the parameters, None where none is wanted."""
    encoder_out, predictor_out, *parameters = inputs
    ok, (frames, labels) = torch.isfinite(log_prob), _lengths(setting, encoder_out)
    encoder = _real(encoder_out.detach(), frames * ok).requires_grad_()
    predictor = _real(predictor_out.detach(), (labels + 1) * ok).requires_grad_()
    wanted = [encoder, predictor, *(p for p in parameters if p.requires_grad)]
    totals = [torch.zeros_like(x) for x in wanted]
    weights = torch.where(ok, -gradient, 0).double()
    with random_kept(encoder):
        set_random_state(encoder, scores.state)
        for index, first in enumerate(range(0, encoder.shape[1], scores.step)):
            last = min(first + scores.step, encoder.shape[1])
            with torch.enable_grad():
                logits = _join(setting, encoder, predictor, first, last)
                if not first:
                    _check_known(logits, wanted)
            given = _chunk_gradient(setting, logits, first, scores, index, weights)
            parts = torch.autograd.grad(logits, wanted, given, allow_unused=True)
            for total, part in zip(totals, parts, strict=True):
                if part is not None:
                    total += part
    found = iter(totals[2:])
    return [totals[0], totals[1], *(next(found) if p.requires_grad else None for p in parameters)]


def _chunk_gradient(
    setting: Setting, logits: Tensor, first: int, scores: _Scores, index: int, weights: Tensor
) -> Tensor:
    """The gradient by the logits of one chunk, in their dtype."""
    call = _chunk_call(setting, logits, first)
    placed = arguments.make_rows(list(logits.shape), call)
    g = scores.values[:, :, first : first + logits.shape[1]].contiguous().view(2, -1)
    if call.is_constrained:
        g = g.clone()  # a view where there is one chunk
        setting.backend.release(placed, g)
    made = scores.stats[index], g, weights
    found: Tensor = setting.backend.gradient(placed, call.logits, *made, call.clamp)
    return found


_Named: Any = type("fsachain::transducer_loss", (_Chunks,), {})  # as torch.profiler shows it
