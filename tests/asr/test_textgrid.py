"""TextGrids: intervals that follow each other without gaps are written; what others wrote is read, or refused by line."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from praatio import textgrid
from refusals import refuses

from fsachain.asr.decode.ctm import CtmEntry, ctm_lines, read_ctm, write_ctm, write_textgrid
from fsachain.asr.decode.textgrid import Interval, Tier, read_textgrid
from fsachain.errors import DataError

RESOLUTION = 0.001  # seconds
ROUNDING = 1e-9  # seconds: what is written has six decimals


def read_back(path):
    """The tiers of a TextGrid, after a check that each tiles the same stretch with intervals that Praat can show."""
    tiers = read_textgrid(path)
    ends = {tier.intervals[-1].end for tier in tiers}
    assert len(ends) == 1
    for tier in tiers:
        assert tier.intervals[0].start == 0.0
        for interval, following in zip(tier.intervals, tier.intervals[1:], strict=False):
            assert interval.end == following.start
        assert all(one.end - one.start >= RESOLUTION - ROUNDING for one in tier.intervals)
    return tiers


def test_entries_that_touch_but_for_rounding_are_two_intervals_side_by_side(tmp_path):
    entries = [CtmEntry("u", 0.1, 0.1, "a"), CtmEntry("u", 0.200001, 0.1, "b")]
    write_textgrid(tmp_path / "x.TextGrid", {"words": entries}, 0.3)
    (tier,) = read_back(tmp_path / "x.TextGrid")
    assert tier.intervals == (Interval(0.0, 0.1, ""), Interval(0.1, 0.2, "a"), Interval(0.2, 0.3, "b"))


JUMPS = st.one_of(
    st.floats(-0.00099, 0.00099), st.floats(0.0, 0.5), st.sampled_from([0.0, 1e-6, -1e-6, 0.001])
)
LENGTHS = st.one_of(st.floats(2e-6, 0.002), st.floats(0.002, 0.5))


@st.composite
def rows(draw):
    """Entries in order, with gaps and overlaps of any size that rounding may have left."""
    entries, last, before = [], 0.0, 0.0
    for jump, length in draw(st.lists(st.tuples(JUMPS, LENGTHS), max_size=8)):
        start = max(0.0, before, last + jump)
        entries.append(CtmEntry("u", start, length, f"w{len(entries)}"))
        before, last = start, start + length
    return entries


@settings(deadline=None, max_examples=300)
@given(rows(), rows(), st.floats(0.05, 3.0))
def test_any_entries_in_order_tile_the_recording(tmp_path_factory, words, phones, seconds):
    path = tmp_path_factory.mktemp("grids") / "x.TextGrid"
    fitting = [[entry for entry in tier if entry.start < seconds - 0.01] for tier in (words, phones)]
    write_textgrid(path, {"words": fitting[0], "phones": fitting[1]}, seconds)
    for tier, entries in zip(read_back(path), fitting, strict=True):
        assert tier.intervals[-1].end == pytest.approx(seconds, abs=1e-6)
        assert [one.text for one in tier.spoken] == [entry.label for entry in entries]
        if all(entry.duration > 2 * RESOLUTION for entry in entries):
            for one, entry in zip(tier.spoken, entries, strict=True):
                moved = max(abs(one.start - entry.start), abs(one.end - min(entry.end, seconds)))
                assert moved <= RESOLUTION + ROUNDING


@settings(deadline=None, max_examples=300)
@given(rows())
def test_ctm_lines_of_entries_in_order_neither_overlap_nor_last_nothing(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("ctm") / "words.ctm"
    write_ctm(path, entries)
    found = read_ctm(path)
    assert [entry.label for entry in found] == [entry.label for entry in entries]
    for entry, following in itertools.pairwise(found):
        assert following.start >= entry.end - ROUNDING
    assert all(entry.duration >= RESOLUTION - ROUNDING for entry in found)


def test_times_are_rounded_on_boundaries_so_that_what_touches_still_does(tmp_path):
    times = [n / 7 for n in range(1000)]
    entries = [CtmEntry.between("u", start, end, "a") for start, end in itertools.pairwise(times)]
    assert all(one.end == other.start for one, other in itertools.pairwise(entries))
    lines = [line.split() for line in ctm_lines(entries)]
    milliseconds = [(round(1000 * float(start)), round(1000 * float(long))) for _, _, start, long, _ in lines]
    assert all(a + b == c for (a, b), (c, _) in itertools.pairwise(milliseconds))


LONG = '''File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "ann ""A"""
        xmin = 0
        xmax = 2.5
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 1e-1
            text = ""
        intervals [2]:
            xmin = 1e-1
            xmax = 2.5
            text = "yes ! ""no""
then"
    item [2]:
        class = "TextTier"
        name = "peaks"
        xmin = 0
        xmax = 2.5
        points: size = 1
        points [1]:
            number = 0.7
            mark = "L*"
