"""fsachain.k2 against paths written out one by one and against the library's own losses, without k2."""

import itertools
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tolerances
import torch

import fsachain
from fsachain import k2
from fsachain.errors import ConfigError, DataError, GraphError, ShapeError

SCORES = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
SEGMENTS = torch.tensor([[0, 0, 7], [2, 1, 4], [1, 2, 5]])
TOKENS = [[1, 2, 2], [4], [3, 3]]


def paths_of(fsa):
    """All paths of an acyclic automaton, as lists of arcs."""
    source, target = fsa._shape.src.tolist(), fsa._shape.dst.tolist()
    last = int(fsa._shape.states[0]) - 1 if len(fsa._shape.states) else -1
    complete, open_paths = [], [(0, [])]
    while open_paths:
        state, path = open_paths.pop()
        if state == last:
            complete.append(path)
            continue
        open_paths += [(target[k], [*path, k]) for k in range(len(source)) if source[k] == state]
    return complete


def random_text(seed, states=5, arcs=9, labels=3, aux=False):
    """An acyclic automaton as text, each state with a way to the final one."""
    draw = random.Random(seed)
    pairs = [(s, draw.randrange(s + 1, states)) for s in range(states - 1)]
    pairs += [tuple(sorted(draw.sample(range(states), 2))) for _ in range(arcs)]
    lines = [f"{s} {states} -1 {'-1 ' * aux}{draw.gauss(0, 1):.3f}" for s in range(1, states)]
    for s, t in pairs:
        symbols = [draw.randrange(labels + 1) for _ in range(1 + aux)]
        lines.append(f"{s} {t} {' '.join(map(str, symbols))} {draw.gauss(0, 1):.3f}")
    return "\n".join([*sorted(lines), str(states)])


def weights_by_text(fsa, skip_epsilon=True):
    """The sum over all paths of each sequence of (label, aux label) pairs, zeros left out of both sides."""
    aux = fsa.aux_labels.tolist() if "aux_labels" in fsa._tensors else fsa.labels.tolist()
    labels, scores = fsa.labels.tolist(), fsa.scores.tolist()
    sums = {}
    for path in paths_of(fsa):
        read = tuple(labels[k] for k in path if labels[k] or not skip_epsilon)
        written = tuple(aux[k] for k in path if aux[k] or not skip_epsilon)
        score = math.fsum(scores[k] for k in path)
        sums[read, written] = np.logaddexp(sums.get((read, written), -np.inf), score)
    return sums


def same_weights(found, expected):
    assert found.keys() == expected.keys() and expected
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=tolerances.FEW_FLOAT32_TERMS)


def test_text_in_both_formats_comes_back():
    text = "0 1 2 0.5\n0 1 1 -0.25\n1 2 -1 0.3\n2\n"
    assert k2.to_str(k2.Fsa.from_str(text)) == text
    fst = k2.Fsa.from_openfst("0 1 3 4 0.5\n1 1 2 0 1\n1 0.25\n", acceptor=False)
    assert k2.to_str(fst) == "0 1 3 4 -0.5\n1 1 2 0 -1\n1 2 -1 -1 -0.25\n2\n"
    again = k2.Fsa.from_dict(fst.as_dict())
    assert k2.to_str(again) == k2.to_str(fst)
    assert torch.equal(fst.arcs.values()[:, 3].contiguous().view(torch.float32), fst.scores)


