"""From a model and a data set to words and error rates: decode, rescore, suspicious, mend, keyword."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray
from torch import nn

from fsachain.asr.cli.config import ForgiveConfig
from fsachain.asr.cli.graphs import any_phones, build_numerators, normalization_option, phones_per_loop_option
from fsachain.asr.cli.lang import Lang
from fsachain.asr.cli.model import TRAINED, AcousticModel, load_word_network, model_lang_option, normalise_set
from fsachain.asr.cli.options import (
    COUNT,
    DATA,
    FILE,
    FOLDER,
    OUT,
    Read,
    command,
    fresh,
    option,
    together,
    track,
)
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import Fault
from fsachain.asr.decode.ctm import CtmEntry, write_ctm
from fsachain.asr.decode.decoder import decode as decode_outputs
from fsachain.asr.decode.decoder import lattices as search_lattices
from fsachain.asr.decode.keyword import false_reject_rate, keyword_scores
from fsachain.asr.decode.lattices import WordLattice, best_words, write_kaldi_lattices, write_openfst_lattices
from fsachain.asr.decode.rescore import (
    NetworkScores,
    Rescorer,
    WordSequence,
    best_word_sequences,
    sums_over_paths,
)
from fsachain.asr.decode.suspicious import doubts, with_cheap_star
from fsachain.asr.decode.suspicious import mend as mend_outputs
from fsachain.asr.decode.transcribe import timed_words
from fsachain.asr.decode.tune import TuningPoint, TuningResult, tune, tuning_advice
from fsachain.asr.decode.wer import EPSILON, WerReport, read_text, score, write_text
from fsachain.asr.kaldi.archive import read_table, read_value
from fsachain.asr.kaldi.lattice import Lattice, read_lattice
from fsachain.asr.nn.word_network import WordNetwork
from fsachain.asr.train.checkpoint import checksum_of
from fsachain.errors import ConfigError, DataError, counted
from fsachain.files import parse_json
from fsachain.files import write_text as write_file
from fsachain.fsa import Fsa
from fsachain.graph.decoding import DecodingGraph, Weights
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.grammar import NgramScores, grammar_from_arpa, word_loop
from fsachain.graph.numerator import made_with
from fsachain.graph.open_vocabulary import open_grammar, spelling_model, spelt_out, words_and_pieces
from fsachain.graph.patterns import Pattern, alternatives_as_text, build_pattern_numerator, optional
from fsachain.openfst import Transducer, grammar_over, read_fst, read_symbols
from fsachain.progress import counter

Outputs = Mapping[str, NDArray[np.float32]]
KEYWORD_BATCH = 32
TUNED = ("tuning.txt", "tuning.json")
SCORED = ("hyp.txt", "wer.txt", "wer.json")
WEIGHTS = "weights.json"
MADE_WITH = "made_with.json"  # digests of what a search depends on
KEPT = ("words.txt", "words.ctm", WEIGHTS, MADE_WITH)
DEV = "dev"  # folder, in that of a decoding
MOST_SEARCHES = 5  # of a development set
LATTICES = {"kaldi": (write_kaldi_lattices, "ark"), "openfst": (write_openfst_lattices, "far")}
MOST_UNKNOWN = 10  # words that are told
NATS = click.FloatRange(min=0)
MENDING_BEAM = 10.0  # nats by which a word that was written may be worse than another

search_options = together(
    option(FILE, "Word language model; without it any word of the lexicon may follow any.", "--arpa"),
    option((FILE, FILE), "The same as G.fst, and its words.txt.", "--grammar", metavar="G WORDS"),
    option(
        click.FloatRange(min=0), "Factor on its costs; `decode --dev` finds one.", "--lm-weight", default=1.0
    ),
    option(float, "Cost of each word, likewise.", "--word-insertion-penalty", default=0.0),
    option(
        bool,
        "Words that the language model lacks are spelt, by an n-gram of the phones of the lexicon's words.",
        "--open-vocabulary",
    ),
    option(float, "Cost of each word that is spelt, likewise.", "--unknown-word-penalty", default=0.0),
)


class DecodingGraphs:
    """Decoding graphs of one lexicon and grammar for any weights.

    The grammar is an ARPA model, or an FST such as Kaldi's G.fst with the words.txt of its labels; without either it is a
    loop over the lexicon's spoken words. `grammar` is a pywrapfst FST over word ids, `words` are the names of the graphs'
    output labels.
    """

    def __init__(
        self,
        lang: Lang,
        arpa: Path | None,
        grammar: tuple[Path, Path] | None = None,
        open_vocabulary: bool = False,
    ) -> None:
        self.lang = lang
        self.is_loop = arpa is None and grammar is None
        lexicon = lang.lexicon
        self.spelling = spelling_model(lexicon) if open_vocabulary else None
        self.words = words_and_pieces(lexicon) if open_vocabulary else tuple(lexicon.words)
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

    @classmethod
    def of(cls, lang: Lang, **search: Any) -> tuple[DecodingGraphs, Weights]:
        """From `search_options`."""
        weights = Weights(*(search.pop(name) for name in Weights._fields))
        return cls(lang, **search), weights

    def unknown(self, data: DataDir) -> Counter[str]:
        """The words of transcripts that the language model lacks."""
        ids = np.unique(Transducer.from_openfst(self.grammar).ilabel)
        known = {self.lang.lexicon.words[number - 1] for number in ids.tolist() if number}
        return Counter(word for utterance in data for word in utterance.words if word not in known)

    def tell_unknown(self, data: DataDir, what: str) -> None:
        """A line about these words, if there are any, and one about utterances without words."""
        unknown, said = self.unknown(data), sum(len(utterance.words) for utterance in data)
        without = sum(not utterance.words for utterance in data)
        if without:
            click.echo(
                f"{what}: {without} of {counted(len(data), 'utterance')} have no words; all that is heard in them counts as "
                "inserted"
            )
        if unknown:
            share = f"{unknown.total()} of {counted(said, 'word')} ({100 * unknown.total() / said:.1f} %)"
            most = ", ".join(f"{word} {count}" for word, count in unknown.most_common(MOST_UNKNOWN))
            fate = "have to be spelt" if self.spelling else "cannot be found"
            forms = ((word, self.lang.lexicon.known_form(word)) for word in unknown)
            meant = next(
                (
                    f"; the lexicon has {form!r} for {word!r}"
                    for word, form in forms
                    if form not in (None, word)
                ),
                "",
            )
            click.echo(
                f"{what}: {share}, {len(unknown)} different ones, are not in the language model and {fate}; "
                f"most often: {most}{meant}"
            )

    def tell_found(self, data: DataDir, report: WerReport) -> None:
        """A line about how many of these words were spelt right."""
        unknown = self.unknown(data)
        pairs = [pair for utterance in report.utterances for pair in utterance.alignment]
        right = sum(said == heard for said, heard in pairs if said in unknown)
        known = {word for word in self.words if isinstance(word, str)}
        spelt = sum(heard not in known and heard != EPSILON for _, heard in pairs)
        click.echo(
            f"{right} of {counted(unknown.total(), 'unknown word')} found; {counted(spelt, 'word')} were spelt that the "
            "lexicon lacks"
        )

    def build(self, weights: Weights) -> DecodingGraph:
        lexicon, tree = self.lang.lexicon, self.lang.tree
        with counter("decoding graph"):
            return DecodingGraph.build(
                lexicon, tree, self.grammar, **weights._asdict(), spelling=self.spelling
            )

    def scores(self, grammar: Any) -> NgramScores:
        """Of word sequences under `grammar`, which spells as these graphs do."""
        if self.spelling is not None:
            grammar = open_grammar(grammar, self.lang.lexicon, self.spelling)
        return NgramScores(grammar)


def network_outputs(
    model: AcousticModel,
    data: DataDir,
    resources: Resources,
    frame_shift: int | None = None,
    speed: float = 1.0,
) -> tuple[DataDir, Outputs]:
    """The utterances that can be used, and network outputs [T', P] by id, with a bar; errors as `Resources.leave_out`.

    `frame_shift` is that of `AcousticModel.outputs`, by default `decoding.frame_shift`; 0 for what asks for times. `speed`
    is that of `Perturbation`.
    """
    if frame_shift is None:
        frame_shift = model.experiment.decoding.frame_shift
    copy = Perturbation(speed=speed)
    usable, (examples,) = resources.load(data, model.experiment.features, [copy])
    with counter("network") as update:
        found = model.outputs(normalise_set(examples, model.cmvn), update, frame_shift)
    return usable, {name.removeprefix(copy.prefix): scores for name, scores in found.items()}


def _write_tuning(out: Path, result: TuningResult, **more: Any) -> None:
    write_file(out / "tuning.txt", result.to_text())
    write_file(out / "tuning.json", json.dumps(result.to_dict() | more, indent=2) + "\n")


def _write_scored(out: Path, data: DataDir, hypotheses: Mapping[str, Sequence[str]]) -> WerReport:
    write_text(out / "hyp.txt", hypotheses)
    speakers = {utterance.id: utterance.speaker for utterance in data}
    report = score(data.transcripts, hypotheses, speakers=speakers)
    report.write(out)
    return report


@dataclass(frozen=True)
class Recogniser:
    """A model and the graphs in which its network's outputs are searched.

    With an executor features and searches are its work; the network runs here. Utterances that `resources` leaves out are
    not scored.
    """

    model: AcousticModel
    graphs: DecodingGraphs
    resources: Resources

    @property
    def made_with(self) -> dict[str, str]:
        """Digests of what its lattices depend on, which are kept beside them."""
        graphs, lang = self.graphs, self.graphs.lang
        fst = Transducer.from_openfst(graphs.grammar)
        order = np.lexsort([fst.dst, fst.olabel, fst.ilabel, fst.src])  # a G.fst has that of its words.txt
        arcs = {name: getattr(fst, name)[order] for name in ("src", "dst", "ilabel", "olabel", "log_prob")}
        grammar = hashlib.sha256(" ".join(map(str, graphs.words)).encode())
        grammar.update(replace(fst, **arcs).to_bytes())
        found = {
            "model": checksum_of(cast(nn.Module, self.model.network).state_dict()),
            "lexicon": made_with(lang.lexicon, lang.tree)["lexicon"],
            "language model": grammar.hexdigest(),
        }
        if self.model.other is not None:
            network, share = self.model.other
            found["first_pass_share"] = f"{share:g} {checksum_of(cast(nn.Module, network).state_dict())}"
        return found

    def tune(self, data: DataDir, out: Path, keep: bool = False) -> TuningResult:
        """Choose LM weight and penalties on a development set; writes tuning.txt and tuning.json to `out`.

        The values to try stand in the model's configuration, section `decoding`. The set is searched at the point chosen
        until that is one where it was searched, or else the best of `MOST_SEARCHES` such points is taken: the error rate is
        that of a search there. `keep`: the lattices stay, as `out`/dev.
        """
        fresh(out, *TUNED, *SCORED)
        graphs, options = self.graphs, self.model.experiment.decoding
        graphs.tell_unknown(data, "development set")
        data, outputs = network_outputs(self.model, data, self.resources)
        axes: dict[str, Sequence[float]] = {
            "lm_weights": options.lm_weights,
            "word_insertion_penalties": options.word_insertion_penalties,
            "unknown_word_penalties": options.unknown_word_penalties if graphs.spelling else (0.0,),
        }
        # A low weight: a beam that keeps what is good under it keeps what is good under higher ones too, but not the other
        # way.
        tried = sorted(weight for weight in options.lm_weights if weight) or [0.0]
        point = Weights(tried[len(tried) // 4], *map(median_low, [*axes.values()][1:]))
        said = {name: words for name, words in data.transcripts.items() if name in outputs}
        known: dict[Weights, TuningPoint] = {}
        kept: dict[Weights, dict[str, WordLattice | None]] = {}
        narrowed: dict[Weights, dict[str, float]] = {}  # beams
        while point not in known and len(known) < MOST_SEARCHES:
            graph = graphs.build(point)
            with self.resources.searching("search of the development set") as how:
                kept[point] = search_lattices(outputs, graph, graphs.words, options.search, **how)
            narrowed[point] = how["narrowed"]
            axes = {name: sorted({*axis, at}) for (name, axis), at in zip(axes.items(), point, strict=True)}
            result = tune(kept[point], said, graphs.words, **axes, known=known)
            known[point] = next(one for one in result.points if one.weights == point)
            if not result.best.weights.lm_weight:  # lattices of weight 0 hide the grammar
                break
            point = result.best.weights
        if point not in known:
            result = replace(result, best=min(known.values(), key=lambda one: one.counts.errors))
        point = result.best.weights
        _write_tuning(out, result, narrowed=narrowed.get(point, {}))
        for told in tuning_advice(result, not graphs.is_loop):
            click.echo(f"WARNING: {told}")
        if keep:
            lattices = kept.get(point) or kept[[*kept][-1]]
            found = {name: one.at(*point) for name, one in lattices.items() if one is not None}
            write_kaldi_lattices(fresh(out / DEV) / "lattices.ark", found)
            heard: dict[str, Sequence[str]] = dict.fromkeys(lattices, ())
            for name, ids in zip(found, best_words([*found.values()], [point])[0], strict=True):
                heard[name] = spelt_out(graphs.words[number - 1] for number in ids)
            _write_scored(out / DEV, data, heard)
        return result

    def decode(self, data: DataDir, out: Path, weights: Weights, lattices: str | None = None) -> WerReport:
        """Recognise and score a data set; writes hyp.txt, wer.txt and wer.json to `out`.

        With `lattices`, one of `LATTICES`, also these, words.txt, words.ctm and weights.json, all of one search.
        """
        fresh(out, *SCORED, *KEPT, *(f"lattices.{ending}" for _, ending in LATTICES.values()))
        graphs, options = self.graphs, self.model.experiment.decoding.search
        graphs.tell_unknown(data, "transcripts")
        data, outputs = network_outputs(self.model, data, self.resources)
        graph = graphs.build(weights)
        heard: dict[str, Sequence[str]]
        if lattices is None:
            with self.resources.searching("decoding") as how:
                found = decode_outputs(outputs, graph, graphs.words, options, **how)
            heard = {name: hypothesis.words for name, hypothesis in found.items()}
        else:
            with self.resources.searching("decoding") as how:
                searched = search_lattices(outputs, graph, graphs.words, options, **how)
            write, ending = LATTICES[lattices]
            write(
                out / f"lattices.{ending}", {name: one for name, one in searched.items() if one is not None}
            )
            names = enumerate(("<eps>", *graphs.words))
            write_file(out / "words.txt", "".join(f"{word} {number}\n" for number, word in names))
            write_file(out / WEIGHTS, json.dumps(weights._asdict()) + "\n")
            write_file(out / MADE_WITH, json.dumps(self.made_with, indent=1) + "\n")
            heard, entries, lang = dict.fromkeys(searched, ()), [], graphs.lang
            for name, lattice in track(list(searched.items()), "times of words"):
                if lattice is not None:
                    timing = self.model.timing
                    timed = timed_words(lattice, outputs[name], lang.lexicon, lang.tree, timing, name)
                    entries += [
                        CtmEntry(name, one.start, one.duration, one.word, one.confidence) for one in timed
                    ]
                    heard[name] = tuple(one.word for one in timed)
            write_ctm(out / "words.ctm", entries)
        report = _write_scored(out, data, heard)
        if graphs.spelling is not None:
            graphs.tell_found(data, report)
        return report

    def rescore(
        self,
        data: DataDir,
        second: Path | None,
        out: Path,
        dev: DataDir,
        weights: Weights,
        kept: Path | None = None,
        network: WordNetwork | None = None,
    ) -> WerReport:
        """Judge the best word sequences of the search with a second model; weights are chosen on `dev`.

        That is the ARPA model `second`, or else the grammar of the search, and with `network` the mean of both.
        `weights` are those of the search; `kept` is a folder of its lattices and weights, which `decode` and `tune` wrote:
        without it both sets are searched. With `rescoring.speeds` the network runs at each of them. Prints the choice;
        writes tuning.txt, tuning.json, hyp.txt, wer.txt and wer.json to `out`.
        """
        fresh(out, *TUNED, *SCORED)
        graphs, lexicon = self.graphs, self.graphs.lang.lexicon
        config, options = self.model.experiment.rescoring, self.model.experiment.decoding.search
        if graphs.spelling is not None:
            refuse_with_spelling(network is not None, config.speeds)
        old = graphs.scores(graphs.grammar)
        ngram = old if second is None else graphs.scores(grammar_from_arpa(second, lexicon))
        share = config.network_share
        new = ngram if network is None else NetworkScores(network, ngram, lexicon.words, share)
        if kept is not None:
            _check_made_with(kept, self.made_with)
            weights = _kept_weights(kept)

        def rescorer(data: DataDir, folder: Path | None) -> tuple[DataDir, Rescorer]:
            found: Mapping[str, Lattice | None]
            if folder is not None:
                found = _kept_lattices(folder, data)
                data = data.select(lambda utterance: utterance.id in found)
            else:
                data, outputs = network_outputs(self.model, data, self.resources)
                graph = graphs.build(weights)
                with self.resources.searching("search") as how:
                    found = search_lattices(outputs, graph, graphs.words, options, **how)
            most, beam = config.num_hypotheses, options.lattice_beam
            lists = {
                name: best_word_sequences(one, graphs.words, most, beam) if one else []
                for name, one in track(list(found.items()), "word sequences")
            }
            heard = self._path_sums(data, lists) if config.speeds else None
            return data, Rescorer(lists, lexicon, old, weights, new, heard)

        dev, judged = rescorer(dev, kept and kept / DEV)
        said = dev.transcripts
        tuned = judged.tune({name: said[name] for name in judged.names}, config)
        _write_tuning(out, tuned)
        click.echo(f"dev   {tuned.best}")
        data, judged = rescorer(data, kept)
        return _write_scored(out, data, judged.best(*tuned.best.weights[:2]))

    def _path_sums(
        self, data: DataDir, lists: Mapping[str, Sequence[WordSequence]]
    ) -> dict[str, NDArray[np.float64]]:
        """By utterance, the mean over `rescoring.speeds` of `sums_over_paths`; -inf where one has no features."""
        experiment, lang = self.model.experiment, self.graphs.lang
        speeds, scale = experiment.rescoring.speeds, experiment.decoding.search.acoustic_scale
        sums = {name: np.zeros(len(sequences)) for name, sequences in lists.items()}
        for speed in speeds:
            _, outputs = network_outputs(self.model, data, self.resources, speed=speed)
            for name in track(list(lists), f"word sequences at speed {speed:g}"):
                if name not in outputs:
                    sums[name] -= np.inf
                elif sequences := [one.words for one in lists[name]]:
                    scores = scale * outputs[name]
                    sums[name] += sums_over_paths(sequences, scores, lang.lexicon, lang.tree) / len(speeds)
        return sums


def refuse_with_spelling(network: bool, speeds: Sequence[float]) -> None:
    """A ConfigError for what of section rescoring knows the words of the lexicon alone."""
    if network:
        raise ConfigError(
            "rescoring.network_epochs: expected 0, and no --word-network, where decoding.open_vocabulary spells words: "
            "a network of words knows none of these"
        )
    if speeds:
        raise ConfigError(
            f"rescoring.speeds = {list(speeds)}: expected [] where decoding.open_vocabulary spells words: sums "
            "are over pronunciations of the lexicon"
        )


def _kept_file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise DataError(
            f"{folder}: no {name}; expected the folder of `fsachain decode --lattices kaldi --dev`"
        )
    return path


def _kept_weights(folder: Path) -> Weights:
    path = _kept_file(folder, WEIGHTS)
    try:
        return Weights(**parse_json(path.read_bytes(), str(path))).check()
    except TypeError as error:
        raise DataError(f"{path}: not the weights of a search") from error


def _check_made_with(folder: Path, digests: Mapping[str, str]) -> None:
    """A DataError for lattices of another search; of earlier versions, which kept no digests, any are taken."""
    path = folder / MADE_WITH
    before = parse_json(path.read_bytes(), str(path)) if path.is_file() else digests
    known = before if isinstance(before, Mapping) else {}
    other = [name for name in {**digests, **known} if known.get(name) != digests.get(name)]
    if other:
        raise DataError(
            f"{folder}: its lattices are of another {' and another '.join(other)}; expected model, lexicon, --arpa, "
            "--grammar and --open-vocabulary of the search (a first_pass_share is known to `fsachain run`)"
        )


def _kept_lattices(folder: Path, data: DataDir) -> dict[str, Lattice | None]:
    """Of the utterances of `data` that were scored; None: there is none."""
    heard = read_text(_kept_file(folder, "hyp.txt"))
    path = _kept_file(folder, "lattices.ark")
    lattices = {name: lattice.expanded() for name, lattice in read_table(path, read_lattice)}
    known = data.transcripts
    for name, words in heard.items():
        if name not in known:
            raise DataError(
                f"{folder}: was made of utterance {name!r}, which is not in the data set; expected that which was decoded"
            )
        if words and name not in lattices:
            raise DataError(f"{path}: no lattice of {name!r}, of which hyp.txt has words; it was cut short")
    return {name: lattices.get(name) for name in heard}


@command(model=TRAINED, data=DATA, out=OUT)
@search_options
def decode(
    model: AcousticModel,
    data: DataDir,
    out: Path,
    lang: Lang = model_lang_option,
    dev: DataDir | None = option(DATA, "Data set on which LM weight and insertion penalty are chosen."),
    lattices: str | None = option(
        click.Choice(list(LATTICES)),
        "Keep the likely paths: kaldi, lattices.ark with graph and acoustic costs; openfst, lattices.far with their sum.",
    ),
    resources: Resources = with_resources("scheduler", "cache", "workers", "bad_data", "commands"),
    **search: Any,
) -> None:
    """Recognise the words of a data directory, and score them against its transcripts.

    In: MODEL, made by `fsachain train`, and DATA, a data set as `fsachain train` takes it.
    Out: folder OUT with hyp.txt, wer.txt and wer.json; tuning.txt and tuning.json where --dev is given; with --lattices
    these, over pdf + 1 and the word ids of words.txt, and words.ctm with times and confidences; faults.jsonl if utterances
    cannot be used, which are not scored.
    Example: fsachain decode model/model.safetensors test decoded --lang lang --arpa grammar.arpa --dev dev
    """
    graphs, weights = DecodingGraphs.of(lang, **search)
    recogniser = Recogniser(model, graphs, resources)
    fresh(out, *TUNED, *SCORED)
    if dev is not None:
        best = recogniser.tune(dev, out, keep=lattices is not None).best
        weights = best.weights
        click.echo(f"dev {best}")
    click.echo(f"{recogniser.decode(data, out, weights, lattices).total} -> {out}")


@command(model=TRAINED, data=DATA, second={"metavar": "ARPA", "type": FILE}, out=OUT)
@search_options
def rescore(
    model: AcousticModel,
    data: DataDir,
    second: Path,
    out: Path,
    lang: Lang = model_lang_option,
    dev: DataDir = option(DATA, "Data directory on which the weights are chosen.", required=True),
    lattices: Path | None = option(
        FOLDER,
        "Folder of `fsachain decode --lattices kaldi --dev`, with its weights and --arpa: nothing is searched again.",
    ),
    word_network: WordNetwork | None = option(
        Read(load_word_network),
        "Network of words that `fsachain run` trained; the larger model is the mean of ARPA and it then.",
    ),
    resources: Resources = with_resources("cache", "workers", "bad_data", "commands"),
    **search: Any,
) -> None:
    """Let a larger language model choose among the best word sequences.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory; ARPA, the larger model, which the
    search does not need to hold, or that of the search where --word-network brings what is new;
    --arpa, --grammar and the weights are those of the search. Section `rescoring` of the model's configuration says how
    many sequences, and what is tried.
    Out: folder OUT with hyp.txt, wer.txt, wer.json, tuning.txt and tuning.json.
    Example: fsachain rescore model/model.safetensors test large.arpa rescored --lang lang --arpa grammar.arpa --dev dev
    """
    graphs, weights = DecodingGraphs.of(lang, **search)
    recogniser = Recogniser(model, graphs, resources)
    report = recogniser.rescore(data, second, out, dev, weights, lattices, word_network)
    click.echo(f"{report.total} -> {out}")


@command(model=TRAINED, data=DATA, out=OUT)
def suspicious(
    model: AcousticModel,
    data: DataDir,
    out: Path,
    lang: Lang = model_lang_option,
    normalization: Fsa = normalization_option(" that the model was trained with", required=True),
    resources: Resources = with_resources("cache", "workers", "jobs", "bad_data", "commands"),
    substitution: float = option(NATS, "Penalty of a word in whose place another was said.", default=4.0),
    insertion: float = option(NATS, "Penalty of a word that was not said.", default=4.0),
    deletion: float | None = option(
        float, "Penalty of words that the transcript lacks; by default 2, with a model of CTC -3."
    ),
) -> None:
    """List the words of transcripts that were hardly said, worst first.

    In: MODEL, made by `fsachain train`, best with the section forgive; DATA, a Kaldi data directory. Penalties are nats.
    Out: folder OUT with words.txt (probability of having been said, utterance, place in the transcript from 1, word) and
    utterances.txt (expected number of wrong words, share of the frames that the transcript lacks, utterance).
    Example: fsachain suspicious model/model.safetensors train suspicious --lang lang --den graphs
    """
    fresh(out, "words.txt", "utterances.txt")
    data, outputs = network_outputs(model, data, resources)
    star = replace(model.experiment, forgive=ForgiveConfig(deletion=0.0)).settled(lang.tree).forgive.star
    if deletion is None:
        deletion = 2.0 if star == "frames" else -3.0
    forgive = Forgiveness(substitution, insertion, deletion, cast(Star, star))
    starred = normalization
    if forgive.has_star_of_frames:
        starred = with_cheap_star(normalization, lang.tree.num_pdfs)
    numerators, faults = build_numerators(lang, data, starred, resources, forgive)
    usable = {name: scores for name, scores in outputs.items() if name in numerators}
    with counter("utterances") as update:
        found, failed = doubts(usable, numerators, normalization, progress=update)
    faults += [Fault(name, f"utterance {name!r}: {reason}", "no path") for name, reason in failed.items()]
    resources.leave_out(faults, len(found), f"{out}: doubts")
    words = sorted(
        (probability, name, place, doubt.words[place - 1])
        for name, doubt in found.items()
        for place, probability in enumerate(doubt.said.tolist(), start=1)
    )
    utterances = sorted((-doubt.wrong, -doubt.unwritten, name) for name, doubt in found.items())
    lines = [f"{probability:.4f} {name} {place} {word}" for probability, name, place, word in words]
    write_file(out / "words.txt", "\n".join(lines) + "\n")
    rows = [f"{-wrong:.3f} {-unwritten:.3f} {name}" for wrong, unwritten, name in utterances]
    write_file(out / "utterances.txt", "\n".join(rows) + "\n")
    click.echo("\n".join(lines[:10]))
    doubtful, wrong = sum(p < 0.5 for p, *_ in words), sum(doubt.wrong for doubt in found.values())
    frames = {name: len(outputs[name]) for name in found}
    share = sum(doubt.unwritten * frames[name] for name, doubt in found.items()) / sum(frames.values())
    click.echo(
        f"{counted(len(found), 'utterance')}: {doubtful} of {counted(len(words), 'word')} were rather not said "
        f"(expected: {wrong:.1f}); {100 * share:.1f} % of the frames are not in the transcripts -> {out}"
    )


@command(model=TRAINED, data=DATA, out=OUT)
@search_options
def mend(
    model: AcousticModel,
    data: DataDir,
    out: Path,
    lang: Lang = model_lang_option,
    resources: Resources = with_resources("scheduler", "cache", "workers", "bad_data", "commands"),
    substitution: float = option(NATS, "Penalty of a word in whose place another was said.", default=6.0),
    insertion: float = option(NATS, "Penalty of a word that was not said.", default=6.0),
    deletion: float = option(float, "Penalty of a word that the transcript lacks.", default=2.0),
    alternatives: int = option(COUNT, "Word sequences of an utterance in patterns.txt.", default=1),
    **search: Any,
) -> None:
    """Write transcripts anew that may be wrong: what was most likely said, given what was written.

    In: MODEL, made by `fsachain train`; DATA, a data set as `fsachain train` takes it, transcripts may be empty. Penalties
    are nats, inf forbids, and stand beside the costs of the search.
    Out: folder OUT with text, which takes the place of DATA/text in the next training, and changes.txt: each transcript that
    changed, aligned with what was written; with --alternatives also patterns.txt, what else may have been said, with its
    probability, for `fsachain run --patterns`; faults.jsonl if utterances cannot be used.
    Example: fsachain mend model/model.safetensors train mended --lang lang --arpa grammar.arpa --lm-weight 0.7
    """
    for name in ("open_vocabulary", "unknown_word_penalty"):
        if search[name]:
            option_name = name.replace("_", "-")
            raise click.UsageError(f"--{option_name}: transcripts are mended with words of the lexicon alone")
    graphs, weights = DecodingGraphs.of(lang, **search)
    fresh(out, "text", "changes.txt", "patterns.txt")
    graphs.tell_unknown(data, "transcripts")  # which cannot be kept
    options = model.experiment.decoding.search
    data, outputs = network_outputs(model, data, resources)
    wide = max(options.lattice_beam, MENDING_BEAM)
    wide_options = replace(options, lattice_beam=wide, first_beam=max(options.first_beam, wide))
    forgive, written = Forgiveness(substitution, insertion, deletion), data.transcripts
    with resources.searching("search") as how:
        graph, words = graphs.build(weights), lang.lexicon.words
        best = mend_outputs(outputs, written, graph, words, forgive, wide_options, count=alternatives, **how)
    found = {name: sequences[0].words for name, sequences in best.items()}
    write_text(out / "text", found)
    if alternatives > 1:
        lines = []
        for name, sequences in best.items():
            if found[name]:
                some = [one for one in sequences if one.words]
                probs = np.exp([one.log_prob - some[0].log_prob for one in some])
                pairs = zip((probs / probs.sum()).tolist(), (one.words for one in some), strict=True)
                lines.append(f"{name} {alternatives_as_text(list(pairs))}\n")
        write_file(out / "patterns.txt", "".join(lines))
    report = score({name: written[name] for name in found}, found)
    write_file(out / "changes.txt", report.to_text())
    total = report.total
    click.echo(
        f"{counted(len(found), 'utterance')}: of {counted(total.num_words, 'word')} {total.substitutions} replaced, "
        f"{total.deletions} taken out, {total.insertions} added -> {out}"
    )


@command(model=TRAINED, data=DATA, words=str, out=OUT)
def keyword(
    model: AcousticModel,
    data: DataDir,
    words: str,
    out: Path,
    lang: Lang = model_lang_option,
    normalization: Fsa | None = normalization_option("; weighs both graphs by it"),
    false_alarms_per_hour: float = option(
        click.FloatRange(min=0), "At most so many, in the utterances without the keyword.", default=0.5
    ),
    phones_per_loop: float = phones_per_loop_option,
    resources: Resources = with_resources("cache", "workers", "bad_data", "commands"),
) -> None:
    """Look for a keyword, and count misses at a given rate of false alarms.

    In: MODEL, made by `fsachain train`; DATA, a Kaldi data directory with and without the keyword, whose transcripts tell;
    WORDS, the keyword, in quotes if it has several words.
    Out: the false-reject rate, printed; folder OUT with scores.txt (utterance, score per frame, 1 with the keyword or 0).
    Example: fsachain keyword model/model.safetensors test yes found --lang lang
    """
    sought = tuple(words.split())
    if not sought:
        raise ConfigError("WORDS is empty: expected those of the keyword")
    loop = any_phones(lang, phones_per_loop)
    patterns: dict[str, Pattern] = {
        "keyword": [optional([loop]), *sought, optional([loop])],
        "filler": [loop],
    }
    spoken, filler = (
        build_pattern_numerator(pattern, lang.lexicon, lang.tree, normalization=normalization, name=name).fsa
        for name, pattern in patterns.items()
    )
    fresh(out, "scores.txt")
    usable, outputs = network_outputs(model, data, resources)
    scores = _keyword_scores(spoken, filler, outputs)
    has = {
        one.id: any(one.words[i : i + len(sought)] == sought for i in range(len(one.words))) for one in usable
    }
    frames = sum(len(outputs[name]) for name, found in has.items() if not found)
    hours = frames * model.timing.frame_seconds / 3600
    accepted = [scores[name] for name, found in has.items() if found]
    others = [scores[name] for name, found in has.items() if not found]
    if not accepted or not hours:
        raise DataError(
            f"{len(accepted)} of {counted(len(has), 'utterance')} have the keyword {words!r}; expected "
            "some with and some without it"
        )
    lines = [f"{name} {scores[name]:.6g} {int(found)}\n" for name, found in has.items()]
    write_file(out / "scores.txt", "".join(lines))
    point = false_reject_rate(accepted, others, hours, false_alarms_per_hour=false_alarms_per_hour)
    missed = round(point.false_reject_rate * len(accepted))
    click.echo(
        f"false-reject rate {100 * point.false_reject_rate:.2f} % ({missed} of {len(accepted)}) at "
        f"{point.false_alarms_per_hour:.4g} false alarms per hour ({counted(len(others), 'utterance')}, "
        f"{counted(hours, 'hour', '.4g')} without the keyword), threshold {point.threshold:.6g} -> {out}"
    )


def _keyword_scores(spoken: Fsa, filler: Fsa, outputs: Outputs) -> dict[str, float]:
    """By utterance, in batches of similar length."""
    found: dict[str, float] = {}
    names = sorted(outputs, key=lambda name: len(outputs[name]))
    batches = [names[first : first + KEYWORD_BATCH] for first in range(0, len(names), KEYWORD_BATCH)]
    for batch in track(batches, "keyword"):
        lengths = [len(outputs[name]) for name in batch]
        scores = np.zeros((len(batch), max(lengths), outputs[batch[0]].shape[1]), dtype=np.float32)
        for row, name in zip(scores, batch, strict=True):
            row[: len(outputs[name])] = outputs[name]
        found |= zip(batch, keyword_scores(spoken, filler, scores, lengths).tolist(), strict=True)
    return found
