"""Pictures of graphs: every arc, its width, what is clipped, and what is said of the rest."""

import io
import re

import numpy as np
import pytest
import tolerances
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.text import Text
from plot_inputs import large_fsa, small_fsa

from fsachain import ConfigError, Fsa, ShapeError
from fsachain.plot import figure_svg, plot_graph
from fsachain.plot.graph import THINNEST, WIDEST


def arcs(figure):
    """The line of each arc by its number."""
    return {int(patch.get_gid()[4:]): patch for patch in figure.findobj(FancyArrowPatch)}


def states(figure):
    """The circles of each state by its number."""
    found = {}
    for patch in figure.findobj(Circle):
        if re.fullmatch(r"state-\d+", patch.get_gid() or ""):
            found.setdefault(int(patch.get_gid()[6:]), []).append(patch)
    return found


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_every_state_arc_symbol_and_weight_is_drawn():
    figure = plot_graph(small_fsa(), names=["a", "b", "c", "d"])
    assert sorted(arcs(figure)) == [0, 1, 2, 3]
    drawn = states(figure)
    assert {state: len(circles) for state, circles in drawn.items()} == {
        0: 1,
        1: 1,
        2: 2,
    }  # the final one has two
    assert {"a / -0.1", "b / -0.5", "c / -1.5", "d / -2", "0", "1", "2\n-0.7"} <= set(texts(figure))


def test_widths_follow_the_occupancy_and_unused_arcs_are_dashed():
    figure = plot_graph(small_fsa(), occupancy=[3.0, 6.0, 1.5, 0.0])
    lines = arcs(figure)
    widths = np.array([lines[arc].get_linewidth() for arc in range(4)])
    expected = THINNEST + (WIDEST - THINNEST) * np.array([0.5, 1.0, 0.25, 0.0])
    np.testing.assert_allclose(widths / widths[1], expected / expected[1], rtol=tolerances.ROUNDING)
    assert [lines[arc].get_linestyle() for arc in range(4)] == ["-", "-", "-", "--"]


def test_the_most_used_arcs_of_a_large_graph_are_drawn_and_the_rest_is_told():
    fsa = large_fsa(2000, 100)
    used = np.random.default_rng(2).uniform(size=2000)
    figure = plot_graph(fsa, occupancy=used, max_arcs=20, title="den")
    best = np.sort(np.argsort(-used)[:20])
    assert sorted(arcs(figure)) == best.tolist()
    share = 100 * used[best].sum() / used.sum()
    assert figure.get_suptitle() == f"den: 20 of 2,000 arcs, with {share:.1f} % of the occupancy"
    facts = next(text for text in texts(figure) if text.startswith("the whole graph"))
    assert "100 states, 1 final" in facts and "2,000 arcs, 50 pdfs" in facts
    curve = next(axes for axes in figure.axes if axes.get_title() == "the most used arcs together").lines[0]
    assert curve.get_ydata()[-1] == pytest.approx(100.0)
    assert curve.get_ydata()[19] == pytest.approx(share)


@pytest.mark.parametrize(
    "fsa",
    [
        Fsa(1, [], [], [], [], [-np.inf]),
        Fsa(1, [0], [0], [0], [-np.inf], [0.0]),
        Fsa(
            2, [0, 0, 0, 1, 1], [1, 1, 1, 0, 1], [0, 0, 1, 2, 3], [5.0, 2.0, -1e30, 1e-9, 0.0], [0.0, 3.0], 1
        ),
        Fsa(4, [2], [3], [0], [0.0], [-np.inf] * 4),
    ],
)
def test_odd_graphs_are_drawn_whole(fsa):
    figure = plot_graph(fsa)
    assert len(arcs(figure)) == fsa.num_arcs and len(states(figure)) == fsa.num_states
    assert figure_svg(figure).startswith("<svg")


def every_pair(num_states):
    src, dst = np.divmod(np.arange(num_states**2), num_states)
    return Fsa(num_states, src, dst, src + dst, -0.01 * np.arange(len(src)), np.full(num_states, -0.25))


def chain_of(length):
    """With a loop on each state."""
    src, dst = np.r_[:length, :length], np.r_[1 : length + 1, :length]
    return Fsa(length + 1, src, dst, src, np.full(2 * length, -0.5), np.r_[np.full(length, -np.inf), 0.0])


@pytest.mark.parametrize(
    ("fsa", "num_drawn"),
    [
        (Fsa(1, [0] * 5, [0] * 5, range(5), [-0.5] * 5, [0.0]), 5),
        (every_pair(5), 25),
        (every_pair(20), None),  # 400 arcs: as many as can be read, and the summary
        (chain_of(12), 24),
        (chain_of(100), None),
    ],
)
def test_letters_can_be_read_and_no_loop_runs_through_its_labels(fsa, num_drawn):
    figure = plot_graph(fsa, max_arcs=400)
    lines, words = arcs(figure), {text.get_gid(): text for text in figure.findobj(Text) if text.get_gid()}
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 6.0
    if num_drawn is None:
        assert 20 < len(lines) <= 120 and "the whole graph" in "\n".join(texts(figure))
        assert figure.get_suptitle() == f"{len(lines)} of {fsa.num_arcs} arcs"
    else:
        assert len(lines) == num_drawn
    figure.savefig(io.BytesIO(), format="png")  # which places everything
    for arc in (arc for arc in lines if fsa.src[arc] == fsa.dst[arc]):
        path = lines[arc].get_path().interpolated(1).to_polygons(closed_only=False)[0]
        box = words[f"label-{arc}"].get_window_extent()
        inside = box.padded(-1.0)
        assert not any(inside.contains(*point) for point in lines[arc].get_transform().transform(path))
        others = [
            words[f"label-{n}"].get_window_extent() for n in lines if n != arc and fsa.src[n] == fsa.dst[n]
        ]
        assert not any(inside.overlaps(other.padded(-1.0)) for other in others)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match=r"occupancy: shape \[3\], expected \[4\]"):
        plot_graph(small_fsa(), occupancy=[1.0, 2.0, 3.0])
    with pytest.raises(ShapeError, match=r"occupancy\[1\] = -1"):
        plot_graph(small_fsa(), occupancy=[0.0, -1.0, 0.0, 0.0])
    with pytest.raises(ShapeError, match="names: 3; the graph has pdfs up to 3"):
        plot_graph(small_fsa(), names=["a", "b", "c"])
    with pytest.raises(ShapeError, match="arc_names: 1, expected 4"):
        plot_graph(small_fsa(), arc_names=["a"])
    with pytest.raises(ConfigError, match="max_arcs = 0"):
        plot_graph(small_fsa(), max_arcs=0)
