"""Lexicons are read as Kaldi writes them; what is wrong in one is named by file and line."""

import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import tolerances
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from fsachain.batch import TableBatch
from fsachain.errors import FsachainError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.grammar import estimate_arpa, ngram_acceptor, word_loop
from fsachain.graph.lexicon import (
    Lexicon,
    Pronunciation,
    bare,
    is_invisible,
    is_mark,
    lm_phones,
    transcript_tokens,
    visible,
)
from fsachain.graph.numerator import build_numerator
from fsachain.graph.open_vocabulary import word_ids
from fsachain.graph.topology import Topology
from fsachain.openfst import Transducer, grammar_over
from fsachain.table import compile_table

TEXT = "!SIL SIL\nno N OW\nno N AH\ntea T IY\n"
TEXT_P = "!SIL 1.0 SIL\nno 1 N OW\nno 0.5 N AH\ntea 1.0 T IY\n"


def write(tmp_path, text, name="lexicon.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def spelled(lexicon, word):
    return [[lexicon.phones[p - 1] for p in pron.phones] for pron in lexicon.pronunciations_of(word)]


def test_the_same_letters_in_another_unicode_form_are_told_and_found():
    composed, apart = "n\u00e9", "ne\u0301"
    lexicon = Lexicon.from_entries([(composed, 1.0, ["N"])], silence=None)
    told = f"word '{apart}' is not among the 1 word .* has '{composed}', the same letters in another Unicode form"
    with pytest.raises(GraphError, match=told):
        lexicon.word_id(apart)
    assert [lexicon.known_form(word) for word in (apart, f"\u00ab{apart.upper()}\u00bb", "ne")] == [
        composed
    ] * 2 + [None]


def test_words_keep_the_order_of_the_file_and_phones_follow_silence_by_name(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, TEXT))
    assert lexicon.words == ("!SIL", "no", "tea") and lexicon.word_id("tea") == 3
    assert lexicon.phones == ("SIL", "AH", "IY", "N", "OW", "T")
    assert lexicon.phone_id("SIL") == lexicon.silence_phone == 1
    assert spelled(lexicon, "no") == [["N", "OW"], ["N", "AH"]]


def test_lexiconp_brings_probabilities(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, TEXT_P, "lexiconp.txt"))
    assert [p.prob for p in lexicon.pronunciations_of("no")] == [1.0, 0.5]
    same = Lexicon.read(write(tmp_path, TEXT_P, "words.dict"), format="lexiconp")
    assert same.pronunciations == lexicon.pronunciations


def test_phone_ids_may_come_from_a_list_or_a_phones_txt(tmp_path):
    names = ["SIL", "SPN", "N", "OW", "AH", "T", "IY"]
    table = "".join(f"{name} {i}\n" for i, name in enumerate(["<eps>", *names, "#0", "#1"]))
    path = write(tmp_path, TEXT)
    assert Lexicon.read(path, phones=names).phones == tuple(names)
    assert Lexicon.read(path, phones=write(tmp_path, table, "phones.txt")).phones == tuple(names)


