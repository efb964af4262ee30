"""Lattice-free MMI: log Z of the transcript's graph minus log Z of the denominator."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fsachain.backends import arrays, dispatch
from fsachain.batch import TableBatch, find_batch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, ShapeError, warn_once
from fsachain.fsa import Floats, Ints
from fsachain.loss.autograd import Operator, new_buffer
from fsachain.loss.base import (
    EXCLUDED_OBJF,
    GradientCall,
    LFMMIRecord,
    ObjectiveWarning,
    SequenceCall,
    SequenceLoss,
    Terms,
    by_denominator,
    check_factor,
    fake_terms,
    finish,
    finish_there,
    finished_gradient,
    placed_numbers,
)
from fsachain.loss.registered import number_option

_EXCESS = 1e-3  # nats per frame above 0 that no rounding makes
_LOOKS_EVERY = 16  # calls: one alone of a short sequence would take 1 % longer if each were looked at
# By how much rounding may take log Z_num - log Z_den above 0: a share of frames and magnitudes of log Z, in units of the
# scores' type, and nats for each frame, which are the tolerance of tests too.
_ROUNDING_UNITS, _MOST_ROUNDING = 8.0, 1e-4
_OFF_ONE = 1e-2  # by which a sum of probabilities is off, in bfloat16 too

_calls = itertools.count()


def _lfmmi(given: SequenceCall) -> Terms:
    """LF-MMI as one operator: numerator and denominator write their occupancies into one gradient buffer.

    Only where views are drawn to each other the denominator has a buffer of its own.
    """
    nnet_output, with_gradient, with_numerator = given.nnet_output, given.with_gradient, given.with_numerator
    numerators = find_batch(int(given.numerator_key.item()))
    plain, star = given, None
    if given.star_keys.numel() and _has_star(numerators, nnet_output.shape[2]):
        star = _star(given)
        nnet_output = star.scores
        given = given._replace(nnet_output=nnet_output, denominator_keys=given.star_keys)
    call = dispatch.bind(
        numerators, nnet_output, given.lengths, memory_budget=given.memory_budget, argument="nnet_output"
    )
    numbers = placed_numbers(given, numerators, call)
    factors, _, shares = numbers
    gradient, boosted, scores = new_buffer(nnet_output, False), call, nnet_output
    if given.boost:
        gradient = new_buffer(nnet_output, with_gradient or with_numerator)
        boosted, scores, (num, num_ok) = _boost(call, numerators, nnet_output, given.boost, factors, gradient)
    elif with_gradient or with_numerator:
        (num, num_ok), gradient = call.occupancy(numerators, 0.0, factors, nnet_output)
    else:
        num, num_ok = call.log_probs(numerators, 0.0)
    numerator = gradient.clone() if with_numerator else new_buffer(nnet_output, False)
    if not with_gradient:
        gradient = new_buffer(nnet_output, False)
    # A device leaves out what is not ok in the backward pass.
    is_there = arrays.home_of(nnet_output) == "cuda"
    into, signed = gradient, shares if is_there else torch.where(num_ok, shares, 0.0)
    if given.consistency:
        _check_views(given, numerators.names)
        signed, into = num_ok.to(shares.dtype), new_buffer(nnet_output, True)

    def denominator(batch: TableBatch, part: dispatch.Call, at: Any, out: Tensor) -> tuple[Tensor]:
        return (part.add_occupancy(batch, given.leaky_hmm_coefficient, signed[at], out).log_prob,)

    (den,) = by_denominator(given, boosted, denominator, into)
    found = {"num_log_prob": num, "den_log_prob": den, "numbers": numbers}
    if given.consistency or not is_there:
        # Minus infinity less minus infinity is NaN: where one is not finite, the value is not either.
        ok = num_ok & torch.isfinite(den)
        values = torch.where(ok, num - given.denominator_scale * den, torch.nan)
        values = _without_rounding(values, num, den, numbers[1], _rounding(given))
    term = None
    if given.consistency:
        if with_gradient:
            gradient.addcmul_(into, shares.to(into.dtype).view(-1, 1, 1))
        ok = torch.isfinite(values)
        term = _consistency(into, scores.detach(), given.consistency * factors, ok, gradient)
    if star is not None:
        gradient, numerator = star.folded(gradient), numerator[..., : star.occupancy.shape[2]].contiguous()
        given, call = plain, star.call
    if is_there:
        return finish_there(given, call, found, (gradient, numerator), term, EXCLUDED_OBJF, _rounding(given))
    if with_gradient and given.denominator_scale == 1.0 and not given.boost:
        _warn_of_excess(values.numpy(), call.lengths, numerators.names)
    if with_gradient and next(_calls) % _LOOKS_EVERY == 0:
        _warn_of_softmax(given.nnet_output, int(call.lengths[0]))
    return finish(given, call, found | {"values": values}, (gradient, numerator), term, EXCLUDED_OBJF)


def _rounding(given: SequenceCall) -> tuple[float, float]:
    """What may be above 0 by rounding alone: a value of a part of the denominator, neither scaled nor boosted."""
    if given.denominator_scale != 1.0 or given.boost:
        return 0.0, 0.0
    wide = torch.promote_types(given.nnet_output.dtype, torch.float32)
    return _ROUNDING_UNITS * torch.finfo(wide).eps, _MOST_ROUNDING


def _without_rounding(
    values: Tensor, num: Tensor, den: Tensor, frames: Tensor, rounding: tuple[float, float]
) -> Tensor:
    """The values [N] with 0 for what is above it by no more than rounding; the derivatives stay as they are."""
    if not rounding[0] or (values.is_cpu and not (values > 0.0).any()):
        return values
    share, most = rounding
    highest = torch.minimum(share * (frames + num.abs() + den.abs()), most * frames)
    return torch.where((values > 0.0) & (values <= highest), 0.0, values)


def _has_star(numerators: TableBatch, star_pdf: int) -> bool:
    return any(star_pdf in table.active_pdfs[-1:] for table in numerators.tables)


class _Star(NamedTuple):
    """Scores with a star's [N, T, P + 1], the occupancy [N, T, P] that these are made of, and the call of the others."""

    scores: Tensor
    occupancy: Tensor
    call: dispatch.Call

    def folded(self, derivative: Tensor) -> Tensor:
        """From the derivative [N, T, P + 1], or an empty one, that by the network's scores; `occupancy` becomes it."""
        if not len(derivative):
            return derivative
        size = self.occupancy.shape[2]
        return self.occupancy.mul_(derivative[..., size:]).add_(derivative[..., :size])


