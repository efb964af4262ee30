"""A language model of words by a neural network that reads how they are spelt, for texts too small for n-grams alone.

The words w that may follow the last `CONTEXT` ones, v_1 v_2 ..., the sentence's start repeated where there are fewer:

    e(v)       = a vector of the word's own + sum over its letter sequences / root of their number
    h          = M relu(L [e(v_1), e(v_2), ...])
    P(w | h)   = softmax over w of h . e'(w) + b(w),        e' like e, with vectors of its own

after Bengio et al., "A neural probabilistic language model", JMLR 2003, and, for letter sequences, Bojanowski et al.,
"Enriching word vectors with subword information", TACL 2017. Words that the text lacks are one w, whose probability they
share evenly; in the history each has the letter sequences that it shares with words of the text. What that w is like is
learnt from words that the text has once: often, one of them is put in its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fsachain.errors import ConfigError, GraphError
from fsachain.progress import counter

CONTEXT = 4  # words
_LETTERS = (2, 3, 4)  # lengths of letter sequences, word edges included
_WIDTH, _HIDDEN = 96, 192
_DROPOUT, _WORD_DROPOUT = 0.5, 0.1
_NEW_PREDICTED, _NEW_BEFORE = 0.7, 0.3  # how often a word that occurs once counts as new
_BATCH = 128  # words
_PEAK = 5e-3  # learning rate per step
_DECAY = 0.5  # of the vectors; the layers' is a fifth
_GRADIENT_NORM = 1.0
_CASES_AT_ONCE = 1024  # words that `log_probs` scores together
_END, _START, _NEW = range(3)
MARKS = ("</s>", "<s>", "<new>")


class WordNetwork(nn.Module):
    """P(w | h) for the words of `counts`, those of a text, and of `vocabulary`; evaluate with `log_probs`."""

    def __init__(self, counts: Counter[str], vocabulary: Iterable[str]) -> None:
        super().__init__()
        known = sorted(counts)
        new = sorted({*vocabulary} - {*known})
        self.counts, self.new_words = counts, tuple(new)
        names = (*MARKS, *known, *new)
        self._ids = {name: place for place, name in enumerate(names)}
        self.num_known, self._num_new = len(names) - len(new), len(new)
        spelt: list[Sequence[str]] = [(), (), (), *(letter_sequences(name) for name in names[len(MARKS) :])]
        # Sequences that one word alone has say no more than its own vector.
        occur = Counter(chain.from_iterable(map(set, spelt[: self.num_known])))
        letters = {one: place for place, one in enumerate(sorted(o for o, n in occur.items() if n > 1))}
        kept = [[letters[one] for one in parts if one in letters] for parts in spelt]
        sizes = [len(parts) for parts in kept]
        self._parts = torch.tensor([*chain.from_iterable(kept)], dtype=torch.int64)
        self._begin = torch.tensor([0, *np.cumsum(sizes)[:-1]], dtype=torch.int64)
        self._share = torch.tensor([1 / math.sqrt(size) for size in sizes for _ in range(size)])
        self._known_parts = sum(sizes[: self.num_known])

        own = torch.randn(len(names), _WIDTH) * 0.05
        own[self.num_known :] = 0.0
        self.read, self.read_letters = (
            nn.Parameter(own),
            nn.Parameter(torch.randn(len(letters), _WIDTH) * 0.05),
        )
        self.said = nn.Parameter(torch.zeros(self.num_known, _WIDTH))
        self.said_letters = nn.Parameter(torch.randn(len(letters), _WIDTH) * 0.05)
        often = torch.tensor([float(counts[name]) for name in names[: self.num_known]])
        often[_NEW] = _NEW_PREDICTED * sum(count == 1 for count in counts.values())
        self.bias = nn.Parameter(torch.log((often + 0.3) / (often + 0.3).sum()))
        self.once = torch.tensor([counts[name] == 1 for name in names])
        self.first, self.second = nn.Linear(CONTEXT * _WIDTH, _HIDDEN), nn.Linear(_HIDDEN, _WIDTH)
        self.dropout = nn.Dropout(_DROPOUT)

    def _vectors(self, own: Tensor, letters: Tensor) -> Tensor:
        """Of the first `len(own)` words."""
        num, parts = len(own), slice(None if len(own) == len(self._begin) else self._known_parts)
        bag = F.embedding_bag(
            self._parts[parts], letters, self._begin[:num], mode="sum", per_sample_weights=self._share[parts]
        )
        return own + bag

    def forward(self, before: Tensor) -> Tensor:
        """Log-probabilities [N, num_known] of what follows the words `before` [N, CONTEXT]."""
        vectors = self._vectors(self.read, self.read_letters)[before]
        if self.training:
            vectors = vectors * (torch.rand(before.shape) >= _WORD_DROPOUT)[..., None]
        hidden = torch.relu(self.first(self.dropout(vectors.flatten(1))))
        hidden = self.dropout(self.second(self.dropout(hidden)))
        scores = hidden @ self._vectors(self.said, self.said_letters).T + self.bias
        scores[:, _START] = -math.inf
        return F.log_softmax(scores, dim=1)

    def encoded(self, sentence: Sequence[str]) -> list[int]:
        """Numbers of `CONTEXT` starts, the words, and the end."""
        return [*[_START] * CONTEXT, *(self._ids.get(word, _NEW) for word in sentence), _END]

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
        """Natural log-probabilities of each word and of the end, by sentence.

        A word of neither text nor vocabulary counts as a new one.
        """
        rows = [self.encoded(sentence) for sentence in sentences]
        cases = sorted(
            {tuple(row[end - CONTEXT : end + 1]) for row in rows for end in range(CONTEXT, len(row))}
        )
        found: dict[tuple[int, ...], float] = {}
        with torch.inference_mode():
            for first in range(0, len(cases), _CASES_AT_ONCE):
                some = torch.tensor(cases[first : first + _CASES_AT_ONCE])
                said = torch.where(some[:, -1] < self.num_known, some[:, -1], _NEW)
                log_prob = self(some[:, :-1])[torch.arange(len(some)), said]
                log_prob = log_prob - (said == _NEW) * math.log(max(1, self._num_new))
                found |= zip(cases[first:], log_prob.tolist(), strict=False)
        return [
            np.array([found[tuple(row[end - CONTEXT : end + 1])] for end in range(CONTEXT, len(row))])
            for row in rows
        ]


@lru_cache(maxsize=1 << 16)
def letter_sequences(word: str) -> tuple[str, ...]:
    """Of two to four letters, the word's edges, written ^ and $, among them."""
    edged = f"^{word}$"
    return tuple(edged[i : i + n] for n in _LETTERS for i in range(len(edged) - n + 1))


