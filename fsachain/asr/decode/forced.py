"""Forced alignment of tensors: which frame carries which token of a known target, by the best path of its CTC graph.

`forced_align`, `merge_tokens` and `TokenSpan` are called as those of torchaudio, for one utterance or many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.backends import arrays, dispatch
from fsachain.backends.cpu.threads import run_all
from fsachain.backends.ctc import CtcProblem, check_labels, column_graph, joined_names, make_problem, name_of
from fsachain.backends.dispatch import BackendName
from fsachain.batch import TableBatch
from fsachain.errors import AlignmentError, ConfigError, DataError, ShapeError, counted
from fsachain.graph.ctc import CtcTopology
from fsachain.loss.autograd import as_tensor
from fsachain.table import compile_table

Scores = Literal["path", "posterior"]
STAR_PENALTY = 0.5


def forced_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any = None,
    target_lengths: Any = None,
    blank: int = 0,
    *,
    star: int | None = None,
    star_penalty: float = STAR_PENALTY,
    topology: CtcTopology = "standard",
    scores: Scores = "path",
    names: Sequence[str] | None = None,
    backend: BackendName = "auto",
) -> tuple[Tensor, Tensor]:
    """The token of each frame on the best path that spells the target, and its score: equations (8) and (9).

    The first five arguments and the results are those of `torchaudio.functional.forced_align`, for any number of utterances
    of any lengths. Among paths of equal score the "cpu" backend takes the one that, from the end backwards, ends in a token
    rather than in the blank, stays where it was in the frame before, and comes from a blank rather than from a token.

    Args:
        log_probs: [B, T, C] natural-log outputs of a network, float16, bfloat16, float32 or float64; of frames
            beyond an utterance's length nothing is read.
        targets: [B, L] integers in [0, C) other than the blank, or the star; padded with anything.
        input_lengths, target_lengths: [B] integers; None: T and L for all.
        blank: the blank's class.
        star: what stands in targets for one frame or more of anything, silence included; any integer but the blank. Every
            target of this number is a star, so it must not be a label that targets need as one. A class of its own is not
            needed, and one that `log_probs` has, such as torchaudio's column of zeros, is not read.
        star_penalty: nats that each frame of a star costs: its score is the greatest of the frame's log_probs, but for a
            class `star`, minus this.
        topology: which frame sequences spell a target: see `fsachain.graph.ctc`.
        scores: "path": log_probs of the path's tokens. "posterior": the log of the probability, over all paths of the
            target, that the frame belongs to this place of it (occupancy (7)); takes memory for 2 B T (L + 1) numbers.
        names: [B] utterances, for messages.
        backend: "auto" follows log_probs' device. On the host time O(T L) and memory O((T L)^(2/3)) an utterance; one with
            4 million cells or 20 billion is the same to it.

    Returns:
        paths [B, T] in the dtype of targets and scores [B, T] in that of log_probs, both where log_probs are; frames
        beyond an utterance's length have the blank and 0. Path scores are differentiable.

    Raises:
        AlignmentError: utterances too short for their targets, or whose scores are -inf on every path; all are named.
        DataError: a target that is the blank or no class, NaN or +inf among the log_probs.
        ShapeError: a wrong shape, dtype or length. ConfigError: an unknown option.
    """
    if scores not in get_args(Scores):
        raise ConfigError(f"scores = {scores!r}; expected one of {list(get_args(Scores))}")
    if not star_penalty >= 0:
        raise ConfigError(f"star_penalty = {star_penalty}; expected at least 0")
    _check(log_probs, targets)
    joined = joined_names(names, len(log_probs))
    problem, is_star = _problem(
        log_probs, targets, input_lengths, target_lengths, blank, star, topology, joined
    )
    _refuse(_too_short(problem), joined)
    wild = _best_of_frame(log_probs, star) - star_penalty if is_star.any() else None
    with torch.no_grad():
        found, where = _best_paths(problem, log_probs, wild, backend)
    if np.isnan(found).any():
        n = int(np.isnan(found).argmax())
        raise DataError(f"{name_of(joined, n)}: NaN or +inf among log_probs")
    dead = np.flatnonzero(found == -math.inf).tolist()
    _refuse(dict.fromkeys(dead, "log_probs are -inf on every path of the target"), joined)
    place = torch.from_numpy(where).to(log_probs.device)
    labels = torch.from_numpy(problem.labels).to(place)
    classes = torch.cat([torch.full_like(place[:, :1], blank), labels], dim=1).gather(1, place)
    counts = torch.from_numpy(problem.frame_counts).to(place)
    real = torch.arange(log_probs.shape[1], device=place.device) < counts[:, None]
    if scores == "path":
        own = classes.clamp(max=log_probs.shape[2] - 1)
        values = log_probs.gather(2, own.unsqueeze(2)).squeeze(2)
        if wild is not None:
            values = torch.where(classes == log_probs.shape[2], wild.squeeze(2), values)
    else:
        with torch.no_grad():
            batch, columns = _by_place(problem, log_probs, wild)
            sums = dispatch.forward_backward(batch, columns, problem.frame_counts, backend=backend)
            values = sums.occupancy.gather(2, place.unsqueeze(2)).squeeze(2).log()
    if star is not None:
        classes = torch.where(classes == log_probs.shape[2], star, classes)
    return classes.to(targets.dtype), torch.where(real, values, 0.0).to(log_probs.dtype)


def _best_of_frame(log_probs: Tensor, star: int | None) -> Tensor:
    """[B, T, 1]: the greatest of the log_probs, but for a class that is the star's."""
    if star is not None and 0 <= star < log_probs.shape[2]:
        log_probs = torch.cat([log_probs[:, :, :star], log_probs[:, :, star + 1 :]], dim=2)
    return log_probs.amax(2, keepdim=True)


