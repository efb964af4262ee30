"""Streamed batches are those of the same examples in memory, made ahead within bounds, and survive what can go wrong."""

import os
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from toy_training import one_pdf_table

from fsachain.asr.data import AugmentConfig, CmvnConfig, DataDir, FeatureConfig, Perturbation, load_examples
from fsachain.asr.data.cmvn import Cmvn
from fsachain.asr.data.dataset import load_usable
from fsachain.asr.data.features import frame_counts
from fsachain.asr.data.workers import Workers
from fsachain.asr.train.source import BatchSource, Corpus, Preparation, StreamSource
from fsachain.asr.train.world import Share
from fsachain.errors import DataError, GraphError

FEATURES = FeatureConfig(num_mel_bins=8)
COUNT = 23
COPIES = (Perturbation(), Perturbation(speed=0.9, volume=(0.5, 2.0), seed=4, noise=(5.0, 20.0)))


def output_lengths(lengths):
    return (lengths + 2) // 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for n in range(COUNT):
        samples = 0.1 * rng.normal(size=int(rng.integers(1500, 9000)))
        soundfile.write(folder / f"{n}.wav", samples, 8000)
    names = range(COUNT)
    (folder / "wav.scp").write_text("".join(f"u{n:02d} {n}.wav\n" for n in names))
    (folder / "text").write_text("".join(f"u{n:02d} yes\n" for n in names))
    (folder / "utt2spk").write_text("".join(f"u{n:02d} s{n % 3}\n" for n in names))
    return DataDir.read(folder)


class ToyMaker:
    """Numerators that depend on the name; refuses and kills where it is told to."""

    def __init__(self, refused="", killed=""):
        self.refused, self.killed = refused, killed

    def table(self, name, words):
        if name == self.killed:
            os._exit(3)
        if name == self.refused:
            raise GraphError(f"utterance {name!r}: refused")
        return one_pdf_table(int(name[1:]) % 6)


def stored(utterance):
    return ToyMaker().table(utterance.id, ())


def moved(data, audio):
    """The recordings of some utterances are elsewhere."""
    return DataDir(tuple(replace(one, audio=str(audio.get(one.id, one.audio))) for one in data))


def stream(data, copies=COPIES[:1], maker=None, augmentation=None, audio=(), stored=stored, **options):
    """`audio`: where recordings are when their frames have been counted."""
    counts, faults = frame_counts(data.utterances, FEATURES, copies)
    assert not faults
    preparation = Preparation(FEATURES, Cmvn(CmvnConfig("utterance")), augmentation, maker)
    utterances = moved(data, dict(audio)).utterances
    corpus = Corpus(utterances, counts, copies, None if maker else stored)
    return StreamSource(corpus, preparation, output_lengths, **({"batch_size": 4, "seed": 1} | options))


def in_memory(data, copies=COPIES[:1], **options):
    cmvn = Cmvn(CmvnConfig("utterance"))
    variants = [load_examples(data, FEATURES, cmvn=cmvn, perturbation=copy) for copy in copies]
    tables = {copy.prefix + one.id: stored(one) for copy in copies for one in data}
    return BatchSource(variants, tables, output_lengths, **({"batch_size": 4, "seed": 1} | options))


def contents(steps):
    """Names, speakers, bits of the features, and active pdfs of all micro-batches."""
    return [
        [
            (
                item.batch.ids,
                item.batch.speakers,
                item.batch.features.numpy().tobytes(),
                tuple(int(table.active_pdfs[0]) for table in item.numerators.tables),
            )
            for item in step
        ]
        for step in steps
    ]


@pytest.mark.parametrize(("batch_frames", "views"), [(None, 1), (200, 2)])
def test_streamed_steps_are_those_of_the_corpus_in_memory_bit_for_bit(data, batch_frames, views):
    options = {
        "batch_frames": batch_frames,
        "views": views,
        "augmentation": AugmentConfig(time_masks=1, time_mask_frames=5, frame_shift=2, seed=3),
    }
    streamed, whole = stream(data, COPIES, num_threads=2, **options), in_memory(data, COPIES, **options)
    assert (streamed.num_utterances, streamed.num_batches) == (whole.num_utterances, whole.num_batches)
    assert streamed.fingerprint() == whole.fingerprint()
    for epoch in range(3):
        assert contents(streamed.batches(epoch)) == contents(whole.batches(epoch))
    assert contents(streamed.in_order()) == contents(whole.in_order())
    assert {part.batch.views for step in streamed.batches(0) for part in step} == {views}
    assert {part.batch.views for step in streamed.in_order() for part in step} == {1}
    assert streamed.excluded == ()
    streamed.close()


