"""Word error rate: counts, tables and files."""

import json

import numpy as np
import pytest
from refusals import refuses

from fsachain.asr.decode.wer import ErrorCounts, score
from fsachain.errors import DataError


def levenshtein(reference, hypothesis):
    """Fewest single-word edits, by the textbook table."""
    row = list(range(len(hypothesis) + 1))
    for i, ref in enumerate(reference, start=1):
        previous, row = row, [i] + [0] * len(hypothesis)
        for j, hyp in enumerate(hypothesis, start=1):
            row[j] = min(previous[j - 1] + (ref != hyp), previous[j] + 1, row[j - 1] + 1)
    return row[-1]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts"),
    [
        ("a b c", "a b c", (0, 0, 0)),
        ("a b c", "a x c", (0, 0, 1)),
        ("a b c", "a c", (0, 1, 0)),
        ("a b c", "a b b c", (1, 0, 0)),
        ("a b c", "", (0, 3, 0)),
        ("", "a b", (2, 0, 0)),
        ("", "", (0, 0, 0)),
    ],
)
def test_each_kind_of_error_is_counted_as_itself(reference, hypothesis, counts):
    total = score({"u": reference.split()}, {"u": hypothesis.split()}).total
    assert (total.insertions, total.deletions, total.substitutions) == counts
    assert total.num_words == len(reference.split())


def test_the_number_of_errors_is_the_levenshtein_distance():
    rng = np.random.default_rng(7)
    for _ in range(50):
        reference = [str(word) for word in rng.integers(0, 4, rng.integers(0, 9))]
        hypothesis = [str(word) for word in rng.integers(0, 4, rng.integers(0, 9))]
        total = score({"u": reference}, {"u": hypothesis}).total
        assert total.errors == levenshtein(reference, hypothesis)


@pytest.mark.parametrize("reference", ["a b", ["a", "b"]])
def test_a_sentence_in_the_place_of_its_words_is_refused(reference):
    side = "reference" if isinstance(reference, str) else "hypothesis"
    with pytest.raises(
        DataError, match=rf"{side} 'a b' is one string; expected words, such as text.split\(\)"
    ):
        score({"u": reference}, {"u": "a b"})


def test_speakers_add_up_to_the_total():
    references = {"u1": ["a", "b"], "u2": ["c"], "u3": ["d", "e", "f"]}
    hypotheses = {"u1": ["a"], "u2": ["c"], "u3": ["d", "x", "f", "g"]}
    report = score(references, hypotheses, speakers={"u1": "anna", "u2": "bert", "u3": "anna"})
    assert list(report.by_speaker) == ["anna", "bert"]
    assert sum(report.by_speaker.values(), ErrorCounts()) == report.total
    assert report.by_speaker["anna"].errors == 3
    assert report.by_speaker["bert"].wer == 0.0
    assert report.total.wer == pytest.approx(50.0)
    assert report.total.num_wrong_utterances == 2


def test_a_missing_hypothesis_is_all_deletions_and_named():
    report = score({"u1": ["a", "b"], "u2": ["c"]}, {"u2": ["c"]})
    assert report.missing == ("u1",) and not report.by_speaker
    assert report.total.deletions == 2
    assert "no hypothesis for 1 utterance: u1" in report.to_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (({"u": ["a"]}, {"u": ["a"], "v": ["a"]}), "hypotheses: 1 utterance without reference.* 'v'"),
        (({"u": ["<eps>"]}, {}), "reference: the word '<eps>' is reserved"),
        (({"u": ["a"]}, {"u": ["<eps>"]}), "hypothesis: the word '<eps>' is reserved"),
    ],
)
def test_what_cannot_be_scored_is_refused(given, message):
    refuses(DataError, message, score, *given)
    refuses(DataError, "speakers: 1 utterance without speaker.* 'u'", score, {"u": ["a"]}, {}, speakers={})


def test_the_text_marks_each_error_under_its_word(tmp_path):
    report = score(
        {"u": ["one", "two", "three"]}, {"u": ["one", "too", "three", "four"]}, speakers={"u": "anna"}
    )
    report.write(tmp_path / "scores")
    text = (tmp_path / "scores" / "wer.txt").read_text()
    assert text.startswith("WER 66.67 % [ 2 / 3, 1 ins, 0 del, 1 sub ]")
    lines = text.splitlines()
    hypothesis = next(line for line in lines if "hyp" in line)
    marks = lines[lines.index(hypothesis) + 1]
    assert marks[hypothesis.index("too")] == "S"
    assert marks[hypothesis.index("four")] == "I"
    saved = json.loads((tmp_path / "scores" / "wer.json").read_text())
    assert saved["speakers"]["anna"]["substitutions"] == 1