def _check(log_probs: Any, targets: Any) -> None:
    for name, value, axes in (("log_probs", log_probs, "[B, T, C]"), ("targets", targets, "[B, L]")):
        if not isinstance(value, Tensor) or value.ndim != axes.count(",") + 1:
            came = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(f"{name}: expected a tensor {axes}, got {came}")
    if not log_probs.is_floating_point():
        raise ShapeError(
            f"log_probs has dtype {log_probs.dtype}; expected float16, bfloat16, float32 or float64"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ShapeError(f"targets has dtype {targets.dtype}; expected integers")
    if len(log_probs) != len(targets):
        raise ShapeError(
            f"targets has {counted(len(targets), 'row')}; expected {len(log_probs)}, one for each of log_probs"
        )


def _problem(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
    star: int | None,
    topology: CtcTopology,
    names: str,
) -> tuple[CtcProblem, npt.NDArray[np.bool_]]:
    """The checked problem, where stars have the label C and differ from all beside them; and where the stars are."""
    size, num_frames, num_classes = log_probs.shape
    if star == blank:
        raise ConfigError(f"star = {star} is the blank; expected another integer")
    frame_counts, label_counts = (
        np.full(size, most) if lengths is None else as_tensor(lengths, name=name).cpu().numpy()
        for lengths, most, name in (
            (input_lengths, num_frames, "input_lengths"),
            (target_lengths, targets.shape[1], "target_lengths"),
        )
    )
    labels = targets.cpu().numpy().astype(np.int64)
    stars = np.zeros(labels.shape, np.bool_) if star is None else labels == star
    counts, shape = (frame_counts, label_counts), (size, num_frames, num_classes)
    plain = np.where(stars, int(blank == 0), labels)  # a class that is not the blank
    layout = "log_probs [B, T, C]"
    problem = make_problem(plain, *counts, shape, blank, topology, np.empty(0), 0.0, names, scores=layout)
    check_labels(problem)
    stars = stars[:, : problem.labels.shape[1]]
    return problem._replace(labels=np.where(stars, num_classes, problem.labels)), stars


def _too_short(problem: CtcProblem) -> dict[int, str]:
    found = {}
    for n, (frames, count) in enumerate(
        zip(problem.frame_counts.tolist(), problem.label_counts.tolist(), strict=True)
    ):
        repeats = 0
        if problem.topology in ("standard", "selfless"):
            repeats = int((~problem.differs(n)[: count + 1]).sum())
        if frames < count + repeats:
            found[n] = (
                f"{counted(frames, 'frame')} for a target of {counted(count, 'token')}, {repeats} of them "
                "repeats; expected at least "
                f"{counted(count + repeats, 'frame')}"
            )
    return found


def _refuse(reasons: dict[int, str], names: str) -> None:
    if reasons:
        shown = [f"{name_of(names, n)}: {reason}" for n, reason in list(reasons.items())[:5]]
        more = f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        raise AlignmentError("; ".join(shown) + more, list(reasons))


def _best_paths(
    problem: CtcProblem, log_probs: Tensor, wild: Tensor | None, backend: BackendName
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Scores [B] and for each frame [B, T] the place in the target, 0 for the blank."""
    found, where = np.empty(len(log_probs)), np.zeros(log_probs.shape[:2], np.int64)
    if backend == "cpu" or (backend == "auto" and arrays.home_of(log_probs) == "cpu"):
        host = log_probs.detach().cpu()
        best_path = dispatch.ctc_backend("cpu", host).best_path

        def job(n: int) -> None:
            frames, count = int(problem.frame_counts[n]), int(problem.label_counts[n])
            own = arrays.scores_as_numpy(host[n, :frames].contiguous())
            other = np.zeros(frames) if wild is None else wild[n, :frames, 0].detach().double().cpu().numpy()
            labels, differs = problem.labels[n, :count], problem.differs(n)[: count + 1]
            found[n], where[n, :frames] = best_path(
                own, labels, differs, other, problem.blank, problem.topology
            )

        run_all([partial(job, n) for n in range(len(host))])
        return found, where
    batch, columns = _by_place(problem, log_probs, wild)
    best = dispatch.best_path(batch, columns, problem.frame_counts, backend=backend)
    for n, path in enumerate(best.pdfs):
        where[n, : len(path)] = path
    return best.score.double().cpu().numpy(), where


def _by_place(problem: CtcProblem, log_probs: Tensor, wild: Tensor | None) -> tuple[TableBatch, Tensor]:
    """The targets' graphs, whose pdfs are places in the target, 0 for the blank, and scores [B, T, U + 1] for them."""
    size, num_frames, _ = log_probs.shape
    classes = np.concatenate([np.full((size, 1), problem.blank), problem.labels], axis=1)
    everything = log_probs.detach() if wild is None else torch.cat([log_probs.detach(), wild.detach()], dim=2)
    own = torch.from_numpy(classes).to(log_probs.device)[:, None].expand(-1, num_frames, -1)
    tables = [compile_table(column_graph(problem, n), classes.shape[1]) for n in range(size)]
    return TableBatch.pack(tables), everything.gather(2, own)


@dataclass
class TokenSpan:
    """Frames start..end - 1 that carry one token of the target; score: the mean of the scores of these frames."""

    token: int
    start: int
    end: int
    score: float

    def __len__(self) -> int:
        return self.end - self.start


def merge_tokens(tokens: Tensor, scores: Tensor, blank: int = 0) -> list[TokenSpan]:
    """The tokens of one alignment without blanks and repetitions, as torchaudio's function of this name.

    Args:
        tokens, scores: [T] of one utterance, from `forced_align`.
        blank: the blank's class.

    Under topologies other than "standard" and "selfless" two equal tokens may stand side by side; they become one span.

    Raises:
        ShapeError: not two tensors [T].
    """
    if tokens.ndim != 1 or scores.shape != tokens.shape:
        raise ShapeError(f"tokens {list(tokens.shape)}, scores {list(scores.shape)}: expected [T] for both")
    own = tokens.cpu().numpy()
    if not len(own):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(own)) + 1])
    ends = np.append(starts[1:], len(own))
    means = np.add.reduceat(scores.detach().double().cpu().numpy(), starts) / (ends - starts)
    rows = zip(own[starts].tolist(), starts.tolist(), ends.tolist(), means.tolist(), strict=True)
    return [TokenSpan(*row) for row in rows if row[0] != blank]


