"""How fast the machine lets anyone be: two multiply-adds for each arc-evaluation, and the bytes that must move.

The forward and the backward pass each add a product of a weight and a number of another state to a sum, which is one
multiply-add per arc with the other factors taken out of the loop; occupancies, exponentials and normalisation come on
top and are not counted. Through memory go the scores once, the gradient in and out, and the alphas out and in where they
are larger than the caches. The limit is the larger of the two times, at rates measured in the same rounds by one thread
(`yardstick.py`), divided by the threads. It counts multiply-adds whose operands stand in the first-level cache, which
graphs of thousands of states do not: no program reaches 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tools.bench import calls, yardstick
from tools.bench.timing import Comparison, Times
from tools.bench.workloads import PER_ARC, Work

Name = tuple[str, int]
MULTIPLY_ADDS, MEMORY = ("multiply-adds", 1), ("memory", 1)


def yardsticks() -> dict[Name, Callable[[], object]]:
    """The jobs that measure the two rates; they run in the same rounds as what is compared with the limit."""
    return {MULTIPLY_ADDS: calls.multiply_add_call(), MEMORY: calls.stream_call()}


def limit(times: Mapping[Name, Times], work: Work, threads: int) -> Times:
    """The least time of each round."""
    pairs = zip(times[MULTIPLY_ADDS].seconds, times[MEMORY].seconds, strict=True)
    arithmetic = PER_ARC * work.evaluations / yardstick.MULTIPLY_ADDS
    traffic = work.bytes / yardstick.STREAM_BYTES
    return Times(tuple(max(arithmetic * a, traffic * m) / threads for a, m in pairs))


def against_limit(times: Mapping[Name, Times], name: Name, work: Work) -> Comparison:
    """How far the job `name` is from the limit of its work and threads."""
    return Comparison("limit", times[name].over(limit(times, work, name[1])))
