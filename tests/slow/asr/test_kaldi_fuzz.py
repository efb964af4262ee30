"""A damaged or hostile file is one DataError that names file and offset: no crash, no hang, no large allocation.

Text forms of whole lines are among those of security/test_damaged_files.py.
"""

import gzip
import os
import struct

import kaldi_bytes as kb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kaldi_bytes import check, damage, is_refused
from test_decoder import WORDS, spell, word_loop

from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.decode.decoder import Decoder
from fsachain.asr.kaldi.archive import read_table, read_value
from fsachain.asr.kaldi.examples import read_example
from fsachain.asr.kaldi.model import read_topology, read_transition_model, read_tree
from fsachain.asr.kaldi.values import read_alignment, read_matrix, read_posterior, read_vector
from fsachain.errors import DataError, GraphError, ShapeError
from fsachain.fsa import Fsa, read_fsa
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.openfst import MAGIC, read_fst, read_symbols
from tools.fuzz.damage import HUGE


def table_of(read):
    return lambda path: list(read_table(path, read))


def at(read):
    return lambda path: read_value(path, read)


def by_graph_error(read):
    """Readers of graph formats refuse by GraphError, which names the file too."""

    def wrapped(path):
        try:
            return read(path)
        except GraphError as error:
            raise DataError(f"{error}, byte 0") from error

    return wrapped


def search(path):
    """What a user does with a decoding graph: a graph that claims much is refused before memory is taken."""
    try:
        decoder = Decoder(path, WORDS)
        decoder.lattice(spell(("yes", "no"), noise=0.5))
        return decoder.decode(spell(("yes", "no"), noise=0.5))
    except GraphError as error:
        raise DataError(f"{path}, byte 0: {error}".replace("\n", " ")) from error
    except ShapeError:
        return path  # a label that no network has


def topology_of_model(content):
    """The binary topology that a transition model holds."""
    return b"\0B" + content[content.index(b"<Topology>") : content.index(b"</Topology>")] + b"</Topology> "


def first_entry(content):
    return content[: content.index(b"t1 \0B")]


def unchanged(content):
    return content


# Files of Kaldi's own making, small ones: name, reader, and what is made of the content before it is damaged.
GOLDEN = {
    "tree": ("lm8_onesent/tree", read_tree, unchanged),
    "tree text": ("lm8_onesent/tree.txt", read_tree, unchanged),
    "model": ("lm1_tiny/0.trans_mdl", read_transition_model, unchanged),
    "model text": ("lm8_onesent/trans_mdl.txt", read_transition_model, unchanged),
    "topology": ("lm8_onesent/topo", read_topology, unchanged),
    "topology binary": ("lm1_tiny/0.trans_mdl", read_topology, topology_of_model),
    "words": ("lm8_onesent/words.txt", read_symbols, unchanged),
    "phones": ("lm8_onesent/phones.txt", by_graph_error(read_phones), unchanged),
    "lexiconp": ("lm8_onesent/lexiconp.txt", by_graph_error(lambda path: Lexicon.read(path, format="lexiconp")), unchanged),
    "L.fst": ("lm8_onesent/L.fst", at(read_fst), unchanged),
    "den.fst": ("lm8_onesent/den.fst", by_graph_error(Fsa.read), unchanged),
    "normalization.fst": ("lm8_onesent/normalization.fst", at(read_fsa), unchanged),
    "fst archive": ("lm8_onesent/graphs.ark", table_of(read_fst), unchanged),
    "examples": ("lm1_tiny/egs/cegs.ark", table_of(read_example), first_entry),
}  # fmt: skip


def i4_pairs(values):
    return b"".join(kb.i4(value) for value in values)


def compressed(kind, body):
    return (
        b"a \0B" + kind + b" " + np.array([0, 1], "<f4").tobytes() + np.array([2, 1], "<i4").tobytes() + body
    )


def compact_acceptor():
    """Two states and an arc; a final weight is an element without label."""
    head = MAGIC + b"".join(
        len(name).to_bytes(4, "little") + name for name in (b"compact_acceptor", b"standard")
    )
    head += struct.pack("<iiQqqq", 2, 0, 0, 0, 2, 1)
    return (
        head + struct.pack("<3I", 0, 1, 2) + struct.pack("<ifi", 3, 0.5, 1) + struct.pack("<ifi", -1, 0.0, -1)
    )


