"""Word grammars: which words may follow each other, as pywrapfst FSTs over the lexicon's word ids.

    word_loop            any word after any word
    estimate_arpa        an n-gram of a training text, as ARPA text
    grammar_from_arpa    an ARPA file as FST

Weights are costs, -log natural. Arcs with label 0 on both sides back off to a shorter history; they make the
grammar ambiguous, as usual, in that a seen n-gram may also be reached through them.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import GraphError, require
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.ngram import END, START, estimate_arpa
from fsachain.graph.openfst import read_transducer
from fsachain.graph.transducer import Transducer

__all__ = ["estimate_arpa", "grammar_from_arpa", "word_loop"]

_EPSILON, _BACKOFF = "<eps>", "#0"

_COUNT = re.compile(rb"\s*ngram\s+(\d{1,18})\s*=\s*(\d{1,18})")
_HIGHEST_ORDER = 20
_LONGEST_HEADER_LINE = 1 << 16

# kaldilm ends the whole process on a malformed file, hence a process of its own.
_CONVERT = """
import sys, kaldilm
arpa, words, fst = sys.argv[1:]
kaldilm.arpa2fst(arpa, output_fst=fst, disambig_symbol="#0", read_symbol_table=words, max_arpa_warnings=0)
"""


def word_loop(words: Sequence[str], lexicon: Lexicon) -> Any:
    """A grammar in which any of `words` may follow any other, all with the same probability.

    Args:
        words: words of the lexicon; the end of the sentence is as likely as each of them.
        lexicon: gives the word ids.

    Returns:
        pywrapfst `VectorFst` of one state.

    Raises:
        GraphError: no words, or one that the lexicon does not have.
    """
    ids = sorted({lexicon.word_id(word) for word in words})
    if not ids:
        raise GraphError("words is empty: a word loop needs at least one word")
    labels = np.array(ids, dtype=np.int32)
    state = np.zeros(len(ids), dtype=np.int32)
    log_prob = -math.log(len(ids) + 1)
    return Transducer(
        1, 0, state, state, labels, labels, np.full(len(ids), log_prob), np.array([log_prob])
    ).to_openfst()


def grammar_from_arpa(path: str | os.PathLike[str], lexicon: Lexicon) -> Any:
    """The n-gram of an ARPA file as a grammar over the lexicon's word ids.

    Args:
        path: the ARPA file. N-grams with words that are not in the lexicon are left out, since nothing says
            how these sound; their probability is lost.
        lexicon: gives the word ids.

    Returns:
        pywrapfst `VectorFst`; back-off arcs carry label 0 on both sides.

    Raises:
        GraphError: no such file, not an ARPA file, or none of its words is in the lexicon.
        MissingExtraError: kaldilm is not installed.
    """
    require("kaldilm", extra="recipes")
    name = os.fspath(path)
    if not Path(name).is_file():
        raise GraphError(f"{name}: no such file; expected an n-gram in ARPA format")
    _check_header(Path(name))
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        words, fst = Path(folder, "words.txt"), Path(folder, "grammar.fst")
        words.write_text(_symbol_table(lexicon), encoding="utf-8")
        command = [sys.executable, "-c", _CONVERT, name, str(words), str(fst)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            reason = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise GraphError(
                f"{name}: not an n-gram in ARPA format ({' '.join(reason) or 'no reason given'})"
            )
        grammar = read_transducer(fst)
    backoff = len(lexicon.words) + 1
    ilabel = np.where(grammar.ilabel == backoff, 0, grammar.ilabel).astype(np.int32)
    if not (ilabel > 0).any():
        raise GraphError(f"{name}: none of its words is among the {len(lexicon.words)} words of the lexicon")
    return Transducer(
        grammar.num_states,
        grammar.start,
        grammar.src,
        grammar.dst,
        ilabel,
        grammar.olabel,
        grammar.log_prob,
        grammar.final_log_prob,
    ).to_openfst()


def _check_header(path: Path) -> None:
    """Refuse claims of an ARPA file, before its end of the header, for which kaldilm would take memory."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_HEADER_LINE), b""):
            if line.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) or line.endswith(b"\r\n"):
                raise GraphError(
                    f"{path}: a byte order mark or ends of lines of Windows; save the file without"
                )
            found = _COUNT.match(line)
            if found and (int(found[1]) > _HIGHEST_ORDER or int(found[2]) > size):
                given = line.decode("latin-1").strip()[:80]
                raise GraphError(
                    f"{path}: claims {given!r}; expected an order of at most {_HIGHEST_ORDER}, and at most {size} n-grams"
                )
            if line.startswith(b"\\1-grams:"):
                return


def _symbol_table(lexicon: Lexicon) -> str:
    """Word ids as kaldilm reads them: words, then the symbols that only the conversion knows."""
    reserved = (_BACKOFF, START, END)
    bad = [word for word in lexicon.words if word in (_EPSILON, *reserved) or word.split() != [word]]
    if bad:
        expected = f"expected no white space and none of {', '.join((_EPSILON, *reserved))}"
        raise GraphError(f"word {bad[0]!r} of the lexicon cannot stand in an ARPA grammar: {expected}")
    names = chain([_EPSILON], lexicon.words, reserved)
    return "".join(f"{word} {index}\n" for index, word in enumerate(names))
