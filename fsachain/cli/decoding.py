"""From a model and a data set to words, error rates and times: decode, rescore, align, keyword."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fsachain.cli.graphs import build_numerators, load_normalization
from fsachain.cli.lang import Lang, lang_option
from fsachain.cli.model import AcousticModel, normalise_set
from fsachain.cli.options import (
    INPUT_DATA,
    INPUT_FILE,
    INPUT_FOLDER,
    OUTPUT,
    counter,
    grammar_option,
    phones_per_loop_option,
    reasons,
)
from fsachain.cli.resources import Resources, with_resources
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.align import align as align_outputs
from fsachain.decode.ctm import textgrid_name, write_ctm, write_textgrid
from fsachain.decode.decoder import decode as decode_outputs
from fsachain.decode.keyword import false_reject_rate, keyword_scores
from fsachain.decode.rescore import Rescorer, RescoringConfig, n_best_lists
from fsachain.decode.tune import TuningResult, tune
from fsachain.decode.wer import WerReport, score, write_text
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.decoding import build_decoding_graph
from fsachain.graph.grammar import NgramScores, grammar_from_arpa, word_loop
from fsachain.graph.patterns import Pattern, build_pattern_numerator, optional, phone_loop
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.decoding import grammar_over
from fsachain.kaldi.symbols import read_symbols
from fsachain.openfst import read_fst

Outputs = Mapping[str, NDArray[np.float32]]
KEYWORD_BATCH = 32


class DecodingGraphs:
    """Decoding graphs of one lexicon and grammar for any LM weight and word insertion penalty.

    The grammar is an ARPA model, or an FST such as Kaldi's G.fst with the words.txt of its labels; without either it is a
    loop over the lexicon's spoken words. `grammar` is a pywrapfst FST over word ids.
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


def check_lang(model: AcousticModel, lang: Lang) -> None:
    num_pdfs = model.network.num_pdfs
    if num_pdfs != lang.tree.num_pdfs:
        raise DataError(
            f"the model has {num_pdfs} pdfs and the language folder {lang.tree.num_pdfs}; "
            "give the language folder that the model was trained with"
        )


def network_outputs(model: AcousticModel, data: DataDir, resources: Resources) -> tuple[DataDir, Outputs]:
    """The utterances that can be used, and network outputs [T', P] by id, with a bar; errors as `Resources.read`."""
    usable, (examples,) = resources.load(data, model.experiment.features)
    with counter("network") as update:
        outputs = model.outputs(normalise_set(examples, model.cmvn), update)
    if resources.bad_data is not None:
        usable = usable.select(lambda utterance: utterance.id in outputs)
    return usable, outputs


def _references(data: DataDir) -> dict[str, tuple[str, ...]]:
    return {utterance.id: utterance.words for utterance in data}


def _write_tuning(out: Path, result: TuningResult) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "tuning.txt").write_text(result.to_text(), encoding="utf-8")
    (out / "tuning.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")


def _write_scored(out: Path, data: DataDir, hypotheses: Mapping[str, Sequence[str]]) -> WerReport:
    write_text(out / "hyp.txt", hypotheses)
    speakers = {utterance.id: utterance.speaker for utterance in data}
    report = score(_references(data), hypotheses, speakers=speakers)
    report.write(out)
    return report


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--arpa",
    type=INPUT_FILE,
    help="Word language model; without it every word of the lexicon may follow any.",
)
@grammar_option
@click.option("--dev", type=INPUT_DATA, help="Data set on which LM weight and insertion penalty are chosen.")
@click.option("--lm-weight", type=float, default=1.0, show_default=True, help="Where there is no --dev.")
@click.option(
    "--word-insertion-penalty", type=float, default=0.0, show_default=True, help="Where there is no --dev."
)
@with_resources("scheduler", "cache", "workers", "bad_data")
def decode(
    model: Path,
    data: Path,
    out: Path,
    lang: Lang,
    arpa: Path | None,
    grammar: tuple[Path, Path] | None,
    dev: Path | None,
    lm_weight: float,
    word_insertion_penalty: float,
    resources: Resources,
) -> None:
    """Recognise the words of a data directory, and score them against its transcripts.

    In: MODEL, made by `fsachain train`, and DATA, a data set as `fsachain train` takes it.

    Out: folder OUT with hyp.txt, wer.txt and wer.json; tuning.txt and tuning.json where --dev is given; faults.jsonl if
    utterances cannot be used, which are not scored.
    """
    acoustic = AcousticModel.load(model)
    graphs = DecodingGraphs(lang, arpa, grammar)
    if dev is not None:
        best = tune_data(acoustic, graphs, resources.read(dev), out, resources).best
        lm_weight, word_insertion_penalty = best.lm_weight, best.word_insertion_penalty
        click.echo(
            f"LM weight {lm_weight:g}, word insertion penalty {word_insertion_penalty:g}: dev {best.counts}"
        )
    report = decode_data(
        acoustic, graphs, resources.read(data), out, lm_weight, word_insertion_penalty, resources
    )
    click.echo(f"{report.total} -> {out}")


