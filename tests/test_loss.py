"""What `LFMMILoss` adds up, and what it and every other loss leaves out and reports."""

import copy
import gc
import math
import pickle
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import tolerances
import torch
from loss_inputs import (
    FRAMES,
    KINDS,
    LENGTHS,
    LOSSES,
    SIZE,
    WIDTH,
    close,
    make_denominator,
    make_graphs,
    make_loss,
    make_output,
    real_frames,
    spoil,
)

import fsachain
from fsachain import Fsa, TableBatch, compile_table, forward_backward, total_log_prob
from fsachain.backends.cpu import backend as cpu
from fsachain.backends.cpu import memory
from fsachain.loss.base import ObjectiveWarning

of_every_loss = pytest.mark.parametrize("loss_kind", LOSSES)


def cost_of_exclusion(loss_kind):
    """What an excluded sequence costs in objf per frame: MBR counts its frames as wrong, no more."""
    return 0.0 if loss_kind == "MBR" else 10.0


def oracle(output, boost=0.0, leaky=0.1):
    """Numerator, and denominator of the boosted scores, both by the oracle in float64."""
    y = output.detach().double()
    packed = TableBatch.pack([compile_table(graph, WIDTH) for graph in make_graphs()])
    num = forward_backward(packed, y, LENGTHS, backend="reference")
    options = {"leaky_hmm_coefficient": leaky, "backend": "reference"}
    batch = make_denominator().batch(SIZE)
    return num, forward_backward(batch, y - boost * num.occupancy, LENGTHS, **options)


BOOST = 0.4


@pytest.mark.parametrize(("boost", "leaky"), [(0.0, 0.1), (BOOST, 0.0), (BOOST, 1e-5), (BOOST, 0.5)])
def test_every_field_of_the_record_and_the_gradient_follow_their_formulas(boost, leaky):
    """With `boost` b the denominator sees y - b a(t, p), a the numerator's occupancy, which counts as a constant.

    A weight of zero leaves log Z as it is and takes the gradient away.
    """
    options = {
        "l2_regularize": 0.05,
        "out_of_range_regularize": 0.2,
        "xent_regularize": 0.3,
        "denominator_scale": 0.7,
    }
    loss, output = make_loss(boost=boost, leaky_hmm_coefficient=leaky, **options), make_output(scale=20.0)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
    xent = make_output(seed=1).detach().log_softmax(dim=2).requires_grad_()
    value = loss(output, LENGTHS, make_graphs(), weights=weights, xent_log_probs=xent)
    (-8.0 * value).backward()
    num, den = oracle(output, boost, leaky)
    record, y = loss.last_record, output.detach() * real_frames()
    per_sequence, excess = weights.view(-1, 1, 1), y - y.clamp(-30, 30)
    close(record.num_log_prob, num.log_prob)
    close(record.den_log_prob, den.log_prob)
    close(record.objf_ok, (weights * (num.log_prob - 0.7 * den.log_prob)).sum())
    close(record.objf, record.objf_ok)
    close(record.l2_term, -0.5 * 0.05 * (per_sequence * y**2).sum())
    close(record.out_of_range_term, -0.5 * 0.2 * (per_sequence * excess**2).sum())
    assert record.out_of_range_term < 0
    close(record.xent_objf, (per_sequence * num.occupancy * xent.detach()).sum())
    close(record.weight, (weights * torch.tensor(LENGTHS)).sum())
    close(record.weight_ok, record.weight)
    assert record.ok.all() and record.excluded == () and record.names[2] == "sequence 2"
    total = record.objf_ok + record.l2_term + record.out_of_range_term + 0.3 * record.xent_objf
    close(value.detach(), -total / record.weight_ok, tolerances.ROUNDING)
    assert value.dtype == torch.float64 and value.shape == ()
    gradient = num.occupancy - 0.7 * den.occupancy - 0.05 * y - 0.2 * excess
    close(output.grad * record.weight_ok, 8.0 * per_sequence * gradient)
    close(xent.grad * record.weight_ok, 8.0 * 0.3 * per_sequence * num.occupancy)  # a constant to the branch


