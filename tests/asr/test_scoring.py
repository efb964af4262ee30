"""Scoring as sclite does: alternatives, optional words, NIST's files, rules of spelling, and the interval."""

import json
import math
import random

import numpy as np
import pytest
from cli_fixtures import run_command
from refusals import refuses

from fsachain.asr.decode.alternatives import WordGraph, align_graphs, markup_tokens
from fsachain.asr.decode.equivalence import Equivalences
from fsachain.asr.decode.nist import (
    StmSegment,
    read_nist_ctm,
    read_pair,
    read_stm,
    read_trn,
    words_in_segments,
    write_stm,
    write_trn,
)
from fsachain.asr.decode.wer import Scoring, score
from fsachain.errors import ConfigError, DataError

SCLITE = Scoring(costs="sclite", markup=True, fold_case=True)


def counts(reference, hypothesis, **options):
    """Correct, substituted, deleted and inserted words."""
    how = Scoring(**{"costs": "sclite", "markup": True} | options)
    sides = markup_tokens(reference), markup_tokens(hypothesis)
    total = score({"u": sides[0]}, {"u": sides[1]}, scoring=how).total
    return total.correct, total.substitutions, total.deletions, total.insertions


# What NIST's sclite 2.10 (SCTK 2.4.12) prints as "Scores: (#C #S #D #I)", with -D, and with -F where it says fragments.
@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b c", "a x c", (2, 1, 0, 0)),
        ("x y a", "a p q", (0, 3, 0, 0)),  # costs 12, as two insertions and two deletions do
        ("a b c d", "c d e f", (2, 0, 2, 2)),  # 12 and four errors beside 16 and four
        ("a b b a c", "c a b", (2, 0, 3, 1)),
        ("i've { um / uh / @ } as far", "i've as far", (3, 0, 0, 0)),
        ("i've { um / uh / @ } as far", "i've uh as far", (4, 0, 0, 0)),
        ("i've { um / uh / @ } as far", "i've er as far", (3, 0, 0, 1)),
        ("{ he is / he's } here", "he's here", (2, 0, 0, 0)),
        ("{ he is / he's } here", "he is here", (3, 0, 0, 0)),
        ("a { b / { c d / e } f } g", "a e f g", (4, 0, 0, 0)),
        ("a { b / c d e } f", "a x f", (2, 1, 0, 0)),
        ("yes { it's / it is } it", "yes { its / it is } it", (4, 0, 0, 0)),
        ("b (c) d", "b d", (3, 0, 0, 0)),
        ("b (c) d", "b c d", (3, 0, 0, 0)),
        ("b (c) d", "b x d", (2, 1, 0, 0)),
        ("b (c) d", "b e", (2, 1, 0, 0)),
        ("b d", "b (uh) d", (3, 0, 0, 0)),
        ("", "a b", (0, 0, 0, 2)),
        ("{ a / @ }", "", (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_counts_are_those_that_sclite_prints(reference, hypothesis, expected):
    assert counts(reference, hypothesis) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "with_fragments", "without"),
    [
        ("the th- end", "the thing end", (3, 0, 0, 0), (2, 1, 0, 0)),
        ("-ing stop", "being stop", (2, 0, 0, 0), (1, 1, 0, 0)),
        ("(th-) end", "the end", (2, 0, 0, 0), (1, 1, 0, 0)),
        ("- end", "a end", (1, 1, 0, 0), (1, 1, 0, 0)),
    ],
)
def test_fragments_match_words_that_begin_or_end_so(reference, hypothesis, with_fragments, without):
    assert counts(reference, hypothesis, fragments=True) == with_fragments
    assert counts(reference, hypothesis) == without


def test_a_missing_optional_word_is_an_error_when_parentheses_mean_nothing():
    assert counts("b (c) d", "b d", optional=False) == (2, 0, 1, 0)


def cheapest_by_enumeration(reference, hypothesis):
    """The least cost over all pairs of paths, by the textbook table for each."""

    def paths(tokens):
        """Every word sequence of flat alternatives."""
        found, place = [[]], 0
        while place < len(tokens):
            if tokens[place] != "{":
                found = [[*path, tokens[place]] for path in found]
                place += 1
                continue
            end = tokens.index("}", place)
            choices = " ".join(tokens[place + 1 : end]).split("/")
            found = [[*path, *choice.split()] for path in found for choice in choices]
            place = end + 1
        return found

    def cost(ref, hyp):
        row = [3 * j for j in range(len(hyp) + 1)]
        for i, word in enumerate(ref, start=1):
            above, row = row, [3 * i] + [0] * len(hyp)
            for j, other in enumerate(hyp, start=1):
                row[j] = min(above[j - 1] + 4 * (word != other), above[j] + 3, row[j - 1] + 3)
        return row[-1]

    return min(cost(ref, hyp) for ref in paths(reference) for hyp in paths(hypothesis))