@pytest.mark.parametrize("case", ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm8_onesent"])
def test_reads_kaldis_files_with_their_ids(shared, case):
    folder = shared / "golden/kaldi/lm" / case
    lexicon = Lexicon.read(folder / "lexiconp.txt", phones=folder / "phones.txt")
    table = dict(line.split() for line in (folder / "words.txt").read_text().splitlines())
    theirs = {word: int(index) for word, index in table.items() if word not in ("<eps>", "#0", "<s>", "</s>")}
    assert {word: lexicon.word_id(word) for word in lexicon.words} == theirs


def test_an_unknown_word_is_refused_by_name_or_mapped_by_choice(tmp_path):
    path = write(tmp_path, TEXT)
    refuses(GraphError, r"utterance 'u7': word 'coffee'", Lexicon.read(path).word_id, "coffee", name="u7")
    refuses(GraphError, r"word 'TEA,' is not among .*, which has 'tea';", Lexicon.read(path).word_id, "TEA,")
    mapped = Lexicon.read(path, oov="tea")
    assert mapped.word_id("coffee") == mapped.word_id("tea")
    assert mapped.pronunciations_of("coffee") == mapped.pronunciations_of("tea")


def test_a_word_that_unicode_writes_in_two_ways_is_found_and_told():
    """A letter with a mark is one character (NFC) or two (NFD), which look alike."""
    composed, apart = "\u00e9\u00e9n", "e\u0301e\u0301n"
    words = (composed, "\u00c4hre", "gro\u00df")
    lexicon = Lexicon.from_entries([(word, 1.0, ["N"]) for word in words])
    assert lexicon.known_form(apart) == lexicon.known_form(apart.upper() + "!") == composed
    written = ("\u00c4HRE", "\u201egross\u201c", "GROSS", "een")
    assert [lexicon.known_form(word) for word in written] == ["\u00c4hre", "gro\u00df", "gro\u00df", None]
    refuses(
        GraphError, r"another Unicode form .*: '\\xe9\\xe9n' for 'e\\u0301e\\u0301n'", lexicon.word_id, apart
    )
    for spelt in (composed, apart):
        letters = Lexicon.characters([spelt])
        assert letters.spelled(apart + "n") == letters.spelled(composed + "n")
        assert len(letters.spelled(composed)) == len(spelt)


def test_positions_mark_begin_inside_end_and_alone(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, "a A\nat A T\ncat K A T\ncats K A T S\n")).with_positions()
    assert spelled(lexicon, "a") == [["A_S"]]
    assert spelled(lexicon, "at") == [["A_B", "T_E"]]
    assert spelled(lexicon, "cats") == [["K_B", "A_I", "T_I", "S_E"]]
    assert lexicon.phones[:5] == ("SIL", "A_B", "A_I", "A_E", "A_S")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("no N OW\ntea\n", {}, r"lexicon.txt:2: word 'tea' has no phones"),
        ("no N OW\nno N OW\n", {}, r"lexicon.txt:2: .*already on line 1"),
        ("no 1.5 N OW\n", {"format": "lexiconp"}, r"lexicon.txt:1: .*'1.5'.*\(0, 1\]"),
        ("no 0.5 N OW\n", {}, "with probabilities is called lexiconp.txt"),
        ("no 1.0 0.5 0.9 1.1 N OW\n", {"format": "lexiconp"}, "phone '0.5' looks like a probability"),
        ("no\t1.0\t0.5\t0.9\t1.1\tN OW\n", {}, "those of silence have to go"),
        ("no N OW\nknow N OW #1\n", {}, r"lexicon.txt:2: '#1' looks like a disambiguation symbol"),
        ("no N OW\n<eps> SIL\n", {}, r"lexicon.txt:2: '<eps>' stands for no word and no phone"),
        ("no N OW\nwell <eps> N\n", {}, r"lexicon.txt:2: '<eps>' stands for no word and no phone"),
        (
            "no N OW1\nno(2) N AH0\n",
            {},
            r"lexicon.txt:2: 'no\(2\)' looks like one more pronunciation of 'no'",
        ),
        (
            "no N OW # not yes\n",
            {},
            "lexicon.txt:1: word 'no' has a phone '#', .*comments on lines of their own",
        ),
        ("\n\n", {}, "no entries"),
        ("no N OW\n", {"phones": ["SIL", "N"]}, "phone 'OW'"),
        (
            "no N OW\n",
            {"phones": ["SIL", "N_B", "OW_E"]},
            "'N', .* 'N_B': expected the lexicon with positions",
        ),
        ("no N OW\n", {"phones": ["N", "OW"]}, "silence = 'SIL'"),
        ("no N OW\n", {"oov": "<unk>"}, "oov = '<unk>'"),
    ],
)
def test_names_file_line_and_fault(tmp_path, text, options, message):
    refuses(GraphError, message, Lexicon.read, write(tmp_path, text), **options)


TWO_WAYS = Lexicon.from_entries([("x", 1.0, ["X"]), ("y", 0.75, ["Y"]), ("y", 0.25, ["Z"])])


