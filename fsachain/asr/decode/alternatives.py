"""Transcripts that leave a choice, in NIST's notation, and their alignment with sclite's costs.

`{ um / uh / @ }` is one of the alternatives, where `@` stands for no word; alternatives may have several words and
alternatives of their own. `(uh)` may be missing on the other side. With fragments, `th-` matches every word that begins
with "th", and `-ing` every word that ends in "ing".

A transcript becomes an acyclic graph whose arcs are words. The alignment is the cheapest pair of paths through two such
graphs: a substitution costs 4, an insertion or a deletion 3, an optional word that is missing 2, `@` next to nothing. Of
equally cheap alignments the one that sclite takes is taken, so that its counts come out the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, counted

OPEN, OR, CLOSE, NOTHING = "{", "/", "}", "@"
DEEPEST = 32  # alternatives inside alternatives
_MOST_LINKS = (
    1 << 20
)  # between a word and those before it; twenty thousand alternatives twice in a row have more
_MOST_CELLS = 1 << 27  # of an alignment, 4 bytes each: 11,000 words against 11,000


class Costs(NamedTuple):
    """What an alignment pays for each error; integers, so that equal sums are equal."""

    substitution: int
    gap: int  # an insertion or a deletion
    optional: int  # an optional word that the other side lacks
    nothing: int  # `@` against nothing
    both_nothing: int  # `@` against `@`


SCLITE = Costs(substitution=4000, gap=3000, optional=2000, nothing=1, both_nothing=1000)
# Each error costs the same, as in Kaldi's compute-wer.
EVEN = Costs(substitution=3000, gap=3000, optional=2000, nothing=1, both_nothing=1000)


class Step(NamedTuple):
    """Two aligned words; None where a side has no word."""

    reference: str | None
    hypothesis: str | None
    kind: str  # "same", "substitution", "insertion" or "deletion"


@dataclass(frozen=True)
class WordGraph:
    """Words as arcs, each after those that come before it on any path; arc 0 is the start, without a word."""

    words: tuple[str, ...]  # [A + 1] as written; the first is ""
    previous: tuple[tuple[int, ...], ...]  # [A + 1] arcs that may come directly before
    last: tuple[int, ...]  # arcs at which the transcript may end

    @property
    def is_linear(self) -> bool:
        """Whether there is only one path."""
        return all(before == (arc,) for arc, before in enumerate(self.previous[1:]))

    @classmethod
    def of_words(cls, words: Sequence[str]) -> WordGraph:
        """Build the graph of plain words, none of which has a meaning of its own."""
        before = ((), *((arc,) for arc in range(len(words))))
        return cls(("", *words), before, (len(words),))

    @classmethod
    def parse(cls, words: Sequence[str], name: str) -> WordGraph:
        """Build the graph of a transcript in which braces, slashes and `@` mean alternatives.

        Args:
            words: tokens as `markup_tokens` separates them.
            name: of the utterance, for messages.

        Raises:
            DataError: a brace without its partner, more than 32 levels, or too many choices.
        """
        return _Parser(words, name).graph()


def markup_tokens(text: str) -> list[str]:
    """Split a transcript into words, with braces and the slashes between them as words of their own.

    A slash outside braces is a character like any other, and an optional word keeps its parentheses.
    """
    tokens: list[str] = []
    level = 0
    for field in text.split():
        word = ""
        for character in field:
            if character not in (OPEN, CLOSE) and not (character == OR and level):
                word += character
                continue
            if word:
                tokens.append(word)
                word = ""
            tokens.append(character)
            level += (character == OPEN) - (character == CLOSE)
        if word:
            tokens.append(word)
    return tokens


def each_optional(tokens: Sequence[str]) -> list[str]:
    """Mark every word of a group in parentheses: `(you know)` becomes `(you) (know)`."""
    words: list[str] = []
    place = 0
    while place < len(tokens):
        end = _end_of_group(tokens, place) if tokens[place].startswith("(") else place
        group = " ".join(tokens[place : end + 1])[1:-1].split()
        if end > place and group:
            words += [f"({word})" for word in group]
        else:
            words += tokens[place : end + 1]
        place = end + 1
    return words


def _end_of_group(tokens: Sequence[str], start: int) -> int:
    """The token that closes the parenthesis which `start` opens; `start` itself if none does."""
    for place in range(start, len(tokens)):
        opens_again = place > start and tokens[place].startswith("(")
        if opens_again or tokens[place] in (OPEN, OR, CLOSE):
            return start
        if tokens[place].endswith(")"):
            return place
    return start


class _Parser:
    """Reads tokens from left to right; positions between words are nodes."""

    def __init__(self, words: Sequence[str], name: str) -> None:
        self.tokens = words
        self.name = name
        self.place = 0
        self.num_nodes = 1
        self.arcs: list[tuple[int, int, str]] = []  # from node, to node, word

    def graph(self) -> WordGraph:
        end = self._sequence(0, 0)
        if self.place < len(self.tokens):
            raise self._fault(f"{self.tokens[self.place]!r} without {OPEN!r} before it")
        return self._ordered(end)

    def _fault(self, problem: str) -> DataError:
        said = " ".join(self.tokens[max(0, self.place - 5) : self.place + 5])
        return DataError(
            f"utterance {self.name!r}: {problem}, in '{said[:100]}'; expected alternatives such as "
            f"{OPEN} a {OR} b {CLOSE}"
        )

    def _node(self) -> int:
        self.num_nodes += 1
        return self.num_nodes - 1

    def _sequence(self, start: int, depth: int) -> int:
        """Words and alternatives up to a slash or a closing brace; returns the node after them."""
        node = start
        while self.place < len(self.tokens) and self.tokens[self.place] not in (OR, CLOSE):
            token = self.tokens[self.place]
            if token == OPEN:
                node = self._alternatives(node, depth + 1)
                continue
            after = self._node()
            self.arcs.append((node, after, token))
            node = after
            self.place += 1
        if depth == 0 and self.place < len(self.tokens) and self.tokens[self.place] == OR:
            # A slash of its own outside braces is a word.
            after = self._node()
            self.arcs.append((node, after, OR))
            self.place += 1
            return self._sequence(after, depth)
        return node

    def _alternatives(self, start: int, depth: int) -> int:
        if depth > DEEPEST:
            raise self._fault(f"more than {DEEPEST} levels of alternatives")
        ends = []
        opened = self.place
        while True:
            self.place += 1  # over the brace or the slash
            first = len(self.arcs)
            end = self._sequence(start, depth)
            if end == start:  # an empty alternative is one without a word
                end = self._node()
                self.arcs.append((start, end, NOTHING))
            ends.append((end, first))
            if self.place == len(self.tokens):
                self.place = opened
                raise self._fault(f"{OPEN!r} without {CLOSE!r} after it")
            if self.tokens[self.place] == CLOSE:
                self.place += 1
                break
        join = self._node()
        joined = {end for end, _ in ends}
        for arc in range(ends[0][1], len(self.arcs)):
            begin, end, word = self.arcs[arc]
            if end in joined:
                self.arcs[arc] = (begin, join, word)
        return join

    def _ordered(self, end: int) -> WordGraph:
        """Arcs in sclite's order: nodes once all ways to them are known, first come, first served."""
        leaving: list[list[int]] = [[] for _ in range(self.num_nodes)]
        entering: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for arc, (begin, after, _) in enumerate(self.arcs):
            leaving[begin].append(arc)
            entering[after].append(arc)
        if sum(len(entering[begin]) for begin, _, _ in self.arcs) > _MOST_LINKS:
            raise DataError(f"utterance {self.name!r}: too many alternatives one after the other")
        waiting = [len(arcs) for arcs in entering]
        order: list[int] = []
        queue = [0]
        for node in queue:
            for arc in leaving[node]:
                order.append(arc)
                after = self.arcs[arc][1]
                waiting[after] -= 1
                if waiting[after] == 0:
                    queue.append(after)
        place = {arc: number for number, arc in enumerate(order, start=1)}

        def before(node: int) -> tuple[int, ...]:
            return (0,) if node == 0 else tuple(place[arc] for arc in entering[node])

        return WordGraph(
            ("", *(self.arcs[arc][2] for arc in order)),
            ((), *(before(self.arcs[arc][0]) for arc in order)),
            before(end),
        )


Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Side:
    """What the alignment looks at of the words of one transcript."""

    graph: WordGraph
    cores: list[str]  # [A + 1] without the parentheses of optional words
    ids: Ints  # [A + 1] equal where the cores are
    is_nothing: npt.NDArray[np.bool_]
    gaps: Ints  # [A + 1] cost of the word against nothing
    fragments: dict[int, str]  # arcs of words that are only begun or ended


