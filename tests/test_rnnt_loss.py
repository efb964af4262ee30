"""`rnnt_loss`: values, gradients, options, and inputs that must not change anything."""

import warnings
from functools import partial

import numpy as np
import pytest
import tolerances
import torch
from rnnt_inputs import (
    BLANK,
    FRAMES,
    LABELS,
    TYPES,
    close,
    close_with_gradients,
    losses_by_loops,
    make_logits,
    make_targets,
    pack,
)

from fsachain import (
    RNNTLoss,
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    transducer_loss,
)
from fsachain.errors import BackendUnavailable, ConfigError, ShapeError
from fsachain.loss.arguments import NormalizationWarning
from tools import SHARED

# optimized_transducer's kind with one symbol for each frame ends with a blank: test_transducer_grid has it.
GOLDEN = sorted((SHARED / "golden" / "peers").glob("rnnt_*[!m].npz"))
of_every_type = pytest.mark.parametrize("rnnt_type", TYPES)
POSSIBLE = [9, 6, 7, 4]  # frames with which the modified topologies have a path as well


def run(logits, frames=POSSIBLE, **options):
    return rnnt_loss(logits, make_targets(), frames, LABELS, BLANK, reduction="none", **options)


def gradient_of(logits, *arguments, **options):
    logits = logits.detach().requires_grad_()
    rnnt_loss(logits, *arguments, reduction="sum", **options).backward()
    return logits.grad


@pytest.mark.parametrize(
    "path", GOLDEN or [pytest.param(None, marks=pytest.mark.skip("no ../shared"))], ids=lambda p: p and p.stem
)
def test_values_of_other_programs_are_met(path, backend):
    file = np.load(path)
    names = {"rnnt_type": str, "delay_penalty": float, "fastemit_lambda": float}
    options = {name: kind(file[name]) for name, kind in names.items() if name in file}
    logits = torch.tensor(file["logits"], requires_grad=True)
    sizes = file["targets"], file["logit_lengths"], file["target_lengths"]
    clamp = float(file.get("clamp", -1.0))
    losses = rnnt_loss(logits, *sizes, int(file["blank"]), clamp, "none", backend=backend, **options)
    losses.sum().backward()
    # warprnnt_numba multiplies the loss that it reports by 1 + lambda; its gradient is that of the plain one.
    reported = 1.0 + options.get("fastemit_lambda", 0.0) if "numba" in path.stem else 1.0
    np.testing.assert_allclose(reported * losses.detach(), file["costs"], rtol=tolerances.PEER_COST_RELATIVE)
    np.testing.assert_allclose(logits.grad, file["grad_logits"], rtol=0, atol=tolerances.PEER_RNNT_GRADIENT)


@of_every_type
@pytest.mark.parametrize("delay_penalty", [0.0, 0.3])
def test_value_and_gradient_are_those_of_plain_loops(rnnt_type, backend, delay_penalty):
    logits, options = make_logits(3.0), {"rnnt_type": rnnt_type, "delay_penalty": delay_penalty}
    expected = losses_by_loops(logits, make_targets(), POSSIBLE, **options)
    close_with_gradients(run(logits, backend=backend, **options), expected, [logits])