def _star(given: SequenceCall) -> _Star:
    """The scores and a column more, (S1) of docs/losses.md, by the denominators without stars.

        s(t) = sum_p a(t, p) y(t, p) + (log Z - sum_u,p a(u, p) y(u, p)) / T,     a = occupancy_den

    With a taken as a constant ds(t) / dy(t, p) = a(t, p).
    """
    scores = given.nnet_output.detach()
    batch = TableBatch.share(find_batch(int(given.denominator_keys[0])).tables[0], len(scores))
    call = dispatch.bind(
        batch, scores, given.lengths, memory_budget=given.memory_budget, argument="nnet_output"
    )
    occupancy = new_buffer(scores, True)

    def denominator(batch: TableBatch, part: dispatch.Call, at: Any, out: Tensor) -> tuple[Tensor]:
        return (part.add_occupancy(batch, given.leaky_hmm_coefficient, None, out).log_prob,)

    (log_z,) = by_denominator(given, call, denominator, occupancy)
    # A score that is not finite has no occupancy, and 0 times it is NaN.
    expected = (occupancy * scores).nan_to_num_(0.0, 0.0, 0.0).sum(2).double()
    count = call.place(np.maximum(call.lengths, 1).astype(np.float64))
    column = expected + ((log_z - _sum_of_frames(expected)) / count).unsqueeze(1)
    return _Star(torch.cat([scores, column.unsqueeze(2).to(scores.dtype)], 2), occupancy, call)


def _sum_of_frames(values: Tensor) -> Tensor:
    """The sums of [N, T] over T, neighbours first: zeros behind change no bit, and a device has one order, unlike cumsum."""
    while values.shape[1] > 1:
        values = torch.nn.functional.pad(values, (0, values.shape[1] % 2))
        values = values[:, ::2] + values[:, 1::2]
    return values.sum(1)


