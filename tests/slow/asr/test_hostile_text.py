"""Texts made to become as many or as large objects as they can: a reader stays within 64 MB and twenty times the file."""

import gc
import json

import pytest

from fsachain.errors import FsachainError
from tools.fuzz.reader import most_memory, within
from tools.fuzz.readers import EXAMPLE, OBJECTIVE, READERS

SIZE = 300_000  # bytes, or more
BY_NAME = {reader.name: reader for reader in READERS}


def _filled(entry, begin=b"", end=b""):
    """The same entry until the text has its size."""
    return begin + entry * (SIZE // len(entry)) + end


def _numbered(pattern, begin=b"", end=b""):
    """Entries with a number, which rises, until the text has its size."""
    entries, size, number = [begin], 0, 0
    while size < SIZE:
        entries.append(pattern.replace(b"%d", b"%d" % number))
        size += len(entries[-1])
        number += 1
    return b"".join((*entries, end))


def _mixed_cut(tracks):
    cut = {"id": "u1", "type": "MixedCut", "tracks": [{"cut": {}} for _ in range(tracks)]}
    return json.dumps(cut).encode() + b"\n"


def _tree(nodes):
    return b"ContextDependency 3 1 ToPdf " + nodes + b"EndContextDependency "


def _topology(phones, transitions=b""):
    state = b"<State> 0 " + transitions + b"</State> <State> 1 </State> "
    head = b"<Topology> <TopologyEntry> <ForPhones> " + phones + b"</ForPhones> "
    return head + state + b"</TopologyEntry> </Topology> "


_NO_LOG_PROBS = b"</Triples> <LogProbs> [ 0 ]\n</LogProbs> </TransitionModel> "

LEXICON = b"""{"format": "fsachain-lexicon-2", "silence": null, "silence_prob": 0.5, "oov": null, "phones": 1, \
"pronunciations": %d}
"A"
"""

# Name of the attack: the reader, and the content.
HOSTILE: dict[str, tuple[str, bytes]] = {
    "a line of words": ("transcripts", _filled(b"ab ", b"u1 ", b"\n")),
    "a line without end": ("transcripts", b"u1" + b"x" * 1_500_000),
    "a wide letter in a long line": ("transcripts", _filled(b"ab ", "u1 \U0001f600".encode(), b"\n")),
    "ids alone": ("transcripts", _numbered(b"%d\n")),
    "one id many times": ("transcripts", _filled(b"u1 a\n")),
    "ids of a data directory": ("data directory", _numbered(b"%d\n")),
    "different locations": ("data directory", _numbered(b"%d %d\n")),
    "lines that are no text": ("data directory", _filled(b"\xff\n")),
    "segments": ("data directory", _numbered(b"%d r1 0 1\n")),
    "numbers in a cut": ("cuts", _filled(b"1,", b'{"id": "u1", "type": "MonoCut", "custom": [', b"1]}\n")),
    "tracks of a cut": ("cuts", _mixed_cut(20_000)),
    "cuts that lhotse refuses": ("cuts", _numbered(b'{"id":"%d","type":"a","supervisions":[{}]}\n')),
    "one word many times": ("lexicon", _numbered(b"a A%d\n")),
    "words in disorder": ("lexicon", _numbered(b"%d A\n")[: SIZE // 2] + _numbered(b"%d B\n")[: SIZE // 2] + b"\n"),
    "phones of one word": ("lexicon", _numbered(b"A%d ", b"a ", b"\n")),
    "saved words": ("lexicon as JSON", _filled(b'["a",1,[1]]\n', LEXICON % (SIZE // 12))),
    "saved phones of a word": ("lexicon as JSON", _filled(b"1,", LEXICON % 1 + b'["a",1,[', b"1]]\n")),
    "names in reverse": ("symbols", b"".join(b"%x %d\n" % (n, n) for n in range(20_000, 0, -1))),
    "an id beyond the lines": ("symbols", b"a 1\nb 1000000000000\n"),
    "arcs from a state to itself": ("acceptor as text", _filled(b"0 0 1\n")),
    "a state beyond the lines": ("acceptor as text", b"0 2000000000 1 1\n"),
    "arcs in an archive": ("fsts as text", _filled(b"0 0 1\n", b"u1\n")),
    "a state beyond an archive": ("fsts as text", b"u1\n0 0 1 1\n0\n\n" * 5_000 + b"u2\n0 600000 1 1\n\n"),
    "a state beyond a lattice": ("lattices", b"u1\n0 900000 1 1,1,1\n\n"),
    "a string of a lattice": ("lattices", _filled(b"1_", b"u1\n0 1 1 1,1,", b"1\n1\n\n")),
    "strings of a lattice": ("lattices", _filled(b"0 1 1 1,1,1_1\n", b"u1\n", b"1\n\n")),
    "an alignment of one line": ("alignments", _filled(b"1 ", b"u1 ", b"\n")),
    "a field without end": ("alignments", b"u1 " + b"1" * SIZE + b"\n"),
    "a number beyond 32 bits at the end": ("alignments", _filled(b"1 ", b"u1 ", b"99999999999\n")),
    "frames without pairs": ("posteriors", _filled(b"[ ] ", b"u1 ", b"\n")),
    "a matrix of one column": ("matrices as text", _filled(b"1\n", b"u1  [\n ", b" ]\n")),
    "brackets in a log": ("log", b"[" * SIZE),
    "numbers in a log": ("log", _filled(b"1,", b'{"event": [', b"1]}\n")),
    "leaves": ("kaldi tree", _tree(b"TE 0 50000 ( " + b"CE 0 " * 50_000 + b") ")),
    "nested splits": ("kaldi tree", _tree(b"SE 0 [ ] { CE 0 " * 12_000 + b"CE 0 " + b"} " * 12_000)),
    "values of a split": ("kaldi tree", _tree(b"SE 0 [ " + b"1 " * 100_000 + b"] { CE 0 CE 0 } ")),
    "phones of a topology": ("topology", _topology(b"1 " * 100_000, b"<Transition> 1 1 ")),
    "many transitions of many tuples": (
        "transition model",
        b"<TransitionModel> "
        + _topology(b"1 ", b"<Transition> 1 1 " * 1000)
        + b"<Tuples> 30000 "
        + b"1 0 0 0 " * 30_000
        + _NO_LOG_PROBS.replace(b"Triples", b"Tuples"),
    ),
    "outputs of a training": ("training log", _numbered(OBJECTIVE.replace(b"output", b"o%d"))),
    "steps of an example": (
        "examples",
        b"a " + EXAMPLE.replace(b"<I1V> 1 <I1> 0 0 0", b"<I1V> 30000 " + b"<I1> 0 0 0 " * 30_000),
    ),
    "arcs of an example": ("examples", b"a " + EXAMPLE.replace(b"0 1 1 1 0.5\n", b"0 1 1 1 0.5\n" * 20_000)),
    "lists in a log": ("log", b'{"a":[' + b"{}," * 100_000 + b"{}]}\n"),
    "entries of a list of options": ("options", b"a: [" + b"a," * 100_000 + b"a]\n"),
    "times of an alignment": ("ctm", _numbered(b"u 1 %d %d a\n")),
    "a time that is none, at the end": ("ctm", _filled(b"u 1 1 1 a\n", b"", b"u 1 x 1 a\n")),
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_text_that_becomes_many_objects_stays_in_bounds(attack, tmp_path):
    name, content = HOSTILE[attack]
    reader = BY_NAME[name]
    path = tmp_path / f"hostile{reader.suffix}"
    reader.write(path)
    reader.read(path)  # what is loaded on first use
    path.write_bytes(content)
    gc.collect()
    with within(most_memory(path)):
        try:
            reader.read(path)
        except FsachainError as error:
            assert len(str(error)) < 1000