@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 33, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_any_width(width, dtype):
    """Vocabularies below, at and beyond the lanes of a register, with and without a remainder."""
    logits = make_logits(5.0, dtype=dtype, width=width)
    targets, blank = make_targets(width=width), width // 2
    wide = logits.detach().double().requires_grad_()
    ours = rnnt_loss(logits, targets, FRAMES, LABELS, blank, reduction="sum")
    expected = rnnt_loss(wide, targets, FRAMES, LABELS, blank, reduction="sum", backend="reference")
    ours.backward()
    expected.backward()
    limit = tolerances.FLOAT64 if dtype == torch.float64 else tolerances.FEW_FLOAT32_TERMS
    close(ours, expected, limit)
    close(logits.grad, wide.grad, limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clamp", [-1.0, 0.2])
def test_frames_of_more_rows_than_lanes(dtype, clamp):
    """Rows are taken sixteen or eight at once; some classes are impossible, and padding may hold anything."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 38, 20, generator=generator, dtype=torch.float64)
    logits[..., 6] = -torch.inf
    logits[1, 3:], logits[1, :, 21:] = torch.nan, torch.nan
    targets, sizes = torch.randint(7, 20, (2, 37), generator=generator), ([4, 3], [37, 20])
    narrow = logits.to(dtype).requires_grad_()
    wide = narrow.detach().double().requires_grad_()
    ours = rnnt_loss(narrow, targets, *sizes, 0, clamp, "none")
    expected = rnnt_loss(wide, targets, *sizes, 0, clamp, "none", backend="reference")
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    (weights * ours).sum().backward()
    (weights * expected).sum().backward()
    limit = tolerances.FLOAT64 if dtype == torch.float64 else tolerances.FEW_FLOAT32_TERMS
    close(ours, expected, limit)
    close(narrow.grad, wide.grad, limit)


@of_every_type
def test_packed_logits_give_the_bits_of_padded_ones(rnnt_type):
    padded = make_logits(dtype=torch.float32)
    packed = pack(padded, POSSIBLE).detach().requires_grad_()
    first, second = run(padded, rnnt_type=rnnt_type), run(packed, rnnt_type=rnnt_type)
    assert torch.equal(first, second)
    first.sum().backward()
    second.sum().backward()
    assert torch.equal(pack(padded.grad, POSSIBLE), packed.grad)


def test_fastemit_counts_labels_more_and_leaves_the_loss():
    """dL/dx_v = p_v (g_blank + (1 + lambda) g_label) - g_blank [v = blank] - (1 + lambda) g_label [v = label]."""
    logits, factor = make_logits(2.0), 0.5
    targets = make_targets() % BLANK  # none is the blank, whose entry would count both
    sizes = targets, POSSIBLE, LABELS, BLANK
    loss = rnnt_loss(logits, *sizes, reduction="sum", fastemit_lambda=factor)
    assert torch.equal(loss, rnnt_loss(logits, *sizes, reduction="sum"))
    loss.backward()
    log_probs = logits.detach().log_softmax(3).requires_grad_()
    rnnt_loss(log_probs, *sizes, reduction="sum", fused_log_softmax=False).backward()
    counts = -log_probs.grad
    of_blank = torch.zeros_like(counts)
    of_blank[..., BLANK] = counts[..., BLANK]
    scaled = of_blank + (1 + factor) * (counts - of_blank)
    expected = logits.detach().softmax(3) * scaled.sum(3, keepdim=True) - scaled
    close(logits.grad, expected)
    close(logits.grad.sum(3), torch.zeros(()).expand(logits.shape[:3]))


def test_clamp_limits_each_entry_before_the_incoming_gradient():
    logits, limit = make_logits(2.0), 0.03
    plain = gradient_of(logits, make_targets(), POSSIBLE, LABELS, BLANK, fastemit_lambda=0.3)
    logits.grad = None
    options = {"fastemit_lambda": 0.3}
    losses = rnnt_loss(logits, make_targets(), POSSIBLE, LABELS, BLANK, limit, "sum", **options)
    (10.0 * losses).backward()
    close(logits.grad, 10.0 * plain.clamp(-limit, limit))
    assert (plain.abs() > limit).any()


def test_reductions_and_the_module_agree():
    logits = make_logits()
    each = run(logits)
    for reduction, expected in (("mean", each.mean()), ("sum", each.sum()), ("none", each)):
        loss = RNNTLoss(BLANK, reduction=reduction, rnnt_type="regular")
        found = loss(logits, make_targets(), POSSIBLE, LABELS)
        assert torch.equal(found, expected)
        close(*(torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (found, expected)))
    assert each.dtype == torch.float64
    assert "blank=4" in repr(RNNTLoss(4))


@pytest.mark.parametrize("packed", [False, True])
def test_the_gradient_in_place_has_the_same_bits_and_the_logits_memory(packed):
    logits = make_logits(2.0, dtype=torch.float32, width=37)
    given = (pack(logits, POSSIBLE) if packed else logits).detach()
    expected = gradient_of(given, make_targets(), POSSIBLE, LABELS, BLANK)
    own = given.clone().requires_grad_()
    loss = rnnt_loss(own, make_targets(), POSSIBLE, LABELS, BLANK, reduction="sum", inplace=True)
    loss.backward(retain_graph=True)
    assert torch.equal(own.grad, expected) and torch.equal(own.detach(), expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_large_incoming_gradient_saves_what_half_precision_would_lose():
    """As a scaler of mixed precision has it: entries below 6e-8 are 0 in float16, but not 65,536 times these."""
    wide = make_logits(12.0, dtype=torch.float16).detach().float()
    expected = 65536.0 * gradient_of(wide, make_targets(), POSSIBLE, LABELS, BLANK)
    logits = wide.half().requires_grad_()
    (65536.0 * run(logits).sum()).backward()
    assert (expected[logits.grad == 0].abs() < 6e-8).all() and (expected.abs() < 6e-8 * 65536.0).any()
    assert torch.isfinite(logits.grad[expected.abs() < 6e4]).all()


def test_zero_infinity_counts_an_impossible_sequence_as_nothing_and_hides_no_nan():
    logits = make_logits(dtype=torch.float32).detach()
    frames = [9, 4, 7, 4]  # the last for five labels of a frame each
    options = {"rnnt_type": "modified", "reduction": "sum", "zero_infinity": True}
    call = make_targets(), frames, LABELS, BLANK
    close(rnnt_loss(logits, *call, **options), run(logits, rnnt_type="modified")[[0, 2, 3]].sum())
    logits[1, 3, 2, 5] = torch.nan
    assert torch.isnan(rnnt_loss(logits, *call, **options))


def test_some_logits_of_minus_infinity_are_classes_that_cannot_be():
    logits = make_logits()
    with torch.no_grad():
        logits[:, :, :, 6] = -torch.inf
    targets = make_targets().clone()
    targets[targets == 6] = 5
    losses = rnnt_loss(logits, targets, POSSIBLE, LABELS, BLANK, reduction="none")
    narrow = torch.cat([logits[..., :6], logits[..., 7:]], dim=3)
    shifted = targets - (targets > 6).long()
    close(losses, rnnt_loss(narrow, shifted, POSSIBLE, LABELS, BLANK, reduction="none"))
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all() and not logits.grad[..., 6].any()


# What the transducer losses say to arguments that cannot be used: which one, what came, what was expected.


def zeros(*shape):
    return torch.zeros(*(shape or (2, 4, 3, 5)))


TARGETS, SIZES = [[1, 2], [3, 0]], ([4, 3], [2, 1])  # labels; frames and numbers of labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros((2, 4, 3, 5))}, "logits is a ndarray; expected a torch tensor"),
        ({"logits": zeros(2, 4, 3, 5).long()}, r"logits has dtype torch.int64; expected float16"),
        ({"logits": zeros(3, 4, 3, 5)}, r"logits has 3 sequences \(shape .*, \[N, T, \.\.\.\]\); expected 2"),
        ({"logits": zeros(4, 3, 5)}, r"shape \[4, 3, 5\]; expected \[N, T, U \+ 1, V\] or \[sum of T_n"),
        ({"logits": zeros(2, 4, 2, 5)}, r"expected U \+ 1 = 3 or more in its third dimension \(\[N, T, U"),
        ({"logits": zeros(17, 5)}, "logits has 17 rows .* expected 18, the sum of logit_lengths x"),
        ({"targets": [[1.0, 2.0], [3.0, 0.0]]}, "targets has dtype torch.float32; expected integers"),
        ({"targets": [[1, -1], [3, 0]]}, r"targets\[0, 1\] = -1; expected a class, 0 to 4"),
        ({"targets": [[1, 5], [3, 0]]}, r"targets\[0, 1\] = 5; expected a class, 0 to 4"),
        ({"frames": [5, 3]}, r"logit_lengths\[0\] = 5; expected 0 to 4, the T of logits \[N, T, "),
        ({"frames": [4, -1]}, r"logit_lengths\[1\] = -1; expected 0 or more"),
        ({"labels": [2, -1]}, r"target_lengths\[1\] = -1; expected 0 to 2, the labels of targets"),
        ({"targets": [[1, 2], [-3, 0]]}, r"targets\[1, 0\] = -3; expected a class, 0 to 4"),
        ({"targets": [1, 2]}, r"targets has shape \[2\]; expected \[2, U\]"),
        ({"targets": [[1, 2]]}, r"targets has shape \[1, 2\]; expected \[2, U\]"),
        ({"frames": [4]}, r"have shapes \[1\] and \[2\]; expected \[N\] both"),
        ({"labels": [3, 1]}, r"target_lengths\[0\] = 3; expected 0 to 2, the labels of targets"),
        (
            {"logits": zeros(0, 4, 3, 5), "targets": np.zeros((0, 2), int), "frames": [], "labels": []},
            "the batch is empty; expected at least one sequence",
        ),
    ],
)
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_shapes_lengths_and_targets_that_cannot_be_are_named(change, message, wants_gradient):
    call = {"logits": zeros(), "targets": TARGETS, "frames": SIZES[0], "labels": SIZES[1]} | change
    logits = call["logits"]
    if isinstance(logits, torch.Tensor) and logits.is_floating_point():
        logits.requires_grad_(wants_gradient)
    with pytest.raises(ShapeError, match=message):
        rnnt_loss(*call.values())


def test_targets_without_a_label_may_be_empty_lists():
    found = [
        rnnt_loss(zeros(2, 4, 1, 5), targets, SIZES[0], [0, 0]) for targets in ([[], []], zeros(2, 0).long())
    ]
    assert torch.equal(*found) and torch.isfinite(found[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blank": 5}, "blank = 5; expected a class of 5, or one counted from the end"),
        # One that is equal to 0, but no integer, must not be found in its place by calls to come.
        *[({"blank": blank}, f"blank = {blank}; expected a class of 5") for blank in (0.0, 0.5, None)],
        ({"reduction": "avg"}, r"reduction = 'avg'; expected one of \['none', 'mean', 'sum'\]"),
        ({"rnnt_type": "strict"}, "rnnt_type = 'strict'; expected one of"),
        ({"fastemit_lambda": -0.1}, "fastemit_lambda = -0.1; expected a finite number >= 0"),
        ({"delay_penalty": float("inf")}, "delay_penalty = inf; expected a finite number"),
        ({"clamp": float("nan")}, "clamp = nan; expected a number, above 0 where"),
    ],
)
def test_options_that_cannot_be_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        rnnt_loss(zeros(), TARGETS, *SIZES, **options)
    if "blank" not in options:  # whose range the module does not know yet
        with pytest.raises(ConfigError, match=message):
            RNNTLoss(**options)


def test_a_target_that_is_the_blank_is_told_and_padding_is_not():
    with pytest.warns(UserWarning, match=r"targets\[0, 1\] = 4 is the blank; expected a label: blank=0 says"):
        rnnt_loss(zeros(), [[1, 4], [3, 0]], *SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rnnt_loss(zeros(), [[1, 2], [3, 4]], SIZES[0], [2, 1])


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("layout", ["short", "padded", "packed"])
def test_log_probs_that_are_not_normalized_are_told_once_by_a_negative_loss(layout, wants_gradient):
    raw = make_logits(dtype=torch.float32, width=11 if layout == "short" else 2_000)
    raw = (pack(raw) if layout == "packed" else raw).detach().requires_grad_(wants_gradient)
    arguments = make_targets().clamp(min=BLANK + 1), FRAMES, LABELS, BLANK
    with pytest.warns(
        NormalizationWarning, match=r"the loss of sequence 0 is -\d.*fused_log_softmax=True"
    ) as said:
        for _ in range(3):
            rnnt_loss(raw, *arguments, fused_log_softmax=False)
    assert len(said) == 1 and said[0].filename == __file__
    certain = torch.full((1, 4000, 1, 2), -torch.inf)
    certain[..., 1] = 1e-7  # of a probability of one, with what rounding makes of it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rnnt_loss(raw.log_softmax(-1), *arguments, fused_log_softmax=False)
        rnnt_loss(raw, *arguments)
        assert rnnt_loss(certain, [[0]], [4000], [0], 1, fused_log_softmax=False) == 0.0
        rnnt_loss(raw.log_softmax(-1), *arguments, fused_log_softmax=False, delay_penalty=50.0)


def test_tensors_on_other_devices_are_named():
    with pytest.raises(BackendUnavailable, match="logits is on meta"):
        rnnt_loss(zeros().to("meta"), TARGETS, *SIZES)
    with pytest.raises(ShapeError, match="targets is on meta; expected cpu"):
        rnnt_loss(zeros(), torch.tensor(TARGETS, device="meta"), *SIZES)


def test_a_gradient_in_place_needs_a_contiguous_place():
    turned = zeros().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    loss = rnnt_loss(turned, TARGETS, *SIZES, inplace=True)
    with pytest.raises(ShapeError, match="logits is not contiguous"):
        loss.backward()


LM, AM, PX, PY = torch.zeros(2, 3, 5), torch.zeros(2, 4, 5), torch.zeros(2, 3, 6), torch.zeros(2, 4, 5)
RANGES, KEPT = torch.zeros(2, 4, 1, dtype=torch.int64) + torch.arange(2), torch.zeros(2, 4, 2, 5)
SPAN = r"boundary\[0\] = .*; expected \[s_begin, t_begin, s_end, t_end"
SHARES = "expected numbers >= 0 whose sum is at most 1"
GIVEN = torch.add, TARGETS, *SIZES


@pytest.mark.parametrize(
    ("loss", "arguments", "error", "message"),
    [
        *[
            (mutual_information_recursion, (px, PY), ShapeError, r"expected \[B, S, T \+ 1\] or \[B, S, T\]")
            for px in (PX[:, :2], torch.zeros(2, 3, 7), PX[:1])
        ],
        *[
            (mutual_information_recursion, (PX, PY, [span] * 2), ShapeError, SPAN)
            for span in ([0, 0, 4, 5], [0, 0, 3, 6], [2, 0, 1, 5], [0, -1, 3, 5])
        ],
        (mutual_information_recursion, (PX, PY, [[0, 0, 3, 5]]), ShapeError, "boundary has shape .1, 4.; expected .2, 4."),
        (rnnt_loss_simple, (LM, AM[:, :, :4], TARGETS, 0), ShapeError, r"expected \[B, S \+ 1, C\] and \[B, T, C\]"),
        (rnnt_loss_simple, (LM, AM, [[1, 2], [9, 0]], 0), ShapeError, r"symbols\[1, 0\] = 9; expected a class, 0 to 4"),
        (rnnt_loss_simple, (LM, AM, TARGETS, 5), ConfigError, "termination_symbol = 5"),
        (rnnt_loss_simple, (LM, AM, TARGETS, 0.0), ConfigError, "termination_symbol = 0.0; expected a class"),
        *[
            (rnnt_loss_smoothed, (LM, AM, TARGETS, 0, *scales), ConfigError, SHARES)
            for scales in ((0.6, 0.5), (-0.1, 0.1), (float("nan"), 0.1))
        ],
        *[
            (rnnt_loss_pruned, (KEPT, TARGETS, ranges, 0), ShapeError, "is not made of 2 successive labels of 0 to 2")
            for ranges in (RANGES + 2, RANGES - 1, RANGES.flip(2))
        ],
        (rnnt_loss_pruned, (KEPT, TARGETS, RANGES[:, :3], 0), ShapeError, "ranges has shape .2, 3, 2.; expected .2, 4, 2."),
        (get_rnnt_prune_ranges, (PX[:, :2, :5], PY[:, :3, :4], None, 2.5), ConfigError, "s_range = 2.5; expected an int"),
        (get_rnnt_prune_ranges, (PX[:, :2, :5], PY[:, :3, :4], None, 1), ConfigError, "s_range = 1; expected 2 or more"),
        *[
            (do_rnnt_pruning, (am, lm, RANGES), ShapeError, r"expected .B, T, D., .B, S \+ 1, E. and .B, T, s_range.")
            for am, lm in ((PX[:, :, :3], LM), (AM, LM[[0, 1, 0]]))
        ],
        (transducer_loss, (AM, LM[:1], *GIVEN), ShapeError, r"have shapes \[2, 4, 5\] and \[1, 3, 5\]; expected one N"),
        (transducer_loss, (AM, LM[:, :2], *GIVEN), ShapeError, "target_lengths.0. = 2; expected 0 to 1, as predictor_out"),
        (transducer_loss, (AM[:, :3], LM, *GIVEN), ShapeError, "logit_lengths.0. = 4; expected 0 to 3, the T of enc"),
        (transducer_loss, (AM, LM, lambda x, y: x + y[:, :, :2], *GIVEN[1:]), ShapeError, "joiner returned shape .2, 1, 2"),
        (partial(transducer_loss, chunk_frames=0), (AM, LM, *GIVEN), ConfigError, "chunk_frames = 0; expected 1 or more"),
    ],
)  # fmt: skip
def test_what_other_losses_cannot_use_is_named(loss, arguments, error, message):
    with pytest.raises(error, match=message):
        loss(*arguments)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_targets_may_be_written_over_before_backward(kind):
    targets, logits = kind([[1, 2, 3], [4, 4, 2]]), torch.randn(2, 6, 4, 5, requires_grad=True)
    gradients = []
    for later in (targets, 10**6):
        loss = rnnt_loss(logits, targets, [6, 5], [3, 3], blank=0)
        targets[:] = later
        gradients.append(torch.autograd.grad(loss, logits)[0])
    assert torch.equal(*gradients)
