"""The best path of a CTC target on the CPU: equations (8) and (9) on the graphs of `graph.ctc`, in float64.

Of the scores before a frame two rows are kept, [U + 1] each: of the blank behind label k, and of label k. A step is a byte
that says where both came from. Steps of all frames would take T U bytes, so frames are cut into stretches. A first pass
keeps the two rows at the head of each; then, from the last stretch to the first, steps are made again, but only for the n
labels, n the frames of the stretch, from which its end can be reached. With n = (8 T U)^(1/3) heads and steps together
take the least memory, and the second pass n / U of the time of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.backends.cpu.jit import helper, jit
from fsachain.fsa import Floats
from fsachain.graph.ctc import CtcTopology

SMALL = 1 << 26  # bytes of steps that are kept at once
FROM_LABEL = 4  # in the step of a blank; the step of a label is 0: itself, 1: the blank before it, 2: the label before it


def best_path(
    scores: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    differs: npt.NDArray[np.bool_],
    wild: Floats,
    blank: int,
    topology: CtcTopology,
) -> tuple[float, npt.NDArray[np.int32]]:
    """The score of the best path and for each frame the label's place in the target, counted from 1, 0 for the blank.

    Among equal scores a frame stays where the one before it was, else comes from a blank; the path ends in a label.

    Args:
        scores: [T, C], contiguous.
        labels: [U]; label C has the scores `wild` [T].
        differs: [U + 1], see `graph.ctc.differs_from_previous`.

    Returns:
        The score is -inf where there is no path and NaN where a score that is read is NaN or +inf; the places then mean
        nothing.
    """
    num_frames, num_labels = len(scores), len(labels)
    classes, columns = np.unique(labels, return_inverse=True)
    may_skip = np.ones(num_labels + 1, np.bool_) if topology in ("compact", "minimal") else differs
    skip = np.where(may_skip, 0.0, -np.inf)
    skip[:2] = -np.inf  # there is no label before the first
    again = 0.0 if topology in ("standard", "compact") else -np.inf
    stretch = num_frames
    if num_frames * (num_labels + 1) > SMALL:
        stretch = int(np.cbrt(8.0 * num_frames * num_labels)) + 1
    where = np.zeros(num_frames, np.int32)
    columns = np.concatenate([[0], columns.ravel()])
    score = _run(scores, classes, columns, skip, again, wild, blank, max(1, stretch), where)
    return float(score), where


@jit
def _run(
    scores: Any,
    classes: Any,
    columns: Any,
    skip: Any,
    again: float,
    wild: Any,
    blank: int,
    stretch: int,
    where: Any,
) -> float:
    num_frames, num_labels = len(scores), len(skip) - 1
    count = (num_frames + stretch - 1) // stretch
    rows = np.full((2, 2, num_labels + 1), -np.inf)  # by parity of the frame that they stand before
    rows[0, 0, 0] = 0.0
    heads = np.empty((count, 2, num_labels + 1))
    reach = num_labels if count <= 1 else min(num_labels, stretch)
    steps = np.empty((stretch, reach + 1), np.uint8)
    unused = np.empty((1, num_labels + 1), np.uint8)
    y = np.empty(len(classes))
    for s in range(count):
        first, last = s * stretch, min((s + 1) * stretch, num_frames)
        heads[s] = rows[first % 2]
        into = steps if count == 1 else unused
        if not _pass(
            scores, classes, columns, skip, again, wild, blank, first, last, 0, num_labels, rows, y, into
        ):
            return np.nan
    k = num_labels
    blank_end, label_end = rows[num_frames % 2, 0, k], rows[num_frames % 2, 1, k]
    on_label = k > 0 and not blank_end > label_end
    score = label_end if on_label else blank_end
    if not score > -np.inf:
        return score
    for s in range(count - 1, -1, -1):
        first, last = s * stretch, min((s + 1) * stretch, num_frames)
        low = 0
        if count > 1:
            low = max(0, k - (last - first))
            rows.fill(-np.inf)
            rows[first % 2] = heads[s]
            _pass(scores, classes, columns, skip, again, wild, blank, first, last, low, k, rows, y, steps)
        for t in range(last - 1, first - 1, -1):
            step = steps[t - first, k - low]
            if on_label:
                where[t] = k
                k -= (step & 3) > 0
                on_label = (step & 3) != 1
            else:
                on_label = (step & FROM_LABEL) > 0
    return score


@helper
def _pass(
    scores: Any,
    classes: Any,
    columns: Any,
    skip: Any,
    again: float,
    wild: Any,
    blank: int,
    first: int,
    last: int,
    low: int,
    high: int,
    rows: Any,
    y: Any,
    steps: Any,
) -> bool:
    """Take rows from before frame `first` to before frame `last`; steps are those of labels `low` to `high`.

    False where a score is NaN or +inf.
    """
    num_frames, num_classes = scores.shape
    num_labels = len(skip) - 1
    legal = True
    for t in range(first, last):
        legal &= scores[t, blank] < np.inf
        for c in range(len(classes)):
            y[c] = wild[t] if classes[c] == num_classes else np.float64(scores[t, classes[c]])
            legal &= y[c] < np.inf
        # More labels cannot have been spelled yet, and with fewer the frames that are left would not do.
        begin = max(low, num_labels - (num_frames - 1 - t))
        end = min(t + 1, high) + 1
        row = t - first if len(steps) > 1 else 0
        _frame(
            rows[t % 2],
            rows[(t + 1) % 2],
            y,
            columns,
            skip,
            again,
            np.float64(scores[t, blank]),
            begin,
            end,
            low,
            steps[row],
        )
    return legal


@helper
def _frame(
    old: Any,
    new: Any,
    y: Any,
    columns: Any,
    skip: Any,
    again: float,
    y_blank: float,
    begin: int,
    end: int,
    low: int,
    steps: Any,
) -> None:
    if begin == 0:
        new[0, 0] = old[0, 0] + y_blank
        steps[0] = 0
        begin = 1
    # Views that begin at the same label: an index that may be negative would cost a branch.
    blank, label = old[0, begin:end], old[1, begin:end]
    blank_before, label_before = old[0, begin - 1 : end - 1], old[1, begin - 1 : end - 1]
    new_blank, new_label = new[0, begin:end], new[1, begin:end]
    skip, columns, steps = skip[begin:end], columns[begin:end], steps[begin - low : end - low]
    for k in range(len(blank)):
        stays, left = label[k], blank[k]
        new_blank[k] = max(left, stays) + y_blank
        best = stays + again
        skipped = label_before[k] + skip[k]
        step = 1 if blank_before[k] > best else 0
        best = max(best, blank_before[k])
        step = 2 if skipped > best else step
        best = max(best, skipped)
        new_label[k] = best + y[columns[k]]
        steps[k] = step + (FROM_LABEL if stays > left else 0)
