"""Every reader of files meets damaged copies: it gives a value or an error of fsachain, within memory in proportion.

`make fuzz` does the same for as long as it is let, guided by coverage.
"""

import random
import warnings
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsachain.errors import FsachainError
from tools.fuzz.damage import damaged
from tools.fuzz.reader import most_memory, within
from tools.fuzz.readers import READERS


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def check(reader, path, content):
    """The reader gives a value or one of our errors, in one line, within its memory."""
    path.write_bytes(content)
    with within(most_memory(path)), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            reader.read(path)
        except FsachainError as error:
            assert "\n" not in str(error)


def sound(reader, scratch):
    path = scratch / f"{reader.name.replace(' ', '-')}{reader.suffix}"
    kept = path.with_suffix(".sound")
    if not kept.exists():
        reader.write(path)
        kept.write_bytes(path.read_bytes())
    return path, kept.read_bytes()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_an_error_or_a_value(reader, seed, scratch):
    path, content = sound(reader, scratch)
    check(reader, path, damaged(content, random.Random(seed)))


RESEALED = [(reader, seal) for reader in READERS for seal in reader.reseal]


@pytest.mark.parametrize(
    ("reader", "seal"), RESEALED, ids=lambda part: getattr(part, "name", None) or part.__name__
)
@given(seed=st.integers(0, 2**32))
def test_a_hostile_file_with_good_checksums_is_an_error_or_a_value(reader, seal, seed, scratch):
    path, content = sound(reader, scratch)
    check(reader, path, seal(content, partial(damaged, generator=random.Random(seed))))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_the_sound_file_is_read(reader, scratch):
    path, content = sound(reader, scratch)
    path.write_bytes(content)
    assert reader.read(path) is not None
