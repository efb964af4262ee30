"""Network outputs, lattices and the losses on them.

A lattice of `intersect_dense` is made of arcs only when somebody asks for its arcs. Its sum is computed from graph and
scores, over all paths, without the lattice: no beam cuts it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsachain.backends.dispatch import best_path
from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, GraphError, ShapeError, counted
from fsachain.fsa import Fsa as Acceptor
from fsachain.k2 import paths
from fsachain.k2.fsa import Fsa, derive
from fsachain.k2.ragged import RaggedShape, RaggedTensor
from fsachain.k2.shape import Ints, Shape, sorted_shape
from fsachain.loss.total import total_log_prob
from fsachain.table import TransitionTable, compile_table


class DenseFsaVec:
    """Network outputs of segments, as automata with an arc for each frame and class.

    Args:
        log_probs: [N, T, C], differentiable.
        supervision_segments: [S, 3] integers on the host: row of log_probs, first frame, number of frames; in any order.
        allow_truncate: by how many frames a segment may be longer than its row, to be cut there.

    Attributes:
        scores: [S, T + 1, C + 1]: column 0 is the label -1, which follows the last frame.
        duration: int32 [S], frames of each segment.

    Raises:
        ShapeError: a segment that reaches beyond log_probs.
    """

    def __init__(self, log_probs: Tensor, supervision_segments: Tensor, allow_truncate: int = 0) -> None:
        segments = supervision_segments.cpu().long()
        row, start, duration = segments.unbind(1)
        room = log_probs.shape[1] - start
        too_long = torch.nonzero(
            (duration > room + allow_truncate) | (start < 0) | (row < 0) | (row >= len(log_probs))
        )
        if len(too_long):
            n = int(too_long[0])
            raise ShapeError(
                f"supervision_segments[{n}] = {segments[n].tolist()}; expected rows and frames of log_probs "
                f"{list(log_probs.shape)}, with allow_truncate = {allow_truncate}"
            )
        self.duration = torch.minimum(duration, room).to(torch.int32)
        self._source, self._segments = log_probs, segments
        times = torch.arange(int(self.duration.max()) + 1)
        frames = (start.unsqueeze(1) + times).clamp(max=log_probs.shape[1] - 1)
        device = log_probs.device
        rows = log_probs[row.unsqueeze(1).to(device), frames.to(device)]
        ends = self.duration.unsqueeze(1)
        inside = (times < ends).to(device).unsqueeze(2)
        last = torch.where((times == ends).to(device), 0.0, -torch.inf).to(rows.dtype).unsqueeze(2)
        self.scores = torch.cat([last, torch.where(inside, rows, -torch.inf)], dim=2)

    def dim0(self) -> int:
        """Return the number of segments."""
        return len(self.duration)

    @property
    def device(self) -> torch.device:
        """Where the scores live."""
        return self.scores.device

    def to(self, device: Any) -> DenseFsaVec:
        """Return the outputs on a device."""
        return DenseFsaVec(self._source.to(device), self._segments, allow_truncate=1 << 30)


@lru_cache(maxsize=64)
def _table(columns: bytes, log_prob: bytes, num_states: int, num_pdfs: int) -> TransitionTable:
    """By content, since denominators come again in each step, as copies."""
    src, dst, label = np.frombuffer(columns, dtype=np.int64).reshape(3, -1)
    final = np.full(max(num_states, 1), -np.inf)
    if num_states:
        final[-1] = 0.0
    fsa = Acceptor(max(num_states, 1), src, dst, label + 1, np.frombuffer(log_prob, dtype=np.float64), final)
    return compile_table(fsa, num_pdfs)


class Lattice(Fsa):
    """Result of `intersect_dense`: an `Fsa` that is made when its arcs or attributes are read."""

    def __init__(
        self,
        graph: Fsa,
        dense: DenseFsaVec,
        output_beam: float,
        a_to_b: Ints,
        names: tuple[str | None, str | None],
    ) -> None:
        self.__dict__["_call"] = graph, dense, output_beam, a_to_b, names

    def __getattr__(self, name: str) -> Any:
        # Python calls this for what is not there yet.
        if "_shape" not in self.__dict__ and "_call" in self.__dict__ and not name.startswith("__"):
            self.__dict__.update(_intersected(*self._call).__dict__)
            return getattr(self, name)
        return super().__getattr__(name)

    @property
    def device(self) -> torch.device:
        """Where the scores live."""
        return self._call[1].device

    @property
    def shape(self) -> tuple[int | None, ...]:
        """(number of lattices, None, None)."""
        return (len(self._call[3]), None, None)

    def _batch(self) -> tuple[TableBatch, Tensor, Tensor]:
        """Graphs, scores [N, T + 1, C + 1] and their lengths."""
        graph, dense, _, a_to_b, _ = self._call
        shape = graph._shape
        # The weights of arcs that are trained are an argument of the sum, and the table need not know them.
        weights = graph.scores.detach().double().cpu().numpy()
        if graph.requires_grad:
            weights = np.zeros_like(weights)
        tables = []
        for n, states in enumerate(shape.states.tolist()):
            own = slice(shape.arcs[n], shape.arcs[n + 1])
            columns = np.stack([shape.src[own], shape.dst[own], shape.label[own]])
            tables.append(_table(columns.tobytes(), weights[own].tobytes(), states, dense.scores.shape[2]))
        # Copies of one denominator are summed together, unless each copy has weights of its own to train.
        is_copied = not graph.requires_grad and all(table is tables[0] for table in tables)
        is_shared = len(a_to_b) > 1 and (len(tables) == 1 or is_copied)
        batch = TableBatch.share(tables[0], len(a_to_b)) if is_shared else TableBatch.pack(tables)
        is_identity = np.array_equal(a_to_b, np.arange(dense.dim0()))
        scores = dense.scores if is_identity else dense.scores[torch.from_numpy(a_to_b).to(dense.device)]
        return batch, scores, (dense.duration.long() + 1)[torch.from_numpy(a_to_b)]

    def get_tot_scores(self, use_double_scores: bool, log_semiring: bool) -> Tensor:
        """Return the sum over all paths, exact whatever the beam, or the best path's score, see `Fsa.get_tot_scores`."""
        if "_shape" in self.__dict__:  # somebody may have changed the scores of its arcs
            return super().get_tot_scores(use_double_scores, log_semiring)
        graph = self._call[0]
        if log_semiring:
            weights = graph.scores.double() if graph.requires_grad else None
            total = total_log_prob(*self._batch(), arc_log_probs=weights)
        else:
            best = self.best()
            owner = torch.from_numpy(best._shape.fsa_of_arc).to(self.device)
            total = torch.zeros(len(best._shape.states), dtype=torch.float64, device=self.device)
            total = total.index_add(0, owner, best.scores.double())
            nothing = torch.from_numpy(best._shape.states == 0).to(self.device)
            total = total.masked_fill(nothing, -torch.inf)
        return total.to(torch.float64 if use_double_scores else self._call[1].scores.dtype)

    def best(self) -> Fsa:
        """Return the best path of each lattice, without making the lattices."""
        if "_shape" in self.__dict__ or self._call[0].requires_grad:
            return paths.shortest_path(self)
        graph, _, _, _a_to_b, _ = self._call
        batch, scores, lengths = self._batch()
        found = best_path(batch, scores.detach(), lengths.tolist())
        followed = [np.asarray(arcs, dtype=np.int64) for arcs in found.arcs]
        usable = [len(arcs) > 0 and bool((arcs >= 0).all()) for arcs in followed]
        first = np.broadcast_to(graph._shape.arcs[:-1], len(followed))
        chosen = [
            first[n] + arcs if ok else arcs[:0]
            for n, (arcs, ok) in enumerate(zip(followed, usable, strict=True))
        ]
        owner = np.repeat(np.arange(len(followed)), [len(arcs) for arcs in chosen])
        frames = np.concatenate([np.arange(len(arcs)) for arcs in chosen])
        splits = np.zeros(len(followed), dtype=np.int64)
        whole = graph._shape._replace(states=splits)
        arcs = np.concatenate(chosen)
        return _scored(self._call, arcs, paths.paths_shape(whole, arcs, owner), owner, frames)


