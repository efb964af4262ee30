"""The simple, smoothed and pruned transducer losses, and which labels are kept."""

import threading

import numpy as np
import pytest
import tolerances
import torch
from rnnt_inputs import BLANK, TYPES, close, close_with_gradients, losses_by_loops, make_logits, make_targets

from fsachain import (
    get_rnnt_prune_ranges,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
)
from fsachain.loss.pruned import exact_product
from tools import SHARED

PEERS = SHARED / "golden" / "peers"
golden = pytest.mark.skipif(not PEERS.is_dir(), reason="no ../shared")
NAMES = ["regular_dp0.0", "regular_dp0.05"]
of_every_type = pytest.mark.parametrize("rnnt_type", TYPES)
FRAMES, LABELS = [9, 6, 7, 4], [3, 5, 0, 1]
BOUNDARY = [[0, 0, u, t] for t, u in zip(FRAMES, LABELS, strict=True)]


def near(ours, theirs, limit):
    np.testing.assert_allclose(ours.detach(), theirs, rtol=0, atol=limit)


def am_lm(scale=1.0, dtype=torch.float64, width=11):
    generator = torch.Generator().manual_seed(0)
    both = (torch.randn(4, size, width, generator=generator, dtype=torch.float64) for size in (9, 6))
    return tuple((scale * x).to(dtype).requires_grad_() for x in both)


def full_loss(logits, rnnt_type, **options):
    call = logits, make_targets(), FRAMES, LABELS, BLANK
    return rnnt_loss(*call, reduction="none", rnnt_type=rnnt_type, **options)


def load(name):
    file = np.load(PEERS / f"fastrnnt_{name}.npz")
    tensors = {key: torch.tensor(file[key]) for key in file.files if file[key].ndim}
    return file, tensors


def options_of(file, given):
    return {"boundary": given["boundary"], "delay_penalty": float(file["delay_penalty"]), "reduction": "none"}


@golden
@pytest.mark.parametrize("kind", ["regular", "modified"])
def test_the_recursion_of_fast_rnnt(kind, backend):
    file = np.load(PEERS / f"fastrnnt_mutual_information_{kind}.npz")
    px, py = (torch.tensor(file[name], requires_grad=True) for name in ("px", "py"))
    scores, (of_px, of_py) = mutual_information_recursion(
        px, py, file["boundary"], return_grad=True, backend=backend
    )
    (scores * torch.tensor(file["out_grad"])).sum().backward()
    near(scores, file["scores"], tolerances.FAST_RNNT_COST)
    for ours, theirs in ((of_px, "px_occ"), (of_py, "py_occ"), (px.grad, "px_grad"), (py.grad, "py_grad")):
        near(ours, file[theirs], tolerances.PEER_RNNT_GRADIENT)


@golden
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["simple", "smoothed"])
def test_the_simple_and_smoothed_losses_of_fast_rnnt(name, kind):
    file, given = load(name)
    am, lm = given["am"].requires_grad_(), given["lm"].requires_grad_()
    call, options = (lm, am, given["symbols"], int(file["termination_symbol"])), options_of(file, given)
    if kind == "simple":
        loss, (of_px, of_py) = rnnt_loss_simple(*call, **options, return_grad=True)
        near(of_px, file["simple_px_occ"], tolerances.PEER_RNNT_GRADIENT)
        near(of_py, file["simple_py_occ"], tolerances.PEER_RNNT_GRADIENT)
    else:
        scales = (float(file[f"smoothed_{which}_only_scale"]) for which in ("lm", "am"))
        loss = rnnt_loss_smoothed(*call, *scales, **options)
    loss.sum().backward()
    near(loss, file[f"{kind}_loss"], tolerances.FAST_RNNT_COST)
    near(am.grad, file[f"{kind}_grad_am"], tolerances.PEER_RNNT_GRADIENT)
    near(lm.grad, file[f"{kind}_grad_lm"], tolerances.PEER_RNNT_GRADIENT)


@golden
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("s_range", [3, 5])
def test_the_ranges_and_the_pruned_loss_of_fast_rnnt(name, s_range):
    """None of its choices of labels is a near-tie: the ranges must be equal."""
    file, given = load(name)
    occupancies = given["simple_px_occ"], given["simple_py_occ"]
    ranges = get_rnnt_prune_ranges(*occupancies, given["boundary"], s_range)
    np.testing.assert_array_equal(ranges, file[f"s{s_range}_ranges"])
    for backend in ("cpu", "reference"):
        logits = given[f"s{s_range}_logits"].detach().requires_grad_()
        call = logits, given["symbols"], ranges, int(file["termination_symbol"])
        loss = rnnt_loss_pruned(*call, **options_of(file, given), backend=backend)
        loss.sum().backward()
        near(loss, file[f"s{s_range}_loss"], tolerances.FAST_RNNT_COST)
        near(logits.grad, file[f"s{s_range}_grad_logits"], tolerances.PEER_RNNT_GRADIENT)


