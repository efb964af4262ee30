"""px and py of a transducer whose joiner adds am and lm: the simple and the smoothed kind of Kuang et al., 2022."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.errors import ConfigError, ShapeError
from fsachain.grid import RnntType
from fsachain.loss.pruned_normalizer import pair_normalizer
from fsachain.loss.registration import operator
from fsachain.loss.transducer_arguments import (
    check_beside,
    check_finite,
    check_logits,
    check_topology,
    class_index,
    integers,
    integers_there,
)

Pair = tuple[Tensor, Tensor]


class Simple(NamedTuple):
    """Checked arguments: lm [N, S + 1, C], am [N, T, C] with padding of 0, float32 or float64, and more beside these.

    symbols [N, S]: -1 where one of a device is no class; boundary [N, 4] on the host; last [N, 2]: s_end and t_end.
    """

    lm: Tensor
    am: Tensor
    symbols: Tensor
    termination: int
    boundary: Tensor
    last: Tensor
    rnnt_type: RnntType
    delay_penalty: float


def check_boundary(boundary: Any, size: int, labels: int, frames: int, device: torch.device) -> Tensor:
    """[N, 4] int64: s_begin, t_begin, s_end, t_end; None: 0, 0, S, T. Values are checked by the operators."""
    if boundary is None:
        return torch.tensor([[0, 0, labels, frames]]).expand(size, 4).contiguous()
    spans = integers(boundary, "boundary", device)
    if spans.shape != (size, 4):
        raise ShapeError(f"boundary has shape {list(spans.shape)}; expected [{size}, 4]")
    return spans


@operator("fsachain::checked_symbols")
def checked_symbols(symbols: Tensor, boundary: Tensor, labels: int, width: int) -> Tensor:
    """The symbols [N, S] with padding of 0.

    An operator, because what is wrong with them is known only when it runs: a symbol of the host that is no class of `width`
    raises, one of a device becomes -1.
    """
    real = (torch.arange(labels) < boundary[:, 2:3]).to(symbols.device, non_blocking=True)
    wrong = real & ((symbols < 0) | (symbols >= width))
    if not symbols.is_cpu:
        return torch.where(wrong, -1, torch.where(real, symbols, 0))
    for n, u in np.argwhere(wrong.numpy()).tolist():
        raise ShapeError(f"symbols[{n}, {u}] = {int(symbols[n, u])}; expected a class, 0 to {width - 1}")
    return torch.where(real, symbols, 0)


@checked_symbols.register_fake
def _(symbols, boundary, labels, width):  # type: ignore[no-untyped-def]
    return torch.empty_like(symbols)


def check_symbols(symbols: Tensor, boundary: Tensor, shape: tuple[int, int], width: int) -> Tensor:
    """The symbols [N, S] with padding of 0; a symbol that is no class and a wrong shape raise."""
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
    """The arguments of a simple or smoothed loss.

    Raises:
        ShapeError, ConfigError, BackendUnavailable: one of them cannot be used.
    """
    check_logits(lm, "lm", (3,))
    check_logits(am, "am", (3,))
    check_beside(lm, "lm", am, "am")
    check_topology(rnnt_type)
    size, frames, width = am.shape
    if not size or lm.shape[0] != size or lm.shape[2] != width or lm.shape[1] < 1:
        raise ShapeError(
            f"lm and am have shapes {list(lm.shape)} and {list(am.shape)}; expected [B, S + 1, C] and [B, T, C]"
        )
    labels = lm.shape[1] - 1
    spans = check_boundary(boundary, size, labels, frames, am.device)
    own = integers_there(symbols, "symbols", am.device)
    given = check_symbols(own, spans, (size, labels), width).to(am.device, non_blocking=True)
    kind = torch.float64 if torch.float64 in (lm.dtype, am.dtype) else torch.float32
    last = spans[:, 2:].to(am.device, non_blocking=True)
    real_frames = (torch.arange(frames, device=am.device) < last[:, 1:]).unsqueeze(2)
    return Simple(
        lm.to(kind),
        torch.where(real_frames, am.to(kind), 0),
        given,
        class_index(termination_symbol, width, "termination_symbol"),
        spans,
        last,
        rnnt_type,
        check_finite("delay_penalty", delay_penalty),
    )


def _without_padding(call: Simple) -> Tensor:
    positions = torch.arange(call.lm.shape[1], device=call.lm.device)
    real = (positions <= call.last[:, :1]).unsqueeze(2)
    return torch.where(real, call.lm, 0)


def _of_symbols(call: Simple, lm: Tensor, am: Tensor) -> tuple[Pair, Pair]:
    """(px, py) of lm and of am alone: [N, S, 1] and [N, S + 1, 1]; [N, S, T] and [N, 1, T]."""
    index = call.symbols.clamp(min=0).unsqueeze(2)
    px_lm = lm[:, :-1].gather(2, index)
    px_am = am.transpose(1, 2).gather(1, index.expand(-1, -1, am.shape[1]))
    return (px_lm, lm[:, :, call.termination].unsqueeze(2)), (
        px_am,
        am[:, :, call.termination].unsqueeze(1),
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


def simple_scores(call: Simple) -> Pair:
    """px and py of the logits am[t] + lm[s]."""
    lm = _without_padding(call)
    (px_lm, py_lm), (px_am, py_am) = _of_symbols(call, lm, call.am)
    normalizer, _ = pair_normalizer(call.am, lm)
    return _finish(call, px_lm + px_am - normalizer[:, :-1], py_lm + py_am - normalizer)


def smoothed_scores(call: Simple, lm_only_scale: float, am_only_scale: float) -> Pair:
    """The same mixed with scores of lm alone, and of am with the mean of softmax(lm) in the place of lm.

    The mean runs over the batch and all S + 1 positions, padding included, as in fast_rnnt; rows with NaN are left out.
    """
    scales = 1.0 - lm_only_scale - am_only_scale, lm_only_scale, am_only_scale
    if not (min(scales) >= 0.0):
        raise ConfigError(
            f"lm_only_scale and am_only_scale are {lm_only_scale} and {am_only_scale}; "
            "expected numbers >= 0 whose sum is at most 1"
        )
    usable = ~torch.isnan(call.lm.softmax(dim=2)).any(dim=2, keepdim=True)
    everywhere = torch.where(usable, call.lm, 0).softmax(dim=2)
    unigram = torch.where(usable, everywhere, 0).sum((0, 1)) / usable.sum().clamp(min=1)
    log_unigram = (unigram + torch.finfo(unigram.dtype).tiny).log()
    lm = _without_padding(call)
    (px_lm, py_lm), (px_am, py_am) = _of_symbols(call, lm, call.am)
    joint, _ = pair_normalizer(call.am, lm)
    lm_alone = torch.logsumexp(lm, dim=2, keepdim=True)
    am_alone = torch.logsumexp(call.am + log_unigram, dim=2).unsqueeze(1)
    px_kinds = (
        px_lm + px_am - joint[:, :-1],
        px_lm - lm_alone[:, :-1],
        px_am + log_unigram[call.symbols.clamp(min=0)].unsqueeze(2) - am_alone,
    )
    py_kinds = (
        py_lm + py_am - joint,
        py_lm - lm_alone,
        py_am + log_unigram[call.termination] - am_alone,
    )
    # A kind without a share is left out: 0 times -inf is NaN.
    used = [kind for kind, scale in enumerate(scales) if scale > 0.0]
    px = sum((scales[kind] * px_kinds[kind] for kind in used), torch.zeros_like(px_kinds[0]))
    py = sum((scales[kind] * py_kinds[kind] for kind in used), torch.zeros_like(py_kinds[0]))
    return _finish(call, px, py)