def _side(
    graph: WordGraph, costs: Costs, ids: dict[str, int], nothing: bool, optional: bool, fragments: bool
) -> _Side:
    cores = list(graph.words)
    gaps = np.full(len(cores), costs.gap, dtype=np.int32)
    gaps[0] = 0
    is_nothing = np.zeros(len(cores), dtype=bool)
    begun: dict[int, str] = {}
    for arc, word in enumerate(graph.words[1:], start=1) if nothing or fragments else ():
        if optional and is_optional(word):
            cores[arc] = word[1:-1]
            gaps[arc] = costs.optional
        elif nothing and word == NOTHING:
            gaps[arc] = costs.nothing
            is_nothing[arc] = True
        if fragments and len(cores[arc]) > 1 and "-" in (cores[arc][0], cores[arc][-1]):
            begun[arc] = cores[arc]
    numbers = [ids.setdefault(core, len(ids)) for core in cores]
    return _Side(graph, cores, np.asarray(numbers, dtype=np.int32), is_nothing, gaps, begun)


def is_optional(word: str) -> bool:
    """Whether the word is marked as one that the other side may lack."""
    return len(word) > 2 and word[0] == "(" and word[-1] == ")"


def _matches(fragment: str, word: str) -> bool:
    if fragment[0] == "-":
        return word.endswith(fragment[1:])
    return word.startswith(fragment[:-1])


