"""Automata with k2's conventions: an arc of label -1 enters the last state, the only final one; scores are logs.

An `Fsa` is one automaton or a batch of them. Arcs of a batch lie one after another, with states counted from 0 in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsachain.errors import GraphError, counted
from fsachain.k2 import ragged
from fsachain.k2.ragged import RaggedShape, RaggedTensor, index_select
from fsachain.k2.shape import FINAL, Ints, Shape, sorted_shape, tot_scores


class Arcs:
    """The arcs of an `Fsa`, by k2's methods."""

    def __init__(self, fsa: Fsa) -> None:
        self._fsa = fsa

    def values(self) -> Tensor:
        """Return int32 [A, 4]: source, destination, label and the bits of the float32 score."""
        shape = self._fsa._shape
        columns = np.stack([shape.src, shape.dst, shape.label], axis=1).astype(np.int32)
        bits = self._fsa.scores.detach().float().contiguous().view(torch.int32)
        return torch.cat([torch.from_numpy(columns).to(bits.device), bits.unsqueeze(1)], dim=1)

    def shape(self) -> RaggedShape:
        """Return the ragged shape, of axes [state][arc] or [fsa][state][arc]."""
        shape = self._fsa._shape
        source, _ = shape.joint()
        counts = np.bincount(source, minlength=int(shape.states.sum()))
        splits = [shape.first, np.concatenate([[0], np.cumsum(counts)])]
        device = self._fsa.device
        return RaggedShape(
            [torch.from_numpy(s).to(device) for s in (splits if self._fsa._is_vec else splits[1:])]
        )

    def row_splits(self, axis: int) -> Tensor:
        """Return the row splits of an axis."""
        return self.shape().row_splits(axis)


