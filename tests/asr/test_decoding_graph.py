"""The decoding graph accepts the grammar's sentences alone, at costs that add up, and decodes to words."""

import itertools
import math

import kaldi_bytes as kb
import numpy as np
import pytest
import pywrapfst
import tolerances
from context_trees import full_tree
from graph_paths import linear, sample_paths, scores_along
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fsachain.asr.decode.decoder import Decoder
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.model import pdf_graph, read_context_tree, read_transition_model
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.graph.context import ContextTree
from fsachain.graph.decoding import build_decoding_graph
from fsachain.graph.grammar import estimate_arpa, grammar_from_arpa, word_loop
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology
from fsachain.openfst import Transducer, grammar_over, read_fst, read_symbols
from fsachain.stream import Cursor

# Homophones (two, too), a word that begins another (to, tot), two pronunciations (a), one word twice as long.
ENTRIES = [
    ("two", 1.0, ["T", "U"]),
    ("too", 1.0, ["T", "U"]),
    ("to", 0.5, ["T", "O"]),
    ("tot", 1.0, ["T", "O", "T"]),
    ("a", 1.0, ["A"]),
    ("a", 0.25, ["E"]),
    ("outta", 1.0, ["O", "U", "T", "A"]),
]
LEXICON = Lexicon.from_entries(ENTRIES, silence_prob=0.3)
NO_SILENCE = Lexicon.from_entries(ENTRIES, silence=None)
LOG_HALF = math.log(0.5)


def monophone(lexicon):
    return ContextTree.monophone(lexicon.phones, Topology.chain())


def biphone(lexicon):
    return ContextTree.biphone(lexicon.phones, Topology.chain())


def bigram():
    """Start: two .5, a .5; two: too .25, end .75; a: back-off .1, end .9; else: to .5, tot .5, end 1."""
    ids = {word: LEXICON.word_id(word) for word in LEXICON.words}
    arcs = [
        (0, 1, ids["two"], 0.5), (0, 2, ids["a"], 0.5), (1, 3, ids["too"], 0.25), (2, 3, 0, 0.1),
        (3, 3, ids["to"], 0.5), (3, 3, ids["tot"], 0.5),
    ]  # fmt: skip
    return grammar_of(arcs, [0.0, 0.75, 0.9, 1.0])


def grammar_of(arcs, finals):
    """arcs: (src, dst, word id, probability); finals: probabilities."""
    rows = [(src, dst, label, label, math.log(prob)) for src, dst, label, prob in arcs]
    with np.errstate(divide="ignore"):
        return Transducer.of_arcs(rows, np.log(finals)).to_openfst()


def pdf_sequence(tree, phones, frames):
    """Pdfs of a phone sequence (names) in which phone i lasts frames[i] frames."""
    ids = [tree.phones.index(phone) + 1 for phone in phones]
    pdfs = []
    for left, phone, length in zip([0, *ids], ids, frames, strict=False):
        pdfs += [tree.pdf(phone, 0, left)] + [tree.pdf(phone, 1, left)] * (length - 1)
    return pdfs


def over_pdfs(graph, pdfs):
    """The part of `graph` that spends exactly these pdfs."""
    return pywrapfst.compose(linear([pdf + 1 for pdf in pdfs]), graph)


def outputs(graph, pdfs):
    """{words: cost of the cheapest path} over all paths of `graph` that spend exactly these pdfs."""
    found = over_pdfs(graph, pdfs)
    if found.start() < 0:
        return {}
    best = pywrapfst.determinize(found.project("output").rmepsilon())
    return dict(paths(best, best.start(), (), 0.0))


def paths(fst, state, words, cost):
    final = float(fst.final(state))
    if final < math.inf:
        yield tuple(LEXICON.words[word - 1] for word in words), cost + final
    for arc in fst.arcs(state):
        yield from paths(fst, arc.nextstate, (*words, arc.olabel), cost + float(arc.weight))


