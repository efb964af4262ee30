"""Boundaries of alignments: errors against a reference, and a model that moves them to where the sound changes."""

import math

import numpy as np
import pytest

from fsachain.decode.align import Alignment
from fsachain.decode.ctm import CtmEntry
from fsachain.decode.times import REACH, BoundaryModel, boundary_errors
from fsachain.errors import DataError

RATE = 8000
TONES = {"a": 500.0, "b": 1300.0, "SIL": 0.0}


def spoken(labels, seed):
    """Tones in noise, their boundaries, and an alignment whose boundaries are off by up to 40 ms, and late."""
    rng = np.random.default_rng(seed)
    lengths = rng.uniform(0.12, 0.4, len(labels))
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    time = np.arange(round(edges[-1] * RATE)) / RATE
    pitch = np.array([TONES[label] for label in labels])[np.searchsorted(edges, time, side="right") - 1]
    samples = 0.2 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.002 * rng.normal(size=len(time))
    wrong = np.round(edges + rng.uniform(-0.02, 0.04, len(edges)), 6)
    wrong[0], wrong[-1] = 0.0, edges[-1]
    return samples.astype(np.float32), edges, alignment(f"u{seed}", labels, wrong)


def alignment(name, labels, edges):
    phones = tuple(
        CtmEntry(name, left, right - left, label, 1.0)
        for label, left, right in zip(labels, edges, edges[1:], strict=False)
    )
    words = tuple(phone._replace(label=phone.label * 2) for phone in phones if phone.label != "SIL")
    return Alignment(name, -1.0, words, phones, seconds=float(edges[-1]))


def corpus(count, first=0):
    rng = np.random.default_rng(first)
    strings = [
        ["SIL", *rng.choice(["a", "b"], 1), *"ab" * int(rng.integers(1, 3)), "SIL"] for _ in range(count)
    ]
    merged = [[x for n, x in enumerate(one) if n == 0 or x != one[n - 1]] for one in strings]
    return [spoken(labels, first + n) for n, labels in enumerate(merged)]


@pytest.fixture(scope="module")
def model():
    return BoundaryModel.fit([(samples, wrong) for samples, _, wrong in corpus(25)], RATE)


def test_boundaries_move_to_where_the_sound_changes_and_all_else_stays(model):
    before, after = [], []
    for samples, edges, wrong in corpus(10, first=1000):
        found = model.refine(samples, wrong)
        assert [phone[3:] for phone in found.phones] == [phone[3:] for phone in wrong.phones]
        ends = [phone.start + phone.duration for phone in found.phones]
        assert found.phones[0].start == 0.0 and ends[-1] == pytest.approx(wrong.seconds)
        np.testing.assert_allclose(ends[:-1], [phone.start for phone in found.phones[1:]], atol=1e-5)
        spans = {(phone.start, phone.duration) for phone in found.phones}
        assert all((word.start, word.duration) in spans for word in found.words)
        before += [phone.start - edge for phone, edge in zip(wrong.phones[1:], edges[1:], strict=False)]
        after += [phone.start - edge for phone, edge in zip(found.phones[1:], edges[1:], strict=False)]
        assert max(abs(np.diff([ends[:-1], [p.start for p in wrong.phones[1:]]], axis=0)[0])) <= REACH + 0.005
    assert np.abs(after).mean() < 0.4 * np.abs(before).mean()
    assert abs(np.mean(after)) < 0.004 < abs(np.mean(before))


def test_a_model_is_kept_in_a_file_and_damaged_ones_are_refused(model, tmp_path):
    model.save(tmp_path / "b.npz")
    again = BoundaryModel.load(tmp_path / "b.npz")
    samples, _, wrong = corpus(1, first=7)[0]
    assert again.refine(samples, wrong) == model.refine(samples, wrong)
    np.savez(tmp_path / "other.npz", means=np.zeros(3))
    with pytest.raises(DataError, match="not a model of boundaries"):
        BoundaryModel.load(tmp_path / "other.npz")


def test_what_the_model_cannot_place_stays_as_it_was(model):
    samples, _, wrong = corpus(1, first=7)[0]
    unknown = alignment("u", ["SIL", "zz", "SIL"], [0.0, 0.2, 0.4, wrong.seconds])
    nothing = Alignment("u", -math.inf, reason="no path")
    assert model.refine(samples, unknown) is unknown and model.refine(samples, nothing) is nothing
    with pytest.raises(DataError, match="no alignment to learn boundaries from"):
        BoundaryModel.fit([(samples, nothing)], RATE)


def test_errors_compare_words_that_are_the_same_and_phones_one_by_one():
    words = [CtmEntry("u", 0.0, 1.0, "x"), CtmEntry("u", 1.0, 1.0, "y"), CtmEntry("v", 0.0, 1.0, "x")]
    found = [words[0]._replace(start=0.02), words[1]._replace(duration=0.97), words[2]._replace(label="z")]
    phones = [CtmEntry("u", 0.0, 0.5, "p"), CtmEntry("u", 0.5, 0.5, "q"), CtmEntry("u", 1.0, 1.0, "r")]
    own = [
        CtmEntry("u", 0.02, 0.5, "P"),
        CtmEntry("u", 0.52, 0.5, "Q"),
        CtmEntry("u", 1.02, 0.4, "R"),
        CtmEntry("u", 1.42, 0.5, "S"),
    ]
    errors = boundary_errors({"words": words, "phones": phones}, {"words": found, "phones": own}, "SIL")
    np.testing.assert_allclose(errors["words"].starts, [0.02, 0.0], atol=1e-12)
    np.testing.assert_allclose(errors["words"].ends, [0.02, -0.03], atol=1e-12)
    np.testing.assert_allclose(errors["phones"].starts, [0.02, 0.02], atol=1e-12)
    assert "17.5 ms off in the mean, 20.0 in the median" in str(errors["words"])
    assert "starts +10.0 ms, ends -5.0 ms (2)" in str(errors["words"])
    assert str(boundary_errors({}, {})["words"]) == "none to compare"
