"""From a model and a data directory to words, word error rate and alignments, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsachain.cli.bad_data import BadData
from fsachain.cli.graphs import build_numerators
from fsachain.cli.lang import Lang
from fsachain.cli.model import AcousticModel, normalise_set
from fsachain.cli.options import counter
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.align import align
from fsachain.decode.ctm import textgrid_name, write_ctm, write_textgrid
from fsachain.decode.decoder import decode
from fsachain.decode.tune import TuningResult, tune
from fsachain.decode.wer import WerReport, score, write_text
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.decoding import build_decoding_graph
from fsachain.graph.grammar import grammar_from_arpa, word_loop
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.decoding import grammar_over
from fsachain.kaldi.symbols import read_symbols
from fsachain.openfst import read_fst

Outputs = Mapping[str, NDArray[np.float32]]


class DecodingGraphs:
    """Decoding graphs of one lexicon and grammar for any LM weight and word insertion penalty.

    Args:
        lang: lexicon and tree.
        arpa: word language model in ARPA format; without it and `grammar` a loop over the lexicon's spoken words.
        grammar: word language model as an FST, such as Kaldi's G.fst, and the words.txt of its labels.

    Attributes:
        grammar: the language model as a pywrapfst FST over word ids.

    Raises:
        ConfigError: both.
    """

    def __init__(self, lang: Lang, arpa: Path | None, grammar: tuple[Path, Path] | None = None) -> None:
        self.lang = lang
        lexicon = lang.lexicon
        if arpa is not None and grammar is not None:
            raise ConfigError(f"arpa = {arpa} and grammar = {grammar[0]}: expected one language model")
        if grammar is not None:
            fst, words = grammar
            found = grammar_over(read_value(fst, read_fst), read_symbols(words), lexicon.words)
            self.grammar = found.to_openfst()
        elif arpa is not None:
            self.grammar = grammar_from_arpa(arpa, lexicon)
        else:
            self.grammar = word_loop(lang.spoken_words, lexicon)

    def build(self, lm_weight: float, word_insertion_penalty: float) -> Any:
        """The graph as a pywrapfst object: input label pdf + 1, output label word id."""
        return build_decoding_graph(
            self.lang.lexicon,
            self.lang.tree,
            self.grammar,
            lm_weight=lm_weight,
            word_insertion_penalty=word_insertion_penalty,
        )


@dataclass(frozen=True)
class AlignSummary:
    """How many utterances were aligned, and why others were not."""

    num_aligned: int
    failed: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.num_aligned} utterances aligned, {len(self.failed)} left out"]
        return "\n  ".join([*lines, *self.failed.values()])


def check_lang(model: AcousticModel, lang: Lang) -> None:
    """Refuse a language folder of another width than the model's.

    Raises:
        DataError: the numbers of pdfs differ.
    """
    num_pdfs = model.network.num_pdfs
    if num_pdfs != lang.tree.num_pdfs:
        raise DataError(
            f"the model has {num_pdfs} pdfs and the language folder {lang.tree.num_pdfs}; "
            "give the language folder that the model was trained with"
        )


def network_outputs(
    model: AcousticModel,
    data: DataDir,
    cache: Path | None,
    num_workers: int,
    executor: Executor | None = None,
    bad_data: BadData | None = None,
) -> Outputs:
    """Network outputs [T', P] of all utterances by id, with a progress bar.

    With `bad_data`, of those whose recordings can be used; without, the first that cannot is an error.
    """
    if bad_data is None:
        examples = model.examples(data, cache, num_workers, executor)
    else:
        settings: dict[str, Any] = {"cache": cache, "num_workers": num_workers, "executor": executor}
        _, (found,) = bad_data.load(data, model.experiment.features, **settings)
        examples = normalise_set(found, model.cmvn)
    with counter("network") as update:
        return model.outputs(examples, update)


def tune_data(
    model: AcousticModel,
    graphs: DecodingGraphs,
    data: DataDir,
    out: Path,
    *,
    cache: Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
    bad_data: BadData | None = None,
) -> TuningResult:
    """Choose LM weight and word insertion penalty on a development set.

    Writes tuning.txt and tuning.json to `out`. The values to try stand in the model's configuration, section
    `decoding`. With `executor` features and searches are its work; the network runs here.
    """
    check_lang(model, graphs.lang)
    options = model.experiment.decoding
    outputs = network_outputs(model, data, cache, num_workers, executor, bad_data)
    with counter("tuning") as update:
        result = tune(
            outputs,
            {name: words for name, words in _references(data).items() if name in outputs},
            graphs.build,
            graphs.lang.lexicon.words,
            lm_weights=options.lm_weights,
            word_insertion_penalties=options.word_insertion_penalties,
            config=options.search,
            num_workers=num_workers,
            executor=executor,
            progress=update,
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "tuning.txt").write_text(result.to_text(), encoding="utf-8")
    (out / "tuning.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    return result


def decode_data(
    model: AcousticModel,
    graphs: DecodingGraphs,
    data: DataDir,
    out: Path,
    lm_weight: float,
    word_insertion_penalty: float,
    *,
    cache: Path | None = None,
    num_workers: int = 1,
    executor: Executor | None = None,
    bad_data: BadData | None = None,
) -> WerReport:
    """Recognise and score a data directory; writes hyp.txt, wer.txt and wer.json to `out`.

    With `executor` features and searches are its work; the network runs here. With `bad_data` the utterances whose
    recordings cannot be used are left out, of the score too.
    """
    check_lang(model, graphs.lang)
    outputs = network_outputs(model, data, cache, num_workers, executor, bad_data)
    data = data if bad_data is None else data.select(lambda utterance: utterance.id in outputs)
    graph = graphs.build(lm_weight, word_insertion_penalty)
    with counter("decoding") as update:
        found = decode(
            outputs,
            graph,
            graphs.lang.lexicon.words,
            model.experiment.decoding.search,
            num_workers=num_workers,
            executor=executor,
            progress=update,
        )
    hypotheses = {name: hypothesis.words for name, hypothesis in found.items()}
    write_text(out / "hyp.txt", hypotheses)
    speakers = {utterance.id: utterance.speaker for utterance in data}
    report = score(_references(data), hypotheses, speakers=speakers)
    report.write(out)
    return report


def _references(data: DataDir) -> dict[str, tuple[str, ...]]:
    return {utterance.id: utterance.words for utterance in data}


def align_data(
    model: AcousticModel,
    lang: Lang,
    data: DataDir,
    out: Path,
    *,
    normalization: Fsa | None = None,
    textgrids: Path | None = None,
    cache: Path | None = None,
    num_workers: int = 1,
    bad_data: BadData | None = None,
) -> AlignSummary:
    """Find when the words and phones of the transcripts are said; writes words.ctm and phones.ctm to `out`.

    With `textgrids`, a folder, also a TextGrid for each utterance, for Praat.

    Without `normalization` the graphs are the plain numerators: once the words are known, the phone language
    model has no say. With that of a denominator the path found is one that the denominator has: supervision
    made from it can be normalised. With `bad_data` utterances whose recordings cannot be used are left out.
    """
    check_lang(model, lang)
    outputs = network_outputs(model, data, cache, num_workers, bad_data=bad_data)
    data = data if bad_data is None else data.select(lambda utterance: utterance.id in outputs)
    numerators, excluded = build_numerators(lang, data, normalization)
    usable = {name: scores for name, scores in outputs.items() if name in numerators}
    with counter("aligning") as update:
        found, failed = align(usable, numerators, lang.lexicon.phones, model.timing, progress=update)
    write_ctm(out / "words.ctm", (entry for result in found.values() for entry in result.words))
    write_ctm(out / "phones.ctm", (entry for result in found.values() for entry in result.phones))
    if textgrids is not None:
        for name, result in found.items():
            tiers = {"words": result.words, "phones": result.phones}
            seconds = model.timing.start_of(len(outputs[name]))
            write_textgrid(textgrids / textgrid_name(name), tiers, seconds)
    failed |= {name: "has no frames" for name in numerators if name not in outputs}
    reasons = excluded | {name: f"utterance {name!r}: {reason}" for name, reason in failed.items()}
    return AlignSummary(len(found), reasons)
