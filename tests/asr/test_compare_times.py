"""`compare-times`: how far two alignments of the same recordings are apart."""

import json

import numpy as np
import pytest
from cli_fixtures import assert_one_line
from refusals import refuses

from fsachain import compare_times
from fsachain.asr.decode.ctm import CtmEntry, write_ctm, write_textgrid
from fsachain.errors import DataError


def row(name, *entries):
    return [CtmEntry.between(name, *entry) for entry in entries]


OURS = {
    "words": row("u", (0.1, 0.4, "Yes,"), (0.4, 0.9, "no")),
    "phones": row("u", (0.1, 0.2, "Y"), (0.2, 0.4, "EH"), (0.4, 0.9, "N")),
}
THEIRS = {
    "words": row("u", (0.115, 0.4, "yes"), (0.46, 0.9, "no.")),
    "phones": row("u", (0.1, 0.2, "Y"), (0.2, 0.4, "eh"), (0.405, 0.9, "N")),
}


def by_recording(tiers, name="u"):
    return {tier: {name: entries} for tier, entries in tiers.items()}


def test_words_and_phones_are_compared_tier_by_tier():
    report = compare_times(by_recording(OURS), by_recording(THEIRS))
    words, phones = report.tiers["words"], report.tiers["phones"]
    np.testing.assert_allclose(words.starts, [0.015, 0.06], atol=1e-9)
    np.testing.assert_allclose(words.ends, [0.0, 0.0], atol=1e-9)
    told = words.to_dict(1)
    assert (told["mean"], told["median"], told["bias_start"], told["bias_end"]) == (
        0.01875,
        0.0075,
        0.0375,
        0.0,
    )
    assert [told[f"within_{limit}_ms"] for limit in (10, 20, 50)] == [0.5, 0.75, 0.75]
    assert told["worst"] == [
        {"recording": "u", "label": "no", "start": 0.4, "end": 0.9, "start_error": 0.06, "end_error": 0.0}
    ]
    assert [pair.label for pair in phones.pairs] == ["Y", "N"], "phones have to be equal as they stand"
    assert (phones.num_reference, phones.num_hypothesis) == (3, 3)


def test_labels_that_differ_are_aligned_and_those_that_are_equal_compared():
    left = row("u", (0.0, 1.0, "a"), (1.0, 2.0, "b"), (2.0, 3.0, "c"), (3.0, 4.0, "d"))
    right = row("u", (0.0, 1.0, "a"), (2.5, 3.0, "c"), (3.0, 3.5, "x"), (3.5, 4.0, "d"))
    tier = compare_times({"words": {"u": left}}, {"words": {"u": right}}).tiers["words"]
    assert [(pair.label, round(pair.start_error, 6)) for pair in tier.pairs] == [
        ("a", 0.0), ("c", 0.5), ("d", 0.5)
    ]  # fmt: skip
    assert "3 of 4 and 4" in compare_times({"words": {"u": left}}, {"words": {"u": right}}).to_text()


@pytest.fixture
def sides(tmp_path):
    """The same two recordings as TextGrids in a tree, and as CTM files."""
    for speaker in ("ann", "bob"):
        write_textgrid(tmp_path / "grids" / speaker / "1.TextGrid", OURS, 1.0)
        write_textgrid(tmp_path / "other" / speaker / "1.TextGrid", THEIRS, 1.0)
    for tier, entries in THEIRS.items():
        both = [entry._replace(utterance=f"{name}-1") for name in ("ann", "bob") for entry in entries]
        write_ctm(tmp_path / "ctm" / f"{tier}.ctm", both)
    return tmp_path


@pytest.mark.parametrize("hypothesis", ["other", "ctm", "ctm/words.ctm"])
def test_folders_of_textgrids_and_ctm_files_are_compared(fsachain, sides, hypothesis):
    told = fsachain.ok(f"compare-times grids {hypothesis} --worst 3 --out times.json").out
    kept = json.loads((sides / "times.json").read_text())
    (words, *_) = kept["tiers"]
    assert (words["tier"], words["matched"], words["mean"]) == ("words", 4, 0.01875)
    assert {pair["recording"] for pair in words["worst"][:2]} == {"ann/1", "bob/1"}
    assert "0.400 s  start    +60.0 ms  end     +0.0 ms  no  ann/1" in told
    assert told.splitlines()[2].split()[:7] == ["words", "18.8", "7.5", "+37.5", "+0.0", "50.0", "75.0"]


def test_two_files_are_compared_whatever_their_names(fsachain, sides):
    fsachain.ok("compare-times grids/ann/1.TextGrid other/bob/1.TextGrid")
    write_ctm(sides / "mine.ctm", OURS["words"])
    assert "2 of 2 and 2" in fsachain.ok("compare-times mine.ctm other/bob/1.TextGrid").out


def test_what_cannot_be_compared_is_said(fsachain, sides):
    (sides / "grids" / "ann" / "1.TextGrid").rename(sides / "grids" / "ann" / "2.TextGrid")
    told = fsachain.ok("compare-times grids other").out
    assert "1 recording in the reference alone: ann/2" in told
    assert "1 recording in the hypothesis alone: ann/1" in told
    (sides / "empty").mkdir()
    assert_one_line(fsachain("compare-times grids empty"), "empty: no TextGrids, and no CTM files")
    write_textgrid(sides / "one" / "x.TextGrid", {"carl": OURS["words"], "dora": ()}, 1.0)
    assert_one_line(
        fsachain("compare-times grids one"), "no tier that both have", "'words', 'phones'", "'carl'"
    )
    refuses(DataError, "no such file or folder", compare_times, sides / "nowhere", sides / "one")
    (sides / "one" / "x.TextGrid").write_text('"ooTextFile" "TextGrid" 0')
    assert_one_line(fsachain("compare-times grids one"), "x.TextGrid:1: not a TextGrid")
