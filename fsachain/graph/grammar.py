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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fsachain.errors import ConfigError, DataError, GraphError, counted, refuse_text, require
from fsachain.files import GZIP, most_unpacked, unpack
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.transducer import ranks
from fsachain.openfst import Transducer, read_transducer

__all__ = ["estimate_arpa", "grammar_from_arpa", "word_loop"]


# Word n-grams of a training text, in ARPA format: interpolated modified Kneser-Ney smoothing.
#
# Equations (after Chen and Goodman, Computer Speech and Language 13, 1999). h is a history, h' the same
# without its oldest word, c(h, w) a count, c(h) its sum over w, V the number of words that can be predicted, U of them
# not in the text:
#
#     (1)  P(w | h)  = (c(h, w) - D(c(h, w))) / c(h) + lambda(h) P(w | h')            for unigrams (4) in place of P(w | h')
#     (2)  lambda(h) = sum over w seen after h of D(c(h, w)) / c(h)                   the back-off weight of h
#     (3)  D(k)      = k - (k + 1) Y n(k + 1) / n(k) for k = 1, 2, 3 (3 for more),    Y = n(1) / (n(1) + 2 n(2)),
#          D(0)      = 0
#     (4)  lambda() P(w | nothing) = min(lambda() / U, 1 / V) for words not in the text, the rest evenly for the others
#
# What the discount of unigrams sets aside is the text's estimate of how often a new word comes, and in a vocabulary
# the new words are known: (4) gives it to them, where an even share for all V words would give most of it to words that
# have been counted already. The bound is for a few stray entries of a lexicon: none is likelier than the mean word.
#
# n(k) is the number of n-grams of one order with count k. Counts of the highest order, and of n-grams that
# begin with the sentence start, are how often the n-gram occurs; all others are how many different words
# precede it.

START, END = "<s>", "</s>"

# For texts so small that (3) is not defined or leaves its range.
FALLBACK_DISCOUNTS = (0.0, 0.5, 1.0, 1.5)

Ngram = tuple[str, ...]
Followers = dict[Ngram, Counter[str]]


def estimate_arpa(
    sentences: Iterable[Sequence[str]], order: int = 3, *, vocabulary: Iterable[str] = ()
) -> str:
    """Estimate a word n-gram of a text by equations (1) to (4). Nothing is pruned.

    Args:
        sentences: words of each sentence; an empty sentence counts as start and end.
        order: longest n-gram, at least 1.
        vocabulary: words that get a probability even if no sentence has them, such as `lexicon.words`. Words
            of the sentences always belong to it.

    Returns:
        The n-gram in ARPA format (log10 of probabilities and back-off weights).

    Raises:
        ConfigError: order below 1.
        GraphError: no sentence, a sentence that is a string, a word with white space, or `<s>` or `</s>`.
    """
    if order < 1:
        raise ConfigError(f"order = {order}: expected at least 1")
    occurrences = _count(sentences, order)
    words = vocabulary if isinstance(vocabulary, str) else tuple(vocabulary)
    _check_words(words, "vocabulary")
    prob: dict[Ngram, float] = {}
    backoff: dict[Ngram, float] = {}
    for length in range(1, order + 1):
        counts = occurrences[length] if length == order else _preceding(occurrences, length)
        types = list(dict.fromkeys([*counts[()], *words])) if length == 1 else []
        _smooth(counts, types, prob, backoff)
    return _arpa_text(prob, backoff)


def discounts(counts_of_counts: Mapping[int, int]) -> tuple[float, float, float, float]:
    """D(0), D(1), D(2), D(3 or more) of equation (3) from n(1) to n(4), or fallback values where it leaves its range."""
    n = [counts_of_counts.get(k, 0) for k in range(5)]
    if not all(n[1:4]):
        return FALLBACK_DISCOUNTS
    y = n[1] / (n[1] + 2 * n[2])
    found = (0.0, *(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)))
    if not all(0 < found[k] < k for k in (1, 2)) or not 0 < found[3] <= 3:
        return FALLBACK_DISCOUNTS
    return found[0], found[1], found[2], found[3]