def test_lm_phones_draw_silences_and_pronunciations_with_their_probabilities():
    silence, x, y, z = (TWO_WAYS.phone_id(name) for name in ("SIL", "X", "Y", "Z"))
    sequences = lm_phones([["x", "y"]] * 4000, TWO_WAYS, edge_silence=0.8, between_silence=0.2, seed=3)
    drawn = []
    for phones in sequences:
        silences = (phones[place] == silence for place in (0, -1, phones.index(x) + 1))
        drawn.append([*silences, y in phones, z in phones])
    found = np.mean(drawn, axis=0)
    np.testing.assert_allclose(found, [0.8, 0.8, 0.2, 0.75, 0.25], rtol=0, atol=tolerances.DRAWN_SHARE)


def test_lm_phones_are_reproducible_change_with_the_seed_and_refuse_by_name():
    text = [["x", "y", "x", "y"], ("y", "y")] * 20
    assert lm_phones(text, TWO_WAYS, seed=1) == lm_phones(text, TWO_WAYS, seed=1)
    assert lm_phones(text, TWO_WAYS, seed=1) != lm_phones(text, TWO_WAYS, seed=2)
    refuses(GraphError, r"edge_silence = 1\.5", lm_phones, [["x"]], TWO_WAYS, edge_silence=1.5)
    refuses(GraphError, r"text\[1\].*'w'", lm_phones, [["x"], ["w"]], TWO_WAYS)


def test_a_text_in_the_place_of_transcripts_is_not_spelled():
    refuses(GraphError, "texts is one string; expected transcripts", Lexicon.characters, "ab ba")


TREE = ContextTree.monophone(TWO_WAYS.phones, Topology.chain())
OF_WORDS: dict[str, Callable[[], object]] = {
    r"text\[0\] = 'x y': expected a sequence of words": lambda: lm_phones(["x y"], TWO_WAYS),
    r"text\[1\] = 'y'": lambda: lm_phones([["x"], "y"], TWO_WAYS),
    "text = 'x y': expected a sequence of transcripts": lambda: lm_phones("x y", TWO_WAYS),
    "words = 'x y': expected a sequence of words": lambda: build_numerator("x y", TWO_WAYS, TREE),
    "words = 'xy'": lambda: word_loop("xy", TWO_WAYS),
    "words = 'yx'": lambda: word_ids("yx", TWO_WAYS),
    r"sentences\[0\] = 'x y'": lambda: estimate_arpa(["x y"], 2),
    "vocabulary = 'xy'": lambda: estimate_arpa([["x"]], 2, vocabulary="xy"),
    "words = 'x': expected a sequence of names": lambda: Lexicon("x", ["X"], [[Pronunciation((1,), 1.0)]]),
    "phones = 'X': expected a sequence of names": lambda: Lexicon(["x"], "X", [[Pronunciation((1,), 1.0)]]),
    "without = 'SPN': expected a list": lambda: TWO_WAYS.with_positions("SPN"),
    "symbols = 'xy'": lambda: grammar_over(word_graph(), "xy", TWO_WAYS.words),
    "names = 'ab': expected a name for each": lambda: TableBatch.pack([compile_table(fsa())] * 2, "ab"),
    "units = 'xy'": lambda: ngram_acceptor(__file__, "xy"),
}


def fsa() -> Fsa:
    return Fsa.from_text("0 1 1 1\n1\n")


def word_graph() -> Transducer:
    return Transducer.from_openfst(word_loop(["x"], TWO_WAYS))


@pytest.mark.parametrize("message", OF_WORDS)
def test_a_string_in_the_place_of_words_or_phones_is_refused_and_not_taken_letter_by_letter(message):
    with pytest.raises(FsachainError, match=message):
        OF_WORDS[message]()


COMMENTED = """;;; # CMUdict  --  Major Version: 0.07
# made by hand
#
yes Y EH S
## NO N OW
no N OW
#a # A
"""


