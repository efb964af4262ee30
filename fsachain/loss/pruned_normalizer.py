"""log sum_c exp(am[t, c] + lm[s, c]) for all pairs (s, t) as a product of matrices, exact at any magnitude.

The product of exp(lm - max) and exp(am - max) has lost what matters where its result is tiny: where am and lm disagree by
more than the range of the type. Those pairs are summed again one by one. The host looks for them; on a device a kernel does,
so that nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fsachain.backends import cuda_call, cuda_pairs, kinds
from fsachain.loss.exact_product import exact_product
from fsachain.loss.operators import only_first_has_gradient, refuse_second_derivative
from fsachain.loss.registration import operator

# What the product loses of a sum is below C times the least number of the type: nothing beside these.
_LEAST = {torch.float32: 1e-25, torch.float64: 1e-280}
_PAIRS = 1 << 21  # entries of the pairs that are summed again at once


def _parts(x: Tensor) -> Tensor:
    """exp(x - largest); the largest counts as 0 where all entries are -inf."""
    return (x - _largest(x)).exp()


def _largest(x: Tensor) -> Tensor:
    largest = x.amax(dim=2, keepdim=True)
    return torch.where(largest == -torch.inf, 0, largest)


def _weak_pairs(sums: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices (n, s, t) of sums that cannot be trusted, in pieces."""
    for piece in torch.nonzero(~(sums > _LEAST[sums.dtype])).split(max(1, _PAIRS // max(1, width))):
        n, s, t = piece.unbind(1)
        yield n, s, t


@operator("fsachain::pair_normalizer")
def pair_normalizer(am: Tensor, lm: Tensor) -> tuple[Tensor, Tensor]:
    """Normalizers [N, S + 1, T] of am [N, T, C] and lm [N, S + 1, C], both float32 or float64; and the product's sums."""
    am, lm = am.contiguous(), lm.contiguous()
    sums = exact_product(_parts(lm), _parts(am).transpose(1, 2)).contiguous()
    result = sums.log() + _largest(lm) + _largest(am).transpose(1, 2)
    if kinds.home_of(am) == "cuda":
        view, least = cuda_call.view, _LEAST[sums.dtype]
        cuda_pairs.log_sums(cuda_call.find_device(am), view(am), view(lm), view(sums), least, view(result))
        return result, sums
    for n, s, t in _weak_pairs(sums, am.shape[2]):
        result[n, s, t] = torch.logsumexp(am[n, t] + lm[n, s], dim=1)
    return result, sums


@pair_normalizer.register_fake
def _(am, lm):  # type: ignore[no-untyped-def]
    shape = am.shape[0], lm.shape[1], am.shape[1]
    return am.new_empty(shape), am.new_empty(shape)


@operator("fsachain::pair_normalizer_gradient")
def pair_normalizer_gradient(
    am: Tensor, lm: Tensor, normalizer: Tensor, sums: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums over (s, t) of factors [N, S + 1, T] times the derivatives by am and lm."""
    am, lm, factors = am.contiguous(), lm.contiguous(), factors.contiguous()
    am_parts, lm_parts = _parts(am), _parts(lm)
    shares = torch.where(sums > _LEAST[sums.dtype], factors / sums, 0)
    by_am = am_parts * exact_product(shares.transpose(1, 2), lm_parts)
    by_lm = lm_parts * exact_product(shares, am_parts)
    if kinds.home_of(am) == "cuda":
        view, least = cuda_call.view, _LEAST[sums.dtype]
        pairs = view(am), view(lm), view(sums), least, view(normalizer), view(factors)
        cuda_pairs.add_gradient(cuda_call.find_device(am), *pairs, view(by_am), view(by_lm))
    else:
        _add_weak_pairs(am, lm, sums, factors, by_am, by_lm)
    unused = (factors == 0).flatten(1).all(dim=1)  # a sequence that is left out may hold NaN
    unused = unused.view(-1, 1, 1)
    return by_am.masked_fill_(unused, 0), by_lm.masked_fill_(unused, 0)


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


@pair_normalizer_gradient.register_fake
def _(am, lm, *_):  # type: ignore[no-untyped-def]
    return torch.empty_like(am, memory_format=torch.contiguous_format), torch.empty_like(
        lm, memory_format=torch.contiguous_format
    )


pair_normalizer_gradient.register_autograd(refuse_second_derivative)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs, *output)
    only_first_has_gradient(ctx, output)


def _backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
    if gradient is None:
        return None, None
    return pair_normalizer_gradient(*ctx.saved_tensors, gradient)


pair_normalizer.register_autograd(_backward, setup_context=_save)
