"""Transducers whose blanks differ: factorised (HAT), of several frames, and with durations of their own (TDT).

Each is a lattice whose scores torch makes from the logits; `multi_blank_loss` has a fused form like `rnnt_loss`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsachain.backends.dispatch import BackendName
from fsachain.errors import ConfigError
from fsachain.grid import BLANK, REGULAR, GridArc
from fsachain.loss import transducer_arguments as arguments
from fsachain.loss.transducer_lattice import TransducerLattice
from fsachain.loss.transducer_operators import NO_CLAMP, rnnt


@torch.library.custom_op("fsachain::label_classes", mutates_args=())
def label_classes(targets: Tensor, sizes: Tensor, shape: list[int], forbidden: int) -> Tensor:
    """The class of the label arc at each node, [N, U + 1], 0 where there is none; targets and sizes are checked.

    An operator, because what is wrong with them is known only when it runs. forbidden: a class that no target may be, or -1.
    """
    call = arguments.Given(targets, sizes, torch.zeros(0, 0, 0, dtype=torch.int64), torch.tensor([0, -1]))
    rows = arguments.make_rows(shape, call, [0.0, 0.0], 0.0)
    labels = min(shape[2], targets.shape[1])
    result = torch.zeros(len(targets), shape[2], dtype=torch.int64)
    real = torch.arange(labels) < sizes[:, 3:4]
    if bool((real & (targets[:, :labels] == forbidden)).any()):
        raise ConfigError(
            f"targets hold the blank, {forbidden}; expected labels, which a softmax without it gives"
        )
    result[:, :labels] = torch.where(real, torch.from_numpy(rows.targets)[:, :labels], 0)
    return result


@label_classes.register_fake
def _(targets, sizes, shape, forbidden):  # type: ignore[no-untyped-def]
    return targets.new_empty(sizes.shape[0], shape[2])


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _real(logits: Tensor, sizes: Tensor) -> Tensor:
    """Which nodes [N, T, U + 1] are no padding."""
    frames, labels = sizes[:, 2].view(-1, 1, 1), sizes[:, 3].view(-1, 1, 1)
    within = torch.arange(logits.shape[1]).view(1, -1, 1) < frames
    return within & (torch.arange(logits.shape[2]) <= labels)


def _state(largest: Tensor, real: Tensor) -> Tensor:
    """0 where a softmax can be taken of entries with this maximum; -inf where all are -inf or padding; else NaN."""
    possible = real & (largest != -torch.inf)
    usable = possible & (largest < torch.inf)
    return torch.where(usable, 0.0, torch.where(possible, torch.nan, -torch.inf)).to(largest.dtype)


def _where_usable(state: Tensor, values: Tensor) -> Tensor:
    """Values, and 0 without a gradient where the state is not 0: 0 times NaN is NaN."""
    return torch.where(state.view(*state.shape, *[1] * (values.ndim - state.ndim)) == 0, values, 0)


def _scored(state: Tensor, scores: Tensor) -> Tensor:
    """Scores, and the state where that is not 0."""
    return torch.where(state == 0, scores, state)


def _of_labels(values: Tensor, classes: Tensor, sizes: Tensor) -> Tensor:
    """values[n, t, u, classes[n, u]], -inf at nodes without a label."""
    index = classes.view(len(classes), 1, -1, 1).expand(-1, values.shape[1], -1, 1)
    real = torch.arange(values.shape[2]) < sizes[:, 3].view(-1, 1, 1)
    return torch.where(real, values.gather(3, index).squeeze(3), -torch.inf)


def hat_lattice(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    *,
    backend: BackendName = "auto",
) -> TransducerLattice:
    """The hybrid autoregressive transducer (28): the blank by a sigmoid of its logit, labels by a softmax of the others.

    Args:
        logits: [N, T, U + 1, V]; the others as for `rnnt_loss`. A target must not be the blank.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4,))
    width = logits.shape[3]
    if width < 2:
        raise ConfigError(f"logits has {width} classes; expected the blank and at least one label")
    blank = arguments.class_index(blank, width, "blank")
    call = arguments.given(logits, targets, logit_lengths, target_lengths, [blank, -1])
    classes = label_classes(call.targets, call.sizes, list(logits.shape), blank)
    wide, real = _wide(logits), _real(logits, call.sizes)
    slices = [part for part in (slice(0, blank), slice(blank + 1, width)) if part.stop > part.start]
    largest = torch.stack([wide.detach()[..., part].amax(dim=3) for part in slices]).amax(dim=0)
    of_labels, of_blank = _state(largest, real), _state(wide.detach()[..., blank], real)
    x, logit = _where_usable(of_labels, wide), _where_usable(of_blank, wide[..., blank])
    total = torch.stack([x[..., part].logsumexp(dim=3) for part in slices]).logsumexp(dim=0)
    # Without a blank the label's factor is 1.
    no_blank = torch.where(of_blank == -torch.inf, 0.0, _scored(of_blank, logsigmoid(-logit)))
    labels = _scored(of_labels, _of_labels(x, classes, call.sizes) - total) + no_blank
    scores = torch.stack([_scored(of_blank, logsigmoid(logit)), labels], dim=1)
    return TransducerLattice(scores, REGULAR, call.sizes, backend)


