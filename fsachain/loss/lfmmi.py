"""Lattice-free MMI: log Z of the transcript's graph minus log Z of the denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fsachain.batch import TableBatch
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, ShapeError
from fsachain.fsa import Fsa
from fsachain.loss.lfmmi_operator import lfmmi
from fsachain.loss.record import LFMMIRecord, make_record
from fsachain.table import TransitionTable, compile_table

Numerators = TableBatch | Sequence[Fsa | TransitionTable]
_compiled: WeakKeyDictionary[Fsa, TransitionTable] = WeakKeyDictionary()


class _Call(NamedTuple):
    """The arguments of one call, checked and as tensors on the host."""

    nnet_output: Tensor
    lengths: Tensor
    batch: TableBatch
    weights: Tensor
    frame_weights: Tensor | None
    xent_log_probs: Tensor | None
    denominator_of: Tensor


class LFMMILoss(nn.Module):
    """-(objf + l2_term + out_of_range_term + xent_regularize xent_objf) / frames, over the sequences that are possible.

        objf              = sum_n w_n (log Z_num - s log Z_den)
        l2_term           = -1/2 l2 sum_n w_n |y_n|^2
        out_of_range_term = -1/2 o sum_n w_n sum (|y_n| - 30)_+^2
        xent_objf         = sum_n w_n sum_t,p occupancy_num(t, p) xent_log_probs(t, p)
        frames            = sum_n w_n T_n

    Povey et al., Interspeech 2016; for numerators without alignments Hadian et al., Interspeech 2018. A sequence without
    a path of its length, or with NaN or +inf among its scores, leaves every sum and is named in `last_record.excluded`;
    if all do, the loss is 0 with zero gradient.

    Attributes:
        last_record: `LFMMIRecord` of the last call, None before the first.
    """

    last_record: LFMMIRecord | None

    def __init__(
        self,
        denominator: DenominatorGraph | Mapping[str, DenominatorGraph],
        *,
        leaky_hmm_coefficient: float = 1e-5,
        l2_regularize: float = 0.0,
        out_of_range_regularize: float = 0.01,
        xent_regularize: float = 0.0,
        denominator_scale: float = 1.0,
    ) -> None:
        """Set up the loss.

        Args:
            denominator: the graph, or several by name (then each call says `denominator_of`).
            leaky_hmm_coefficient: c of equation (3), in [0, 1]; 1e-5 as in Kaldi, 0.1 in its end-to-end recipes, 0 exact.
            l2_regularize: l2 >= 0; 5e-5 is usual.
            out_of_range_regularize: o >= 0, holds scores near [-30, 30].
            xent_regularize: factor of the cross-entropy branch; 0.1 is usual.
            denominator_scale: s.

        Raises:
            ConfigError: a negative factor, no denominator, or denominators that differ in their number of pdfs.
        """
        super().__init__()
        self.denominators = (
            dict(denominator) if isinstance(denominator, Mapping) else {"denominator": denominator}
        )
        for name, graph in self.denominators.items():
            if not isinstance(graph, DenominatorGraph):
                raise ConfigError(f"{name} is a {type(graph).__name__}; expected a DenominatorGraph")
        widths = {graph.num_pdfs for graph in self.denominators.values()}
        if len(widths) != 1:
            raise ConfigError(
                f"denominators have {sorted(widths)} pdfs; expected one graph or more, all of one width"
            )
        self.num_pdfs = widths.pop()
        self.leaky_hmm_coefficient = _factor("leaky_hmm_coefficient", leaky_hmm_coefficient)
        if self.leaky_hmm_coefficient > 1.0:
            raise ConfigError(f"leaky_hmm_coefficient = {leaky_hmm_coefficient}; expected a number in [0, 1]")
        self.l2_regularize = _factor("l2_regularize", l2_regularize)
        self.out_of_range_regularize = _factor("out_of_range_regularize", out_of_range_regularize)
        self.xent_regularize = _factor("xent_regularize", xent_regularize)
        self.denominator_scale = _factor("denominator_scale", denominator_scale)
        self.last_record = None
        self._batches = [graph.batch(1, [name]) for name, graph in self.denominators.items()]

    def extra_repr(self) -> str:
        """Denominators and options, for `repr`."""
        return f"{', '.join(self.denominators)}; {self.num_pdfs} pdfs, leaky {self.leaky_hmm_coefficient}"

    def forward(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Numerators,
        weights: Any = None,
        frame_weights: Tensor | None = None,
        xent_log_probs: Tensor | None = None,
        denominator_of: Sequence[str] | None = None,
    ) -> Tensor:
        """The loss of a batch, a float64 scalar.

        Args:
            nnet_output: [N, T, P], float16 to float64: the scores y, not normalised.
            lengths: [N] integers on the host: frames of each sequence.
            numerators: a `TableBatch`, or N `Fsa` or `TransitionTable`, packed here.
            weights: [N] w_n >= 0; None: all one.
            frame_weights: [N, T] factors of the derivatives only, as Kaldi's deriv_weights; no value changes.
            xent_log_probs: [N, T, P] log-softmax output of the cross-entropy branch.
            denominator_of: [N] names, needed where there are several denominators.

        Raises:
            ShapeError: an argument of the wrong shape.
            ConfigError: an unknown denominator name.
        """
        call = self._check(
            nnet_output, lengths, numerators, weights, frame_weights, xent_log_probs, denominator_of
        )
        with_gradient = torch.is_grad_enabled() and nnet_output.requires_grad
        total, xent_objf, record = self._evaluate(call, with_gradient)
        self.last_record = record
        objective = total + self.xent_regularize * xent_objf
        # All excluded: every term is zero, and so is its gradient; dividing by one keeps it that way.
        return -objective / torch.where(record.weight_ok > 0, record.weight_ok, 1.0)

    @torch.no_grad()
    def objective(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Numerators,
        weights: Any = None,
        frame_weights: Tensor | None = None,
        xent_log_probs: Tensor | None = None,
        denominator_of: Sequence[str] | None = None,
    ) -> LFMMIRecord:
        """The record alone; arguments as for the call. No beta runs unless `xent_log_probs` needs occupancies."""
        call = self._check(
            nnet_output, lengths, numerators, weights, frame_weights, xent_log_probs, denominator_of
        )
        return self._evaluate(call, False)[2]

    def _evaluate(self, call: _Call, with_gradient: bool) -> tuple[Tensor, Tensor, LFMMIRecord]:
        options = [
            self.leaky_hmm_coefficient,
            self.denominator_scale,
            self.l2_regularize,
            self.out_of_range_regularize,
        ]
        frame_weights = torch.zeros(0) if call.frame_weights is None else call.frame_weights
        total, num, den, ok, l2_term, range_term, _, numerator = lfmmi(
            call.nnet_output,
            call.lengths,
            call.weights,
            frame_weights,
            torch.from_numpy(call.batch.key),
            torch.cat([torch.from_numpy(batch.key) for batch in self._batches]),
            call.denominator_of,
            options,
            with_gradient,
            call.xent_log_probs is not None,
        )
        xent_objf = torch.zeros((), dtype=torch.float64)
        if call.xent_log_probs is not None:
            xent_objf = _xent_objf(numerator, call.xent_log_probs, call.frame_weights)
        parts = (num, den, ok, l2_term.detach(), range_term.detach())
        record = make_record(
            parts, self.denominator_scale, call.weights, call.lengths, xent_objf.detach(), call.batch
        )
        return total, xent_objf, record

    def _check(
        self,
        nnet_output: Tensor,
        lengths: Any,
        numerators: Numerators,
        weights: Any,
        frame_weights: Tensor | None,
        xent_log_probs: Tensor | None,
        denominator_of: Sequence[str] | None,
    ) -> _Call:
        if not isinstance(nnet_output, Tensor):
            raise ShapeError(f"nnet_output is a {type(nnet_output).__name__}; expected a torch tensor")
        shape = list(nnet_output.shape)
        if len(shape) != 3 or shape[2] != self.num_pdfs:
            raise ShapeError(f"nnet_output has shape {shape}; expected [N, T, {self.num_pdfs}]")
        batch = (
            numerators if isinstance(numerators, TableBatch) else pack_numerators(numerators, self.num_pdfs)
        )
        if batch.size != shape[0]:
            raise ShapeError(
                f"numerators holds {batch.size} graphs; expected {shape[0]} as in nnet_output {shape}"
            )
        if frame_weights is not None and list(frame_weights.shape) != shape[:2]:
            raise ShapeError(f"frame_weights has shape {list(frame_weights.shape)}; expected {shape[:2]}")
        if xent_log_probs is not None and list(xent_log_probs.shape) != shape:
            raise ShapeError(f"xent_log_probs has shape {list(xent_log_probs.shape)}; expected {shape}")
        if lengths is None:
            raise ShapeError(f"lengths is None; expected the frames of each sequence, {shape[:1]} integers")
        frames = torch.as_tensor(lengths)
        if list(frames.shape) != shape[:1]:
            raise ShapeError(f"lengths has shape {list(frames.shape)}; expected {shape[:1]}")
        if frame_weights is not None:
            real = torch.arange(shape[1]) < frames.view(-1, 1)
            frame_weights = torch.where(real, frame_weights, 0)
        ones = torch.ones(shape[0], dtype=torch.float64)
        sequence_weights = ones if weights is None else torch.as_tensor(weights, dtype=torch.float64)
        if list(sequence_weights.shape) != shape[:1]:
            raise ShapeError(f"weights has shape {list(sequence_weights.shape)}; expected {shape[:1]}")
        which = self._denominator_indices(denominator_of, batch)
        return _Call(nnet_output, frames, batch, sequence_weights, frame_weights, xent_log_probs, which)

    def _denominator_indices(self, names: Sequence[str] | None, batch: TableBatch) -> Tensor:
        if names is None:
            if len(self.denominators) > 1:
                raise ConfigError(
                    f"denominator_of is None; expected one of {list(self.denominators)} for each sequence"
                )
            return torch.zeros(batch.size, dtype=torch.int64)
        if len(names) != batch.size:
            raise ShapeError(f"denominator_of has {len(names)} names; expected {batch.size}")
        index = {name: position for position, name in enumerate(self.denominators)}
        for n, name in enumerate(names):
            if name not in index:
                raise ConfigError(
                    f"denominator_of[{n}] = {name!r} ({batch.names[n]}); expected one of {list(index)}"
                )
        return torch.tensor([index[name] for name in names])


def pack_numerators(numerators: Sequence[Fsa | TransitionTable], num_pdfs: int) -> TableBatch:
    """Compile what is not yet compiled (each Fsa once in its life) and pack.

    Raises:
        ShapeError: not a sequence of acceptors and tables.
        GraphError: an acceptor that does not fit `num_pdfs`.
    """
    if isinstance(numerators, Fsa | TransitionTable):
        raise ShapeError(
            f"numerators is one {type(numerators).__name__}; expected a list, one for each sequence"
        )
    for n, graph in enumerate(numerators):
        if not isinstance(graph, Fsa | TransitionTable):
            raise ShapeError(
                f"numerators[{n}] is a {type(graph).__name__}; expected an Fsa or a TransitionTable"
            )
    return TableBatch.pack(
        [
            _compile(graph, num_pdfs, n) if isinstance(graph, Fsa) else graph
            for n, graph in enumerate(numerators)
        ]
    )


def _compile(fsa: Fsa, num_pdfs: int, n: int) -> TransitionTable:
    if fsa not in _compiled or _compiled[fsa].num_pdfs != num_pdfs:
        _compiled[fsa] = compile_table(fsa, num_pdfs, name=f"numerators[{n}]")
    return _compiled[fsa]


def _factor(name: str, value: float) -> float:
    if not 0.0 <= value < float("inf"):
        raise ConfigError(f"{name} = {value}; expected a finite number >= 0")
    return float(value)


def _xent_objf(numerator: Tensor, log_probs: Tensor, frame_weights: Tensor | None) -> Tensor:
    """Sum of numerator occupancy times log_probs; frame weights scale its derivative but not its value."""
    # Padding, where the occupancy is 0, may hold NaN; and 0 times -inf would be NaN as well.
    usable = torch.where(numerator != 0, log_probs.to(numerator.dtype), 0)
    value = (numerator * usable).sum(dtype=torch.float64)
    if frame_weights is None:
        return value
    scaled = (numerator * frame_weights.to(numerator.dtype).unsqueeze(2) * usable).sum(dtype=torch.float64)
    return scaled + (value - scaled).detach()
