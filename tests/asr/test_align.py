"""Word and phone times from network outputs that spell a known path."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from graph_paths import scores_along
from refusals import refuses

from fsachain.asr.decode.align import Alignment, FrameTiming, align, align_utterance
from fsachain.asr.decode.ctm import CtmEntry, by_utterance, read_ctm, write_ctm, write_textgrid
from fsachain.asr.decode.times import REACH, BoundaryModel, boundary_errors
from fsachain.errors import ConfigError, DataError, ShapeError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology

TIMING = FrameTiming(subsampling=3, time_offset=1, frame_shift=0.01)


LEXICON = Lexicon.from_entries(
    [("no", 1.0, ["N", "OW"]), ("nose", 1.0, ["N", "OW", "Z"]), ("owe", 1.0, ["OW"])]
)
TREE = ContextTree.monophone(LEXICON.phones, Topology.chain())


def spell(*phones):
    """Scores that favour each phone for so many frames: its first pdf, then its self-loop."""
    pdfs = [TREE.pdf(LEXICON.phone_id(p), min(frame, 1)) for p, frames in phones for frame in range(frames)]
    return scores_along(pdfs, TREE.num_pdfs, -10.0)


def aligned(scores, words, name="u1"):
    return align_utterance(scores, build_numerator(words, LEXICON, TREE), LEXICON.phones, TIMING, name=name)


def test_times_are_those_that_the_scores_spell():
    spoken = [("SIL", 4), ("N", 3), ("OW", 5), ("SIL", 2), ("N", 1), ("OW", 2), ("Z", 3), ("SIL", 1)]
    found = aligned(spell(*spoken), ["no", "nose"])
    starts = np.cumsum([0] + [frames for _, frames in spoken])
    expected = [
        CtmEntry("u1", pytest.approx(0.03 * start), pytest.approx(0.03 * frames), phone, 1.0)
        for (phone, frames), start in zip(spoken, starts[:-1], strict=True)
    ]
    assert list(found.phones) == expected
    assert [(word.label, word.start, word.duration) for word in found.words] == [
        ("no", pytest.approx(0.12), pytest.approx(0.24)),
        ("nose", pytest.approx(0.42), pytest.approx(0.18)),
    ]
    for one in (found, Alignment("u", -math.inf, reason="no path")):
        assert Alignment.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_a_phone_repeated_across_a_word_boundary_is_two_phones_of_two_words():
    found = aligned(spell(("N", 2), ("OW", 3), ("OW", 4), ("OW", 2)), ["no", "owe", "owe"])
    assert [word.label for word in found.words] == ["no", "owe", "owe"]
    assert [phone.label for phone in found.phones] == ["N", "OW", "OW", "OW"]
    assert [round(word.duration / 0.03) for word in found.words] == [5, 4, 2]


def test_blanks_are_no_phones_and_those_inside_a_word_belong_to_it():
    tree = ContextTree.monophone(LEXICON.phones, Topology.ctc())
    said = [tree.pdf(LEXICON.phone_id(phone), 0) if phone else 0 for phone in ("", "N", "", "OW", "")]
    scores = scores_along(np.repeat(said, 2), tree.num_pdfs, -10.0)
    found = align_utterance(scores, build_numerator(["no"], LEXICON, tree), LEXICON.phones, TIMING)
    assert [phone.label for phone in found.phones] == ["N", "OW"]
    assert (found.words[0].start, found.words[0].duration) == pytest.approx((0.06, 0.18))


def test_alignments_are_monotonic_and_cover_every_frame_whatever_the_scores():
    rng = np.random.default_rng(11)
    for frames in (6, 7, 20, 41):
        found = aligned(10 * rng.normal(size=(frames, TREE.num_pdfs)), ["nose", "no", "owe"])
        ends = [entry.start + entry.duration for entry in found.phones]
        assert [entry.start for entry in found.phones] == pytest.approx([0.0, *ends[:-1]])
        assert ends[-1] == pytest.approx(0.03 * frames)
        assert [word.label for word in found.words] == ["nose", "no", "owe"]
        assert all(one.start < other.start for one, other in itertools.pairwise(found.words))


def test_a_frame_centre_follows_subsampling_and_offset():
    for subsampling, offset in ((1, 0), (3, 1), (4, 0)):
        timing = FrameTiming(subsampling, offset, 0.01)
        centre = timing.start_of(10) + timing.frame_seconds / 2
        assert centre == pytest.approx((subsampling * 10 + offset + 0.5) * 0.01)
    assert FrameTiming(4, 0, 0.01).start_of(0) == 0.0


def test_impossible_utterances_are_named_with_their_reason():
    numerators = {n: build_numerator([w], LEXICON, TREE) for n, w in (("short", "nose"), ("good", "no"))}
    outputs = {name: np.zeros((2, TREE.num_pdfs)) for name in ("short", "good", "unknown")}
    calls = []
    progress = {"progress": lambda *call: calls.append(call)}
    found, failed = align(outputs, numerators, LEXICON.phones, TIMING, **progress)
    assert list(found) == ["good"]
    assert failed == {"short": "no path of 2 frames, 3 are needed", "unknown": "has no numerator"}
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_bad_scores_are_refused_by_utterance_name():
    refuses(ShapeError, "'u7'", aligned, np.zeros(5), ["no"], "u7")
    refuses(DataError, r"'u7'.*NaN", aligned, np.full((5, TREE.num_pdfs), np.nan), ["no"], "u7")
    for timing in ((3, 1, 0.0), (0, 1, 0.01)):
        refuses(ConfigError, f"subsampling {timing[0]}, frame_shift {timing[2]}", FrameTiming, *timing)


def test_ctm_files_survive_a_round_trip_and_bad_lines_are_named(tmp_path):
    entries = [CtmEntry("u1", 0.12, 0.24, "no"), CtmEntry("u1", 0.42, 0.18, "nose")]
    path = tmp_path / "align/words.ctm"
    write_ctm(path, entries)
    assert path.read_text().splitlines()[0] == "u1 1 0.120 0.240 no"
    assert str(entries[0]._replace(confidence=0.5)) == "u1 1 0.120 0.240 no 0.500"
    assert read_ctm(path) == entries
    (tmp_path / "bad.ctm").write_text("u1 1 0.1 0.2 a\nu1 1 x 0.2 a\n")
    refuses(DataError, r"bad\.ctm:2", read_ctm, tmp_path / "bad.ctm")


def test_a_textgrid_has_what_touches_side_by_side_and_nothing_that_overlaps(tmp_path):
    from praatio import textgrid

    rows = (0.1, 0.20005, "a"), (0.3, 0.2, "b")  # rounded, as those of CTM files
    for duration, end in ((0.2, 0.5), (0.47, 0.47), (0.7, 0.7)):
        write_textgrid(tmp_path / "a", {"words": [CtmEntry("u", *row) for row in rows]}, duration)
        grid = textgrid.openTextgrid(str(tmp_path / "a"), includeEmptyIntervals=False)
        assert [tuple(entry) for entry in grid.getTier("words").entries] == [
            (0.1, min(duration, 0.30005), "a"), (0.30005 if duration > 0.2 else 0.3, min(end, 0.5), "b")
        ]  # fmt: skip
        assert grid.maxTimestamp == end
    for start, length, after in ((0.2, 0.5, "0.30005"), (-0.1, 0.2, "0"), (0.5, 0.0, "0.30005")):
        wrong = [CtmEntry("u", *rows[0])] * (after != "0") + [CtmEntry("u", start, length, "b")]
        told = f"utterance 'u': 'b' of tier 'phones' lasts from {start:g} .* at or after {after} s"
        refuses(DataError, told, write_textgrid, tmp_path / "b", {"phones": wrong}, 1.0)


def test_entries_of_an_utterance_are_in_order_of_time_wherever_they_stand():
    entries = [CtmEntry(name, start, 0.5, "a") for name, start in (("u2", 1.0), ("u1", 0.1), ("u2", 0.0))]
    assert by_utterance(entries) == {"u2": [entries[2], entries[0]], "u1": [entries[1]]}
    assert not by_utterance([])


# Boundaries of alignments: errors against a reference, and a model that moves them to where the sound changes.


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
    return BoundaryModel.fit([([samples], wrong) for samples, _, wrong in corpus(60)], RATE)


def test_boundaries_move_to_where_the_sound_changes_and_all_else_stays(model):
    before, after, unshifted = [], [], []
    for samples, edges, wrong in corpus(10, first=1000):
        found = model.refine([samples], wrong)
        assert [phone[3:] for phone in found.phones] == [phone[3:] for phone in wrong.phones]
        ends = [phone.start + phone.duration for phone in found.phones]
        assert found.phones[0].start == 0.0 and ends[-1] == pytest.approx(wrong.seconds)
        np.testing.assert_allclose(ends[:-1], [phone.start for phone in found.phones[1:]], atol=1e-5)
        spans = {(phone.start, phone.duration) for phone in found.phones}
        assert all((word.start, word.duration) in spans and word.duration > 0 for word in found.words)
        before += [phone.start - edge for phone, edge in zip(wrong.phones[1:], edges[1:], strict=False)]
        after += [phone.start - edge for phone, edge in zip(found.phones[1:], edges[1:], strict=False)]
        likeliest = replace(model, shifts=np.zeros_like(model.shifts)).refine([samples], wrong).phones[1:]
        unshifted += [phone.start - edge for phone, edge in zip(likeliest, edges[1:], strict=False)]
        assert max(abs(np.diff([ends[:-1], [p.start for p in wrong.phones[1:]]], axis=0)[0])) <= REACH + 0.005
    assert np.abs(after).mean() < 0.4 * np.abs(before).mean()
    assert np.abs(unshifted).mean() < 0.45 * np.abs(before).mean()
    assert abs(np.mean(after)) < 0.005 < abs(np.mean(before))


def test_pairs_that_only_stand_together_are_parted_where_the_sound_changes():
    # "b" is said after "a" alone and all alignments are late: that b begins within a's states is as likely.
    parts = []
    for seed in range(70):
        samples, edges, _ = spoken(["SIL", "a", "b", "SIL"], seed)
        late = edges + np.array([0.0, 0.0, 0.03, 0.0, 0.0])
        parts.append((samples, edges, alignment(f"u{seed}", ["SIL", "a", "b", "SIL"], late.round(6))))
    model = BoundaryModel.fit([([samples], wrong) for samples, _, wrong in parts], RATE)
    a, b = model.phones.index("a"), model.phones.index("b")
    assert -0.03 < model.shifts[a, b] < -0.005 and model.shifts[b, a] == 0.0
    errors = []
    for one in (replace(model, shifts=np.zeros_like(model.shifts)), model):
        found = [one.refine([samples], wrong).phones[2].start for samples, _, wrong in parts]
        errors.append(np.mean([place - edges[2] for place, (_, edges, _) in zip(found, parts, strict=True)]))
    assert errors[0] > 0.01 and abs(errors[1]) < 0.5 * errors[0]


def test_a_stretch_without_a_phone_is_a_sound_of_its_own(model):
    def without_silence(wrong):
        return replace(wrong, phones=tuple(phone for phone in wrong.phones if phone.label != "SIL"))

    other = BoundaryModel.fit([([samples], without_silence(wrong)) for samples, _, wrong in corpus(60)], RATE)
    samples, _, wrong = corpus(1, first=7)[0]
    found = model.refine([samples], wrong)
    assert other.refine([samples], without_silence(wrong)) == without_silence(found)


def test_what_is_in_no_word_is_shifted_half_as_far_from_the_sound_before_it(model):
    all_words = [([samples], replace(wrong, words=wrong.phones)) for samples, _, wrong in corpus(60)]
    expected = BoundaryModel.fit(all_words, RATE).shifts
    assert expected[:, model.phones.index("SIL")].any()
    expected[:, model.phones.index("SIL")] *= 0.5
    np.testing.assert_allclose(model.shifts, expected, atol=1e-9)


def with_pause_in_words(seed):
    """Tones with a pause between two words that the alignment gives to the words, and silent ends that it gives to them."""
    labels = ["SIL", "a", "b", "SIL", "a", "b", "SIL"]
    samples, edges, _ = spoken(labels, seed)
    heard = ["a", "b", "a", "b"]
    middle = 0.5 * (edges[3] + edges[4])
    wrong = [0.0, edges[2], middle, edges[5], edges[-1]]
    return samples, edges, alignment(f"u{seed}", heard, np.round(wrong, 6))


def test_a_pause_that_words_reach_into_is_found_between_them_and_at_the_ends(model):
    """Words begin and end up to 0.4 s off, further than a boundary between two phones may move."""
    before, after = [], []
    for seed in range(5000, 5010):
        samples, edges, wrong = with_pause_in_words(seed)
        found = model.refine([samples], wrong)
        assert [phone.label for phone in found.phones] == ["SIL", "a", "b", "SIL", "a", "b", "SIL"]
        assert [word.label for word in found.words] == ["aa", "bb", "aa", "bb"]
        ends = [phone.start + phone.duration for phone in found.phones]
        np.testing.assert_allclose(ends[:-1], [phone.start for phone in found.phones[1:]], atol=1e-5)
        assert found.phones[0].start == 0.0 and ends[-1] == pytest.approx(wrong.seconds)
        true = edges[[1, 2, 4, 5]], edges[[2, 3, 5, 6]]
        for off, words in ((before, wrong.words), (after, found.words)):
            off += [word.start - start for word, start in zip(words, true[0], strict=True)]
            off += [word.start + word.duration - end for word, end in zip(words, true[1], strict=True)]
    assert np.abs(before).max() > 0.15 and np.abs(before).mean() > 0.08
    assert np.abs(after).max() < 0.05 and np.abs(after).mean() < 0.01


def test_a_pause_that_nobody_made_is_no_part_of_the_refined_alignment(model):
    for seed in range(6000, 6010):
        samples, edges, _ = spoken(["SIL", "a", "b", "a", "SIL"], seed)
        heard = ["SIL", "a", "SIL", "b", "a", "SIL"]
        times = [*edges[:2], edges[2] - 0.03, edges[2] + 0.03, *edges[3:]]
        found = model.refine([samples], alignment("u", heard, np.round(times, 6)))
        assert [phone.label for phone in found.phones] == ["SIL", "a", "b", "a", "SIL"]
        assert found.words[0].start + found.words[0].duration == pytest.approx(found.words[1].start, abs=1e-5)
        assert abs(found.words[1].start - edges[2]) < 0.02


def test_a_file_of_an_earlier_version_has_no_silence_and_adds_no_pause(model, tmp_path):
    model.save(tmp_path / "b.npz")
    whole = dict(np.load(tmp_path / "b.npz"))
    np.savez(tmp_path / "earlier.npz", **{name: whole[name] for name in whole if name != "silence"})
    earlier = BoundaryModel.load(tmp_path / "earlier.npz")
    assert earlier.silence == "" and model.silence == "SIL"
    samples, _, wrong = with_pause_in_words(5000)
    assert [phone.label for phone in earlier.refine([samples], wrong).phones] == ["a", "b", "a", "b"]
    np.savez(tmp_path / "other.npz", **whole | {"silence": np.array("zz")})
    refuses(
        DataError, "silence is 'zz'; expected one of its 3 phones", BoundaryModel.load, tmp_path / "other.npz"
    )


def test_a_model_is_kept_in_a_file_and_damaged_ones_are_refused(model, tmp_path):
    model.save(tmp_path / "b.npz")
    again = BoundaryModel.load(tmp_path / "b.npz")
    samples, _, wrong = corpus(1, first=7)[0]
    assert again.refine([samples], wrong) == model.refine([samples], wrong)
    whole = dict(np.load(tmp_path / "b.npz"))
    for other in ({"means": np.zeros(3)}, whole | {"format": "fsachain-boundaries-1"}):
        np.savez(tmp_path / "other.npz", **other)
        refuses(DataError, "not a model of boundaries", BoundaryModel.load, tmp_path / "other.npz")
    np.savez(tmp_path / "other.npz", **whole | {"log_dets": whole["log_dets"][1:]})
    refuses(DataError, "do not fit 3 phones", BoundaryModel.load, tmp_path / "other.npz")


def test_what_the_model_cannot_place_stays_as_it_was(model):
    samples, _, wrong = corpus(1, first=7)[0]
    unknown = alignment("u", ["SIL", "zz", "SIL"], [0.0, 0.2, 0.4, wrong.seconds])
    nothing = Alignment("u", -math.inf, reason="no path")
    assert model.refine([samples], unknown) is unknown and model.refine([samples], nothing) is nothing
    for few in (nothing, wrong):
        told = "s of aligned speech to learn boundaries from; expected at least 60"
        refuses(DataError, told, BoundaryModel.fit, [([samples], few)], RATE)


def test_what_lies_within_a_phone_keeps_its_order_and_a_length(model):
    for samples, edges, wrong in corpus(10, first=3000):
        late = alignment(
            "u", [phone.label for phone in wrong.phones], [0.0, *(edges[1:-1] + 0.05), edges[-1]]
        )
        first = late.phones[1].start
        other = CtmEntry("u", first - 0.03, 0.03, "<other>", 1.0), CtmEntry("u", first, 0.015, "<other>", 1.0)
        found = model.refine([samples], replace(late, other=other))
        before, behind = found.other
        assert found.phones[1].start < other[0].start + 0.02 and min(before.duration, behind.duration) > 0
        assert (
            before.start + before.duration == pytest.approx(found.phones[1].start, abs=1e-5) == behind.start
        )


def test_beside_what_the_model_never_heard_boundaries_stay_and_others_move(model):
    before, after = [], []
    for samples, edges, wrong in corpus(10, first=4000):
        again, half = np.concatenate([samples, samples]), edges[-1]
        labels = [phone.label for phone in wrong.phones]
        times = [phone.start for phone in wrong.phones]
        labels, times = [*labels, "zz", *labels[1:]], [*times, *(np.array(times) + half), 2 * half]
        whole = alignment("u", labels, np.round(times, 6))
        found = model.refine([again], whole)
        place, true = labels.index("zz"), np.concatenate([edges[:-1], edges[:-1] + half])
        assert found.phones[place][1:3] == pytest.approx(whole.phones[place][1:3], abs=1e-6)
        inner = [n for n in range(1, len(labels)) if n not in (place, place + 1)]
        for off, some in ((before, whole.phones), (after, found.phones)):
            off += [some[n].start - true[n] for n in inner]
    assert np.abs(after).mean() < 0.4 * np.abs(before).mean()


def test_a_long_recording_is_moved_piece_by_piece_whatever_its_blocks(model):
    parts = [spoken([*"abab" * 3, "SIL"], seed) for seed in range(2000, 2040)]
    samples = np.concatenate([part[0] for part in parts])
    starts = np.cumsum([0.0] + [part[2].seconds for part in parts])
    edges = np.concatenate([part[1][:-1] + start for part, start in zip(parts, starts, strict=False)])
    shifted = (
        np.array([p.start for p in part[2].phones]) + s for part, s in zip(parts, starts, strict=False)
    )
    wrong = np.concatenate(list(shifted))
    long = alignment("u", [*"abababababab", "SIL"] * 40, [*wrong.round(6), starts[-1]])
    assert long.seconds > 100.0
    found = model.refine([samples], long)
    assert model.refine(np.array_split(samples, 77), long) == found
    off = np.array([phone.start for phone in found.phones])[1:] - edges[1:]
    assert np.abs(off).mean() < 0.4 * np.abs(wrong - edges)[1:].mean() and np.abs(off).max() < 0.06
    assert len(found.phones) == len(long.phones) and found.phones[-1][1] < starts[-1]


def test_errors_compare_words_that_are_the_same_and_phones_one_by_one():
    words = [CtmEntry("u", 0.0, 1.0, "x"), CtmEntry("u", 1.0, 1.0, "y"), CtmEntry("v", 0.0, 1.0, "x")]
    found = [words[0]._replace(start=0.02), words[1]._replace(duration=0.97), words[2]._replace(label="z")]
    phones = [CtmEntry("u", 0.0, 0.5, "p"), CtmEntry("u", 0.5, 0.5, "q"), CtmEntry("u", 1.0, 1.0, "r")]
    rows = (0.02, 0.5, "P"), (0.52, 0.5, "Q"), (1.02, 0.4, "R"), (1.42, 0.5, "S")
    own = [CtmEntry("u", *row) for row in rows]
    errors = boundary_errors({"words": words, "phones": phones}, {"words": found, "phones": own}, "SIL")
    np.testing.assert_allclose(errors["words"].starts, [0.02, 0.0], atol=1e-12)
    np.testing.assert_allclose(errors["words"].ends, [0.02, -0.03], atol=1e-12)
    np.testing.assert_allclose(errors["phones"].starts, [0.02, 0.02], atol=1e-12)
    assert "17.5 ms off in the mean, 20.0 in the median" in str(errors["words"])
    assert "starts +10.0 ms, ends -5.0 ms (2)" in str(errors["words"])
    assert str(boundary_errors({}, {})["words"]) == "none to compare"