def _count(sentences: Iterable[Sequence[str]], order: int) -> list[Followers]:
    """How often each word follows each history, by n-gram length; entry 0 is empty."""
    found: list[Followers] = [defaultdict(Counter) for _ in range(order + 1)]
    for number, sentence in enumerate(sentences):
        _check_words(sentence, f"sentences[{number}]")
        words = (START, *sentence, END)
        for last in range(1, len(words)):
            for length in range(1, min(order, last + 1) + 1):
                found[length][words[last - length + 1 : last]][words[last]] += 1
    if not found[1]:
        raise GraphError("sentences is empty: expected at least one sentence")
    return found


def _preceding(occurrences: list[Followers], length: int) -> Followers:
    """How many words precede each n-gram of `length`; occurrences where it begins with the start."""
    found: Followers = defaultdict(Counter)
    for history, words in occurrences[length + 1].items():
        found[history[1:]].update(words.keys())
    for history, words in occurrences[length].items():
        if history[:1] == (START,):
            found[history] = words
    return found


def _smooth(
    counts: Followers, types: Sequence[str], prob: dict[Ngram, float], backoff: dict[Ngram, float]
) -> None:
    """Equations (1), (2) and (4) for the n-grams of one length; `types` are the words of V, for unigrams only."""
    discount = discounts(Counter(count for words in counts.values() for count in words.values()))
    for history, words in counts.items():
        total = words.total()
        backoff[history] = sum(discount[min(count, 3)] for count in words.values()) / total
        shared = _shared(backoff[history], words, types) if types else {}
        for word in shared or words:
            lower = shared[word] if shared else backoff[history] * prob[(*history[1:], word)]
            prob[(*history, word)] = (words[word] - discount[min(words[word], 3)]) / total + lower


def _shared(mass: float, seen: Counter[str], types: Sequence[str]) -> dict[str, float]:
    """Equation (4): what each of `types` gets of `mass`, which the discount of unigrams set aside."""
    num_new = sum(word not in seen for word in types)
    of_new = min(mass / num_new, 1 / len(types)) if num_new else 0.0
    of_seen = (mass - num_new * of_new) / (len(types) - num_new)
    return {word: of_seen if word in seen else of_new for word in types}


def _check_words(words: Sequence[str], where: str) -> None:
    refuse_text(where, words)
    for word in words:
        if not isinstance(word, str) or word.split() != [word] or word in (START, END):
            expected = f"expected a word without white space, not {START} or {END}"
            raise GraphError(f"{where} has the word {word!r}: {expected}")


def _arpa_text(prob: dict[Ngram, float], backoff: dict[Ngram, float]) -> str:
    by_length: defaultdict[int, list[Ngram]] = defaultdict(list)
    for ngram in (*prob, (START,)):
        by_length[len(ngram)].append(ngram)
    header = [f"ngram {length}={len(ngrams)}" for length, ngrams in sorted(by_length.items())]
    lines = ["\\data\\", *header]
    for length, ngrams in sorted(by_length.items()):
        lines += ["", f"\\{length}-grams:"]
        for ngram in sorted(ngrams):
            # -99 is the format's "never": the start is a history, no word predicts it.
            log_prob = math.log10(prob[ngram]) if ngram in prob else -99.0
            weight = f"\t{math.log10(backoff[ngram]):.9f}" if ngram in backoff else ""
            lines.append(f"{log_prob:.9f}\t{' '.join(ngram)}{weight}")
    return "\n".join([*lines, "", "\\end\\", ""])


_EPSILON, _BACKOFF = "<eps>", "#0"

_COUNT = re.compile(rb"\s*ngram\s+(\d{1,18})\s*=\s*(\d{1,18})")
_SECTION = re.compile(rb"\\\d+-grams:")
_BELOW_ZERO = re.compile(rb"\s*-(?:\d|\.\d|inf)")
_HIGHEST_ORDER = 20
_LONGEST_ARPA_LINE = 1 << 16