def align_graphs(
    reference: WordGraph,
    hypothesis: WordGraph,
    *,
    costs: Costs = SCLITE,
    markup: bool = True,
    optional: bool = True,
    fragments: bool = False,
    name: str = "",
) -> list[Step]:
    """Align the cheapest pair of paths through two graphs.

    Args:
        costs: of the errors.
        markup: whether `@` means nothing, and parentheses around a word something.
        optional: whether, with `markup`, a word in parentheses may be missing without an error.
        fragments: whether `th-` and `-ing` match the words that begin or end so.
        name: of the utterance, for messages.

    Returns:
        The words of both paths in order, without `@`.

    Raises:
        DataError: more words than an alignment has memory for.
    """
    num_cells = len(reference.words) * len(hypothesis.words)
    if num_cells > _MOST_CELLS:
        raise DataError(
            f"utterance {name!r}: {counted(len(reference.words) - 1, 'word')} against {len(hypothesis.words) - 1} are too "
            "many for one alignment; cut the recording into utterances, or give the reference as STM"
        )
    ids: dict[str, int] = {}
    ref = _side(reference, costs, ids, markup, markup and optional, fragments)
    hyp = _side(hypothesis, costs, ids, markup, markup and optional, fragments)
    pairs = _Pairs(ref, hyp, costs)
    return _traced(ref, hyp, pairs, _sums(ref, hyp, pairs))


class _Pairs:
    """Costs of one word of the reference against each of the hypothesis."""

    def __init__(self, ref: _Side, hyp: _Side, costs: Costs) -> None:
        self.ref = ref
        self.hyp = hyp
        self.costs = costs

    def row(self, arc: int) -> Ints:
        ref, hyp = self.ref, self.hyp
        differ = np.where(hyp.ids == ref.ids[arc], 0, self.costs.substitution).astype(np.int32)
        if ref.is_nothing[arc]:
            differ[hyp.is_nothing] = self.costs.both_nothing
        if arc in ref.fragments:
            for other in range(1, len(differ)):
                same = _matches(ref.fragments[arc], hyp.cores[other])
                differ[other] = 0 if same else self.costs.substitution
        else:
            for other, fragment in hyp.fragments.items():
                differ[other] = 0 if _matches(fragment, ref.cores[arc]) else self.costs.substitution
        return differ


