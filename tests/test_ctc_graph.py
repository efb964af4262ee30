"""CTC graphs: the frame sequences that spell a target, counted."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from edit_scripts import STAR, scripts
from graph_paths import assert_same_columns, scores_along
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from tolerances import ROUNDING

from fsachain import (
    ConfigError,
    Forgiveness,
    GraphError,
    TableBatch,
    compile_table,
    ctc_graph,
    forward_backward,
)

TOPOLOGIES = ["standard", "compact", "selfless", "minimal"]
CLASSES = 3


def runs(frames):
    return [(label, len(list(run))) for label, run in itertools.groupby(frames)]


def ways_to_spell(target, frames, blank, topology):
    """In how many ways the frames spell the target, straight from the definitions."""
    if topology in ("minimal", "selfless"):
        plain = [label for label in frames if label != blank]
        lasts = any(label != blank and length > 1 for label, length in runs(frames))
        return int(plain == list(target) and not (topology == "selfless" and lasts))
    if topology == "standard":
        return int([label for label, _ in runs(frames) if label != blank] == list(target))
    # compact: a run of r frames is cut into k labels in (r - 1 over k - 1) ways.
    counts = {(): 1}
    for label, length in runs(frames):
        if label != blank:
            longer = {}
            for spelled, ways in counts.items():
                for k in range(1, length + 1):
                    key = (*spelled, *[label] * k)
                    longer[key] = longer.get(key, 0) + ways * math.comb(length - 1, k - 1)
            counts = longer
    return counts.get(tuple(target), 0)


def frame_sequences(longest):
    """Of up to so many frames, each with the scores [1, T, classes + a star] that allow it alone: 0, others -inf."""
    for count in range(1, longest + 1):
        for frames in itertools.product(range(CLASSES), repeat=count):
            yield frames, scores_along(frames, CLASSES + 1, -np.inf)[None]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("target", [(), (2, 1), (1, 1, 2)])
def test_each_frame_sequence_has_as_many_paths_as_ways_to_spell_the_target(topology, target):
    batch = TableBatch.share(compile_table(ctc_graph(target, 0, topology), CLASSES + 1), 1)
    for frames, scores in frame_sequences(5):
        log_prob = forward_backward(batch, scores, backend="reference").log_prob[0]
        expected = ways_to_spell(target, frames, 0, topology)
        assert math.exp(log_prob) == pytest.approx(expected, abs=ROUNDING), frames


@given(st.lists(st.sampled_from([0, 1, 3]), max_size=6), st.sampled_from(TOPOLOGIES))
def test_the_fewest_frames_are_the_labels_and_the_blanks_between_equal_ones(target, topology):
    separated = topology in ("standard", "selfless")
    blanks = sum(a == b for a, b in itertools.pairwise(target)) if separated else 0
    assert ctc_graph(target, 2, topology).min_frames() == len(target) + blanks


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_renaming_classes_renames_pdfs_and_nothing_else(topology):
    plain, renamed = ctc_graph([1, 1, 2], 0, topology), ctc_graph([5, 5, 0], 7, topology)
    assert_same_columns(renamed, replace(plain, pdf=np.array([7, 5, 0])[plain.pdf]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 0], 0), GraphError, r"targets\[1\] = 0; expected labels >= 0 other than the blank, 0"),
        (([-1], 0), GraphError, r"targets\[0\] = -1"),
        (([1.5], 0), GraphError, "dtype float64; expected a list of integers"),
        (([[1]], 0), GraphError, r"shape \[1, 1\]"),
        (([1], -1), ConfigError, "blank = -1"),
        (([1], "0"), ConfigError, "blank = '0'; expected a class"),
        (([1], 0, "monotonic"), ConfigError, "topology = 'monotonic'; expected one of"),
    ],
)
def test_what_is_no_target_is_an_error(arguments, error, message):
    refuses(error, message, ctc_graph, *arguments)


def spells(symbols, frames, topology):
    """Whether frames (blank 0) spell labels and stars, straight from the definition: runs that are not blank, one by one."""
    if topology == "minimal":
        plain = [label for label in frames if label]
        if len(plain) != len(symbols):
            return False
        return all(want in (STAR, said) for want, said in zip(symbols, plain, strict=True))
    if topology == "selfless" and any(label and length > 1 for label, length in runs(frames)):
        return False
    position = 0
    for stretch in (list(part) for is_label, part in itertools.groupby(frames, key=bool) if is_label):
        if symbols[position : position + 1] == (STAR,):  # the whole stretch between two blanks
            if topology == "selfless" and len(stretch) > 1:
                return False
            position += 1
            continue
        for label, _ in runs(stretch):
            if symbols[position : position + 1] != (label,):
                return False
            position += 1
    return position == len(symbols)


@given(
    target=st.lists(st.sampled_from([1, 2]), max_size=3),
    penalties=st.tuples(*[st.one_of(st.just(math.inf), st.floats(0.1, 4.0))] * 3),
    topology=st.sampled_from(["standard", "selfless", "minimal"]),
    most_left_out=st.integers(1, 2),
)
def test_frames_weigh_what_the_scripts_do_that_spell_them(target, penalties, topology, most_left_out):
    options = Forgiveness(*penalties, most_left_out=most_left_out)
    graph = ctc_graph(target, 0, topology, forgive=options, star=3)
    weights = {}
    for symbols, weight in scripts(target, options, longest=5):
        weights[symbols] = weights.get(symbols, 0.0) + math.exp(weight)
    batch = TableBatch.share(compile_table(graph, CLASSES + 1), 1)
    for frames, scores in frame_sequences(4):
        scores[0, np.array(frames) > 0, CLASSES] = 0.0  # "sum": a star scores as any unit does
        log_prob = forward_backward(batch, scores, backend="reference").log_prob[0]
        wanted = sum(weight for symbols, weight in weights.items() if spells(symbols, frames, topology))
        assert math.exp(log_prob) == pytest.approx(wanted, abs=ROUNDING), frames
        assert log_prob <= ROUNDING


@pytest.mark.parametrize("star", [None, 0, 2])
def test_a_star_without_a_class_of_its_own_is_refused(star):
    told, options = f"star = {star}; expected a class of its own", Forgiveness(deletion=1.0)
    refuses(ConfigError, told, ctc_graph, [1, 2], forgive=options, star=star)
