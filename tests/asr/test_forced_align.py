"""`forced_align` finds the best of all frame sequences that spell a target, written down one by one."""

import itertools
import math

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from fsachain import AlignmentError, TokenSpan, forced_align, merge_tokens, spans
from fsachain.backends.cpu import ctc
from fsachain.errors import ConfigError, DataError, ShapeError
from tools.cuda_on_host import pretended

STAR = 99
TOPOLOGIES = "standard", "compact", "selfless", "minimal"


def outputs(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).log_softmax(-1).to(dtype)


def ways(num_frames, target, topology):
    """Every sequence of places in the target, 0 for the blank, that spells it."""
    for places in itertools.product(range(len(target) + 1), repeat=num_frames):
        said, before = 0, 0  # the labels so far; the place of the frame before
        for place in places:
            if place == before > 0 and topology in ("standard", "compact"):
                continue
            if place:
                label, last = target[place - 1], target[place - 2]
                apart = (
                    before == 0
                    or topology in ("compact", "minimal")
                    or STAR in (label, last)
                    or label != last
                )
                if place != said + 1 or not apart:
                    break
                said = place
            before = place
        else:
            if said == len(target):
                yield places


def enumerated(rows, target, blank, topology, penalty):
    """By their tokens the ways' scores and the log-posteriors of their places."""
    tokens = [blank, *target]

    def score(t, place):
        return max(rows[t]) - penalty if tokens[place] == STAR else rows[t][tokens[place]]

    found = [
        (sum(score(t, place) for t, place in enumerate(places)), places)
        for places in ways(len(rows), target, topology)
    ]
    total = math.fsum(math.exp(x) for x, _ in found)
    result = {}
    for own, places in found:
        here = [math.fsum(math.exp(x) for x, other in found if other[t] == k) for t, k in enumerate(places)]
        same = result.setdefault(tuple(tokens[k] for k in places), [])
        same.append((own, [math.log(x / total) for x in here]))
    return result


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    num_frames=st.integers(1, 6),
    target=st.lists(st.sampled_from([1, 2, STAR]), max_size=3),
    topology=st.sampled_from(TOPOLOGIES),
    backend=st.sampled_from(["cpu", "reference"]),
    stretches=st.booleans(),
)
def test_path_score_and_posteriors_are_those_of_all_ways(
    seed, num_frames, target, topology, backend, stretches
):
    log_probs, labels = outputs(1, num_frames, 3, seed=seed), torch.tensor([target], dtype=torch.int64)
    expected = enumerated(log_probs[0].tolist(), target, 0, topology, 0.25)
    options = {"star": STAR, "star_penalty": 0.25, "topology": topology, "backend": backend}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctc, "SMALL", 0 if stretches else ctc.SMALL)
        if not expected:
            refuses(AlignmentError, r"frames? for a target of", forced_align, log_probs, labels, **options)
            return
        paths, scores = forced_align(log_probs, labels, **options)
    _, posteriors = forced_align(log_probs, labels, scores="posterior", **options)
    best = max(score for same in expected.values() for score, _ in same)
    assert float(scores.sum()) == pytest.approx(best, abs=tolerances.ENUMERATION)
    near = {"abs": tolerances.FLOAT64}
    assert any(  # with stars several ways may be the best, and several have the same tokens
        score == pytest.approx(best, **near) and posteriors[0].tolist() == pytest.approx(here, **near)
        for score, here in expected[tuple(paths[0].tolist())]
    )


