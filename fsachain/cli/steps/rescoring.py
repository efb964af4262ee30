"""A second word language model over the best word sequences of a data directory, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fsachain.cli.progress import counter
from fsachain.cli.steps.bad_data import BadData
from fsachain.cli.steps.decoding import DecodingGraphs, check_lang, network_outputs
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.rescore import Rescorer, RescoringConfig, n_best_lists
from fsachain.decode.wer import WerReport, score, write_text
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.graph.ngram_scores import NgramScores

References = dict[str, tuple[str, ...]]


def rescore_data(
    model: AcousticModel,
    graphs: DecodingGraphs,
    arpa: Path,
    dev: DataDir,
    test: DataDir,
    out: Path,
    lm_weight: float,
    word_insertion_penalty: float,
    config: RescoringConfig,
    *,
    cache: Path | None = None,
    num_workers: int = 1,
    bad_data: BadData | None = None,
) -> WerReport:
    """Judge the best word sequences of the search with a larger model; weights are chosen on `dev`, `test` is scored.

    Writes tuning.txt, tuning.json, hyp.txt, wer.txt and wer.json to `out`.

    Args:
        model: the acoustic model.
        graphs: lexicon and grammar of the search.
        arpa: the second model.
        dev, test: data directories.
        out: folder of the results.
        lm_weight, word_insertion_penalty: of the search.
        config: how many sequences, and what is tried.
        cache: feature cache.
        num_workers: processes.
        bad_data: with it utterances whose recordings cannot be used are left out, of the scores too.

    Raises:
        DataError: the language folder is not the model's.
        GraphError: `arpa` is no n-gram with words of the lexicon.
    """
    check_lang(model, graphs.lang)
    lexicon = graphs.lang.lexicon
    old, new = NgramScores(graphs.grammar), NgramScores(grammar_from_arpa(arpa, lexicon))
    graph = graphs.build(lm_weight, word_insertion_penalty)

    def read(data: DataDir) -> tuple[Rescorer, References]:
        outputs = network_outputs(model, data, cache, num_workers, bad_data=bad_data)
        with counter("n-best") as update:
            lists = n_best_lists(
                outputs,
                graph,
                lexicon.words,
                config.num_hypotheses,
                model.experiment.decoding.search,
                num_workers=num_workers,
                progress=update,
            )
        kept = outputs if bad_data is not None else {utterance.id for utterance in data}
        references = {utterance.id: utterance.words for utterance in data if utterance.id in kept}
        return Rescorer(lists, lexicon, old, lm_weight, word_insertion_penalty, new), references

    rescorer, references = read(dev)
    tuned = rescorer.tune({name: references[name] for name in rescorer.names}, config)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tuning.txt").write_text(tuned.to_text(), encoding="utf-8")
    _write_json(out / "tuning.json", tuned.to_dict())
    rescorer, references = read(test)
    found = rescorer.best(tuned.best.lm_weight, tuned.best.word_insertion_penalty)
    write_text(out / "hyp.txt", found)
    speakers = {utterance.id: utterance.speaker for utterance in test}
    report = score(references, found, speakers={name: speakers[name] for name in references})
    report.write(out)
    return report


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
