"""The objective that a log of nnet3-chain-compute-prob or nnet3-chain-train ends with."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fsachain.errors import DataError
from fsachain.stream import open_file

_NUMBER = rb"(?:[-+]?[0-9][0-9.e+-]{0,30}|[-+]?nan|[-+]?inf)"
_LINE = re.compile(
    rb"Overall (?:log-probability|average objective function) for '(?P<output>[^'\n]{1,200})' is (?P<objf>%b)"
    rb"(?: \+ (?P<l2>%b) = %b)?(?: per frame,)? over (?P<weight>%b) frames" % ((_NUMBER,) * 4)
)
_MOST_NAMED = 20  # outputs in a message


@dataclass(frozen=True)
class LoggedObjective:
    """What a log says of one output of the network; Kaldi prints six digits.

    `objf` is the log-probability per weighted frame, numerator less denominator; `l2_term` that of `--l2-regularize`, per
    weighted frame, 0 where the log has none; `weight` counts weighted frames.
    """

    objf: float
    l2_term: float
    weight: float


def read_objective(path: str | os.PathLike[str], output: str = "output") -> LoggedObjective:
    """The last overall objective of an output of the network in a Kaldi log, compute_prob_valid.final.log or the like.

    `.gz` files are read too.
    """
    cursor = open_file(path)
    line, others = None, dict[str, None]()
    for match in _LINE.finditer(cursor.data):
        name = match["output"].decode("utf-8", "replace")
        if name == output:
            line = match
        elif len(others) < _MOST_NAMED:
            others[name] = None
    if line is None:
        has = f"lines for {', '.join(map(repr, others))} alone" if others else "no such line"
        raise DataError(
            f"{cursor.name}: expected a line \"Overall log-probability for '{output}' is ... over ... frames\" (or "
            f'"Overall average objective function ..."), as nnet3-chain-compute-prob or -train write it; found {has}'
        )
    try:
        return LoggedObjective(float(line["objf"]), float(line["l2"] or 0.0), float(line["weight"]))
    except ValueError as error:
        cursor.fail(f"an objective that is no number ({error})", line.start())
