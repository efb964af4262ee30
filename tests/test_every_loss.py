"""What holds of every loss, sequence by sequence: nobody else in the batch, no padding and no thread changes a bit."""

import sys

import pytest
import tolerances
import torch
from random_graphs import connected_graph, left_to_right_graph

from fsachain import (
    DenominatorGraph,
    Forgiveness,
    TableBatch,
    compile_table,
    ctc_loss,
    expected_accuracy,
    hat_loss,
    multi_blank_loss,
    rnnt_loss,
    rnnt_loss_simple,
    tdt_loss,
    total_log_prob,
    transducer_loss,
)

FRAMES, LABELS, WIDTH, BLANK = [9, 6, 7, 4], [3, 5, 0, 1], 11, 4
TARGETS = torch.tensor([[1, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 0, 0, 0, 0], [3, 0, 0, 0, 0]])
PADDED = TARGETS.masked_fill(torch.arange(5) >= torch.tensor(LABELS)[:, None], -100)
EVERY = [0, 1, 2, 3]
MANY = 200  # batches side by side, for which threads are worth their while
SIZES = {"grid": (9, 6), "frames": (9,), "labels": (6,)}  # of an input, between its sequences and its classes
REAL_FRAMES = torch.arange(9) < torch.tensor(FRAMES)[:, None]
REAL_LABELS = torch.arange(6) <= torch.tensor(LABELS)[:, None]
REAL = {"grid": REAL_FRAMES[:, :, None] & REAL_LABELS[:, None], "frames": REAL_FRAMES, "labels": REAL_LABELS}
TABLES = [compile_table(left_to_right_graph(n, 4, WIDTH), WIDTH) for n in EVERY]
FORGIVING = Forgiveness(1.0, 0.5, 0.7)
DENOMINATOR = DenominatorGraph(connected_graph(5, num_pdfs=WIDTH), WIDTH)


def of(which):
    """Targets without anything in their padding, frames and labels of these sequences."""
    return PADDED[which], [FRAMES[n] for n in which], [LABELS[n] for n in which]


def boundary(which):
    return [[0, 0, LABELS[n], FRAMES[n]] for n in which]


def rnnt(**own):
    options = {"reduction": "none", **own}
    return ["grid"], lambda which, x, **more: rnnt_loss(x, *of(which), BLANK, **options, **more)


def simple(kind):
    def loss(which, am, lm):
        return rnnt_loss_simple(lm, am, of(which)[0], BLANK, boundary(which), kind, reduction="none")

    return ["frames", "labels"], loss


def ctc(inputs, **own):
    options = {"reduction": "none", "inputs": inputs, "unnormalized": "ignore", **own}
    return ["frames"], lambda which, x, **more: ctc_loss(
        x.transpose(0, 1), *of(which), BLANK, **options, **more
    )


def total(batch, leaky):
    def loss(which, x, **more):
        return -total_log_prob(batch(which), x, of(which)[1], leaky_hmm_coefficient=leaky, **more)

    return ["frames"], loss


# Inputs and a function of sequences and inputs, which gives a loss for each.
LOSSES = {
    "own graphs": total(lambda which: TableBatch.pack([TABLES[n] for n in which]), 0.0),
    "one graph, leaky": total(lambda which: DENOMINATOR.batch(len(which)), 0.1),
    "accuracy": (
        ["frames", "frames"],
        lambda which, x, a: -expected_accuracy(DENOMINATOR.batch(len(which)), x, a, of(which)[1], leaky_hmm_coefficient=0.1),
    ),
    "ctc": ctc("logits"),
    "ctc of log-probs": ctc("log_probs"),
    "ctc, forgiving": ctc("logits", forgive=FORGIVING),
    **{kind: rnnt(rnnt_type=kind) for kind in ("regular", "modified", "constrained")},
    "log-probs": rnnt(fused_log_softmax=False),
    "in place": rnnt(inplace=True),
    "forgiving": rnnt(forgive=FORGIVING),
    "hat": (["grid"], lambda which, x, **more: hat_loss(x, *of(which), BLANK, "none", **more)),
    "tdt": (["grid"], lambda which, x, **more: tdt_loss(x, *of(which), [0, 1, 2], BLANK, "none", **more)),
    "multi-blank": (
        ["grid"],
        lambda which, x, **more: multi_blank_loss(x, *of(which), {10: 2, 9: 4}, BLANK, reduction="none", **more),
    ),
    **{f"simple, {kind}": simple(kind) for kind in ("regular", "modified", "constrained")},
    "chunks": (
        ["frames", "labels"],
        lambda which, am, lm: transducer_loss(am, lm, torch.add, *of(which), BLANK, reduction="none", chunk_frames=2),
    ),
}  # fmt: skip
of_every_loss = pytest.mark.parametrize("name", LOSSES)


