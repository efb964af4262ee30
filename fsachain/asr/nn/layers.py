"""Building blocks of the TDNN-F: masked batch normalisation, dropout, plain and factorised time-delay layers.

Activations are [N, C, T]: the layout that torch's CPU and GPU convolutions work on without a copy. Blocks
keep one promise: if frames past an utterance's end are zero on entry, they are zero on exit. A frame near the
end of a padded utterance therefore sees what it would see at the end of the tensor, and results do not depend
on the other utterances of a batch.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Pool(Protocol):
    """Several processes whose batches are normalised as one; `counts` is False while this process passes a stand-in."""

    counts: bool

    def add_up(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place."""


class MaskedBatchNorm(nn.Module):
    """ReLU, then every channel to zero mean and unit variance over the real frames of a batch.

    As in Kaldi there is no learnt scale or offset: the affine map that follows has both. Evaluation uses running averages.
    The rectifier is included because the joint derivative takes half the passes over memory. `pool`: the processes whose
    frames are the batch, which must all make the same passes; None: this one alone.
    """

    pool: Pool | None = None

    running_mean: Tensor
    running_var: Tensor
    num_batches: Tensor

    def __init__(self, channels: int, *, momentum: float = 0.1, epsilon: float = 1e-3) -> None:
        """`momentum`: share of the newest batch in the running averages; `epsilon`: added to the variance."""
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [N, C, T]; mask [N, 1, T] is 1 on real frames, 0 on padding."""
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        if not self.training:
            scale = (self.running_var + self.epsilon).rsqrt()
            y = (F.relu(x) - self.running_mean[:, None]) * scale[:, None]
            return y if mask is None else y * mask
        y, mean, var = cast(Any, _ReluBatchNorm.apply(x, mask, self.epsilon, self.pool))
        with torch.no_grad():
            # The first batches are averaged evenly: short runs are not biased towards the initial (0, 1).
            self.num_batches += 1
            share = self.num_batches.to(mean.dtype).reciprocal().clamp(min=self.momentum)
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(var, share)
        return cast(Tensor, y)


class _ReluBatchNorm(torch.autograd.Function):
    """y = (r - mean) / sqrt(var + epsilon), r = relu(x); mean and var over real frames; 0 on padding.

    With n real frames and g = d/dy on them:  d/dr = (g - sum(g) / n - y sum(g y) / n) / sqrt(var + epsilon).
    With a pool n, mean, var and both sums are those of the frames of all processes.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, epsilon: float, pool: Pool | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        active = x > 0
        y = x.clamp(min=0.0)
        if mask is None:
            frames = torch.tensor(float(x.shape[0] * x.shape[2]), device=x.device)
        else:
            frames = mask.sum()
            y *= mask
            active &= mask.bool()
        count = frames.clamp(min=1.0)
        mean = y.sum(dim=(0, 2)) / count
        y -= mean[:, None]
        if mask is not None:
            y *= mask
        # Over time first: torch sums a single stretch of memory in several parts, quicker and closer to exact.
        var = torch.linalg.vector_norm(y, dim=2).square().sum(dim=0) / count
        if pool is not None:
            own = mean
            count, mean, var = _pooled(pool, frames, mean, var)
            y += (own - mean)[:, None]
            if mask is not None:
                y *= mask
        inverse = (var + epsilon).rsqrt()
        y *= inverse[:, None]
        ctx.save_for_backward(y, active, mask, inverse, count)
        ctx.pool, ctx.counts = pool, pool is None or pool.counts
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Tensor, None, None, None]:
        y, active, mask, inverse, count = ctx.saved_tensors
        gradient = grad if mask is None else grad * mask
        sums = torch.stack([gradient.sum(dim=(0, 2)), (gradient * y).sum(dim=(0, 2))])
        if ctx.pool is not None:
            sums = ctx.pool.add_up(sums)
        if not ctx.counts:  # a stand-in: mean and var do not depend on it
            sums = torch.zeros_like(sums)
        mean, slope = sums / count
        result = torch.addcmul(gradient - mean[:, None], y, slope[:, None], value=-1.0)
        result *= inverse[:, None]
        result *= active
        return result, None, None, None