def test_lm_weight_and_penalty_touch_only_what_they_should():
    tree = monophone(LEXICON)
    graph = build_decoding_graph(LEXICON, tree, bigram(), lm_weight=2.5, word_insertion_penalty=-1.25)
    found = outputs(graph, pdf_sequence(tree, ["E", "T", "O"], [1, 1, 1]))
    grammar = 2.5 * math.log(0.5 * 0.1 * 0.5)
    lexicon = math.log(0.25 * 0.5) + 3 * math.log(0.7)
    want = -(grammar + lexicon + 3 * LOG_HALF) - 2 * 1.25
    assert found == {("a", "to"): pytest.approx(want, abs=tolerances.GRAPH_COST)}


def test_an_lm_weight_of_zero_leaves_the_language_as_it_is():
    tree = monophone(LEXICON)
    graph = build_decoding_graph(LEXICON, tree, bigram(), lm_weight=0.0)
    assert list(outputs(graph, pdf_sequence(tree, ["T", "U", "T", "U"], [1] * 4))) == [("two", "too")]
    assert outputs(graph, pdf_sequence(tree, ["T", "O"], [1, 1])) == {}


@pytest.mark.parametrize("lexicon", [LEXICON, NO_SILENCE], ids=["silence", "no silence"])
@pytest.mark.parametrize("make_tree", [monophone, biphone])
@given(
    sentence=st.lists(st.sampled_from(LEXICON.words), max_size=4),
    silences=st.lists(st.booleans(), min_size=5, max_size=5),
    data=st.data(),
)
def test_every_spelling_of_a_sentence_is_accepted_at_its_cost(lexicon, make_tree, sentence, silences, data):
    """Any words, pronunciations, silences and durations: the sentence is there, at the cost by hand."""
    tree = make_tree(lexicon)
    graph = build_decoding_graph(lexicon, tree, word_loop(LEXICON.words, lexicon), lm_weight=0.7)
    silences = [lexicon.silence is not None and place for place in silences[: len(sentence) + 1]]
    cost = 0.7 * (len(sentence) + 1) * math.log(len(LEXICON.words) + 1)
    phones = []
    for word, silence in itertools.zip_longest([None, *sentence], silences):
        if word is not None:
            spelling = data.draw(st.sampled_from(lexicon.pronunciations_of(word)))
            phones += [lexicon.phones[phone - 1] for phone in spelling.phones]
            cost -= math.log(spelling.prob)
        phones += ["SIL"] if silence else []
        if lexicon.silence is not None:
            cost -= math.log(0.3 if silence else 0.7)
    frames = data.draw(st.lists(st.integers(1, 3), min_size=len(phones), max_size=len(phones)))
    found = outputs(graph, pdf_sequence(tree, phones, frames))
    # Another word sequence may spell the same phones; this one does so in one way alone.
    want = cost - sum(frames) * LOG_HALF
    assert found[tuple(sentence)] == pytest.approx(want, abs=tolerances.GRAPH_COST)


def test_no_two_paths_spell_the_same_words_the_same_way():
    """The paths over one pdf sequence of an unambiguous sentence: exactly one, epsilons included."""
    tree = monophone(LEXICON)
    graph = build_decoding_graph(LEXICON, tree, bigram())
    pdfs = pdf_sequence(tree, ["A", "SIL", "T", "O", "T", "SIL"], [1, 2, 1, 1, 1, 2])
    found = over_pdfs(graph, pdfs)
    assert len(list(paths(found, found.start(), (), 0.0))) == 1