def make_inputs(name, scale=1.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, *SIZES[kind], WIDTH) for kind in LOSSES[name][0]]
    return [(scale * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype) for s in shapes]


def run(name, inputs, which=EVERY, arrange=torch.clone, **options):
    """Losses [N] and the gradients of their sum."""
    leaves = [arrange(x).requires_grad_() for x in inputs]
    losses = LOSSES[name][1](which, *leaves, **options)
    return losses.detach(), *torch.autograd.grad(losses.sum(), leaves)


def assert_same_bits(found, expected, rows=EVERY):
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours[rows], theirs[rows])


@of_every_loss
def test_padding_changes_no_bit_and_has_no_gradient(name):
    inputs = make_inputs(name)
    expected = run(name, inputs)
    assert expected[0].isfinite().all()
    for filler in (torch.nan, torch.inf, -torch.inf, 1e30):
        kinds = zip(inputs, LOSSES[name][0], strict=True)
        padded = [x.masked_fill(~REAL[kind].unsqueeze(-1), filler) for x, kind in kinds]
        found = run(name, padded)
        assert_same_bits(found, expected)
        for gradient, kind in zip(found[1:], LOSSES[name][0], strict=True):
            assert not gradient[~REAL[kind]].any()


@pytest.mark.parametrize("name", [n for n in LOSSES if "simple" not in n])  # whose products are torch's
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sequence_has_the_same_bits_alone_and_with_any_number_of_threads(name, dtype, use_threads):
    inputs = make_inputs(name, 5.0, dtype)
    expected = run(name, inputs)
    many = [x.repeat(MANY, *[1] * (x.ndim - 1)) for x in inputs]
    for threads in (1, 2, 3, 4):
        use_threads(threads)
        found = run(name, many, EVERY * MANY)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.view(MANY, *theirs.shape), theirs.expand(MANY, *theirs.shape))
    for n in EVERY:
        alone = run(name, [x[n : n + 1] for x in inputs], [n])
        assert_same_bits(alone, [part[n : n + 1] for part in expected], [0])


@of_every_loss
def test_where_torch_makes_tensors_by_default_has_no_influence(name):
    """A device that `torch.set_default_device` names: lists of lengths and whatever a loss makes on the host stay there."""
    inputs = make_inputs(name)
    with torch.device("meta"):
        found = run(name, inputs)
    assert_same_bits(found, run(name, inputs))


@of_every_loss
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, "no frames"])
def test_an_illegal_or_impossible_sequence_has_no_gradient_and_harms_no_other(name, wrong, monkeypatch):
    inputs = make_inputs(name)
    expected = run(name, inputs)
    if wrong == "no frames":
        monkeypatch.setattr(sys.modules[__name__], "FRAMES", [9, 0, 7, 4])
    else:
        inputs[0][1, 3] = wrong
    found = run(name, inputs)
    assert_same_bits(found, expected, [0, 2, 3])
    if wrong == -torch.inf and name in ("tdt", "multi-blank"):  # which may pass over a frame
        assert all(part[1].isfinite().all() for part in found)
        return
    # A softmax of a row of -inf is no distribution: NaN, where the scores themselves would say that nothing is possible.
    is_possible = wrong == "no frames" and name in ("accuracy", "one graph, leaky")
    impossible = wrong in ("no frames", -torch.inf)
    assert is_possible or (not found[0][1].isfinite() if impossible else found[0][1].isnan())
    assert not any(gradient[1].any() for gradient in found[1:])


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "chunks"])  # whose joiner is torch's
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(name, dtype):
    inputs = make_inputs(name, 2.0, dtype)
    found, expected = run(name, inputs), run(name, [x.float() for x in inputs])
    assert torch.equal(found[0], expected[0])
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours.dtype == dtype and torch.equal(ours, theirs.to(dtype))


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "in place"])  # which refuses them
def test_any_order_of_the_scores_in_memory_gives_the_same_bits(name):
    inputs = make_inputs(name)
    expected = run(name, inputs)
    for arrange in (
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.empty(*x.shape[:-1], 2 * WIDTH)[..., ::2].copy_(x),
    ):
        assert_same_bits(run(name, inputs, arrange=arrange), expected)


@pytest.mark.parametrize("name", [n for n in LOSSES if not n.startswith(("accuracy", "simple", "chunks"))])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_float32_keeps_the_contract_at_any_magnitude(name, scale):
    inputs = make_inputs(name, scale)
    found = run(name, inputs)
    expected = run(name, [x.double() for x in inputs], backend="reference")
    for ours, theirs in zip(found[0].tolist(), expected[0].tolist(), strict=True):
        assert abs(ours - theirs) <= tolerances.log_prob_tolerance(theirs)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=tolerances.OCCUPANCY)
