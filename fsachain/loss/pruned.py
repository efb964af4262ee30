"""Pruned transducer training (Kuang et al., Interspeech 2022), by the names and arguments of fast_rnnt and k2.

A loss whose joiner only adds tells which few labels matter at each frame; the joiner then runs on these alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import arrays
from fsachain.backends.cuda import backend as cuda
from fsachain.backends.cuda import grid as cuda_grid
from fsachain.backends.dispatch import BackendName
from fsachain.errors import ConfigError, ShapeError, integer
from fsachain.grid import TOPOLOGIES, RnntType
from fsachain.loss import arguments
from fsachain.loss.arguments import (
    check_beside,
    check_logits,
    check_topology,
    class_index,
    integers_there,
)
from fsachain.loss.autograd import Operator, add_at, beside, flush_gradient, flushed
from fsachain.loss.grid import check_arcs, check_boundary, mutual_information_recursion
from fsachain.loss.rnnt import rnnt_call, rnnt_losses

_lock = Lock()  # what is set is the process's: two threads must not keep what the other has set


def exact_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y of float32 or float64 [.., I, K] and [.., K, J], without autocast, TF32 or bfloat16 inside.

    A sum of probabilities that is off by a thousandth is a log-probability that is off by as much, at every node of a
    path.
    """
    with torch.autocast(x.device.type, enabled=False), _full_precision():
        return x @ y


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    with _lock:
        before = [(place, name, getattr(place, name)) for place, name, _ in _settings()]
        try:
            for place, name, exact in _settings():
                setattr(place, name, exact)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


def _settings() -> list[tuple[Any, str, Any]]:
    """Where torch keeps how exact products of float32 are, under which name, and the value for exact ones."""
    places = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    if hasattr(places[0], "fp32_precision"):  # since torch 2.9
        return [(place, "fp32_precision", "ieee") for place in places if place is not None]
    return [(places[0], "allow_tf32", False)]


# log sum_c exp(am[t, c] + lm[s, c]) for all pairs (s, t) is a product of matrices, exp(lm - max) by exp(am - max). Where am
# and lm disagree by more than the range of the type, its result is tiny and has lost what matters: those pairs are summed
# again one by one. The host looks for them; on a device a kernel does, so that nothing waits for it.

# What the product loses of a sum is below C times the least number of the type: nothing beside these.
_LEAST = {torch.float32: 1e-25, torch.float64: 1e-280}
_PAIRS = 1 << 21  # entries of the pairs that are summed again at once


def _parts(x: Tensor) -> Tensor:
    """exp(x - largest); the largest counts as 0 where all entries are -inf."""
    return (x - _largest(x)).exp_()


def _largest(x: Tensor) -> Tensor:
    largest = x.amax(dim=2, keepdim=True)
    return torch.where(largest == -torch.inf, 0, largest)