def test_alternatives_on_both_sides_cost_as_little_as_their_best_paths():
    draw = random.Random(7)

    def transcript():
        words = []
        for _ in range(draw.randint(1, 5)):
            if draw.random() < 0.4:
                choices = (" ".join(draw.choices("abc", k=draw.randint(1, 2))) for _ in range(2))
                words.append(f"{{ {' / '.join(choices)} }}")
            else:
                words.append(draw.choice("abc"))
        return " ".join(words).split()

    for _ in range(200):
        reference, hypothesis = transcript(), transcript()
        steps = align_graphs(WordGraph.parse(reference, "u"), WordGraph.parse(hypothesis, "u"))
        kinds = [step.kind for step in steps]
        cost = 4 * kinds.count("substitution") + 3 * (kinds.count("insertion") + kinds.count("deletion"))
        assert cost == cheapest_by_enumeration(reference, hypothesis), (reference, hypothesis)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a { b / c", "utterance 'u': '{' without '}' after it, in 'a { b / c'; expected alternatives such as"),
        ("a } b", "utterance 'u': '}' without '{' before it"),
        ("{ " * 33 + "a" + " }" * 33, "utterance 'u': more than 32 levels of alternatives"),
        (f"{{ {' / '.join('a' * 1100)} }} {{ {' / '.join('a' * 1100)} }}", "too many alternatives one after the other"),
    ],
)  # fmt: skip
def test_alternatives_that_cannot_be_read_are_refused(text, message):
    refuses(DataError, message, WordGraph.parse, markup_tokens(text), "u")


def test_more_words_than_memory_is_kept_for_are_refused():
    graph = WordGraph.of_words(["a"] * 12_000)
    refuses(DataError, "12000 words against 12000 are too many", align_graphs, graph, graph)


# Files


TRN = """;; a comment
she had your { dark / black } suit (anna-1)
GO;a;note on\\;off (bert-2)
(anna-3)
"""
STM = """;; LABEL "O" "Overall" "all"
r1 A anna 0.0 2.0 <O> yes { um / @ } no
r1 A bert 2.0 3.0 IGNORE_TIME_SEGMENT_IN_SCORING
r1 A anna 3.0 5.0 <O> well
r2 B cleo 0.0 1.0
"""
CTM = """;; not sorted
r1 a 3.2 0.4 WELL 0.9
r1 a 0.1 0.2 yes
r1 a 2.2 0.2 noise
r1 a * * <ALT_BEGIN>
r1 a 1.9 0.1 no
r1 a * * <ALT>
r1 a 1.9 0.1 know
r1 a * * <ALT_END>
r1 a 6.0 0.3 late
"""


@pytest.fixture
def files(tmp_path):
    for name, text in (("ref.trn", TRN), ("ref.stm", STM), ("hyp.ctm", CTM)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_trn_has_words_with_alternatives_before_the_utterance(files):
    assert read_trn(files / "ref.trn") == {
        "anna-1": ("she", "had", "your", "{", "dark", "/", "black", "}", "suit"),
        "bert-2": ("GO", "on;off"),
        "anna-3": (),
    }
    write_trn(files / "again.trn", read_trn(files / "ref.trn"))
    assert read_trn(files / "again.trn") == read_trn(files / "ref.trn")
    refuses(
        DataError, r"utterance 'a \(b\)' cannot be written as trn", write_trn, files / "x.trn", {"a (b)": []}
    )


def test_stm_segments_have_speakers_times_and_labels(files):
    segments = read_stm(files / "ref.stm")
    assert segments[0] == StmSegment(
        "r1", "A", "anna", 0.0, 2.0, ("yes", "{", "um", "/", "@", "}", "no"), "<O>"
    )
    assert [one.is_ignored for one in segments] == [False, True, False, False]
    write_stm(files / "again.stm", segments)
    assert read_stm(files / "again.stm") == segments


def test_recognised_words_go_to_the_segment_in_which_their_middle_lies(files):
    segments = read_stm(files / "ref.stm")
    words = words_in_segments(read_nist_ctm(files / "hyp.ctm"), segments)
    assert words == [["yes", "{", "no", "/", "know", "}"], ["noise"], ["WELL", "late"], []]


def test_a_ctm_beside_an_stm_is_scored_by_segment_and_speaker(files):
    pair = read_pair(files / "ref.stm", files / "hyp.ctm")
    report = score(pair.references, pair.hypotheses, speakers=pair.speakers, scoring=pair.scoring())
    assert list(pair.references) == ["anna-000", "anna-001", "cleo-000"]
    assert (report.total.correct, report.total.errors, report.total.insertions) == (3, 1, 1)
    assert list(report.by_speaker) == ["anna", "cleo"]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("x.trn", "a b", r"x.trn:1: expected words and an utterance in parentheses, got 'a b'"),
        ("x.trn", "a (u)\nb (u)", r"x.trn:2: utterance 'u' stands in the file twice"),
        ("x.stm", "r A anna 0.0", "x.stm:1: expected recording, channel, speaker, start, end and words, got 4 fields"),
        ("x.stm", "r A anna 2.0 1.0 a", "x.stm:1: the segment ends at 1 s, before it begins at 2 s"),
        ("x.stm", "r A anna nan 1.0 a", "x.stm:1: the start is 'nan'; expected a number"),
        ("x.ctm", "r A 0.1 a", "x.ctm:1: expected recording, channel, start, duration, word"),
        ("x.ctm", "r A 0.1 x a", "x.ctm:1: the duration is 'x'; expected a number"),
    ],
)  # fmt: skip
def test_lines_of_another_form_are_refused_by_their_number(tmp_path, name, line, message):
    (tmp_path / name).write_text(line + "\n")
    refuses(DataError, message, read_pair, tmp_path / name, tmp_path / name)