@pytest.mark.parametrize("share", [Share(0, 2), Share(1, 2, micro_batch=1), Share(3, 5)])
def test_a_share_of_streamed_steps_is_that_of_the_corpus_in_memory(data, share):
    with_share = contents(stream(data).batches(1, 2, share))
    assert with_share == contents(in_memory(data).batches(1, 2, share))
    assert with_share


def test_resuming_reads_nothing_of_the_steps_before(data, tmp_path):
    whole = contents(stream(data).batches(2))
    early = {name for step in whole[:4] for part in step for name in part[0]}
    resumed = stream(data, audio=dict.fromkeys(early, tmp_path / "gone.wav"))
    assert contents(resumed.batches(2, 4)) == whole[4:]
    assert resumed.excluded == ()


@pytest.mark.parametrize("views", [1, 2])
def test_what_cannot_be_used_is_named_when_its_turn_comes_and_the_others_go_on(data, tmp_path, views):
    names = [one.id for one in data]
    source = stream(
        data,
        audio={"u05": tmp_path / "gone.wav"},
        stored=lambda one: one_pdf_table(0, 50 if one.id == "u07" else 1),
        batch_size=1,
        views=views,
    )
    for _ in range(2):  # the same in the next epoch, and named once
        steps = contents(source.batches(0))
        assert sorted(name for step in steps for part in step for name in part[0]) == [
            name for name in names if name not in ("u05", "u07") for _ in range(views)
        ]
        assert steps.count([]) == 2  # steps that have nobody left
        assert sorted((fault.id, fault.kind) for fault in source.excluded) == [
            ("u05", "missing file"),
            ("u07", "too short"),
        ]


def test_features_that_are_not_finite_are_worded_as_they_are_in_memory(data, tmp_path):
    samples = np.full(4000, 0.1, np.float32)
    samples[2000] = np.nan
    soundfile.write(tmp_path / "nan.wav", samples, 8000, subtype="FLOAT")
    broken = {"u05": tmp_path / "nan.wav"}
    source = stream(data, audio=broken)
    contents(source.batches(0))
    (fault,) = load_usable(moved(data, broken), FEATURES)[2]
    assert source.excluded == (fault,) and "first in frame 2" in fault.reason


def test_numerators_are_compiled_by_processes_and_refused_ones_are_named(data):
    with closing(stream(data, maker=ToyMaker(refused="u03"), num_processes=1)) as source:
        found = contents(source.batches(0))
    expected = contents(in_memory(data.select(lambda one: True)).batches(0))
    assert [fault.id for fault in source.excluded] == ["u03"]
    names = [name for step in found for part in step for name in part[0]]
    assert names == [name for step in expected for part in step for name in part[0] if name != "u03"]


def test_a_worker_that_dies_ends_the_epoch_with_an_error(data):
    with (
        closing(stream(data, maker=ToyMaker(killed="u11"), num_processes=1)) as source,
        pytest.raises(DataError, match="a worker that prepares data was ended from outside"),
    ):
        list(source.batches(0))


class Recorder:
    """Remembers what was begun."""

    def __init__(self):
        self.begun: list[int] = []

    def __call__(self, task):
        self.begun.append(task)
        if task == 13:
            raise DataError("13 is refused")
        return 10 * task


def test_no_more_is_done_ahead_than_was_asked_for():
    recorder = Recorder()
    with Workers(recorder, num_threads=2) as workers:
        results = workers.ahead(([n, n + 1] for n in range(0, 1000, 2)), depth=3)
        assert next(results) == [0, 10]
        time.sleep(0.05)  # whoever would do more has time to
        assert len(recorder.begun) <= 8
        assert [next(results) for _ in range(4)][-1] == [80, 90]
        results.close()