class TimedToken(NamedTuple):
    """One token of a target: start and end in seconds, confidence from 0 to 1."""

    token: Any
    start: float
    end: float
    confidence: float


def spans(
    paths: Tensor,
    scores: Tensor,
    frame_seconds: float,
    *,
    offset: float = 0.0,
    blank: int = 0,
    symbols: Sequence[str] | Mapping[int, str] | None = None,
) -> list[list[TimedToken]]:
    """When each token of each utterance is said.

    Args:
        paths, scores: [B, T] from `forced_align`; [T] for one utterance.
        frame_seconds: seconds from one frame to the next, such as the duration of the recording over the frames of the
            network's output.
        offset: where frame 0 begins, in seconds.
        blank: the blank's class.
        symbols: what each class stands for; None: tokens are numbers. A number without a symbol, such as a star, stays one.

    Returns:
        A list for each utterance. A token's confidence is the exponential of the mean of its frames' scores: with path
        scores what the network thinks of these frames, with posteriors how sure the place is if the target is right.

    Raises:
        ShapeError: shapes that differ.
        ConfigError: frame_seconds not above 0.
    """
    if paths.ndim not in (1, 2) or scores.shape != paths.shape:
        raise ShapeError(
            f"paths {list(paths.shape)}, scores {list(scores.shape)}: expected [B, T] or [T] for both"
        )
    if not frame_seconds > 0:
        raise ConfigError(f"frame_seconds = {frame_seconds}; expected more than 0")
    known = dict(enumerate(symbols)) if isinstance(symbols, Sequence) else symbols or {}
    tokens, values = torch.atleast_2d(paths), torch.atleast_2d(scores)

    def timed(span: TokenSpan) -> TimedToken:
        start, end = (offset + frame * frame_seconds for frame in (span.start, span.end))
        return TimedToken(known.get(span.token, span.token), start, end, math.exp(min(0.0, span.score)))

    pairs = zip(tokens, values, strict=True)
    return [[timed(span) for span in merge_tokens(row, own, blank)] for row, own in pairs]
