"""log sum_c exp(am[t, c] + lm[s, c]) for all pairs (s, t) as a product of matrices, exact at any magnitude.

The product of exp(lm - max) and exp(am - max) has lost what matters where its result is tiny: where am and lm disagree by
more than the range of the type. Those pairs are summed again one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fsachain.loss.operators import refuse_second_derivative

# What the product loses of a sum is below C times the least number of the type: nothing beside these.
_LEAST = {torch.float32: 1e-25, torch.float64: 1e-280}
_PAIRS = 1 << 21  # entries of the pairs that are summed again at once


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x - largest) and the largest [.., 1], which is 0 where all entries are -inf."""
    largest = x.amax(dim=2, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0, largest)
    return (x - largest).exp(), largest


def _weak_pairs(sums: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices (n, s, t) of sums that cannot be trusted, in pieces."""
    for piece in torch.nonzero(~(sums > _LEAST[sums.dtype])).split(max(1, _PAIRS // width)):
        n, s, t = piece.unbind(1)
        yield n, s, t


@torch.library.custom_op("fsachain::pair_normalizer", mutates_args=())
def pair_normalizer(am: Tensor, lm: Tensor) -> Tensor:
    """[N, S + 1, T] from am [N, T, C] and lm [N, S + 1, C], both float32 or float64."""
    am_parts, am_largest = _parts(am)
    lm_parts, lm_largest = _parts(lm)
    sums = lm_parts @ am_parts.transpose(1, 2)
    result = sums.log() + lm_largest + am_largest.transpose(1, 2)
    for n, s, t in _weak_pairs(sums, am.shape[2]):
        result[n, s, t] = torch.logsumexp(am[n, t] + lm[n, s], dim=1)
    return result


@pair_normalizer.register_fake
def _(am, lm):  # type: ignore[no-untyped-def]
    return am.new_empty(am.shape[0], lm.shape[1], am.shape[1])


@torch.library.custom_op("fsachain::pair_normalizer_gradient", mutates_args=())
def pair_normalizer_gradient(am: Tensor, lm: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over (s, t) of factors [N, S + 1, T] times the derivatives by am and lm."""
    am_parts, _ = _parts(am)
    lm_parts, _ = _parts(lm)
    sums = lm_parts @ am_parts.transpose(1, 2)
    shares = torch.where(sums > _LEAST[sums.dtype], factors / sums, 0)
    by_am = am_parts * (shares.transpose(1, 2) @ lm_parts)
    by_lm = lm_parts * (shares @ am_parts)
    for n, s, t in _weak_pairs(sums, am.shape[2]):
        logits = am[n, t] + lm[n, s]
        factor = factors[n, s, t].unsqueeze(1)
        # Rows of -inf alone have no softmax, and no factor either.
        single = torch.where(factor == 0, 0, logits.softmax(dim=1) * factor)
        by_am.index_put_((n, t), single, accumulate=True)
        by_lm.index_put_((n, s), single, accumulate=True)
    unused = (factors == 0).flatten(1).all(dim=1)  # a sequence that is left out may hold NaN
    unused = unused.view(-1, 1, 1)
    return by_am.masked_fill_(unused, 0), by_lm.masked_fill_(unused, 0)


@pair_normalizer_gradient.register_fake
def _(am, lm, factors):  # type: ignore[no-untyped-def]
    return torch.empty_like(am), torch.empty_like(lm)


pair_normalizer_gradient.register_autograd(refuse_second_derivative)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    return pair_normalizer_gradient(*ctx.saved_tensors, gradient)


pair_normalizer.register_autograd(_backward, setup_context=_save)
