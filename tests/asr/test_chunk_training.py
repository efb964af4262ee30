"""Chunks in training: cut with context, so that the network computes what it computes for the whole utterance."""

from itertools import pairwise

import numpy as np
import pytest
import tolerances
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import refuses

from fsachain import (
    ContextTree,
    DataError,
    DenominatorGraph,
    LFMMILoss,
    Topology,
    build_denominator,
    compile_table,
    estimate_phone_lm,
)
from fsachain.asr.data.dataset import Example, OutputWindow, WindowBatch, collate, cut_example
from fsachain.asr.decode.align import FrameTiming, align_utterance, aligned_phones
from fsachain.asr.decode.ctm import CtmEntry
from fsachain.asr.nn.tdnnf import Tdnnf, TdnnfConfig
from fsachain.asr.train.config import OptimizerConfig, TrainConfig
from fsachain.asr.train.source import BatchSource, supervise
from fsachain.asr.train.step import EpochSums, Stepper
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.supervision import AlignedPhone, build_supervision, chunk_windows, make_chunks

NUM_FEATURES = 3
LEXICON = Lexicon.from_entries([("no", 1.0, ["N", "OW"]), ("own", 1.0, ["OW", "N"])])
TREE = ContextTree.monophone(LEXICON.phones, Topology.chain())


@st.composite
def networks(draw):
    strides = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    subsampling = draw(st.integers(1, 4))
    return TdnnfConfig(
        NUM_FEATURES,
        TREE.num_pdfs,
        channels=4,
        bottleneck=draw(st.sampled_from([0, 3])),
        time_strides=tuple(strides),
        input_kernel=draw(st.integers(subsampling, 6)),
        subsampling=subsampling,
        subsampling_layer=draw(st.integers(0, len(strides))),
        prefinal=0,
    )


def example_of(num_frames, seed, name="u1"):
    features = np.random.default_rng(seed).normal(size=(num_frames, NUM_FEATURES)).astype(np.float32)
    return Example(name, "anna", ("no",), features)


def network_of(config, seed):
    torch.manual_seed(seed)
    return Tdnnf(config).double().eval()


def cut(example, config, start, end):
    sizes = {"subsampling": config.subsampling, "context": config.context}
    return cut_example(example, start, np.ones(end - start, np.float32), **sizes, name="chunk")


@given(
    config=networks(),
    num_frames=st.integers(1, 90),
    place=st.tuples(st.floats(0, 1), st.integers(1, 9)),
    seed=st.integers(0, 9),
)
@torch.no_grad()
def test_outputs_of_a_chunk_are_those_of_the_whole_utterance(config, num_frames, place, seed):
    example, network = example_of(num_frames, seed), network_of(config, seed)
    outputs = -(-num_frames // config.subsampling)
    start = int(place[0] * (outputs - 1))
    end = min(outputs, start + place[1])
    chunk = collate([cut(example, config, start, end)])
    whole = collate([example])
    expected = network(whole.features.double(), whole.lengths).nnet_output[:, start:end]
    found = chunk.windows.crop(network(chunk.features.double(), chunk.lengths).nnet_output)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerances.NETWORK_FLOAT64)


def test_a_chunk_outside_of_its_utterance_and_a_batch_of_chunks_and_whole_utterances_are_refused():
    config, example = TdnnfConfig(NUM_FEATURES, 4), example_of(30, 0)
    told = r"chunk 'chunk' of the output frames \[8, 11\): utterance 'u1' has 10"
    refuses(DataError, told, cut, example, config, 8, 11)
    refuses(DataError, "2 examples, 1 of them chunks", collate, [example, cut(example, config, 0, 5)])


def test_windows_of_unequal_length_are_padded_with_zeros():
    windows = WindowBatch.collate(
        [OutputWindow(2, np.float32([1.0, 0.5])), OutputWindow(0, np.float32([0.25]))]
    )
    outputs = torch.arange(2 * 5 * 3, dtype=torch.float32).view(2, 5, 3)
    found = windows.crop(outputs)
    assert found.shape == (2, 2, 3)
    assert torch.equal(found[0], outputs[0, 2:4])
    assert torch.equal(found[1], torch.stack([outputs[1, 0], torch.zeros(3)]))
    assert windows.frame_weights.tolist() == [[1.0, 0.5], [0.25, 0.0]]
    assert windows.lengths.tolist() == [2, 1]


@pytest.fixture(scope="module")
def denominator():
    ids = [[LEXICON.phone_id(name) for name in names] for names in (["SIL", "N", "OW"], ["OW", "N", "SIL"])]
    model = estimate_phone_lm(ids * 3, ngram_order=2)
    return DenominatorGraph(build_denominator(model, TREE), TREE.num_pdfs)


CONFIG = TdnnfConfig(
    NUM_FEATURES, TREE.num_pdfs, channels=8, bottleneck=0, time_strides=(1, 2), prefinal=0, dropout=0.0
)


