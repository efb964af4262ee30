"""`fsachain align-corpus`: folders of recordings and texts in; TextGrids, times and suspicious utterances out."""

import json
import re

import numpy as np
import pytest
import soundfile
from cli_fixtures import assert_one_line
from praatio import textgrid
from test_use_commands import model, record  # noqa: F401 (a fixture)

from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.corpus import Part, find_parts, in_words_of, write_data
from fsachain.asr.data.audio import Recording
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.ctm import CtmEntry, by_utterance, read_ctm, write_textgrid
from fsachain.asr.decode.textgrid import read_textgrid
from fsachain.graph.lexicon import Lexicon


@pytest.fixture
def corpus(tmp_path):
    """Two speakers, texts of three kinds, stereo, another rate, a recording without text and a damaged one."""
    folder = tmp_path / "corpus"
    for speaker in ("ann", "bob b"):
        (folder / speaker).mkdir(parents=True)
    record(folder / "ann" / "one.wav", channels=2)
    (folder / "ann" / "one.lab").write_text("Yes, no!\n")
    record(folder / "ann" / "two.wav", 16000, 2)
    (folder / "ann" / "two.txt").write_text("yes yes - unheard\n")
    record(folder / "bob b" / "long.wav", seconds=9.0)
    grid = textgrid.Textgrid(0.0, 9.0)
    grid.addTier(textgrid.IntervalTier("carl", [(0.5, 3.0, "no yes"), (5.0, 8.5, "yes no yes")], 0.0, 9.0))
    grid.addTier(textgrid.IntervalTier("dora", [(3.0, 5.0, "no")], 0.0, 9.0))
    grid.save(str(folder / "bob b" / "long.TextGrid"), "short_textgrid", includeBlankSpaces=True)
    record(folder / "silent.wav")
    (folder / "broken.wav").write_text("no sound")
    (folder / "broken.lab").write_text("yes")
    soundfile.write(folder / "empty.wav", np.zeros(8000), 8000)
    (folder / "empty.txt").write_text("...")
    (folder / "README.txt").write_text("yes")
    (folder / "bob b" / "lost.lab").write_text("no")
    return folder


EXPECTED = {
    "ann-one": ["Yes,", "no!"],
    "ann-two": ["yes", "yes", "unheard"],
    "bob_b-long-0000": ["no", "yes"],
    "bob_b-long-0001": ["no"],
    "bob_b-long-0002": ["yes", "no", "yes"],
}


def rows_of(out):
    return [json.loads(line) for line in (out / "aligned.jsonl").read_text().splitlines()][1:]