@of_every_type
@pytest.mark.parametrize("delay_penalty", [0.0, 0.2])
def test_the_simple_loss_is_that_of_the_sum_of_am_and_lm(rnnt_type, delay_penalty):
    options = {"rnnt_type": rnnt_type, "delay_penalty": delay_penalty}
    am, lm = am_lm(2.0)
    loss = rnnt_loss_simple(lm, am, make_targets(), BLANK, BOUNDARY, reduction="none", **options)
    expected = losses_by_loops(am.unsqueeze(2) + lm.unsqueeze(1), make_targets(), FRAMES, LABELS, **options)
    close_with_gradients(loss, expected, (am, lm))


@pytest.mark.parametrize("scale", [80.0, 1000.0])
def test_the_simple_loss_is_right_at_any_magnitude(scale):
    """A product of matrices of exponentials would be 0 for most pairs at scale 80."""
    am, lm = am_lm(scale, torch.float32)
    loss = rnnt_loss_simple(lm, am, make_targets(), BLANK, BOUNDARY, reduction="none")
    loss.sum().backward()
    wide_am, wide_lm = (x.detach().double().requires_grad_() for x in (am, lm))
    expected = losses_by_loops(wide_am.unsqueeze(2) + wide_lm.unsqueeze(1), make_targets(), FRAMES, LABELS)
    expected.sum().backward()
    for ours, theirs in zip(loss.tolist(), expected.tolist(), strict=True):
        assert abs(ours - theirs) <= tolerances.log_prob_tolerance(theirs)
    # Sums am + lm are rounded in float32, unlike those of the logits here.
    limit = tolerances.OCCUPANCY * max(1.0, scale / 30.0)
    close(am.grad, wide_am.grad, limit)
    close(lm.grad, wide_lm.grad, limit)


@pytest.mark.parametrize(
    ("rnnt_type", "scales"),
    [
        ("regular", (0.0, 0.0)),
        ("regular", (0.25, 0.1)),
        ("modified", (0.6, 0.4)),
        ("constrained", (0.0, 1.0)),
    ],
)
def test_the_smoothed_scores_are_mixtures(rnnt_type, scales):
    am, lm = am_lm()
    loss = rnnt_loss_smoothed(lm, am, make_targets(), BLANK, *scales, BOUNDARY, rnnt_type, reduction="none")
    unigram = lm.softmax(2).mean((0, 1)).log()
    joint = (am.unsqueeze(2) + lm.unsqueeze(1)).log_softmax(3)
    of_lm = lm.log_softmax(2).unsqueeze(1)
    of_am = (am + unigram).log_softmax(2).unsqueeze(2)
    mixed = (1 - sum(scales)) * joint + scales[0] * of_lm + scales[1] * of_am
    # The mixture is not normalised, so it goes in as it is.
    close_with_gradients(loss, full_loss(mixed, rnnt_type, fused_log_softmax=False), (am, lm))


def joiner_logits(ranges):
    """A joiner's output at the labels of these ranges; the same for one node in all ranges."""
    full = make_logits().detach()
    index = ranges.unsqueeze(3).expand(-1, -1, -1, full.shape[3])
    return full.gather(2, index).requires_grad_()


