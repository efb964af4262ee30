"""Text as editors of other systems leave it: ends of lines of Windows change nothing, marks and zero bytes are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fsachain.asr.cli.alignment import read_words
from fsachain.asr.cli.config import Experiment
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.kaldi_dir import read_table as read_lines
from fsachain.asr.decode.ctm import CtmEntry, read_ctm, write_ctm
from fsachain.asr.decode.lattices import write_kaldi_lattices, write_openfst_lattices
from fsachain.asr.decode.wer import read_text
from fsachain.asr.decode.wer import write_text as write_transcripts
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.asr.kaldi.values import read_alignment, read_posterior
from fsachain.errors import FsachainError
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.openfst import read_symbols


def acceptor(path):
    return Fsa.from_text(path).to_text()


def lexicon(path):
    found = Lexicon.read(path)
    return found.words, found.phones, found.pronunciations


def alignments(path):
    return [(name, values.tolist()) for name, values in read_table(path, read_alignment)]


def posteriors(path):
    return [(name, list(frames)) for name, frames in read_table(path, read_posterior)]


TRANSCRIPT = "words of a long recording"
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
    TRANSCRIPT: (read_words, "yes no\nno\n"),
    "experiment": (Experiment.read, "train:\n  seed: 7\n  num_epochs: 2\n"),
}


of_every_reader = pytest.mark.parametrize("name", READERS)


@of_every_reader
def test_how_lines_and_the_last_line_end_changes_nothing(name, tmp_path):
    read, content = READERS[name]
    path = tmp_path / "a.txt"
    path.write_text(content)
    expected = read(path)
    for other in (content.replace("\n", "\r\n"), content.rstrip("\n"), content + "\n\n"):
        path.write_bytes(other.encode())
        assert read(path) == expected


@pytest.mark.parametrize("name", ["transcripts", "table", "symbols"])
def test_all_repetitions_are_listed_at_once(name, tmp_path):
    read, content = READERS[name]
    path = tmp_path / "twice.txt"
    path.write_text(2 * content)
    with pytest.raises(FsachainError) as refused:
        read(path)
    lines = len(content.splitlines())
    for line in range(lines + 1, 2 * lines + 1):
        assert f"twice.txt:{line}: " in str(refused.value)


def test_comments_of_a_ctm_are_no_entries(tmp_path):
    read, content = READERS["ctm"]
    (tmp_path / "plain.ctm").write_text(content)
    (tmp_path / "commented.ctm").write_text(f';; CATEGORY "0" "" ""\n{content};;LABEL\n')
    assert read(tmp_path / "commented.ctm") == read(tmp_path / "plain.ctm")


@of_every_reader
def test_a_byte_order_mark_is_refused_by_name(name, tmp_path):
    """But before YAML, which allows it, and in a transcript by itself, which an editor may have written."""
    read, content = READERS[name]
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + content.encode())
    if name in ("experiment", TRANSCRIPT):
        (tmp_path / "plain.txt").write_text(content)
        assert read(tmp_path / "marked.txt") == read(tmp_path / "plain.txt")
        return
    with pytest.raises(FsachainError, match=r"marked\.txt.*byte order mark"):
        read(tmp_path / "marked.txt")


@of_every_reader
def test_what_is_no_text_is_refused_by_name(name, tmp_path):
    read, text = READERS[name]
    contents = [text.encode().replace(b"\n", b"\0\n", 1), np.random.default_rng(1).bytes(1000)]
    contents += [] if name == TRANSCRIPT else [text.encode("utf-16")]
    for content in contents:
        (tmp_path / "binary.txt").write_bytes(content)
        with pytest.raises(FsachainError, match=r"binary\.txt"):
            read(tmp_path / "binary.txt")


def test_utf_16_is_called_so_first_of_all_faults(tmp_path):
    (tmp_path / "wav.scp").write_text("a a.wav\n")
    (tmp_path / "text").write_bytes("a yes\n".encode("utf-16"))
    assert "text:1: UTF-16; save the file as UTF-8" in DataDir.check(tmp_path)[1][0].reason


ONE, TWO = np.ones(1, dtype=np.int32), np.zeros(2)
LATTICE = Lattice(2, 0, 0 * ONE, ONE, ONE, ONE, TWO[:1], TWO[:1], TWO, TWO)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_transcripts(path, {"anna-1": ["yes"]}),
        lambda path: write_ctm(path, [CtmEntry("anna-1", 0.0, 0.5, "yes")]),
        lambda path: write_kaldi_lattices(path, {"anna-1": LATTICE}),
        lambda path: write_openfst_lattices(path, {"anna-1": LATTICE}),
    ],
)
def test_a_full_disk_is_an_error_with_the_name_of_the_file(tmp_path, write):
    path = tmp_path / "out"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"(No space left on device|is the disk full\?): '.*out'"):
        write(path)
