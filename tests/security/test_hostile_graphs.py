"""Language folders, numerators and chunks: their readers believe no size and load no object."""

import numpy as np
import pytest

from fsachain.errors import GraphError
from fsachain.graph.chunks import holds_chunks, load_chunks
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import load_numerators
from tools.fuzz.readers import READERS


@pytest.mark.parametrize("kind", ["numerators", "chunks"])
def test_objects_and_wrong_counts_in_graph_archives_are_refused(kind, tmp_path):
    reader = next(one for one in READERS if one.name == kind)
    path = tmp_path / "graphs.npz"
    reader.write(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    for name, value in arrays.items():
        objects, empty = np.array([print], dtype=object), value.reshape(-1)[:0]
        for hostile in (objects, np.array(7), np.array(["x"]), np.full(3, 2**40), empty):
            np.savez(path, **{**arrays, name: hostile})
            try:
                reader.read(path)
            except GraphError as error:
                assert "graphs.npz" in str(error)


def test_what_is_no_archive_holds_no_chunks(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4")
    assert not holds_chunks(tmp_path / "a.npz")
    for load in (load_chunks, load_numerators):
        with pytest.raises(GraphError, match=r"a\.npz"):
            load(tmp_path / "a.npz")


ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1.0\t<s>\n-1.0\tyes\n-1.0\t</s>\n\n\\end\\\n"
ARPA_ATTACKS = {
    "an order of billions": (ARPA.replace("ngram 1=3", "ngram 2000000000=1"), "claims 'ngram 2000000000=1'"),
    "billions of words": (ARPA.replace("=3", "=2000000000"), "claims 'ngram 1=2000000000'"),
    "a number of many digits": (ARPA.replace("=3", "=" + "9" * 5000), "claims"),
    "a byte order mark": ("\ufeff" + ARPA, "byte order mark"),
    "ends of lines of Windows": (ARPA.replace("\n", "\r\n"), "lines of Windows"),
    "a header without end": ("ngram 1=1\n" * 10_000, "not an n-gram"),
}


@pytest.mark.parametrize("attack", ARPA_ATTACKS)
def test_claims_of_an_arpa_file_are_refused_before_memory_is_taken(attack, tmp_path):
    content, message = ARPA_ATTACKS[attack]
    (tmp_path / "lexicon.txt").write_text("yes Y EH S\nno N OW\n")
    lexicon = Lexicon.read(tmp_path / "lexicon.txt")
    (tmp_path / "lm.arpa").write_text(content, newline="")
    with pytest.raises(GraphError, match=r"lm\.arpa") as refused:
        grammar_from_arpa(tmp_path / "lm.arpa", lexicon)
    assert message in str(refused.value)