def _warn_of_excess(values: Floats, lengths: Ints, names: Sequence[str]) -> None:
    """Warn where the numerators of a batch outweigh the denominator by more than what rounding could do."""
    ok = np.isfinite(values)
    excess, frames = values[ok].sum(), lengths[ok].sum()
    if excess > _EXCESS * frames:
        n = int(np.nanargmax(np.where(ok, values / np.maximum(lengths, 1), -np.inf)))
        warn_once(
            "excess",
            f"objf is {excess / frames:.3f} per frame, {values[n] / lengths[n]:.3f} for {names[n]}; expected at most 0: the "
            "numerators have paths that the denominator lacks or weighs less. Build them over its lexicon and tree, with "
            "normalization=denominator.normalization_fsa(); where it is meant, as with rewards for stars, ignore this",
            ObjectiveWarning,
        )


def _warn_of_softmax(nnet_output: Tensor, length: int) -> None:
    """Warn where all frames of the first sequence are probabilities; as a rule one row tells that they are not."""
    if not length or abs(float(nnet_output[0, 0].sum()) - 1.0) > _OFF_ONE:
        return
    rows = nnet_output[0, :length].double()
    if bool(((rows > 0) & (rows < 1)).all()) and bool(((rows.sum(dim=1) - 1.0).abs() < _OFF_ONE).all()):
        warn_once(
            "softmax",
            "every frame of nnet_output is positive and sums to 1, like the output of a softmax; expected scores that may "
            "be any real numbers: between 0 and 1 they hardly tell pdfs apart. Leave the softmax out (log_softmax is fine)",
            ObjectiveWarning,
        )


def _check_views(given: SequenceCall, names: Sequence[str]) -> None:
    half = len(given.lengths) // 2
    for argument, values in (("lengths", given.lengths), ("denominator_of", given.denominator_of)):
        one, other = values[:half].tolist(), values[half:].tolist()
        for n in range(half):
            if one[n] != other[n]:
                raise ShapeError(
                    f"{argument} has {one[n]} for one view of {names[n]!r} and {other[n]} for the other (rows {n} and "
                    f"{half + n}); expected the same"
                )


def _consistency(occupancy: Tensor, scores: Tensor, factors: Tensor, ok: Tensor, gradient: Tensor) -> Tensor:
    """(C2) of docs/losses.md from the denominators' occupancies and scores; adds (C3) to the gradient unless that is empty.

    factors, ok: c w_n [N], and which sequences take part; a pair does if both of its views do.
    """
    half = len(occupancy) // 2
    both = (ok[:half] & ok[half:]).view(-1, 1, 1)
    difference = torch.where(both, occupancy[:half] - occupancy[half:], 0.0)
    # Beyond the lengths, where the occupancies are 0, scores may be anything.
    apart = torch.where(difference != 0, (scores[:half] - scores[half:]).to(difference.dtype), 0.0)
    pairs = 0.5 * (factors[:half] + factors[half:])
    divergence = (
        (difference * apart).sum((1, 2), dtype=torch.float64).clamp_(min=0.0)
    )  # but for rounding it is
    if len(gradient):
        difference *= pairs.to(difference.dtype).view(-1, 1, 1)
        gradient[:half] -= difference
        gradient[half:] += difference
    return -(pairs * divergence).sum()


def _boost(
    call: dispatch.Call,
    numerators: TableBatch,
    nnet_output: Tensor,
    boost: float,
    weights: Tensor,
    gradient: Tensor,
) -> tuple[dispatch.Call, Tensor, Any]:
    """The recursions for scores y - boost a, a the numerators' occupancy, these scores, and log Z [N], ok [N] of numerators.

    Weights times a is written to `gradient` unless that is empty. One more buffer of the scores' size is made, in which
    occupancies become scores.
    """
    found, buffer = call.occupancy(numerators, 0.0, None, nnet_output)
    if len(gradient):
        torch.mul(buffer, weights.to(buffer.dtype).view(-1, 1, 1), out=gradient)
    buffer.mul_(-boost).add_(nnet_output.detach())
    return dispatch.bind(numerators, buffer, call.lengths, memory_budget=call.memory_budget), buffer, found


lfmmi = Operator(
    *(_lfmmi, fake_terms, finished_gradient, GradientCall._fields[:-2]), by={"nnet_output": "with_gradient"}
)


