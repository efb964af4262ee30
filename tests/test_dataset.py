"""Examples, batches and the order of an epoch."""

import numpy as np
import pytest
import torch
from tolerances import NORMALISED_VARIANCE, SPEED_FRAMES

from fsachain.data import (
    CmvnConfig,
    DataDir,
    Example,
    FeatureConfig,
    Perturbation,
    collate,
    estimate_cmvn,
    length_buckets,
    load_examples,
    normalise,
)
from fsachain.errors import ConfigError, DataError

LENGTHS = np.random.default_rng(4).integers(20, 600, 203).tolist()


def example(name, num_frames, width=3):
    return Example(name, "s", ("one",), np.full((num_frames, width), num_frames, np.float32))


def test_batch_pads_with_zeros_and_keeps_order():
    batch = collate([example("a", 2), example("b", 4), example("c", 1)])
    assert batch.ids == ("a", "b", "c")
    assert batch.words == (("one",),) * 3
    assert batch.lengths.tolist() == [2, 4, 1]
    assert batch.lengths.dtype == torch.int64
    assert batch.features.dtype == torch.float32
    expected = torch.tensor([[2.0, 2, 0, 0], [4, 4, 4, 4], [1, 0, 0, 0]])
    assert torch.equal(batch.features, expected[:, :, None].expand(3, 4, 3))


def test_batch_of_nothing_or_of_unequal_widths_is_refused():
    with pytest.raises(DataError, match="at least one"):
        collate([])
    with pytest.raises(DataError, match="'b' has 5 features per frame, others 3"):
        collate([example("a", 2), example("b", 2, width=5)])


def test_buckets_keep_padding_small_and_batches_mixed():
    """Random batches of 16 would pad these lengths by 80 %."""
    batches = length_buckets(LENGTHS, batch_size=16, seed=1, epoch=0)
    padded = sum(len(batch) * max(LENGTHS[i] for i in batch) for batch in batches)
    assert padded < 1.2 * sum(LENGTHS)
    longest = [max(LENGTHS[i] for i in batch) for batch in batches]
    assert longest != sorted(longest)


def test_frame_limit_holds_for_padded_batches():
    batches = length_buckets([*LENGTHS, 5000], batch_size=16, seed=1, epoch=0, max_batch_frames=2000)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max([*LENGTHS, 5000][i] for i in batch) <= 2000
    assert [203] in batches


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("max_batch_frames", 0), ("noise", 1.0)])
def test_illegal_option_is_refused_by_name(option, value):
    options = {"batch_size": 4, "seed": 1, "epoch": 0, option: value}
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        length_buckets(LENGTHS, **options)


def test_recorded_speech_becomes_normalised_examples(shared, tmp_path):
    data = DataDir.read(shared / "data" / "digits" / "isolated" / "dev").select(lambda u: u.id < "k")
    examples = load_examples(data, FeatureConfig(), cache_dir=tmp_path, num_workers=2)
    assert [e.id for e in examples] == [u.id for u in data]
    assert examples[0].words and examples[0].features.shape[1] == 40
    normalised = normalise(examples, estimate_cmvn(examples, CmvnConfig("global")))
    frames = np.concatenate([e.features for e in normalised])
    np.testing.assert_allclose(frames.mean(axis=0), 0.0, atol=NORMALISED_VARIANCE)
    np.testing.assert_allclose(frames.std(axis=0), 1.0, atol=NORMALISED_VARIANCE)


def test_copies_at_another_speed_have_their_own_ids_and_lengths(shared):
    data = DataDir(DataDir.read(shared / "data" / "digits" / "isolated" / "dev").utterances[::50])
    plain = load_examples(data, FeatureConfig())
    slow = load_examples(data, FeatureConfig(), perturbation=Perturbation(speed=0.9))
    for one, other in zip(plain, slow, strict=True):
        assert other.id == f"sp0.9-{one.id}"
        assert other.speaker == f"sp0.9-{one.speaker}"
        assert other.num_frames == pytest.approx(one.num_frames / 0.9, abs=SPEED_FRAMES)