def train_word_network(
    sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], num_epochs: int = 30, seed: int = 0
) -> WordNetwork:
    """Learn a text of sentences, with a bar, in so many passes over it.

    `vocabulary` are all words that may be asked for; those that the text lacks share the probability of a new word. The
    same arguments give the same network on one machine; torch's seed is left alone. ConfigError: no epoch. GraphError: no
    sentence.
    """
    if num_epochs < 1:
        raise ConfigError(f"num_epochs = {num_epochs}: expected at least 1")
    text = [tuple(sentence) for sentence in sentences]
    if not text:
        raise GraphError("sentences is empty: expected at least one sentence")
    with torch.random.fork_rng(devices=[]), counter("word network") as update:
        torch.manual_seed(seed)
        network = WordNetwork(Counter(chain.from_iterable(text)), vocabulary)
        rows = [network.encoded(sentence) for sentence in text]
        cases = torch.tensor(
            [row[end - CONTEXT : end + 1] for row in rows for end in range(CONTEXT, len(row))]
        )
        vectors = [network.read, network.read_letters, network.said, network.said_letters]
        layers = [*network.first.parameters(), *network.second.parameters()]
        optimizer = torch.optim.AdamW(
            [
                {"params": vectors, "weight_decay": _DECAY},
                {"params": layers, "weight_decay": _DECAY / 5},
                {"params": [network.bias], "weight_decay": 0.0},
            ],
            lr=_PEAK,
        )
        steps = num_epochs * math.ceil(len(cases) / _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK, total_steps=steps)
        for epoch in range(num_epochs):
            for some in cases[torch.randperm(len(cases))].split(_BATCH):
                new = network.once[some]
                new[:, :-1] &= torch.rand(some[:, :-1].shape) < _NEW_BEFORE
                new[:, -1] &= torch.rand(len(some)) < _NEW_PREDICTED
                some = some.masked_fill(new, _NEW)
                loss = F.nll_loss(network(some[:, :-1]), some[:, -1])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), _GRADIENT_NORM)
                optimizer.step()
                schedule.step()
            update(epoch + 1, num_epochs)
    return network.eval()
