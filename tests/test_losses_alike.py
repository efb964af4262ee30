"""What all losses have in common beside their sums: their sign, their options, labels as lists, and names in a profile."""

import inspect
import math
import warnings

import pytest
import torch
from loss_calls import BATCH, COUNTS, FRAMES, LOSSES, SCORES, TARGETS, joiner, logits
from random_graphs import connected_graph
from refusals import refuses
from torch import nn
from torch.profiler import profile

import fsachain
from fsachain import (
    CTCLoss,
    DenominatorGraph,
    LFMMILoss,
    RNNTLoss,
    ctc_denominator,
    ctc_graph,
    ctc_loss,
    ctc_numerator,
    do_rnnt_pruning,
    estimate_phone_lm,
    get_rnnt_prune_ranges,
    hat_loss,
    multi_blank_loss,
    product,
    rnnt_lattice,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    tdt_loss,
    transducer_loss,
)
from fsachain.errors import ConfigError, GraphError, ShapeError
from fsachain.loss.base import ObjectiveWarning

SIZE, LABELS, WIDTH, DRAWS = 4, 3, 6, 40
AHEAD = 19.0  # rounding makes some of these probabilities more than one
ONE_WAY = torch.arange(1, LABELS + 1).expand(SIZE, -1)  # targets 1 2 3 of each sequence


def confident(shape, seed, toward, by=AHEAD):
    """Random scores in which the classes `toward` [..] are far ahead: a probability near one has a loss near 0."""
    scores = torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))
    return scores + by * nn.functional.one_hot(toward, WIDTH)


def path_of_grid(num_frames):
    """The class that is likeliest at each node: labels first, all in frame 0, then blanks."""
    along = torch.zeros(SIZE, num_frames, LABELS + 1, dtype=torch.int64)
    along[:, 0, :LABELS] = ONE_WAY
    return along


def grid_loss(function, *arguments, **options):
    def loss(seed):
        scores = confident((SIZE, 3, LABELS + 1), seed, path_of_grid(3))
        if function is hat_loss:  # whose blank has a sigmoid of its own
            scores[:, 0, :LABELS, 0] -= AHEAD
        given = scores, ONE_WAY, [3] * SIZE, [LABELS] * SIZE
        return function(*given, *arguments, blank=0, reduction="none", **options)

    return loss


def constrained(seed):
    """A label in each frame, since a blank has to follow it."""
    along = torch.zeros(SIZE, LABELS, LABELS + 1, dtype=torch.int64)
    for t in range(LABELS):
        along[:, t, t] = ONE_WAY[:, t]
    scores = confident((SIZE, LABELS, LABELS + 1), seed, along)
    given = ONE_WAY, [LABELS] * SIZE, [LABELS] * SIZE
    return rnnt_loss(scores, *given, blank=0, reduction="none", rnnt_type="constrained")


def tdt(seed):
    scores = confident((SIZE, 3, LABELS + 1), seed, path_of_grid(3))
    durations = torch.zeros(SIZE, 3, LABELS + 1, 2)
    durations[..., 1] = AHEAD  # a frame for each blank
    durations[:, 0, :LABELS, 0], durations[:, 0, :LABELS, 1] = AHEAD, 0.0
    given = ONE_WAY, [3] * SIZE, [LABELS] * SIZE
    return tdt_loss(torch.cat([scores, durations], 3), *given, [0, 1], blank=0, reduction="none")


def simple(function, **options):
    """Of one frame and no label, which is a blank: am and lm agree on it."""

    def loss(seed):
        am = confident((SIZE, 4), seed, torch.zeros(SIZE, 4, dtype=torch.int64))
        lm = torch.zeros(SIZE, 1, WIDTH)
        return function(lm, am, torch.zeros(SIZE, 0, dtype=torch.int64), 0, reduction="none", **options)

    return loss


def pruned(seed):
    scores = confident((SIZE, 3, LABELS + 1), seed, path_of_grid(3))
    ranges = torch.arange(LABELS + 1).expand(SIZE, 3, -1)
    return rnnt_loss_pruned(scores, ONE_WAY, ranges, 0, reduction="none")


def chunks(seed):
    scores = confident((SIZE, 4), seed, torch.zeros(SIZE, 4, dtype=torch.int64))
    none = torch.zeros(SIZE, 0, dtype=torch.int64)
    given = none, [4] * SIZE, [0] * SIZE
    return transducer_loss(scores, torch.zeros(SIZE, 1, WIDTH), joiner, *given, blank=0, reduction="none")


def log_probs(seed):
    scores = confident((SIZE, 3, LABELS + 1), seed, path_of_grid(3)).log_softmax(3)
    return rnnt_loss(
        scores, ONE_WAY, [3] * SIZE, [LABELS] * SIZE, 0, reduction="none", fused_log_softmax=False
    )


