"""Word grammars are probability distributions, survive the ARPA format, and name what they refuse."""

import math
import sys
from collections import Counter

import pytest
import tolerances
from graph_paths import grammar_cost
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fsachain.errors import ConfigError, GraphError
from fsachain.graph.grammar import FALLBACK_DISCOUNTS, discounts, estimate_arpa, grammar_from_arpa, word_loop
from fsachain.graph.lexicon import Lexicon

LEXICON = Lexicon.from_entries([(word, 1.0, ["P"]) for word in ("a", "b", "c", "d")])
SENTENCES = st.lists(st.lists(st.sampled_from("abc"), max_size=6), min_size=1, max_size=8)


def parse_arpa(text):
    """Natural log of probability and back-off weight of every n-gram; checks the header's counts."""
    ngrams, header, sizes = {}, {}, Counter()
    for line in text.splitlines():
        fields = line.split("\t")
        if line.startswith("ngram "):
            length, count = line.removeprefix("ngram ").split("=")
            header[int(length)] = int(count)
        elif len(fields) > 1:
            words = tuple(fields[1].split())
            sizes[len(words)] += 1
            backoff = float(fields[2]) if len(fields) > 2 else 0.0
            ngrams[words] = (float(fields[0]) * math.log(10), backoff * math.log(10))
    assert header == sizes
    return ngrams


def log_prob(ngrams, history, word):
    """log P(word | history) by the rules of the format."""
    if (*history, word) in ngrams or not history:
        return ngrams[(*history, word)][0]
    return ngrams.get(history, (0.0, 0.0))[1] + log_prob(ngrams, history[1:], word)


def sentence_log_prob(ngrams, sentence, order):
    history, total = ("<s>",)[: order - 1], 0.0
    for word in (*sentence, "</s>"):
        total += log_prob(ngrams, history, word)
        history = (*history, word)[max(0, len(history) + 2 - order) :] if order > 1 else ()
    return total


@given(SENTENCES, st.integers(1, 4))
def test_probabilities_sum_to_one_after_every_history(sentences, order):
    ngrams = parse_arpa(estimate_arpa(sentences, order, vocabulary=["a", "d"]))
    words = [ngram[0] for ngram in ngrams if len(ngram) == 1 and ngram != ("<s>",)]
    assert {"a", "d", "</s>"} <= set(words)
    histories = {ngram for ngram in ngrams if len(ngram) < order and ngram[-1] != "</s>"}
    for history in {(), *histories}:
        total = math.fsum(math.exp(log_prob(ngrams, history, word)) for word in words)
        assert total == pytest.approx(1.0, abs=tolerances.ARPA_PROBABILITY)


def test_kneser_ney_by_hand():
    """Sentences `a b` and `a`, with the fallback discounts .5 for one, 1 for two.

    Unigrams count the words before them: a 1 (start), b 1 (a), end 2 (a and b); (.5 + .5 + 1) / 4 is set aside. Of it c,
    which is not in the text, gets 1 / 4, the most for one of four words, and a, b and the end a third of the rest each.
    """
    ngrams = parse_arpa(estimate_arpa([["a", "b"], ["a"]], order=2, vocabulary=["a", "b", "c"]))
    want = {("a",): 0.125 + 1 / 12, ("b",): 0.125 + 1 / 12, ("c",): 0.25, ("</s>",): 0.25 + 1 / 12}
    want |= {("<s>", "a"): 1 / 2 + 0.5 * want["a",], ("a", "b"): 0.5 / 2 + 0.5 * want["b",]}
    for ngram, prob in want.items():
        assert math.exp(ngrams[ngram][0]) == pytest.approx(prob, abs=tolerances.ARPA_PROBABILITY)
    assert math.exp(ngrams[("a",)][1]) == pytest.approx(0.5, abs=tolerances.ARPA_PROBABILITY)


def test_words_that_the_text_lacks_share_what_it_sets_aside_for_new_ones():
    """Twelve of them, .5 set aside: each has .5 / 12, and counted words have their discounted counts alone."""
    new = [f"new{number}" for number in range(12)]
    ngrams = parse_arpa(estimate_arpa([["a", "b"], ["a"]], order=2, vocabulary=new))
    want = dict.fromkeys(((word,) for word in new), 0.5 / 12) | {("a",): 0.125, ("</s>",): 0.25}
    for ngram, prob in want.items():
        assert math.exp(ngrams[ngram][0]) == pytest.approx(prob, abs=tolerances.ARPA_PROBABILITY)


def test_discounts_by_hand():
    """Y = 8 / 16; D(1) = 1 - 2 Y 4/8, D(2) = 2 - 3 Y 2/4, D(3) = 3 - 4 Y 1/2."""
    assert discounts({1: 8, 2: 4, 3: 2, 4: 1}) == pytest.approx(
        (0.0, 0.5, 1.25, 2.0), abs=tolerances.ENUMERATION
    )


@pytest.mark.parametrize("counts", [{}, {1: 5}, {1: 100, 2: 1, 3: 90, 4: 1}, {2: 3, 3: 1, 4: 2}])
def test_discounts_that_the_counts_do_not_support_fall_back(counts):
    assert discounts(counts) == FALLBACK_DISCOUNTS


