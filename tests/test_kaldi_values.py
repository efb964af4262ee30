"""Values of Kaldi's archives: what their arrays hold, and what they cannot."""

import gzip
import struct

import numpy as np
import pytest
import tolerances

from fsachain import stream
from fsachain.errors import DataError
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.values import read_alignment, read_matrix, read_posterior
from fsachain.stream import Cursor


def test_an_alignment_has_32_bits_a_frame():
    found = read_alignment(Cursor(b"1 2147483647 -3\n", "ali"))
    assert found.dtype == np.int32 and found.tolist() == [1, 2147483647, -3]
    with pytest.raises(DataError, match=r"ali, byte 0: .*found 2147483648, which is beyond 32 bits"):
        read_alignment(Cursor(b"1 2147483648\n", "ali"))
    with pytest.raises(DataError, match=r"ali, byte 0: .*found 4294967296"):
        read_posterior(Cursor(b"[ 1 0.5 ] [ 4294967296 1 ]\n", "ali"))


def test_a_long_line_and_a_long_field():
    numbers = [10**digits for digits in range(9)] * 2_000
    text = "  ".join(map(str, numbers)).encode() + b" \r\n7\n"
    cursor = Cursor(text, "ali")
    assert read_alignment(cursor).tolist() == numbers
    assert read_alignment(cursor).tolist() == [7]
    with pytest.raises(DataError, match=r"ali, byte 0: expected a line of integers, found '2{40}'$"):
        read_alignment(Cursor(b"1 " + b"2" * 9_000 + b" 3\n", "ali"))


def test_the_codes_of_a_large_compressed_matrix_lie_between_their_columns_quartiles():
    rows, columns = 3_001, 7
    generator = np.random.default_rng(1)
    quartiles = np.sort(generator.integers(0, 65536, (columns, 4)), axis=1).astype("<u2")
    codes = generator.integers(0, 256, (columns, rows)).astype("u1")
    head = b"CM " + struct.pack("<ffii", -2.0, 5.0, rows, columns)
    cursor = Cursor(head + quartiles.tobytes() + codes.tobytes(), "matrix")
    cursor.binary = True
    found = read_matrix(cursor)
    points = -2.0 + quartiles * (5.0 / 65535)
    for column in range(columns):
        expected = np.interp(codes[column], [0, 64, 192, 255], points[column])
        np.testing.assert_allclose(
            found[:, column], expected, rtol=tolerances.SIX_DIGITS, atol=tolerances.SIX_DIGITS
        )


def test_a_packed_archive_is_read_as_it_is_unpacked(tmp_path, monkeypatch):
    content = b"".join(b"u%d 1 2 3\n" % number for number in range(20_000))
    for name, data in (
        ("a.ark", content),
        ("a.ark.gz", gzip.compress(content)),
        ("e.gz", gzip.compress(b"")),
    ):
        (tmp_path / name).write_bytes(data)
    keys = [[key for key, _ in read_table(tmp_path / name, read_alignment)] for name in ("a.ark", "a.ark.gz")]
    assert keys[0] == keys[1] and len(keys[0]) == 20_000
    assert not list(read_table(tmp_path / "e.gz", read_alignment))
    monkeypatch.setattr(stream, "MAX_UNPACKED_BYTES", 100_000)
    with pytest.raises(DataError, match=r"a\.ark\.gz: unpacks to more than 100000 bytes"):
        list(read_table(tmp_path / "a.ark.gz", read_alignment))