def ctc(inputs):
    def loss(seed):
        scores = confident((LABELS, SIZE), seed, ONE_WAY.T)
        scores = scores if inputs == "logits" else scores.log_softmax(2)
        return ctc_loss(scores, ONE_WAY, [LABELS] * SIZE, [LABELS] * SIZE, reduction="none", inputs=inputs)

    return loss


AT_LEAST_ZERO = {
    "regular": grid_loss(rnnt_loss),
    "constrained": constrained,
    "log-probs": log_probs,
    "hat": grid_loss(hat_loss),
    "tdt": tdt,
    "multi-blank": grid_loss(multi_blank_loss, {WIDTH - 1: 2}),
    "simple": simple(rnnt_loss_simple),
    "smoothed": simple(rnnt_loss_smoothed, lm_only_scale=0.0),
    "pruned": pruned,
    "chunks": chunks,
    "ctc": ctc("log_probs"),
    "ctc of logits": ctc("logits"),
}


@pytest.mark.parametrize("name", AT_LEAST_ZERO)
def test_the_loss_of_a_probability_near_one_is_never_below_zero(name):
    losses = torch.cat([AT_LEAST_ZERO[name](seed) for seed in range(DRAWS)])
    assert losses.isfinite().all() and losses.min() < 0.01
    assert not torch.signbit(losses).any(), losses.min()


def own_numerator():
    """A denominator of c = 0 and the graph itself as the numerator, so that log Z is the same but for rounding."""
    denominator = DenominatorGraph(connected_graph(3, num_pdfs=WIDTH), WIDTH, initial="start", final="fsa")
    return denominator, denominator.fsa


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lfmmi_of_a_denominator_as_its_own_numerator_is_never_below_zero(dtype):
    denominator, numerator = own_numerator()
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, out_of_range_regularize=0.0)
    differences = []
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)
        scores = (10.0 * torch.randn(2, 20, WIDTH, generator=generator)).to(dtype).requires_grad_()
        value = loss(scores, [20, 15], [numerator, numerator])
        record = loss.last_record
        value.backward()
        differences += (record.num_log_prob - record.den_log_prob).tolist()
        assert value >= 0 and not torch.signbit(value)
        assert record.objf <= 0 and record.objf_ok <= 0
    assert dtype == torch.float64 or any(difference > 0 for difference in differences)  # what is clamped


def test_the_gradient_of_a_loss_that_rounding_had_below_zero_is_not_clamped():
    denominator, numerator = own_numerator()
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, l2_regularize=0.5, out_of_range_regularize=0.0)
    scores = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(4)).requires_grad_()
    loss(scores, [9, 9], [numerator, numerator]).backward()
    torch.testing.assert_close(scores.grad, 0.5 * scores.detach() / 18, atol=1e-6, rtol=0)
    logits = (
        30.0 * nn.functional.one_hot(torch.zeros(1, 4, 1, dtype=torch.int64), WIDTH).float()
    ).requires_grad_()
    rnnt_loss(logits, torch.zeros(1, 0, dtype=torch.int64), [4], [0], 0).backward()
    assert logits.grad[..., 1:].gt(0).all()  # a softmax's, small as it is


def test_a_numerator_that_truly_outweighs_its_denominator_keeps_its_sign():
    denominator, numerator = own_numerator()
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, out_of_range_regularize=0.0)
    heavier = fsachain.Fsa(
        numerator.num_states,
        *(numerator.src, numerator.dst, numerator.pdf, numerator.log_prob + 2e-4, numerator.final_log_prob),
        numerator.start,
    )
    value = loss(torch.zeros(1, 50, WIDTH), [50], [heavier])
    assert value.item() == pytest.approx(-2e-4, rel=0.05)


def test_scales_and_boosts_may_have_either_sign():
    denominator, numerator = own_numerator()
    scores = torch.randn(1, 20, WIDTH, generator=torch.Generator().manual_seed(1))
    for options in ({"denominator_scale": 1.0 + 1e-7}, {"boost": 1e-7}):
        loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0, out_of_range_regularize=0.0, **options)
        loss(scores, [20], [numerator])
        record, scale = loss.last_record, options.get("denominator_scale", 1.0)
        assert record.objf.item() == (record.num_log_prob - scale * record.den_log_prob).item()


# Options.


def module_options(kind):
    """What a module takes in its constructor or in its call, with the defaults."""
    taken = {}
    for method in (kind.__init__, kind.forward):
        parameters = inspect.signature(method).parameters.values()
        taken |= {one.name: one.default for one in parameters if one.name != "self"}
    return taken


def modules_with_functions():
    for name in fsachain.__all__:
        kind = getattr(fsachain, name) if name.endswith("Loss") else None
        function = name.removesuffix("Loss").lower() + "_loss"
        if isinstance(kind, type) and issubclass(kind, nn.Module) and function in fsachain.__all__:
            yield name, function