def _scored(call: Any, arcs: Ints, shape: Shape, owner: Ints, frames: Ints) -> Fsa:
    """A batch of this shape, made of these arcs of the graph at these frames."""
    graph, dense, _, a_to_b, (seqframe_name, frame_name) = call
    lattice = derive([(graph, arcs)], shape, True)
    place = tuple(torch.from_numpy(x).to(dense.device) for x in (a_to_b[owner], frames, shape.label + 1))
    lattice.scores = lattice.scores.to(dense.device) + dense.scores[place]
    offset = torch.nn.functional.pad((dense.duration.long() + 1).cumsum(0), (1, 0)).numpy()
    for name, values in ((seqframe_name, offset[a_to_b[owner]] + frames), (frame_name, frames)):
        if name is not None:
            setattr(lattice, name, torch.from_numpy(values.astype(np.int32)).to(dense.device))
    return lattice


def _intersected(graph: Fsa, dense: DenseFsaVec, beam: float, a_to_b: Ints, names: Any) -> Fsa:
    """The lattices, as arcs."""
    shape = graph._shape
    weights = graph.scores.detach().double().cpu().numpy()
    emitted = dense.scores.detach().double().cpu().numpy()
    columns: list[list[Ints]] = []
    sizes = []
    for n, segment in enumerate(a_to_b):
        m = n if len(shape.states) > 1 else 0
        own = slice(shape.arcs[m], shape.arcs[m + 1])
        src, dst, label = (column[own] for column in shape[:3])
        found, states = _one_lattice(
            src, dst, label, weights[own], emitted[segment, : dense.duration[segment] + 1], beam
        )
        source, target, arcs, frames = found
        columns.append([source, target, label[arcs], np.full(len(arcs), n), arcs + shape.arcs[m], frames])
        sizes.append(states)
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    new_shape, order = sorted_shape(joined[:3], joined[3], sizes)
    return _scored(
        (graph, dense, beam, a_to_b, names), joined[4][order], new_shape, joined[3][order], joined[5][order]
    )


