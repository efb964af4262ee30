"""The report of an experiment, with the lattices of its utterances where there is a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fsachain.cli.steps.decoding import check_lang
from fsachain.cli.steps.graphs import build_numerators, load_denominator
from fsachain.cli.steps.lang import load_lang
from fsachain.cli.steps.model import AcousticModel
from fsachain.cli.steps.training import FINAL_MODEL
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.plot import phone_trellis
from fsachain.report.heard import Seen
from fsachain.report.layout import Layout
from fsachain.report.write import ReportOptions, look_at_nothing, write_report

REPORT = "report.html"


def make_report(
    exp: Path,
    out: Path | None = None,
    *,
    base: Path | None = None,
    test: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report of an experiment; returns its path.

    Args:
        exp: the experiment's folder.
        out: the HTML file; by default report.html in `exp`.
        base: as for `Layout.find`.
        test: as for `Layout.find`.
        options: how much is shown.

    Raises:
        DataError: there is no such folder.
        MissingExtraError: the extra `report` is not installed.
    """
    layout = Layout.find(exp, base=base, test=test)
    target = out or exp / REPORT
    model = layout.model / FINAL_MODEL
    if not model.is_file():
        write_report(layout, target, options, look_at_nothing)
        return target

    def look(utterances: Sequence[Utterance]) -> tuple[dict[str, Seen], dict[str, str]]:
        return occupancies(layout, AcousticModel.load(model), utterances)

    write_report(layout, target, options, look)
    return target


def occupancies(
    layout: Layout, model: AcousticModel, utterances: Sequence[Utterance]
) -> tuple[dict[str, Seen], dict[str, str]]:
    """What numerator and denominator make of the utterances, by phone, and for those that have no path the reason.

    Raises:
        DataError: the language folder or the graphs are not those of the model.
    """
    lang = load_lang(layout.lang)
    check_lang(model, lang)
    denominator = load_denominator(lang, layout.graphs)
    data = DataDir(tuple(utterances))
    numerators, reasons = build_numerators(lang, data, denominator.normalization_fsa())
    outputs = model.outputs(model.examples(data, None, 1))
    leak = model.experiment.loss.at(1.0)["leaky_hmm_coefficient"]
    seen = {}
    for name, numerator in numerators.items():
        if name not in outputs:
            reasons[name] = f"utterance {name!r}: has no frames"
            continue
        pair = phone_trellis(outputs[name], numerator, denominator, lang.tree, leaky_hmm_coefficient=leak)
        if all(map(math.isfinite, pair.log_probs or ())):
            seen[name] = Seen(pair, model.timing.frame_seconds)
        else:
            reasons[name] = f"utterance {name!r}: has no path of its {len(outputs[name])} output frames"
    return seen, reasons
