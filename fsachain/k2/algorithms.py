"""Operations on automata, by k2's names. All of them keep attributes, and gradients of those that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsachain.errors import GraphError
from fsachain.fsa import on_a_path
from fsachain.k2.fsa import Fsa, derive, index_fsa, invert
from fsachain.k2.ragged import RaggedShape, RaggedTensor, index_select
from fsachain.k2.shape import FINAL, Ints, Shape, levels, sorted_shape


def _renumbered(fsa: Fsa, kept: Ints, rank: Ints) -> Fsa:
    """The automaton with the arcs `kept`, in this order, and states in the order of `rank` [S]; -1 drops a state."""
    shape = fsa._shape
    first = shape.first
    owner_of_state = np.repeat(np.arange(len(shape.states)), shape.states)
    alive = np.flatnonzero(rank >= 0)
    alive = alive[np.lexsort([rank[alive], owner_of_state[alive]])]
    states = np.bincount(owner_of_state[alive], minlength=len(shape.states))
    number = np.full(first[-1], -1)
    number[alive] = np.arange(len(alive)) - np.repeat(np.cumsum(states) - states, states)
    source, target = shape.joint()
    columns = number[source[kept]], number[target[kept]], shape.label[kept]
    new_shape, order = sorted_shape(columns, shape.fsa_of_arc[kept], states)
    return derive([(fsa, kept[order])], new_shape, fsa._is_vec)


def arc_sort(fsa: Fsa, ret_arc_map: bool = False) -> Any:
    """Sort the arcs of each state by label, with -1 last.

    Args:
        fsa: one automaton or a batch.
        ret_arc_map: whether to return (automaton, int32 [A]), the number of each arc before.
    """
    shape = fsa._shape
    source, _ = shape.joint()
    order = np.lexsort([np.where(shape.label == FINAL, np.iinfo(np.int64).max, shape.label), source])
    columns = shape.src[order], shape.dst[order], shape.label[order]
    ordered = derive([(fsa, order)], Shape(*columns, shape.arcs, shape.states), fsa._is_vec)
    arc_map = torch.from_numpy(order.astype(np.int32)).to(fsa.device)
    return (ordered, arc_map) if ret_arc_map else ordered


def connect(fsa: Fsa) -> Fsa:
    """Remove states and arcs that are on no path; an automaton without a path has no states."""
    shape = fsa._shape
    source, target = shape.joint()
    first = shape.first
    some = np.flatnonzero(shape.states)
    start = int(first[-1])
    final = np.zeros(start + 1, dtype=bool)
    final[first[some + 1] - 1] = True
    # One extra state enters all automata, so that one search answers for all of them.
    joint = np.append(source, np.full(len(some), start)), np.append(target, first[some])
    alive = on_a_path(start, final, *joint)[:start]
    kept = np.flatnonzero(alive[source] & alive[target])
    return _renumbered(fsa, kept, np.where(alive, np.arange(start), -1))


def top_sort(fsa: Fsa) -> Fsa:
    """Number states such that arcs go to higher ones.

    Raises:
        GraphError: the automaton has a cycle.
    """
    shape = fsa._shape
    source, _ = shape.joint()
    depth = np.zeros(int(shape.states.sum()), dtype=np.int64)
    for k, arcs in enumerate(levels(shape)):
        depth[source[arcs]] = k
    some = np.flatnonzero(shape.states)
    depth[shape.first[some + 1] - 1] = len(source)
    return _renumbered(fsa, np.arange(len(source)), depth * len(depth) + np.arange(len(depth)))


def intersect(
    a_fsa: Fsa, b_fsa: Fsa, treat_epsilons_specially: bool = True, ret_arc_maps: bool = False
) -> Any:
    """Return the automaton of the paths that both have, whose scores add up.

    Args:
        a_fsa, b_fsa: automata or batches; one automaton goes with each of the other's batch.
        treat_epsilons_specially: whether label 0 is an epsilon, which one side follows alone; otherwise it is a label.
        ret_arc_maps: whether to return (automaton, a's arcs, b's arcs), int32 [A], -1 for none.

    Returns:
        The result, not connected. Attributes come from both sides.

    Raises:
        GraphError: batches of different sizes.
    """
    shape, a_map, b_map = _pairs(a_fsa._shape, b_fsa._shape, treat_epsilons_specially)
    both = derive([(a_fsa, a_map), (b_fsa, b_map)], shape, a_fsa._is_vec or b_fsa._is_vec)
    maps = (torch.from_numpy(arcs.astype(np.int32)).to(a_fsa.device) for arcs in (a_map, b_map))
    return (both, *maps) if ret_arc_maps else both


def intersect_device(a_fsas: Fsa, b_fsas: Fsa, b_to_a_map: Tensor, sorted_match_a: bool = False) -> Fsa:
    """Return `intersect` without epsilons of automaton b_to_a_map[n] of a and automaton n of b.

    Args:
        a_fsas, b_fsas: batches.
        b_to_a_map: [number of automata of b] integers.
        sorted_match_a: ignored; arcs of a need not be sorted.
    """
    return intersect(index_fsa(a_fsas, b_to_a_map), b_fsas, treat_epsilons_specially=False)


def _leaving(splits: Ints, states: Ints) -> tuple[Ints, Ints]:
    """Places splits[s] .. splits[s + 1] of all states, and the row of each in `states`."""
    sizes = splits[states + 1] - splits[states]
    rows = np.repeat(np.arange(len(states)), sizes)
    return np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes - splits[states], sizes), rows


def _pairs(a: Shape, b: Shape, epsilons: bool) -> tuple[Shape, Ints, Ints]:
    """The shape of the intersection and the arcs of a and b that its arcs are made of."""
    sizes = len(a.states), len(b.states)
    if min(sizes) != max(sizes) and min(sizes) != 1:
        raise GraphError(
            f"batches of {sizes[0]} and {sizes[1]} automata; expected equal sizes, or one automaton"
        )
    count = max(sizes)
    (a_source, a_target), (b_source, b_target) = a.joint(), b.joint()
    a_first, b_first = (np.broadcast_to(x.first[:-1], count) for x in (a, b))
    a_last, b_last = (np.broadcast_to(x.first[1:] - 1, count) for x in (a, b))
    num_a, num_b = int(a.states.sum()), int(b.states.sum())
    width = int(max(a.label.max(initial=0), b.label.max(initial=0))) + 2
    by_label = np.lexsort([a.label, a_source])
    a_keys = a_source[by_label] * width + a.label[by_label] + 1
    b_splits = np.concatenate([[0], np.cumsum(np.bincount(b_source, minlength=num_b))])

    def name(owner: Ints, sa: Ints, sb: Ints, after: Ints) -> Ints:
        """One number for a state: both states, and whether an epsilon of b came last, after which none of a may."""
        return ((owner * num_a + sa) * num_b + sb) * 2 + after

    def parts(names: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        pair, after = np.divmod(names, 2)
        front, sb = np.divmod(pair, num_b)
        owner, sa = np.divmod(front, num_a)
        return owner, sa, sb, after

    def matches(sa: Ints, label: Any) -> tuple[Ints, Ints]:
        """Arcs of a with these labels, and the row of each."""
        key = sa * width + label + 1
        low, high = (np.searchsorted(a_keys, key, side=side) for side in ("left", "right"))
        rows = np.repeat(np.arange(len(key)), high - low)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(high - low) - high, high - low)
        return by_label[places], rows

    both = np.flatnonzero((np.broadcast_to(a.states, count) > 0) & (np.broadcast_to(b.states, count) > 0))
    none = np.zeros_like(both)
    frontier = name(both, a_first[both], b_first[both], none)
    finals = name(both, a_last[both], b_last[both], none)
    seen = set(frontier.tolist()) | set(finals.tolist())
    states, arcs = [frontier[~np.isin(frontier, finals)]], []
    while len(frontier):
        owner, sa, sb, after = parts(frontier)
        b_arcs, rows = _leaving(b_splits, sb)
        alone = epsilons & (b.label[b_arcs] == 0)
        matched, k = matches(sa[rows[~alone]], b.label[b_arcs[~alone]])
        r, other = rows[~alone][k], b_arcs[~alone][k]
        zero = np.zeros(len(r), dtype=np.int64)
        steps = [(r, a_target[matched], b_target[other], zero, b.label[other], matched, other)]
        if epsilons:
            r, other = rows[alone], b_arcs[alone]
            zero = np.zeros(len(r), dtype=np.int64)
            steps.append((r, sa[r], b_target[other], zero + 1, zero, zero - 1, other))
            free = np.flatnonzero(after == 0)
            own, k = matches(sa[free], 0)
            r, zero = free[k], np.zeros(len(k), dtype=np.int64)
            steps.append((r, a_target[own], sb[r], zero, zero, own, zero - 1))
        r, ta, tb, after, label, a_map, b_map = (
            np.concatenate(column) for column in zip(*steps, strict=True)
        )
        entered = name(owner[r], ta, tb, after)
        arcs.append((frontier[r], entered, label, owner[r], a_map, b_map))
        fresh = [key for key in np.unique(entered).tolist() if key not in seen]
        seen.update(fresh)
        frontier = np.array(fresh, dtype=np.int64)
        states.append(frontier)
    order = np.concatenate([*states, finals])
    owner = parts(order)[0] if len(order) else order
    by_owner = np.argsort(owner, kind="stable")
    sizes_of = np.bincount(owner, minlength=count)
    number = np.empty(len(order), dtype=np.int64)
    number[by_owner] = np.arange(len(order)) - np.repeat(np.cumsum(sizes_of) - sizes_of, sizes_of)
    sorted_names = np.argsort(order)
    columns = [np.concatenate(column) for column in zip(*arcs, strict=True)] or [
        np.zeros(0, dtype=np.int64)
    ] * 6
    ends = [number[sorted_names[np.searchsorted(order[sorted_names], column)]] for column in columns[:2]]
    shape, kept = sorted_shape((*ends, columns[2]), columns[3], sizes_of)
    return shape, columns[4][kept], columns[5][kept]


def compose(
    a_fsa: Fsa, b_fsa: Fsa, treat_epsilons_specially: bool = True, inner_labels: str | None = None
) -> Fsa:
    """Return the composition: a's aux_labels are matched with b's labels.

    Args:
        a_fsa: a transducer; b_fsa: an acceptor or a transducer. Batches as for `intersect`.
        treat_epsilons_specially: whether label 0 is an epsilon.
        inner_labels: the name of an attribute for the labels that were matched.

    Returns:
        Labels are a's, aux_labels b's aux_labels, or the matched labels if b is an acceptor. Not connected.

    Raises:
        GraphError: a has no aux_labels, or batches of different sizes.
    """
    inverted = invert(a_fsa)
    shape, a_map, b_map = _pairs(inverted._shape, b_fsa._shape, treat_epsilons_specially)
    outer = index_select(inverted.aux_labels, torch.from_numpy(a_map).to(a_fsa.device))
    del inverted.aux_labels
    label = np.where(shape.label == FINAL, FINAL, outer.cpu().numpy().astype(np.int64))
    is_vec = a_fsa._is_vec or b_fsa._is_vec
    composed = derive([(inverted, a_map), (b_fsa, b_map)], shape._replace(label=label), is_vec)
    matched = torch.from_numpy(shape.label.astype(np.int32)).to(a_fsa.device)
    if "aux_labels" not in composed._tensors:
        composed.aux_labels = matched
    if inner_labels is not None:
        setattr(composed, inner_labels, matched)
    return composed


def remove_epsilon(fsa: Fsa) -> Fsa:
    """Remove arcs of label 0; each state gets the arcs that it reached through them, by the best of epsilon paths.

    Aux labels on the way are kept: where an arc then has several, aux_labels is a ragged tensor.
    """
    shape = fsa._shape
    source, target = shape.joint()
    scores = fsa.scores.detach().double().cpu().numpy()
    leaving: list[list[int]] = [[] for _ in range(int(shape.states.sum()))]
    silent: list[list[int]] = [[] for _ in leaving]
    for arc, state in enumerate(source.tolist()):
        (silent if shape.label[arc] == 0 else leaving)[state].append(arc)
    paths: list[list[int]] = []
    starts: list[int] = []
    for state in range(len(leaving)):
        reached: dict[int, tuple[float, list[int]]] = {state: (0.0, [])}
        waiting = [state]
        while waiting:
            at = waiting.pop()
            score, path = reached[at]
            for arc in silent[at]:
                through = score + scores[arc]
                # A path that returns to a state it has passed is no better than without the circle, or has no best.
                passed = {state, *(int(target[step]) for step in path)}
                to = int(target[arc])
                if to not in passed and through > reached.get(to, (-np.inf,))[0]:
                    reached[to] = through, [*path, arc]
                    waiting.append(to)
        for at, (_, path) in reached.items():
            paths += [[*path, arc] for arc in leaving[at]]
            starts += [state] * len(leaving[at])
    last = np.array([path[-1] for path in paths], dtype=np.int64)
    owner = shape.fsa_of_arc[last]
    source = np.array(starts, dtype=np.int64) - shape.first[owner]
    new_shape, order = sorted_shape((source, shape.dst[last], shape.label[last]), owner, shape.states)
    ordered = [paths[k] for k in order]
    removed = derive([(fsa, last[order])], new_shape, fsa._is_vec)
    splits = torch.tensor(np.concatenate([[0], np.cumsum([len(path) for path in ordered], dtype=np.int64)]))
    steps = torch.tensor([arc for path in ordered for arc in path], dtype=torch.int64, device=fsa.device)
    rows = RaggedShape([splits]).to(fsa.device)
    removed.scores = RaggedTensor(rows, fsa.scores[steps]).sum()
    aux = fsa._tensors.get("aux_labels")
    if isinstance(aux, Tensor):
        lists = RaggedTensor(rows, aux[steps]).remove_values_eq(0).tolist()
        if any(len(labels) > 1 for labels in lists):
            removed.aux_labels = RaggedTensor(lists, dtype=aux.dtype, device=aux.device)
        else:
            removed.aux_labels = torch.tensor([(labels or [0])[0] for labels in lists]).to(aux)
    return connect(removed)


def add_epsilon_self_loops(fsa: Fsa) -> Fsa:
    """Add a loop of label 0 and score 0 to each state but the final ones, before its other arcs."""
    shape = fsa._shape
    loops = np.maximum(shape.states - 1, 0)
    owner = np.repeat(np.arange(len(loops)), loops)
    state = np.arange(len(owner)) - np.repeat(np.cumsum(loops) - loops, loops)
    new = state, state, np.zeros_like(state)
    columns = [np.append(*pair) for pair in zip(new, shape[:3], strict=True)]
    looped, order = sorted_shape(columns, np.append(owner, shape.fsa_of_arc), shape.states)
    arc_map = np.append(np.full(len(owner), -1), np.arange(fsa.num_arcs))[order]
    return derive([(fsa, arc_map)], looped, fsa._is_vec)


def remove_epsilon_and_add_self_loops(fsa: Fsa) -> Fsa:
    """Return `remove_epsilon`, then `add_epsilon_self_loops`."""
    return add_epsilon_self_loops(remove_epsilon(fsa))


linear_fsa_with_self_loops = remove_epsilon_and_add_self_loops
linear_fst_with_self_loops = remove_epsilon_and_add_self_loops

Row = tuple[int, int, int, int, float]


def _build(graphs: Sequence[Sequence[Row]], is_vec: bool, device: Any, is_transducer: bool = True) -> Fsa:
    """Of rows (source, destination, label, aux label, score), the last of which enters the final state."""
    table = np.array([row for rows in graphs for row in rows], dtype=np.float64).reshape(-1, 5)
    owner = np.repeat(np.arange(len(graphs)), [len(rows) for rows in graphs])
    states = [max(int(row[1]) for row in rows) + 1 for rows in graphs]
    shape, order = sorted_shape(table[:, :3].T, owner, states)
    fsa = Fsa.of_shape(shape, torch.tensor(table[order, 4], dtype=torch.float32, device=device), is_vec)
    if is_transducer:
        fsa.aux_labels = torch.tensor(table[order, 3], dtype=torch.int32, device=device)
    return fsa


def _sequences(symbols: Any, device: Any) -> tuple[list[list[int]], bool, Any]:
    """Lists of symbols, whether there are several, and the device."""
    if isinstance(symbols, RaggedTensor):
        return symbols.tolist(), True, symbols.device
    is_batch = len(symbols) > 0 and isinstance(symbols[0], list | tuple)
    return (symbols if is_batch else [symbols]), is_batch, device


def linear_fsa(labels: Any, device: Any = None) -> Fsa:
    """Return the automaton of one label sequence, or the batch of several.

    Args:
        labels: a list of integers, a list of lists, or a ragged tensor of two axes.
        device: where it lives; a ragged tensor's own otherwise.
    """
    sequences, is_batch, place = _sequences(labels, device)
    graphs = [[(k, k + 1, int(s), 0, 0.0) for k, s in enumerate([*row, FINAL])] for row in sequences]
    return _build(graphs, is_batch, place, is_transducer=False)


def linear_fst(labels: Any, aux_labels: Any, device: Any = None) -> Fsa:
    """Return `linear_fsa` of the labels with aux labels, as many in each sequence."""
    fsa = linear_fsa(labels, device)
    rows, _, _ = _sequences(aux_labels, device)
    flat = [int(label) for row in rows for label in (*row, FINAL)]
    fsa.aux_labels = torch.tensor(flat, dtype=torch.int32, device=fsa.device)
    return fsa


def trivial_graph(max_token: int, device: Any = None) -> Fsa:
    """Return the graph of one state that accepts any tokens 1 .. max_token and writes them."""
    rows: list[Row] = [(0, 0, token, token, 0.0) for token in range(1, max_token + 1)]
    return _build([[*rows, (0, 1, FINAL, FINAL, 0.0)]], False, device)


def ctc_topo(max_token: int, modified: bool = False, device: Any = None) -> Fsa:
    """Return the CTC topology, from frame labels to tokens; 0 is the blank.

    Args:
        max_token: the largest token.
        modified: whether equal tokens may follow each other without a blank. Such a graph has 4 x max_token arcs, the other
            one their square.
        device: where it lives.
    """
    rows: list[Row] = []
    tokens = range(max_token + 1)
    if modified:
        last = max_token + 1
        rows += [(0, 0, token, token, 0.0) for token in tokens]
        rows += [(0, token, token, token, 0.0) for token in tokens[1:]]
        rows += [(token, to, token, 0, 0.0) for token in tokens[1:] for to in (0, token)]
        rows.append((0, last, FINAL, FINAL, 0.0))
        return _build([rows], False, device)
    for state in tokens:
        rows += [(state, token, token, 0 if token == state else token, 0.0) for token in tokens]
        rows.append((state, max_token + 1, FINAL, FINAL, 0.0))
    return _build([rows], False, device)


def ctc_graph(symbols: Any, modified: bool = False, device: Any = None) -> Fsa:
    """Return the CTC graphs of token sequences, a batch.

    Args:
        symbols: a list of lists or a ragged tensor of two axes, of tokens from 1 on.
        modified: whether equal tokens may follow each other without a blank.
        device: where it lives.
    """
    sequences, _, place = _sequences(symbols, device)
    return _build([_ctc_rows(tokens, modified) for tokens in sequences], True, place)


def _ctc_rows(tokens: Sequence[int], modified: bool) -> list[Row]:
    """State 2 u is the blank before token u, 2 u + 1 the token."""
    count = len(tokens)
    final: Row = (2 * count, 2 * count + 1, FINAL, FINAL, 0.0)
    rows: list[Row] = []
    for u, token in enumerate(tokens):
        blank, state = 2 * u, 2 * u + 1
        rows += [(blank, blank, 0, 0, 0.0), (blank, state, token, token, 0.0)]
        rows += [(state, state + 1, 0, 0, 0.0), (state, state, token, 0, 0.0)]
        if u + 1 == count:
            rows.append((state, 2 * count + 1, FINAL, FINAL, 0.0))
        elif modified or tokens[u + 1] != token:
            rows.append((state, state + 2, tokens[u + 1], tokens[u + 1], 0.0))
    return [*rows, (2 * count, 2 * count, 0, 0, 0.0), final]


def levenshtein_graph(symbols: Any, ins_del_score: float = -0.501, device: Any = None) -> Fsa:
    """Return graphs whose intersections score edits: -1 for a substitution, 2 ins_del_score for the others.

    Args:
        symbols: a list of lists or a ragged tensor of two axes.
        ins_del_score: the score of half an insertion or a deletion.
        device: where it lives.

    Returns:
        A batch with the attribute `__ins_del_score_offset_internal_attr_`, float32 [A]: what makes scores of loops differ
        from -0.5.
    """
    sequences, _, place = _sequences(symbols, device)
    graphs: list[list[Row]] = []
    for row in sequences:
        rows: list[Row] = []
        for k, symbol in enumerate(row):
            rows += [
                (k, k, 0, 0, ins_del_score),
                (k, k + 1, 0, symbol, -0.5),
                (k, k + 1, symbol, symbol, 0.0),
            ]
        graphs.append(
            [*rows, (len(row), len(row), 0, 0, ins_del_score), (len(row), len(row) + 1, FINAL, FINAL, 0.0)]
        )
    fsa = _build(graphs, True, place)
    loops = torch.from_numpy(fsa._shape.src == fsa._shape.dst).to(fsa.device)
    setattr(fsa, "__ins_del_score_offset_internal_attr_", torch.where(loops, ins_del_score + 0.5, 0.0))
    return fsa