@pytest.mark.parametrize("make_tree", [monophone, biphone])
def test_synthetic_scores_that_spell_words_are_decoded_to_these_words(make_tree):
    """Scores of +4 on the right pdfs, and noise of standard deviation 1 on all; `to` has probability 0.5."""
    tree = make_tree(LEXICON)
    decoder = Decoder(build_decoding_graph(LEXICON, tree, bigram()), LEXICON.words)
    rng = np.random.default_rng(3)
    by_hand = {
        ("two", "too", "to"): ("SIL T U T U SIL T O SIL", 0.5 * 0.25 * 0.5, 0.3**3 * 0.7),
        ("a", "tot", "to"): ("A T O T T O", 0.5 * 0.1 * 0.5 * 0.5, 0.7**4),
    }
    for words, (phones, grammar_prob, silence_prob) in by_hand.items():
        phones = phones.split()
        pdfs = pdf_sequence(tree, phones, rng.integers(2, 5, size=len(phones)).tolist())
        scores = rng.standard_normal((len(pdfs), tree.num_pdfs)).astype(np.float32)
        scores[np.arange(len(pdfs)), pdfs] += 4
        found = decoder.decode(scores)
        graph_log_prob = math.log(grammar_prob * silence_prob * 0.5) + len(pdfs) * LOG_HALF
        acoustic_log_prob = scores[np.arange(len(pdfs)), pdfs].sum()
        assert (found.words, found.complete) == (words, True)
        assert found.graph_log_prob == pytest.approx(graph_log_prob, abs=tolerances.GRAPH_COST)
        assert found.acoustic_log_prob == pytest.approx(acoustic_log_prob, abs=tolerances.GRAPH_COST)


def test_a_vocabulary_of_600_words_with_a_trigram_makes_ten_arcs_for_each_of_the_grammar(shared, tmp_path):
    """It is rebuilt for every point of an LM-weight scan: 0.15 s of processor time. Measured 44,100 arcs."""
    corpus = shared / "data/prompts_en"
    lexicon = Lexicon.read(corpus / "lang/lexicon.txt")
    sentences = [line.split()[1:] for line in (corpus / "train/text").read_text().splitlines()]
    (tmp_path / "lm.arpa").write_text(estimate_arpa(sentences, 3, vocabulary=lexicon.words))
    grammar = grammar_from_arpa(tmp_path / "lm.arpa", lexicon)
    tree = biphone(lexicon)
    graph = build_decoding_graph(lexicon, tree, grammar, lm_weight=0.8)
    num_arcs = sum(graph.num_arcs(state) for state in graph.states())
    assert num_arcs <= 10 * sum(grammar.num_arcs(state) for state in grammar.states())
    labels = {arc.olabel for state in graph.states() for arc in graph.arcs(state)}
    assert labels - {0} == set(range(1, len(lexicon.words) + 1))


def test_arcs_are_sorted_by_input_label_and_no_state_is_a_dead_end():
    graph = build_decoding_graph(LEXICON, biphone(LEXICON), bigram())
    for state in graph.states():
        labels = [arc.ilabel for arc in graph.arcs(state)]
        assert labels == sorted(labels)
    assert graph.copy().connect().num_states() == graph.num_states()


def test_what_cannot_be_built_is_refused_by_name():
    tree, other, grammar = monophone(LEXICON), monophone(NO_SILENCE), bigram()
    unknown, endless = grammar_of([(0, 1, 7, 1.0)], [1.0, 1.0]), grammar_of([(0, 1, 1, 1.0)], [0.0, 0.0])
    for error, message, *graphs, options in (
        (GraphError, r"grammar: arc 0 \(state 0 -> 1\) has label 7; expected .* 1 to 6", tree, unknown, {}),
        (GraphError, "no word sequence is accepted", tree, endless, {}),
        (GraphError, "phone 1 is 'SIL' in the lexicon, 'A' in the tree", other, grammar, {}),
        (ConfigError, "lm_weight = -1", tree, grammar, {"lm_weight": -1}),
        (ConfigError, "word_insertion_penalty = nan", tree, grammar, {"word_insertion_penalty": math.nan}),
    ):
        refuses(error, message, build_decoding_graph, LEXICON, *graphs, **options)


# Our models decode with Kaldi's graphs, and Kaldi's grammars with our lexicon.


CASES = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm6_biphone_tied"]


def heard(decoder, words, lexicon, tree, count, seed):
    """What is decoded along random paths of the numerator of these words."""
    numerator = build_numerator(words, lexicon, tree)
    for path in sample_paths(numerator.fsa, count, seed=seed):
        yield decoder.decode(scores_along(numerator.fsa.pdf[path], tree.num_pdfs, -30.0))


