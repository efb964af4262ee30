"""Pictures: what was given stands in the figure, at its place."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tolerances
from matplotlib.text import Text
from plot_inputs import HOSTILE, entries, epoch, every_figure, lattice_inputs, planted_lattice, planted_nodes

from fsachain import DataError, DenominatorGraph, rnnt_lattice
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.topology import Topology
from fsachain.plot import (
    OccupancyPanel,
    TrellisPair,
    figure_svg,
    occupancy_panels,
    pdf_names,
    pdf_trellis,
    phone_trellis,
    plot_alignment,
    plot_occupancy,
    plot_training,
    plot_trellis,
    plot_wer,
    read_events,
    save_figure,
    spectrogram,
)

ROOT = Path(__file__).resolve().parents[1]


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
def acoustic():
    """A language of two words, its denominator and a numerator."""
    from fsachain.graph.denominator import build_denominator
    from fsachain.graph.phone_lm import estimate_phone_lm

    lexicon = Lexicon.characters([["ab"], ["ba"]])
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    sequences = [
        [lexicon.phone_id(p) for p in word] for word in (["a", "b"], ["b", "a"], ["a", "b", "b", "a"])
    ]
    denominator = DenominatorGraph(
        build_denominator(
            estimate_phone_lm(sequences, ngram_order=2, no_prune_ngram_order=1, num_extra_lm_states=0), tree
        ),
        tree.num_pdfs,
    )
    numerator = build_numerator(["ab"], lexicon, tree, normalization=denominator.normalization_fsa())
    scores = np.random.default_rng(5).normal(0, 2, (9, tree.num_pdfs))
    return scores, numerator, denominator, tree


def test_the_third_panel_is_the_difference_of_the_first_two(acoustic):
    scores, numerator, denominator, tree = acoustic
    pair = pdf_trellis(scores, numerator, denominator, leaky_hmm_coefficient=0.1, names=pdf_names(tree))
    figure = plot_trellis(pair, title="u1")
    num, den, gradient = (image(axes) for axes in figure.axes[:3])
    np.testing.assert_allclose(num - den, gradient, atol=tolerances.FLOAT64)
    np.testing.assert_allclose(num.sum(axis=1), 1.0, atol=tolerances.ROW_SUM)
    assert np.abs(gradient).max() > 0.05  # so that the test is about something


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
    assert found["train"] == [[1.0, -1.0], [2.0, -0.5]] and found["dev"] == [
        [2.0, 12.5]
    ]  # the WER is drawn last
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
    from fsachain.decode.wer import score

    references = {"u1": ["a", "b"], "u2": ["a", "b", "c", "d"], "u3": ["a", "b"], "u4": []}
    hypotheses = {"u1": ["a", "x"], "u2": ["a", "c", "d", "e"], "u3": ["a", "b"], "u4": ["z"]}
    speakers = {"u1": "s1", "u2": "s1", "u3": "s2", "u4": "s2"}
    axes = plot_wer(score(references, hypotheses, speakers=speakers)).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["s1", "s2"]
    bars = {group.get_label(): group for group in axes.containers if getattr(group, "orientation", None)}
    for kind, expected in (("substitutions", [100 / 6, 0]), ("insertions", [100 / 6, 50])):
        assert [bar.get_width() for bar in bars[kind]] == pytest.approx(expected)


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
        "import sys; sys.path.insert(0, 'tests'); from matplotlib import rcParams\n"
        "settings = lambda: [(name, rcParams[name]) for name in rcParams if name != 'backend']\n"  # it loads pyplot
        "before = settings()\n"
        "from plot_inputs import every_figure; from fsachain.plot import figure_png\n"
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