LOOP = kb.const_fst([[(1, 1, 0.0, 0)]], [0.0])
EXAMPLE = kb.chain_example(
    np.zeros((4, 1)),
    [(n, t, 0) for t in range(2) for n in range(2)],
    [(n, t, 0) for t in range(2) for n in range(2)],
    2,
    LOOP * 2,
    b"<DW> \1" + (4).to_bytes(4, "little") + bytes(4),
)
MADE = {
    "const fst": (kb.const_fst([[(1, 1, 0.5, 1)], [(2, 2, 0.0, 0)]], [np.inf, 0.0], aligned=True), at(read_fst)),
    "compact acceptor": (compact_acceptor(), at(read_fsa)),
    "decoding graph": (word_loop().write_to_string(), search),
    "L_disambig.fst": (b"0 1 1 1 0.5\n1 0 5 0\n0 0 5 5\n0 0.1\n", at(read_fst)),
    "merged examples": (b"a \0B" + EXAMPLE, lambda path: list(read_examples(path))),
    "matrix": (b"a \0B" + kb.matrix(np.arange(12.0).reshape(4, 3)), table_of(read_matrix)),
    "double matrix": (b"a \0BDM " + kb.i4(1) + kb.i4(2) + bytes(16), table_of(read_matrix)),
    "CM": (compressed(b"CM", bytes(range(10))), table_of(read_matrix)),
    "CM2": (compressed(b"CM2", bytes(range(4))), table_of(read_matrix)),
    "CM3": (compressed(b"CM3", bytes(range(2))), table_of(read_matrix)),
    "vector": (b"a \0BFV " + kb.i4(2) + bytes(8), table_of(read_vector)),
    "alignment": (b"a \0B" + kb.i4(3) + i4_pairs([1, 2, 3]), table_of(read_alignment)),
    "posterior": (b"a \0B" + kb.i4(1) + kb.i4(1) + kb.i4(5) + kb.f4(0.5), table_of(read_posterior)),
    "matrix script": (b"a matrices.ark:2[0:3]\nb matrices.ark:2\n", table_of(read_matrix)),
    "fst script": (b"a graphs.ark:2\nb graphs.ark:2\n", table_of(read_fst)),
    "gzip": (gzip.compress(b"a 1 2 3\nb 4\n", mtime=0), table_of(read_alignment)),
}  # fmt: skip
SUFFIXES = {"matrix script": ".scp", "fst script": ".scp", "gzip": ".gz"}
BESIDE = {"matrices.ark": MADE["matrix"][0], "graphs.ark": b"a \0B" + LOOP}
# What does not say itself where it ends: a cut of these may be a good file.
OPEN_ENDED = {"words", "phones", "lexiconp", "fst archive", "examples", "L_disambig.fst", *SUFFIXES} - {
    "gzip"
}
FORMATS = [*GOLDEN, *MADE]
ENTRY = b"a \0B"
MOST_CUTS, MOST_CLAIMS = 600, 150  # in longer files not every place is tried


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def good(request, scratch):
    """Of a kind of file: its content, its reader, and where to write it damaged, beside what it refers to."""
    for name, content in BESIDE.items():
        (scratch / name).write_bytes(content)

    def find(kind):
        path = scratch / f"damaged{SUFFIXES.get(kind, '.x')}"
        if kind in MADE:
            return (*MADE[kind], path)
        name, read, prepare = GOLDEN[kind]
        shared = request.getfixturevalue("shared")
        return prepare((shared / "golden/kaldi/lm" / name).read_bytes()), read, path

    return find


def places(content, most, first=0):
    """All places from the first on; in longer files every second, every third and so on."""
    return range(first, len(content), 1 + len(content) // most)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_undamaged_files_are_read(kind, good):
    content, read, path = good(kind)
    path.write_bytes(content)
    assert read(path) is not None


@pytest.mark.parametrize("kind", FORMATS)
@given(data=st.data())
def test_damaged_files_are_errors_or_values(kind, data, good):
    content, read, path = good(kind)
    check(path, damage(data.draw, content), read)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_cut_is_an_error_or_a_shorter_file(kind, good):
    """Of what says itself where it ends no cut is a good file; of others whole entries or lines may be missing."""
    content, read, path = good(kind)
    begin = content.find(ENTRY) + len(ENTRY)  # of the value: what is cut before is no entry yet
    for end in places(content, MOST_CUTS, begin if content.startswith(ENTRY) else 1):
        refused = is_refused(path, content[:end], read)
        assert refused or kind in OPEN_ENDED or end >= len(content.rstrip()), end


@pytest.mark.parametrize("kind", FORMATS)
def test_huge_counts_anywhere_are_errors_or_values(kind, good):
    content, read, path = good(kind)
    for place in places(content, MOST_CLAIMS):
        claim = HUGE[place % len(HUGE)]
        check(path, content[:place] + claim + content[place + len(claim) :], read)


def test_names_and_numbers_that_are_too_long_are_errors(scratch):
    path, digits = scratch / "long.scp", "9" * 5_000  # int() refuses so many
    for line in (f"a x:{digits}", f"a x[{digits}:{digits}]", f"a {'x' * 5_000}", "a x\0y"):
        path.write_text(line + "\n")
        refusal = r"long\.scp, byte 0: a zero byte" if "\0" in line else r"long\.scp:1: .*cannot be read"
        with pytest.raises(DataError, match=refusal):
            list(read_table(path, read_matrix))
    path.write_text(f"a {digits}\n")
    for read, error in ((read_symbols, DataError), (read_phones, GraphError)):
        with pytest.raises(error, match=r"long\.scp:1: .*expected a name and its id"):
            read(path)
    path.write_text(f"0 {digits} 1 1\n")
    with pytest.raises(GraphError, match=r"line 1: state 9{40}; expected at most"):
        Fsa.from_text(path)


def test_a_pipe_is_refused_and_not_waited_for(scratch):
    pipe = scratch / "pipe"
    os.mkfifo(pipe)
    (scratch / "pipe.scp").write_text(f"a {pipe}\nb /dev/zero\n")
    for path in (pipe, scratch / "pipe.scp", "/dev/zero"):
        with pytest.raises(DataError, match="expected a file on disk"):
            list(read_table(path, read_matrix))