def test_a_module_takes_the_options_of_its_function_with_the_same_defaults():
    pairs = dict(modules_with_functions())
    assert {"CTCLoss", "RNNTLoss"} <= pairs.keys()
    for name, function in pairs.items():
        parameters = inspect.signature(getattr(fsachain, function)).parameters
        expected = {one.name: one.default for one in parameters.values()}
        assert module_options(getattr(fsachain, name)) == expected


def test_a_module_passes_its_backend_on():
    given = logits(SCORES), TARGETS, FRAMES, COUNTS
    assert RNNTLoss(blank=0, backend="reference")(*given) == rnnt_loss(*given, blank=0, backend="reference")
    refuses(Exception, "backend", RNNTLoss(blank=0, backend="tpu"), *given)
    old = RNNTLoss(blank=0)
    del old.__dict__["backend"]  # as a module that an older version has pickled
    assert old(*given) == rnnt_loss(*given, blank=0)
    scores = SCORES.log_softmax(2).transpose(0, 1)
    assert CTCLoss(backend="reference")(scores, *given[1:]) == ctc_loss(
        scores, *given[1:], backend="reference"
    )


# Labels as lists.

RAGGED = [torch.tensor([1, 2]), torch.tensor([3])]
PADDED, RAGGED_COUNTS = torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])
BOUNDARY = torch.tensor([[0, 0, 2, 4], [0, 0, 1, 4]])


def pruned_of(targets):
    lm = SCORES[:, :3]
    _, grads = rnnt_loss_simple(lm, SCORES, PADDED, 0, BOUNDARY, return_grad=True)
    ranges = get_rnnt_prune_ranges(*grads, BOUNDARY, 2)
    return rnnt_loss_pruned(sum(do_rnnt_pruning(SCORES, lm, ranges)), targets, ranges, 0, BOUNDARY)


TAKE_LABELS = {
    "ctc": lambda y: ctc_loss(SCORES.transpose(0, 1), y, FRAMES, RAGGED_COUNTS, inputs="logits"),
    "rnnt": lambda y: rnnt_loss(logits(SCORES), y, FRAMES, RAGGED_COUNTS, 0),
    "RNNTLoss": lambda y: RNNTLoss(blank=0)(logits(SCORES), y, FRAMES, RAGGED_COUNTS),
    "hat": lambda y: hat_loss(logits(SCORES), y, FRAMES, RAGGED_COUNTS, 0),
    "tdt": lambda y: tdt_loss(logits(SCORES), y, FRAMES, RAGGED_COUNTS, [1], 0),
    "multi-blank": lambda y: multi_blank_loss(logits(SCORES), y, FRAMES, RAGGED_COUNTS, {4: 2}, 0),
    "chunks": lambda y: transducer_loss(SCORES, SCORES[:, :3], joiner, y, FRAMES, RAGGED_COUNTS, 0),
    "simple": lambda y: rnnt_loss_simple(SCORES[:, :3], SCORES, y, 0, BOUNDARY),
    "smoothed": lambda y: rnnt_loss_smoothed(SCORES[:, :3], SCORES, y, 0, boundary=BOUNDARY),
    "pruned": pruned_of,
    "lattice": lambda y: rnnt_lattice(logits(SCORES), y, FRAMES, RAGGED_COUNTS, 0).log_prob(),
}


@pytest.mark.parametrize("name", TAKE_LABELS)
def test_labels_may_be_a_list_of_sequences_of_different_lengths(name):
    take = TAKE_LABELS[name]
    expected = take(PADDED)
    for ragged in (RAGGED, [row.tolist() for row in RAGGED], tuple(row.numpy() for row in RAGGED)):
        assert torch.equal(take(ragged), expected)


@pytest.mark.parametrize("name", TAKE_LABELS)
def test_a_length_past_the_labels_of_a_list_is_refused(name):
    refuses(ShapeError, r"\[0\] = 2; (targets|symbols)\[0\] has 1 label", TAKE_LABELS[name], [[1], [3, 2]])


@pytest.mark.parametrize("name", TAKE_LABELS)
def test_an_element_of_a_list_that_is_no_label_sequence_is_told_the_flat_form(name):
    rows = [torch.tensor([[1, 2]]), torch.tensor([[3]])]
    refuses(ShapeError, r"shape \[1, 2\].*one tensor \[N, U\]", TAKE_LABELS[name], rows)


# Pruning.