def tune_data(
    model: AcousticModel, graphs: DecodingGraphs, data: DataDir, out: Path, resources: Resources
) -> TuningResult:
    """Choose LM weight and word insertion penalty on a development set; writes tuning.txt and tuning.json to `out`.

    The values to try stand in the model's configuration, section `decoding`. With an executor features and searches are
    its work; the network runs here.
    """
    check_lang(model, graphs.lang)
    options = model.experiment.decoding
    data, outputs = network_outputs(model, data, resources)
    with counter("tuning") as update:
        result = tune(
            outputs,
            {name: words for name, words in _references(data).items() if name in outputs},
            graphs.build,
            graphs.lang.lexicon.words,
            lm_weights=options.lm_weights,
            word_insertion_penalties=options.word_insertion_penalties,
            config=options.search,
            num_workers=resources.workers,
            executor=resources.executor,
            progress=update,
        )
    _write_tuning(out, result)
    return result


def decode_data(
    model: AcousticModel,
    graphs: DecodingGraphs,
    data: DataDir,
    out: Path,
    lm_weight: float,
    word_insertion_penalty: float,
    resources: Resources,
) -> WerReport:
    """Recognise and score a data set; writes hyp.txt, wer.txt and wer.json to `out`.

    Utterances that `resources` leaves out are not scored. With an executor features and searches are its work; the
    network runs here.
    """
    check_lang(model, graphs.lang)
    data, outputs = network_outputs(model, data, resources)
    graph = graphs.build(lm_weight, word_insertion_penalty)
    with counter("decoding") as update:
        found = decode_outputs(
            outputs,
            graph,
            graphs.lang.lexicon.words,
            model.experiment.decoding.search,
            num_workers=resources.workers,
            executor=resources.executor,
            progress=update,
        )
    return _write_scored(out, data, {name: hypothesis.words for name, hypothesis in found.items()})


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
@with_resources("cache", "workers", "bad_data")
def rescore(
    model: Path,
    data: Path,
    second: Path,
    out: Path,
    lang: Lang,
    dev: Path,
    arpa: Path | None,
    lm_weight: float,
    word_insertion_penalty: float,
    resources: Resources,
) -> None:
    """Let a larger language model choose among the best word sequences.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory; ARPA, the larger model, which the search does
    not need to hold. Section `rescoring` of the model's configuration says how many sequences, and what is tried.

    Out: folder OUT with hyp.txt, wer.txt, wer.json, tuning.txt and tuning.json.
    """
    acoustic = AcousticModel.load(model)
    report = rescore_data(
        acoustic,
        DecodingGraphs(lang, arpa),
        second,
        resources.read(dev),
        resources.read(data),
        out,
        lm_weight,
        word_insertion_penalty,
        acoustic.experiment.rescoring,
        resources,
    )
    click.echo(f"{report.total} -> {out}")


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
    resources: Resources,
) -> WerReport:
    """Judge the best word sequences of the search with the model `arpa`; weights are chosen on `dev`, `test` is scored.

    `lm_weight` and `word_insertion_penalty` are those of the search; utterances that `resources` leaves out are not scored.
    Writes tuning.txt, tuning.json, hyp.txt, wer.txt and wer.json to `out`.
    """
    check_lang(model, graphs.lang)
    lexicon = graphs.lang.lexicon
    old, new = NgramScores(graphs.grammar), NgramScores(grammar_from_arpa(arpa, lexicon))
    graph = graphs.build(lm_weight, word_insertion_penalty)

    def search(data: DataDir) -> tuple[DataDir, Rescorer]:
        usable, outputs = network_outputs(model, data, resources)
        with counter("n-best") as update:
            lists = n_best_lists(
                outputs,
                graph,
                lexicon.words,
                config.num_hypotheses,
                model.experiment.decoding.search,
                num_workers=resources.workers,
                progress=update,
            )
        return usable, Rescorer(lists, lexicon, old, lm_weight, word_insertion_penalty, new)

    dev, rescorer = search(dev)
    references = _references(dev)
    tuned = rescorer.tune({name: references[name] for name in rescorer.names}, config)
    _write_tuning(out, tuned)
    test, rescorer = search(test)
    return _write_scored(out, test, rescorer.best(tuned.best.lm_weight, tuned.best.word_insertion_penalty))


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("out", type=OUTPUT)
@lang_option
@click.option("--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`: needed for supervise.")
@click.option("--textgrid", type=OUTPUT, help="Folder for a TextGrid of each utterance, for Praat.")
@with_resources("cache", "workers", "bad_data")
def align(
    model: Path,
    data: Path,
    out: Path,
    lang: Lang,
    den: Path | None,
    textgrid: Path | None,
    resources: Resources,
) -> None:
    """Find when each word and phone of the transcripts is said.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory. With --den only phone sequences that
    the denominator has are looked for; `fsachain supervise` takes no others.

    Out: folder OUT with words.ctm and phones.ctm (utterance channel start duration label, in seconds);
    faults.jsonl if utterances cannot be used.
    """
    utterances = resources.read(data)
    summary = align_data(
        AcousticModel.load(model),
        lang,
        utterances,
        out,
        resources,
        normalization=None if den is None else load_normalization(lang, den),
        textgrids=textgrid,
    )
    click.echo(f"{summary} -> {out}")