def _one_lattice(
    src: Ints, dst: Ints, label: Ints, weights: Any, emitted: Any, beam: float
) -> tuple[tuple[Ints, Ints, Ints, Ints], int]:
    """Sources, destinations, arcs of the graph and frames of the arcs within the beam, and the number of states."""
    num_states = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    alpha = np.full((len(emitted) + 1, num_states), -np.inf)
    alpha[0, 0] = 0.0
    scores = [weights + row[label + 1] for row in emitted]
    for t, score in enumerate(scores):
        np.maximum.at(alpha[t + 1], dst, alpha[t, src] + score)
    beta = np.full_like(alpha, -np.inf)
    beta[-1, -1] = 0.0
    kept = []
    for t in range(len(scores) - 1, -1, -1):
        through = scores[t] + beta[t + 1, dst]
        np.maximum.at(beta[t], src, through)
        best = alpha[-1, -1]
        kept.append(np.flatnonzero(alpha[t, src] + through >= best - beam) if best > -np.inf else src[:0])
    kept.reverse()
    frames = np.repeat(np.arange(len(kept)), [len(arcs) for arcs in kept])
    arcs = np.concatenate(kept)
    places = frames * num_states + src[arcs], (frames + 1) * num_states + dst[arcs]
    names = np.unique(np.concatenate(places))
    source, target = (np.searchsorted(names, place) for place in places)
    return (source, target, arcs, frames), len(names)


