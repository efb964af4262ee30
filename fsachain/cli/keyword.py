"""The command `fsachain keyword`: how well a model finds a keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from fsachain.cli.bad_data import BadData
from fsachain.cli.decoding import check_lang, network_outputs
from fsachain.cli.lang import Lang
from fsachain.cli.model import AcousticModel
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    lang_option,
    workers_option,
)
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.keyword import OperatingPoint, false_reject_rate, keyword_scores
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.patterns import Pattern, build_pattern_numerator, optional, phone_loop


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("words")
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; weighs both graphs by it."
)
@click.option(
    "--false-alarms-per-hour",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="At most so many, in the utterances without the keyword.",
)
@click.option(
    "--phones-per-loop",
    type=click.FloatRange(min=1, min_open=True),
    default=10.0,
    show_default=True,
    help="Phones that anything else has on average.",
)
@cache_option
@workers_option
@bad_data_option
@commands_option
def keyword(model: Path, data: Path, words: str, out: Path, lang: Path, **arguments: Any) -> None:
    """Look for a keyword, and count misses at a given rate of false alarms.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory with and without the keyword, whose transcripts tell;
    WORDS, the keyword, in quotes if it has several words.

    Out: the false-reject rate, printed; folder OUT with scores.txt (utterance, score per frame, 1 with the keyword or 0).
    """
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.graphs import load_normalization
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel

    language = load_lang(lang)
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        summary = spot_keyword(
            AcousticModel.load(model),
            language,
            bad_data.read(data),
            words.split(),
            out,
            false_alarms_per_hour=arguments["false_alarms_per_hour"],
            phones_per_loop=arguments["phones_per_loop"],
            normalization=load_normalization(language, arguments["den"]) if arguments["den"] else None,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{summary} -> {out}")


# How well a model finds a keyword: scores of a data directory, and what a threshold on them does.

BATCH = 32


@dataclass(frozen=True)
class KeywordSummary:
    """What `spot_keyword` found."""

    point: OperatingPoint
    num_with: int
    num_without: int
    hours_without: float

    def __str__(self) -> str:
        missed = round(self.point.false_reject_rate * self.num_with)
        return (
            f"false-reject rate {100 * self.point.false_reject_rate:.2f} % ({missed} of {self.num_with}) at "
            f"{self.point.false_alarms_per_hour:.4g} false alarms per hour ({self.num_without} utterances, "
            f"{self.hours_without:.4g} hours without the keyword), threshold {self.point.threshold:.6g}"
        )


def spot_keyword(
    model: AcousticModel,
    lang: Lang,
    data: DataDir,
    keyword: Sequence[str],
    out: Path,
    *,
    false_alarms_per_hour: float,
    phones_per_loop: float = 10.0,
    normalization: Fsa | None = None,
    cache: Path | None = None,
    num_workers: int = 1,
    bad_data: BadData | None = None,
) -> KeywordSummary:
    """Score every utterance for the keyword among anything, and choose the threshold for a rate of false alarms.

    Writes scores.txt to `out`: utterance, score, and 1 if its transcript has the keyword, else 0.

    Args:
        model: gives the network outputs.
        lang: what the model was trained with.
        data: utterances with transcripts, with and without the keyword.
        keyword: its words.
        out: folder.
        false_alarms_per_hour: at most so many of the utterances without the keyword are accepted per hour of them.
        phones_per_loop: phones that the loop of phones around the keyword, and in its place, has on average.
        normalization: of a denominator, for both graphs.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        bad_data: with it utterances whose recordings cannot be used are left out.

    Raises:
        ConfigError: no keyword.
        DataError: no utterance with the keyword, or none without it.
        GraphError: a word that the lexicon refuses.
    """
    if not keyword:
        raise ConfigError("keyword is empty: expected its words")
    check_lang(model, lang)
    lexicon = lang.lexicon
    loop = phone_loop(range(1, len(lexicon.phones) + 1), stop_prob=1 / phones_per_loop)
    patterns: dict[str, Pattern] = {
        "keyword": [optional([loop]), *keyword, optional([loop])],
        "filler": [loop],
    }
    graphs = [
        build_pattern_numerator(pattern, lexicon, lang.tree, normalization=normalization, name=name).fsa
        for name, pattern in patterns.items()
    ]
    outputs = network_outputs(model, data, cache, num_workers, bad_data=bad_data)
    scores = _scores(graphs[0], graphs[1], outputs)
    has = {utterance.id: _contains(utterance.words, keyword) for utterance in data if utterance.id in scores}
    seconds = {name: len(matrix) * model.timing.frame_seconds for name, matrix in outputs.items()}
    hours = sum(seconds[name] for name, found in has.items() if not found) / 3600
    with_keyword = [scores[name] for name, found in has.items() if found]
    if not with_keyword or not hours:
        raise DataError(
            f"{len(with_keyword)} of {len(has)} utterances have the keyword {' '.join(keyword)!r}; expected some with and "
            "some without it"
        )
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {scores[name]:.6g} {int(found)}\n" for name, found in has.items()]
    (out / "scores.txt").write_text("".join(lines), encoding="utf-8")
    without = [scores[name] for name, found in has.items() if not found]
    point = false_reject_rate(with_keyword, without, hours, false_alarms_per_hour=false_alarms_per_hour)
    return KeywordSummary(point, len(with_keyword), len(without), hours)


def _scores(keyword: Fsa, filler: Fsa, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Scores by utterance, in batches of similar length."""
    found: dict[str, float] = {}
    names = sorted(outputs, key=lambda name: len(outputs[name]))
    for first in range(0, len(names), BATCH):
        batch = names[first : first + BATCH]
        lengths = [len(outputs[name]) for name in batch]
        scores = np.zeros((len(batch), max(lengths), outputs[batch[0]].shape[1]), dtype=np.float32)
        for row, name in zip(scores, batch, strict=True):
            row[: len(outputs[name])] = outputs[name]
        found |= zip(batch, keyword_scores(keyword, filler, scores, lengths).tolist(), strict=True)
    return found


def _contains(words: Sequence[str], keyword: Sequence[str]) -> bool:
    sought = tuple(keyword)
    return any(tuple(words[i : i + len(sought)]) == sought for i in range(len(words) - len(sought) + 1))