def test_among_equal_scores_a_path_ends_in_a_token_and_stays_where_it_is():
    log_probs = torch.zeros(3, 6, 4)
    paths, _ = forced_align(log_probs, torch.tensor([[1, 2], [3, 3], [1, 0]]), target_lengths=[2, 2, 1])
    assert paths.tolist() == [[1, 2, 2, 2, 2, 2], [3, 0, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_long_targets_in_many_stretches_have_the_oracles_path(topology, monkeypatch):
    log_probs = outputs(3, 300, 6, seed=4)
    targets = torch.from_numpy(np.random.default_rng(4).integers(1, 6, (3, 90)))
    options = {"input_lengths": [300, 211, 180], "target_lengths": [90, 61, 1], "topology": topology}
    expected = forced_align(log_probs, targets, backend="reference", **options)
    for small in (ctc.SMALL, 0):
        monkeypatch.setattr(ctc, "SMALL", small)
        found = forced_align(log_probs, targets, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_utterance_has_the_same_path_alone_and_padded_with_anything():
    log_probs, targets = outputs(2, 40, 5), torch.tensor([[1, 2, 2, 4, STAR], [STAR, STAR, 7, -1, 0]])
    log_probs[1, 9:] = math.nan
    paths, scores = forced_align(log_probs, targets, torch.tensor([40, 9]), torch.tensor([4, 1]), star=STAR)
    alone = forced_align(log_probs[1:, :9], targets[1:, :1], star=STAR)
    assert torch.equal(paths[1, :9], alone[0][0]) and torch.equal(scores[1, :9], alone[1][0])
    assert (paths[1, 9:] == 0).all() and (scores[1, 9:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [torch.int32, torch.int64])
def test_results_have_the_dtypes_of_targets_and_log_probs(dtype, labels):
    log_probs = outputs(1, 30, 5, dtype=dtype)
    paths, scores = forced_align(log_probs, torch.tensor([[1, 3, 3]], dtype=labels))
    assert paths.dtype == labels and scores.dtype == dtype
    assert torch.equal(scores, log_probs.gather(2, paths.long().unsqueeze(2)).squeeze(2))


def test_silence_before_an_unknown_word_does_not_move_the_words_after_it():
    """A star stands for a word nobody can spell; more silence before it shifts what follows by just as much."""

    def spoken(silence):
        classes = [1] * 3 + [0] * (4 + silence) + [4] * 2 + [5] * 3 + [0] * 2 + [2] * 3 + [0] * 3 + [3] * 2
        rows = torch.full((1, len(classes), 6), 0.02)
        rows[0, torch.arange(len(classes)), classes] = 0.9
        return rows.log()

    def starts(silence):
        paths, scores = forced_align(spoken(silence), torch.tensor([[1, STAR, 2, 3]]), star=STAR)
        return {span.token: (span.start, span.end) for span in merge_tokens(paths[0], scores[0])}

    few, many = starts(0), starts(60)
    assert few[1] == many[1] == (0, 3)
    assert few[STAR] == (7, 12) and many[STAR] == (67, 72)
    for token in (2, 3):
        assert many[token] == tuple(frame + 60 for frame in few[token])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("filled", [0.0, math.nan])
@pytest.mark.parametrize("scores", ["path", "posterior"])
def test_the_column_that_torchaudio_wants_for_a_star_is_not_read(filled, scores, backend):
    log_probs = outputs(2, 12, 5, seed=6)
    for star in (5, 3):  # behind all classes, as there, or between them
        targets = torch.tensor([[1, star, 2], [star, 2, 1]])
        own = torch.full_like(log_probs[:, :, :1], filled)
        wide = torch.cat([log_probs[:, :, :star], own, log_probs[:, :, star:]], dim=2)
        options = {"star_penalty": 0.5, "scores": scores, "backend": backend}
        expected = forced_align(log_probs, torch.where(targets == star, STAR, targets), star=STAR, **options)
        paths, found = forced_align(wide, targets, star=star, **options)
        assert torch.equal(paths, torch.where(expected[0] == STAR, star, expected[0]))
        assert torch.equal(found, expected[1])


def test_path_scores_are_differentiable():
    log_probs = outputs(1, 12, 4).requires_grad_()
    paths, scores = forced_align(log_probs, torch.tensor([[1, 2]]))
    scores.sum().backward()
    assert torch.equal(log_probs.grad, torch.nn.functional.one_hot(paths, 4).double())


WRONG = {
    "blank": ({"targets": torch.tensor([[1, 0]])}, DataError, r"sequence 0: targets\[0\]\[1\] = 0"),
    "no class": ({"targets": torch.tensor([[1, 5]])}, DataError, r"targets\[0\]\[1\] = 5.*\[0, 4\)"),
    "too long": ({"targets": torch.tensor([[1] * 6])}, AlignmentError, "utt-7: 10 frames for a target of 6"),
    "not three axes": ({"log_probs": outputs(10, 4)}, ShapeError, r"log_probs: expected a tensor \[B, T, C\]"),
    "two batches": ({"targets": torch.ones(2, 1, dtype=torch.int64)}, ShapeError, "targets has 2 rows"),
    "no tensor": ({"log_probs": outputs(1, 10, 4).numpy()}, ShapeError, "log_probs: .* got ndarray"),
    "no classes": ({"log_probs": outputs(1, 10, 0)}, ConfigError, "blank = 0"),
    "scores of integers": ({"log_probs": torch.ones(1, 9, 4).long()}, ShapeError, "log_probs has dtype"),
    "targets of booleans": ({"targets": torch.ones(1, 1) > 0}, ShapeError, "targets has dtype torch.bool"),
    "targets of floats": ({"targets": torch.ones(1, 1)}, ShapeError, "targets has dtype torch.float32"),
    "frames": ({"input_lengths": [11]}, ShapeError, r"input_lengths\[0\] = 11; expected 0 to 10, .* log_probs \[B, T"),
    "star is the blank": ({"star": 0}, ConfigError, "star = 0 is the blank"),
    "penalty": ({"star_penalty": -1.0}, ConfigError, "star_penalty"),
    "scores": ({"scores": "best"}, ConfigError, "scores = 'best'"),
    "names": ({"names": []}, ShapeError, "names has 0 entries"),
    "NaN": ({"log_probs": outputs(1, 10, 4) * math.nan}, DataError, "NaN or .inf among log_probs"),
    "no path": ({"log_probs": outputs(1, 10, 4) - math.inf}, AlignmentError, "-inf on every path"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_wrong_arguments_are_named(changed, error, message, backend):
    arguments = {"log_probs": outputs(1, 10, 4), "targets": torch.tensor([[1, 2]]), **changed}
    if message.startswith("utt-7"):
        arguments["names"] = ["utt-7"]
    refuses(error, message, forced_align, backend=backend, **arguments)


def test_all_utterances_without_an_alignment_are_named_at_once():
    options = {"input_lengths": [5, 2, 1], "names": ["a", "b", "c"]}
    with pytest.raises(AlignmentError, match=r"b: 2 frames.*c: 1 frame ") as caught:
        forced_align(outputs(3, 5, 4), torch.tensor([[1, 2, 3]] * 3), **options)
    assert caught.value.utterances == [1, 2] and isinstance(caught.value, RuntimeError)
    refuses(AlignmentError, "; and 2 more", forced_align, outputs(7, 1, 4), torch.ones(7, 2).long())


def test_tokens_are_merged_and_get_the_mean_of_their_scores():
    tokens, scores = torch.tensor([0, 1, 1, 0, 1, 2, 0]), torch.arange(7.0)
    expected = [TokenSpan(1, 1, 3, 1.5), TokenSpan(1, 4, 5, 4.0), TokenSpan(2, 5, 6, 5.0)]
    assert merge_tokens(tokens, scores) == expected
    assert [len(span) for span in expected] == [2, 1, 1]
    assert merge_tokens(tokens[:0], scores[:0]) == []
    refuses(ShapeError, r"expected \[T\]", merge_tokens, tokens[None], scores[None])


def test_spans_are_in_seconds_with_confidences():
    paths, scores = torch.tensor([[0, 3, 3, STAR]]), torch.log(torch.tensor([[1.0, 0.5, 0.5, 0.25]]))
    (found,) = spans(paths, scores, 0.02, offset=1.0, symbols="-xya")
    assert [span.token for span in found] == ["a", STAR]
    assert spans(paths, scores, 0.02, symbols={3: "b"})[0][0].token == "b"
    np.testing.assert_allclose([span[1:] for span in found], [(1.02, 1.06, 0.5), (1.06, 1.08, 0.25)])
    refuses(ConfigError, "frame_seconds", spans, paths, scores, 0.0)


def test_on_a_device_the_kernels_find_the_same_paths():
    targets = torch.tensor([[1, 2, 2, 4], [3, STAR, 1, -1]])
    arguments = outputs(2, 30, 5, dtype=torch.float32), targets, [30, 17], [4, 3]
    for scores in ("path", "posterior"):
        expected = forced_align(*arguments, star=STAR, scores=scores)
        with pretended():
            found = forced_align(*arguments, star=STAR, scores=scores)
        assert torch.equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], atol=tolerances.OCCUPANCY)