def _sums(ref: _Side, hyp: _Side, pairs: _Pairs) -> Ints:
    """int32 [A + 1, B + 1]: the cheapest alignment that ends in arc a of the reference and arc b of the hypothesis."""
    sums = np.zeros((len(ref.cores), len(hyp.cores)), dtype=np.int32)
    is_linear = hyp.graph.is_linear
    gaps_so_far = np.cumsum(hyp.gaps, dtype=np.int32)
    for arc, before in enumerate(ref.graph.previous):
        row = sums[arc]
        if arc == 0:
            for other, earlier in enumerate(hyp.graph.previous[1:], start=1):
                row[other] = min(row[e] for e in earlier) + hyp.gaps[other]
            continue
        above = sums[before[0]] if len(before) == 1 else sums[list(before)].min(axis=0)
        differ = pairs.row(arc)
        np.add(above, ref.gaps[arc], out=row)
        if is_linear:
            np.minimum(row[1:], above[:-1] + differ[1:], out=row[1:])
            # An insertion adds a gap to the cell on the left, again and again: a running minimum.
            row -= gaps_so_far
            np.minimum.accumulate(row, out=row)
            row += gaps_so_far
            continue
        for other, earlier in enumerate(hyp.graph.previous[1:], start=1):
            change = min(int(above[e]) for e in earlier) + int(differ[other])
            insertion = min(int(row[e]) for e in earlier) + int(hyp.gaps[other])
            row[other] = min(int(row[other]), change, insertion)
    return sums


def _traced(ref: _Side, hyp: _Side, pairs: _Pairs, sums: Ints) -> list[Step]:
    """The way back through the sums. Ties: a substitution first, then an insertion, then a deletion."""

    def cheapest(arcs: Sequence[int], others: Sequence[int]) -> tuple[int, int, int]:
        best = min((int(sums[a, b]), i, j) for i, a in enumerate(arcs) for j, b in enumerate(others))
        return best[0], arcs[best[1]], others[best[2]]

    steps: list[Step] = []
    _, arc, other = cheapest(ref.graph.last, hyp.graph.last)
    while arc or other:
        ref_word, hyp_word = ref.graph.words[arc], hyp.graph.words[other]
        change = deletion = insertion = (1 << 31, -1, -1)
        differs = 0
        if arc and other:
            value, a, b = cheapest(ref.graph.previous[arc], hyp.graph.previous[other])
            differs = int(pairs.row(arc)[other])
            change = (value + differs, a, b)
        if arc:
            value, a, b = cheapest(ref.graph.previous[arc], (other,))
            deletion = (value + int(ref.gaps[arc]), a, b)
        if other:
            value, a, b = cheapest((arc,), hyp.graph.previous[other])
            insertion = (value + int(hyp.gaps[other]), a, b)
        if change[0] <= deletion[0] and change[0] <= insertion[0]:
            if not (ref.is_nothing[arc] and hyp.is_nothing[other]):
                steps.append(Step(ref_word, hyp_word, "substitution" if differs else "same"))
            arc, other = change[1:]
        elif deletion[0] < insertion[0]:
            if not ref.is_nothing[arc]:
                is_free = ref.gaps[arc] == pairs.costs.optional
                steps.append(Step(ref_word, None, "same" if is_free else "deletion"))
            arc, other = deletion[1:]
        else:
            if not hyp.is_nothing[other]:
                is_free = hyp.gaps[other] == pairs.costs.optional
                steps.append(Step(None, hyp_word, "same" if is_free else "insertion"))
            arc, other = insertion[1:]
    return steps[::-1]