class LFMMILoss(SequenceLoss[LFMMIRecord]):
    """-(objf + the three terms + xent_regularize xent_objf) / frames, over the sequences that are possible.

        objf              = sum_n w_n (log Z_num - s log Z_den)
        l2_term           = -1/2 l2 sum_n w_n |y_n|^2
        out_of_range_term = -1/2 o sum_n w_n sum (|y_n| - 30)_+^2
        xent_objf         = sum_n w_n sum_t,p occupancy_num(t, p) xent_log_probs(t, p)
        consistency_term  = -c sum_n w_n KL(paths of n's other view || paths of n), the other view taken as a constant
        frames            = sum_n w_n T_n

    Povey et al., Interspeech 2016; for numerators without alignments Hadian et al., Interspeech 2018. Boosted, log Z_den is
    of the scores y(t, p) - boost occupancy_num(t, p), the occupancy taken as a constant (Povey et al., ICASSP 2008). A
    sequence without a path of its length, or with NaN or +inf among its scores, leaves every sum and is named in
    `last_record.excluded`; if all do, the loss is 0 with zero gradient, and on the host an `ObjectiveWarning` tells so once.
    So does one where numerators outweigh the denominator, which no scale or boost is behind.

    Denominators may have a star (`DenominatorGraph.with_star`): its pdf has the score (S1) of docs/losses.md, made of the P
    that the network gives. For a batch in which no numerator has one they are those without.

    Attributes:
        last_record: `LFMMIRecord` of the last call, None before the first.
        denominators: the graphs by name; a single one is called "denominator".
        num_pdfs: P.
        leaky_hmm_coefficient, l2_regularize, out_of_range_regularize, xent_regularize, denominator_scale, boost,
        consistency, memory_budget: the options; `adjust` changes all but the last.
    """

    denominator_scale = number_option("denominator_scale", check_factor)
    boost = number_option("boost", check_factor)
    consistency = number_option("consistency", check_factor)
    _operator = lfmmi
    _options_to_adjust = (*SequenceLoss._options_to_adjust, "denominator_scale", "boost", "consistency")

    def __init__(
        self,
        denominator: DenominatorGraph | Mapping[str, DenominatorGraph],
        *,
        leaky_hmm_coefficient: float = 1e-5,
        l2_regularize: float = 0.0,
        out_of_range_regularize: float = 0.01,
        xent_regularize: float = 0.0,
        denominator_scale: float = 1.0,
        boost: float = 0.0,
        consistency: float = 0.0,
        memory_budget: float | None = None,
    ) -> None:
        """Set up the loss.

        Args:
            denominator: the graph, or several by name (then each call says `denominator_of`).
            leaky_hmm_coefficient: c of equation (3), in [0, 1]; 1e-5 as in Kaldi, 0.1 in its end-to-end recipes, 0 exact.
            l2_regularize: l2 >= 0; 5e-5 is usual.
            out_of_range_regularize: o >= 0, holds scores near [-30, 30].
            xent_regularize: factor of the cross-entropy branch; 0.1 is usual.
            denominator_scale: s.
            boost: b >= 0, in nats for each frame that a path of the denominator has right; 0.05 to 0.1 is usual.
            consistency: c >= 0, how strongly two views of an utterance are drawn to each other, in calls with `views=2`.
            memory_budget: bytes, beside scores and gradient, for the alphas of all frames, of the numerators and then of
                the denominators; None: a share of the free memory, infinity: no limit. Where they need more, about 2 sqrt(T)
                of T are kept and the others computed again: no bit of the loss or its gradient changes, and it takes at
                most 1.6 times as long.

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
        self.denominator_scale = denominator_scale
        self.boost = boost
        self.consistency = consistency

    @torch.no_grad()
    def with_star(
        self, nnet_output: Tensor, lengths: Any, denominator_of: Sequence[str] | None = None
    ) -> Tensor:
        """The scores and a column more [N, T, P + 1], that of the star, for recursions over numerators; as in the call."""
        if not self._with_star:
            raise ConfigError("the denominator has no star; expected that of DenominatorGraph.with_star()")
        stars = TableBatch.share(self._with_star[0].tables[0], len(nnet_output))
        _, call = self._checked(nnet_output, lengths, stars, None, None, None, denominator_of)
        return _star(call).scores

    def _record(self, terms: Terms, **fields: Any) -> LFMMIRecord:
        return LFMMIRecord(**fields)