def hat_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    reduction: str = "mean",
    *,
    backend: BackendName = "auto",
) -> Tensor:
    """-log Z of `hat_lattice`, float64, reduced as in `rnnt_loss`."""
    lattice = hat_lattice(logits, targets, logit_lengths, target_lengths, blank, backend=backend)
    return arguments.reduce_losses(lattice.log_prob(), reduction)


def tdt_lattice(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    durations: Sequence[int],
    blank: int = -1,
    *,
    sigma: float = 0.0,
    backend: BackendName = "auto",
) -> TransducerLattice:
    """The token-and-duration transducer (Xu et al., ICML 2023): every arc passes one of `durations` frames.

    Args:
        logits: [N, T, U + 1, V + D]: V scores of tokens and then D of durations, each with a softmax of its own.
        durations: D different numbers of frames >= 0; blanks take those above 0. The last arc of a path is a blank.
        blank: the blank among the V tokens; a negative one counts from their end.
        sigma: what each arc costs more, the paper's logit undernormalisation.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4,))
    lengths = _check_durations(durations, 0, "durations")
    width = logits.shape[3] - len(lengths)
    if width < 1:
        raise ConfigError(
            f"logits has {logits.shape[3]} entries a row; expected more than the {len(lengths)} durations"
        )
    blank = arguments.class_index(blank, width, "blank")
    call = arguments.given(logits, targets, logit_lengths, target_lengths, [blank, -1])
    classes = label_classes(call.targets, call.sizes, [*logits.shape[:3], width], -1)
    wide, real = _wide(logits), _real(logits, call.sizes)
    segments = wide[..., :width], wide[..., width:]
    of_tokens, of_times = (_state(part.detach().amax(dim=3), real) for part in segments)
    state = of_tokens + of_times
    tokens, times = (_where_usable(state, part).log_softmax(dim=3) for part in segments)
    labels = _of_labels(tokens, classes, call.sizes)
    arcs, kinds = [], []
    for index, frames in enumerate(lengths):
        if frames > 0:
            arcs.append(GridArc(frames, 0, 0))
            kinds.append(tokens[..., blank] + times[..., index] - sigma)
    for index, frames in enumerate(lengths):
        arcs.append(GridArc(frames, 1, 1))
        kinds.append(labels + times[..., index] - sigma)
    scores = _scored(state.unsqueeze(1), torch.stack(kinds, dim=1))
    return TransducerLattice(scores, tuple(arcs), call.sizes, backend)


def tdt_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    durations: Sequence[int],
    blank: int = -1,
    reduction: str = "mean",
    *,
    sigma: float = 0.0,
    backend: BackendName = "auto",
) -> Tensor:
    """-log Z of `tdt_lattice`, float64, reduced as in `rnnt_loss`."""
    lattice = tdt_lattice(
        logits, targets, logit_lengths, target_lengths, durations, blank, sigma=sigma, backend=backend
    )
    return arguments.reduce_losses(lattice.log_prob(), reduction)


def multi_blank_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    big_blanks: dict[int, int],
    blank: int = -1,
    clamp: float = -1,
    reduction: str = "mean",
    *,
    sigma: float = 0.0,
    fastemit_lambda: float = 0.0,
    inplace: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """The multi-blank transducer (Xu et al., ICASSP 2023): `rnnt_loss` with blanks that pass several frames.

    Args:
        logits: [N, T, U + 1, V] or packed, as for `rnnt_loss`; the big blanks are classes of V.
        big_blanks: the frames that each of these classes passes, 2 or more.
        sigma: what each arc costs more, the paper's logit undernormalisation.
        blank, clamp, reduction, fastemit_lambda, inplace, backend: as for `rnnt_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    arguments.check_logits(logits, "logits", (4, 2))
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    width = logits.shape[-1]
    frames = _check_durations(big_blanks.values(), 2, "big_blanks")
    own = [arguments.class_index(index, width, "big_blanks") for index in big_blanks]
    classes = [arguments.class_index(blank, width, "blank"), -1, *own]
    results = rnnt(
        logits,
        *arguments.given(logits, targets, logit_lengths, target_lengths, classes),
        torch.tensor([*REGULAR, *(BLANK._replace(frames=count) for count in frames)]),
        [0.0] * len(classes),
        arguments.check_finite("sigma", sigma),
        arguments.check_fastemit(fastemit_lambda),
        clamp if clamp > 0 else NO_CLAMP,
        False,
        False,
        inplace,
        backend,
        torch.is_grad_enabled() and logits.requires_grad,
    )
    return arguments.reduce_losses(results[0], reduction)


def _check_durations(durations: Any, least: int, name: str) -> list[int]:
    found = [int(frames) for frames in durations]
    if not found or min(found) < least or len(set(found)) != len(found):
        raise ConfigError(f"{name} = {found}; expected different numbers of frames, each {least} or more")
    return found
