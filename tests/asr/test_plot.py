"""Pictures, of graphs too: what was given stands in the figure, at its place."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import docs_inputs
import numpy as np
import pytest
import tolerances
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.text import Text
from plot_inputs import (
    HOSTILE,
    entries,
    epoch,
    every_figure,
    large_fsa,
    lattice_inputs,
    planted_lattice,
    planted_nodes,
    small_fsa,
)

from fsachain import ConfigError, DataError, Fsa, ShapeError, rnnt_lattice
from fsachain.asr.plot import (
    OccupancyPanel,
    TrellisPair,
    figure_svg,
    occupancy_panels,
    pdf_names,
    pdf_trellis,
    phone_trellis,
    plot_alignment,
    plot_graph,
    plot_occupancy,
    plot_training,
    plot_trellis,
    plot_wer,
    read_events,
    save_figure,
    spectrogram,
)
from fsachain.asr.plot.graph import ROW_WIDTH, THINNEST, WIDEST, lay_out
from fsachain.asr.plot.occupancy import MARKED
from fsachain.graph.numerator import build_numerator

ROOT = Path(__file__).resolve().parents[2]


def image(axes):
    """The values of a heat map, [frames, rows]."""
    return np.asarray(axes.images[0].get_array()).T


def texts(figure):
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_nodes_on_an_antidiagonal_of_the_picture_sum_to_one():
    panels = occupancy_panels(rnnt_lattice(*lattice_inputs()))
    figure = plot_occupancy(panels)
    for axes, (num_frames, num_labels) in zip(figure.axes, [(7, 3), (5, 2)], strict=False):
        node = image(axes)
        assert node.shape == (num_frames, num_labels + 1)
        t, u = np.indices(node.shape)
        sums = np.bincount((t + u).ravel(), node.ravel())
        np.testing.assert_allclose(sums, 1.0, atol=tolerances.ROW_SUM)


def test_a_planted_best_path_is_drawn_at_its_places():
    steps, labels = [1, 1, 4], [2, 0, 3]
    panel = occupancy_panels(planted_lattice(steps, 6, labels), [["a", "b", "c"]], ["u1"])[0]
    axes = plot_occupancy(panel).axes[0]
    (line,) = axes.lines
    expected = np.array(planted_nodes(steps, 6))
    np.testing.assert_array_equal(np.stack([line.get_xdata(), line.get_ydata()], axis=1), expected)
    node = image(axes)
    np.testing.assert_allclose(node[tuple(expected.T)], 1.0, atol=tolerances.ROW_SUM)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["(start)", "a", "b", "c"]
    assert tuple(axes.images[0].get_extent()) == (-0.5, 5.5, -0.5, 3.5)  # so that column t is centred on t


@pytest.fixture(scope="module")
def acoustic(tmp_path_factory):
    """Scores of nine frames, a numerator of two words, a denominator and its tree."""
    language = docs_inputs.phone_graphs(tmp_path_factory.mktemp("language"))
    lexicon, tree, normalization = language["lexicon"], language["tree"], language["normalization"]
    numerator = build_numerator(["ask", "now"], lexicon, tree, normalization=normalization)
    scores = np.random.default_rng(5).normal(0, 2, (9, tree.num_pdfs))
    return scores, numerator, language["denominator"], tree


def test_the_third_panel_is_the_difference_of_the_first_two(acoustic):
    scores, numerator, denominator, tree = acoustic
    pair = pdf_trellis(scores, numerator, denominator, leaky_hmm_coefficient=0.1, names=pdf_names(tree))
    figure = plot_trellis(pair, title="u1")
    num, den, gradient = (image(axes) for axes in figure.axes[:3])
    np.testing.assert_allclose(num - den, gradient, atol=tolerances.FLOAT64)
    np.testing.assert_allclose(num.sum(axis=1), 1.0, atol=tolerances.ROW_SUM)
    assert np.abs(gradient).max() > 0.05  # so that the test is about something
    for kind, sign in (("raise", 1), ("lower", -1)):
        hatched = sum(box.get_width() for box in figure.axes[2].patches if box.get_gid() == kind)
        assert hatched == np.sum(sign * gradient > MARKED * np.abs(gradient).max()) > 0


def test_phones_are_the_sums_of_their_pdfs(acoustic):
    scores, numerator, denominator, tree = acoustic
    by_pdf = pdf_trellis(scores, numerator, denominator)
    by_phone = phone_trellis(scores, numerator, denominator, tree)
    assert set(by_phone.names) == set(tree.phones)
    for column, name in enumerate(by_phone.names):
        phone = tree.phones.index(name) + 1
        pdfs = [pdf for pdf in range(tree.num_pdfs) if tree.describe(pdf).phones == (phone,)]
        for part, whole in (
            (by_pdf.numerator, by_phone.numerator),
            (by_pdf.denominator, by_phone.denominator),
        ):
            np.testing.assert_allclose(np.asarray(part)[:, pdfs].sum(axis=1), np.asarray(whole)[:, column])


def test_long_titles_are_whole_and_inside_the_picture():
    words = [f"word{n}" for n in range(60)]
    title, rows = f"u1: {' '.join(words)}", np.full((9, 50), 0.02)
    pair = TrellisPair(rows, rows[::-1], log_probs=(-12345678.25, -12345678.5))
    sound = spectrogram(np.sin(np.arange(8000) * 0.3), 8000)
    panel = OccupancyPanel(np.full((9, 3), 0.5), ["a", "b"], None, title)
    for figure in (
        plot_trellis(pair, title=title, max_rows=20),
        plot_alignment(sound, {"words": entries("ab")}, title=title),
        plot_occupancy({"one": [panel], "two": [panel]}),
    ):
        figure.draw_without_rendering()
        heads = [axes.title for axes in figure.axes if axes.get_title()]
        heads += [figure._suptitle] if figure.get_suptitle() else []
        assert set(words) <= set(" ".join(head.get_text() for head in heads).split())
        for head in heads:
            box = head.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= figure.bbox.width and 0 <= box.y0 < box.y1 <= figure.bbox.height


def test_segments_stand_at_their_times_below_the_spectrogram():
    sound = spectrogram(np.sin(np.arange(8000) * 0.3), 8000)
    figure = plot_alignment(sound, {"words": entries("ab"), "phones": entries("a", "b", duration=0.1)})
    top, words, phones = figure.axes[:3]
    assert top.get_xlim() == (0.0, 1.0) and words.get_shared_x_axes().joined(top, phones)
    boxes = [patch for patch in phones.patches if patch.get_gid() == "phones"]
    np.testing.assert_allclose(
        [box.get_bbox().extents[[0, 2]] for box in boxes], [[0.1, 0.2], [0.2, 0.3]], atol=tolerances.FLOAT64
    )
    assert [text.get_text() for text in phones.texts] == ["a", "b"]
    assert [text.get_position()[0] for text in phones.texts] == pytest.approx([0.15, 0.25])


def curves(figure):
    return {line.get_label(): line.get_xydata().tolist() for axes in figure.axes for line in axes.lines}


def test_the_curves_hold_what_the_log_says():
    events = [
        {"event": "start"},
        epoch(1),
        {"event": "resume"},
        epoch(2, dev={"objf": -0.7, "num": 1.0, "den": 1.5, "wer": 12.5}),
    ]
    events[1]["train"].update(grad_norm=3.0, max_grad_norm=4.0)
    found = curves(plot_training(events))
    assert found["train"] == [[1.0, -1.0], [2.0, -0.5]]
    assert found["dev"] == [[2.0, 12.5]]  # the WER is drawn last
    assert found["denominator, train"] == [[1.0, 3.5], [2.0, 4.5]]
    assert found["numerator, dev"] == [[2.0, 1.0]]
    assert found["learning rate"] == [[1.0, 0.01], [2.0, 0.02]]
    assert found["mean"] == [[1.0, 3.0]] and found["largest"] == [[1.0, 4.0]]
    assert found["utterances excluded"] == [[1.0, 1.0], [2.0, 2.0]]
    assert "batches skipped" not in found  # there were none


def test_panels_without_a_figure_are_left_out():
    bare = {"event": "epoch", "epoch": 1, "learning_rate": 0.1, "train": {"objf": -1.0}, "dev": None}
    assert [axes.get_title() for axes in plot_training([bare]).axes] == ["objf", "learning rate"]
    assert len(plot_training([]).axes) == 1 and "no epoch is finished yet" in texts(plot_training([]))
    counts = {"substitutions": 1, "deletions": 0, "insertions": 0, "words": 3, "utterances": 1}
    figure = plot_wer({"speakers": {"s1": counts}, "total": counts})
    assert [axes.get_title() for axes in figure.axes] == ["by speaker"]


def test_a_log_cut_in_the_middle_is_drawn(tmp_path):
    path = tmp_path / "train.jsonl"
    whole = "".join(json.dumps(event) + "\n" for event in ({"event": "start"}, epoch(1), epoch(2)))
    for end, finished in ((0, 0), (len(whole) - 1, 2), (len(whole) - 40, 1)):
        path.write_text(whole[:end])
        assert len(curves(plot_training(read_events(path))).get("learning rate", [])) == finished
    with pytest.raises(DataError, match="cannot be read"):
        read_events(tmp_path / "nothing.jsonl")


def test_bars_are_the_shares_of_the_kinds_of_errors():
    from fsachain.asr.decode.wer import score

    references = {"u1": ["a", "b"], "u2": ["a", "b", "c", "d"], "u3": ["a", "b"], "u4": []}
    hypotheses = {"u1": ["a", "x"], "u2": ["a", "c", "d", "e"], "u3": ["a", "b"], "u4": ["z"]}
    speakers = {"u1": "s1", "u2": "s1", "u3": "s2", "u4": "s2"}
    axes = plot_wer(score(references, hypotheses, speakers=speakers)).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["s1", "s2"]
    bars = {group.get_label(): group for group in axes.containers if getattr(group, "orientation", None)}
    for kind, expected in (("substitutions", [100 / 6, 0]), ("insertions", [100 / 6, 50])):
        assert [bar.get_width() for bar in bars[kind]] == pytest.approx(expected)
    before, ends = bars["substitutions"], [bar.get_x() for bar in bars["insertions"]]
    widths = zip(before, bars["deletions"], strict=True)
    assert ends == pytest.approx([one.get_width() + other.get_width() for one, other in widths])


@pytest.mark.filterwarnings("ignore:Glyph")  # no font has a picture of a control character
def test_hostile_names_are_no_markup_and_no_formula():
    from xml.etree import ElementTree

    for name, figure in every_figure().items():
        root = ElementTree.fromstring(figure_svg(figure))
        tags = {element.tag.rpartition("}")[2] for element in root.iter() if isinstance(element.tag, str)}
        assert "script" not in tags and "svg" in tags, name
        assert any(HOSTILE[:20] in text for text in texts(figure)), name


def test_settings_of_matplotlib_stay_and_neither_pyplot_nor_torch_is_loaded():
    code = (
        "import sys; sys.path[:0] = ['tests', 'tests/asr']; from matplotlib import rcParams\n"
        "settings = lambda: [(name, rcParams[name]) for name in rcParams if name != 'backend']\n"  # it loads pyplot
        "before = settings()\n"
        "from plot_inputs import every_figure; from fsachain.asr.plot import figure_png\n"
        "[figure_png(figure) for figure in every_figure().values()]\n"
        "assert settings() == before\n"
        "assert not {'matplotlib.pyplot', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_files_are_of_the_kind_that_their_suffix_names(tmp_path):
    figure = plot_alignment(spectrogram(np.zeros(800), 8000), {"words": entries("ab")})
    for suffix, start in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "PNG": b"\x89PNG"}.items():
        path = tmp_path / "new" / f"picture.{suffix}"
        save_figure(figure, path)
        assert path.read_bytes().startswith(start)


# Pictures of graphs: every arc, its width, what is clipped, and what is said of the rest.


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


def test_every_state_arc_symbol_and_weight_is_drawn():
    figure = plot_graph(small_fsa(), names=["a", "b", "c", "d"])
    assert sorted(arcs(figure)) == [0, 1, 2, 3]
    drawn = states(figure)
    # The final one has two.
    assert {state: len(circles) for state, circles in drawn.items()} == {0: 1, 1: 1, 2: 2}
    assert {"a / -0.1", "b / -0.5", "c / -1.5", "d / -2", "0", "1", "2\n-0.7"} <= set(texts(figure))


def test_arcs_lead_from_state_to_state_and_what_is_not_connected_stands_apart_in_rows():
    ends = [*((2 * n, 2 * n + 1) for n in range(20)), (40, 40)]
    layout = lay_out([0.4] * 41, ends, [(0.6, 0.2)] * 21)
    for (src, dst), edge in zip(ends, layout.edges, strict=True):
        reach = np.linalg.norm([edge.curve[0] - layout.nodes[src], edge.tip - layout.nodes[dst]], axis=1)
        assert reach == pytest.approx(0.2, abs=0.03)
    for places, box in ((layout.nodes, (0.4, 0.4)), (np.array([e.label for e in layout.edges]), (0.6, 0.2))):
        gaps = np.abs(places[:, None] - places) - box
        assert np.sum(gaps.max(axis=2) < -0.01) == len(places), "none but itself is in its place"
        assert (places - np.divide(box, 2) > -0.01).all()
        assert (places + np.divide(box, 2) < np.add(layout.size, 0.01)).all()
    assert 0.5 * ROW_WIDTH < layout.size[0] <= ROW_WIDTH


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