def test_perplexity_of_unseen_prompts_falls_with_the_order(shared):
    """Recorded prompts, 422 sentences to train on: 120, 53, 45 on the development set."""
    corpus = shared / "data/prompts_en"
    words = Lexicon.read(corpus / "lang/lexicon.txt").words
    train, dev = (
        [line.split()[1:] for line in (corpus / part / "text").read_text().splitlines()]
        for part in ("train", "dev")
    )
    found = []
    for order in (1, 2, 3):
        ngrams = parse_arpa(estimate_arpa(train, order, vocabulary=words))
        total = sum(sentence_log_prob(ngrams, sentence, order) for sentence in dev)
        found.append(math.exp(-total / sum(len(sentence) + 1 for sentence in dev)))
    assert found[0] > 100 > 60 > found[1] > 50 > found[2]


def read_back(folder, text, lexicon=LEXICON):
    (folder / "lm.arpa").write_text(text)
    return grammar_from_arpa(folder / "lm.arpa", lexicon)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_grammar_gives_each_sentence_the_probability_of_the_arpa_file(order, tmp_path):
    """For seen and unseen sentences; the cheapest path takes an explicit n-gram where there is one."""
    sentences = [["a", "b", "a"], ["b", "c"], ["a", "b", "c"], []]
    text = estimate_arpa(sentences, order, vocabulary=LEXICON.words)
    grammar, ngrams = read_back(tmp_path, text), parse_arpa(text)
    for sentence in [*sentences, ["d"], ["c", "c", "a"], ["a", "d", "b"]]:
        ids = [LEXICON.word_id(word) for word in sentence]
        want = -sentence_log_prob(ngrams, sentence, order)
        assert grammar_cost(grammar, ids) == pytest.approx(want, abs=tolerances.GRAPH_COST)


def test_ngrams_of_words_without_pronunciation_are_left_out(tmp_path):
    grammar = read_back(tmp_path, estimate_arpa([["a", "zebra"], ["b"]], 2))
    labels = {arc.olabel for state in grammar.states() for arc in grammar.arcs(state)}
    assert labels == {0, LEXICON.word_id("a"), LEXICON.word_id("b")}


NO_ARPA = r"lm\.arpa: not an n-gram in ARPA format"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", NO_ARPA),
        ("garbage\n", NO_ARPA),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1 a\n", NO_ARPA),
        ("\\data\\\nngram 1=x\n", NO_ARPA),
        (estimate_arpa([["x", "y"]], 2), "none of its words is among the 4 words"),
    ],
)
def test_what_is_no_grammar_is_an_error_and_not_the_end_of_the_process(text, message, tmp_path):
    refuses(GraphError, message, read_back, tmp_path, text)


@pytest.mark.parametrize("log_prob", ["0.3", "2", "inf", "nan", "-nan", "1e-9", "x"])
def test_a_log_probability_above_0_is_refused_by_its_line(log_prob, tmp_path):
    lines = estimate_arpa([["a", "b"], ["b"]], 2, vocabulary=LEXICON.words).splitlines()
    number = lines.index("\\2-grams:") + 1
    fields = lines[number].split("\t")
    for value, message in (
        (log_prob, rf"lm\.arpa:{number + 1}: '{log_prob}' in the place of a log-prob"),
        ("0", None),
    ):
        lines[number] = "\t".join([value, *fields[1:]])
        if message is None:
            read_back(tmp_path, "\n".join(lines))
        else:
            refuses(GraphError, message, read_back, tmp_path, "\n".join(lines))


def test_files_and_lexicons_that_make_no_grammar_are_refused_by_name(tmp_path):
    refuses(GraphError, r"absent\.arpa: no such file", grammar_from_arpa, tmp_path / "absent.arpa", LEXICON)
    lexicon = Lexicon.from_entries([("a", 1.0, ["P"]), ("<s>", 1.0, ["P"])])
    refuses(GraphError, "'<s>' among the words", read_back, tmp_path, estimate_arpa([["a"]], 2), lexicon)
    refuses(GraphError, "words is empty", word_loop, [], LEXICON)
    refuses(GraphError, "word 'zebra'", word_loop, ["a", "zebra"], LEXICON)
    refuses(ConfigError, "order = 0", estimate_arpa, [["a"]], 0)


def test_kaldilm_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kaldilm", None)
    refuses(ImportError, r"fsachain\[recipes\]", grammar_from_arpa, "lm.arpa", LEXICON)


@pytest.mark.parametrize(
    ("sentences", "vocabulary", "message"),
    [
        ([], ["a"], "sentences is empty"),
        (["a b"], [], r"sentences\[0\] = 'a b': expected a sequence of words"),
        ([["a"], ["b c"]], [], r"sentences\[1\] has the word 'b c'"),
        ([["<s>"]], [], r"sentences\[0\] has the word '<s>'"),
        ([["a"]], ["b", ""], "vocabulary has the word ''"),
        ([["a"]], "abc", "vocabulary = 'abc'"),
        ([[3]], [], r"sentences\[0\] has the word 3"),
    ],
)
def test_bad_text_is_refused_by_sentence_and_word(sentences, vocabulary, message):
    refuses(GraphError, message, estimate_arpa, sentences, 2, vocabulary=vocabulary)


def test_a_word_loop_accepts_every_sequence_at_the_same_cost_per_word():
    grammar = word_loop(["b", "d"], LEXICON)
    b, d = LEXICON.word_id("b"), LEXICON.word_id("d")
    for sentence in ([], [b], [d, b, d, d]):
        want = (len(sentence) + 1) * math.log(3)
        assert grammar_cost(grammar, sentence) == pytest.approx(want, abs=tolerances.GRAPH_COST)
    assert grammar_cost(grammar, [LEXICON.word_id("a")]) == math.inf