def _weak_pairs(sums: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices (n, s, t) of sums that cannot be trusted, in pieces."""
    for piece in torch.nonzero(~(sums > _LEAST[sums.dtype])).split(max(1, _PAIRS // max(1, width))):
        n, s, t = piece.unbind(1)
        yield n, s, t


def _real_frames(am: Tensor, boundary: Tensor) -> Tensor:
    """am [N, T, C] with 0 in the padding, contiguous."""
    frames = am.shape[1]
    if arrays.home_of(am) == "cpu" and not (boundary[:, 3] < frames).any():
        return am.contiguous()
    last = beside(boundary[:, 3:], am)
    return torch.where((torch.arange(frames, device=am.device) < last).unsqueeze(2), am, 0)


def _classes(symbols: Tensor, termination: int, frames: int) -> Tensor:
    """[N, T, S + 1]: which entries of am are read as they are."""
    index = torch.nn.functional.pad(symbols, (0, 1), value=termination)
    return index.unsqueeze(1).expand(-1, frames, -1)


class PairScores(NamedTuple):
    """rows [N, L + S + 1, T]: normalizers of am and the L rows of lm, then am of the symbols and of the termination symbol.

    sums [N, L, T]: of the product that the normalizers come from.
    """

    rows: Tensor
    sums: Tensor


def _pair_scores(am: Tensor, lm: Tensor, symbols: Tensor, boundary: Tensor, termination: int) -> PairScores:
    """Of am [N, T, C] and lm [N, L, C], both float32 or float64, and symbols [N, S]; boundary [N, 4] on the host."""
    am, lm = _real_frames(am, boundary), lm.contiguous()
    sums = exact_product(_parts(lm), _parts(am).transpose(1, 2)).contiguous()
    result = sums.log().add_(_largest(lm)).add_(_largest(am).transpose(1, 2))
    if arrays.home_of(am) == "cuda":
        view, least = cuda.view, _LEAST[sums.dtype]
        cuda_grid.pair_log_sums(cuda.find_device(am), view(am), view(lm), view(sums), least, view(result))
    else:
        for n, s, t in _weak_pairs(sums, am.shape[2]):
            result[n, s, t] = torch.logsumexp(am[n, t] + lm[n, s], dim=1)
    read = am.gather(2, _classes(symbols, termination, am.shape[1]))
    return PairScores(torch.cat([result, read.transpose(1, 2)], dim=1), sums)


def _fake_scores(am: Tensor, lm: Tensor, symbols: Tensor, *_: Any) -> PairScores:
    sizes = lm.shape[1] + symbols.shape[1] + 1, lm.shape[1]
    return PairScores(*(am.new_empty(am.shape[0], rows, am.shape[1]) for rows in sizes))


class PairGradient(NamedTuple):
    am: Tensor
    lm: Tensor


class PairGradientCall(NamedTuple):
    """What `pair_scores` has taken and returned, and factors [N, L + S + 1, T] of its rows."""

    am: Tensor
    lm: Tensor
    symbols: Tensor
    boundary: Tensor
    termination: int
    rows: Tensor
    sums: Tensor
    factors: Tensor


def _pair_gradient(call: PairGradientCall) -> PairGradient:
    """The sums over all rows of the factors times the derivatives by am and lm."""
    am, lm, sums = _real_frames(call.am, call.boundary), call.lm.contiguous(), call.sums
    factors, count = call.factors, lm.shape[1]
    pairs, read = factors[:, :count].contiguous(), factors[:, count:]
    am_parts, lm_parts = _parts(am), _parts(lm)
    shares = torch.where(sums > _LEAST[sums.dtype], pairs / sums, 0)
    by_am = exact_product(shares.transpose(1, 2), lm_parts).mul_(am_parts)
    by_lm = exact_product(shares, am_parts).mul_(lm_parts)
    if arrays.home_of(am) == "cuda":
        view, least = cuda.view, _LEAST[sums.dtype]
        given = view(am), view(lm), view(sums), least, view(call.rows[:, :count].contiguous()), view(pairs)
        cuda_grid.add_pair_gradient(cuda.find_device(am), *given, view(by_am), view(by_lm))
    else:
        _add_weak_pairs(am, lm, sums, pairs, by_am, by_lm)
    add_at(by_am, _classes(call.symbols, call.termination, am.shape[1]), read.transpose(1, 2))
    unused = (factors == 0).flatten(1).all(dim=1)  # a sequence that is left out may hold NaN
    if arrays.home_of(am) == "cuda" or unused.any():
        by_am, by_lm = (x.masked_fill_(unused.view(-1, 1, 1), 0) for x in (by_am, by_lm))
    return PairGradient(flushed(by_am), flushed(by_lm))


def _add_weak_pairs(
    am: Tensor, lm: Tensor, sums: Tensor, factors: Tensor, by_am: Tensor, by_lm: Tensor
) -> None:
    for n, s, t in _weak_pairs(sums, am.shape[2]):
        logits = am[n, t] + lm[n, s]
        factor = factors[n, s, t].unsqueeze(1)
        # Rows of -inf alone have no softmax, and no factor either.
        single = torch.where(factor == 0, 0, logits.softmax(dim=1) * factor)
        by_am.index_put_((n, t), single, accumulate=True)
        by_lm.index_put_((n, s), single, accumulate=True)


def _fake_gradient(call: PairGradientCall) -> PairGradient:
    like = call.am, call.lm
    return PairGradient(*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in like))


pair_gradient = Operator(_pair_gradient, _fake_gradient)


def _scores_gradient(factor: Tensor, **kept: Any) -> dict[str, Tensor | None]:
    found: PairGradient = pair_gradient(PairGradientCall(**kept, factors=factor))
    return {"am": found.am, "lm": found.lm}


pair_scores = Operator(
    *(_pair_scores, _fake_scores, _scores_gradient, PairGradientCall._fields[:-1]),
    by={"am": None, "lm": None},
)


Pair = tuple[Tensor, Tensor]


class Simple(NamedTuple):
    """Checked arguments: lm [N, S + 1, C] and am [N, T, C], float32 or float64, and more beside these.

    symbols: -1 where one of a device is no class; boundary: on the host; last [N, 2]: s_end and t_end.
    """

    am: Tensor
    lm: Tensor
    symbols: Tensor
    boundary: Tensor
    termination: int
    last: Tensor
    rnnt_type: RnntType
    delay_penalty: float


def _checked_symbols(symbols: Tensor, boundary: Tensor, labels: int, width: int) -> Tensor:
    """The symbols [N, S] with padding of 0.

    An operator, because what is wrong with them is known only when it runs: a symbol of the host that is no class of `width`
    raises, one of a device becomes -1.
    """
    real = beside(torch.arange(labels, device=boundary.device) < boundary[:, 2:3], symbols)
    wrong = real & ((symbols < 0) | (symbols >= width))
    if not symbols.is_cpu:
        return torch.where(wrong, -1, torch.where(real, symbols, 0))
    for n, u in np.argwhere(wrong.numpy()).tolist():
        raise ShapeError(f"symbols[{n}, {u}] = {int(symbols[n, u])}; expected a class, 0 to {width - 1}")
    return torch.where(real, symbols, 0)


checked_symbols = Operator(_checked_symbols, lambda symbols, *_: torch.empty_like(symbols))


def check_symbols(symbols: Tensor, boundary: Tensor, shape: tuple[int, int], width: int) -> Tensor:
    """The symbols [N, S] with padding of 0, see `_checked_symbols`."""
    if tuple(symbols.shape) != shape:
        raise ShapeError(f"symbols has shape {list(symbols.shape)}; expected {list(shape)}")
    return checked_symbols(symbols, boundary, shape[1], width)


def check_simple(
    lm: Any,
    am: Any,
    symbols: Any,
    termination_symbol: int,
    boundary: Any,
    rnnt_type: RnntType,
    delay_penalty: float,
) -> Simple:
    check_logits(lm, "lm", "[B, S + 1, C]")
    check_logits(am, "am", "[B, T, C]")
    check_beside(lm, "lm", am, "am")
    check_topology(rnnt_type)
    size, frames, width = am.shape
    if not size or lm.shape[0] != size or lm.shape[2] != width or lm.shape[1] < 1:
        raise ShapeError(
            f"lm and am have shapes {list(lm.shape)} and {list(am.shape)}; expected [B, S + 1, C] and [B, T, C]"
        )
    labels = lm.shape[1] - 1
    spans = check_boundary(boundary, size, labels, frames, am.device)
    padded, counts = arguments.as_labels(symbols, "symbols")
    arguments.check_counts(counts, spans[:, 2], "symbols", "s_end")
    own = integers_there(padded, "symbols", am.device)
    given = beside(check_symbols(own, spans, (size, labels), width), am)
    kind = torch.float64 if torch.float64 in (lm.dtype, am.dtype) else torch.float32
    termination = class_index(termination_symbol, width, "termination_symbol")
    return Simple(
        am.to(kind),
        lm.to(kind),
        given,
        spans,
        termination,
        beside(spans[:, 2:], am),
        rnnt_type,
        arguments.check_penalty("delay_penalty", delay_penalty),
    )


def _finish(call: Simple, px: Tensor, py: Tensor) -> Pair:
    """Topology and delay penalty: px [N, S, T + 1] for the regular kind, whose labels end before the last node."""
    frames = py.shape[2]
    if call.rnnt_type == "constrained":
        px = px + py[:, 1:]
    times = torch.arange(frames, device=px.device)
    if call.delay_penalty:
        middle = 0.5 * (call.last[:, 1].to(px.dtype) - 1.0)
        px = px + call.delay_penalty * (middle.view(-1, 1, 1) - times.to(px.dtype))
    px = torch.where(times < call.last[:, 1].view(-1, 1, 1), px, -torch.inf)
    px = torch.where(call.symbols.unsqueeze(2) < 0, torch.nan, px)
    if call.rnnt_type == "regular":
        px = torch.nn.functional.pad(px, (0, 1), value=-torch.inf)
    return px, py


def mixed_scores(call: Simple, lm_only_scale: float = 0.0, am_only_scale: float = 0.0) -> Pair:
    """px and py of the logits am[t] + lm[s], of lm alone, and of am with the mean of softmax(lm) in the place of lm.

    The mean runs over the batch and all S + 1 positions, padding included, as in fast_rnnt; rows with NaN are left out.
    """
    scales = 1.0 - lm_only_scale - am_only_scale, lm_only_scale, am_only_scale
    if not (min(scales) >= 0.0):
        raise ConfigError(
            f"lm_only_scale and am_only_scale are {lm_only_scale} and {am_only_scale}; "
            "expected numbers >= 0 whose sum is at most 1"
        )
    if scales[0] != 1.0:  # torch's derivative of a softmax of lm alone fades into subnormal numbers
        call = call._replace(lm=flush_gradient(call.lm))
    termination, symbols = call.termination, call.symbols.clamp(min=0)
    positions, labels = call.lm.shape[1], symbols.shape[1]
    real = (torch.arange(positions, device=call.last.device) <= call.last[:, :1]).unsqueeze(2)
    lm = torch.where(real, call.lm, 0)
    px_lm, py_lm = lm[:, :-1].gather(2, symbols.unsqueeze(2)), lm[:, :, termination].unsqueeze(2)
    if scales[0] == 1.0:
        rows = pair_scores(call.am, lm, symbols, call.boundary, termination).rows
        joint, px_am, py_am = rows.split([positions, labels, 1], dim=1)
        return _finish(call, px_lm + px_am - joint[:, :-1], py_lm + py_am - joint)
    usable = ~torch.isnan(call.lm.softmax(dim=2)).any(dim=2, keepdim=True)
    everywhere = torch.where(usable, call.lm, 0).softmax(dim=2)
    unigram = torch.where(usable, everywhere, 0).sum((0, 1)) / usable.sum().clamp(min=1)
    log_unigram = (unigram + torch.finfo(unigram.dtype).tiny).log()
    both = torch.cat([lm, log_unigram.expand(len(lm), 1, -1)], dim=1)
    rows = pair_scores(call.am, both, symbols, call.boundary, termination).rows
    joint, am_alone, px_am, py_am = rows.split([positions, 1, labels, 1], dim=1)
    lm_alone = torch.logsumexp(lm, dim=2, keepdim=True)
    px_kinds = (
        px_lm + px_am - joint[:, :-1],
        px_lm - lm_alone[:, :-1],
        px_am + log_unigram[symbols].unsqueeze(2) - am_alone,
    )
    py_kinds = py_lm + py_am - joint, py_lm - lm_alone, py_am + log_unigram[termination] - am_alone
    # A kind without a share is left out: 0 times -inf is NaN.
    used = [kind for kind, scale in enumerate(scales) if scale > 0.0]
    px = sum((scales[kind] * px_kinds[kind] for kind in used), torch.zeros_like(px_kinds[0]))
    py = sum((scales[kind] * py_kinds[kind] for kind in used), torch.zeros_like(py_kinds[0]))
    return _finish(call, px, py)


def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Any,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
    *,
    backend: BackendName = "auto",
) -> Any:
    """The transducer loss of the logits am[t] + lm[s], without a tensor over both.

    Args:
        lm: [B, S + 1, C]; am: [B, T, C]: scores of the classes, not normalised.
        symbols: [B, S] integers; those beyond a sequence's s_end are ignored.
        termination_symbol: the class of the blank.
        boundary: [B, 4] integers: s_begin, t_begin, s_end, t_end; None: 0, 0, S, T.
        rnnt_type, delay_penalty: as for `rnnt_loss`.
        reduction: "none", "mean" or "sum" over the batch.
        return_grad: whether the occupancies that `get_rnnt_prune_ranges` wants come with the loss.

    Returns:
        float64: the loss, or (loss, (px_grad, py_grad)); px_grad is [B, S, T + 1], for other types than the regular
        [B, S, T], and py_grad [B, S + 1, T].

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    call = check_simple(lm, am, symbols, termination_symbol, boundary, rnnt_type, delay_penalty)
    return _loss(mixed_scores(call), call, reduction, return_grad, backend)


def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Any,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
    *,
    backend: BackendName = "auto",
) -> Any:
    """`rnnt_loss_simple` with scores mixed with those of lm alone and of am alone, so that both learn to predict.

    Args:
        lm_only_scale, am_only_scale: their shares; what is left of 1 is the share of the simple scores. am alone has the
            mean of softmax(lm) over batch and positions in the place of lm.

    Returns, raises:
        as `rnnt_loss_simple`.
    """
    call = check_simple(lm, am, symbols, termination_symbol, boundary, rnnt_type, delay_penalty)
    scores = mixed_scores(call, lm_only_scale, am_only_scale)
    return _loss(scores, call, reduction, return_grad, backend)


