"""Keyword spotting by two graphs: the keyword among anything, against anything.

The score of an utterance is the difference of two totals, per frame. One network computes both (networks trained for
this with LF-MMI: Wang et al., Interspeech 2020), and both are `forward_backward` over graphs of `fsachain.graph.patterns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, DataError, counted
from fsachain.fsa import Fsa


class OperatingPoint(NamedTuple):
    """A threshold, above which an utterance counts as the keyword, and what it does.

    Attributes:
        threshold: in nats per frame, as `keyword_scores`.
        false_reject_rate: in [0, 1], the share of the utterances with the keyword that are missed.
        false_alarms_per_hour: utterances without the keyword that are accepted, per hour of audio without it.
    """

    threshold: float
    false_reject_rate: float
    false_alarms_per_hour: float


def keyword_scores(
    keyword: Fsa,
    filler: Fsa,
    nnet_outputs: npt.ArrayLike,
    lengths: Sequence[int] | npt.NDArray[np.integer],
) -> npt.NDArray[np.float64]:
    """(log Z of the keyword graph - log Z of the filler graph) / frames of each utterance, float64 [N].

    -inf where the keyword does not fit into the frames; DataError where the filler graph does not.

    `keyword` is the keyword among anything, such as the fsa of `build_pattern_numerator([optional([loop]), *words,
    optional([loop])], ...)`, `filler` is anything: that of `build_pattern_numerator([loop], ...)`. `nnet_outputs` are
    [N, T, P], `lengths` [N] the frames of each.
    """
    scores = np.asarray(nnet_outputs)
    totals = []
    for fsa in (keyword, filler):
        batch = TableBatch.share(fsa, len(scores))
        totals.append(np.asarray(forward_backward(batch, scores, lengths).log_prob, dtype=np.float64))
    bad = np.flatnonzero(~np.isfinite(totals[1]))
    if bad.size:
        raise DataError(
            f"nnet_outputs[{bad[0]}]: the filler graph gives {totals[1][bad[0]]} for {counted(lengths[bad[0]], 'frame')}; "
            "expected a finite total"
        )
    return (totals[0] - totals[1]) / np.asarray(lengths)


def false_reject_rate(
    with_keyword: npt.ArrayLike,
    without_keyword: npt.ArrayLike,
    hours_without: float,
    *,
    false_alarms_per_hour: float,
) -> OperatingPoint:
    """The lowest threshold that keeps to a rate of false alarms, and the share of keywords missed there.

    `with_keyword` are the scores [K] of utterances in which the keyword is spoken, `without_keyword` those [M] of utterances
    in which it is not, which last `hours_without`; at most `false_alarms_per_hour` of them may be accepted per hour.
    """
    positive = np.sort(np.asarray(with_keyword, dtype=np.float64))
    negative = np.sort(np.asarray(without_keyword, dtype=np.float64))[::-1]
    if not 0 < hours_without < math.inf or not 0 <= false_alarms_per_hour < math.inf:
        raise ConfigError(
            f"hours_without = {hours_without}, false_alarms_per_hour = {false_alarms_per_hour}: expected a duration above 0 "
            "and a rate of at least 0"
        )
    if not positive.size or np.isnan(positive).any() or np.isnan(negative).any():
        raise ConfigError(
            f"with_keyword has {counted(positive.size, 'score')}: expected at least one, and no NaN anywhere"
        )
    allowed = math.floor(false_alarms_per_hour * hours_without * (1 + 1e-12))
    threshold = float(negative[allowed]) if allowed < len(negative) else -math.inf
    alarms = int((negative > threshold).sum())
    missed = int(np.searchsorted(positive, threshold, side="right"))
    return OperatingPoint(threshold, missed / len(positive), alarms / hours_without)
