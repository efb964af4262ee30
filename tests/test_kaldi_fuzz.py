"""A damaged or hostile file is one DataError that names file and offset: no crash, no hang, no large allocation."""

import re
import tracemalloc
from pathlib import Path

import kaldi_bytes as kb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsachain.errors import DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.examples import read_example
from fsachain.kaldi.fst import read_fsa, read_fst
from fsachain.kaldi.stream import open_file
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.topology import read_topology
from fsachain.kaldi.transitions import read_transition_model
from fsachain.kaldi.tree import read_tree
from fsachain.kaldi.values import read_alignment, read_matrix, read_posterior, read_vector

MEMORY_PER_BYTE = (
    400  # Python objects for the values of a text file or of nodes; a claim of a header is 2 ** 31
)
MEMORY_FLOOR = 4_000_000
HUGE = [b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x00\x00\x00\x40", b"\x7f" * 8, b"\xff" * 4]


def table_of(read):
    return lambda path: list(read_table(path, read))


GOLDEN = {
    "tree": ("lm1_tiny/tree", read_tree),
    "tree text": ("lm1_tiny/tree.txt", read_tree),
    "model": ("lm1_tiny/0.trans_mdl", read_transition_model),
    "model text": ("lm1_tiny/trans_mdl.txt", read_transition_model),
    "topology": ("lm1_tiny/topo", read_topology),
    "symbols": ("lm1_tiny/words.txt", read_symbols),
    "vector fst": ("lm1_tiny/den.fst", lambda path: read_fst(open_file(path))),
    "fsa": ("lm1_tiny/sup/t0.sup.fst", lambda path: read_fsa(open_file(path))),
    "fst archive": ("lm1_tiny/graphs.ark", table_of(read_fst)),
    "examples": ("lm1_tiny/egs/cegs.ark", table_of(read_example)),
}


def i4_pairs(values):
    return b"".join(kb.i4(value) for value in values)


MADE = {
    "const fst": (
        kb.const_fst([[(1, 1, 0.5, 1)], [(2, 2, 0.0, 0)]], [np.inf, 0.0], aligned=True),
        lambda path: read_fst(open_file(path)),
    ),
    "matrix": (b"a \0B" + kb.matrix(np.arange(12.0).reshape(4, 3)), table_of(read_matrix)),
    "matrix text": (b"a  [\n 1 2\n 3 4 ]\nb  [ 5 6 ]\n", table_of(read_matrix)),
    "compressed": (
        b"a \0BCM "
        + np.array([0, 1], "<f4").tobytes()
        + np.array([2, 1], "<i4").tobytes()
        + bytes(range(10)),
        table_of(read_matrix),
    ),
    "vector": (b"a \0BFV " + kb.i4(2) + bytes(8), table_of(read_vector)),
    "alignment": (b"a \0B" + kb.i4(3) + i4_pairs([1, 2, 3]), table_of(read_alignment)),
    "alignment text": (b"a 1 2 3\nb 4\n", table_of(read_alignment)),
    "posterior": (b"a \0B" + kb.i4(1) + kb.i4(1) + kb.i4(5) + kb.f4(0.5), table_of(read_posterior)),
    "posterior text": (b"a [ 1 0.5 2 0.5 ] [ 3 1 ]\n", table_of(read_posterior)),
    "script": (b"a nowhere.ark:12[0:3]\nb nowhere.ark\n", None),
    "fst text": (b"a \n0 1 1 1 0.5\n1 0\n\n", table_of(read_fst)),
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def check(path: Path, content: bytes, read) -> None:
    """`read` gives a value, or a DataError that names the file; within memory in proportion to the content."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read(path)
    except DataError as error:
        assert str(path) in str(error)
        assert re.search(r"byte \d+|:\d+: |\.(ark|x|scp): |gaps|twice|, byte ", str(error)), error
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= MEMORY_FLOOR + MEMORY_PER_BYTE * len(content)


def damage(draw, content: bytes) -> bytes:
    """Cut, change bytes, put a huge count somewhere, or repeat a part."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["cut", "byte", "huge", "repeat", "insert"]))
        if kind == "cut":
            del data[place:]
        elif kind == "byte" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "huge":
            piece = draw(st.sampled_from(HUGE))
            data[place : place + len(piece)] = piece
        elif kind == "repeat":
            end = draw(st.integers(place, min(place + 64, len(data))))
            data[end:end] = data[place:end] * draw(st.integers(1, 8))
        else:
            data[place:place] = draw(st.binary(max_size=16))
    return bytes(data)


@pytest.mark.parametrize("kind", GOLDEN)
@given(data=st.data())
def test_damaged_files_of_kaldi_are_errors_or_values(kind, data, shared, scratch):
    name, read = GOLDEN[kind]
    content = (shared / "golden/kaldi/lm" / name).read_bytes()
    check(scratch / "damaged.x", damage(data.draw, content), read)


@pytest.mark.parametrize("kind", MADE)
@given(data=st.data())
def test_damaged_values_are_errors_or_values(kind, data, scratch):
    content, read = MADE[kind]
    path = scratch / ("damaged.scp" if read is None else "damaged.ark")
    check(path, damage(data.draw, content), read or table_of(read_matrix))


@pytest.mark.parametrize("kind", sorted(GOLDEN.keys() - {"symbols"}))
def test_every_cut_of_a_file_is_an_error(kind, shared, scratch):
    """Nothing but whole entries of an archive can be missing without notice."""
    name, read = GOLDEN[kind]
    content = (shared / "golden/kaldi/lm" / name).read_bytes()
    ends = range(0, len(content) - 1, max(1, len(content) // 60))
    failures = 0
    for end in ends:
        path = scratch / "cut.x"
        path.write_bytes(content[:end])
        try:
            read(path)
        except DataError:
            failures += 1
    if "archive" in kind or kind == "examples":
        assert failures >= len(ends) - 4  # a cut between two entries leaves a good file
    else:
        assert failures == len(ends)


CLAIMS = {
    "vector fst states": (
        b"\xd6\xfd\xb2~\x06\0\0\0vector\x08\0\0\0standard" + b"\2\0\0\0" + bytes(20) + b"\xff" * 7 + b"\x0f" + bytes(64),
        lambda path: read_fst(open_file(path)),
    ),
    "matrix": (b"a \0BFM " + kb.i4(2**31 - 1) + kb.i4(2**31 - 1) + bytes(100), table_of(read_matrix)),
    "compressed matrix": (b"a \0BCM " + bytes(8) + b"\xff\xff\xff\x7f" * 2 + bytes(100), table_of(read_matrix)),
    "alignment": (b"a \0B" + kb.i4(2**31 - 1) + bytes(100), table_of(read_alignment)),
    "posterior": (b"a \0B" + kb.i4(2**31 - 1) + kb.i4(2**31 - 1), table_of(read_posterior)),
    "text fst states": (b"a \n0 2000000000 1 1\n\n", table_of(read_fst)),
    "tree": (
        b"\0BContextDependency " + kb.i4(1) + kb.i4(0) + b"ToPdf TE " + kb.i4(0) + b"\xfc\xff\xff\xff\xff( ",
        read_tree,
    ),
    "nested tree": (b"ContextDependency 1 0 ToPdf " + b"TE 0 1 ( " * 5_000, read_tree),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_of_a_header_allocates_nothing(kind, scratch):
    content, read = CLAIMS[kind]
    path = scratch / "claim.x"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path}, byte \d+: "):
        read(path)
    check(path, content, read)


def test_a_hostile_fst_does_not_reach_openfst(scratch):
    """OpenFst's own reader ends the process where memory for the claimed arcs cannot be had."""
    path = scratch / "hostile.fst"
    good = Fsa(1, [0], [0], [0], [0.0], [0.0])
    good.write(path)
    data = bytearray(path.read_bytes())
    data[-24:-16] = (2**56).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(
        GraphError, match=r"hostile\.fst: not an OpenFst binary file, or cut short \(.*byte \d+"
    ):
        Fsa.read(path)