class Fsa:
    """Weighted automaton with k2's conventions, or a batch (`FsaVec`) of them.

    Any tensor or ragged tensor with one entry for each arc that is set as an attribute follows the arcs through all
    operations, with gradients where it has them; `aux_labels` is such an attribute. Other attributes are handed on.

    Args:
        arcs: int32 [A, 4]: source, destination, label, bits of the float32 score, sorted by source.
        aux_labels: [A] integers or a ragged tensor; None makes an acceptor.

    Raises:
        GraphError: arcs that k2 would refuse, such as a label of -1 that does not enter the last state.
    """

    _shape: Shape
    _is_vec: bool
    _tensors: dict[str, Any]
    _others: dict[str, Any]

    def __init__(self, arcs: Tensor, aux_labels: Any = None) -> None:
        values = arcs.cpu().numpy().astype(np.int64)
        num_states = int(values[:, :2].max(initial=-1)) + 1
        shape, order = sorted_shape(values[:, :3].T, np.zeros(len(values)), [num_states])
        scores = arcs[:, 3].contiguous().view(torch.float32)[torch.from_numpy(order).to(arcs.device)]
        self._fill(shape, scores, False)
        if aux_labels is not None:
            self.aux_labels = aux_labels

    def _fill(self, shape: Shape, scores: Tensor, is_vec: bool) -> None:
        _check(shape)
        object.__setattr__(self, "_shape", shape)
        object.__setattr__(self, "_is_vec", is_vec)
        object.__setattr__(self, "_tensors", {"scores": scores})
        object.__setattr__(self, "_others", {})

    @classmethod
    def of_shape(cls, shape: Shape, scores: Tensor, is_vec: bool) -> Fsa:
        """Return an automaton of this shape with scores [A]."""
        fsa = cls.__new__(cls)
        fsa._fill(shape, scores, is_vec)
        return fsa

    def __getattr__(self, name: str) -> Any:
        for kept in ("_tensors", "_others"):
            attributes = self.__dict__.get(kept, {})
            if name in attributes:
                return attributes[name]
        raise AttributeError(f"the Fsa has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "labels":
            label = torch.as_tensor(value).cpu().numpy().astype(np.int64)
            object.__setattr__(self, "_shape", self._shape._replace(label=label))
        elif name == "grad":
            self.scores.grad = value
        elif isinstance(value, Tensor | RaggedTensor):
            length = value.dim0 if isinstance(value, RaggedTensor) else len(value)
            if length != self.num_arcs:
                raise GraphError(
                    f"{name} has {counted(length, 'entry')}; expected one for each arc, {self.num_arcs} in all"
                )
            self._others.pop(name, None)
            self._tensors[name] = value
        else:
            self._tensors.pop(name, None)
            self._others[name] = value

    def __delattr__(self, name: str) -> None:
        for attributes in (self._tensors, self._others):
            if name in attributes:
                del attributes[name]
                return
        raise AttributeError(f"the Fsa has no attribute {name!r}")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """(number of states, None), or for a batch (number of automata, None, None)."""
        return (len(self._shape.states), None, None) if self._is_vec else (int(self._shape.states[0]), None)

    @property
    def num_arcs(self) -> int:
        """Number of arcs of all automata."""
        return len(self._shape.src)

    @property
    def labels(self) -> Tensor:
        """int32 [A]; -1 on arcs that enter the final state."""
        return torch.from_numpy(self._shape.label.astype(np.int32)).to(self.device)

    @property
    def arcs(self) -> Arcs:
        """The arcs, see `Arcs`."""
        return Arcs(self)

    @property
    def device(self) -> torch.device:
        """Where scores and attributes live."""
        device: torch.device = self.scores.device
        return device

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the scores."""
        gradient: Tensor | None = self.scores.grad
        return gradient

    @property
    def requires_grad(self) -> bool:
        """Whether the scores want a gradient."""
        return bool(self.scores.requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Fsa:
        """Set whether the scores want a gradient, and return the automaton."""
        self.scores.requires_grad_(requires_grad)
        return self

    def to(self, device: Any) -> Fsa:
        """Return the automaton with scores and attributes on a device."""
        return self._mapped(lambda value: value.to(device))

    def detach(self) -> Fsa:
        """Return the automaton without history."""
        return self._mapped(lambda value: value.detach() if isinstance(value, Tensor) else value)

    def _mapped(self, change: Any) -> Fsa:
        copied = Fsa.of_shape(self._shape, change(self.scores), self._is_vec)
        copied._tensors.update(
            {name: change(value) for name, value in self._tensors.items() if name != "scores"}
        )
        copied._others.update(self._others)
        return copied

    def clone(self) -> Fsa:
        """Return a copy whose attributes can be set without changing this one."""
        return self._mapped(lambda value: value)

    def __getitem__(self, n: int) -> Fsa:
        """Return automaton n of a batch."""
        chosen = index_fsa(self, torch.tensor([n]))
        object.__setattr__(chosen, "_is_vec", False)
        return chosen

    def invert(self) -> Fsa:
        """Return the automaton with labels and aux_labels exchanged, see `fsachain.k2.invert`."""
        return invert(self)

    def invert_(self) -> Fsa:
        """Exchange labels and aux_labels in place, and return the automaton."""
        self.__dict__.update(self.invert().__dict__)
        return self

    def get_tot_scores(self, use_double_scores: bool, log_semiring: bool) -> Tensor:
        """Return the sum over all paths, or the score of the best path, of each automaton.

        Args:
            use_double_scores: whether the result is float64; sums are made in float64 in either case.
            log_semiring: True for the log of the sum, False for the best path.

        Returns:
            [F], differentiable in the scores; -inf without a path.

        Raises:
            GraphError: the automaton has a cycle.
        """
        return tot_scores(self.scores, self._shape, log_semiring).to(
            torch.float64 if use_double_scores else self.scores.dtype
        )

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads; for one automaton.

        Raises:
            GraphError: the automaton is a batch.
        """
        if self._is_vec:
            raise GraphError("as_dict of a batch; expected one automaton, such as fsa[0]")
        attributes = {name: value for name, value in self._tensors.items() if name != "scores"}
        return {"arcs": self.arcs.values(), **attributes, **self._others}

    @classmethod
    def from_dict(cls, dict_in: dict[str, Any]) -> Fsa:
        """Return the automaton that `as_dict` of k2 or of this module has written.

        Raises:
            GraphError: the file holds a batch.
        """
        if dict_in["arcs"].ndim != 2:
            raise GraphError("the dict holds a batch of automata; expected one automaton")
        fsa = cls(dict_in["arcs"])
        for name, value in dict_in.items():
            if name != "arcs":
                setattr(fsa, name, value)
        return fsa

    @classmethod
    def from_fsas(cls, fsas: Sequence[Fsa]) -> Fsa:
        """Return the batch of these automata, see `create_fsa_vec`."""
        return create_fsa_vec(fsas)

    @classmethod
    def from_openfst(cls, s: str, acceptor: bool | None = None, num_aux_labels: int | None = None) -> Fsa:
        """Return the automaton of OpenFst's text format, whose costs become scores; arguments as for `from_str`."""
        return cls.from_str(s, acceptor, num_aux_labels, openfst=True)

    @classmethod
    def from_str(
        cls, s: str, acceptor: bool | None = None, num_aux_labels: int | None = None, openfst: bool = False
    ) -> Fsa:
        """Return the automaton of a text with an arc a line: source, destination, label, aux_label if any, score.

        Args:
            s: the text. The last line is the final state. With openfst any lines "state cost" are final states.
            acceptor: whether there are no aux labels, the default.
            num_aux_labels: 0 or 1, instead of `acceptor`.
            openfst: whether weights are costs and may be left out.

        Raises:
            GraphError: a line that does not fit.
        """
        width = num_aux_labels if num_aux_labels is not None else int(acceptor is False)
        rows: list[list[float]] = []
        finals: dict[int, float] = {}
        for line in s.strip().splitlines():
            fields = line.split()
            if len(fields) <= 2:
                finals[int(fields[0])] = -float(fields[1]) if len(fields) == 2 else 0.0
            elif len(fields) in (3 + width, 4 + width):
                score = float(fields[3 + width]) if len(fields) == 4 + width else 0.0
                rows.append([*map(int, fields[: 3 + width]), -score if openfst else score])
            else:
                raise GraphError(
                    f"line {line.strip()!r}; expected 2 states, {counted(1 + width, 'label')} and a score"
                )
        if openfst:
            last = int(max([row[k] for row in rows for k in (0, 1)] + list(finals), default=-1)) + 1
            rows += [[state, last, *[FINAL] * (1 + width), score] for state, score in finals.items()]
            finals = {last: 0.0}
        table = np.array(rows, dtype=np.float64).reshape(-1, 4 + width)
        shape, order = sorted_shape(table[:, :3].T, np.zeros(len(table)), [max(finals, default=-1) + 1])
        fsa = cls.of_shape(shape, torch.tensor(table[order, -1], dtype=torch.float32), False)
        if width:
            fsa.aux_labels = torch.tensor(table[order, 3], dtype=torch.int32)
        return fsa

    def __repr__(self) -> str:
        return f"k2.Fsa(shape={self.shape}, num_arcs={self.num_arcs}, attributes={sorted(self._tensors)})"


def _check(shape: Shape) -> None:
    ends = shape.states[shape.fsa_of_arc] - 1
    wrong = np.flatnonzero((shape.label == FINAL) != (shape.dst == ends))
    if len(wrong):
        arc = wrong[0]
        raise GraphError(
            f"arc {arc}, state {shape.src[arc]} -> {shape.dst[arc]}, has label {shape.label[arc]}; expected label -1 on "
            f"arcs into the last state, {ends[arc]}, and on no others"
        )


def derive(parents: Iterable[tuple[Fsa, Ints]], shape: Shape, is_vec: bool) -> Fsa:
    """Return an automaton of this shape whose arcs come from arcs of its parents.

    Args:
        parents: each parent with the number [A] of its arc for each new arc, -1 for none.

    Scores add up, and so do other attributes of floats that several parents have; of others the first parent's counts.
    """
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for parent, arc_map in parents:
        chosen = torch.from_numpy(np.asarray(arc_map, dtype=np.int64)).to(parent.device)
        for name, value in parent._tensors.items():
            if isinstance(value, RaggedTensor):
                tensors.setdefault(name, _chosen_rows(value, chosen))
            elif name not in tensors:
                tensors[name] = index_select(value, chosen)
            elif value.is_floating_point():
                tensors[name] = tensors[name] + index_select(value, chosen)
        others = {**parent._others, **others}
    fsa = Fsa.of_shape(shape, tensors.pop("scores"), is_vec)
    fsa._tensors.update(tensors)
    fsa._others.update(others)
    return fsa


def _chosen_rows(rows: RaggedTensor, chosen: Tensor) -> RaggedTensor:
    if bool((chosen >= 0).all()):
        return rows.index(chosen)
    lists = rows.tolist()
    return RaggedTensor(
        [lists[k] if k >= 0 else [] for k in chosen.tolist()], dtype=rows.dtype, device=rows.device
    )


def invert(fsa: Fsa) -> Fsa:
    """Exchange labels and aux_labels.

    An arc with several aux labels in a ragged tensor becomes that many arcs one after another; the first one has the score
    and the attributes.

    Raises:
        GraphError: the automaton has no aux_labels.
    """
    if "aux_labels" not in fsa._tensors:
        raise GraphError("the automaton has no aux_labels; expected a transducer")
    shape = fsa._shape
    if not isinstance(fsa.aux_labels, RaggedTensor):
        aux = fsa.aux_labels.cpu().numpy().astype(np.int64)
        label = np.where(shape.label == FINAL, FINAL, aux)
        inverted = derive([(fsa, np.arange(fsa.num_arcs))], shape._replace(label=label), fsa._is_vec)
        inverted.aux_labels = fsa.labels
        return inverted
    return _expanded(fsa, fsa.aux_labels.tolist())


def _expanded(fsa: Fsa, lists: list[list[int]]) -> Fsa:
    """`invert` of ragged aux labels, one list for each arc."""
    shape = fsa._shape
    source, target = shape.joint()
    rows: list[tuple[float, float, int, int, int, int]] = []
    owner_of_arc = shape.fsa_of_arc
    for arc, aux in enumerate(lists):
        labels = aux or [0]
        # New states stand after the state that the arc leaves: fractions of one keep their order.
        inner = [
            source[arc] + (arc - shape.arcs[0] + 1 + k / len(labels)) / (fsa.num_arcs + 2)
            for k in range(len(labels) - 1)
        ]
        chain = [float(source[arc]), *inner, float(target[arc])]
        outs = [int(shape.label[arc]), *[0] * (len(labels) - 1)]
        if shape.label[arc] == FINAL:
            outs = outs[::-1]
            labels = [*labels[:-1], FINAL]
        for k, label in enumerate(labels):
            rows.append(
                (chain[k], chain[k + 1], label, outs[k], arc if k == 0 else -1, int(owner_of_arc[arc]))
            )
    names = np.unique([row[k] for row in rows for k in (0, 1)] + list(range(int(shape.states.sum()))))
    owners = np.searchsorted(shape.first, np.floor(names), side="right") - 1
    states = np.bincount(owners, minlength=len(shape.states))
    begin = np.cumsum(states) - states
    owner = np.array([row[5] for row in rows], dtype=np.int64)
    ends = [np.searchsorted(names, [row[k] for row in rows]) - begin[owner] for k in (0, 1)]
    written, out, arc_map = (np.array([row[k] for row in rows], dtype=np.int64) for k in (2, 3, 4))
    new_shape, order = sorted_shape((*ends, written), owner, states)
    inverted = derive([(fsa, arc_map[order])], new_shape, fsa._is_vec)
    inverted.aux_labels = torch.from_numpy(out[order].astype(np.int32)).to(fsa.device)
    return inverted


def create_fsa_vec(fsas: Sequence[Fsa]) -> Fsa:
    """Return the batch of these automata, single ones or batches; attributes that all of them have are kept.

    Raises:
        GraphError: no automata.
    """
    if not fsas:
        raise GraphError("no automata; expected one or more")
    shapes = [fsa._shape for fsa in fsas]
    sizes = np.concatenate([np.diff(shape.arcs) for shape in shapes])
    src, dst, label = (
        np.concatenate(column) for column in zip(*(shape[:3] for shape in shapes), strict=True)
    )
    arcs = np.concatenate([[0], np.cumsum(sizes)])
    shape = Shape(src, dst, label, arcs, np.concatenate([shape.states for shape in shapes]))
    joined = Fsa.of_shape(shape, torch.cat([fsa.scores for fsa in fsas]), True)
    for name in fsas[0]._tensors:
        values = [fsa._tensors.get(name) for fsa in fsas]
        if name == "scores" or any(type(value) is not type(values[0]) for value in values):
            continue
        if isinstance(values[0], RaggedTensor):
            joined._tensors[name] = ragged.cat(values, 0)  # type: ignore[arg-type]
        else:
            joined._tensors[name] = torch.cat(values)  # type: ignore[arg-type]
    for fsa in fsas:
        joined._others.update(fsa._others)
    return joined


def cat(srcs: Sequence[Fsa]) -> Fsa:
    """Return the batch of the automata of these batches."""
    return create_fsa_vec(srcs)


def index_fsa(src: Fsa, indexes: Tensor) -> Fsa:
    """Return the batch of the automata of `src` at `indexes` [n], which may repeat."""
    shape = src._shape
    chosen = indexes.cpu().numpy().astype(np.int64)
    pieces = [np.arange(shape.arcs[n], shape.arcs[n + 1]) for n in chosen]
    arcs = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64)])
    kept = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    columns = shape.src[kept], shape.dst[kept], shape.label[kept]
    return derive([(src, kept)], Shape(*columns, arcs, shape.states[chosen]), True)


def index(src: Any, indexes: Any) -> Any:
    """Return automata, entries of a tensor, or rows of a ragged tensor at indexes."""
    if isinstance(src, Fsa):
        return index_fsa(src, indexes)
    if isinstance(src, RaggedTensor):
        return src.index(indexes)
    if isinstance(indexes, RaggedTensor):
        return RaggedTensor(indexes.shape, index_select(src, indexes.values))
    return index_select(src, indexes)


def to_str_simple(fsa: Fsa, openfst: bool = False) -> str:
    """Return the text that `Fsa.from_str` reads, for one automaton; with openfst scores become costs."""
    shape = fsa._shape
    sign = -1.0 if openfst else 1.0
    scores = (sign * fsa.scores.detach().float()).tolist()
    columns = [shape.src, shape.dst, shape.label]
    if isinstance(fsa._tensors.get("aux_labels"), Tensor):
        columns.append(fsa.aux_labels.cpu().numpy())
    lines = [
        " ".join([*map(str, row), f"{score + 0.0:g}"])
        for *row, score in zip(*(column.tolist() for column in columns), scores, strict=True)
    ]
    if len(lines):
        lines.append(str(int(shape.states[0]) - 1))
    return "\n".join(lines) + "\n"


to_str = to_str_simple