def test_words_of_a_recording_that_no_segment_has_are_refused(files):
    (files / "hyp.ctm").write_text("r9 A 0.1 0.2 yes\n")
    refuses(
        DataError,
        "1 word of recording 'R9', channel 'A', which the references lack",
        read_pair,
        files / "ref.stm",
        files / "hyp.ctm",
    )


# Rules


def rules(tmp_path, text):
    (tmp_path / "rules.glm").write_text(text)
    return Equivalences.read(tmp_path / "rules.glm")


def test_rules_of_whole_words_leave_parts_of_words_alone(tmp_path):
    read = rules(tmp_path, "uh => um\nde facto => defacto\n")
    assert read.apply(["huh", "uh", "UH", "uh-huh", "de", "facto"]) == [
        "huh",
        "um",
        "um",
        "uh-huh",
        "defacto",
    ]


def test_rules_in_brackets_are_of_characters_and_look_at_what_stands_beside(tmp_path):
    read = rules(
        tmp_path, ";; first\n* name 'x'\n[-] => [ ] ;; a hyphen\nFalkner => Faulkner / [William ] __\n"
    )
    assert read.apply(["up-to-date"]) == ["up", "to", "date"]
    assert read.apply(["William", "Falkner", ",", "John", "Falkner"])[1:] == [
        "Faulkner",
        ",",
        "John",
        "Falkner",
    ]


def test_the_first_rule_that_fits_is_used_once(tmp_path):
    read = rules(tmp_path, "a => b\nb => c\na => d\n")
    assert read.apply(["a", "b", "a"]) == ["b", "c", "b"]


def test_a_rule_may_leave_a_choice_and_make_words_optional(tmp_path):
    read = rules(
        tmp_path, ";;\nuh => (%hesitation)\nhe's => [{he is / he has}] / [ ] __ [ ]\nyou know => (you know)\n"
    )
    total = score(
        {"u": ["uh", "he", "is", "here"]}, {"u": ["he's", "here", "you", "know"]}, scoring=Scoring(rules=read)
    )
    assert total.total.errors == 0
    assert read.apply(["you", "know"]) == ["(you)", "(know)"]


