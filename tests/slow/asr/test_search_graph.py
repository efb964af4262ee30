"""A decoding graph from elsewhere is searched or refused: no search without end; damaged ones: test_kaldi_fuzz.py."""

import re

import numpy as np
import pytest
import pywrapfst
from test_decoder import WORDS, spell, word_loop

from fsachain.asr.decode.decoder import Decoder
from fsachain.errors import GraphError
from fsachain.openfst import Transducer


def test_a_graph_that_is_cut_is_refused_with_its_place_and_as_bytes_too(tmp_path):
    path, content = tmp_path / "cut.fst", word_loop().write_to_string()
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(GraphError, match=r"cut\.fst.*byte \d+"):
            Decoder(path, WORDS)
        with pytest.raises(GraphError, match="graph: not a readable OpenFst file"):
            Decoder(content[:end], WORDS)


def silent_cycle(costs):
    """States 0 and 1 joined by epsilons both ways, with a word at state 1."""
    ilabel = np.array([0, 0, 1], dtype=np.int32)
    ends = np.array([0, 1, 1], dtype=np.int32), np.array([1, 0, 1], dtype=np.int32)
    weights = -np.array([*costs, 0.5])
    return Transducer(2, 0, *ends, ilabel, ilabel, weights, np.array([-np.inf, 0.0])).to_bytes()


def test_epsilon_cycles_without_gain_are_searched():
    decoder = Decoder(silent_cycle([0.25, 0.0]), WORDS)
    assert decoder.lattice(np.zeros((3, 1))) is not None
    found = decoder.decode(np.zeros((3, 1)))
    assert found.words == ("yes",) * 3 and found.graph_log_prob == -0.25 - 3 * 0.5


def test_epsilon_cycles_that_gain_are_refused():
    with pytest.raises(
        GraphError, match=re.escape("epsilon arc from state 1 to 0 has cost -0.5 and lies on a cycle")
    ):
        Decoder(silent_cycle([0.25, -0.5]), WORDS)
    gain_once = word_loop()
    gain_once.set_start(gain_once.add_state())
    gain_once.add_arc(gain_once.start(), pywrapfst.Arc(0, 0, -3.0, 0))
    assert Decoder(gain_once, WORDS).decode(spell(("no",))).words == ("no",)


def test_other_forms_of_a_graph_give_the_same_words(tmp_path):
    expected = Decoder(word_loop().write_to_string(), WORDS).decode(spell(("yes", "maybe"), noise=0.5))
    pywrapfst.convert(word_loop(), "const").write(str(tmp_path / "const.fst"))
    (tmp_path / "text.fst").write_text(word_loop().print())
    for name in ("const.fst", "text.fst"):
        assert Decoder(tmp_path / name, WORDS).decode(spell(("yes", "maybe"), noise=0.5)) == expected