def test_comment_lines_are_no_words_but_words_that_spell_a_mark_are(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, COMMENTED.replace("# A", "# a")))
    assert lexicon.words == ("yes", "no", "#a")
    assert lexicon.phones == ("SIL", "#", "EH", "N", "OW", "S", "Y", "a")
    with_probabilities = "# word, probability, phones\nyes 1.0 Y EH S\n;; 0.5\n"
    assert Lexicon.read(write(tmp_path, with_probabilities), format="lexiconp").words == ("yes",)


def test_a_comment_that_may_have_been_meant_as_a_word_is_named(tmp_path):
    with pytest.warns(UserWarning, match=r"lexicon.txt: read as comments, not as words: line 1, '#NO'$"):
        assert Lexicon.read(write(tmp_path, "#NO N OW\nyes Y EH S\n")).words == ("yes",)


def test_spaces_of_every_kind_part_words_and_phones(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, "yes\u00a0Y\u202fEH\u3000S\n"))
    assert (lexicon.words, lexicon.phones) == (("yes",), ("SIL", "EH", "S", "Y"))


def test_all_repetitions_are_listed_at_once(tmp_path):
    path = write(tmp_path, "no N OW\nyes Y EH S\nno N OW\nyes Y AE\nyes Y EH S\nno N OW\n")
    with pytest.raises(GraphError) as refused:
        Lexicon.read(path)
    told = str(refused.value)
    assert told.startswith("3 repetitions: ") and told.endswith("expected each pronunciation of a word once")
    for line, word, first in ((3, "no", 1), (5, "yes", 2), (6, "no", 1)):
        assert re.search(rf"lexicon.txt:{line}: word '{word}' has .* already on line {first}", told)
    many = "".join(f"w{n} N OW\n" * 2 for n in range(30))
    refuses(
        GraphError, "^30 repetitions: .*'w9'.*; and 20 more; expected", Lexicon.read, write(tmp_path, many)
    )


@pytest.mark.parametrize(
    ("silence", "spoken"), [("sil", "SIL"), ("SIL", "sil"), ("Sil", "sIL"), ("\u00e9", "\u00c9")]
)
def test_a_silence_in_another_case_than_the_phones_is_refused(silence, spoken, tmp_path):
    path = write(tmp_path, f"<sil> {spoken}\nno N OW\n")
    message = (
        rf"silence = '{silence}' is not among the phones, which have '{spoken}'; expected silence='{spoken}' "
    )
    refuses(GraphError, rf"lexicon.txt: {message}", Lexicon.read, path, silence=silence)
    entries = [("<sil>", 1.0, [spoken]), ("no", 1.0, ["N", "OW"])]
    refuses(GraphError, f"^{message}", Lexicon.from_entries, entries, silence=silence)
    known = f"silence = '{silence}' is not a phone .*; it has '{spoken}': expected silence='{spoken}'"
    refuses(GraphError, known, Lexicon.read, path, silence=silence, phones=[spoken, "N", "OW"])
    assert Lexicon.read(path, silence=spoken).phones[0] == spoken


def test_a_pronunciation_needs_phones_and_a_probability():
    for pronunciation in (Pronunciation((), 1.0), Pronunciation((2,), 1.0), Pronunciation((1,), 0.0)):
        refuses(GraphError, "word 'a'", Lexicon, ("a",), ("A",), ((pronunciation,),), silence=None)
    ways = ((Pronunciation((1,), 1.0),), ())
    refuses(GraphError, "word 'b' has no pronunciation", Lexicon, ("a", "b"), ("A",), ways, silence=None)


# Entries in any order, and saved.


NAMES = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "S", "P"], exclude_characters=".#"),
    min_size=1,
    max_size=3,
)
PROBS = st.one_of(st.just(1.0), st.floats(0.0, 1.0, exclude_min=True))
ENTRIES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ç", "😀"]), PROBS, st.lists(NAMES, min_size=1, max_size=5)),
    min_size=1,
    max_size=12,
    unique_by=lambda entry: (entry[0], tuple(entry[2])),
)


def ways_of(lexicon):
    return {
        word: [([lexicon.phones[phone - 1] for phone in phones], prob) for phones, prob in ways]
        for word, ways in zip(lexicon.words, lexicon.pronunciations, strict=True)
    }