def test_sections_are_of_one_side_or_format(tmp_path):
    read = rules(tmp_path, ';; x\na => b\n;; INPUT_DEPENDENT_APPLICATION = "hyp|ctm"\nc => d\n')
    assert read.apply(["a", "c"], "ref", "trn") == ["b", "c"]
    assert read.apply(["a", "c"], "hyp", "trn") == ["b", "d"]
    assert read.apply(["a", "c"], "ref", "ctm") == ["b", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "rules.glm:1: expected a rule such as 'gonna => going to', got 'a b'"),
        (" => b", "rules.glm:1: a rule without a left side"),
        (";;\n* copy_no_hit = 'F'\n", "rules.glm:2: copy_no_hit = 'f' is not supported"),
        ("a => b\n" * 100_001, "rules.glm:100001: more than 100000 rules"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(tmp_path, text, message):
    refuses(DataError, message, rules, tmp_path, text)


def test_rules_that_make_a_text_grow_without_end_are_refused(tmp_path):
    read = rules(tmp_path, f"[a] => [{'b' * 4000}]\n")
    refuses(DataError, "more than 4194304 characters", read.apply, ["a" * 2000], "ref")


# The interval


def known_report(num_utterances, speakers=None):
    rng = np.random.default_rng(3)
    errors = rng.integers(0, 4, num_utterances)
    references = {f"u{n}": ["a"] * 10 for n in range(num_utterances)}
    hypotheses = {f"u{n}": ["a"] * (10 - e) + ["b"] * e for n, e in enumerate(errors.tolist())}
    return score(references, hypotheses, speakers=speakers), errors


def test_the_interval_is_as_wide_as_the_central_limit_theorem_says():
    report, errors = known_report(400)
    interval = report.interval(samples=20_000)
    half = 1.96 * 10 * errors.std() / math.sqrt(400)  # per cent: 10 words an utterance
    assert interval.low == pytest.approx(report.total.wer - half, abs=0.1 * half)
    assert interval.high == pytest.approx(report.total.wer + half, abs=0.1 * half)
    assert (interval.unit, interval.num_units, interval.samples) == ("utterances", 400, 20_000)


def test_the_same_seed_gives_the_same_interval():
    report, _ = known_report(40)
    assert report.interval(samples=500, seed=2) == report.interval(samples=500, seed=2)
    assert report.interval(samples=500, seed=2) != report.interval(samples=500, seed=3)


def test_speakers_are_drawn_where_they_are_known():
    # Two speakers, one without an error and one with all words wrong: a draw has 0, 50 or 100 %.
    references = {f"{s}{n}": ["a"] for s in "xy" for n in range(20)}
    hypotheses = {name: ["a" if name[0] == "x" else "b"] for name in references}
    report = score(references, hypotheses, speakers={name: name[0] for name in references})
    interval = report.interval()
    assert (interval.low, interval.high, interval.unit) == (0.0, 100.0, "speakers")
    assert report.interval(level=0.5) == report.interval(level=0.5, seed=1)
    by_utterance = score(references, hypotheses).interval()
    assert 30 < by_utterance.low < 40 and 60 < by_utterance.high < 70


def test_one_utterance_has_no_interval():
    assert score({"u": ["a"]}, {"u": ["b"]}).interval() is None
    report, _ = known_report(3)
    refuses(ConfigError, "level is 1", report.interval, level=1)
    refuses(ConfigError, "samples is 0", report.interval, samples=0)


# The command


def test_the_command_prints_parts_sentences_characters_and_an_interval(tmp_path, capsys):
    (tmp_path / "ref").write_text("u1 one two\nu2 three\nu3 five\n")
    (tmp_path / "hyp").write_text("u1 one too\nu2 three\nu3 five six\n")
    (tmp_path / "utt2spk").write_text("u1 anna\nu2 anna\nu3 bert\n")
    command = ("score", tmp_path / "ref", tmp_path / "hyp", "--cer", "--utt2spk", tmp_path / "utt2spk")
    assert run_command(*map(str, command), "--out", str(tmp_path / "out")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "WER 50.00 % [ 2 / 4, 1 ins, 0 del, 1 sub ]"
    assert lines[1].startswith(
        "correct 75.00 % [ 3 / 4 words ], sentence errors 66.67 % [ 2 / 3 utterances ], 95 % "
    )
    assert "bootstrap samples of 2 speakers" in lines[1]
    assert lines[2] == "CER 26.67 % [ 4 / 15, 3 ins, 0 del, 1 sub ]"
    saved = json.loads((tmp_path / "out" / "wer.json").read_text())
    assert saved["total"]["correct"] == 3 and saved["characters"]["total"]["words"] == 15
    assert saved["interval"]["unit"] == "speakers"


def test_the_command_scores_nist_files_with_rules_and_writes_what_it_compared(files, capsys):
    (files / "hyp.trn").write_text("SHE had YOUR dark suit (anna-1)\ngo on\\;off (bert-2)\nok (anna-3)\n")
    (files / "x.glm").write_text(";;\nok => (okay)\n")
    command = ["score", "ref.trn", "hyp.trn", "--glm", "x.glm", "--nist", "--out", "out"]
    paths = [str(files / part) if "." in part or part == "out" else part for part in command]
    assert run_command(*paths) == 0
    assert capsys.readouterr().out.startswith("WER 0.00 % [ 0 / 8, 0 ins, 0 del, 0 sub ]")
    assert (files / "out" / "hyp.trn").read_text().splitlines()[1] == "(OKAY) (anna-3)"
    assert run_command(*paths[:3], "--case", "exact") == 0
    assert capsys.readouterr().out.startswith("WER 57.14 %")
    assert run_command(*paths[:3], "--nist") == 2
    assert "--nist: expected --out" in capsys.readouterr().err