@of_every_loss
def test_objective_equals_the_record_of_the_call(loss_kind):
    loss = make_loss(loss_kind, l2_regularize=0.01, xent_regularize=0.1)
    output, xent = make_output(), make_output(seed=1).detach().log_softmax(2)
    loss(output, LENGTHS, make_graphs(), xent_log_probs=xent)
    called = loss.last_record
    record = loss.objective(output, LENGTHS, make_graphs(), xent_log_probs=xent)
    assert loss.last_record is called
    for name, value in vars(record).items():
        other = getattr(called, name)
        close(value, other) if isinstance(value, torch.Tensor) and value.dtype != torch.bool else None
    assert torch.equal(record.ok, called.ok) and record.names == called.names


@of_every_loss
def test_frame_weights_scale_derivatives_and_no_value(loss_kind):
    loss = make_loss(loss_kind, l2_regularize=0.01, xent_regularize=0.2)
    frame_weights = torch.rand(SIZE, FRAMES, generator=torch.Generator().manual_seed(3))
    results = []
    for given in (None, frame_weights, frame_weights.tolist()):
        output, branch = make_output(), make_output(seed=1)
        value = loss(output, LENGTHS, make_graphs(), frame_weights=given, xent_log_probs=branch)
        value.backward()
        results.append((value.detach(), loss.last_record, output.grad, branch.grad))
    close(results[0][0], results[1][0], tolerances.ROUNDING)
    close(results[0][1].xent_objf, results[1][1].xent_objf, tolerances.FLOAT64)
    for plain, scaled in zip(results[0][2:], results[1][2:], strict=True):
        close(scaled, plain * frame_weights.unsqueeze(2), tolerances.ROUNDING)
    assert all(torch.equal(one, other) for one, other in zip(results[1][2:], results[2][2:], strict=True))


@of_every_loss
def test_weights_count_sequences_as_often_as_they_say(loss_kind):
    """A sequence of weight 2 equals the sequence twice; one of weight 0 equals none."""
    loss, graphs = make_loss(loss_kind, l2_regularize=0.01), make_graphs()
    output = make_output()
    weighted = loss(output, LENGTHS, graphs, weights=[2.0, 1.0, 1.0, 0.0])
    order = [0, 0, 1, 2]
    repeated = loss(output[order], [LENGTHS[n] for n in order], [graphs[n] for n in order])
    close(weighted.detach(), repeated.detach(), tolerances.ROUNDING)


@of_every_loss
def test_several_denominators_equal_separate_losses(loss_kind):
    options = {"leaky_hmm_coefficient": 0.1, "l2_regularize": 0.01}
    graphs = {"en": make_denominator(0), "de": make_denominator(5), "unused": make_denominator(6)}
    together, names = make_loss(loss_kind, graphs, **options), ["de", "en", "en", "de"]
    output = make_output()
    together(output, LENGTHS, make_graphs(), denominator_of=names).backward()
    record = together.last_record
    for name in ("en", "de"):
        lanes = [n for n in range(SIZE) if names[n] == name]
        alone, part = make_loss(loss_kind, graphs[name], **options), output.detach()[lanes].requires_grad_()
        alone(part, [LENGTHS[n] for n in lanes], [make_graphs()[n] for n in lanes]).backward()
        assert torch.equal(alone.last_record.den_log_prob, record.den_log_prob[lanes])
        ours, theirs = output.grad[lanes] * record.weight_ok, part.grad * alone.last_record.weight_ok
        close(ours, theirs, tolerances.FEW_FLOAT32_TERMS)


def test_numerators_may_be_graphs_tables_or_a_batch():
    loss, output, graphs = make_loss(), make_output(), make_graphs()
    tables = [compile_table(graph, WIDTH) for graph in graphs]
    forms = graphs, tables, tuple(graphs), TableBatch.pack(tables)
    assert len({float(loss(output, LENGTHS, given).detach()) for given in forms}) == 1
    shared = loss(output, LENGTHS, TableBatch.share(tables[0], SIZE))
    assert torch.equal(shared, loss(output, LENGTHS, [tables[0]] * SIZE))


