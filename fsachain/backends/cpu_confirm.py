"""Equation (19): log Z from both ends, for a sequence of which (13) does not say that nothing was lost.

The forward pass has put alphas below a floor to zero, so its Z is not too large. Here betas run in the same plain numbers,
raised in every frame by more than they can have lost, so their Z is not too small. A pass over betas alone costs a sixth
of what wide numbers do.
"""

from __future__ import annotations

import math
from typing import Any

from fsachain.backends.cpu_by_arc import raise_betas
from fsachain.backends.cpu_frames import load_scores
from fsachain.backends.cpu_lanes import by_type
from fsachain.backends.cpu_layouts import ArcList
from fsachain.backends.cpu_numbers import is_wide_type, lanes_of, zero
from fsachain.backends.cpu_recursion import end_betas, keep_beta, make_probabilities
from fsachain.backends.jit import jit_on_views

SAME = 1e-11  # the two may differ by this share, most of which is left to rounding


@jit_on_views
def _both_ends_agree(form: Any, table: Any, c: Any, frames: Any, work: Any, record: Any) -> bool:
    count, scales = frames.lengths[0], 0
    nothing = zero(form, work.leak)
    for t in range(count - 1, -1, -1):
        after, now = work.beta[(t + 1) % 2], work.beta[t % 2]
        end_betas(form, table, c, frames, t + 1, after, work)
        scales += work.beta_scale[0, 0]
        probs = work.probs[t % len(work.probs)]
        if len(work.probs) < count:  # they are made again, and not where those of the last segment are
            load_scores(lanes_of(form), frames, t, work)
            probs = work.occupancy
            make_probabilities(form, table, frames.columns, record.scale[t : t + 1], work, probs)
        keep_beta(form, c, raise_betas(form, table, after, probs, now, work), nothing, work)
    z = 0.0
    for i in range(len(table.initial[0])):
        z += table.initial[0][i] * work.beta[0][i, 0]
    return abs(math.ldexp(z / record.z[0], scales) - 1.0) <= SAME


@by_type
def confirm(
    form: Any, table: Any, c: Any, frames: Any, limit: Any, work: Any, record: Any, certain: Any
) -> Any:
    """Set certain [1] where both ends agree. For graphs of single sequences that do not leak, else nothing happens."""

    def nothing(form, table, c, frames, limit, work, record, certain):  # type: ignore[no-untyped-def]
        pass

    def plain(form, table, c, frames, limit, work, record, certain):  # type: ignore[no-untyped-def]
        # Weights below the limit may themselves have lost digits.
        normal = min(table.least[0], table.least[1], table.least[3]) >= limit
        possible = frames.lengths[0] > 0 and record.z[0] > 0.0
        if not certain[0] and c[0][0] == 0.0 and normal and possible:
            certain[0] = _both_ends_agree(form, table, c, frames, work, record)

    by_arc = table.types[table.fields.index("arcs")].instance_class is ArcList
    return plain if by_arc and not is_wide_type(form) else nothing
