"""Our models decode with Kaldi's graphs, and Kaldi's grammars with our lexicon."""

import kaldi_bytes as kb
import numpy as np
import pytest
from context_trees import full_tree
from graph_paths import sample_paths

from fsachain.decode.decoder import Decoder
from fsachain.errors import DataError
from fsachain.graph.decoding import build_decoding_graph
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.model import pdf_graph, read_context_tree, read_transition_model
from fsachain.kaldi.symbols import grammar_over, read_symbols
from fsachain.openfst import Transducer, read_fst
from fsachain.stream import Cursor

CASES = ["lm1_tiny", "lm2_tri_mono", "lm3_4gram_mono", "lm6_biphone_tied"]


def scores_of(pdfs, num_pdfs):
    scores = np.full((len(pdfs), num_pdfs), -30.0, dtype=np.float32)
    scores[np.arange(len(pdfs)), pdfs] = 0.0
    return scores


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
        numerator = build_numerator(said, lexicon, tree)
        for path in sample_paths(numerator.fsa, 5, seed=3):
            found = decoder.decode(scores_of(numerator.fsa.pdf[path], tree.num_pdfs))
            assert found.complete and list(found.words) == said
            assert found.acoustic_log_prob == 0.0  # the very frames that we accept


def test_a_graph_of_another_model_is_refused(shared):
    folder = shared / "golden/kaldi/lm"
    (_, graph), *_ = read_table(folder / "lm2_tri_mono/graphs.ark", read_fst)
    model = read_transition_model(folder / "lm8_onesent/0.trans_mdl")
    with pytest.raises(
        DataError, match=r"arc \d+ has input label \d+; .*lm8_onesent/0.trans_mdl has the transition ids"
    ):
        pdf_graph(graph, model)


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
        numerator = build_numerator(said, lexicon, tree)
        for path in sample_paths(numerator.fsa, 10, seed=1):
            found = decoder.decode(scores_of(numerator.fsa.pdf[path], tree.num_pdfs))
            assert list(found.words) == said and found.complete
    with pytest.raises(DataError, match="the word 'no', which is not among the 1 words"):
        grammar_over(grammar, symbols, ["yes"])
    with pytest.raises(DataError, match=r"labels 0 to 3; words.txt has ids 1 to 2"):
        grammar_over(grammar, symbols[:2], lexicon.words)


def test_a_transducer_keeps_its_words_in_a_wide_tree():
    """Words of one phone that follow each other: the word stands before its phone is spent."""
    lexicon = Lexicon.from_entries([("a", 1.0, ["A"]), ("b", 1.0, ["B"])], silence=None)
    tree = full_tree(lexicon.phones, Topology.chain_one_pdf(), 3, 1)
    ids = np.array([1, 2], dtype=np.int32)
    zeros = np.zeros(2, dtype=np.int32)
    loop = Transducer(1, 0, zeros, zeros, ids, ids, np.log([0.5, 0.5]), np.zeros(1))
    decoder = Decoder(build_decoding_graph(lexicon, tree, loop.to_openfst()), lexicon.words)
    for said in (["a"], ["b", "a"], ["a", "b", "b", "a"]):
        numerator = build_numerator(said, lexicon, tree)
        for path in sample_paths(numerator.fsa, 10, seed=2):
            assert list(decoder.decode(scores_of(numerator.fsa.pdf[path], tree.num_pdfs)).words) == said