@of_every_loss
@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_sequence_leaves_every_sum(loss_kind, kind):
    loss = make_loss(loss_kind, l2_regularize=0.01, out_of_range_regularize=0.1, xent_regularize=0.1)
    output, lengths, graphs = make_output(), list(LENGTHS), make_graphs()
    spoil(kind, output, lengths, graphs)
    branch = make_output(seed=1)
    names = ["a", "b", "c", "d"]
    batch = TableBatch.pack([compile_table(graph, WIDTH) for graph in graphs], names)
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    value = loss(output, lengths, batch, weights=weights, xent_log_probs=branch)
    value.backward()
    record = loss.last_record
    assert record.excluded == ("b",) and record.ok.tolist() == [True, False, True, True]
    assert not output.grad[1].any() and not branch.grad[1].any()
    others = [0, 2, 3]
    part, part_branch = output.detach()[others].requires_grad_(), branch.detach()[others].requires_grad_()
    given = [lengths[n] for n in others], [graphs[n] for n in others]
    expected = loss(part, *given, weights=weights[others], xent_log_probs=part_branch)
    expected.backward()
    close(value.detach(), expected.detach(), tolerances.ROUNDING)
    close(output.grad[others], part.grad, tolerances.ROUNDING)
    close(branch.grad[others], part_branch.grad, tolerances.ROUNDING)
    close(record.objf, record.objf_ok - cost_of_exclusion(loss_kind) * 3.0 * lengths[1])
    close(record.weight - record.weight_ok, 3.0 * lengths[1])


@of_every_loss
def test_all_impossible_gives_zero_loss_and_a_connected_zero_gradient(loss_kind):
    loss = make_loss(loss_kind, l2_regularize=0.1, xent_regularize=0.1)
    weight = torch.nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
    output = make_output().detach() * weight
    with pytest.warns(ObjectiveWarning, match=r"sequence 0: the numerator has no path of 1 frame"):
        value = loss(output, [1] * SIZE, make_graphs(), xent_log_probs=output.log_softmax(2))
    assert value == 0.0 and value.requires_grad
    value.backward()
    assert not weight.grad.any() and weight.grad.isfinite().all()
    record = loss.last_record
    assert record.objf_ok == record.weight_ok == 0.0 and len(record.excluded) == SIZE
    assert record.objf == -cost_of_exclusion(loss_kind) * SIZE