def test_a_corpus_gets_textgrids_in_its_tree_and_goes_on_where_it_was(fsachain, model, corpus, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    command = f"align-corpus {corpus} out --model {model} --strict"
    printed = fsachain.ends(3, command).out
    assert "5 utterances aligned" in printed
    assert "1 of 11 words are not in the lexicon; most often: unheard 1" in printed
    beside = "lost.lab: no recording beside it", "1 .txt file without a recording beside: README.txt"
    for told in ("silent.*no .TextGrid", "broken.*cannot be read", "empty.*transcript is empty", *beside):
        assert re.search(told, printed), told
    rows = rows_of(out)
    assert {row["utterance"]: [word["label"] for word in row["words"]] for row in rows} == EXPECTED
    (first,) = (row for row in rows if row["utterance"] == "ann-one")
    assert [word["normalised"] for word in first["words"]] == ["yes", "no"]
    assert (first["text"], first["transcript"], first["read_as"]) == ("Yes, no!", ["Yes,", "no!"], "yes no")
    ctm = [entry.label for entry in read_ctm(out / "words.ctm") if entry.utterance == "ann-one"]
    own = textgrid.openTextgrid(str(out / "ann" / "one.TextGrid"), includeEmptyIntervals=False)
    assert ctm == [word.label for word in own.getTier("words").entries] == ["Yes,", "no!"]
    assert len(read_ctm(out / "words.ctm")) == 11
    grid = textgrid.openTextgrid(str(out / "bob b" / "long.TextGrid"), includeEmptyIntervals=False)
    assert grid.tierNames == ("carl - words", "carl - phones", "dora - words", "dora - phones")
    words = grid.getTier("carl - words").entries
    assert [word.label for word in words] == ["no", "yes", "yes", "no", "yes"]
    assert grid.maxTimestamp == 9.0
    assert words[0].start >= 0.5 and words[2].start >= 3.0 - 0.06 and words[-1].end <= 8.5 + 0.06
    assert [word.label for word in grid.getTier("dora - words").entries] == ["no"]
    summary = (out / "summary.tsv").read_text().splitlines()
    assert {line.split("\t")[0] for line in summary[1:]} == set(EXPECTED)
    suspicions = [float(line.split("\t")[2]) for line in summary[1:]]
    assert suspicions == sorted(suspicions, reverse=True)
    confidences = [float(line.split("\t")[5]) for line in summary[1:]]
    assert 0 < min(confidences) <= max(confidences) < 1
    page = (out / "index.html").read_text()
    assert 'src="../corpus/bob%20b/long.wav#t=5,8.5"' in page and "unheard" in page
    assert "<dt>suspicion</dt>" in page and "<dt>confidence</dt>" in page

    head = (out / "aligned.jsonl").read_text().splitlines()[0]
    for row in rows:
        row["log_prob"] = -99.0  # which no alignment gives: what is done is not done again
    (out / "aligned.jsonl").write_text("".join(f"{line}\n" for line in (head, *map(json.dumps, rows))))
    (corpus / "ann" / "one.lab").write_text("no no no")
    record(corpus / "ann" / "two.wav", 16000, 2, seconds=4.0)
    fsachain.ends(3, command)
    before, found = ({row["utterance"]: row for row in some} for some in (rows, rows_of(out)))
    assert all(found[name] == before[name] for name in EXPECTED if name not in ("ann-one", "ann-two"))
    assert found["ann-one"]["text"] == "no no no" and found["ann-one"]["log_prob"] > -99.0
    assert found["ann-two"]["seconds"] == pytest.approx(4.0, abs=0.1)


def test_a_corpus_without_a_model_trains_its_own(fsachain, corpus, tmp_path):
    small = ("network.channels=8", "network.bottleneck=0", "network.prefinal=0", "train.num_epochs=1")
    settings = [part for one in small for part in ("--set", one)]
    out = tmp_path / "out"
    told = fsachain.ends(3, f"align-corpus {corpus} {out}", *settings)
    assert "5 utterances aligned" in told.out and "objf" not in told.out + told.err
    log = (out / "training.log").read_text()
    assert log.count("--- train") == 2 and "epoch   1/1  objf" in log
    assert (out / "second" / "model" / "model.safetensors").is_file()
    kept = Experiment.read(out / "model" / "config.yaml")
    options = kept.phone_lm.ngram_order, kept.loss.leaky_hmm_coefficient, kept.network["channels"]
    assert options == (4, 0.1, 8)
    rows = rows_of(out)
    assert {row["utterance"] for row in rows} == set(EXPECTED)
    assert {phone["label"] for row in rows for phone in row["phones"]} <= {"SIL", *"yesnouhard"}


def test_a_data_directory_is_a_corpus_too_and_nothing_at_all_is_an_error(fsachain, model, recorded, tmp_path):  # noqa: F811
    fsachain.ok(f"align-corpus data out --model {model}")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.TextGrid"))[0] == "u1.TextGrid"
    (tmp_path / "nothing").mkdir()
    assert_one_line(fsachain(f"align-corpus nothing out --model {model}"), "no recordings with transcripts")
    assert_one_line(fsachain(f"align-corpus nothing nothing --model {model}"), "nothing: is CORPUS itself")
    (tmp_path / "nothing" / "text").write_text("u1 yes\n")
    (tmp_path / "nothing" / "feats.scp").write_text("u1 feats.ark:3\n")
    assert_one_line(fsachain(f"align-corpus nothing out --model {model}"), "'u1' has no recording")


def test_all_files_have_the_same_times_and_a_second_call_finds_them_again(
    fsachain,
    model,  # noqa: F811
    corpus,
    tmp_path,
    monkeypatch,
):
    for module in ("asr.cli.alignment", "asr.decode.times"):
        monkeypatch.setattr(f"fsachain.{module}.LEAST_SECONDS", 5.0)
    out, command = tmp_path / "out", f"align-corpus {corpus} out --model {model} --strict"
    fsachain.ends(3, command)
    rows = rows_of(out)
    assert any("between_frames" in row for row in rows), "boundaries are moved"
    times = {row["utterance"]: [(x["start"], x["end"]) for x in row["words"]] for row in rows}
    for name, entries in by_utterance(read_ctm(out / "words.ctm")).items():
        assert [(x.start, x.end) for x in entries] == [(round(a, 3), round(b, 3)) for a, b in times[name]]
    for tier in read_textgrid(out / "ann" / "one.TextGrid"):
        kept = {row["utterance"]: row for row in rows}["ann-one"][tier.name]
        assert [(x.start, x.end) for x in tier.spoken] == [
            (x["start"], min(x["end"], tier.intervals[-1].end)) for x in kept
        ]
    files = {path: path.read_bytes() for path in sorted(out.rglob("*.[TCc]*"))}
    fsachain.ends(3, command)
    assert rows_of(out) == rows
    assert {path: path.read_bytes() for path in files} == files


def text_beside(folder, *names):
    """A recording x.wav with texts of these endings, each of which says what it is."""
    folder.mkdir(exist_ok=True)
    record(folder / "x.wav")
    for name in names:
        if name.lower() != ".textgrid":
            (folder / f"x{name}").write_text(f"{name[1:].lower()}\n")
            continue
        tiers = {"ann": [CtmEntry("u", 0.5, 0.5, "grid")], "phones": [CtmEntry("u", 0.5, 0.5, "G")]}
        write_textgrid(folder / f"x{name}", tiers, 3.0)


@pytest.mark.parametrize(
    "names, said",
    [
        ((".lab", ".txt", ".TextGrid"), "lab"),
        ((".txt", ".TextGrid"), "txt"),
        ((".TXT", ".TextGrid"), "txt"),
        ((".TextGrid",), "grid"),
        ((".textgrid",), "grid"),
    ],
)
def test_one_order_says_which_of_several_texts_counts_and_is_printed_once(tmp_path, capsys, names, said):
    text_beside(tmp_path / "a", *names)
    text_beside(tmp_path / "b", *names)
    parts, faults = find_parts(tmp_path, tmp_path / "out")
    assert ([part.words for part in parts], faults) == ([(said,)] * 2, [])
    told = (
        "2 recordings with more than one of x.lab, x.txt, x.TextGrid beside: the first in this order is read"
    )
    assert capsys.readouterr().out.count(told) == (len(names) > 1)


def test_textgrids_that_an_aligner_wrote_are_not_read_as_a_corpus(tmp_path, capsys):
    text_beside(tmp_path / "a", ".txt")
    text_beside(tmp_path / "b")
    for folder, tiers in (("a", ("words", "phones")), ("b", ("ann - words", "ann - phones"))):
        entries = {tier: [CtmEntry("u", 0.5, 0.5, "yes")] for tier in tiers}
        write_textgrid(tmp_path / folder / "x.TextGrid", entries, 3.0)
    parts, (fault,) = find_parts(tmp_path, tmp_path / "out")
    assert [(part.id, part.speaker, part.words) for part in parts] == [("a-x", "a", ("txt",))]
    assert "1 TextGrid beside recordings are the output of an aligner" in capsys.readouterr().out
    assert (
        fault.id == "b-x"
        and "its tiers are the output of an aligner (ann - words, ann - phones)" in fault.reason
    )


def test_a_recording_whose_textgrid_has_no_text_or_is_damaged_is_listed_and_the_others_are_read(tmp_path):
    for folder in ("damaged", "empty", "good", "points"):
        text_beside(tmp_path / folder)
    head = '! by hand\n"ooTextFile" "TextGrid" 0 3 <exists> '
    points = '"TextTier" "tones" 0 3 1 0.5 "L*" '
    (tmp_path / "damaged" / "x.TextGrid").write_text(head + "3 " + points)
    (tmp_path / "points" / "x.TextGrid").write_text(head + "1 " + points)
    (tmp_path / "good" / "x.TextGrid").write_text(
        head + "2 " + points + '"IntervalTier" "ann" 0 3 1 0 3 "yes"'
    )
    write_textgrid(tmp_path / "empty" / "x.TextGrid", {"ann": []}, 3.0)
    parts, faults = find_parts(tmp_path, tmp_path / "out")
    assert [(part.id, part.speaker, part.words) for part in parts] == [("good-x-0000", "ann", ("yes",))]
    told = {fault.id: fault.reason for fault in faults}
    assert "x.TextGrid:2: not a TextGrid: expected the class of tier 2" in told["damaged-x"]
    assert "no interval has a text;" in told["empty-x"]
    assert "no interval has a text (points are not read)" in told["points-x"]


def test_recordings_whose_names_would_be_joined_alike_are_two(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a-b", "a/b/c", "a/b-c", "d e", "d_e"):
        record(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.lab").write_text("yes")
    parts, faults = find_parts(tmp_path, tmp_path / "out")
    assert ({part.id for part in parts}, faults) == ({"a-b", "a/b/c", "a/b-c", "d%20e", "d_e"}, [])


def test_stretches_late_in_a_recording_keep_their_times(tmp_path):
    record(tmp_path / "hours.wav")
    late = Part("late", "ann", ("yes",), str(tmp_path / "hours.wav"), 12345.6789, 12347.1234)
    assert write_data([late], None, 8000, tmp_path / "data") == []
    (read,) = DataDir.read(tmp_path / "data")
    assert (read.start, read.end) == (late.start, late.end)


def test_words_are_parted_and_their_marks_are_no_phones(tmp_path):
    record(tmp_path / "x.wav")
    said = ("Well-known,", "he/she", "\u0939\u0948\u0964", "\u0964", "don't")
    assert write_data([Part("x", "ann", said, str(tmp_path / "x.wav"))], None, 8000, tmp_path / "data") == []
    assert (tmp_path / "data" / "text").read_text() == "x well known he she \u0939\u0948 don't\n"


def test_words_take_the_form_that_the_lexicon_has():
    lexicon = Lexicon.from_entries([(word, 1.0, ["k"]) for word in ("OK", "don't", "Mr.")], silence=None)
    text = "Ok, «Don't» -- mr. Mr. 42!"
    assert in_words_of(text, lexicon) == ["OK", "don't", "Mr.", "Mr.", "42"]
    assert in_words_of(text, None) == ["ok", "don't", "mr", "mr", "42"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_are_read_as_editors_save_them(tmp_path, encoding):
    record(tmp_path / "one.wav")
    (tmp_path / "one.txt").write_bytes("yes \u00e9\u00e9n\r\nno\r\n".encode(encoding))
    parts, faults = find_parts(tmp_path, tmp_path / "out")
    assert ([part.words for part in parts], faults) == ([("yes", "\u00e9\u00e9n", "no")], [])
    (tmp_path / "one.txt").write_bytes("\u00e9\u00e9n".encode("latin-1"))
    assert "one.txt:1: not a line of UTF-8 text" in find_parts(tmp_path, tmp_path / "out")[1][0].reason


def test_a_recording_of_a_lower_rate_has_the_samples_of_its_copy(tmp_path):
    """What was trained on the copy meets the same silence in the bands that the recording lacks."""
    record(tmp_path / "low.wav", 8000)
    assert (
        write_data([Part("low", "ann", ("yes",), str(tmp_path / "low.wav"))], None, 16000, tmp_path / "data")
        == []
    )
    copy, rate = soundfile.read(next((tmp_path / "data").rglob("*.flac")), dtype="float32")
    assert rate == 16000
    np.testing.assert_array_equal(np.concatenate(list(Recording(tmp_path / "low.wav", 16000).blocks())), copy)


def test_parts_of_a_folder_are_found_with_speakers(corpus):
    (corpus / "out").mkdir()
    record(corpus / "out" / "converted.wav")
    record(corpus / "ann" / "one.flac")
    parts, faults = find_parts(corpus, corpus / "out")
    speakers = {part.id: part.speaker for part in parts}
    assert [name for name in speakers if name in EXPECTED] == list(EXPECTED)
    assert (speakers["ann-one"], speakers["broken"]) == ("ann", "broken")
    assert [fault.id for fault in faults] == [str(corpus / "ann" / "one.wav"), "silent", "bob_b-lost"]
