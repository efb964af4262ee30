"""What the objectives of a training say about its options, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fsachain.errors import counted

# A network without progress stays within this share of its first objective; one that learns halves it in a few epochs.
LITTLE_PROGRESS = 0.05
POOR_OBJF = -0.1  # per frame; above, there is little left to learn
FALL = 0.25  # share of the best objective so far, and at least LEAST_FALL
LEAST_FALL = 0.05
# dev behind train, in nats per frame: 0.14 for good models of 15 and 70 minutes, 0.27 with a phone language model that
# knows the training set by heart.
LAG = 0.2
MOST_UNSEEN = 0.7  # share of a development set's utterances; 0.57 was still the better order of the phone language model


def advice(epochs: Sequence[Mapping[str, Any]], num_epochs: int) -> dict[str, str]:
    """Return warnings about a training so far, by their kind.

    Args:
        epochs: those that are done, each with "train" and "dev" (None without a development set) and their "objf" per frame.
        num_epochs: epochs in all.

    Returns:
        Kind and text of each warning; the caller says each kind once.
    """
    found: dict[str, str] = {}
    done = len(epochs)
    if not done:
        return found
    train = [epoch["train"]["objf"] for epoch in epochs]
    dev = [epoch["dev"]["objf"] for epoch in epochs if epoch["dev"] is not None]
    if not all(math.isfinite(objf) for objf in (*train, *dev)):
        return found
    if done == max(3, math.ceil(num_epochs / 4)) and train[-1] < POOR_OBJF:
        gain = max(train[1:]) - train[0]
        if gain < LITTLE_PROGRESS * abs(train[0]):
            found["progress"] = (
                f"epoch {done}: objf {train[-1]:.4f} after {train[0]:.4f} in the first epoch: nothing is learnt. Check that "
                "transcripts belong to their recordings (fsachain validate) and that features are normalised (cmvn.scope); "
                "then try another train.schedule.peak or phone_lm.ngram_order"
            )
    best = max(train[:-1], default=train[-1])
    if train[-1] < best - max(LEAST_FALL, FALL * abs(best)):
        found["fall"] = (
            f"epoch {done}: objf fell to {train[-1]:.4f} from {best:.4f}: steps are most likely too large; try a lower "
            "train.schedule.peak or train.optimizer.max_change: 2"
        )
    if dev and 2 * done >= num_epochs:
        lag = train[-1] - dev[-1]
        if lag > max(LAG, abs(train[-1])):
            found["lag"] = (
                f"epoch {done}: objf {train[-1]:.4f} in training, {dev[-1]:.4f} on the development set: the training set is "
                "learnt by heart. Try a lower phone_lm.ngram_order, loss.leaky_hmm_coefficient 0.1, perturbation.speeds "
                "[0.9, 1.0, 1.1], or fewer network.channels"
            )
    return found


def unseen_advice(floored: int, utterances: int) -> str | None:
    """Return a warning if most of a development set needs phone n-grams that the phone language model never saw."""
    if not utterances or floored <= MOST_UNSEEN * utterances:
        return None
    return (
        f"{floored} of {counted(utterances, 'utterance')} of the development set have phone n-grams that training "
        "lacks: the phone language model knows the training text by heart; try a lower phone_lm.ngram_order (fsachain "
        "config --for DATA compares them)"
    )