def test_a_range_that_leaves_no_path_is_widened_as_in_k2():
    """Regular: at least trunc((S - 1) / T) + 2, the largest of the batch, so that no loss is infinite."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(60):
        frames, labels = (int(n) for n in torch.randint(1, 7, (2,), generator=generator))
        sizes = torch.stack([torch.randint(1, labels + 1, (3,), generator=generator),
                             torch.randint(1, frames + 1, (3,), generator=generator)], 1)  # fmt: skip
        sizes[0] = torch.tensor([labels, frames])
        boundary = torch.cat([torch.zeros_like(sizes), sizes], 1)
        am, lm = (
            torch.randn(3, frames, 5, generator=generator),
            torch.randn(3, labels + 1, 5, generator=generator),
        )
        symbols = torch.randint(1, 5, (3, labels), generator=generator)
        _, grads = rnnt_loss_simple(lm, am, symbols, 0, boundary, return_grad=True)
        ranges = get_rnnt_prune_ranges(*grads, boundary, 2)
        widest = max(2, *((s - 1) // t + 2 for s, t in sizes.tolist()))
        assert ranges.shape[2] == min(widest, labels + 1)
        loss = rnnt_loss_pruned(
            sum(do_rnnt_pruning(am, lm, ranges)), symbols, ranges, 0, boundary, reduction="none"
        )
        assert loss.isfinite().all()


def test_a_pruned_loss_without_a_path_names_its_sequence_once():
    ranges = torch.arange(2).expand(2, 4, -1)  # the third node is never reached
    given = torch.zeros(2, 4, 2, 5), TARGETS, ranges, 0, torch.tensor([[0, 0, 1, 4], [0, 0, 2, 4]])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert rnnt_loss_pruned(*given, reduction="none")[1] == math.inf
    (warning,) = told
    assert "rnnt_loss_pruned: the loss of sequence 1 is inf" in str(warning.message)
    assert warning.filename == __file__


# Numerators of units.


@pytest.mark.parametrize("topology", ["standard", "compact", "selfless", "minimal"])
def test_a_ctc_numerator_is_the_product_with_the_normalization(topology):
    units = estimate_phone_lm([[1, 2], [2, 1, 2], [3, 3, 1]], ngram_order=2)
    denominator = DenominatorGraph(ctc_denominator(units, topology), num_pdfs=4)
    found = ctc_numerator([2, 1, 2], denominator, topology)
    expected, _ = product(ctc_graph([2, 1, 2], 0, topology), denominator.normalization_fsa())
    assert found.to_text() == expected.to_text()
    record = LFMMILoss(denominator).objective(torch.randn(1, 9, 4), [9], [found])
    assert topology == "compact" or record.objf <= 0


def test_units_that_the_denominator_lacks_are_named():
    units = estimate_phone_lm([[1, 2]], ngram_order=2)
    denominator = DenominatorGraph(ctc_denominator(units), num_pdfs=3)
    refuses(
        GraphError,
        r"unit_ids\[1\] = 3; expected units of the denominator, 1 to 2",
        ctc_numerator,
        [1, 3],
        denominator,
    )
    refuses(ConfigError, "topology", ctc_numerator, [1], denominator, "long")
    with pytest.warns(ObjectiveWarning, match="no path"):
        loss = LFMMILoss(denominator)
        assert (
            loss(torch.zeros(1, 5, 3, requires_grad=True), [5], [ctc_numerator([1, 1, 1], denominator)]) == 0
        )


def test_a_pair_that_product_returned_is_refused_by_the_part_that_is_wanted():
    units = estimate_phone_lm([[1, 2]], ngram_order=2)
    denominator = DenominatorGraph(ctc_denominator(units), num_pdfs=3)
    pair = product(ctc_graph([1, 2]), denominator.normalization_fsa())
    loss, scores = LFMMILoss(denominator), torch.zeros(1, 5, 3)
    refuses(ShapeError, r"numerators\[0\] is a pair.*numerators\[0\]\[0\]", loss, scores, [5], [pair])
    refuses(ShapeError, r"numerators is a pair.*numerators\[0\] in a list", loss, scores, [5], pair)
    assert loss(scores, [5], [pair[0]]).isfinite()


# Names.


@pytest.mark.parametrize("name", LOSSES)
def test_a_profile_names_the_operators_of_a_loss(name):
    scores = SCORES.clone().requires_grad_()
    with profile() as seen:
        LOSSES[name](scores).backward()
    names = {event.key for event in seen.key_averages()}
    ours = {one for one in names if one.startswith("fsachain::")}
    assert any(one + "Backward" in ours for one in ours), names
    assert not any("_Node" in one or "_Chunks" in one for one in names)


def test_a_profile_names_a_loss_without_a_gradient():
    with profile() as seen, torch.no_grad():
        ctc_loss(SCORES.transpose(0, 1), TARGETS, FRAMES, COUNTS, inputs="logits")
        fsachain.total_log_prob(BATCH, SCORES, FRAMES)
    assert {"fsachain::ctc", "fsachain::log_prob"} <= {event.key for event in seen.key_averages()}