'''
COMMENTED = '''! made by hand
"ooTextFile" "TextGrid"
0 2.5 ! seconds
<exists>
2
"IntervalTier" "ann ""A""" 0 2.5 2
0 1e-1 "" ! the first is "empty"
1e-1 2.5 "yes ! ""no""
then"
"TextTier" "peaks" 0 2.5
1
0.7 "L*"
'''
READ = [
    Tier('ann "A"', (Interval(0.0, 0.1, ""), Interval(0.1, 2.5, 'yes ! "no"\nthen'))),
    Tier("peaks", (), is_points=True),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("text", [LONG, LONG.replace("\n", "\r\n"), COMMENTED])
def test_every_form_of_praats_text_is_read_with_comments_and_points(tmp_path, text, encoding):
    (tmp_path / "x.TextGrid").write_bytes(text.encode(encoding))
    found = read_textgrid(tmp_path / "x.TextGrid")
    assert [tier._replace(intervals=()) for tier in found] == [tier._replace(intervals=()) for tier in READ]
    assert [one._replace(text=one.text.replace("\r", "")) for one in found[0].intervals] == list(
        READ[0].intervals
    )


@pytest.mark.parametrize("form", ["short_textgrid", "long_textgrid", "json", "textgrid_json"])
def test_what_praatio_writes_is_read(tmp_path, form):
    grid = textgrid.Textgrid(0.0, 9.0)
    grid.addTier(textgrid.IntervalTier("carl", [(0.5, 3.0, 'no "yes"'), (5.0, 8.5, "yes")], 0.0, 9.0))
    grid.addTier(textgrid.PointTier("points", [(0.5, "x")], 0.0, 9.0))
    grid.save(str(tmp_path / "x.TextGrid"), form, includeBlankSpaces=True)
    tier, points = read_textgrid(tmp_path / "x.TextGrid")
    assert (tier.name, points.name, points.is_points) == ("carl", "points", True)
    assert tier.spoken == [Interval(0.5, 3.0, 'no "yes"'), Interval(5.0, 8.5, "yes")]


@pytest.mark.parametrize(
    "text, told",
    [
        ("", r"x\.TextGrid:1: .* expected 'ooTextFile', got the end"),
        ("no TextGrid\n", "expected 'ooTextFile', got the end of the file"),
        ('"ooTextFile"\n"Pitch 1"', r":2: .* expected 'TextGrid', got 'Pitch 1'"),
        (
            COMMENTED[: COMMENTED.index("then")],
            r":8: .* the text of interval 2 of tier 1, .*quote at its end",
        ),
        (COMMENTED[: COMMENTED.index('"TextTier"')], "expected the class of tier 2, got the end of the file"),
        (COMMENTED.replace("1e-1 2.5", "2.5 2.5"), "interval 2 of tier 1, .* to end after 2.5, got 2.5"),
        (COMMENTED.replace("TextTier", "Tier"), "IntervalTier or TextTier, got 'Tier'"),
        (COMMENTED.replace("<exists>\n2", "<exists>\n-2"), ":5: .* the number of tiers, got -2"),
        (COMMENTED.replace("<exists>\n2", "<exists>\n1e308"), "the number of tiers"),
        ("ooBinaryFile\x08TextGrid", "a binary TextGrid; save it as text"),
        ('{"tiers": [1]}', "not a TextGrid in JSON"),
        ('{"tiers": ', "no JSON"),
        (json.dumps({"tiers": {"a": {"type": "IntervalTier", "entries": [[1, 0, "x"]]}}}), "from 1 to 0"),
    ],
)
def test_a_damaged_textgrid_is_refused_by_file_line_and_place(tmp_path, text, told):
    (tmp_path / "x.TextGrid").write_text(text)
    refuses(DataError, told, read_textgrid, tmp_path / "x.TextGrid")


def test_a_textgrid_that_cannot_be_decoded_or_is_not_there_is_named(tmp_path):
    (tmp_path / "x.TextGrid").write_bytes(LONG.replace("yes", "\u00e9").encode("latin-1"))
    refuses(DataError, r"x\.TextGrid: neither UTF-8 nor UTF-16", read_textgrid, tmp_path / "x.TextGrid")
    refuses(DataError, r"y\.TextGrid: cannot be read", read_textgrid, tmp_path / "y.TextGrid")


@pytest.mark.parametrize("name", ["words", "Phones", "ann - words", "a - b - phones", " words "])
def test_tiers_of_an_aligner_are_known_by_name(name):
    assert Tier(name, ()).is_aligned


@pytest.mark.parametrize("name", ["ann", "my words", "words - ann", "word"])
def test_other_tiers_are_not_taken_for_an_aligners(name):
    assert not Tier(name, ()).is_aligned
