"""The numerator graph of one transcript: all pronunciations of its words, as an acceptor over pdfs.

Between words and at the ends silence is optional; words keep all their pronunciations. The topology's own
weights are left out (transition and self-loop scale 0): they enter once, through the normalization FSA
(Hadian et al., Interspeech 2018). Lexicon and silence probabilities stay. Without normalization the graph is
linear in the transcript.

Where a transcript may be wrong (`fsachain.graph.forgive`), a star of phones may stand at each place between its words.
Composed with the normalization, each star is what the denominator knows, and costs as much as a copy of it; therefore a
coarse one (`fsachain.graph.denominator.coarse`) takes its place, in which no path weighs more.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fsachain.denominator import normalization_with_star
from fsachain.errors import ConfigError, GraphError, brief, counted, refuse_text
from fsachain.files import parse_json, read_npz, replacing
from fsachain.fsa import Fsa, input_fsa
from fsachain.graph.archive import (
    Arrays,
    join,
    join_fsas,
    numbers,
    offsets,
    origin_array,
    read_archive,
    split_fsas,
    texts,
    unique_names,
)
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import coarse, merge_down
from fsachain.graph.expand import Expansion, expand_arcs
from fsachain.graph.forgive import Forgiveness, Star, check_forgiveness
from fsachain.graph.lexicon import Lexicon, phone_difference
from fsachain.graph.spelling import (
    FRAMES,
    NO_WORD,
    Transcript,
    any_phones,
    transcript_acceptor,
    ways_to_say,
)
from fsachain.graph.transducer import product, told_unseen
from fsachain.notebook import html_table, with_picture
from fsachain.opaque import opaque
from fsachain.openfst import Transducer, rows

STAR_PHONE = -1  # in place of a phone id, of a star of frames


class Segment(NamedTuple):
    """A run of frames: phone id (0: CTC blank), position of its word (below 0: none), first frame, length."""

    phone: int
    word: int
    first_frame: int
    num_frames: int


@opaque
@dataclass(frozen=True, eq=False)
class Numerator:
    """A numerator graph whose arcs remember phone and word.

    Attributes:
        fsa: epsilon-free and trimmed.
        words: the transcript, word by word, as it was given.
        arc_phone: int32 [A], phone id of each arc (0: CTC blank, -1: a star of frames).
        arc_word: int32 [A], position in `words` of the word that the arc belongs to; -1 for silence between
            words and blank. In a forgiving graph -2 - k is what was said behind the first k words and
            before the next one that is kept, unwritten or in place of words.
        arc_is_start: bool [A], True where the arc spends the first frame of a phone, False where it continues
            one: two equal phones in a row, across a word boundary or not, stay apart. In a star of a
            topology with a blank it is True wherever a phone is.
        arc_begins_word: bool [A], True where the arc belongs to the first phone of a word; None where each word is said
            once, and words are told apart without it.
        forgive: the penalties in the weights; None for a graph that takes its words as they stand.
        state_place: int32 [S] of a forgiving graph: 2 k for a state at place k, where k of `words` are done with, and one
            more in or behind a star; -1 within a word. None where the tree looks at the next phone: then arcs have the
            penalties of what follows them.
        floored: whether n-grams that the normalization never saw have their floor; such a graph is no part of the
            denominator, and is for development sets alone.
    """

    fsa: Fsa
    words: tuple[str, ...]
    arc_phone: npt.NDArray[np.int32]
    arc_word: npt.NDArray[np.int32]
    arc_is_start: npt.NDArray[np.bool_]
    arc_begins_word: npt.NDArray[np.bool_] | None = None
    floored: bool = False
    forgive: Forgiveness | None = None
    state_place: npt.NDArray[np.int32] | None = None

    __repr__ = brief

    def _repr_html_(self) -> str:
        """Words, sizes, and the graph or its most probable part, for notebooks."""
        frames = self.required_frames
        sizes = [" ".join(self.words), self.fsa.num_states, self.fsa.num_arcs, f"{frames:g}"]
        table = html_table(("words", "states", "arcs", "frames at least"), [sizes], title="Numerator")
        return with_picture(table, self.fsa._repr_svg_())

    @property
    def required_frames(self) -> float:
        """Network output frames that the shortest path takes; an utterance with fewer is impossible."""
        return self.fsa.min_frames()

    def said(self, arc_occupancy: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """For each of `words` the probability of having been said, [U], by `ForwardBackward.arc_occupancy(n)` [T, A].

        It is one less what a forgiving graph lets stand in its place. An arc begins a word where no arc of the word leads,
        nor a blank behind one.
        """
        is_word = self.arc_word >= 0
        inside = set(rows(self.fsa.dst[is_word], self.arc_word[is_word]))
        is_blank = self.arc_phone == 0
        behind = dict(rows(self.fsa.src[is_blank], self.fsa.dst[is_blank]))
        inside |= {(behind[state], word) for state, word in inside if state in behind}
        begins = [word >= 0 and (src, word) not in inside for src, word in rows(self.fsa.src, self.arc_word)]
        mass = np.asarray(arc_occupancy, dtype=np.float64).sum(axis=0)
        said = np.zeros(len(self.words))
        np.add.at(said, self.arc_word[begins], mass[begins])
        return said

    def _priced(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which of `Forgiveness.prices`, ravelled, is in the weight of each arc [A] and at each end [S]; -1: none."""
        assert self.forgive is not None and self.state_place is not None
        most, place = self.forgive.most_left_out, self.state_place.astype(np.int64)
        star, done = place % 2, place // 2
        leaves, src = self.arc_is_start & (place[self.fsa.src] >= 0), self.fsa.src
        begins = leaves & (self.arc_word >= 0)
        again = (
            leaves & (self.arc_word < NO_WORD) & (star[src] == 1) & (done[src] != NO_WORD - 1 - self.arc_word)
        )
        arcs = np.where(begins, (most + 1) * star[src] + self.arc_word - done[src], -1)
        arcs[again] = 2 * most + 1
        can_end = np.isfinite(self.fsa.final_log_prob) & (place >= 0)
        ends = np.where(can_end, (most + 1) * star + len(self.words) - done, -1)
        both = np.append(arcs, ends)
        if both.min(initial=0) < -1 or both.max(initial=0) > 2 * most + 1:
            raise GraphError("state_place: no places of these words; build the numerator anew")
        return arcs, ends

    def priced(self, forgive: Forgiveness) -> Fsa:
        """The graph with other penalties, infinite where they were and with stars of the same kind.

        Raises:
            ConfigError: other penalties are infinite, the stars or `most_left_out` differ, or the graph's penalties are not
                known, because it is not forgiving or the tree looks at the next phone.
        """
        if self.forgive is None or self.state_place is None:
            raise ConfigError(
                "forgive: the penalties of this numerator cannot change; expected a forgiving one, over a tree that does "
                "not look at the next phone"
            )
        before, now = self.forgive.prices().ravel(), forgive.prices().ravel()
        same_kind = (forgive.star, forgive.most_left_out) == (self.forgive.star, self.forgive.most_left_out)
        if not same_kind or (np.isfinite(before) != np.isfinite(now)).any():
            raise ConfigError(
                f"forgive: {forgive} asks for other arcs than {self.forgive}, whose weights it is to change"
            )
        with np.errstate(invalid="ignore"):
            change = np.append(np.where(np.isfinite(now), now - before, 0.0), 0.0)  # the last for -1
        arcs, ends = self._priced()
        constant = forgive.constant(len(self.words)) - self.forgive.constant(len(self.words))
        final = self.fsa.final_log_prob + change[ends] + constant
        return replace(self.fsa, log_prob=self.fsa.log_prob + change[arcs], final_log_prob=final)

    def edits(self, arc_occupancy: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """How many of `words` are substituted and inserted, and how many times something is deleted, [3], by arc occupancy.

        The expected numbers, for a forgiving graph whose penalties are known (`state_place`).
        """
        assert self.forgive is not None
        arcs, ends = self._priced()
        edits = np.vstack([self.forgive.edits().reshape(-1, 3), np.zeros((1, 3))])  # the last for -1
        mass = np.asarray(arc_occupancy, dtype=np.float64)
        found: npt.NDArray[np.float64] = mass.sum(axis=0) @ edits[arcs] + mass[-1] @ edits[ends[self.fsa.dst]]
        return found

    def phone_segments(self, arcs: Sequence[int] | npt.NDArray[np.integer]) -> list[Segment]:
        """Cut a path, given as arc numbers frame by frame (`BestPath.arcs`), into phones."""
        path = np.asarray(arcs, dtype=np.int64)
        if not path.size:
            return []
        phone, word = self.arc_phone[path], self.arc_word[path]
        cut = self.arc_is_start[path].copy()
        cut[1:] |= phone[1:] != phone[:-1]
        cut[0] = True
        first = np.flatnonzero(cut)
        length = np.diff(np.append(first, len(path)))
        return [Segment(*fields) for fields in rows(phone[first], word[first], first, length)]


def build_numerator(
    words: Sequence[str],
    lexicon: Lexicon,
    tree: ContextTree,
    *,
    normalization: Fsa | None = None,
    forgive: Forgiveness | None = None,
    anything: Fsa | None = None,
    floor: float = 0.0,
    name: str | None = None,
) -> Numerator:
    """The numerator graph of a transcript.

    Args:
        words: the transcript; words that are not in the lexicon are refused or mapped as `lexicon.oov` says.
        lexicon: pronunciations and optional silence.
        tree: context and topology, over the lexicon's phones.
        normalization: `DenominatorGraph.normalization_fsa()`; every path then also carries its score there.
        forgive: penalties for words that are wrong, too many or missing; None: there are none.
        anything: acceptor over phones (label = phone id - 1) that a star stands for; by default `any_phones`.
        floor: probability of an n-gram that the normalization never saw, where all paths have one: for development
            sets. It goes on as after any history, as a leak of this coefficient does in the denominator. 0: such a
            transcript is refused.
        name: utterance id, for error messages.

    Raises:
        GraphError: no words, an unknown word, phones that differ from the tree's, or no path that the
            normalization accepts.
    """
    refuse_text("words", words)
    where = "" if name is None else f"utterance {name!r}: "
    if not words:
        raise GraphError(f"{where}the transcript is empty: a numerator needs at least one word")
    how: dict[str, Any] = {"normalization": normalization, "floor": floor, "name": name}
    ways = [ways_to_say(word, position, lexicon, name=name) for position, word in enumerate(words)]
    if forgive is None:
        phones, tags, *_ = transcript_acceptor(ways, lexicon)
        return numerator_of_phones(phones, tags, tuple(words), lexicon, tree, **how)
    check_forgiveness(forgive, get_args(Star))
    of_frames = forgive.has_star_of_frames
    if of_frames and (anything is not None or not tree.is_narrow):
        given = "anything" if tree.is_narrow else f"a context of {counted(tree.context_width, 'phone')}"
        raise ConfigError(
            f"{where}forgive: star is 'frames', with {given}; expected neither an acceptor for it nor a tree that looks at "
            "the next phone"
        )
    if of_frames:
        star, how["star_pdf"] = FRAMES, tree.num_pdfs
    else:
        star = (any_phones(lexicon, forgive.star) if anything is None else anything).to_transducer()
    if forgive.has_star and normalization is not None:
        how["normalization"] = (
            normalization_with_star(normalization, tree.num_pdfs) if of_frames else coarse(normalization)
        )
    transcript = transcript_acceptor(ways, lexicon, forgive=forgive, anything=star)
    entered = transcript.graph.dst.tolist()
    found = numerator_of_phones(transcript.graph, entered, tuple(words), lexicon, tree, **how)
    placed = _placed(found, transcript, forgive, tree)
    is_merged = placed.state_place is not None and tree.blank_pdf is not None and not of_frames
    return _merged(placed) if is_merged else placed


def _placed(made: Numerator, transcript: Transcript, forgive: Forgiveness, tree: ContextTree) -> Numerator:
    """With its words and places, where `arc_word` is the state of the transcript that an arc enters, -1 for blanks."""
    entered, fsa = made.arc_word, made.fsa
    word_of = np.full(transcript.graph.num_states + 1, NO_WORD, dtype=np.int32)  # the last for blanks
    word_of[transcript.graph.dst] = transcript.tag
    words = word_of[entered]
    if tree.context_width - 1 > tree.central_position:
        return replace(made, arc_word=words, forgive=forgive)
    state = np.full(fsa.num_states, -1)
    state[fsa.start] = 0
    state[fsa.dst[entered >= 0]] = entered[entered >= 0]
    while (state < 0).any():  # behind a blank is where it began
        reached = (state[fsa.dst] < 0) & (state[fsa.src] >= 0)
        state[fsa.dst[reached]] = state[fsa.src[reached]]
    places = np.array(transcript.place, dtype=np.int32)[state]
    return replace(made, arc_word=words, forgive=forgive, state_place=places)


def _merged(made: Numerator) -> Numerator:
    """With the phones of a star in one state where a blank is between equal ones: K arcs for K phones, not K^2.

    Such a topology has a state for each phone that may have been the last, and an arc from each to each. Those of one star
    that go on in like ways are one here; what their arcs weigh is the least that any of them does, so that each frame of a
    phone costs in a star what a further phone does.
    """
    assert made.state_place is not None
    place = made.state_place
    is_start = made.arc_is_start | (made.arc_word < NO_WORD)
    labels = np.stack([made.fsa.pdf, made.arc_phone, made.arc_word, is_start, place[made.fsa.dst]])
    kinds, label = np.unique(labels, axis=1, return_inverse=True)
    fsa = merge_down(replace(made.fsa, pdf=label.ravel()), math.inf, place)
    pdf, phone, word, starts, places = kinds[:, fsa.pdf]
    state_place = np.zeros(fsa.num_states, dtype=np.int32)
    state_place[fsa.dst] = places
    return replace(
        made,
        fsa=replace(fsa, pdf=pdf),
        arc_phone=phone.astype(np.int32),
        arc_word=word.astype(np.int32),
        arc_is_start=starts.astype(np.bool_),
        state_place=state_place,
    )


def numerator_of_phones(
    phones: Transducer,
    word_of_arc: Sequence[int],
    words: tuple[str, ...],
    lexicon: Lexicon,
    tree: ContextTree,
    *,
    normalization: Fsa | None = None,
    floor: float = 0.0,
    star_pdf: int | None = None,
    name: str | None = None,
) -> Numerator:
    """The numerator graph of an epsilon-free acceptor over the lexicon's phone ids; arguments as `build_numerator`.

    word_of_arc [A] is the position in `words` of the word that each arc of `phones` belongs to; -1: none. Where there is a
    `star_pdf`, epsilons stand for one frame of it or more.
    """
    where = "" if name is None else f"utterance {name!r}: "
    check_phones(lexicon, tree)
    scales = {"self_loop_scale": 0.0, "transition_scale": 0.0}
    expansion = expand_arcs(phones, tree, **scales, tags=word_of_arc, epsilon_free=True)
    if star_pdf is not None:
        expansion = _with_frames(expansion, star_pdf)
    fsa = input_fsa(expansion.graph)
    if not fsa.num_arcs:
        raise GraphError(f"{where}no path has a phone: a numerator needs at least one word or phone")
    if not 0.0 <= floor < 1.0:
        raise ConfigError(f"floor = {floor}: expected a probability in [0, 1)")
    origin, floored = np.arange(fsa.num_arcs), False
    if normalization is not None:
        if not isinstance(normalization, Fsa):
            given = type(normalization).__name__
            raise GraphError(
                f"normalization is a {given}; expected an Fsa, such as denominator.normalization_fsa()"
            )
        plain = fsa
        fsa, origin = product(plain, normalization)
        floored = not fsa.num_arcs and floor > 0.0
        if floored:
            fsa, origin = product(plain, normalization, math.log(floor))
        if not fsa.num_arcs:
            raise GraphError(
                f"{where}the normalization accepts no path of {' '.join(words)!r}: {told_unseen(floor=True)}"
            )
        if star_pdf is not None:
            is_silence = np.equal(expansion.arc_phone, lexicon.silence_phone or len(lexicon.phones) + 1)
            fsa, origin = _best_around_stars(fsa, origin, star_pdf, is_silence[origin])
    return Numerator(
        fsa,
        words,
        np.array(expansion.arc_phone, dtype=np.int32)[origin],
        np.array(expansion.arc_tag, dtype=np.int32)[origin],
        np.array(expansion.arc_is_start, dtype=np.bool_)[origin],
        floored=floored,
    )


def _with_frames(expansion: Expansion, pdf: int) -> Expansion:
    """With frames of a pdf, one or more, in place of each epsilon, none of which follows another."""
    graph = expansion.graph
    arcs = [*rows(graph.src, graph.dst, graph.ilabel, graph.olabel, graph.log_prob)]
    phones, tags, starts = [*expansion.arc_phone], expansion.arc_tag, [*expansion.arc_is_start]
    behind: dict[int, int] = {}  # the tag of each state behind a star
    for arc, (src, dst, label, olabel, log_prob) in enumerate(arcs):
        if not label:
            arcs[arc] = (src, dst, pdf + 1, olabel, log_prob)
            phones[arc], starts[arc], behind[dst] = STAR_PHONE, True, tags[arc]
    arcs += [(state, state, pdf + 1, 0, 0.0) for state in behind]
    phones += [STAR_PHONE] * len(behind)
    starts += [False] * len(behind)
    found = Transducer.of_arcs(arcs, graph.final_log_prob, graph.start)
    return Expansion(found, phones, [*tags, *behind.values()], starts)


def _best_around_stars(
    fsa: Fsa, origin: npt.NDArray[np.int64], star_pdf: int, is_silence: npt.NDArray[np.bool_]
) -> tuple[Fsa, npt.NDArray[np.int64]]:
    """Of the histories with which a star may begin, an arc of the transcript may follow it, or silence may end, the best.

    With n-grams of a high order those are hundreds of arcs at a place, and no path weighs more with fewer. `origin` [A] are
    the arcs of the transcript. Histories before a star or an end are those that one arc of it leads to, from one state.
    Before an end they are those of silence [A] alone: others are of words that are right.
    """
    src, dst, weight, final = fsa.src, fsa.dst, fsa.log_prob, fsa.final_log_prob
    is_loop, is_star = src == dst, fsa.pdf == star_pdf
    best, following = np.full(fsa.num_states, -np.inf), final.copy()
    while not np.array_equal(best, following):
        best = following.copy()
        np.maximum.at(following, src, weight + best[dst])
    entering = np.full(fsa.num_states, -1)
    entering[dst[~is_loop]] = np.flatnonzero(~is_loop)
    entered_once = np.bincount(dst[~is_loop], minlength=fsa.num_states) == 1
    before = [src[entering], origin[entering]]
    log_prob = weight.copy()
    log_prob[
        _all_but_best(np.isin(src, dst[is_star]) & ~is_star, weight + best[dst], [src, origin])
    ] = -np.inf
    begins = is_star & ~is_loop & entered_once[src]
    groups = [dst, *(group[src] for group in before)]
    log_prob[_all_but_best(begins, weight + weight[entering][src], groups)] = -np.inf
    ends = final.copy()
    ends[
        _all_but_best(
            np.isfinite(final) & entered_once & is_silence[entering], final + weight[entering], before
        )
    ] = -np.inf
    found = replace(fsa, pdf=np.arange(fsa.num_arcs), log_prob=log_prob, final_log_prob=ends).trim()
    kept = found.pdf
    return replace(found, pdf=fsa.pdf[kept]), origin[kept]


def _all_but_best(
    chosen: npt.NDArray[np.bool_], total: npt.NDArray[np.float64], groups: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.int64]:
    """Of the places that are `chosen`, all but that of the largest total among those whose entries in `groups` are equal."""
    places = np.flatnonzero(chosen)
    places = places[np.lexsort((-total[places], *(group[places] for group in groups)))]
    is_same = np.all([group[places[1:]] == group[places[:-1]] for group in groups], axis=0)
    found: npt.NDArray[np.int64] = places[1:][is_same]
    return found


def told_floored(count: int) -> str:
    """Return for summaries how many numerators are `floored`."""
    return f", {count} with n-grams that the phone language model never saw" if count else ""


def told_without_floored(count: int) -> str:
    """Return `told_floored` for numerators of a set that may be for training or for development."""
    return (
        f"{told_floored(count)}: a training leaves these out, a development set keeps them" if count else ""
    )


def check_phones(lexicon: Lexicon, tree: ContextTree) -> None:
    """Lexicon and tree must number the same phones: a GraphError names the first that differs."""
    difference = phone_difference(lexicon.phones, tree.phones, ("the lexicon", "the tree"))
    if difference is not None:
        raise GraphError(f"{difference}: expected the same phones in both")


def made_with(lexicon: Lexicon, tree: ContextTree, forgive: Forgiveness | None = None) -> dict[str, Any]:
    """What files of graphs keep of how they were made, as JSON can hold it: the phones, a hash of lexicon and of tree."""
    spoken = zip(lexicon.words, lexicon.pronunciations, strict=True)
    decisions = None if tree.decisions is None else tree.decisions.to_columns()
    context = [
        tree.context_width,
        tree.central_position,
        tuple(tree.shared),
        sorted(tree.context_independent),
    ]
    parts = {
        "tree": ", ".join([tree.topology.fingerprint, *map(repr, [*context, decisions])]),
        "lexicon": ", ".join(map(repr, [lexicon.silence, lexicon.silence_prob, lexicon.oov, *spoken])),
    }
    hashes = {name: hashlib.sha256(f"[{part}]".encode()).hexdigest() for name, part in parts.items()}
    how = {"forgive": "frames" if forgive.has_star_of_frames else True} if forgive else {}
    return {"phones": list(tree.phones), **hashes, **how}


FLOOR = 1e-5  # of development sets: the least leak that is usual, so that the denominator outweighs them
NPZ_FORMAT = "fsachain-numerators-1"
NumeratorSource = Literal["transcripts", "graphs"]
_ARC_ARRAYS = {"arc_phone": np.int32, "arc_word": np.int32, "arc_is_start": np.bool_}


def save_numerators(
    path: str | os.PathLike[str],
    numerators: Mapping[str, Numerator],
    source: NumeratorSource = "transcripts",
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write numerators by utterance id to one npz file.

    `source` is "transcripts" if their words are the transcripts, to be compared with them before training; "graphs" if
    they come from patterns or graphs. `origin` is what `made_with` says of their lexicon and tree.
    """
    values = list(numerators.values())
    arrays: dict[str, Any] = {
        "format": np.array(NPZ_FORMAT),
        "source": np.array(source),
        **origin_array(origin),
        "names": np.array(list(numerators), dtype=np.str_),
        "words": np.array([word for n in values for word in n.words], dtype=np.str_),
        "num_words": np.array([len(n.words) for n in values], dtype=np.int64),
        "floored": np.array([n.floored for n in values], dtype=np.bool_),
    }
    forgive = values[0].forgive if values else None
    places = [n.state_place for n in values if n.state_place is not None and n.forgive == forgive]
    if forgive is not None and len(places) == len(values):
        arrays["forgive"] = np.array(json.dumps(asdict(forgive)))
        arrays["state_place"] = join(places, np.int32)
    arrays |= join_fsas([n.fsa for n in values])
    arrays |= {name: join([getattr(n, name) for n in values], dtype) for name, dtype in _ARC_ARRAYS.items()}
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def source_of(path: str | os.PathLike[str]) -> NumeratorSource:
    """The `source` that `save_numerators` was given; "transcripts" for a file without."""
    source = read_npz(path, ("source",)).get("source")
    return "graphs" if str(source) == "graphs" else "transcripts"


def load_numerators(path: str | os.PathLike[str]) -> dict[str, Numerator]:
    """Read what `save_numerators` wrote, in its order; their arrays are views of the file's."""
    return read_archive(path, NPZ_FORMAT, _of_arrays, "not a numerator archive written by fsachain")


def _of_arrays(arrays: Arrays) -> dict[str, Numerator]:
    names, words = unique_names(arrays, "names"), texts(arrays, "words")
    num_words = numbers(arrays, "num_words", np.int64, len(names))
    first_word = offsets(num_words, len(words), "num_words").tolist()
    fsas, first_arc = split_fsas(arrays)
    if len(fsas) != len(names):
        raise ValueError(f"names has {counted(len(names), 'row')}, num_states {len(fsas)}")
    phone, word, starts = (
        numbers(arrays, name, dtype, int(first_arc[-1])) for name, dtype in _ARC_ARRAYS.items()
    )
    floored = [False] * len(names)
    if "floored" in arrays:
        floored = numbers(arrays, "floored", np.bool_, len(names)).tolist()
    forgive, places = _forgiven(arrays, fsas)
    made = {}
    for name, fsa, said, arcs, unseen, place in zip(
        names, fsas, pairwise(first_word), pairwise(first_arc.tolist()), floored, places, strict=True
    ):
        spoken, mine = tuple(words[slice(*said)].tolist()), slice(*arcs)
        made[name] = Numerator(
            fsa, spoken, phone[mine], word[mine], starts[mine], None, unseen, forgive, place
        )
    return made


def _forgiven(
    arrays: Arrays, fsas: Sequence[Fsa]
) -> tuple[Forgiveness | None, Sequence[npt.NDArray[np.int32] | None]]:
    """Penalties and `state_place` of each of `fsas`, None for a file without."""
    if "forgive" not in arrays:
        return None, [None] * len(fsas)
    given = parse_json(arrays["forgive"].item(), "forgive")
    forgive = Forgiveness(**given)
    ends = np.cumsum([fsa.num_states for fsa in fsas]).tolist()
    column = numbers(arrays, "state_place", np.int32, ends[-1] if ends else 0)
    return forgive, np.split(column, ends[:-1])