@settings(deadline=None)
@given(ENTRIES)
def test_entries_in_any_order_are_grouped_by_word(tmp_path_factory, entries):
    lexicon = Lexicon.from_entries(entries)
    spoken = {name for _, _, names in entries for name in names}
    assert list(lexicon.phones) == ["SIL", *sorted(spoken - {"SIL"})]
    expected = {}
    for word, prob, names in entries:
        expected.setdefault(word, []).append((names, prob))
    assert ways_of(lexicon) == expected and list(lexicon.words) == list(expected)
    path = tmp_path_factory.getbasetemp() / "entries"
    path.write_text("".join(f"{word} {prob!r} {' '.join(names)}\n" for word, prob, names in entries))
    lexicon.save(path.with_suffix(".json"))
    as_tuples = Lexicon(tuple(lexicon.words), tuple(lexicon.phones), tuple(lexicon.pronunciations))
    for same in (
        Lexicon.read(path, format="lexiconp"),
        Lexicon.load(path.with_suffix(".json")),
        pickle.loads(pickle.dumps(lexicon)),
        as_tuples,
    ):
        assert (same.words, same.phones) == (lexicon.words, lexicon.phones)
        assert same.pronunciations == lexicon.pronunciations == tuple(lexicon.pronunciations)
        assert [same.pronunciations[n] for n in range(len(same.words))] == list(lexicon.pronunciations)


SAVED = """{"format": "fsachain-lexicon-2", "silence": null, "silence_prob": 0.5, "oov": null, "phones": 2, \
"pronunciations": 3}
"A"
"B"
["yes", 1.0, [1, 2]]
["no", 1.0, [2]]
["yes", 0.25, [1]]
"""


def test_the_saved_form_may_be_written_by_others(tmp_path):
    path = tmp_path / "lexicon.json"
    path.write_text(SAVED)
    assert ways_of(Lexicon.load(path)) == {
        "yes": [(["A", "B"], 1.0), (["A"], 0.25)],
        "no": [(["B"], 1.0)],
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lexicon-2", "lexicon-1", "not a lexicon of format .*make the folder anew"),
        ('"phones": 2', '"phones": 99999999999999999999', "not a lexicon"),
        ('["yes", 0.25, [1]]\n', "", "2 phones and 2 pronunciations; expected 2 and 3"),
        ('"B"\n', '"A"\n', "2 phones, 1 of them distinct"),
        ("[2]", "[3]", r"json:5: word 'no' has phone ids \[3\]: expected some in \[1, 2\]"),
        ("[2]", "[1.5]", "json:5: not a word, its probability and its phone ids"),
        ('"no", 1.0', '"\\ud800", 1.0', "json:5: not a word, its probability and its phone ids"),
        ('"no", 1.0', '"no", NaN', "json:5: word 'no' has a pronunciation of probability nan"),
        ('["no", 1.0, [2]]', "[[", "json:5: no JSON"),
        ('["no", 1.0, [2]]', "[" + "[]," * 90_000 + "1]", "json:5: a line of more than"),
        ('"oov": null', '"oov": "what"', "lexicon.json: oov = 'what' is not a word"),
    ],
)
def test_a_saved_lexicon_is_refused_by_line(tmp_path, old, new, message):
    path = tmp_path / "lexicon.json"
    path.write_text(SAVED.replace(old, new))
    refuses(GraphError, message, Lexicon.load, path)


# Marks around words: punctuation and symbols of all scripts, and what is not seen.


HINDI, HEBREW = "\u0939\u0948", "\u05e9\u05dc\u05d5\u05dd"
MARKED = [
    (f"{HINDI}\u0964", HINDI),  # danda
    (f"{HINDI}\u0965", HINDI),
    ("\u00bfyes?", "yes"),
    ("\u201cyes\u201d\u2026", "yes"),
    ("$yes%", "yes"),
    ("\u3010yes\u3002\u3011", "yes"),
    ("yes\u060c", "yes"),
    (f"\u200f{HEBREW}\u200f", HEBREW),
    ("y\u00ade\u200bs", "yes"),
    ("\u2764\ufe0fyes", "yes"),
    ("yes\u1362", "yes"),
]