# kaldilm ends the whole process on a malformed file, hence a process of its own.
_CONVERT = """
import sys, kaldilm
arpa, words, fst = sys.argv[1:]
kaldilm.arpa2fst(arpa, output_fst=fst, disambig_symbol="#0", read_symbol_table=words, max_arpa_warnings=0)
"""


def word_loop(words: Sequence[str], lexicon: Lexicon) -> Any:
    """A grammar in which any of `words` may follow any other; each, and the end, has the same probability.

    A pywrapfst `VectorFst` of one state.
    """
    refuse_text("words", words)
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
        path: the ARPA file, or one packed by gzip. N-grams with words that are not in the lexicon are left out, since
            nothing says how these sound; their probability is lost.
        lexicon: gives the word ids.

    Returns:
        pywrapfst `VectorFst`; back-off arcs carry label 0 on both sides.

    Raises:
        GraphError: no such file, not an ARPA file, a log-probability above 0 (named by its line), or none of its words is
            in the lexicon.
        MissingExtraError: kaldilm is not installed.
    """
    return _read_arpa(path, lexicon.words, "words of the lexicon").to_openfst()


def _read_arpa(path: str | os.PathLike[str], names: Sequence[str], what: str) -> Transducer:
    """The n-gram over the ids of `names`, which are called `what` in messages; back-off arcs have label 0."""
    require("kaldilm", extra="recipes")
    name = os.fspath(path)
    if not Path(name).is_file():
        raise GraphError(f"{name}: no such file; expected an n-gram in ARPA format")
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        words, fst = Path(folder, "words.txt"), Path(folder, "grammar.fst")
        words.write_text(_symbol_table(names, what), encoding="utf-8")
        arpa = _unpacked(Path(name), Path(folder, "lm.arpa"))
        _check_lines(arpa, name)
        command = [sys.executable, "-c", _CONVERT, str(arpa), str(words), str(fst)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            reason = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise GraphError(
                f"{name}: not an n-gram in ARPA format ({' '.join(reason) or 'no reason given'})"
            )
        grammar = read_transducer(fst)
    backoff = len(names) + 1
    ilabel = np.where(grammar.ilabel == backoff, 0, grammar.ilabel).astype(np.int32)
    if not (ilabel > 0).any():
        raise GraphError(f"{name}: none of its words is among the {len(names)} {what}")
    return replace(grammar, ilabel=ilabel)


def _unpacked(path: Path, into: Path) -> Path:
    """The file itself, or what gzip packed into it, written to `into`."""
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
    if not is_packed:
        return path
    try:
        unpack(path, into, most_unpacked(path.stat().st_size))
    except DataError as error:
        raise GraphError(str(error)) from error
    return into


def _check_lines(path: Path, name: str) -> None:
    """Refuse counts in the header for which kaldilm would reserve memory, and log-probabilities above 0."""
    size = path.stat().st_size
    in_section = False
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(_LONGEST_ARPA_LINE), b"")
        for number, line in enumerate(lines, 1):
            if in_section and _BELOW_ZERO.match(line):
                continue
            if line.startswith(b"\\"):
                in_section = _SECTION.match(line) is not None
            elif in_section:
                _check_log_prob(line, f"{name}:{number}")
            else:
                _check_header_line(line, name, size)


def _check_header_line(line: bytes, name: str, size: int) -> None:
    if line.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) or line.endswith(b"\r\n"):
        raise GraphError(f"{name}: a byte order mark or ends of lines of Windows; save the file without")
    found = _COUNT.match(line)
    if found and (int(found[1]) > _HIGHEST_ORDER or int(found[2]) > size):
        came = line.decode("latin-1").strip()[:80]
        raise GraphError(
            f"{name}: claims {came!r}; expected an order of at most {_HIGHEST_ORDER}, and at most {counted(size, 'n-gram')}"
        )


def _check_log_prob(line: bytes, where: str) -> None:
    fields = line.split(None, 1)
    if not fields:
        return
    came = fields[0].decode("utf-8", "replace")[:40]
    try:
        is_log_prob = float(came) <= 0.0
    except ValueError:
        is_log_prob = False
    if not is_log_prob:
        raise GraphError(
            f"{where}: {came!r} in the place of a log-probability; expected a number of at most 0, the base-10 logarithm of "
            "a probability"
        )


def _symbol_table(names: Sequence[str], what: str) -> str:
    """The words.txt that kaldilm reads: the names, then symbols that only the conversion uses."""
    refuse_text(what, names, expected="a sequence of names")
    reserved = (_BACKOFF, START, END)
    bad = [name for name in names if name in (_EPSILON, *reserved) or name.split() != [name]]
    if bad:
        expected = f"expected no white space and none of {', '.join((_EPSILON, *reserved))}"
        raise GraphError(f"{bad[0]!r} among the {what} cannot stand in an ARPA grammar: {expected}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise GraphError(f"{twice[0]!r} occurs twice among the {what}")
    lines = chain([_EPSILON], names, reserved)
    return "".join(f"{name} {index}\n" for index, name in enumerate(lines))


# A smoothed n-gram as an acceptor without epsilon arcs, for denominators and for graphs of words.
#
# In an ARPA model a word that was not seen after a history is predicted by a shorter one, times the back-off
# weight of the history. As an FST that is an epsilon arc, through which a seen word can be reached too, a
# second time. Here each history gets an arc for each word, with the one probability that the model gives it:
#
#     P(w | h) = the n-gram's own probability if h w was seen, else backoff(h) P(w | h')
#
# with h' the history without its oldest word. That is (number of histories) x (number of words) arcs: small
# for phones, too many for thousands of units. For those `estimate_phone_lm` of order 2 keeps the pairs that
# were seen and no others.

MAX_ARCS = 20_000_000

_Arcs = dict[int, tuple[int, float]]  # by label: destination and log-probability


def ngram_acceptor(path: str | os.PathLike[str], units: Sequence[str], *, max_arcs: int = MAX_ARCS) -> Fsa:
    """The n-gram of an ARPA file over phones, BPE units or words.

    Args:
        path: the ARPA file, or one packed by gzip; read by kaldilm.
        units: names by id, from id 1 on: `lexicon.phones` for `build_denominator`, the pieces of a BPE model for
            `ctc_denominator`, `lexicon.words` for `phone_model_of_words`. N-grams with other names are left out; their
            probability is lost.
        max_arcs: more than these are refused.

    Returns:
        Deterministic acceptor, label = id - 1. Weights are kaldilm's, in 32 bits.

    Raises:
        GraphError: no such file, no ARPA file, no unit in it, or more arcs than `max_arcs`.
        MissingExtraError: kaldilm is not installed.
    """
    grammar = _read_arpa(path, units, "units")
    try:
        return without_back_off(grammar, max_arcs=max_arcs)
    except GraphError as error:
        raise GraphError(f"{os.fspath(path)}: {error}") from error


def without_back_off(grammar: Transducer, *, max_arcs: int = MAX_ARCS) -> Fsa:
    """A back-off model with its epsilon arcs resolved as above: deterministic, trimmed, label = input label - 1.

    Each state of `grammar` has at most one arc of input label 0, to a shorter history, and one for each other label.
    More than `max_arcs` arcs are refused.
    """
    own = _arcs_by_label(grammar)
    back_off = [[arcs.pop(0)] if 0 in arcs else [] for arcs in own]
    rank = ranks(back_off)
    final = grammar.final_log_prob.copy()
    num_arcs = 0
    for state in sorted(
        range(grammar.num_states), key=rank.__getitem__, reverse=True
    ):  # shorter histories first
        for lower, weight in back_off[state]:
            arcs = {label: (dst, weight + log_prob) for label, (dst, log_prob) in own[lower].items()}
            own[state] = arcs | own[state]
            final[state] = final[state] if final[state] > -np.inf else weight + final[lower]
        num_arcs += len(own[state])
        if num_arcs > max_arcs:
            raise GraphError(
                f"a smoothed n-gram of {counted(grammar.num_states, 'history')} has more than max_arcs = "
                f"{counted(max_arcs, 'arc')}; "
                "an unsmoothed one (estimate_phone_lm) stays small"
            )
    rows = (
        (src, dst, label, label, log_prob)
        for src, arcs in enumerate(own)
        for label, (dst, log_prob) in sorted(arcs.items())
    )
    return input_fsa(Transducer.of_arcs(rows, final, grammar.start)).trim()


def _arcs_by_label(grammar: Transducer) -> list[_Arcs]:
    found: list[_Arcs] = [{} for _ in range(grammar.num_states)]
    for state, (own, arcs) in enumerate(zip(found, grammar.leaving(None), strict=True)):
        for dst, label, _, log_prob, _ in arcs:
            if label in own:
                raise GraphError(
                    f"grammar: state {state} has two arcs of label {label}; expected an n-gram, which has one at most"
                )
            own[label] = (dst, log_prob)
    return found


_END = -1  # as label and as state


class NgramScores:
    """Scores of word sequences under a grammar of `grammar_from_arpa` or `word_loop`.

    A state has at most one arc for each word and one epsilon arc, which backs off; other FSTs are a GraphError.
    """

    def __init__(self, grammar: Any) -> None:
        arcs = Transducer.from_openfst(grammar)
        self._start, self._arcs = arcs.start, _arcs_by_label(arcs)
        for state in np.flatnonzero(arcs.final_log_prob > -math.inf).tolist():
            self._arcs[state][_END] = _END, float(arcs.final_log_prob[state])

    def log_prob(self, word_ids: Iterable[int]) -> float:
        """Natural log-probability of a sentence, its end included; -inf for a word that the grammar does not have.

        A shorter history counts only where the word is unseen after the longer one, as in the n-gram's definition.
        """
        return sum(self.by_word(word_ids))

    def log_probs(self, sentences: Iterable[Iterable[int]]) -> list[float]:
        """`log_prob` of each."""
        return [self.log_prob(one) for one in sentences]

    def by_word(self, word_ids: Iterable[int]) -> list[float]:
        """What each word and the end add to `log_prob`; it ends with the first -inf."""
        state, found = self._start, list[float]()
        for label in (*word_ids, _END):
            backed_off = 0.0
            while (arc := self._arcs[state].get(label)) is None:
                if 0 not in self._arcs[state]:
                    return [*found, -math.inf]
                state, weight = self._arcs[state][0]
                backed_off += weight
            state = arc[0]
            found.append(backed_off + arc[1])
        return found

    def best_path_log_prob(self, word_ids: Iterable[int]) -> float:
        """Log-probability of the best path of a sentence in a decoding graph of this grammar: `log_prob` or more.

        There a path may back off even where the word was seen after the longer history.
        """
        reached = {self._start: 0.0}
        for label in (*word_ids, _END):
            after: dict[int, float] = {}
            for state, total in self._with_backoff(reached).items():
                if label in self._arcs[state]:
                    dst, weight = self._arcs[state][label]
                    after[dst] = max(after.get(dst, -math.inf), total + weight)
            reached = after
        return reached.get(_END, -math.inf)

    def _with_backoff(self, reached: dict[int, float]) -> dict[int, float]:
        """The states of `reached` and those that they back off to, each with the best score."""
        found = dict(reached)
        waiting = list(reached)
        while waiting:
            state = waiting.pop()
            backoff = self._arcs[state].get(0)
            if backoff is not None and found[state] + backoff[1] > found.get(backoff[0], -math.inf):
                found[backoff[0]] = found[state] + backoff[1]
                waiting.append(backoff[0])
        return found