@pytest.mark.parametrize("case", CASES)
def test_kaldis_graph_over_pdfs_spells_the_words_of_our_numerator(shared, case):
    """compile-train-graphs' HCLG of each transcript, searched with frames that our own numerator accepts."""
    folder = shared / "golden/kaldi/lm" / case
    lexicon = Lexicon.read(folder / "lexiconp.txt", phones=folder / "phones.txt")
    tree = read_context_tree(folder / "tree", folder / "0.trans_mdl", lexicon.phones)
    model, words = read_transition_model(folder / "0.trans_mdl"), read_symbols(folder / "words.txt")
    graphs = dict(read_table(folder / "graphs.ark", read_fst))
    for line in (folder / "test_text.txt").read_text().splitlines():
        name, *said = line.split()
        if name not in graphs:
            continue
        decoder = Decoder(pdf_graph(graphs[name], model).to_openfst(), words)
        for found in heard(decoder, said, lexicon, tree, 5, seed=3):
            assert found.complete and list(found.words) == said
            assert found.acoustic_log_prob == 0.0  # the very frames that we accept


def test_a_graph_of_another_model_is_refused(shared):
    folder = shared / "golden/kaldi/lm"
    (_, graph), *_ = read_table(folder / "lm2_tri_mono/graphs.ark", read_fst)
    model = read_transition_model(folder / "lm8_onesent/0.trans_mdl")
    told = r"arc \d+ has input label \d+; .*lm8_onesent/0.trans_mdl has the transition ids"
    refuses(DataError, told, pdf_graph, graph, model)


def test_a_kaldi_grammar_decodes_with_our_lexicon():
    """G.fst counts words by words.txt, where order differs and #0 stands on back-off arcs."""
    lexicon = Lexicon.from_entries([("yes", 1.0, ["Y", "S"]), ("no", 1.0, ["N", "O"])])
    symbols = ("no", "yes", "#0", "<s>", "</s>")
    no, yes, back_off = 1, 2, 3
    arcs = [[(yes, yes, 0.1, 1), (back_off, 0, 2.0, 1)], [(no, no, 0.2, 0)]]
    grammar = read_fst(Cursor(kb.const_fst(arcs, [np.inf, 0.5]), "G.fst"))
    ours = grammar_over(grammar, symbols, lexicon.words)
    assert ours.ilabel.tolist() == [lexicon.word_id("yes"), 0, lexicon.word_id("no")]
    tree = full_tree(lexicon.phones, Topology.chain(), 3, 1)
    graph = build_decoding_graph(lexicon, tree, ours.to_openfst())
    decoder = Decoder(graph, lexicon.words)
    for said in (["yes"], ["yes", "no", "yes"]):
        for found in heard(decoder, said, lexicon, tree, 10, seed=1):
            assert list(found.words) == said and found.complete
    absent, short = "the word 'no', which is not among the 1 word", "labels 0 to 3; words.txt has ids 1 to 2"
    refuses(DataError, absent, grammar_over, grammar, symbols, ["yes"])
    refuses(DataError, short, grammar_over, grammar, symbols[:2], lexicon.words)


def test_a_transducer_keeps_its_words_in_a_wide_tree():
    """Words of one phone that follow each other: the word stands before its phone is spent."""
    lexicon = Lexicon.from_entries([("a", 1.0, ["A"]), ("b", 1.0, ["B"])], silence=None)
    tree = full_tree(lexicon.phones, Topology.chain_one_pdf(), 3, 1)
    loop = grammar_of([(0, 0, 1, 0.5), (0, 0, 2, 0.5)], [1.0])
    decoder = Decoder(build_decoding_graph(lexicon, tree, loop), lexicon.words)
    for said in (["a"], ["b", "a"], ["a", "b", "b", "a"]):
        assert all(list(one.words) == said for one in heard(decoder, said, lexicon, tree, 10, seed=2))
