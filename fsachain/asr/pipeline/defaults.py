"""Options chosen for the data: what suits half an hour of one speaker does not suit ten hours of many.

`describe_data` reads tables, a lexicon and some features; `choose` turns that into options, each with its reason, and leaves
alone what was given. The experiments behind each rule are in recipes/RESULTS.md, the rules as a table in docs/defaults.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsachain.asr.data.features import FeatureConfig, frame_counts, has_stored, utterance_features
from fsachain.asr.data.frames import add_context
from fsachain.asr.data.utterance import Utterance
from fsachain.asr.pipeline.held_out import PhoneLmOrder, phone_lm_orders, word_gain
from fsachain.errors import counted
from fsachain.graph.lexicon import Lexicon

MOST_HEADERS = 2000  # recordings whose lengths are read; the others are as long on average
MOST_MATRICES = 40  # stored matrices that tell what kind of features they are

CEPSTRA = "cepstra"
FILTERS = "filters"
RECORDINGS = "recordings"


@dataclass(frozen=True)
class DataSummary:
    """What the rules know of a corpus.

    Attributes:
        utterances: of the training set.
        hours: of the training set.
        seconds_per_utterance: median over the training set.
        frames_per_utterance: input frames of the median utterance.
        speakers: of all sets together; 0 if no set says who speaks.
        seconds_per_speaker: of the speaker with the median amount of speech, in the set where that is least.
        words: running words of the training set.
        vocabulary: distinct words of the training set.
        phones: distinct phones of the lexicon, silence not counted.
        phones_per_second: of the training set, silence not counted.
        crowded: share of training utterances with more phones than output frames, by frames per output frame (1, 2, 3).
        kind: RECORDINGS, or of stored features CEPSTRA or FILTERS: neighbouring columns move on their own, or together.
        columns: of stored features; 0 for recordings.
        has_deltas: whether stored features bring their deltas.
        sample_rate: Hz, 0 for stored features.
        orders: phone language models and the likelihood of held-out transcripts; empty if that is unknown.
        word_gain: nats per word that a bigram of words brings on held-out transcripts.
    """

    utterances: int
    hours: float
    seconds_per_utterance: float
    frames_per_utterance: float
    speakers: int
    seconds_per_speaker: float
    words: int
    vocabulary: int
    phones: int
    phones_per_second: float
    crowded: Mapping[int, float]
    kind: str
    columns: int
    has_deltas: bool
    sample_rate: int
    orders: tuple[PhoneLmOrder, ...] = ()
    word_gain: float = 0.0

    def __str__(self) -> str:
        size = (
            f"{counted(60 * self.hours, 'minute', '.0f')}"
            if self.hours < 2
            else f"{counted(self.hours, 'hour', '.1f')}"
        )
        speakers = "speakers unknown"
        if self.speakers:
            speakers = counted(self.speakers, "speaker")
        if self.speakers > 1:
            speakers += f" of {self.seconds_per_speaker:.0f} s or more each"
        features = "recordings"
        if self.kind != RECORDINGS:
            features = f"{counted(self.columns, 'column')} of {self.kind}"
            if self.has_deltas:
                features += " with deltas"
        return (
            f"{counted(self.utterances, 'utterance')}, {size}, {speakers}, {counted(self.vocabulary, 'word')}, "
            f"{counted(self.phones, 'phone')}, {self.phones_per_second:.1f} of them a second, {features}"
        )


class Choice(NamedTuple):
    """An option (SECTION.OPTION), its value, and why."""

    option: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.option} = {json.dumps(self.value)}: {self.reason}"


def describe_data(
    train: Sequence[Utterance],
    others: Sequence[Sequence[Utterance]],
    lexicon: Lexicon,
    features: FeatureConfig,
    seed: int = 0,
) -> DataSummary:
    """Read what the rules need.

    Args:
        train: training set.
        others: development and test sets; only their speakers and lengths are read.
        lexicon: pronunciations; transcripts with words that it refuses do not count.
        features: section `features` of the configuration, `fitted` or not.
        seed: of the folds of cross-validation.

    Returns:
        The summary. Recordings that cannot be read count as if they were average.
    """
    fitted = features.fitted(train)
    frames = _frames(train, fitted)
    shift = fitted.frame_shift_ms / 1000
    seconds = [shift * number for number in frames]
    transcripts, lengths = _transcripts(train, frames, lexicon)
    silence = lexicon.silence_phone
    phones_of = {word: _phones(lexicon, word, silence) for words in transcripts for word in words}
    sizes = [sum(phones_of[word] for word in words) for words in transcripts]
    crowded = {}
    for step in (1, 2, 3):
        short = sum(length / step < size for length, size in zip(lengths, sizes, strict=True))
        crowded[step] = short / max(1, len(sizes))
    speakers, seconds_per_speaker = _speakers([train, *others], fitted, shift)
    stored = [one for one in train if has_stored(one, fitted)]
    kind, columns, has_deltas = RECORDINGS, 0, False
    if stored:
        kind, columns, has_deltas = _kind_of_features(stored, fitted)
    words = Counter(word for sentence in transcripts for word in sentence)
    spoken = sum(
        lexicon.silence_phone is None or _phones(lexicon, word, silence) > 0 for word in lexicon.words
    )
    return DataSummary(
        utterances=len(train),
        hours=sum(seconds) / 3600,
        seconds_per_utterance=median(seconds) if seconds else 0.0,
        frames_per_utterance=median(frames) if frames else 0.0,
        speakers=speakers,
        seconds_per_speaker=seconds_per_speaker,
        words=words.total(),
        vocabulary=len(words),
        phones=len(lexicon.phones) - (silence is not None),
        phones_per_second=sum(sizes) / max(shift, shift * sum(lengths)),
        crowded=crowded,
        kind=kind,
        columns=columns,
        has_deltas=has_deltas,
        sample_rate=0 if stored else fitted.sample_rate,
        orders=tuple(phone_lm_orders(transcripts, lexicon, seed=seed)) if transcripts else (),
        word_gain=word_gain(transcripts, max(2, spoken), seed),
    )


def describe_transcripts(
    transcripts: Sequence[Sequence[str]], lexicon: Lexicon, seed: int = 0
) -> DataSummary:
    """The summary for commands that have transcripts and no recordings: only rules about language have what they need."""
    words = Counter(word for sentence in transcripts for word in sentence)
    return DataSummary(
        utterances=len(transcripts),
        hours=0.0,
        seconds_per_utterance=0.0,
        frames_per_utterance=0.0,
        speakers=0,
        seconds_per_speaker=0.0,
        words=words.total(),
        vocabulary=len(words),
        phones=len(lexicon.phones) - (lexicon.silence_phone is not None),
        phones_per_second=0.0,
        crowded={},
        kind=RECORDINGS,
        columns=0,
        has_deltas=False,
        sample_rate=0,
        orders=tuple(phone_lm_orders(transcripts, lexicon, seed=seed)),
    )


def _frames(utterances: Sequence[Utterance], features: FeatureConfig) -> list[float]:
    """Input frames of each utterance; of those that are not read or cannot be, the mean of the others."""
    step = max(1, len(utterances) // MOST_HEADERS)
    some = range(0, len(utterances), step)
    counts, _ = frame_counts([utterances[place] for place in some], features)
    known = {place: int(number) for place, number in zip(some, counts[0], strict=True) if number >= 0}
    mean = sum(known.values()) / max(1, len(known))
    return [known.get(place, mean) for place in range(len(utterances))]


def _transcripts(
    utterances: Sequence[Utterance], frames: Sequence[float], lexicon: Lexicon
) -> tuple[list[tuple[str, ...]], list[float]]:
    """The transcripts with words, all of which the lexicon has, and the frames of their utterances."""
    known = set(lexicon.words)
    usable = [
        (one.words, number)
        for one, number in zip(utterances, frames, strict=True)
        if one.words and (lexicon.oov is not None or known.issuperset(one.words))
    ]
    return [words for words, _ in usable], [number for _, number in usable]


def _phones(lexicon: Lexicon, word: str, silence: int | None) -> int:
    """Phones of the shortest way to say the word."""
    ways = lexicon.pronunciations_of(word)
    return min(sum(phone != silence for phone in way.phones) for way in ways)


def _speakers(
    sets: Sequence[Sequence[Utterance]], features: FeatureConfig, shift: float
) -> tuple[int, float]:
    """Speakers of all sets, and the seconds of the median speaker in the set where that is least; (0, 0) if unknown."""
    names: set[str] = set()
    least = float("inf")
    for utterances in sets:
        if not utterances:
            continue
        seconds: Counter[str] = Counter()
        for one, frames in zip(utterances, _frames(utterances, features), strict=True):
            seconds[one.speaker] += shift * frames  # type: ignore[assignment]
        if all(one.speaker == one.id for one in utterances):  # no utt2spk
            return 0, 0.0
        names |= set(seconds)
        least = min(least, median(seconds.values()))
    return len(names), least if names else 0.0


def _kind_of_features(stored: Sequence[Utterance], features: FeatureConfig) -> tuple[str, int, bool]:
    """Kind and columns of stored features, and whether they have deltas."""
    plain = replace(features, deltas=0, splice=(0, 0))
    step = max(1, len(stored) // MOST_MATRICES)
    matrices = []
    for one in stored[::step]:
        try:
            matrix = utterance_features(one, plain)
        except (ValueError, RuntimeError, OSError, EOFError):  # the stage features names it
            continue
        if len(matrix) > 1 and np.isfinite(matrix).all():
            matrices.append(matrix)
    if not matrices:
        return FILTERS, features.base_columns, False
    columns = matrices[0].shape[1]
    has_deltas = columns % 3 == 0 and _looks_like_deltas(matrices, columns // 3)
    static = columns // 3 if has_deltas else columns
    if static < 2:
        return FILTERS, columns, has_deltas
    centred = np.concatenate([one[:, :static] - one[:, :static].mean(axis=0) for one in matrices])
    neighbours = [abs(_correlation(centred[:, at], centred[:, at + 1])) for at in range(static - 1)]
    return (CEPSTRA if float(np.mean(neighbours)) < 0.5 else FILTERS), columns, has_deltas


def _looks_like_deltas(matrices: Sequence[NDArray[np.float32]], static: int) -> bool:
    """Whether the second third of the columns goes up and down as deltas of the first third do."""
    computed = np.concatenate([add_context(one[:, :static], 1)[:, static:] for one in matrices])
    brought = np.concatenate([one[:, static : 2 * static] for one in matrices])
    alike = [_correlation(computed[:, at], brought[:, at]) for at in range(static)]
    return float(np.mean(alike)) > 0.9


def _correlation(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    one, other = one.astype(np.float64) - one.mean(), other.astype(np.float64) - other.mean()
    scale = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / scale if scale > 0 else 0.0


# The rules. Each names options of one part and its reasons; later ones see what earlier ones chose.

PREDICTABLE = 1.2  # nats per phone; a string of digits has 0.9, prompts and dialogue 2.2 to 2.7
LOOP = 0.3  # nats per word; below, any word may follow any other, and an n-gram would only learn chance
ENOUGH_TEXT = 5_000  # words that a network of words needs; 2,000 made it worse, 10,000 better
MOST_TEXT = 50_000  # words, for five seconds of one core per thousand
MOST_TRIGRAM_WORDS = 300_000  # of text; the decoding graph of a trigram of more takes minutes to build
LEAST_SPEAKER = 8.0  # seconds of a speaker whose statistics are better than an utterance's
LEAST_UTTERANCE = 2.0  # seconds
WORTH_AN_ORDER = (
    0.1  # nats per phone that a higher order has to bring: likelihood forgives what a network learns by heart
)
MOST_UNSEEN = (
    0.05  # share of held-out phones; prompts had 0.17 with a trigram, of which training knew half the answers
)
MOST_ARCS = 60_000  # of the phone language model, so that a step of training stays with the network
STEPS = 1440  # that a small network is trained for


@dataclass
class _Options:
    """What is given and what was chosen so far; `plain` are the values of options that nobody chose."""

    given: Mapping[str, Any]
    plain: Mapping[str, Any]
    chosen: dict[str, Choice]

    def __getitem__(self, option: str) -> Any:
        if option in self.given:
            return self.given[option]
        return self.chosen[option].value if option in self.chosen else self.plain.get(option)

    def choose(self, option: str, value: Any, reason: str) -> None:
        if option not in self.given:
            self.chosen[option] = Choice(option, value, reason)

    @property
    def is_ctc(self) -> bool:
        topology = str(self["lang.topology"] or "")
        return topology.startswith("ctc") or self["phone_lm.ngram_order"] == 0


def choose(
    summary: DataSummary,
    given: Mapping[str, Any],
    plain: Mapping[str, Any] | None = None,
    *,
    has_arpa: bool = False,
) -> list[Choice]:
    """Choose options for the data.

    Args:
        summary: of the data.
        given: options that somebody gave, by their place, such as "train.num_epochs"; they are never chosen.
        plain: values of all options that nobody chooses.
        has_arpa: whether a word language model is given.

    Returns:
        The choices, in the order of the configuration's sections.
    """
    options = _Options(given, plain or {}, {})
    rules: list[Callable[[DataSummary, _Options], None]] = [
        _phone_lm,
        _features,
        _cmvn,
        _augmentation,
        _network,
        _loss,
        _training,
        partial(_decoding, has_arpa=has_arpa),
        partial(_rescoring, has_arpa=has_arpa),
    ]
    for rule in rules:
        rule(summary, options)
    return list(options.chosen.values())


def is_predictable(summary: DataSummary) -> bool:
    """Whether the phone before says so much that a network can be trained with more of the sound taken away."""
    return bool(summary.orders) and max(one.held_out for one in summary.orders) > -PREDICTABLE


def best_order(orders: Sequence[PhoneLmOrder]) -> PhoneLmOrder:
    """The order of the phone language model to take, of these by rising order."""
    best = orders[0]
    for one in orders[1:]:
        affordable = one.arcs <= MOST_ARCS and one.unseen <= MOST_UNSEEN
        if affordable and one.held_out > best.held_out + WORTH_AN_ORDER:
            best = one
    return best


def _phone_lm(data: DataSummary, options: _Options) -> None:
    if options["phone_lm.ngram_order"] == 0 or not data.orders:
        return
    if str(options["lang.topology"] or "").startswith("ctc"):
        return
    best = best_order(data.orders)
    order = options.given.get("phone_lm.ngram_order", best.order)
    known = {one.order: one for one in data.orders}
    its = known.get(order, best)
    told = ", ".join(f"{-one.held_out:.2f}" for one in data.orders)
    costs = ", ".join(str(one.arcs) for one in data.orders)
    options.choose(
        "phone_lm.ngram_order",
        best.order,
        f"orders 2, 3, 4 have {told} nats per phone of held-out sentences, and {costs} arcs",
    )
    if order in known:
        options.choose("phone_lm.no_prune_ngram_order", its.no_prune, "its own order, at most 3")
        extra = its.extra_states * (2 if data.hours > 10 else 1)
        options.choose(
            "phone_lm.num_extra_lm_states", extra, "none beyond those of order 3, but for a 4-gram"
        )


def _has_cepstra(data: DataSummary, options: _Options) -> bool:
    return data.kind == CEPSTRA or (data.kind == RECORDINGS and options["features.kind"] == "mfcc")


def _features(data: DataSummary, options: _Options) -> None:
    if _has_cepstra(data, options) and not data.has_deltas:
        options.choose(
            "features.deltas", 2, "cepstra without deltas: their changes are much smaller than they are"
        )
    if data.kind == RECORDINGS and data.sample_rate >= 16_000 and data.hours < 5:
        options.choose(
            "features.num_mel_bins", 40, "less than 5 hours: 80 filters bring a small network nothing"
        )


def _cmvn(data: DataSummary, options: _Options) -> None:
    if data.speakers == 1:
        options.choose("cmvn.scope", "global", "one speaker")
    elif data.speakers and data.seconds_per_speaker >= LEAST_SPEAKER:
        told = f"{counted(data.speakers, 'speaker')} with {data.seconds_per_speaker:.0f} s or more each"
        options.choose("cmvn.scope", "speaker", told)
    elif data.seconds_per_utterance >= LEAST_UTTERANCE:
        why = "little speech of each speaker" if data.speakers else "speakers are not known"
        options.choose("cmvn.scope", "utterance", f"{why}, utterances of {data.seconds_per_utterance:.1f} s")
    else:
        told = f"utterances of {data.seconds_per_utterance:.1f} s say too little about a voice"
        options.choose("cmvn.scope", "global", told)
    options.choose("cmvn.moments", "mean-variance", "so for any amount of speech")
    if data.kind == RECORDINGS:
        options.choose("cmvn.counts", "speech", "pauses and silence of any length change no statistics")


def _augmentation(data: DataSummary, options: _Options) -> None:
    if data.kind == RECORDINGS:
        options.choose("perturbation.speeds", [0.9, 1.0, 1.1], "recordings; one is drawn for each epoch")
    if is_predictable(data):
        why = "phones that foretell each other well: a network may be shown less"
        if data.kind == RECORDINGS and data.speakers > 1:
            options.choose("perturbation.noise", [3.0, 25.0], f"{why}, and microphones differ")
        options.choose("augment.time_masks", 2, why)
        options.choose("augment.time_mask_frames", 20, "with the masks")
        if not _has_cepstra(data, options):
            options.choose("augment.frequency_masks", 2, why)
            width = (
                options["features.num_mel_bins"] or data.columns or (80 if data.sample_rate >= 16_000 else 40)
            )
            options.choose(
                "augment.frequency_mask_bins", max(1, round(0.15 * width)), "a seventh of the columns"
            )
    shift = 2 if is_predictable(data) else 1
    options.choose("augment.frame_shift", shift, "moves the grid of output frames")


def _network(data: DataSummary, options: _Options) -> None:
    if (options["network.kind"] or "tdnnf") != "tdnnf":
        return  # a network of another kind has its own sizes
    step = 3
    while step > 1 and data.crowded.get(step, 0.0) > 0.02:
        step -= 1
    if step < 3:
        told = f"{100 * data.crowded[3]:.0f} % of the utterances have more phones than frames of 30 ms"
        options.choose("network.subsampling", step, told)
    step = options["network.subsampling"] or step
    size = (
        f"{counted(60 * data.hours, 'minute', '.0f')}"
        if data.hours < 2
        else f"{counted(data.hours, 'hour', '.0f')}"
    )
    for least, channels, bottleneck in (
        (0, 128, 64),
        (2, 256, 64),
        (5, 512, 96),
        (20, 768, 128),
        (100, 1024, 128),
    ):
        if data.hours >= least:
            width = channels, bottleneck
    options.choose("network.channels", width[0], size)
    options.choose("network.bottleneck", width[1], size)
    strides = [1, 1, 2, 2, 3, 3] if data.hours < 5 else [1, 1, 1, 1, 3, 3, 3, 3, 3]
    if step == 3:
        options.choose(
            "network.time_strides", strides, "sees about 0.4 s to each side" if data.hours < 5 else size
        )
    if not options.is_ctc:
        options.choose("network.xent", "branch", "a second output steadies the training")


def _loss(data: DataSummary, options: _Options) -> None:
    if not options.is_ctc:
        options.choose("loss.leaky_hmm_coefficient", 0.1, "that of Kaldi's end-to-end recipes")
        if options["network.xent"] == "branch":
            options.choose("loss.xent_regularize", 0.1, "weight of the second output")
    if is_predictable(data) and data.hours < 2:
        options.choose(
            "loss.consistency", 0.2, "two views of each utterance, which differ in masks; little data"
        )


def _training(data: DataSummary, options: _Options) -> None:
    batch = 16 if data.hours < 10 else 32 if data.hours < 100 else 64
    options.choose("train.batch_size", batch, f"{counted(data.hours, 'hour', '.1f')}")
    steps = max(1.0, data.utterances / (options["train.batch_size"] or batch))
    least = 12 if data.hours < 10 else 6
    epochs = int(min(24, max(least, round(STEPS / steps))))
    options.choose("train.num_epochs", epochs, f"{counted(steps, 'step', '.0f')} an epoch")
    channels = options["network.channels"] or 128
    kind = options["network.kind"] or "tdnnf"
    peak = 4e-3 if channels <= 192 else 2e-3 if channels <= 512 else 1e-3
    if kind == "conformer":
        peak = 2e-3
    if kind in ("tdnnf", "conformer"):
        options.choose("train.schedule.peak", peak, f"{kind} of {counted(channels, 'channel')}")


def _decoding(data: DataSummary, options: _Options, has_arpa: bool) -> None:
    if not has_arpa:
        order = 3 if data.words <= MOST_TRIGRAM_WORDS else 2
        if data.word_gain <= LOOP:
            order = 0
        told = f"a bigram of the training text brings {data.word_gain:.2f} nats per held-out word"
        options.choose("decoding.ngram_order", order, told if order else f"any word may follow any: {told}")
    if has_arpa or options["decoding.ngram_order"]:
        options.choose(
            "decoding.lm_weights", [0.3, 0.5, 0.7, 0.9, 1.1], "the table grows where its edge is best"
        )
        options.choose("decoding.word_insertion_penalties", [-0.5, 0.0, 0.5, 1.0], "likewise")
    else:
        options.choose("decoding.lm_weights", [1.0], "a loop of words has no probabilities to weigh")
        options.choose(
            "decoding.word_insertion_penalties", [-1.0, 0.0, 1.0, 2.0, 3.0], "the table grows at its edges"
        )
    if not options.is_ctc and options["augment.frame_shift"]:
        fast = data.phones_per_second > FAST
        told = f"outputs are the mean over shifts; {counted(data.phones_per_second, 'phone', '.0f')} a second"
        options.choose("decoding.frame_shift", 1 if fast else 2, told)


FAST = 10.0  # phones a second, from which on outputs over five frames of shifts blur neighbours


def _rescoring(data: DataSummary, options: _Options, has_arpa: bool) -> None:
    if options["decoding.open_vocabulary"]:
        return
    if data.hours < 20:
        speeds = [0.9, 1.0] if options["decoding.ngram_order"] and data.kind == RECORDINGS else [1.0]
        options.choose("rescoring.speeds", speeds, "sums over all paths are what was trained")
        if not has_arpa and not options["decoding.ngram_order"]:
            options.choose("rescoring.lm_weights", [1.0], "a loop of words has no probabilities to weigh")
            options.choose(
                "rescoring.word_insertion_penalties",
                [0.0, 1.0, 2.0, 3.0, 4.0],
                "the table grows at its edges",
            )
    if options["decoding.ngram_order"] and ENOUGH_TEXT <= data.words <= MOST_TEXT:
        told = f"{counted(data.words, 'word')} of text: a network of words knows more than an n-gram"
        options.choose("rescoring.network_epochs", 30, told)
    if options["rescoring.network_epochs"]:
        options.choose("rescoring.num_hypotheses", 200, "the network reorders them")


def facts(summary: DataSummary) -> dict[str, Any]:
    """The summary as a plain table, for run.json."""
    return asdict(summary)