def intersect_dense(
    a_fsas: Fsa,
    b_fsas: DenseFsaVec,
    output_beam: float,
    max_states: int = 0,
    max_arcs: int = 0,
    a_to_b_map: Tensor | None = None,
    seqframe_idx_name: str | None = None,
    frame_idx_name: str | None = None,
) -> Lattice:
    """Return the lattices of graphs and network outputs.

    Args:
        a_fsas: one graph for each segment, or one for all; label 0 reads column 0.
        b_fsas: the outputs.
        output_beam: arcs that are worse than the best path by more are left out where arcs are made. Sums of the lattice
            as it is returned are over all paths.
        max_states, max_arcs: ignored.
        a_to_b_map: [number of graphs] the segment of each graph; None: in order.
        seqframe_idx_name, frame_idx_name: names of attributes for the frame of each arc, counted over all segments, each of
            which has one frame more than its duration, or within its own.

    Raises:
        GraphError: the number of graphs does not fit.
    """
    count = len(a_fsas._shape.states)
    segments = np.arange(b_fsas.dim0()) if a_to_b_map is None else a_to_b_map.cpu().numpy().astype(np.int64)
    if count not in (1, len(segments)):
        raise GraphError(
            f"{counted(count, 'graph')} for {counted(len(segments), 'segment')}; expected one for each, or one for all"
        )
    return Lattice(a_fsas, b_fsas, output_beam, segments, (seqframe_idx_name, frame_idx_name))


def intersect_dense_pruned(
    a_fsas: Fsa,
    b_fsas: DenseFsaVec,
    search_beam: float,
    output_beam: float,
    min_active_states: int,
    max_active_states: int,
    seqframe_idx_name: str | None = None,
    frame_idx_name: str | None = None,
    allow_partial: bool = False,
) -> Lattice:
    """Return `intersect_dense`: nothing is pruned in the search, so that search_beam and the limits of states do nothing.

    Raises:
        ConfigError: allow_partial is True; only whole paths are found here.
    """
    if allow_partial:
        raise ConfigError(
            "allow_partial = True; expected False: only paths to the final state are found here"
        )
    names = seqframe_idx_name, frame_idx_name
    return intersect_dense(a_fsas, b_fsas, output_beam, 0, 0, None, *names)


def shortest_path(fsa: Fsa, use_double_scores: bool = True) -> Fsa:
    """Return the best path of each automaton of an acyclic batch, or of each lattice without making the lattices.

    Args:
        fsa: a batch, or what `intersect_dense` returns.
        use_double_scores: ignored; sums are made in float64.

    Returns:
        A batch of linear automata; one without a path has no arcs.

    Raises:
        GraphError: the automaton has a cycle.
    """
    return fsa.best() if isinstance(fsa, Lattice) else paths.shortest_path(fsa)


def ctc_loss(
    decoding_graph: Fsa,
    dense_fsa_vec: DenseFsaVec,
    output_beam: float = 10,
    delay_penalty: float = 0.0,
    reduction: str = "sum",
    use_double_scores: bool = True,
    target_lengths: Tensor | None = None,
) -> Tensor:
    """Return minus the log of the sum over all paths of graphs.

    Args:
        decoding_graph: one graph for each segment, such as `ctc_graph`.
        dense_fsa_vec: log-probabilities.
        output_beam: used with a delay penalty alone.
        delay_penalty: above 0, tokens cost delay_penalty x (frame - half of the segment's frames).
        reduction: "none", "sum", or "mean": over the losses divided by target_lengths.
        use_double_scores: whether sums are rounded to float64 or to the type of the scores before the result.
        target_lengths: [S], for "mean".

    Returns:
        float32, [S] or a scalar; inf for a segment without a path.

    Raises:
        ConfigError: another reduction, or "mean" without target_lengths.
    """
    if reduction not in ("none", "sum", "mean") or (reduction == "mean" and target_lengths is None):
        raise ConfigError(f"reduction = {reduction!r}; expected 'none', 'sum', or 'mean' with target_lengths")
    lattice: Fsa = intersect_dense(decoding_graph, dense_fsa_vec, output_beam, frame_idx_name="frame_idx")
    if delay_penalty > 0.0:
        lattice.scores = lattice.scores + _delay(lattice, dense_fsa_vec.duration, delay_penalty)
    loss = -lattice.get_tot_scores(use_double_scores, log_semiring=True).float()
    if reduction == "none":
        return loss
    if target_lengths is None or reduction == "sum":
        return loss.sum()
    return (loss / target_lengths.to(loss.device)).mean()