def test_numerators_that_outweigh_the_denominator_are_told_unless_scale_or_boost_explain_it():
    """And where nothing is trained, as on a development set."""
    graphs = [replace(graph, log_prob=graph.log_prob + 5.0) for graph in make_graphs()]
    told = r"objf is \d+\.\d+ per frame, .* for sequence \d; expected at most 0"
    with pytest.warns(ObjectiveWarning, match=told):
        make_loss()(make_output(), LENGTHS, graphs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_loss()(make_output().detach(), LENGTHS, graphs)
        for options in ({"boost": 0.1}, {"denominator_scale": 0.9}):
            make_loss(**options)(make_output(), LENGTHS, graphs)


def test_the_output_of_a_softmax_is_told_that_of_a_log_softmax_and_others_are_not():
    with pytest.warns(
        ObjectiveWarning, match="every frame of nnet_output .* like the output of a softmax; expected"
    ):
        for _ in range(16):  # one of them is looked at
            make_loss()(make_output().softmax(dim=2), LENGTHS, make_graphs())
    one_hot = torch.eye(make_output().shape[2])[torch.zeros(SIZE, FRAMES, dtype=torch.int64)]
    first_row_alone = make_output().detach()
    first_row_alone[0, 0] = first_row_alone[0, 0].softmax(dim=0)
    for scores in (make_output().log_softmax(dim=2), make_output(), one_hot, first_row_alone):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(16):
                make_loss()(scores.detach().requires_grad_(), LENGTHS, make_graphs())


@of_every_loss
def test_a_cross_entropy_without_a_branch_is_told_in_training_alone(loss_kind):
    loss, output, graphs = make_loss(loss_kind, xent_regularize=0.1), make_output(), make_graphs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.objective(output, LENGTHS, graphs)
        loss(output.detach(), LENGTHS, graphs)
        loss(output, LENGTHS, graphs, xent_log_probs=output.log_softmax(dim=2))
        make_loss(loss_kind)(output, LENGTHS, graphs)
    with pytest.warns(
        ObjectiveWarning, match=r"xent_regularize = 0.1 and no xent_log_probs: .* no cross-entropy"
    ):
        loss(output, LENGTHS, graphs)


@of_every_loss
def test_logits_in_the_place_of_log_probabilities_of_the_branch_are_told_by_an_objective_above_zero(
    loss_kind,
):
    loss, graphs, logits = make_loss(loss_kind, xent_regularize=0.1), make_graphs(), make_output(1).abs()
    with pytest.warns(
        ObjectiveWarning, match=r"branch has an objective of \d.* expected xent_log_probs to be"
    ) as said:
        for _ in range(2):
            loss(make_output(), LENGTHS, graphs, xent_log_probs=logits)
    assert len(said) == 1
    certain = torch.full_like(logits, 1e-7)  # rounding of probabilities of one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for branch in (logits.log_softmax(2), certain):
            loss(make_output(), LENGTHS, graphs, xent_log_probs=branch)


@of_every_loss
@pytest.mark.parametrize("filling", [math.nan, 1e30])
def test_what_stands_in_the_padding_changes_no_bit(loss_kind, filling):
    """Of the network output, of the branch and of the frame weights."""
    loss = make_loss(loss_kind, l2_regularize=0.01, out_of_range_regularize=0.1, xent_regularize=0.1)
    results = []
    for fill in (0.0, filling):
        output, branch = (make_output(seed).detach() for seed in (0, 1))
        frame_weights = torch.rand(SIZE, FRAMES, generator=torch.Generator().manual_seed(3))
        for tensor in (output, branch):
            tensor.masked_fill_(~real_frames(), fill)
        frame_weights.masked_fill_(~real_frames()[:, :, 0], fill)
        output.requires_grad_(), branch.requires_grad_()
        value = loss(output, LENGTHS, make_graphs(), frame_weights=frame_weights, xent_log_probs=branch)
        value.backward()
        results.append((value.detach(), output.grad, branch.grad))
    for clean, filled in zip(*results, strict=True):
        assert torch.equal(clean, filled)
    padding = ~real_frames().expand_as(results[1][1])
    assert not results[1][1][padding].any() and not results[1][2][padding].any()


@of_every_loss
def test_scores_of_minus_infinity_cost_no_penalty_and_have_no_gradient(loss_kind):
    loss, output = make_loss(loss_kind, l2_regularize=0.01, out_of_range_regularize=0.1), make_output()
    clean = make_output().detach()
    with torch.no_grad():
        output[0, 2, 3] = -torch.inf
        clean[0, 2, 3] = 0.0
    value = loss(output, LENGTHS, make_graphs())
    value.backward()
    assert value.isfinite() and output.grad.isfinite().all() and output.grad[0, 2, 3] == 0.0
    l2_term = loss.last_record.l2_term
    loss(clean, LENGTHS, make_graphs())
    close(l2_term, loss.last_record.l2_term)


@of_every_loss
def test_penalties_of_scores_whose_squares_leave_float32_are_finite(loss_kind):
    loss = make_loss(loss_kind, l2_regularize=0.01, out_of_range_regularize=0.1)
    output = make_output(scale=1e25, dtype=torch.float32)
    loss(output, LENGTHS, make_graphs()).backward()
    squares = torch.where(real_frames(), output.detach().double() ** 2, 0.0).sum()
    close(loss.last_record.l2_term / squares, -0.005)
    close(loss.last_record.out_of_range_term / squares, -0.05)
    assert output.grad.isfinite().all()


@of_every_loss
def test_a_score_that_only_the_denominator_may_not_read_excludes_its_sequence(loss_kind):
    """pdf 8 is in the denominator alone."""
    narrow = Fsa(2, [0, 1], [1, 1], [0, 1], [0.0, 0.0], [-math.inf, 0.0])
    loss, output = make_loss(loss_kind), make_output()
    with torch.no_grad():
        output[2, 5, 8] = torch.nan
    loss(output, LENGTHS, [narrow] * SIZE, xent_log_probs=None).backward()
    record = loss.last_record
    assert record.excluded == ("sequence 2",)
    assert record.num_log_prob[2].isfinite() and record.den_log_prob[2].isnan()
    assert not output.grad[2].any() and output.grad[[0, 1, 3]].isfinite().all()


def total(y):
    return total_log_prob(make_graphs(), y, LENGTHS).sum()


@pytest.fixture
def backward_runs(monkeypatch):
    """A list that grows with every backward recursion: a run of the kernels that is given where to put occupancies."""
    ran, run = [], cpu.run

    def spy(*arguments):
        ran.extend([1] if len(arguments[-1]) else [])
        run(*arguments)

    monkeypatch.setattr(cpu, "run", spy)
    return ran


def test_no_beta_runs_where_no_gradient_is_wanted(backward_runs):
    loss = make_loss()
    for call in (total, lambda y: loss(y, LENGTHS, make_graphs())):
        with torch.no_grad():
            call(make_output())
        call(make_output().detach())
    loss.objective(make_output(), LENGTHS, make_graphs())
    assert not backward_runs
    total(make_output())
    assert backward_runs


def test_no_beta_runs_for_log_prob_until_occupancy_is_asked_for(backward_runs):
    result = forward_backward(make_graphs(), make_output(), LENGTHS)
    assert result.ok.all() and not backward_runs
    first = result.occupancy
    runs = len(backward_runs)
    assert runs and result.occupancy is first and len(backward_runs) == runs


def test_a_batch_may_be_forgotten_between_forward_and_backward():
    output, graphs = make_output(), make_graphs()
    weights = torch.cat([torch.from_numpy(graph.log_prob.copy()) for graph in graphs]).requires_grad_()
    value = total_log_prob(graphs, output, LENGTHS, arc_log_probs=weights).sum()
    del graphs
    value = value + make_loss()(output, LENGTHS, make_graphs())
    gc.collect()
    value.backward()
    assert output.grad.any() and weights.grad.any()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_a_copy_of_a_loss_outlives_it(copied):
    loss, output = make_loss(), make_output()
    expected = loss(output, LENGTHS, make_graphs())
    other = copied(loss)
    del loss
    gc.collect()
    assert torch.equal(other(output, LENGTHS, make_graphs()), expected)
    assert other.last_record.den_log_prob.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 30.0, 80.0, 1000.0])
