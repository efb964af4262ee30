"""A stage for corpora that bring a larger language model than the search can use.

rescore    data/rescoring.arpa chooses among the best word sequences of the search; weights are those of dev -> rescore/
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from fsachain.cli.decoding import DecodingGraphs
from fsachain.cli.rescore import rescore_data
from recipes.pipeline.stages import STAGES, Run

RESCORING = "rescoring.arpa"


def rescore(run: Run) -> None:
    """Tune on dev, score test."""
    model = run.model(run.exp)
    model = replace(model, experiment=replace(model.experiment, decoding=run.config.decoding))
    tuned = json.loads((run.exp / "decode" / "tuning.json").read_text())["best"]
    report = rescore_data(
        model,
        DecodingGraphs(run.lang, run.grammar),
        run.base / "data" / RESCORING,
        run.data("dev"),
        run.data("test"),
        run.exp / "rescore",
        tuned["lm_weight"],
        tuned["word_insertion_penalty"],
        run.config.rescoring,
        **run.resources,
    )
    print(f"test  {report.total}")


def with_rescoring() -> dict[str, Callable[[Run], None]]:
    """The stages of a recipe, and `rescore` after `decode`."""
    stages = {}
    for name, stage in STAGES.items():
        stages[name] = stage
        if name == "decode":
            stages["rescore"] = rescore
    return stages