@pytest.mark.parametrize("log_semiring", [True, False])
def test_sums_and_their_gradients_are_those_of_all_paths(log_semiring):
    batch = k2.create_fsa_vec([k2.Fsa.from_str(random_text(seed)) for seed in range(6)])
    scores = batch.scores.double().requires_grad_()
    batch.scores = scores
    total = batch.get_tot_scores(use_double_scores=True, log_semiring=log_semiring)
    expected = []
    for n in range(6):
        totals = torch.stack([batch[n].scores[path].sum() for path in paths_of(batch[n])])
        expected.append(totals.logsumexp(0) if log_semiring else totals.max())
    expected = torch.stack(expected)
    torch.testing.assert_close(total, expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
    factor = torch.arange(1.0, 7.0, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * factor).sum(), scores)[0] for x in (total, expected))
    torch.testing.assert_close(ours, theirs, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


def test_an_automaton_without_a_path_sums_to_minus_infinity_and_a_cycle_is_refused():
    empty = k2.create_fsa_vec([k2.connect(k2.Fsa.from_str("0 1 1 0.1\n2 3 -1 0.2\n3"))])
    assert empty.num_arcs == 0
    assert empty.get_tot_scores(use_double_scores=True, log_semiring=True).tolist() == [-math.inf]
    assert k2.shortest_path(empty).num_arcs == 0
    looped = k2.create_fsa_vec([k2.Fsa.from_str("0 0 1 0.1\n0 1 -1 0\n1")])
    with pytest.raises(GraphError, match="has a cycle; expected an acyclic one"):
        looped.get_tot_scores(use_double_scores=True, log_semiring=True)


@pytest.mark.parametrize("seed", range(8))
def test_intersection_and_composition_have_the_paths_that_match(seed):
    a = k2.Fsa.from_str(random_text(seed, aux=True), num_aux_labels=1)
    b = k2.Fsa.from_str(random_text(seed + 100, aux=True), num_aux_labels=1)
    of_a, of_b = weights_by_text(a), weights_by_text(b)
    expected = {}
    for (read, middle), one in of_a.items():
        for (other, written), two in of_b.items():
            if middle == other:
                key = read, written
                expected[key] = np.logaddexp(expected.get(key, -np.inf), one + two)
    same_weights(weights_by_text(k2.connect(k2.compose(a, b))), expected)
    assert k2.connect(k2.compose(a, b)).get_tot_scores(True, True).item() == pytest.approx(
        np.logaddexp.reduce(list(expected.values())), abs=tolerances.FEW_FLOAT32_TERMS
    )


def test_epsilons_that_are_labels_match_themselves():
    a = k2.Fsa.from_str("0 1 0 0.5\n1 2 1 0\n2 3 -1 0\n3")
    b = k2.add_epsilon_self_loops(k2.linear_fsa([1]))
    both = k2.connect(k2.intersect(a, b, treat_epsilons_specially=False))
    assert both.labels.tolist() == [0, 1, -1] and both.scores.tolist() == [0.5, 0, 0]
    assert k2.connect(k2.intersect(a, k2.linear_fsa([1]), treat_epsilons_specially=False)).num_arcs == 0
    with pytest.raises(GraphError, match="batches of 2 and 3 automata"):
        k2.intersect(k2.linear_fsa([[1], [2]]), k2.linear_fsa([[1], [2], [3]]))


@pytest.mark.parametrize("seed", range(6))
def test_removed_epsilons_leave_the_best_path_of_each_text(seed):
    fsa = k2.Fsa.from_str(random_text(seed, labels=2))
    removed = k2.remove_epsilon(fsa)
    assert (removed.labels != 0).all()

    def best(automaton):
        scores, labels = automaton.scores.tolist(), automaton.labels.tolist()
        table = {}
        for path in paths_of(automaton):
            text = tuple(labels[k] for k in path if labels[k])
            table[text] = max(table.get(text, -np.inf), math.fsum(scores[k] for k in path))
        return table

    found, expected = best(removed), best(fsa)
    assert found.keys() == expected.keys()
    for text, score in expected.items():
        assert found[text] == pytest.approx(score, abs=tolerances.FEW_FLOAT32_TERMS)


def test_an_inverted_transducer_with_several_labels_an_arc_writes_what_it_read():
    fsa = k2.Fsa.from_str("0 1 1 0.1\n0 1 2 0.2\n1 2 -1 0.3\n2").requires_grad_()
    fsa.aux_labels = k2.RaggedTensor([[5, 6], [], [-1]])
    inverted = fsa.invert()
    texts = weights_by_text(inverted)
    expected = {((5, 6, -1), (1, -1)): 0.4, ((-1,), (2, -1)): 0.5}
    same_weights(texts, expected)
    inverted.scores.sum().backward()
    assert fsa.grad.tolist() == [1, 1, 1]


def test_states_are_sorted_so_that_arcs_go_up():
    fsa = k2.Fsa.from_str("0 2 1 0.1\n1 3 -1 0\n2 1 2 0.2\n3")
    ordered = k2.top_sort(fsa)
    assert (ordered._shape.src < ordered._shape.dst).all()
    same_weights(weights_by_text(ordered), weights_by_text(fsa))


def dense(requires_grad=False):
    scores = SCORES.clone().requires_grad_(requires_grad)
    return scores, k2.DenseFsaVec(scores.log_softmax(2), SEGMENTS)


@pytest.mark.parametrize("how", ["graph", "topology", "modified"])
def test_ctc_loss_is_that_of_every_alignment(how):
    if how == "graph":
        graph = k2.ctc_graph(TOKENS)
    else:
        graph = k2.compose(k2.ctc_topo(4, modified=how == "modified"), k2.linear_fsa(TOKENS))
    scores, vec = dense(requires_grad=True)
    loss = k2.ctc_loss(graph, vec, reduction="none")
    assert loss.dtype == torch.float32
    expected = []
    for tokens, (row, start, count) in zip(TOKENS, SEGMENTS.tolist(), strict=True):
        frames = scores[row, start : start + count].log_softmax(1)
        alignments = []
        for pdfs in itertools.product(sorted({0, *tokens}), repeat=count):
            kept = [p for k, p in enumerate(pdfs) if p and (how == "modified" or k == 0 or pdfs[k - 1] != p)]
            merged = ways(pdfs, tokens) if how == "modified" else int(kept == tokens)
            if merged:
                alignments.append(frames[range(count), list(pdfs)].sum() + math.log(merged))
        expected.append(-torch.stack(alignments).logsumexp(0))
    expected = torch.stack(expected)
    torch.testing.assert_close(loss.double(), expected, rtol=tolerances.FEW_FLOAT32_TERMS, atol=0)
    ours, theirs = (torch.autograd.grad(x.sum(), scores)[0] for x in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerances.FEW_FLOAT32_TERMS)
    lengths = torch.tensor([3, 1, 2])
    mean = k2.ctc_loss(graph, vec, reduction="mean", target_lengths=lengths)
    torch.testing.assert_close(mean, (loss / lengths).mean())


def ways(pdfs, tokens):
    """In how many ways runs of frames are these tokens: without the blank that the modified topology does not need."""
    count = {0: 1}
    previous = 0
    for pdf in pdfs:
        new = {}
        for done, number in count.items():
            if pdf == 0:
                new[done] = new.get(done, 0) + number
                continue
            if done < len(tokens) and tokens[done] == pdf:
                new[done + 1] = new.get(done + 1, 0) + number
            if done and tokens[done - 1] == pdf and previous == pdf:
                new[done] = new.get(done, 0) + number
        count, previous = new, pdf
    return count.get(len(tokens), 0)


def test_a_lattice_is_the_same_with_and_without_its_arcs():
    graph = k2.ctc_graph(TOKENS)
    graph.scores = torch.linspace(-1, 1, graph.num_arcs, dtype=torch.float64).requires_grad_()
    for log_semiring in (True, False):
        results = []
        for by_arcs in (False, True):
            scores, vec = dense(requires_grad=True)
            lattice = k2.intersect_dense(
                graph, vec, 1e6, seqframe_idx_name="seqframe", frame_idx_name="frame"
            )
            assert lattice.shape == (3, None, None)
            if by_arcs:
                assert lattice.num_arcs == len(lattice.frame)
                assert lattice.seqframe.max() == (SEGMENTS[:, 2] + 1).sum() - 1
            total = lattice.get_tot_scores(True, log_semiring)
            results.append((total, *torch.autograd.grad(total.sum(), (scores, graph.scores))))
        for lazy, made in zip(*results, strict=True):
            torch.testing.assert_close(lazy, made, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


def test_the_best_path_of_a_lattice_is_found_with_and_without_its_arcs():
    graph = k2.ctc_graph(TOKENS)
    _, vec = dense()
    lazy = k2.shortest_path(k2.intersect_dense(graph, vec, 8.0))
    made = k2.intersect_dense(graph, vec, 8.0)
    assert made.num_arcs > lazy.num_arcs
    made = k2.shortest_path(made)
    assert torch.equal(lazy.labels, made.labels) and torch.equal(lazy.aux_labels, made.aux_labels)
    torch.testing.assert_close(lazy.scores, made.scores)
    assert lazy._shape.states.tolist() == made._shape.states.tolist()


def test_a_beam_leaves_out_arcs_and_never_the_best_path():
    graph = k2.ctc_graph(TOKENS)
    _, vec = dense()
    whole, narrow = (k2.intersect_dense(graph, vec, beam) for beam in (1e6, 0.5))
    assert 0 < narrow.num_arcs < whole.num_arcs
    assert torch.equal(narrow.get_tot_scores(True, False), whole.get_tot_scores(True, False))


def test_one_graph_serves_all_segments_and_a_map_names_the_segment_of_each():
    _, vec = dense()
    topology = k2.create_fsa_vec([k2.ctc_topo(4)])
    shared = k2.intersect_dense(topology, vec, 1e6).get_tot_scores(True, True)
    graphs = k2.index_fsa(topology, torch.zeros(3, dtype=torch.int32))
    assert torch.equal(shared, k2.intersect_dense(graphs, vec, 1e6).get_tot_scores(True, True))
    mapped = k2.intersect_dense(graphs, vec, 1e6, a_to_b_map=torch.tensor([1, 1, 2])).get_tot_scores(
        True, True
    )
    assert mapped.tolist() == shared[[1, 1, 2]].tolist()
    with pytest.raises(GraphError, match="2 graphs for 3 segments"):
        k2.intersect_dense(k2.ctc_graph([[1], [2]]), vec, 1e6)
    with pytest.raises(ShapeError, match=r"supervision_segments\[0\] = \[0, 3, 5\]"):
        k2.DenseFsaVec(SCORES, torch.tensor([[0, 3, 5]]))
    cut = k2.DenseFsaVec(SCORES, torch.tensor([[0, 3, 5]]), allow_truncate=1)
    assert cut.duration.tolist() == [4]
    pruned = k2.intersect_dense_pruned(topology, vec, 20.0, 8.0, 30, 10000)
    assert torch.equal(pruned.get_tot_scores(True, True), shared)
    with pytest.raises(ConfigError, match="allow_partial = True; expected False"):
        k2.intersect_dense_pruned(topology, vec, 20.0, 8.0, 30, 10000, allow_partial=True)


def test_a_delay_penalty_moves_expected_frames_forward():
    _, vec = dense()
    graph = k2.ctc_graph(TOKENS)
    plain = k2.ctc_loss(graph, vec, output_beam=1e6, reduction="none")
    late = k2.ctc_loss(graph, vec, output_beam=1e6, delay_penalty=0.1, reduction="none")
    lattice = k2.intersect_dense(graph, vec, 1e6, frame_idx_name="frame")
    middle = torch.tensor([7, 4, 5]) // 2
    moved = 0.1 * (middle[lattice._shape.fsa_of_arc] - lattice.frame)
    lattice.scores = lattice.scores + torch.where(lattice.aux_labels > 0, moved, 0.0)
    torch.testing.assert_close(late, -lattice.get_tot_scores(True, True).float())
    assert not torch.equal(plain, late)
    with pytest.raises(ConfigError, match="reduction = 'mean'; expected"):
        k2.ctc_loss(graph, vec, reduction="mean")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained"])
def test_transducer_losses_are_the_librarys_in_the_type_of_the_scores(dtype, rnnt_type):
    generator = torch.Generator().manual_seed(0)
    am, lm = (torch.randn(2, n, 6, generator=generator).to(dtype).requires_grad_() for n in (5, 4))
    symbols = torch.tensor([[1, 2, 3], [4, 5, 0]])
    boundary = torch.tensor([[0, 0, 3, 5], [0, 0, 2, 4]])
    options = {"boundary": boundary, "rnnt_type": rnnt_type, "reduction": "none"}
    logits = am.unsqueeze(2) + lm.unsqueeze(1)
    expected = fsachain.rnnt_loss(logits, symbols, [5, 4], [3, 2], 0, reduction="none", rnnt_type=rnnt_type)
    simple, grads = k2.rnnt_loss_simple(lm, am, symbols, 0, return_grad=True, **options)
    smoothed = k2.rnnt_loss_smoothed(lm, am, symbols, 0, 0.0, 0.0, **options)
    joint = k2.get_rnnt_logprobs_joint(logits, symbols, 0, rnnt_type, boundary)
    ranges = k2.get_rnnt_prune_ranges(*grads, boundary, 4)
    all_nodes = k2.get_rnnt_logprobs_pruned(logits, symbols, ranges, 0, boundary, rnnt_type)
    added = k2.get_rnnt_logprobs(lm, am, symbols, 0, rnnt_type, boundary)
    found = [simple, smoothed, k2.rnnt_loss(logits, symbols, 0, **options)]
    found.append(k2.rnnt_loss_pruned(logits, symbols, ranges, 0, **options))
    found += [-k2.mutual_information_recursion(*pair, boundary) for pair in (joint, all_nodes, added)]
    for loss in found:
        assert loss.dtype == dtype
        torch.testing.assert_close(loss.double(), expected, rtol=tolerances.FEW_FLOAT32_TERMS, atol=0)
    assert all(grad.dtype == dtype for grad in grads)
    old = k2.get_rnnt_prune_ranges_deprecated(*grads, boundary, 2)
    kept = lm.gather(1, old.reshape(2, -1, 1).expand(-1, -1, 6)).view(2, 5, 2, 6)
    pruned = k2.rnnt_loss_pruned(am.unsqueeze(2) + kept, symbols, old, 0, **options)
    assert torch.isfinite(pruned).all() and (pruned.double() >= expected - tolerances.FEW_FLOAT32_TERMS).all()


def test_the_hat_loss_of_all_nodes_is_the_librarys():
    logits = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    symbols, boundary = torch.tensor([[1, 2, 3], [4, 5, 1]]), torch.tensor([[0, 0, 3, 5], [0, 0, 2, 4]])
    ranges = torch.arange(4).expand(2, 5, 4)
    ours = k2.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, reduction="none", use_hat_loss=True)
    expected = fsachain.hat_loss(logits, symbols, [5, 4], [3, 2], blank=0, reduction="none")
    torch.testing.assert_close(ours, expected, rtol=tolerances.FLOAT64, atol=0)
    pair = k2.get_hat_logprobs_pruned(logits, symbols, ranges, 0, boundary)
    torch.testing.assert_close(-k2.mutual_information_recursion(*pair, boundary), expected)


def test_terms_of_a_recursion_add_up_and_have_its_gradients():
    generator = torch.Generator().manual_seed(2)
    px = [torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    py = [torch.randn(2, 4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    parts = k2.joint_mutual_information_recursion(px, py)
    whole = k2.mutual_information_recursion(sum(px), sum(py))
    torch.testing.assert_close(parts.sum(0), whole)
    again, occupancies = k2.mutual_information_recursion(sum(px), sum(py), None, True)
    assert torch.equal(again, whole) and [x.shape for x in occupancies] == [px[0].shape, py[0].shape]
    ours = torch.autograd.grad(parts.sum(), [*px, *py])
    theirs = torch.autograd.grad(whole.sum(), [*px, *py])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("name", "shift", "offset"), [("l", 4.0, 0.035), ("r", 1.0, 0.313261687)])
def test_swooshes_are_their_formulas_with_exact_derivatives(name, shift, offset):
    x = torch.linspace(-200, 200, 81, dtype=torch.float64).requires_grad_()
    expected = torch.logaddexp(torch.zeros_like(x), x - shift) - 0.08 * x - offset
    y = getattr(k2, f"swoosh_{name}")(x)
    torch.testing.assert_close(y, expected)
    ours, theirs = (torch.autograd.grad(value.sum(), x)[0] for value in (y, expected))
    torch.testing.assert_close(ours, theirs)
    forward, slope = getattr(k2, f"swoosh_{name}_forward_and_deriv")(x)
    torch.testing.assert_close((forward, slope), (expected.detach(), theirs))
    assert torch.equal(getattr(k2, f"swoosh_{name}_forward")(x), forward)
    half = x.detach().half().requires_grad_()
    assert getattr(k2, f"swoosh_{name}")(half).dtype == torch.float32
    dropped = getattr(k2, f"swoosh_{name}")(torch.ones(4000, requires_grad=True), 0.25)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=tolerances.DRAWN_SHARE)


def test_drawn_paths_have_the_shares_of_their_probabilities():
    batch = k2.create_fsa_vec([k2.Fsa.from_str(random_text(4, states=4, arcs=3))])
    drawn = [tuple(path) for path in k2.random_paths(batch, True, 4000).tolist()[0]]
    paths = [tuple(path) for path in paths_of(batch)]
    weights = np.array([batch.scores[list(path)].sum().item() for path in paths])
    shares = np.exp(weights - np.logaddexp.reduce(weights))
    for path, share in zip(paths, shares, strict=True):
        assert drawn.count(path) / 4000 == pytest.approx(share, abs=tolerances.DRAWN_SHARE)


def test_word_errors_are_expected_over_distinct_texts():
    lattice = k2.Fsa.from_str("0 1 1 10 -1\n0 1 2 20 -2\n1 2 -1 -1 0\n2", acceptor=False)
    batch = k2.create_fsa_vec([lattice]).requires_grad_()
    loss = k2.mwer_loss(batch, [[10]], nbest_scale=1.0, num_paths=100)
    share = math.exp(-2) / (math.exp(-1) + math.exp(-2))
    assert loss.item() == pytest.approx(share, abs=tolerances.FEW_FLOAT32_TERMS)
    loss.backward()
    slope = share * (1 - share)
    assert batch.grad.tolist() == pytest.approx([-slope, slope, 0.0], abs=tolerances.FEW_FLOAT32_TERMS)
    assert k2.mwer_loss(batch, [[10]], 1.0, 100, reduction="none").tolist()[0][0] == 0


def test_levenshtein_graphs_have_loops_for_insertions_and_arcs_for_substitutions():
    graph = k2.levenshtein_graph([[7], []], ins_del_score=-0.6)
    assert k2.to_str(graph[0]) == "0 0 0 0 -0.6\n0 1 0 7 -0.5\n0 1 7 7 0\n1 1 0 0 -0.6\n1 2 -1 -1 0\n2\n"
    offset = getattr(graph, "__ins_del_score_offset_internal_attr_").tolist()
    expected = [-0.1, 0, 0, -0.1, 0, -0.1, 0]
    assert offset == pytest.approx(expected, abs=tolerances.FEW_FLOAT32_TERMS)


def test_ragged_tensors_do_what_lists_do():
    ragged = k2.RaggedTensor([[[1, 2], []], [], [[3]]])
    assert ragged.num_axes == 3 and ragged.dim0 == 3 and ragged.tot_size(1) == 3
    assert ragged.remove_axis(1).tolist() == [[1, 2], [], [3]]
    assert ragged.remove_axis(0).tolist() == [[1, 2], [], [3]]
    assert ragged[0].tolist() == [[1, 2], []]
    flat = k2.RaggedTensor("[[1 2] [] [3 4 5]]")
    assert flat.pad(padding_value=9).tolist() == [[1, 2, 9], [9, 9, 9], [3, 4, 5]]
    assert flat.sum().tolist() == [3, 0, 12] and flat.argmax().tolist() == [1, -1, 4]
    assert flat.remove_values_leq(2).tolist() == [[], [], [3, 4, 5]]
    assert flat.remove_values_eq(4).tolist() == [[1, 2], [], [3, 5]]
    assert flat.index(k2.RaggedTensor([[2, 0], [1]])).tolist() == [[[3, 4, 5], [1, 2]], [[]]]
    rows, places = flat.index(torch.tensor([2, 0]), need_value_indexes=True)
    assert rows.tolist() == [[3, 4, 5], [1, 2]] and places.tolist() == [2, 3, 4, 0, 1]
    other = k2.RaggedTensor([[7], [8], []])
    assert k2.ragged.cat([flat, other], axis=0).tolist() == [[1, 2], [], [3, 4, 5], [7], [8], []]
    assert k2.ragged.cat([other, flat], axis=1).tolist() == [[7, 1, 2], [8], [3, 4, 5]]
    shape = k2.ragged.create_ragged_shape2(torch.tensor([0, 1, 1, 3]))
    assert k2.RaggedTensor(shape, torch.tensor([1.0, 2, 3])).normalize(use_log=False).tolist()[
        2
    ] == pytest.approx([0.4, 0.6], abs=tolerances.FEW_FLOAT32_TERMS)
    assert shape.row_ids(1).tolist() == [0, 2, 2]
    with pytest.raises(ShapeError, match="needs two axes or more"):
        k2.RaggedTensor([1, 2])


def test_symbol_tables_go_both_ways(tmp_path):
    table = k2.SymbolTable.from_str("<blk> 0\na 1\nb 2")
    assert table["a"] == 1 and table[2] == "b" and "c" not in table and table.add("c") == 3
    table.to_file(tmp_path / "tokens.txt")
    assert k2.SymbolTable.from_file(tmp_path / "tokens.txt").ids == [0, 1, 2, 3]
    with pytest.raises(DataError, match="comes twice"):
        k2.SymbolTable.from_str("a 1\na 2")


def test_wrong_arcs_and_attributes_are_refused():
    with pytest.raises(GraphError, match="expected label -1 on arcs into the last state"):
        k2.Fsa.from_str("0 1 1 0\n1")
    with pytest.raises(GraphError, match="words has 2 entries; expected one for each arc, 3 in all"):
        k2.linear_fsa([1, 2]).words = torch.tensor([1, 2])
    with pytest.raises(GraphError, match="expected a transducer"):
        k2.invert(k2.linear_fsa([1]))
    with pytest.raises(AttributeError, match="no attribute 'aux_labels'"):
        _ = k2.linear_fsa([1]).aux_labels


def test_programs_that_import_k2_find_its_modules_as_the_page_says():
    page = (Path(__file__).resolve().parents[1] / "docs" / "integrations" / "k2.md").read_text(
        encoding="utf-8"
    )
    program = page.split("```python\n")[1].split("```")[0]
    program += "import k2\nimport k2.version\nfrom k2.ragged import cat\nprint(k2.version.__version__, k2.Fsa.__name__)"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == [k2.version.__version__, "Fsa"]


def test_every_public_name_is_documented():
    for name in k2.__all__:
        value = getattr(k2, name)
        assert not callable(value) or value.__doc__, name