def test_num_minus_den_is_met_per_frame_at_every_scale(scale, dtype):
    loss, output = make_loss("boosted", out_of_range_regularize=0.0), make_output(scale=scale, dtype=dtype)
    loss(output, LENGTHS, make_graphs()).backward()
    num, den = oracle(output, BOOST)
    record = loss.last_record
    difference = (record.num_log_prob - record.den_log_prob) - (num.log_prob - den.log_prob)
    assert (difference.abs() / torch.tensor(LENGTHS)).max() <= tolerances.OBJF_PER_FRAME
    assert output.grad.dtype == dtype
    limit = 2 * tolerances.OCCUPANCY / sum(LENGTHS) + torch.finfo(dtype).eps
    close(-output.grad.double(), (num.occupancy - den.occupancy) / sum(LENGTHS), limit)


def test_a_call_comes_to_its_first_kernel_through_a_hundred_functions_of_eleven_files(monkeypatch):
    """What a profile counts as calls, generated constructors of tuples among them, in the third call.

    Without those that ask for free memory, every tenth of a second.
    """
    monkeypatch.setattr(memory, "FRESH", 1e9)
    batch = TableBatch.pack([compile_table(graph, WIDTH) for graph in make_graphs()])
    loss, output = make_loss(), make_output()
    folder, called = str(Path(fsachain.__file__).parent), []

    def count(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and (name.startswith(folder) or name == "<string>"):
            called.append((name, frame.f_code.co_name))

    for _ in range(3):
        called.clear()
        sys.setprofile(count)
        try:
            loss(output[:, :5].requires_grad_(), [5] * SIZE, batch)
        finally:
            sys.setprofile(None)
    first = called.index((f"{folder}/backends/cpu/backend.py", "_run_segments"))
    assert first <= 100 and len({name for name, _ in called[:first]} - {"<string>"}) <= 11
