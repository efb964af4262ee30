"""Archives of graphs, ARPA, YAML and JSON: plain data alone, of bounded size and depth, read in bounded time."""

import gzip
import os

import numpy as np
import pytest

from fsachain.asr.train.config import MAX_BYTES, load_yaml
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.files import most_unpacked, parse_json
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import load_numerators
from fsachain.graph.supervision import holds_chunks, load_chunks
from fsachain.openfst import Transducer
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


def test_packed_texts_are_called_so(tmp_path):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"yes Y EH S\n"))
    with pytest.raises(GraphError, match=r"text\.gz.*: compressed by gzip; unpack it"):
        Lexicon.read(tmp_path / "text.gz")


def test_a_packed_arpa_file_is_read_and_a_bomb_or_damaged_one_refused(tmp_path):
    path, lexicon = tmp_path / "lm.arpa.gz", Lexicon.characters(["yes"])
    packed = gzip.compress(ARPA.encode())
    path.write_bytes(packed)
    (tmp_path / "lm.arpa").write_text(ARPA)
    read = [Transducer.from_openfst(grammar_from_arpa(one, lexicon)) for one in (path, tmp_path / "lm.arpa")]
    assert read[0].to_bytes() == read[1].to_bytes()
    bomb = gzip.compress(ARPA.replace("\n\n", "\n" * 40_000_000).encode())
    assert most_unpacked(len(bomb)) < 40_000_000
    for content, message in ((bomb, "unpacks to more than"), (packed[:-20], "cannot be unpacked")):
        path.write_bytes(content)
        with pytest.raises(GraphError, match=rf"lm\.arpa\.gz: {message}"):
            grammar_from_arpa(path, lexicon)


# YAML and JSON.


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
ATTACKS = {
    "aliases that stand for billions": (LAUGHS, r"bad\.yaml:2: the alias \*a"),
    "an alias to itself": ("a: &a [*a]\n", "the alias"),
    "a merge": ("a: &a {b: 1}\nc: {<<: *a}\n", "the alias"),
    "lists without end": ("a: " + "[" * 5000, "nested deeper"),
    "tables without end": ("".join(" " * n + "a:\n" for n in range(200)), "nested deeper"),
    "an object of Python": ("a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
    "a name of Python": ("a: !!python/name:os.system\n", "could not determine a constructor"),
    "a number of many digits": ("a: " + "9" * 5000, "cannot read the options"),
    "a day that is none": ("a: 2020-99-99\n", "cannot read the options"),
    "a key twice": ("train: {seed: 1}\ntrain: {seed: 2}\n", r"bad\.yaml:2: the key 'train' occurs twice"),
    "a key twice inside": ("train: {seed: 1, seed: 2}\n", "the key 'seed' occurs twice"),
    "a list for a key": ("? [a]\n: 1\n", "cannot read the options"),
    "two documents": ("a: 1\n---\nb: 2\n", "cannot read the options"),
    "no UTF-8": ("\udcff", "cannot read the options"),
    "a zero byte": ("a: \0\n", "cannot read the options"),
    "more than a configuration": ("# " + "x" * MAX_BYTES, f"more than {MAX_BYTES} bytes"),
    "a list": ("- 1\n", "expected a table"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_configuration_is_refused_by_name(attack, tmp_path):
    text, message = ATTACKS[attack]
    (tmp_path / "bad.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        load_yaml(tmp_path / "bad.yaml")


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the options"):
        load_yaml(tmp_path)


JSON = {
    "nested without end": b"[" * 1_000_000,
    "a number of many digits": b"9" * 10_000,
    "no UTF-8": b'"\xff"',
    "cut short": b'{"a": ',
    "nothing": b"",
}


@pytest.mark.parametrize("attack", JSON)
def test_hostile_json_is_refused_by_name(attack):
    with pytest.raises(DataError, match=r"^some file: "):
        parse_json(JSON[attack], "some file")


def test_long_json_is_refused_unread(monkeypatch):
    monkeypatch.setattr("fsachain.files.MAX_JSON_BYTES", 10)
    with pytest.raises(DataError, match="11 bytes of JSON; expected at most 10"):
        parse_json(b'"123456789"', "some file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in folders")
def test_the_names_of_keys_are_shown_as_text(tmp_path):
    (tmp_path / "bad.yaml").write_text('"\\e[2J": 1\n"\\e[2J": 2\n')
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "bad.yaml")
    assert "\x1b" not in str(caught.value)
