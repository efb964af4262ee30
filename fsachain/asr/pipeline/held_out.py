"""How well n-grams of some transcripts foretell others of the same corpus: cross-validation over distinct sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, lm_phones
from fsachain.graph.phone_lm import estimate_phone_lm

FOLDS = 5
MOST_SENTENCES = 10_000  # more would not change a choice between orders
# Share of an even distribution in that of a phone. An n-gram that training lacks is impossible for a denominator, up to its
# leak, so it is dear here too: with 1e-3 and 50 phones 11 nats.
EVEN_SHARE = 1e-3
DISCOUNT = 0.75  # of Kneser and Ney's bigrams of words


@dataclass(frozen=True)
class PhoneLmOrder:
    """What an order of the phone language model brings.

    Attributes:
        order, no_prune, extra_states: options of `estimate_phone_lm`.
        held_out: log-likelihood of held-out sentences in nats per phone, sentence ends included.
        unseen: share of held-out phones whose n-gram training lacks, in [0, 1].
        arcs: of the model of all sentences.
    """

    order: int
    no_prune: int
    extra_states: int
    held_out: float
    unseen: float
    arcs: int


def phone_lm_orders(
    transcripts: Sequence[Sequence[str]], lexicon: Lexicon, extra_states: int = 1000, seed: int = 0
) -> list[PhoneLmOrder]:
    """Compare phone language models of order 2, 3 and 4, as `estimate_phone_lm` makes them, on held-out sentences.

    Args:
        transcripts: words of each sentence, all in the lexicon, at least one. Equal sentences are held out together.
        lexicon: pronunciations.
        extra_states: those of the 4-gram beyond its trigram's.
        seed: of the folds, and of silences and pronunciations.

    Returns:
        One entry per order, the lowest first; empty if there are fewer than `FOLDS` distinct sentences.
    """
    fold_of = _folds(transcripts, seed)
    if not fold_of:
        return []
    sentences = [words for words in transcripts if tuple(words) in fold_of]
    phones = lm_phones(sentences, lexicon, seed=seed)
    folds = [fold_of[tuple(words)] for words in sentences]
    found = []
    for order, no_prune, extra in ((2, 2, 0), (3, 3, 0), (4, 3, extra_states)):
        total, unseen, count = 0.0, 0, 0
        for fold in range(FOLDS):
            kept = [one for one, its in zip(phones, folds, strict=True) if its != fold]
            held = [one for one, its in zip(phones, folds, strict=True) if its == fold]
            model = estimate_phone_lm(kept, order, extra, no_prune)
            own_total, own_unseen, own_count = _log_likelihood(model, held, len(lexicon.phones))
            total, unseen, count = total + own_total, unseen + own_unseen, count + own_count
        whole = estimate_phone_lm(phones, order, extra, no_prune)
        found.append(PhoneLmOrder(order, no_prune, extra, total / count, unseen / count, whole.num_arcs))
    return found


def _folds(transcripts: Sequence[Sequence[str]], seed: int) -> dict[tuple[str, ...], int]:
    """The fold of each distinct sentence; at most MOST_SENTENCES of them, drawn."""
    distinct = list(dict.fromkeys(tuple(words) for words in transcripts if words))
    if len(distinct) < FOLDS:
        return {}
    order = np.random.default_rng(seed).permutation(len(distinct))[:MOST_SENTENCES]
    return {distinct[place]: number % FOLDS for number, place in enumerate(order)}


def _log_likelihood(
    model: Fsa, sentences: Sequence[Sequence[int]], num_phones: int
) -> tuple[float, int, int]:
    """Log-likelihood in nats, unseen n-grams, and phones with sentence ends.

    After an unseen n-gram the model goes on where its phone leads most often.
    """
    arcs: dict[tuple[int, int], tuple[int, float]] = {}
    led: dict[int, Counter[int]] = {}
    columns = (model.src, model.pdf, model.dst, model.log_prob)
    for source, pdf, target, log_prob in zip(*(column.tolist() for column in columns), strict=True):
        arcs[source, pdf] = target, log_prob
        led.setdefault(pdf, Counter())[target] += 1
    usual = {pdf: targets.most_common(1)[0][0] for pdf, targets in led.items()}
    final = model.final_log_prob.tolist()
    even = EVEN_SHARE / (num_phones + 1)
    total, unseen, count = 0.0, 0, 0
    for phones in sentences:
        state = model.start
        for phone in phones:
            target, log_prob = arcs.get((state, phone - 1), (usual.get(phone - 1, model.start), -math.inf))
            total += math.log((1 - EVEN_SHARE) * math.exp(log_prob) + even)
            unseen += log_prob == -math.inf
            state = target
        total += math.log((1 - EVEN_SHARE) * math.exp(final[state]) + even)
        unseen += final[state] == -math.inf
        count += len(phones) + 1
    return total, unseen, count


def word_gain(transcripts: Sequence[Sequence[str]], vocabulary: int, seed: int = 0) -> float:
    """Return what a bigram of words knows of held-out sentences: nats per word beyond a loop of equally likely words.

    Args:
        transcripts: words of each sentence. Equal sentences are held out together.
        vocabulary: words of the lexicon that may be spoken.
        seed: of the folds.

    Returns:
        Nats per word, 0 if there are too few sentences.
    """
    fold_of = _folds(transcripts, seed)
    if not fold_of:
        return 0.0
    total, count = 0.0, 0
    for fold in range(FOLDS):
        # Repetitions count: prompts that are read often are likely.
        pairs, singles, histories = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
        held = []
        for words in transcripts:
            own = fold_of.get(tuple(words))
            if own == fold:
                held.append(words)
            elif own is not None:
                for pair in _pairs(words):
                    pairs[pair] += 1
        for (history, word), times in pairs.items():
            singles[word] += times
            histories[history] += times
        kinds = Counter(history for history, _ in pairs)
        all_words = max(1, singles.total())
        for words in held:
            for history, word in _pairs(words):
                backed = (singles[word] + 1) / (all_words + vocabulary)
                seen = histories[history]
                if seen:
                    own_share = max(0.0, pairs[history, word] - DISCOUNT) / seen
                    backed = own_share + DISCOUNT * kinds[history] / seen * backed
                total += math.log(backed) + math.log(vocabulary)
                count += 1
    return total / max(1, count)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word with the one before; the first follows the empty string."""
    before = ""
    for word in words:
        yield before, word
        before = word