def _loss(scores: Pair, call: Simple, reduction: str, return_grad: bool, backend: BackendName) -> Any:
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    log_prob, occupancies = mutual_information_recursion(
        *scores, call.boundary, return_grad=True, backend=backend
    )
    loss = arguments.reduce_losses(log_prob, reduction, is_probability=not call.delay_penalty)
    return (loss, occupancies) if return_grad else loss


def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Any,
    ranges: Any,
    termination_symbol: int,
    boundary: Any = None,
    rnnt_type: RnntType = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    *,
    backend: BackendName = "auto",
) -> Tensor:
    """The transducer loss over the nodes that were kept: paths that leave them do not count.

    Args:
        logits: [B, T, s_range, C]: the joiner's output at the labels of `ranges`.
        symbols, termination_symbol, boundary, rnnt_type, delay_penalty, reduction: as for `rnnt_loss_simple`.
        ranges: [B, T, s_range] from `get_rnnt_prune_ranges`.

    Returns:
        float64, the loss; s_range = S + 1 gives that of `rnnt_loss`. The gradient is made in one pass, as there.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", "[B, T, s_range, C]")
    arguments.check_topology(rnnt_type)
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    padded, counts = arguments.as_labels(symbols, "symbols")
    targets = arguments.integers_there(padded, "symbols", logits.device)
    if targets.ndim != 2 or len(targets) != len(logits):
        raise ShapeError(f"symbols has shape {list(targets.shape)}; expected [{len(logits)}, S]")
    size, frames, _, width = logits.shape
    spans = check_boundary(boundary, size, targets.shape[1], frames, logits.device)
    arguments.check_counts(counts, spans[:, 2], "symbols", "s_end")
    blank = arguments.class_index(termination_symbol, width, "termination_symbol")
    given = arguments.Given(
        check_symbols(targets, spans, (size, targets.shape[1]), width),
        spans[:, 3],
        spans[:, 2],
        spans[:, [1, 0]],
        arguments.integers_there(ranges, "ranges", logits.device),
    )
    delay = arguments.check_penalty("delay_penalty", delay_penalty)
    call = rnnt_call(
        logits,
        given,
        TOPOLOGIES[rnnt_type],
        [blank, -1],
        delays=[0.0, delay],
        is_constrained=rnnt_type == "constrained",
        backend=backend,
        reduction=reduction,
    )
    return rnnt_losses(call)


@torch.no_grad()
def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Any, s_range: int) -> Tensor:
    """The s_range successive labels to keep at each frame, from the occupancies of a simple or smoothed loss.

    The first label b maximises the occupancy of blanks at b .. b + s_range - 1 less that of the label arc into b. From the
    last frame on it is the last that is possible; it never falls, and rises by at most s_range - 1, by at most 1 where a
    label takes a frame, so that a path stays within.

    Args:
        px_grad: [B, S, T + 1] or [B, S, T]; py_grad: [B, S + 1, T]: what `return_grad` gives.
        boundary: [B, 4], None: 0, 0, S, T.
        s_range: how many labels; more than S + 1 are S + 1. Regular grids need 2 or more. There, where it leaves a sequence
            of many labels in few frames no path, it is widened for all as k2 does, to trunc((S_n - 1) / T_n) + 2.

    Returns:
        int64 [B, T, s_range], s_range as widened.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    size, labels, frames, is_modified = check_arcs(px_grad, py_grad, "_grad")
    least = 1 if is_modified else 2
    s_range = integer("s_range", s_range)
    if s_range < min(least, labels + 1):
        raise ConfigError(f"s_range = {s_range}; expected {least} or more, or no path would be left")
    spans = check_boundary(boundary, size, labels, frames, px_grad.device)
    if boundary is not None and not is_modified:
        return widened_ranges(px_grad, py_grad, spans, s_range)
    # Here the width is a matter of shapes and options, which a compiler knows.
    if not is_modified:
        s_range = max(s_range, max(labels - 1, 0) // max(frames, 1) + 2)
    return _ranges(px_grad, py_grad, spans, s_range)


def _ranges(px_grad: Tensor, py_grad: Tensor, spans: Tensor, s_range: int) -> Tensor:
    """[N, T, s_range]; s_range is cut to S + 1."""
    labels, frames = px_grad.shape[1], py_grad.shape[2]
    is_modified = px_grad.shape[2] == frames
    s_range = min(s_range, labels + 1)
    ends = beside(spans[:, 2:], px_grad)
    kept = py_grad.unfold(1, s_range, 1).sum(dim=3)
    entering = torch.nn.functional.pad(px_grad[:, :, :frames], (0, 0, 1, 0))[:, : kept.shape[1]]
    return rising_ranges(kept - entering, ends, s_range, 1 if is_modified else s_range - 1)


def rising_ranges(gains: Tensor, ends: Tensor, width: int, step: int) -> Tensor:
    """[N, T, width]: the first labels with the largest gains [N, S + 2 - width, T] that leave a path.

    Args:
        ends: [N, 2], s_end and t_end of each sequence; at its last frame the last label is kept.
        step: by how much the first label may rise from frame to frame.
    """
    times = torch.arange(gains.shape[2], device=gains.device)
    final = (ends[:, :1] - width + 1).clamp(min=0)
    begin = torch.where(times < ends[:, 1:] - 1, gains.argmax(dim=1), final)
    rise = step * times
    # As steep as allowed: begin[t] is at least what lies ahead less the rise until there.
    slack = _least_ahead(rise - _least_ahead(begin)).clamp(min=0)
    return (rise - slack).unsqueeze(2) + torch.arange(width, device=gains.device)


def _widened_ranges(px_grad: Tensor, py_grad: Tensor, spans: Tensor, s_range: int) -> Tensor:
    """[N, T, s_range as widened].

    An operator, because the size of its result depends on the values of `spans`, which a compiler does not know.
    """
    return _ranges(px_grad, py_grad, spans, max(s_range, _narrowest(spans)))


def _fake_widened_ranges(px_grad: Tensor, py_grad: Tensor, spans: Tensor, s_range: int) -> Tensor:
    width = torch.library.get_ctx().new_dynamic_size(min=1)
    return spans.new_empty((px_grad.shape[0], py_grad.shape[2], width), device=px_grad.device)


def _narrowest(spans: Tensor) -> int:
    """The s_range with which each of these [B, 4] has a regular path, whose labels rise by s_range - 1 a frame at most."""
    labels, frames = (spans[:, 2:] - spans[:, :2]).clamp(min=0).unbind(1)
    steps = (labels - 1).clamp(min=0) // frames.clamp(min=1)
    return int(steps.max()) + 2 if len(steps) else 2


widened_ranges = Operator(_widened_ranges, _fake_widened_ranges)


def _least_ahead(values: Tensor) -> Tensor:
    """[N, T]: the least of values[n, t:]."""
    return values.flip(1).cummin(dim=1).values.flip(1)


def do_rnnt_pruning(am: Tensor, lm: Tensor, ranges: Tensor) -> Pair:
    """am [B, T, D] and lm [B, S + 1, E] at the nodes of `ranges` [B, T, s_range]: [B, T, s_range, D] and [.., E].

    Raises:
        ShapeError: shapes that do not fit.
    """
    if ranges.ndim != 3 or am.shape[:2] != ranges.shape[:2] or lm.shape[0] != ranges.shape[0]:
        raise ShapeError(
            f"am, lm and ranges have shapes {list(am.shape)}, {list(lm.shape)} and {list(ranges.shape)}; "
            "expected [B, T, D], [B, S + 1, E] and [B, T, s_range]"
        )
    arguments.check_beside(am, "am", lm, "lm")
    size, frames, s_range = ranges.shape
    index = beside(ranges, lm).reshape(size, -1, 1).expand(-1, -1, lm.shape[2])
    pruned = lm.gather(1, index).view(size, frames, s_range, lm.shape[2])
    return am.unsqueeze(2).expand(-1, -1, s_range, -1), pruned
