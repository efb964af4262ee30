"""The command `fsachain rescore`: a second language model over what the search found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fsachain.cli.bad_data import BadData
from fsachain.cli.decoding import DecodingGraphs, check_lang, network_outputs
from fsachain.cli.model import AcousticModel
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    OUTPUT,
    bad_data_option,
    cache_option,
    commands_option,
    counter,
    lang_option,
    workers_option,
)
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.rescore import Rescorer, RescoringConfig, n_best_lists
from fsachain.decode.wer import WerReport, score, write_text
from fsachain.graph.grammar import NgramScores, grammar_from_arpa


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("second", metavar="ARPA", type=INPUT_FILE)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--dev", type=INPUT_DATA, required=True, help="Data directory on which the weights are chosen.")
@click.option("--arpa", type=INPUT_FILE, help="Word language model of the search, as for `fsachain decode`.")
@click.option(
    "--lm-weight",
    type=float,
    default=1.0,
    show_default=True,
    help="Of the search, as `fsachain decode` prints it.",
)
@click.option(
    "--word-insertion-penalty", type=float, default=0.0, show_default=True, help="Of the search, likewise."
)
@cache_option
@workers_option
@bad_data_option
@commands_option
def rescore(model: Path, data: Path, second: Path, out: Path, **arguments: Any) -> None:
    """Let a larger language model choose among the best word sequences.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory; ARPA, the larger model, which the search does
    not need to hold. Section `rescoring` of the model's configuration says how many sequences, and what is tried.

    Out: folder OUT with hyp.txt, wer.txt, wer.json, tuning.txt and tuning.json.
    """
    from fsachain.cli.bad_data import FAULTS_FILE, bad_data_of
    from fsachain.cli.decoding import DecodingGraphs
    from fsachain.cli.lang import load_lang
    from fsachain.cli.model import AcousticModel

    acoustic = AcousticModel.load(model)
    with bad_data_of(arguments, out / FAULTS_FILE) as bad_data:
        report = rescore_data(
            acoustic,
            DecodingGraphs(load_lang(arguments["lang"]), arguments["arpa"]),
            second,
            bad_data.read(arguments["dev"]),
            bad_data.read(data),
            out,
            arguments["lm_weight"],
            arguments["word_insertion_penalty"],
            acoustic.experiment.rescoring,
            cache=arguments["cache"],
            num_workers=arguments["workers"],
            bad_data=bad_data,
        )
        click.echo(f"{report.total} -> {out}")


# A second word language model over the best word sequences of a data directory, as files.

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
