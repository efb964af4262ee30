"""A decoding graph from elsewhere is searched or refused: no crash of the process, no search without end."""

import re

import numpy as np
import pytest
import pywrapfst
from hypothesis import given
from hypothesis import strategies as st
from kaldi_bytes import HUGE, check, damage
from test_decoder import WORDS, spell, word_loop

from fsachain.decode.decoder import Decoder
from fsachain.errors import DataError, GraphError, ShapeError
from fsachain.openfst import Transducer

CONTENT = word_loop().write_to_string()
HEADER = 4 + 4 + len("vector") + 4 + len("standard") + 16  # start, states and arcs come behind it
FIRST_ARCS = HEADER + 24 + 4  # count of arcs of state 0


def search(path):
    """What a user does with a graph; refusals are DataError for `check`."""
    try:
        decoder = Decoder(path, WORDS)
        for kind in (decoder.decode, decoder.lattice):
            kind(spell(("yes", "no"), noise=0.5))
    except GraphError as error:
        raise DataError(f"{path}, byte 0: {error}".replace("\n", " ")) from error
    except ShapeError:
        pass  # a label that no network has


@given(data=st.data())
def test_damaged_graphs_are_searched_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "damaged.fst"
    check(path, damage(data.draw, CONTENT), search)


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "cut.fst"
    for end in range(len(CONTENT)):
        path.write_bytes(CONTENT[:end])
        with pytest.raises(GraphError, match=r"cut\.fst.*byte \d+"):
            Decoder(path, WORDS)
        with pytest.raises(GraphError, match="graph: not a readable OpenFst file"):
            Decoder(CONTENT[:end], WORDS)


@pytest.mark.parametrize("place", [HEADER, HEADER + 8, FIRST_ARCS], ids=["start", "states", "arcs"])
@pytest.mark.parametrize(
    "claim", [piece for piece in HUGE if len(piece) == 8] + [(2**50).to_bytes(8, "little")]
)
def test_a_claim_of_a_header_is_refused_before_memory_is_taken(place, claim, tmp_path):
    content = bytearray(CONTENT)
    content[place : place + 8] = claim
    path = tmp_path / "claim.fst"
    path.write_bytes(bytes(content))
    with pytest.raises(GraphError, match=r"claim\.fst"):
        Decoder(path, WORDS)
    check(path, bytes(content), search)


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
    expected = Decoder(CONTENT, WORDS).decode(spell(("yes", "maybe"), noise=0.5))
    pywrapfst.convert(word_loop(), "const").write(str(tmp_path / "const.fst"))
    (tmp_path / "text.fst").write_text(word_loop().print())
    for name in ("const.fst", "text.fst"):
        assert Decoder(tmp_path / name, WORDS).decode(spell(("yes", "maybe"), noise=0.5)) == expected