@dataclass(frozen=True)
class AlignSummary:
    num_aligned: int
    failed: dict[str, str]

    def __str__(self) -> str:
        head = f"{self.num_aligned} utterances aligned, {len(self.failed)} left out"
        return reasons(head, [*self.failed.values()])


def align_data(
    model: AcousticModel,
    lang: Lang,
    data: DataDir,
    out: Path,
    resources: Resources,
    *,
    normalization: Fsa | None = None,
    textgrids: Path | None = None,
) -> AlignSummary:
    """Find when the words and phones of the transcripts are said; writes words.ctm and phones.ctm to `out`.

    With `textgrids`, a folder, also a TextGrid for each utterance, for Praat.

    Without `normalization` the graphs are the plain numerators: once the words are known, the phone language
    model has no say. With that of a denominator the path found is one that the denominator has: supervision
    made from it can be normalised.
    """
    check_lang(model, lang)
    data, outputs = network_outputs(model, data, resources)
    numerators, excluded = build_numerators(lang, data, normalization)
    usable = {name: scores for name, scores in outputs.items() if name in numerators}
    with counter("aligning") as update:
        found, failed = align_outputs(usable, numerators, lang.lexicon.phones, model.timing, progress=update)
    write_ctm(out / "words.ctm", (entry for result in found.values() for entry in result.words))
    write_ctm(out / "phones.ctm", (entry for result in found.values() for entry in result.phones))
    if textgrids is not None:
        for name, result in found.items():
            tiers = {"words": result.words, "phones": result.phones}
            seconds = model.timing.start_of(len(outputs[name]))
            write_textgrid(textgrids / textgrid_name(name), tiers, seconds)
    failed |= {name: "has no frames" for name in numerators if name not in outputs}
    return AlignSummary(
        len(found), excluded | {name: f"utterance {name!r}: {reason}" for name, reason in failed.items()}
    )