def _pooled(pool: Pool, frames: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Frames, mean and variance [C] over all processes, from those of each; in float64, because squares are summed."""
    share = frames.double() if pool.counts else torch.zeros_like(frames, dtype=torch.float64)
    first, second = mean.double(), var.double() + mean.double().square()
    totals = pool.add_up(torch.cat([share.reshape(1), share * first, share * second]))
    count = totals[0].clamp(min=1.0)
    first, second = (totals[1:] / count).chunk(2)
    spread = (second - first.square()).clamp(min=0.0)
    return count.to(mean.dtype), first.to(mean.dtype), spread.to(var.dtype)


class TimeConstantDropout(nn.Module):
    """Kaldi's chain dropout: per utterance and channel one factor, uniform in [1 - 2p, 1 + 2p]."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x [N, C, T]; the factors have mean 1, so evaluation leaves x alone."""
        if not self.training or self.p == 0.0:
            return x
        factors = torch.rand(x.shape[0], x.shape[1], 1, device=x.device, dtype=x.dtype)
        return x * (1.0 + 2.0 * self.p * (2.0 * factors - 1.0))


class InputLayer(nn.Module):
    """First layer: an affine map of `kernel` neighbouring frames, ReLU, batch normalisation; may subsample.

    Output frame t is centred on input frame stride * t + stride // 2.
    """

    def __init__(self, num_features: int, channels: int, *, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.affine = nn.Conv1d(num_features, channels, kernel, stride=stride)
        self.norm = MaskedBatchNorm(channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[N, F, T], T a multiple of the stride -> [N, C, T / stride]; mask is that of the output."""
        left = self.kernel // 2 - self.stride // 2
        right = self.kernel - self.stride - left
        return cast(Tensor, self.norm(self.affine(F.pad(x, (left, right))), mask))


class TimeDelayLayer(nn.Module):
    """A time-delay layer with bypass: y = bypass * x + dropout(norm(relu(affine(context of x)))).

    With a bottleneck the affine map is the product of two, as in Povey et al., Interspeech 2018: `linear`
    takes frames t - s and t down to the bottleneck and is kept semi-orthogonal; `affine` takes frames t and t
    + s up again. Without, it is one map of frames t - s, t and t + s. s is the time stride, in frames of this
    layer's input; s = 0 means no context.
    """

    def __init__(
        self,
        channels: int,
        bottleneck: int,
        *,
        time_stride: int,
        stride: int,
        bypass: float,
        dropout: nn.Module,
    ) -> None:
        """`bottleneck`: 0 for a plain layer; `stride`: 1, or the factor by which the layer drops frames."""
        super().__init__()
        self.time_stride = time_stride
        self.stride = stride
        self.bypass = bypass
        dilation = max(time_stride, 1)
        self.linear: nn.Conv1d | None = None
        if bottleneck:
            kernel = 2 if time_stride else 1
            self.linear = nn.Conv1d(
                channels, bottleneck, kernel, dilation=dilation, padding=time_stride, bias=False
            )
            self.affine = nn.Conv1d(bottleneck, channels, kernel, dilation=dilation)
        else:
            kernel = 3 if time_stride else 1
            self.affine = nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=time_stride)
        self.norm = MaskedBatchNorm(channels)
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[N, C, T] -> [N, C, T / stride]; mask is that of the output."""
        y = self.affine(x if self.linear is None else self.linear(x))
        if self.stride > 1:
            y, x = y[:, :, self.stride // 2 :: self.stride], x[:, :, self.stride // 2 :: self.stride]
        y = self.dropout(self.norm(y, mask))
        return cast(Tensor, torch.add(y, x, alpha=self.bypass) if self.bypass else y)

    @torch.no_grad()
    def constrain_orthonormal(self) -> None:
        """One `semi_orthogonal_step` on `linear`, unless it is frozen."""
        if self.linear is not None and self.linear.weight.requires_grad:
            weight = self.linear.weight
            weight.copy_(semi_orthogonal_step(weight.flatten(1)).view_as(weight))


class Head(nn.Module):
    """Prefinal layer (affine, ReLU, batch normalisation; none if its size is 0) and output layer."""

    def __init__(self, channels: int, prefinal: int, num_pdfs: int) -> None:
        super().__init__()
        self.prefinal: nn.Conv1d | None = None
        if prefinal:
            self.prefinal = nn.Conv1d(channels, prefinal, 1)
            self.norm = MaskedBatchNorm(prefinal)
        self.output = nn.Conv1d(prefinal or channels, num_pdfs, 1)
        # Kaldi starts outputs at zero. With Adam and clipped gradients that cost many epochs here: CTC on 17 minutes
        # of digits ended at 0.50 per phone after 10 epochs, with torch's random weights at 0.18. Scores stay small.

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[N, C, T] -> scores [N, T, P], contiguous."""
        if self.prefinal is not None:
            x = self.norm(self.prefinal(x), mask)
        weight, bias = self.output.weight.squeeze(2), self.output.bias
        return F.linear(x.transpose(1, 2), weight, bias)


def semi_orthogonal_step(matrix: Tensor) -> Tensor:
    """One step that makes M M^T more like a multiple of the identity (Povey et al., Interspeech 2018).

    `matrix` is M [R, K]; if R > K its transpose is treated.

    The scale floats: alpha^2 = tr(P P) / tr(P) with P = M M^T is the
    multiple that the step does not change on average. M <- M - (4 v / alpha^2) (P - alpha^2 I) M with v = 1/8 converges
    quadratically; v is halved, and halved again, where tr(P P) d / tr(P)^2 exceeds 1.02 and 1.1 (1 is reached at the
    solution), because a full step could diverge there.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return semi_orthogonal_step(matrix.t()).t()
    gram = matrix @ matrix.t()
    trace = gram.trace()
    trace_of_square = (gram * gram).sum()
    if not bool(trace > 0):
        return matrix
    alpha_squared = trace_of_square / trace
    ratio = float(trace_of_square * matrix.shape[0] / (trace * trace))
    speed = 0.125 * (0.5 if ratio > 1.02 else 1.0) * (0.5 if ratio > 1.1 else 1.0)
    gram.diagonal().sub_(alpha_squared)
    return matrix - (4.0 * speed / alpha_squared) * (gram @ matrix)