@pytest.mark.parametrize("written, word", MARKED)
def test_marks_of_any_script_around_a_word_are_taken_off_after_it_was_looked_up_as_written(written, word):
    lexicon = Lexicon.characters([f"{word} no"])
    assert lexicon.known_form(written) == word
    assert lexicon.word_id(written) == lexicon.word_id(word)
    assert lexicon.without_marks([written, "no", "\u0964"]) == [word, "no"]
    assert transcript_tokens(f"{written} \u0964 No", lexicon) == [(written, word, 0), ("No", "no", 2)]
    assert transcript_tokens(written) == [(written, word, 0)]
    with_marks = Lexicon.from_entries([(word, 1.0, ["a"]), (written, 1.0, ["b"])])
    assert with_marks.known_form(written) == written and with_marks.without_marks([written]) == [written]


def test_noises_and_words_that_were_broken_off_are_not_taken_for_words():
    lexicon = Lexicon.characters(["noise wan unk yes"], oov="unk")
    noted = ["[noise]", "<noise>", "{noise}", "wan-", "-wan"]
    assert lexicon.without_marks(["(yes)", *noted]) == ["yes", *noted]
    assert {lexicon.word_id(word) for word in noted} == {lexicon.word_id("unk")}
    assert lexicon.word_id("(yes)") == lexicon.word_id("yes")


def test_marks_are_no_phones_of_a_lexicon_of_characters():
    lexicon = Lexicon.characters([*(written for written, _ in MARKED), "\u0964 --", "don't"])
    assert set(lexicon.words) == {HINDI, HEBREW, "yes", "don't"}
    assert set(lexicon.phones) == {"SIL", *HINDI, *HEBREW, *"yesdont'"}
    assert lexicon.letters == {"'"}


def test_a_mark_that_is_a_letter_of_the_lexicon_stays():
    entries = [("'okina", 1.0, ["a"]), ("okina", 1.0, ["b"]), ("Mr.", 1.0, ["m"])]
    lexicon = Lexicon.from_entries(entries)
    for written, word in (("\u00ab'okina\u00bb", "'okina"), ("(okina)", "okina"), ("(Mr.),", "Mr.")):
        assert lexicon.known_form(written) == word
    letters = Lexicon.characters(["d'or l'or d'o"])
    assert letters.letters == {"'"}
    assert bare("\u00ab'or!\u00bb", letters.letters) == "'or"
    assert bare("-" * 1000 + "or" + "-" * 1000) == "or" and letters.known_form("?" * 99 + "d'or" + "!" * 99)


def test_what_the_lexicon_lacks_as_a_whole_is_parted_at_dashes_slashes_and_full_stops():
    lexicon = Lexicon.from_entries([(word, 1.0, ["a"]) for word in ("well", "known", "e-mail", "and", "or")])
    text = f"Well-known, e-mail and/or {HINDI}\u0964or don't 3.14 - x--y- U.S."
    assert [(one.written, one.word) for one in transcript_tokens(text, lexicon)] == [
        ("Well-", "well"), ("known,", "known"), ("e-mail", "e-mail"), ("and/", "and"), ("or", "or"),
        (f"{HINDI}\u0964", HINDI), ("or", "or"), ("don't", "don't"), ("3.14", "3.14"), ("x--", "x"), ("y-", "y"),
        ("U.S.", "u.s"),
    ]  # fmt: skip
    assert [one.place for one in transcript_tokens("a-b - c", lexicon)] == [0, 0, 2]


@given(st.text(max_size=12))
def test_a_bare_word_has_no_mark_at_its_ends_and_loses_nothing_else(written):
    word = bare(written)
    assert word in visible(written) and bare(word) == word
    assert not word or not (is_mark(word[0]) or is_mark(word[-1]))
    kept = [one for one in written if not is_mark(one) and not is_invisible(one)]
    assert [one for one in word if not is_mark(one)] == kept