def _delay(lattice: Fsa, duration: Tensor, delay_penalty: float) -> Tensor:
    """[A]: what the frames of arcs that emit a token add to their scores."""
    owner = torch.from_numpy(lattice._shape.fsa_of_arc)
    middle = (duration.long() // 2)[owner].to(lattice.device)
    repeats = lattice._tensors.get("_is_repeat_token_")
    emits = lattice.labels > 0
    emits = emits & ~repeats.bool() if repeats is not None else emits & (lattice.aux_labels > 0)
    return torch.where(emits, delay_penalty * (middle - lattice.frame_idx), 0.0)


def _edits(reference: list[int], words: list[int]) -> int:
    """The Levenshtein distance."""
    row = list(range(len(words) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, word in enumerate(words, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (expected != word))
    return row[-1]


def mwer_loss(
    lattice: Fsa,
    ref_texts: Any,
    nbest_scale: float = 0.5,
    num_paths: int = 200,
    temperature: float = 1.0,
    use_double_scores: bool = True,
    reduction: str = "sum",
) -> Any:
    """Return the expected number of word errors over paths drawn from lattices, one for each word sequence.

    Args:
        lattice: a batch whose aux_labels are words, 0 for none.
        ref_texts: the words of each reference, lists or a ragged tensor.
        nbest_scale: scale of the scores with which paths are drawn.
        num_paths: how many paths are drawn from each lattice.
        temperature: the scores of paths are divided by it.
        use_double_scores: whether the result is float64.
        reduction: "sum", "mean" over all paths, or "none" for a ragged tensor [utterance][path].
    """
    references = ref_texts.tolist() if isinstance(ref_texts, RaggedTensor) else ref_texts
    scaled = lattice.clone()
    scaled.scores = lattice.scores.detach() * nbest_scale
    drawn = paths.random_paths(scaled, use_double_scores, num_paths).tolist()
    words = lattice.aux_labels.tolist()
    kept: list[list[int]] = []
    errors: list[int] = []
    counts = [0]
    for sequences, reference in zip(drawn, references, strict=True):
        by_words: dict[tuple[int, ...], list[int]] = {}
        for path in sequences:
            row = [words[arc] for arc in path]
            flat = [
                word for entry in row for word in (entry if isinstance(entry, list) else [entry]) if word > 0
            ]
            by_words.setdefault(tuple(flat), path)
        kept += by_words.values()
        errors += [_edits(list(reference), list(sequence)) for sequence in by_words]
        counts.append(len(kept))
    arcs = RaggedTensor(kept, dtype=torch.int32, device=lattice.device)
    scores = lattice.scores.double() if use_double_scores else lattice.scores
    path_scores = RaggedTensor(arcs.shape, scores[arcs.values.long()]).sum() / temperature
    utterances = RaggedShape([torch.tensor(counts, device=lattice.device)])
    shares = RaggedTensor(utterances, path_scores).normalize(use_log=True).values.exp()
    losses = shares * torch.tensor(errors, device=shares.device)
    if reduction == "none":
        return RaggedTensor(utterances, losses)
    return losses.sum() if reduction == "sum" else losses.mean()
