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
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import ConfigError, GraphError, require
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.openfst import read_fst
from fsachain.graph.transducer import Transducer

START, END = "<s>", "</s>"
_EPSILON, _BACKOFF = "<eps>", "#0"

# kaldilm ends the whole process on a malformed file, hence a process of its own.
_CONVERT = """
import sys, kaldilm
arpa, words, fst = sys.argv[1:]
kaldilm.arpa2fst(arpa, output_fst=fst, disambig_symbol="#0", read_symbol_table=words, max_arpa_warnings=0)
"""

Ngram = tuple[str, ...]


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
        grammar = Transducer.from_openfst(read_fst(fst))
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


def _symbol_table(lexicon: Lexicon) -> str:
    """Word ids as kaldilm reads them: words, then the symbols that only the conversion knows."""
    reserved = (_BACKOFF, START, END)
    bad = [word for word in lexicon.words if word in (_EPSILON, *reserved) or word.split() != [word]]
    if bad:
        expected = f"expected no white space and none of {', '.join((_EPSILON, *reserved))}"
        raise GraphError(f"word {bad[0]!r} of the lexicon cannot stand in an ARPA grammar: {expected}")
    names = (_EPSILON, *lexicon.words, *reserved)
    return "".join(f"{word} {index}\n" for index, word in enumerate(names))


def estimate_arpa(
    sentences: Iterable[Sequence[str]], order: int = 3, *, vocabulary: Iterable[str] = ()
) -> str:
    """Estimate a word n-gram with interpolated Witten-Bell smoothing.

    With c counts, T(h) the number of different words seen after history h and h' the history without its
    oldest word:  P(w | h) = (c(h, w) + T(h) P(w | h')) / (c(h) + T(h)); below the unigrams stands the uniform
    distribution over vocabulary and sentence end (Witten and Bell, IEEE Trans. Information Theory, 1991). It
    needs no counts of counts, so it is sound on a few hundred sentences too. Nothing is pruned.

    Args:
        sentences: words of each sentence; an empty sentence counts as start and end.
        order: longest n-gram, at least 1.
        vocabulary: words that get a probability even if no sentence has them, such as `lexicon.words`. Words
            of the sentences always belong to it.

    Returns:
        The n-gram in ARPA format (log10 probabilities and back-off weights).

    Raises:
        ConfigError: order below 1.
        GraphError: no sentence, a sentence that is a string, a word with white space, or `<s>` or `</s>`.
    """
    if order < 1:
        raise ConfigError(f"order = {order}: expected at least 1")
    followers: defaultdict[Ngram, Counter[str]] = defaultdict(Counter)
    for number, sentence in enumerate(sentences):
        _check_words(sentence, f"sentences[{number}]")
        history: Ngram = (START,)[: order - 1]
        for word in (*sentence, END):
            for first in range(len(history) + 1):
                followers[history[first:]][word] += 1
            history = (*history, word)[1 - order :] if order > 1 else ()
    if not followers:
        raise GraphError("sentences is empty: expected at least one sentence")
    words = vocabulary if isinstance(vocabulary, str) else tuple(vocabulary)
    _check_words(words, "vocabulary")
    return _arpa_text(order, _witten_bell(followers, words), followers)


def _check_words(words: Sequence[str], where: str) -> None:
    if isinstance(words, str):
        raise GraphError(f"{where} = {words!r}: expected a sequence of words, such as text.split()")
    for word in words:
        if not isinstance(word, str) or word.split() != [word] or word in (START, END):
            expected = f"expected a word without white space, not {START} or {END}"
            raise GraphError(f"{where} has the word {word!r}: {expected}")


def _witten_bell(followers: dict[Ngram, Counter[str]], vocabulary: Iterable[str]) -> dict[Ngram, float]:
    """Interpolated probability of every n-gram seen, and of every word of the vocabulary as unigram."""
    unigrams = followers[()]
    types = dict.fromkeys([*unigrams, *vocabulary])
    prob: dict[Ngram, float] = {}
    for history in sorted(followers, key=len):
        counts = followers[history]
        total, weight = counts.total(), len(counts)
        for word in counts if history else types:
            lower = prob[(*history[1:], word)] if history else 1 / len(types)
            prob[(*history, word)] = (counts[word] + weight * lower) / (total + weight)
    return prob


def _arpa_text(order: int, prob: dict[Ngram, float], followers: dict[Ngram, Counter[str]]) -> str:
    by_length: dict[int, list[Ngram]] = {length: [] for length in range(1, order + 1)}
    for ngram in prob:
        by_length[len(ngram)].append(ngram)
    by_length[1].append((START,))
    by_length = {length: sorted(ngrams) for length, ngrams in by_length.items() if ngrams}
    header = [f"ngram {length}={len(ngrams)}" for length, ngrams in by_length.items()]
    return "\n".join(["\\data\\", *header, *_sections(by_length, prob, followers), "", "\\end\\", ""])


def _sections(
    by_length: dict[int, list[Ngram]], prob: dict[Ngram, float], followers: dict[Ngram, Counter[str]]
) -> Iterator[str]:
    for length, ngrams in by_length.items():
        yield ""
        yield f"\\{length}-grams:"
        for ngram in ngrams:
            # -99 is the format's "never": the start is a history, no word predicts it.
            log_prob = math.log10(prob[ngram]) if ngram in prob else -99.0
            counts = followers.get(ngram)
            backoff = (
                "" if counts is None else f"\t{math.log10(len(counts) / (counts.total() + len(counts))):.9f}"
            )
            yield f"{log_prob:.9f}\t{' '.join(ngram)}{backoff}"