@of_every_type
@pytest.mark.parametrize("delay_penalty", [0.0, 0.2])
def test_a_range_of_all_labels_is_the_full_loss(rnnt_type, delay_penalty):
    options = {"rnnt_type": rnnt_type, "delay_penalty": delay_penalty, "reduction": "none"}
    am, lm = am_lm()
    _, occupancies = rnnt_loss_simple(lm, am, make_targets(), BLANK, BOUNDARY, rnnt_type, return_grad=True)
    ranges = get_rnnt_prune_ranges(*occupancies, BOUNDARY, 99)
    assert ranges.shape == (4, 9, 6) and not ranges[:, :, 0].any()
    logits, full = joiner_logits(ranges), make_logits()
    loss = rnnt_loss_pruned(logits, make_targets(), ranges, BLANK, BOUNDARY, **options)
    expected = rnnt_loss(full, make_targets(), FRAMES, LABELS, BLANK, **options)
    assert torch.equal(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    assert torch.equal(logits.grad, full.grad)


@of_every_type
def test_a_pruned_loss_is_that_of_logits_of_minus_infinity_elsewhere(rnnt_type):
    am, lm = am_lm(3.0)
    _, occupancies = rnnt_loss_simple(lm, am, make_targets(), BLANK, BOUNDARY, rnnt_type, return_grad=True)
    ranges = get_rnnt_prune_ranges(*occupancies, BOUNDARY, 3)
    logits = joiner_logits(ranges)
    loss = rnnt_loss_pruned(logits, make_targets(), ranges, BLANK, BOUNDARY, rnnt_type, reduction="none")
    full = torch.full((4, 9, 6, 11), -torch.inf, dtype=torch.float64)
    index = ranges.unsqueeze(3).expand(-1, -1, -1, 11)
    full = full.scatter(2, index, logits.detach().log_softmax(3))
    expected = full_loss(full, rnnt_type, fused_log_softmax=False)
    close(loss, expected)
    assert torch.isfinite(loss).all()
    assert (loss >= full_loss(make_logits(), rnnt_type)).all()


@of_every_type
def test_ranges_leave_a_path_and_never_fall(rnnt_type):
    am, lm = am_lm(5.0)
    for s_range in (2, 3, 4):
        _, occupancies = rnnt_loss_simple(
            lm, am, make_targets(), BLANK, BOUNDARY, rnnt_type, return_grad=True
        )
        ranges = get_rnnt_prune_ranges(*occupancies, BOUNDARY, s_range)
        steps = ranges[:, 1:, 0] - ranges[:, :-1, 0]
        most = s_range - 1 if rnnt_type == "regular" else 1
        assert steps.min() >= 0 and steps.max() <= most
        assert not ranges[:, 0, 0].any() and ranges.max() <= 5
        for n, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
            assert ranges[n, t - 1, 0] == max(u - s_range + 1, 0)


def test_ranges_are_widened_until_each_sequence_has_a_path():
    """As k2 widens them: to trunc((S - 1) / T) + 2, the largest of the batch, whatever else the scores say."""
    generator = torch.Generator().manual_seed(5)
    for draw in range(40):
        labels, frames = (int(torch.randint(1, 12, (), generator=generator)) for _ in range(2))
        counts = [labels, int(torch.randint(0, labels + 1, (), generator=generator))]
        times = [frames, int(torch.randint(1, frames + 1, (), generator=generator))]
        boundary = [[0, 0, u, t] for u, t in zip(counts, times, strict=True)]
        am = torch.randn(2, frames, 4, generator=generator, dtype=torch.float64)
        lm = torch.randn(2, labels + 1, 4, generator=generator, dtype=torch.float64)
        symbols = torch.randint(1, 4, (2, labels), generator=generator)
        given = None if draw % 2 else boundary
        _, grads = rnnt_loss_simple(lm, am, symbols, 0, given, return_grad=True)
        ranges = get_rnnt_prune_ranges(*grads, given, 2)
        spans = [(labels, frames)] * 2 if given is None else list(zip(counts, times, strict=True))
        least = max(int((u - 1) / t) + 2 for u, t in spans)
        assert ranges.shape[2] == min(max(2, least), labels + 1)
        kept = lm.gather(1, ranges.reshape(2, -1, 1).expand(-1, -1, 4)).view(2, frames, -1, 4)
        loss = rnnt_loss_pruned(am.unsqueeze(2) + kept, symbols, ranges, 0, given, reduction="none")
        assert torch.isfinite(loss).all()


@of_every_type
def test_padding_of_nan_leaves_the_smoothed_loss_finite(rnnt_type):
    am, lm = am_lm(dtype=torch.float32)
    with torch.no_grad():
        for n, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
            am[n, t:], lm[n, u + 1 :] = torch.nan, torch.nan
    assert torch.isfinite(rnnt_loss_smoothed(lm, am, make_targets(), BLANK, 0.0, 0.1, BOUNDARY, rnnt_type))


@pytest.mark.parametrize("loss", [rnnt_loss_simple, rnnt_loss_smoothed])
def test_autocast_and_torchs_precision_of_products_change_no_bit(loss):
    """Either would round probabilities to a thousandth, at every node."""

    def run():
        am, lm = am_lm(dtype=torch.float32, width=64)
        value = loss(lm, am, make_targets(), BLANK, boundary=BOUNDARY, reduction="none")
        return value.detach(), *torch.autograd.grad(value.sum(), (am, lm))

    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [run()]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        found.append(run())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    for result in found:
        assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))


def test_two_threads_at_a_product_leave_torchs_precision_as_it_was():
    """The second would keep what the first has set, if it might begin before the first has put it back."""
    in_first, in_second, out_of_first = threading.Event(), threading.Event(), threading.Event()

    class Factor:
        device = torch.device("cpu")

        def __init__(self, inside, until):
            self.inside, self.until = inside, until

        def __matmul__(self, other):
            self.inside.set()
            self.until.wait(0.3)

    def first():
        exact_product(Factor(in_first, in_second), None)
        out_of_first.set()

    place, before = torch.backends.mkldnn.matmul, torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        medium = place.fp32_precision
        threads = [threading.Thread(target=first)]
        threads[0].start()
        assert in_first.wait(60)
        threads.append(threading.Thread(target=exact_product, args=(Factor(in_second, out_of_first), None)))
        threads[1].start()
        for thread in threads:
            thread.join(60)
        assert place.fp32_precision == medium != "ieee"
    finally:
        torch.set_float32_matmul_precision(before)
