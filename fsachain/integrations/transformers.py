"""Losses for the speech models of Hugging Face transformers: assign one to `model.loss_function`.

The objects are callables and not modules: a module that is assigned to `loss_function` becomes a submodule, which the model
never calls. They have no parameters; a checkpoint of the model does not hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fsachain.backends.dispatch import BackendName
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, ShapeError, counted, integer
from fsachain.fsa import Fsa
from fsachain.graph.ctc import CtcTopology
from fsachain.graph.denominator import ctc_denominator, ctc_numerator
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.numerator import Numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.integrations.reduction import check_reduction, reduce_losses, without_impossible
from fsachain.loss.arguments import check_choice
from fsachain.loss.base import LFMMIRecord
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.variants import tdt_loss

IGNORED_LABEL = -100  # how collators of transformers pad labels


class CTC:
    """The CTC loss for `Wav2Vec2ForCTC` and the other models `...ForCTC`.

    The model passes its logits, the labels and, from its configuration, `ctc_loss_reduction` and `ctc_zero_infinity`. Values
    and gradients are those of the model's own loss.

    Example:
        >>> import torch
        >>> from fsachain.integrations.transformers import CTC
        >>> loss = CTC()
        >>> value = loss(torch.zeros(1, 4, 3), torch.tensor([[1, 2]]), torch.tensor([4]), blank_token_id=0)
        >>> round(value.item(), 4)
        0.8432
    """

    def __init__(
        self,
        *,
        topology: CtcTopology = "standard",
        log_priors: Tensor | None = None,
        delay_penalty: float = 0.0,
        forgive: Forgiveness | None = None,
        zero_infinity: bool | None = None,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            topology, log_priors, delay_penalty, forgive, backend: as for `ctc_loss`.
            zero_infinity: whether an impossible sequence has the loss 0 and not infinity; its gradient is 0 either way.
                None: what the model's configuration says.
        """
        self.topology = topology
        self.log_priors = log_priors
        self.delay_penalty = delay_penalty
        self.forgive = forgive
        self.zero_infinity = zero_infinity
        self.backend = backend

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        logit_lengths: Tensor,
        blank_token_id: int,
        reduction: str | None = "mean",
        zero_infinity: bool = False,
        ignore_index: int = IGNORED_LABEL,
        **_: Any,
    ) -> Tensor:
        """Return the loss as the model asks for it.

        Args:
            logits: [N, T, C].
            labels: [N, S], padded anywhere with `ignore_index` or the blank.
            logit_lengths: [N], frames of each sequence.
            blank_token_id: the blank's class.
            reduction: see `reduce_losses`.
            zero_infinity: used unless the object has an option of its own.
            ignore_index: a label that is left out.

        Returns:
            A scalar, or [N] for "none"; float32, or float64 for float64 logits.

        Raises:
            ShapeError, DataError, ConfigError: an argument that cannot be used.
        """
        _check_batch(logits, labels, 3, "logits")
        name = check_reduction(reduction)
        targets, target_lengths = left_aligned(labels, ignore_index, blank_token_id)
        losses = ctc_loss(
            logits.transpose(0, 1),
            targets,
            logit_lengths,
            target_lengths,
            blank=blank_token_id,
            reduction="none",
            zero_infinity=zero_infinity if self.zero_infinity is None else self.zero_infinity,
            inputs="logits",
            topology=self.topology,
            log_priors=self.log_priors,
            delay_penalty=self.delay_penalty,
            forgive=self.forgive,
            backend=self.backend,
        )
        return reduce_losses(losses, target_lengths, name)


