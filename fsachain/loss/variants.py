"""Transducers whose blanks differ: factorised (HAT), of several frames, and with durations of their own (TDT).

All are `rnnt` with other arcs, and for HAT and TDT with rows of two factors, (28) and (29): logits are read once each way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fsachain.backends.dispatch import BackendName
from fsachain.errors import ConfigError, counted, integer
from fsachain.grid import BLANK, REGULAR, GridArc
from fsachain.loss import arguments
from fsachain.loss.rnnt import RnntCall, TransducerLattice, lattice_of, rnnt_call, rnnt_losses

_EITHER = arguments.PADDED, arguments.PACKED
_Given = tuple[Tensor, Any, Any, Any]  # logits, targets and the lengths of both


def _loss(call: RnntCall, reduction: str, clamp: float, fastemit_lambda: float, inplace: bool) -> Tensor:
    arguments.check_choice(reduction, "reduction", arguments.REDUCTIONS)
    fastemit = arguments.check_fastemit("fastemit_lambda", fastemit_lambda)
    limit = arguments.check_clamp("clamp", clamp)
    return rnnt_losses(call._replace(fastemit=fastemit, clamp=limit, inplace=inplace, reduction=reduction))


def _hat(given: _Given, blank: int, layouts: tuple[str, ...], backend: BackendName) -> RnntCall:
    logits = given[0]
    arguments.check_logits(logits, "logits", *layouts)
    width = logits.shape[-1]
    if width < 2:
        raise ConfigError(f"logits has {counted(width, 'class')}; expected the blank and at least one label")
    blank = arguments.class_index(blank, width, "blank")
    checked = arguments.given(*given)
    return rnnt_call(logits, checked, REGULAR, [blank, -1], heads=[width, blank], backend=backend)


@torch.no_grad()
def hat_lattice(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    *,
    backend: BackendName = "auto",
) -> TransducerLattice:
    """The lattice of `hat_loss`, without history.

    Args:
        logits: [N, T, U + 1, V]; the others as for `hat_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    return lattice_of(
        _hat((logits, targets, logit_lengths, target_lengths), blank, (arguments.PADDED,), backend)
    )


def hat_loss(
    logits: Tensor,
    targets: Any,
    logit_lengths: Any,
    target_lengths: Any,
    blank: int = -1,
    reduction: str = "mean",
    *,
    clamp: float = -1,
    fastemit_lambda: float = 0.0,
    inplace: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """The hybrid autoregressive transducer (28): the blank by a sigmoid of its logit, labels by a softmax of the others.

    Args:
        logits: [N, T, U + 1, V] or packed; this and the others as for `rnnt_loss`. A target must not be the blank.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    call = _hat((logits, targets, logit_lengths, target_lengths), blank, _EITHER, backend)
    return _loss(call, reduction, clamp, fastemit_lambda, inplace)


def _tdt(
    given: _Given,
    durations: Sequence[int],
    blank: int,
    sigma: float,
    layouts: tuple[str, ...],
    backend: BackendName,
) -> RnntCall:
    logits = given[0]
    arguments.check_logits(logits, "logits", *layouts)
    lengths = _check_durations(durations, 0, "durations")
    width = logits.shape[-1] - len(lengths)
    if width < 1:
        raise ConfigError(
            f"logits has {counted(logits.shape[-1], 'entry')} a row; expected more than the "
            f"{counted(len(lengths), 'duration')}"
        )
    blank = arguments.class_index(blank, width, "blank")
    times = list(enumerate(lengths, width))
    kinds = [(GridArc(frames, 0, 0), blank, entry) for entry, frames in times if frames > 0]
    kinds += [(GridArc(frames, 1, 1), -1, entry) for entry, frames in times]
    arcs, classes, entries = zip(*kinds, strict=True)
    lists, sigma = (list(classes), list(entries), [width, -1]), arguments.check_penalty("sigma", sigma)
    return rnnt_call(logits, arguments.given(*given), arcs, *lists, sigma=sigma, backend=backend)


@torch.no_grad()
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
    """The lattice of `tdt_loss`, without history.

    Args:
        logits: [N, T, U + 1, V + D]; the others as for `tdt_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    given = logits, targets, logit_lengths, target_lengths
    return lattice_of(_tdt(given, durations, blank, sigma, (arguments.PADDED,), backend))


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
    clamp: float = -1,
    fastemit_lambda: float = 0.0,
    inplace: bool = False,
    backend: BackendName = "auto",
) -> Tensor:
    """The token-and-duration transducer (Xu et al., ICML 2023): every arc passes one of `durations` frames, (29).

    Args:
        logits: [N, T, U + 1, V + D] or packed: V scores of tokens and then D of durations, each with a softmax of its own.
        durations: D different numbers of frames >= 0; blanks take those above 0. The last arc of a path is a blank.
        blank: the blank among the V tokens; a negative one counts from their end.
        sigma: what each arc costs more, the paper's logit undernormalisation.
        the others: as for `rnnt_loss`.

    Raises:
        ShapeError, ConfigError: an argument that cannot be used.
    """
    given = logits, targets, logit_lengths, target_lengths
    call = _tdt(given, durations, blank, sigma, _EITHER, backend)
    return _loss(call, reduction, clamp, fastemit_lambda, inplace)


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
    arguments.check_logits(logits, "logits", *_EITHER)
    width = logits.shape[-1]
    if not isinstance(big_blanks, Mapping):
        raise ConfigError(
            f"big_blanks = {big_blanks!r}; expected the frames of each class, such as {{{width - 2}: 2}}"
        )
    frames = _check_durations(big_blanks.values(), 2, "big_blanks")
    own = [arguments.class_index(index, width, "big_blanks") for index in big_blanks]
    blank = arguments.class_index(blank, width, "blank")
    if len({blank, *own}) <= len(own):
        raise ConfigError(
            f"big_blanks = {big_blanks}; expected different classes, none of them the blank, {blank}"
        )
    classes = [blank, -1, *own]
    arcs = *REGULAR, *(BLANK._replace(frames=count) for count in frames)
    given = arguments.given(logits, targets, logit_lengths, target_lengths)
    sigma = arguments.check_penalty("sigma", sigma)
    call = rnnt_call(logits, given, arcs, classes, sigma=sigma, backend=backend)
    return _loss(call, reduction, clamp, fastemit_lambda, inplace)


def _check_durations(durations: Any, least: int, name: str) -> list[int]:
    expected = f"different whole numbers of frames, each {least} or more"
    found = [integer(name, frames, expected=expected) for frames in durations]
    if not found or min(found) < least or len(set(found)) != len(found):
        raise ConfigError(f"{name} = {found}; expected {expected}")
    return found
