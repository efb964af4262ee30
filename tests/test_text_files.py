"""Text as editors of other systems leave it: ends of lines of Windows change nothing, marks and zero bytes are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

for module in ("pywrapfst", "yaml"):
    pytest.importorskip(module, reason="the readers need fsachain[recipes]")

from fsachain.cli.config import Experiment
from fsachain.cli.use import read_words
from fsachain.data.kaldi_dir import read_table as read_lines
from fsachain.decode.ctm import read_ctm
from fsachain.decode.wer import read_text
from fsachain.errors import FsachainError
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.values import read_alignment, read_posterior


def acceptor(path: Path) -> str:
    return Fsa.from_text(path).to_text()


def lexicon(path: Path) -> tuple[object, ...]:
    found = Lexicon.read(path)
    return found.words, found.phones, found.pronunciations


def alignments(path: Path) -> list[tuple[str, list[int]]]:
    return [(name, values.tolist()) for name, values in read_table(path, read_alignment)]


def posteriors(path: Path) -> list[tuple[str, list[object]]]:
    return [(name, list(frames)) for name, frames in read_table(path, read_posterior)]


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "transcripts": (read_text, "u1 yes no\nu2 no\n"),
    "ctm": (read_ctm, "u1 1 0.0 0.5 yes\nu2 1 0.5 0.25 no\n"),
    "lexicon": (lexicon, "yes Y EH S\nno N OW\n"),
    "phones": (read_phones, "<eps> 0\nA 1\nB 2\n"),
    "symbols": (read_symbols, "<eps> 0\nyes 1\nno 2\n"),
    "acceptor": (acceptor, "0 1 1 1 0.5\n1 2 2 2 0.25\n2 0.5\n"),
    "table": (read_lines, "u1 one.wav\nu2 two.wav\n"),
    "alignments": (alignments, "u1 1 2 3\nu2 4 5\n"),
    "posteriors": (posteriors, "u1 [ 1 0.5 ] [ 2 1 ]\nu2 [ 3 1 ]\n"),
    "words of a long recording": (read_words, "yes no\nno\n"),
    "experiment": (Experiment.read, "train:\n  seed: 7\n  num_epochs: 2\n"),
}


@pytest.mark.parametrize("name", READERS)
def test_ends_of_lines_of_windows_change_nothing(name: str, tmp_path: Path) -> None:
    read, content = READERS[name]
    unix, windows = tmp_path / "unix.txt", tmp_path / "windows.txt"
    unix.write_bytes(content.encode())
    windows.write_bytes(content.replace("\n", "\r\n").encode())
    assert read(windows) == read(unix)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("last", ["without its end", "with empty lines behind"])
def test_how_the_last_line_ends_changes_nothing(name: str, last: str, tmp_path: Path) -> None:
    read, content = READERS[name]
    (tmp_path / "a.txt").write_text(content)
    (tmp_path / "b.txt").write_text(content.rstrip("\n") if last == "without its end" else content + "\n\n")
    assert read(tmp_path / "b.txt") == read(tmp_path / "a.txt")


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"experiment"}))
def test_a_byte_order_mark_is_refused_by_name(name: str, tmp_path: Path) -> None:
    read, content = READERS[name]
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + content.encode())
    with pytest.raises(FsachainError, match=r"marked\.txt.*byte order mark"):
        read(tmp_path / "marked.txt")


def test_a_byte_order_mark_before_yaml_is_no_part_of_it(tmp_path: Path) -> None:
    """YAML itself allows it."""
    read, content = READERS["experiment"]
    (tmp_path / "marked.yaml").write_bytes(b"\xef\xbb\xbf" + content.encode())
    (tmp_path / "plain.yaml").write_text(content)
    assert read(tmp_path / "marked.yaml") == read(tmp_path / "plain.yaml")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", ["inside", "binary", "utf-16"])
def test_what_is_no_text_is_refused_by_name(name: str, content: str, tmp_path: Path) -> None:
    read, text = READERS[name]
    place = text.index("\n")
    given = {
        "inside": text[:place].encode() + b"\0" + text[place:].encode(),
        "binary": np.random.default_rng(1).bytes(1000),
        "utf-16": text.encode("utf-16"),
    }
    (tmp_path / "binary.txt").write_bytes(given[content])
    with pytest.raises(FsachainError, match=r"binary\.txt"):
        read(tmp_path / "binary.txt")