class RNNT:
    """The transducer loss for `ParakeetForRNNT`, without torchaudio."""

    def __init__(
        self,
        *,
        reduction: str | None = None,
        fastemit_lambda: float = 0.0,
        delay_penalty: float = 0.0,
        clamp: float = -1.0,
        zero_infinity: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            reduction: see `reduce_losses`; None: what the model passes, or else "mean_volume", as transformers does.
            fastemit_lambda, delay_penalty, clamp, backend: as for `rnnt_loss`.
            zero_infinity: whether an impossible sequence has the loss 0 and not infinity; its gradient is 0 either way.
        """
        self.reduction = None if reduction is None else check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda
        self.delay_penalty = delay_penalty
        self.clamp = clamp
        self.zero_infinity = zero_infinity
        self.backend = backend

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        logit_lengths: Tensor,
        label_lengths: Tensor,
        blank_token_id: int,
        reduction: str | None = "mean_volume",
        **_: Any,
    ) -> Tensor:
        """Return the loss as the model asks for it.

        Args:
            logits: [N, T, U + 1, V].
            labels: [N, U]; what lies beyond `label_lengths` is ignored.
            logit_lengths, label_lengths: [N], frames and labels of each sequence.
            blank_token_id: the blank's class.
            reduction: see `reduce_losses`; used unless the object has an option of its own.

        Returns:
            A scalar, or [N] for "none"; float32, or float64 for float64 logits.

        Raises:
            ShapeError, ConfigError: an argument that cannot be used.
        """
        _check_batch(logits, labels, 4, "logits")
        losses = rnnt_loss(
            logits,
            labels,
            logit_lengths,
            label_lengths,
            blank=blank_token_id,
            clamp=self.clamp,
            reduction="none",
            fastemit_lambda=self.fastemit_lambda,
            delay_penalty=self.delay_penalty,
            zero_infinity=self.zero_infinity,
            backend=self.backend,
        )
        losses = losses.to(torch.promote_types(logits.dtype, torch.float32))
        return reduce_losses(losses, label_lengths, reduction if self.reduction is None else self.reduction)


class TDT:
    """The token-and-duration transducer loss for `ParakeetForTDT`."""

    def __init__(
        self,
        *,
        sigma: float | None = None,
        reduction: str | None = None,
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        zero_infinity: bool = True,
        backend: BackendName = "auto",
    ) -> None:
        """Set up the loss.

        Args:
            sigma: logit undernormalisation; None: what the model passes, or else 0.
            reduction: see `reduce_losses`; None: what the model passes, or else "mean", as transformers does.
            fastemit_lambda, clamp, backend: as for `tdt_loss`.
            zero_infinity: whether an impossible sequence has the loss 0 and not infinity; its gradient is 0 either way.
        """
        self.sigma = sigma
        self.reduction = None if reduction is None else check_reduction(reduction)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp
        self.zero_infinity = zero_infinity
        self.backend = backend

    def __call__(
        self,
        token_logits: Tensor,
        duration_logits: Tensor,
        labels: Tensor,
        logit_lengths: Tensor,
        label_lengths: Tensor,
        blank_token_id: int,
        durations: Sequence[int],
        sigma: float = 0.0,
        reduction: str | None = "mean",
        **_: Any,
    ) -> Tensor:
        """Return the loss as the model asks for it.

        Args:
            token_logits: [N, T, U + 1, V].
            duration_logits: [N, T, U + 1, D].
            labels: [N, U]; what lies beyond `label_lengths` is ignored.
            logit_lengths, label_lengths: [N], frames and labels of each sequence.
            blank_token_id: the blank's class among the V.
            durations: D numbers of frames.
            sigma, reduction: used unless the object has options of its own; see `reduce_losses`.

        Returns:
            A scalar, or [N] for "none"; float32, or float64 for float64 logits.

        Raises:
            ShapeError, ConfigError: an argument that cannot be used.
        """
        _check_batch(token_logits, labels, 4, "token_logits")
        if duration_logits.shape != (*token_logits.shape[:-1], len(durations)):
            raise ShapeError(
                f"duration_logits has shape {list(duration_logits.shape)}; expected "
                f"{[*token_logits.shape[:-1], len(durations)]}, a score for each of the {len(durations)} durations next "
                f"to token_logits {list(token_logits.shape)}"
            )
        losses = tdt_loss(
            _joined(token_logits, duration_logits),
            labels,
            logit_lengths,
            label_lengths,
            durations,
            blank=integer("blank_token_id", blank_token_id),
            reduction="none",
            sigma=sigma if self.sigma is None else self.sigma,
            clamp=self.clamp,
            fastemit_lambda=self.fastemit_lambda,
            backend=self.backend,
        )
        losses = losses.to(torch.promote_types(token_logits.dtype, torch.float32))
        if self.zero_infinity:
            losses = without_impossible(losses)
        return reduce_losses(losses, label_lengths, reduction if self.reduction is None else self.reduction)


class LFMMI:
    """Lattice-free MMI for `Wav2Vec2ForCTC` and the other models `...ForCTC`, on their units and their blank.

    The denominator is over pdfs: 0 is the blank, and the other classes follow in their order. `from_labels` builds it from
    the labels of the training data.

    Attributes:
        criterion: the `LFMMILoss`; its `last_record` names what was left out.
    """

    def __init__(
        self,
        denominator: DenominatorGraph,
        numerator: Callable[[list[int]], Fsa | Numerator] | None = None,
        *,
        topology: CtcTopology = "standard",
        reduction: str = "frame",
        **options: Any,
    ) -> None:
        """Set up the loss.

        Args:
            denominator: over as many pdfs as the model has classes, such as one of `ctc_denominator`.
            numerator: makes the graph of a transcript from its unit ids, which are pdfs. None: `ctc_numerator`.
            topology: how a unit spans frames, for `ctc_numerator`: the denominator's.
            reduction: "frame": per frame of the sequences that have paths; "sum": over these sequences; "mean_batch": that
                sum divided by N. The model's `ctc_loss_reduction` is not used.
            options: of `LFMMILoss`, such as leaky_hmm_coefficient or l2_regularize.

        Raises:
            ConfigError: an unknown reduction or an option with an illegal value.
        """
        check_choice(reduction, "reduction", ("frame", "sum", "mean_batch"))
        self.criterion = LFMMILoss(denominator, **options)
        self.denominator = denominator
        self.numerator = numerator
        self.topology = topology
        self.reduction = reduction

    @classmethod
    def from_labels(
        cls,
        labels: Iterable[Sequence[int]],
        vocab_size: int,
        blank_token_id: int,
        *,
        ngram_order: int = 2,
        topology: CtcTopology = "standard",
        **options: Any,
    ) -> LFMMI:
        """Build the denominator from the labels of the training data, and the loss on top of it.

        Args:
            labels: class ids of each transcript, as the tokenizer makes them.
            vocab_size: classes of the model, the blank included.
            blank_token_id: the blank's class, `model.config.pad_token_id` in most models.
            ngram_order: longest n-gram of the unit language model; 2 for thousands of units.
            topology: how a unit spans frames.
            options: as for the class.

        Raises:
            GraphError: no labels at all.
            ShapeError: a label that is not a class, or the blank.
        """
        sequences = [_as_pdfs(list(sequence), vocab_size, blank_token_id) for sequence in labels]
        units = estimate_phone_lm(sequences, ngram_order=ngram_order, no_prune_ngram_order=ngram_order)
        denominator = DenominatorGraph(ctc_denominator(units, topology), vocab_size)
        return cls(denominator, topology=topology, **options)

    @property
    def last_record(self) -> LFMMIRecord | None:
        """The record of the last call."""
        return self.criterion.last_record

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        logit_lengths: Tensor,
        blank_token_id: int,
        ignore_index: int = IGNORED_LABEL,
        **_: Any,
    ) -> Tensor:
        """Return the loss as the model asks for it.

        Args:
            logits: [N, T, C]: scores, no softmax is taken.
            labels: [N, S], padded anywhere with `ignore_index` or the blank.
            logit_lengths: [N], frames of each sequence.
            blank_token_id: the blank's class.
            ignore_index: a label that is left out.

        Returns:
            A float64 scalar. It is finite: a sequence without a path is left out and named in `last_record.excluded`.

        Raises:
            ShapeError, ConfigError: an argument that cannot be used.
        """
        _check_batch(logits, labels, 3, "logits")
        num_classes = logits.shape[2]
        if num_classes != self.denominator.num_pdfs:
            raise ConfigError(
                f"logits have {counted(num_classes, 'class')}; expected one for each pdf of the denominator, "
                f"{self.denominator.num_pdfs} in all: "
                "build it with vocab_size = model.config.vocab_size"
            )
        graphs = []
        for row in labels.tolist():
            kept = [label for label in row if label not in (ignore_index, blank_token_id)]
            graphs.append(self._graph(_as_pdfs(kept, num_classes, blank_token_id)))
        loss = self.criterion(_blank_first(logits, blank_token_id), logit_lengths, graphs)
        if self.reduction == "frame":
            return loss
        assert self.criterion.last_record is not None
        total = loss * self.criterion.last_record.weight_ok
        return total if self.reduction == "sum" else total / len(graphs)

    def _graph(self, pdfs: list[int]) -> Fsa | Numerator:
        if self.numerator is not None:
            return self.numerator(pdfs)
        return ctc_numerator(pdfs, self.denominator, self.topology)


def left_aligned(labels: Tensor, *ignored: int) -> tuple[Tensor, Tensor]:
    """Return the labels [N, S] with those to ignore moved to the end of each row, and the counts [N] of the others."""
    kept = torch.ones_like(labels, dtype=torch.bool)
    for value in ignored:
        kept &= labels != value
    order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)
    return labels.gather(1, order), kept.sum(1)


def _check_batch(logits: Tensor, labels: Tensor, ndim: int, name: str) -> None:
    axes = "[N, T, C]" if ndim == 3 else "[N, T, U + 1, V]"
    if logits.ndim != ndim:
        raise ShapeError(f"{name} has shape {list(logits.shape)}; expected {axes}")
    if labels.ndim != 2 or labels.shape[0] != logits.shape[0]:
        raise ShapeError(
            f"labels has shape {list(labels.shape)}; expected a row of labels for each sequence, "
            f"as {name} has shape {list(logits.shape)}"
        )


def _joined(token_logits: Tensor, duration_logits: Tensor) -> Tensor:
    """Return both side by side: the tensor of which they are slices, where they are, and else a copy."""
    whole = token_logits._base
    width = token_logits.shape[-1] + duration_logits.shape[-1]
    if torch.compiler.is_compiling() or whole is None or whole is not duration_logits._base:
        return torch.cat([token_logits, duration_logits], dim=-1)
    is_whole = (
        whole.shape == (*token_logits.shape[:-1], width)
        and whole.stride() == token_logits.stride() == duration_logits.stride()
        and token_logits.storage_offset() == whole.storage_offset()
        and duration_logits.storage_offset() == whole.storage_offset() + token_logits.shape[-1]
    )
    return whole if is_whole else torch.cat([token_logits, duration_logits], dim=-1)


def _as_pdfs(labels: list[int], num_classes: int, blank: int) -> list[int]:
    """Return classes as pdfs: the blank is pdf 0, the classes below it move up by one."""
    for place, label in enumerate(labels):
        if not 0 <= label < num_classes or label == blank:
            raise ShapeError(
                f"labels[{place}] = {label}; expected classes from 0 to {num_classes - 1} other than the blank, {blank}"
            )
    return [label + 1 if label < blank else label for label in labels]


def _blank_first(logits: Tensor, blank: int) -> Tensor:
    if blank == 0:
        return logits
    return torch.cat([logits[..., blank : blank + 1], logits[..., :blank], logits[..., blank + 1 :]], dim=-1)