@click.command()
@click.argument("model", type=INPUT_FILE)
@click.argument("data", type=INPUT_DATA)
@click.argument("words")
@click.argument("out", type=OUTPUT)
@lang_option
@click.option(
    "--den", type=INPUT_FOLDER, help="Folder made by `fsachain den-graph`; weighs both graphs by it."
)
@click.option(
    "--false-alarms-per-hour",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="At most so many, in the utterances without the keyword.",
)
@phones_per_loop_option
@with_resources("cache", "workers", "bad_data")
def keyword(
    model: Path,
    data: Path,
    words: str,
    out: Path,
    lang: Lang,
    den: Path | None,
    false_alarms_per_hour: float,
    phones_per_loop: float,
    resources: Resources,
) -> None:
    """Look for a keyword, and count misses at a given rate of false alarms.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory with and without the keyword, whose transcripts tell;
    WORDS, the keyword, in quotes if it has several words.

    Out: the false-reject rate, printed; folder OUT with scores.txt (utterance, score per frame, 1 with the keyword or 0).
    """
    utterances = resources.read(data)
    acoustic = AcousticModel.load(model)
    normalization = None if den is None else load_normalization(lang, den)
    sought = words.split()
    if not sought:
        raise ConfigError("keyword is empty: expected its words")
    check_lang(acoustic, lang)
    loop = phone_loop(range(1, len(lang.lexicon.phones) + 1), stop_prob=1 / phones_per_loop)
    patterns: dict[str, Pattern] = {
        "keyword": [optional([loop]), *sought, optional([loop])],
        "filler": [loop],
    }
    spoken, filler = (
        build_pattern_numerator(pattern, lang.lexicon, lang.tree, normalization=normalization, name=name).fsa
        for name, pattern in patterns.items()
    )
    usable, outputs = network_outputs(acoustic, utterances, resources)
    scores = _keyword_scores(spoken, filler, outputs)
    has = {one.id: _contains(one.words, sought) for one in usable}
    frames = sum(len(outputs[name]) for name, found in has.items() if not found)
    hours = frames * acoustic.timing.frame_seconds / 3600
    accepted = [scores[name] for name, found in has.items() if found]
    others = [scores[name] for name, found in has.items() if not found]
    if not accepted or not hours:
        raise DataError(
            f"{len(accepted)} of {len(has)} utterances have the keyword {words!r}; expected some with and some without it"
        )
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {scores[name]:.6g} {int(found)}\n" for name, found in has.items()]
    (out / "scores.txt").write_text("".join(lines), encoding="utf-8")
    point = false_reject_rate(accepted, others, hours, false_alarms_per_hour=false_alarms_per_hour)
    missed = round(point.false_reject_rate * len(accepted))
    click.echo(
        f"false-reject rate {100 * point.false_reject_rate:.2f} % ({missed} of {len(accepted)}) at "
        f"{point.false_alarms_per_hour:.4g} false alarms per hour ({len(others)} utterances, "
        f"{hours:.4g} hours without the keyword), threshold {point.threshold:.6g} -> {out}"
    )


def _keyword_scores(spoken: Fsa, filler: Fsa, outputs: Outputs) -> dict[str, float]:
    """By utterance, in batches of similar length."""
    found: dict[str, float] = {}
    names = sorted(outputs, key=lambda name: len(outputs[name]))
    for first in range(0, len(names), KEYWORD_BATCH):
        batch = names[first : first + KEYWORD_BATCH]
        lengths = [len(outputs[name]) for name in batch]
        scores = np.zeros((len(batch), max(lengths), outputs[batch[0]].shape[1]), dtype=np.float32)
        for row, name in zip(scores, batch, strict=True):
            row[: len(outputs[name])] = outputs[name]
        found |= zip(batch, keyword_scores(spoken, filler, scores, lengths).tolist(), strict=True)
    return found


def _contains(words: Sequence[str], sought: Sequence[str]) -> bool:
    sought = tuple(sought)
    return any(tuple(words[i : i + len(sought)]) == sought for i in range(len(words) - len(sought) + 1))
