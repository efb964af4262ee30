"""The order of an epoch: frame buckets, shards, and a number of steps that stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsachain.data.order import EpochOrder, length_buckets
from fsachain.errors import ConfigError

LENGTHS = np.random.default_rng(4).integers(20, 600, 203).tolist()


def order(**options):
    return EpochOrder(lambda epoch: LENGTHS, **({"batch_size": 16, "seed": 1} | options))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=60),
    st.integers(1, 9),
    st.none() | st.integers(1, 900),
    st.none() | st.integers(1, 7),
    st.integers(0, 50),
)
def test_every_epoch_has_every_utterance_once_in_the_same_number_of_steps(
    lengths, size, frames, shards, epoch
):
    shard_of = None if shards is None else [position % shards for position in range(len(lengths))]
    found = EpochOrder(
        lambda _: lengths, batch_size=size, seed=3, batch_frames=frames, shard_of=shard_of, shards_at_once=2
    )
    buckets = found.buckets(epoch)
    assert len(buckets) == found.num_batches
    assert sorted(position for bucket in buckets for position in bucket) == list(range(len(lengths)))
    assert 1 <= min(map(len, buckets)) <= max(map(len, buckets)) <= size


def test_without_a_frame_limit_the_order_is_that_of_length_buckets():
    for epoch in range(3):
        assert order().buckets(epoch) == length_buckets(LENGTHS, batch_size=16, seed=1, epoch=epoch)


def test_padded_steps_keep_to_the_frame_limit_and_fill_it():
    found = order(batch_size=203, batch_frames=4000)
    for epoch in range(8):
        costs = [len(bucket) * max(LENGTHS[i] for i in bucket) for bucket in found.buckets(epoch)]
        assert max(costs) <= 4000
        assert np.mean(costs) > 0.8 * 4000


def test_neighbouring_steps_come_from_few_shards_and_these_change_from_epoch_to_epoch():
    shard_of = [position // 20 for position in range(203)]
    found = order(shard_of=shard_of, shards_at_once=3)
    seen = []
    for epoch in range(2):
        spans = [{shard_of[i] for i in bucket} for bucket in found.buckets(epoch)]
        groups = []  # shards of the steps so far that overlap
        for span in spans:
            if groups and groups[-1] & span:
                groups[-1] |= span
            else:
                groups.append(set(span))
        assert max(map(len, groups)) == 3
        assert sorted(shard for group in groups for shard in group) == list(range(11))
        seen.append(groups)
    assert seen[0] != seen[1]


def test_lengths_that_change_with_the_epoch_do_not_change_the_number_of_steps():
    rng = np.random.default_rng(0)
    drawn = {
        epoch: (np.array(LENGTHS) * rng.uniform(0.9, 1.1, 203)).astype(int).tolist() for epoch in range(20)
    }
    found = EpochOrder(drawn.__getitem__, batch_size=203, seed=1, batch_frames=2000)
    assert {len(found.buckets(epoch)) for epoch in range(20)} == {found.num_batches}


@pytest.mark.parametrize("option", ["batch_size", "batch_frames", "shards_at_once"])
def test_an_option_below_one_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=f"{option} is 0"):
        order(**{option: 0})