def aligned_utterance(num_frames, seed, normalization, width):
    """An example, and its chunks with their numerators."""
    example = example_of(num_frames, seed)
    silence, n, ow = (LEXICON.phone_id(name) for name in ("SIL", "N", "OW"))
    edges = pairwise([0, num_frames // 4, num_frames // 2, num_frames])
    phones = [AlignedPhone(phone, *ends) for phone, ends in zip((silence, n, ow), edges, strict=True)]
    supervision = build_supervision(phones, num_frames, TREE, time_offset=1, name=example.id)
    count = -(-supervision.num_frames // width)
    windows = chunk_windows(supervision.num_frames, width, count)
    return example, make_chunks(supervision, windows, normalization=normalization)


def cut_all(example, chunks, scale=1):
    sizes = {"subsampling": 3, "context": CONFIG.context}
    return [cut_example(example, c.start, scale * c.frame_weights, **sizes, name=c.id) for c in chunks]


UNCLIPPED = TrainConfig(optimizer=OptimizerConfig(max_grad_norm=float("inf")))


def step_of(denominator, network):
    loss = LFMMILoss(denominator, leaky_hmm_coefficient=0.0)
    return Stepper(network, loss, torch.optim.SGD(network.parameters(), lr=0.0), UNCLIPPED), loss


def gradients(network):
    return [parameter.grad.clone() for parameter in network.parameters()]


def test_one_chunk_of_all_frames_trains_as_the_utterance_does(denominator):
    example, chunks = aligned_utterance(61, 1, denominator.normalization_fsa(), width=50)
    assert len(chunks) == 1
    torch.manual_seed(1)
    network = Tdnnf(CONFIG)
    stepper, _ = step_of(denominator, network)
    table = compile_table(chunks[0].fsa, TREE.num_pdfs)
    losses, grads = [], []
    for examples in ([example], cut_all(example, chunks)):
        sums = EpochSums()
        losses.append(stepper.step([supervise(examples, {e.id: table for e in examples})], sums).loss)
        grads.append(gradients(network))
        assert not sums.excluded
    assert losses[0] == losses[1]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_frames_of_weight_zero_give_no_gradient(denominator):
    example, chunks = aligned_utterance(90, 2, denominator.normalization_fsa(), width=12)
    cuts = cut_all(example, chunks)
    tables = {c.id: compile_table(c.fsa, TREE.num_pdfs) for c in chunks}
    torch.manual_seed(1)
    network = Tdnnf(CONFIG)
    stepper, loss = step_of(denominator, network)
    stepper.step([supervise(cuts, tables)], EpochSums())
    assert any(grad.any() for grad in gradients(network))
    objf = loss.last_record.objf
    outcome = stepper.step([supervise(cut_all(example, chunks, 0), tables)], EpochSums())
    assert outcome.grad_norm == 0.0
    assert loss.last_record.objf == objf  # the weights are of derivatives only


def test_source_takes_chunks_and_names_those_whose_numerator_has_another_length(denominator):
    example, chunks = aligned_utterance(90, 2, denominator.normalization_fsa(), width=12)
    cuts = cut_all(example, chunks)
    tables = {c.id: compile_table(c.fsa, TREE.num_pdfs) for c in chunks}
    other = aligned_utterance(90, 2, denominator.normalization_fsa(), width=15)[1][0]
    tables[cuts[0].id] = compile_table(other.fsa, TREE.num_pdfs)
    lengths = Tdnnf(CONFIG).output_lengths
    source = BatchSource([cuts], tables, lengths, batch_size=2, seed=0)
    assert [str(entry) for entry in source.excluded] == ["u1-000000-000012: needs 15 output frames, has 12"]
    batches = [item for (item,) in source.batches(0)]
    assert sum(len(item.batch.ids) for item in batches) == len(chunks) - 1
    assert all(item.batch.windows.lengths.tolist() == [12] * len(item.batch.ids) for item in batches)


TIMING = FrameTiming(subsampling=3, time_offset=1, frame_shift=0.01)


@given(num_frames=st.integers(4, 60), seed=st.integers(0, 99))
def test_the_phones_of_an_alignment_touch_and_fill_the_utterance(num_frames, seed):
    """So that a supervision can be built from them with no tolerance at all, and holds the aligned path."""
    outputs = -(-num_frames // 3)
    scores = np.random.default_rng(seed).normal(size=(outputs, TREE.num_pdfs)).astype(np.float32)
    found = align_utterance(scores, build_numerator(["no"], LEXICON, TREE), LEXICON.phones, TIMING, name="u1")
    assume(found is not None)
    phones = aligned_phones(found.phones, LEXICON.phones, TIMING.frame_shift)
    assert phones[0].start == 0
    assert all(before.end == after.start for before, after in pairwise(phones))
    assert num_frames <= phones[-1].end < num_frames + 3
    times = {"left_tolerance": 0, "right_tolerance": 0, "time_offset": TIMING.time_offset}
    exact = build_supervision(phones, num_frames, TREE, **times)
    assert exact.num_frames == exact.fsa.num_arcs == outputs  # one path


def test_times_of_a_copy_are_divided_by_its_speed():
    entries = [CtmEntry("u1", 0.0, 0.45, "N"), CtmEntry("u1", 0.45, 0.27, "OW")]
    n, ow = LEXICON.phone_id("N"), LEXICON.phone_id("OW")
    assert aligned_phones(entries, LEXICON.phones, 0.01) == [(n, 0, 45), (ow, 45, 72)]
    assert aligned_phones(entries, LEXICON.phones, 0.9 * 0.01) == [(n, 0, 50), (ow, 50, 80)]


def test_an_unknown_phone_of_an_alignment_is_named_with_its_utterance():
    told, entries = (
        "utterance 'u1': aligned phone 0 is 'XX', .* the 3 phones",
        [CtmEntry("u1", 0.0, 0.1, "XX")],
    )
    refuses(DataError, told, aligned_phones, entries, LEXICON.phones, 0.01)
