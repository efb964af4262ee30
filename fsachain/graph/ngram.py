"""Word n-grams of a training text, in ARPA format: interpolated modified Kneser-Ney smoothing.

Equations (after Chen and Goodman, Computer Speech and Language 13, 1999). h is a history, h' the same without
its oldest word, c(h, w) a count, c(h) its sum over w, V the number of words that can be predicted:

    (1)  P(w | h) = (c(h, w) - D(c(h, w))) / c(h) + lambda(h) P(w | h')          below the unigrams: 1 / V (2)
    lambda(h) = sum over w seen after h of D(c(h, w)) / c(h)                the back-off weight of h (3)  D(k)
    = k - (k + 1) Y n(k + 1) / n(k) for k = 1, 2, 3 (3 for more), D(0) = 0,  Y = n(1) / (n(1) + 2 n(2))

n(k) is the number of n-grams of one order with count k. Counts of the highest order, and of n-grams that
begin with the sentence start, are how often the n-gram occurs; all others are how many different words
precede it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fsachain.errors import ConfigError, GraphError

START, END = "<s>", "</s>"

# For texts so small that (3) is not defined or leaves its range.
FALLBACK_DISCOUNTS = (0.0, 0.5, 1.0, 1.5)

Ngram = tuple[str, ...]
Followers = dict[Ngram, Counter[str]]


def estimate_arpa(
    sentences: Iterable[Sequence[str]], order: int = 3, *, vocabulary: Iterable[str] = ()
) -> str:
    """Estimate a word n-gram of a text by equations (1) to (3). Nothing is pruned.

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
        if length == 1:
            _smooth(counts, dict.fromkeys([*counts[()], *words]), prob, backoff)
        else:
            _smooth(counts, None, prob, backoff)
    return _arpa_text(prob, backoff)


def discounts(counts_of_counts: Mapping[int, int]) -> tuple[float, float, float, float]:
    """D(0), D(1), D(2), D(3 or more) of equation (3), or fallback values where it gives none of use.

    Args:
        counts_of_counts: n(k), the number of n-grams with count k; k = 1 to 4 are used.
    """
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
    counts: Followers, types: Iterable[str] | None, prob: dict[Ngram, float], backoff: dict[Ngram, float]
) -> None:
    """Equations (1) and (2) for the n-grams of one length; `types` are the words of V, for unigrams only."""
    discount = discounts(Counter(count for words in counts.values() for count in words.values()))
    for history, words in counts.items():
        total = words.total()
        backoff[history] = sum(discount[min(count, 3)] for count in words.values()) / total
        predicted = list(words) if types is None else list(types)
        for word in predicted:
            lower = prob[(*history[1:], word)] if history else 1 / len(predicted)
            kept = words[word] - discount[min(words[word], 3)]
            prob[(*history, word)] = kept / total + backoff[history] * lower


def _check_words(words: Sequence[str], where: str) -> None:
    if isinstance(words, str):
        raise GraphError(f"{where} = {words!r}: expected a sequence of words, such as text.split()")
    for word in words:
        if not isinstance(word, str) or word.split() != [word] or word in (START, END):
            expected = f"expected a word without white space, not {START} or {END}"
            raise GraphError(f"{where} has the word {word!r}: {expected}")


def _arpa_text(prob: dict[Ngram, float], backoff: dict[Ngram, float]) -> str:
    by_length: defaultdict[int, list[Ngram]] = defaultdict(list)
    for ngram in (*prob, (START,)):
        by_length[len(ngram)].append(ngram)
    header = [f"ngram {length}={len(ngrams)}" for length, ngrams in sorted(by_length.items())]
    lines = [
        line for _, ngrams in sorted(by_length.items()) for line in _section(sorted(ngrams), prob, backoff)
    ]
    return "\n".join(["\\data\\", *header, *lines, "", "\\end\\", ""])


def _section(ngrams: list[Ngram], prob: dict[Ngram, float], backoff: dict[Ngram, float]) -> Iterator[str]:
    yield ""
    yield f"\\{len(ngrams[0])}-grams:"
    for ngram in ngrams:
        # -99 is the format's "never": the start is a history, no word predicts it.
        log_prob = math.log10(prob[ngram]) if ngram in prob else -99.0
        weight = f"\t{math.log10(backoff[ngram]):.9f}" if ngram in backoff else ""
        yield f"{log_prob:.9f}\t{' '.join(ngram)}{weight}"
