"""Lexicons are read as Kaldi writes them; what is wrong in one is named by file and line."""

from collections import Counter

import pytest
import tolerances

from fsachain.errors import GraphError
from fsachain.graph.lexicon import Lexicon, Pronunciation, lm_phones

TEXT = "!SIL SIL\nno N OW\nno N AH\ntea T IY\n"
TEXT_P = "!SIL 1.0 SIL\nno 1 N OW\nno 0.5 N AH\ntea 1.0 T IY\n"


def write(tmp_path, text, name="lexicon.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def spelled(lexicon, word):
    return [[lexicon.phones[p - 1] for p in pron.phones] for pron in lexicon.pronunciations_of(word)]


def test_words_keep_the_order_of_the_file_and_phones_follow_silence_by_name(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, TEXT))
    assert lexicon.words == ("!SIL", "no", "tea")
    assert lexicon.phones == ("SIL", "AH", "IY", "N", "OW", "T")
    assert lexicon.word_id("tea") == 3
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
    with pytest.raises(GraphError, match=r"utterance 'u7': word 'coffee'"):
        Lexicon.read(path).word_id("coffee", name="u7")
    mapped = Lexicon.read(path, oov="tea")
    assert mapped.word_id("coffee") == mapped.word_id("tea")
    assert mapped.pronunciations_of("coffee") == mapped.pronunciations_of("tea")


def test_positions_mark_begin_inside_end_and_alone(tmp_path):
    lexicon = Lexicon.read(write(tmp_path, "a A\nat A T\ncat K A T\ncats K A T S\n")).with_positions()
    assert spelled(lexicon, "a") == [["A_S"]]
    assert spelled(lexicon, "at") == [["A_B", "T_E"]]
    assert spelled(lexicon, "cats") == [["K_B", "A_I", "T_I", "S_E"]]
    assert lexicon.phones[:5] == ("SIL", "A_B", "A_I", "A_E", "A_S")


@pytest.mark.parametrize(
    ("text", "name", "options", "message"),
    [
        ("no N OW\ntea\n", "lexicon.txt", {}, r"lexicon.txt:2: word 'tea' has no phones"),
        ("no N OW\nno N OW\n", "lexicon.txt", {}, r"lexicon.txt:2: .*already on line 1"),
        ("no 1.5 N OW\n", "lexiconp.txt", {}, r"lexiconp.txt:1: .*'1.5'.*\(0, 1\]"),
        ("no 0.5 N OW\n", "lexicon.txt", {}, "with probabilities is called lexiconp.txt"),
        ("\n\n", "lexicon.txt", {}, "no entries"),
        ("no N OW\n", "lexicon.txt", {"phones": ["SIL", "N"]}, "phone 'OW'"),
        ("no N OW\n", "lexicon.txt", {"phones": ["N", "OW"]}, "silence = 'SIL'"),
        ("no N OW\n", "lexicon.txt", {"oov": "<unk>"}, "oov = '<unk>'"),
    ],
)
def test_names_file_line_and_fault(tmp_path, text, name, options, message):
    with pytest.raises(GraphError, match=message):
        Lexicon.read(write(tmp_path, text, name), **options)


def make_lexicon(silence="SIL"):
    entries = [("x", 1.0, ["X"]), ("y", 0.75, ["Y"]), ("y", 0.25, ["Z"])]
    return Lexicon.from_entries(entries, silence=silence)


def test_lm_phones_draw_silences_and_pronunciations_with_their_probabilities():
    lexicon = make_lexicon()
    silence, y, z = (lexicon.phone_id(name) for name in ("SIL", "Y", "Z"))
    sequences = lm_phones(["x y"] * 4000, lexicon, edge_silence=0.8, between_silence=0.2, seed=3)
    count = Counter()
    for phones in sequences:
        count["start"] += phones[0] == silence
        count["end"] += phones[-1] == silence
        x = phones.index(lexicon.phone_id("X"))
        count["between"] += phones[x + 1] == silence
        count["y"] += y in phones
        count["z"] += z in phones
    for name, prob in (("start", 0.8), ("end", 0.8), ("between", 0.2), ("y", 0.75), ("z", 0.25)):
        assert abs(count[name] / 4000 - prob) < tolerances.DRAWN_SHARE, name


def test_lm_phones_are_reproducible_and_change_with_the_seed():
    lexicon = make_lexicon()
    text = ["x y x y", ["y", "y"]] * 20
    assert lm_phones(text, lexicon, seed=1) == lm_phones(text, lexicon, seed=1)
    assert lm_phones(text, lexicon, seed=1) != lm_phones(text, lexicon, seed=2)


def test_lm_phones_refuse_by_name():
    with pytest.raises(GraphError, match=r"edge_silence = 1\.5"):
        lm_phones(["x"], make_lexicon(), edge_silence=1.5)
    with pytest.raises(GraphError, match=r"text\[1\].*'w'"):
        lm_phones(["x", "w"], make_lexicon())


def test_a_pronunciation_needs_phones_and_a_probability():
    for pronunciation in (Pronunciation((), 1.0), Pronunciation((2,), 1.0), Pronunciation((1,), 0.0)):
        with pytest.raises(GraphError, match="word 'a'"):
            Lexicon(("a",), ("A",), ((pronunciation,),), silence=None)
