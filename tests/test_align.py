"""Word and phone times from network outputs that spell a known path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fsachain.decode.align import FrameTiming, align, align_utterance
from fsachain.decode.ctm import CtmEntry, by_utterance, read_ctm, write_ctm
from fsachain.errors import ConfigError, DataError, ShapeError
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology

TIMING = FrameTiming(subsampling=3, time_offset=1, frame_shift=0.01)


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    path = tmp_path_factory.mktemp("lang") / "lexicon.txt"
    path.write_text("no N OW\nnose N OW Z\nowe OW\n")
    return Lexicon.read(path, silence="SIL")


@pytest.fixture(scope="module")
def tree(lexicon: Lexicon) -> ContextTree:
    return ContextTree.monophone(lexicon.phones, Topology.chain())


def spell(lexicon: Lexicon, tree: ContextTree, phones: list[tuple[str, int]]) -> np.ndarray:
    """Scores that favour each phone for so many frames: its first pdf, then its self-loop."""
    pdfs = [
        tree.pdf(lexicon.phone_id(phone), min(frame, 1))
        for phone, frames in phones
        for frame in range(frames)
    ]
    scores = np.full((len(pdfs), tree.num_pdfs), -5.0, dtype=np.float32)
    scores[np.arange(len(pdfs)), pdfs] = 5.0
    return scores


def test_times_are_those_that_the_scores_spell(lexicon: Lexicon, tree: ContextTree) -> None:
    spoken = [("SIL", 4), ("N", 3), ("OW", 5), ("SIL", 2), ("N", 1), ("OW", 2), ("Z", 3), ("SIL", 1)]
    numerator = build_numerator(["no", "nose"], lexicon, tree)
    found = align_utterance(spell(lexicon, tree, spoken), numerator, lexicon.phones, TIMING, name="u1")
    assert found is not None
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


def test_a_phone_repeated_across_a_word_boundary_is_two_phones_of_two_words(
    lexicon: Lexicon, tree: ContextTree
) -> None:
    numerator = build_numerator(["no", "owe", "owe"], lexicon, tree)
    scores = spell(lexicon, tree, [("N", 2), ("OW", 3), ("OW", 4), ("OW", 2)])
    found = align_utterance(scores, numerator, lexicon.phones, TIMING)
    assert found is not None
    assert [word.label for word in found.words] == ["no", "owe", "owe"]
    assert [phone.label for phone in found.phones] == ["N", "OW", "OW", "OW"]
    assert [round(word.duration / 0.03) for word in found.words] == [5, 4, 2]


def test_alignments_are_monotonic_and_cover_every_frame_whatever_the_scores(
    lexicon: Lexicon, tree: ContextTree
) -> None:
    rng = np.random.default_rng(11)
    numerator = build_numerator(["nose", "no", "owe"], lexicon, tree)
    for frames in (6, 7, 20, 41):
        found = align_utterance(
            rng.normal(size=(frames, tree.num_pdfs)) * 10, numerator, lexicon.phones, TIMING
        )
        assert found is not None
        ends = [entry.start + entry.duration for entry in found.phones]
        assert found.phones[0].start == 0.0
        assert [entry.start for entry in found.phones[1:]] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(0.03 * frames)
        assert [word.label for word in found.words] == ["nose", "no", "owe"]
        assert all(
            one.start < other.start for one, other in zip(found.words[:-1], found.words[1:], strict=True)
        )


def test_delayed_scores_delay_the_words_by_as_much(lexicon: Lexicon, tree: ContextTree) -> None:
    numerator = build_numerator(["no"], lexicon, tree)
    starts = []
    for silence in (3, 6):
        scores = spell(lexicon, tree, [("SIL", silence), ("N", 2), ("OW", 3)])
        found = align_utterance(scores, numerator, lexicon.phones, TIMING)
        assert found is not None
        starts.append(found.words[0].start)
    assert starts[1] - starts[0] == pytest.approx(0.09)


def test_a_frame_centre_follows_subsampling_and_offset() -> None:
    for subsampling, offset in ((1, 0), (3, 1), (4, 0)):
        timing = FrameTiming(subsampling, offset, 0.01)
        cell = timing.start_of(10)
        centre = cell + timing.frame_seconds / 2
        assert centre == pytest.approx((subsampling * 10 + offset + 0.5) * 0.01)
    assert FrameTiming(4, 0, 0.01).start_of(0) == 0.0


def test_impossible_utterances_are_named_with_their_reason(lexicon: Lexicon, tree: ContextTree) -> None:
    numerators = {
        "short": build_numerator(["nose"], lexicon, tree),
        "good": build_numerator(["no"], lexicon, tree),
    }
    outputs = {name: np.zeros((2, tree.num_pdfs)) for name in ("short", "good", "unknown")}
    calls: list[tuple[int, int]] = []
    found, failed = align(
        outputs, numerators, lexicon.phones, TIMING, progress=lambda *call: calls.append(call)
    )
    assert list(found) == ["good"]
    assert failed == {"short": "no path of 2 frames, 3 are needed", "unknown": "has no numerator"}
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_bad_scores_are_refused_by_utterance_name(lexicon: Lexicon, tree: ContextTree) -> None:
    numerator = build_numerator(["no"], lexicon, tree)
    with pytest.raises(ShapeError, match="'u7'"):
        align_utterance(np.zeros(5), numerator, lexicon.phones, TIMING, name="u7")
    with pytest.raises(DataError, match=r"'u7'.*NaN"):
        align_utterance(np.full((5, tree.num_pdfs), np.nan), numerator, lexicon.phones, TIMING, name="u7")
    with pytest.raises(ConfigError, match="frame_shift"):
        FrameTiming(3, 1, 0.0)


def test_ctm_files_survive_a_round_trip_and_bad_lines_are_named(tmp_path: Path) -> None:
    entries = [CtmEntry("u1", 0.12, 0.24, "no"), CtmEntry("u1", 0.42, 0.18, "nose")]
    write_ctm(tmp_path / "align" / "words.ctm", entries)
    assert (tmp_path / "align" / "words.ctm").read_text().splitlines()[0] == "u1 1 0.120 0.240 no"
    assert read_ctm(tmp_path / "align" / "words.ctm") == entries
    (tmp_path / "bad.ctm").write_text("u1 1 0.1 0.2 a\nu1 1 x 0.2 a\n")
    with pytest.raises(DataError, match=r"bad\.ctm:2"):
        read_ctm(tmp_path / "bad.ctm")


def test_a_ctm_file_is_a_sequence_of_its_entries(tmp_path: Path) -> None:
    entries = [CtmEntry("u2", 1.0, 0.5, "b"), CtmEntry("u1", 0.1, 0.2, "a"), CtmEntry("u2", 0.0, 1.0, "é")]
    write_ctm(tmp_path / "a.ctm", entries)
    found = read_ctm(tmp_path / "a.ctm")
    assert (
        found == entries and list(found) == entries and found[:2] == entries[:2] and found[-1] == entries[-1]
    )


def test_entries_of_an_utterance_are_in_order_of_time_wherever_they_stand() -> None:
    entries = [CtmEntry(name, start, 0.5, "a") for name, start in (("u2", 1.0), ("u1", 0.1), ("u2", 0.0))]
    assert by_utterance(entries) == {"u2": [entries[2], entries[0]], "u1": [entries[1]]}
    assert not by_utterance([])
