"""An experiment's configuration: one YAML file whose sections are the options of the library's own parts."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib
import inspect
import math
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import torch
from torch import nn

from fsachain.asr.cli.options import FILE, LOCATE, note, option, together
from fsachain.asr.data.audio import Perturbation
from fsachain.asr.data.augment import AugmentConfig
from fsachain.asr.data.cmvn import CmvnConfig
from fsachain.asr.data.features import FeatureConfig
from fsachain.asr.data.utterance import Utterance
from fsachain.asr.decode.decoder import DecoderConfig
from fsachain.asr.decode.rescore import RescoringConfig
from fsachain.asr.nn.conformer import Conformer
from fsachain.asr.nn.network import Network, about
from fsachain.asr.nn.tdnnf import Tdnnf
from fsachain.asr.train.config import (
    GONE_OPTIONS,
    TrainConfig,
    changes,
    flat,
    from_dict,
    load_yaml,
    option_lines,
    to_dict,
)
from fsachain.asr.train.schedule import Schedule, Scheduled, value_at, values_of
from fsachain.errors import ConfigError, check_choices, check_range, counted, require
from fsachain.files import write_text
from fsachain.graph.context import ContextTree
from fsachain.graph.forgive import Forgiveness, Star
from fsachain.graph.supervision import DEFAULT_TOLERANCE
from fsachain.graph.topology import Topology
from fsachain.loss.base import check_factor

BUILT_IN: dict[str, type[nn.Module]] = {"tdnnf": Tdnnf, "conformer": Conformer}
CONFIG = "config.yaml"  # in language folders and folders of `fsachain run`
DERIVED = ("num_features", "num_pdfs")
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_EXPECTED = {
    "forward": "forward(features [N, T, F], lengths [N]) -> NetworkOutput",
    "output_lengths": "output_lengths(lengths [N]) -> [N], ceil(lengths / subsampling)",
    "num_features": "the number of columns of the features",
    "num_pdfs": "the number of columns of the output",
    "subsampling": "input frames per output frame",
    "time_offset": "the input frame, counted from its first, on which an output is centred",
    "context": "(input frames before, after) that an output sees beside its own, or None for the whole utterance",
}


@dataclass(frozen=True)
class NetworkSpec:
    """A network that is not built yet.

    `kind` is "tdnnf", "conformer", or "package.module:Class", a class of yours that is what `fsachain.asr.nn.Network` says;
    `options` are those of its configuration. `init_from` is a file whose weights a training begins with.
    """

    kind: str
    options: Mapping[str, Any]
    num_features: int
    num_pdfs: int
    init_from: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not (self.kind in BUILT_IN or _IMPORT_PATH.fullmatch(self.kind)):
            raise ConfigError(
                f"network.kind: {self.kind!r:.80} is no network; expected {', '.join(BUILT_IN)} or package.module:Class"
            )
        if not isinstance(self.init_from, str | None):
            raise ConfigError(f"network.init_from: expected the path of a file, got {self.init_from!r}")
        for name in sorted(set(DERIVED) & self.options.keys()):
            raise ConfigError(f"network.{name}: is not an option, it follows from features and tree")

    @property
    def import_path(self) -> str | None:
        """None for the networks of this package."""
        return None if self.kind in BUILT_IN else self.kind

    @property
    def config(self) -> Any:
        """The dataclass with which the constructor's only argument is annotated; None where there are others."""
        names = list(inspect.signature(self._class).parameters)
        try:
            hints = typing.get_type_hints(self._class.__init__)
        except NameError:  # an annotation for type checkers alone
            return None
        kind = hints.get(names[0]) if len(names) == 1 else None
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            return None
        for name in DERIVED:
            if name not in kind.__dataclass_fields__:
                raise ConfigError(
                    f"network.kind: {self.kind}: {kind.__name__} has no field {name!r}; expected one"
                )
        return from_dict(kind, self._arguments, "network")

    def build(self) -> Network:
        """The network with random weights; `Class(config)`, or `Class(num_features=..., num_pdfs=..., **options)`."""
        config = self.config
        if config is None:
            _check_arguments(self.kind, self._class, self._arguments)
            network = self._class(**self._arguments)
        else:
            network = self._class(config)
        for name, expected in _EXPECTED.items():
            inherited = name == "forward" and type(network).forward is nn.Module.forward
            if inherited or not hasattr(network, name):
                raise ConfigError(f"network.kind: {self.kind}: has no {name!r}; expected {expected}")
        built = cast(Network, network)
        if self.import_path:
            frames, step = 3000, built.subsampling
            found = int(built.output_lengths(torch.tensor([frames])))
            if not about(found, frames // step):
                raise ConfigError(
                    f"network.kind: {self.kind}: output_lengths gives {found} for {counted(frames, 'frame')}; expected "
                    f"{frames // step}, since subsampling is {step}"
                )
        return built

    @cached_property
    def sketch(self) -> Network:
        """A network that is asked for its sizes: without memory for weights where that is known to work."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu" if self.import_path else "meta"):
            return self.build()

    @property
    def _arguments(self) -> dict[str, Any]:
        return {**self.options, "num_features": self.num_features, "num_pdfs": self.num_pdfs}

    @cached_property
    def _class(self) -> type[nn.Module]:
        if self.kind in BUILT_IN:
            return BUILT_IN[self.kind]
        module, _, name = self.kind.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise ConfigError(
                f"network.kind: {self.kind}: cannot import {module} ({error}); expected a module that is installed or on "
                "PYTHONPATH"
            ) from error
        except AttributeError as error:
            raise ConfigError(f"network.kind: {self.kind}: {module} has no {name!r}") from error
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ConfigError(f"network.kind: {self.kind}: is {found!r}; expected a class of torch.nn.Module")
        return found


def _check_arguments(path: str, constructor: type, arguments: Mapping[str, Any]) -> None:
    parameters = inspect.signature(constructor).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name in arguments.keys() - parameters.keys():
            if name in DERIVED:
                raise ConfigError(f"network.kind: {path}: takes no argument {name!r}; expected one")
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(parameters)}"
            raise ConfigError(f"network.{name}: unknown option of {path}; {hint}")
    for name, one in parameters.items():
        named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if named and one.default is one.empty and name not in arguments:
            raise ConfigError(f"network.{name}: {path} needs this option; expected a value")


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    "chain": Topology.chain,
    "chain-one-pdf": Topology.chain_one_pdf,
    "left-to-right-3": lambda: Topology.left_to_right(3),
    "ctc": Topology.ctc,
    "ctc-compact": lambda: Topology.ctc("compact"),
    "ctc-selfless": lambda: Topology.ctc("selfless"),
    "ctc-minimal": lambda: Topology.ctc("minimal"),
}
CONTEXTS = ("monophone", "biphone", "tied-biphone")


@dataclass(frozen=True)
class LangConfig:
    """Words, phones and what a phone looks like.

    Attributes:
        silence: phone that may stand between words and at the ends; None for a lexicon without.
        silence_prob (probability): probability of silence at each such place.
        oov: word of the lexicon that stands for all words it lacks; None refuses such words.
        topology: "chain", "chain-one-pdf", "left-to-right-3", or with a blank "ctc", "ctc-compact", "ctc-selfless" or
            "ctc-minimal" (see `fsachain.graph.ctc`).
        context: "monophone"; "biphone": pdfs depend on the phone before; or "tied-biphone": rare pairs share pdfs. Silence
            stays independent of the phone before.
        min_biphone_count, min_monophone_count (occurrences): for "tied-biphone": rarer pairs, and phones, share pdfs; see
            `ContextTree.tied_biphone`.
    """

    silence: str | None = "SIL"
    silence_prob: float = 0.5
    oov: str | None = None
    topology: str = "chain"
    context: str = "monophone"
    min_biphone_count: int = 100
    min_monophone_count: int = 20

    def __post_init__(self) -> None:
        check_choices(self, topology=TOPOLOGIES, context=CONTEXTS)
        if self.silence is not None and not 0.0 < self.silence_prob < 1.0:
            raise ConfigError(
                f"silence_prob: {self.silence_prob} is not in (0, 1); silence: null is a lexicon without"
            )


@dataclass(frozen=True)
class PhoneLmConfig:
    """The phone language model of the denominator; see `estimate_phone_lm` and `lm_phones`.

    Attributes:
        ngram_order (phones): in an n-gram, the predicted one included. 0: no model, and a denominator that accepts every
            sequence of pdfs; with `lang.topology` "ctc" and no leak the objective is that of CTC.
        num_extra_lm_states (states): states kept above those of the order that is never pruned.
        no_prune_ngram_order (phones): n-grams up to this order are never pruned.
        edge_silence (probability): probability of silence at each end of a training sentence.
        between_silence (probability): probability of silence between two words.
    """

    ngram_order: int = 4
    num_extra_lm_states: int = 1000
    no_prune_ngram_order: int = 3
    edge_silence: float = 0.8
    between_silence: float = 0.2

    def __post_init__(self) -> None:
        if self.ngram_order < 0 or self.ngram_order == 1:
            raise ConfigError(f"ngram_order: {self.ngram_order}; expected 0, or 2 and more")
        check_range(self, "[0, inf)", "num_extra_lm_states")
        check_range(self, "[1, inf)", "no_prune_ngram_order")
        check_range(self, "[0, 1]", "edge_silence", "between_silence")


@dataclass(frozen=True)
class LossConfig:
    """Options of `LFMMILoss`: numbers, or schedules such as "0,0@0.2,0.5" (see `fsachain.asr.train.schedule`).

    Attributes:
        leaky_hmm_coefficient (probability): of a jump to any state of the denominator after each frame; 0.1 as in Kaldi's
            end-to-end recipes, 1e-5 in its others, 0 exact.
        l2_regularize (factor): of the squared scores, halved.
        out_of_range_regularize (factor): of the squares, halved, of what scores exceed -30 to 30 by.
        xent_regularize (factor): of the cross-entropy of the second head (`network.xent: branch`); 0.1 is usual.
        denominator_scale (factor): of the denominator's log-probability.
        consistency (factor): of the divergence of two views of each utterance, which differ in what `augment` and dropout
            draw. A step then has both views, and takes twice as long; 0 off.
    """

    leaky_hmm_coefficient: Scheduled = 0.1
    l2_regularize: Scheduled = 5e-5
    out_of_range_regularize: Scheduled = 0.01
    xent_regularize: Scheduled = 0.0
    denominator_scale: Scheduled = 1.0
    consistency: Scheduled = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            for number in values_of(value):
                check_factor(name, number)

    @property
    def views(self) -> int:
        """Of each utterance in a step of training."""
        return 2 if any(values_of(self.consistency)) else 1

    def at(self, progress: float) -> dict[str, float]:
        """The options as numbers: their values at some progress of the training in [0, 1]."""
        return {name: value_at(value, progress) for name, value in vars(self).items()}

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The options that change."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Schedule)}


@dataclass(frozen=True)
class PerturbationConfig:
    """Copies of the training recordings at other speeds and volumes, and with noise.

    Attributes:
        speeds (factors): one copy for each; 1.0 is the original.
        volume (factors): the gain of each utterance is drawn between these two.
        noise (dB): lowest and highest signal-to-noise ratio: there is another copy for each speed then, with noise whose
            ratio and colour are drawn for each utterance; None: none.
    """

    speeds: tuple[float, ...] = (1.0,)
    volume: tuple[float, float] = (1.0, 1.0)
    noise: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.speeds:
            raise ConfigError("speeds: is empty; [1.0] takes the recordings as they are")
        self.copies(0)

    def copies(self, seed: int) -> list[Perturbation]:
        """One perturbation for each speed, and one with noise if there is any."""
        kinds = (None, self.noise) if self.noise else (None,)
        return [Perturbation(speed, self.volume, seed, noise) for speed in self.speeds for noise in kinds]


@dataclass(frozen=True)
class ForgiveConfig:
    """What transcripts of the training set may be wrong in, for numerators of transcripts; see `fsachain.Forgiveness`.

    Attributes:
        substitution (nats): penalty of a word in whose place another was said, a number or a schedule such as "20,4@0.5,4"
            (see `fsachain.asr.train.schedule.Schedule`), taken at the middle of each epoch; None: there is none.
        insertion (nats): penalty of a word that was not said, likewise.
        deletion (nats): penalty of what the transcript lacks between two words, likewise; it may be below 0.
        star: "frames": any frames, which cost least time; "sum": any phones, as likely as the phone language model says;
            "mean": each costs the log of their number more. None: "frames" with a phone language model
            (`phone_lm.ngram_order`), that is for LF-MMI; "sum" without, for CTC, and for trees that look at the next phone.
        most_left_out (words): how many in a row may not have been said.
    """

    substitution: Scheduled | None = None
    insertion: Scheduled | None = None
    deletion: Scheduled | None = None
    star: str | None = None
    most_left_out: int = 3

    def __post_init__(self) -> None:
        for progress in (0.0, 1.0, *(at for one in self.changing for _, at in one.points)):
            self.forgiveness(progress)

    @property
    def changing(self) -> list[Schedule]:
        """The penalties that change while a training goes on."""
        return [
            one for one in (self.substitution, self.insertion, self.deletion) if isinstance(one, Schedule)
        ]

    def forgiveness(self, progress: float = 1.0) -> Forgiveness | None:
        """At some progress of the training, at its end if none is given; None where nothing is forgiven."""
        given = (self.substitution, self.insertion, self.deletion)
        wrong, too_many, missing = (math.inf if one is None else value_at(one, progress) for one in given)
        found = Forgiveness(wrong, too_many, missing, cast(Star, self.star or "sum"), self.most_left_out)
        return None if set(given) == {None} else found


@dataclass(frozen=True)
class SupervisionConfig:
    """Supervision from an alignment; see `build_supervision` and `fsachain.graph.supervision`. All in input frames.

    Attributes:
        left_tolerance (input frames): how far before its aligned span a phone may begin.
        right_tolerance (input frames): how far behind it a phone may last.
        chunk_frames (input frames): length of a chunk, rounded up to output frames; None leaves utterances whole.
        overlap_frames (input frames): the least that neighbouring chunks share, rounded up likewise.
    """

    left_tolerance: int = DEFAULT_TOLERANCE
    right_tolerance: int = DEFAULT_TOLERANCE
    chunk_frames: int | None = 150
    overlap_frames: int = 0

    def __post_init__(self) -> None:
        check_range(self, "[0, inf)", "left_tolerance", "right_tolerance", "overlap_frames")
        if self.chunk_frames is not None and self.chunk_frames <= self.overlap_frames:
            raise ConfigError(
                f"chunk_frames: {self.chunk_frames} is not more than the overlap, {self.overlap_frames}"
            )


@dataclass(frozen=True)
class DecodingConfig:
    """The grammar and how its weight is found.

    Attributes:
        ngram_order (words): of the word language model of the training text; 0 is a loop over all words, equally likely.
        lm_weights (factors): factors on the grammar's costs that are tried on the development set.
        word_insertion_penalties (nats): costs per word that are tried.
        open_vocabulary: whether words that the grammar lacks are spelt by an n-gram of the lexicon's phones.
        unknown_word_penalties (nats): costs per such word that are tried.
        frame_shift (input frames): network outputs are the mean over features delayed and advanced by up to this many
            frames, that is 2 n + 1 passes of the network; for one trained with `augment.frame_shift`.
        first_pass_share (share): in `fsachain run --first` network outputs are the mean of both passes', the first's with
            this weight; without --first it must be 0. Other commands do without the first pass.
        search: beams of the decoder.
    """

    ngram_order: int = 0
    lm_weights: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5)
    word_insertion_penalties: tuple[float, ...] = (-0.5, 0.0, 0.5)
    open_vocabulary: bool = False
    unknown_word_penalties: tuple[float, ...] = (0.0, 2.0, 4.0)
    frame_shift: int = 0
    first_pass_share: float = 0.0
    search: DecoderConfig = field(default_factory=DecoderConfig)

    def __post_init__(self) -> None:
        check_range(self, "[0, inf)", "frame_shift")
        check_range(self, "[0, 1]", "first_pass_share")


# Options that went away, which models and folders made before still have, as in `GONE_OPTIONS`.
_GONE: dict[str, tuple[Any, str]] = {
    "decoding.search.search": (None, "there is one search"),
    **{f"train.{name}": gone for name, gone in GONE_OPTIONS.items()},
}


def _known(sections: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Without options that went away; told of a file."""
    sections = copy.deepcopy(dict(sections))
    for gone, (as_now, why) in _GONE.items():
        option, _, value = gone.partition("=")
        *tables, name = option.split(".")
        table: Any = sections
        for inner in tables:
            table = table.get(inner) if isinstance(table, Mapping) else None
        if isinstance(table, dict) and name in table and value in ("", table[name]):
            was = table.pop(name)
            if where and was != as_now:
                note(f"{where}: {gone} is no option any more: {why}")
    return sections


@dataclass(frozen=True)
class Experiment:
    """All sections of a configuration file; a section that is left out keeps its defaults.

    `network` holds `kind` ("tdnnf" where it is left out, "conformer", or the import path of your own class),
    `init_from` (a file with weights to begin with) and the options of the network's configuration, such as
    `TdnnfConfig`, but num_features and num_pdfs: these follow from features and tree.
    """

    lang: LangConfig = field(default_factory=LangConfig)
    phone_lm: PhoneLmConfig = field(default_factory=PhoneLmConfig)
    forgive: ForgiveConfig = field(default_factory=ForgiveConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    cmvn: CmvnConfig = field(default_factory=CmvnConfig)
    perturbation: PerturbationConfig = field(default_factory=PerturbationConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: dict[str, Any] = field(default_factory=dict)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    rescoring: RescoringConfig = field(default_factory=RescoringConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.network, Mapping):
            raise ConfigError(f"network: expected a table, got {self.network!r}")
        spec = self._spec(num_features=1, num_pdfs=1)
        if spec.import_path is None:
            _ = spec.config  # so that a misspelt option is found before any work is done

    @property
    def augmentation(self) -> AugmentConfig:
        """Section `augment` for these features: bands are the same in the features, their deltas and spliced frames."""
        if self.augment.block_columns or not (self.features.deltas or any(self.features.splice)):
            return self.augment
        return replace(self.augment, block_columns=self.features.base_columns)

    def network_spec(self, num_pdfs: int) -> NetworkSpec:
        """The network for these features and so many pdfs; nothing is imported before it is asked for something."""
        return self._spec(self.features.num_features, num_pdfs)

    def _spec(self, num_features: int, num_pdfs: int) -> NetworkSpec:
        options = dict(self.network)
        kind, init_from = options.pop("kind", "tdnnf"), options.pop("init_from", None)
        return NetworkSpec(kind, options, num_features, num_pdfs, init_from)

    @property
    def imported(self) -> list[str]:
        """The import path of the network, where it is one of the user's own."""
        path = self._spec(1, 1).import_path
        return [path] if path else []

    def fitted(self, utterances: Iterable[Utterance], tell: bool = True) -> Experiment:
        """With sample rate and mel bins as the recordings have them where none are given; `tell` says which they are."""
        features = self.features.fitted(utterances)
        if features == self.features:
            return self
        if tell:
            how = "as the recordings have them" if features.sample_rate else "as they come with the data"
            click.echo(f"features, {how}: {features.told}")
        return replace(self, features=features)

    def settled(self, tree: ContextTree | None = None) -> Experiment:
        """With the star of `forgive` that is taken where none is given, for this tree; None: for any that `lang` makes.

        It is for work and digests of it: config.yaml keeps what was given, since the penalties that it depends on may come
        later.
        """
        if self.forgive.star is not None:
            return self
        found = self.forgive.forgiveness()
        can_be = self.phone_lm.ngram_order > 0 and (tree is None or tree.is_narrow)
        is_of_frames = can_be and found is not None and found.has_star
        return replace(self, forgive=replace(self.forgive, star="frames" if is_of_frames else "sum"))

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any], where: str = "") -> Experiment:
        """The configuration in a plain table; `where` (a file, say) begins the messages."""
        try:
            return from_dict(cls, _known(sections, where))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}" if where else str(error)) from error

    @classmethod
    def read(cls, path: str | Path) -> Experiment:
        """The configuration in a YAML file."""
        return read_experiment(Path(path))

    def to_dict(self) -> dict[str, Any]:
        """A plain table that `from_dict` reads; every option is in it."""
        return to_dict(self)

    def write(self, path: Path, head: Iterable[str] = ()) -> None:
        """A YAML file that `read` reads; `head` are lines of comment."""
        text = require("yaml", extra="recipes").safe_dump(
            self.to_dict(), sort_keys=False, default_flow_style=None
        )
        write_text(path, "".join(f"# {line}\n" for line in head) + text)


def read_sections(
    path: Path | None, settings: Sequence[str] = (), kept: Experiment | None = None
) -> tuple[dict[str, Any], str]:
    """The sections of a YAML file, else of `kept`, with `SECTION.OPTION=VALUE` settings, and where they are from."""
    yaml = require("yaml", extra="recipes")
    sections = (kept.to_dict() if kept else {}) if path is None else load_yaml(path)
    for setting in settings:
        name, equals, value = setting.partition("=")
        *tables, key = name.split(".")
        if not (equals and tables):
            raise ConfigError(f"--set {setting}: expected SECTION.OPTION=VALUE")
        table = sections
        for inner in tables:
            table = table.setdefault(inner, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {setting}: {inner} is {table!r}, not a section")
        try:
            table[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {setting}: {value!r} is no YAML value") from error
    where = [] if path is None else [str(path)]
    return sections, " ".join([*where, *(f"--set {setting}" for setting in settings)])


def read_experiment(
    path: Path | None, settings: Sequence[str] = (), kept: Experiment | None = None
) -> Experiment:
    """The configuration in a YAML file, else `kept`, else the defaults; `SECTION.OPTION=VALUE` settings are YAML."""
    sections, where = read_sections(path, settings, kept)
    known = _known(sections, where)
    try:
        return Experiment.from_dict(known)
    except ConfigError as error:
        raise ConfigError(_located(str(error), path, settings)) from error


def _located(told: str, path: Path | None, settings: Sequence[str]) -> str:
    """A message that begins with an option of the configuration, behind what gave it: the file and line, or --set.

    The message itself if it does not begin so, or names the file already.
    """
    names = re.match(r"\w+(?:\.\w+)*", told)
    is_unknown = ": unknown option" in told
    if names is None or (path and str(path) in told):
        return told
    if names[0].partition(".")[0] not in SECTIONS and not is_unknown:
        return told
    places = list(accumulate(names[0].split("."), lambda place, name: f"{place}.{name}"))[::-1]
    for setting in settings:
        if setting.partition("=")[0] in places:
            return f"--set {setting}: {told}"
    if path is None:
        return told
    lines = option_lines(path)
    line = next((f":{lines[place]}" for place in places if place in lines), "")
    return f"{path}{line}: {told}" if line or len(places) == 1 else told


class Given(NamedTuple):
    """What a user gave in a call: sections of --config and --set, their place for messages, and whether --config was."""

    sections: dict[str, Any]
    where: str
    has_file: bool

    @property
    def flat(self) -> dict[str, Any]:
        """By place, such as "train.num_epochs"."""
        return dict(flat(self.sections))

    def over(self, sections: Mapping[str, Any]) -> Experiment:
        """The configuration of these sections but for the options that were given."""
        return Experiment.from_dict(merged(sections, self.sections), self.where)


def given_options() -> Given | None:
    """What the user gave of the command that runs; None outside of one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_GIVEN)


def merged(sections: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Sections in which the options of `others` win."""
    found = copy.deepcopy(dict(sections))
    for name, value in others.items():
        inner = found.get(name)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            found[name] = merged(inner, value)
        else:
            found[name] = copy.deepcopy(value)
    return found


def _read_config(
    context: click.Context, _: click.Parameter, path: Path | None, *, otherwise: Experiment | None = None
) -> Experiment:
    """Of the options, else of the language folder; says where it comes from, and what differs from that of the folder.

    Of a command without such a folder it is `otherwise` where there is no file.
    """
    lang: Any = context.params.get("lang")  # read before
    settings = context.meta.get(_SETTINGS, ())
    context.meta[LOCATE] = partial(_located, path=path, settings=settings)
    if lang is None:
        kept_by = [context.params.get(name) for name in ("exp", "first")]  # folders of `fsachain run`
        files = [folder / CONFIG for folder in kept_by if folder and not path]
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            click.echo(f"configuration: {file}")
        context.meta[_GIVEN] = Given(*read_sections(path, settings), path is not None)
        return read_experiment(path or file, settings, otherwise)
    kept: Experiment | None = lang.experiment
    context.meta[_GIVEN] = Given(*read_sections(path, settings), path is not None)
    found = read_experiment(path, settings, kept)
    file = f"{lang.folder / CONFIG}" if kept else "every option has its default"
    if kept is None or found == kept:
        click.echo(f"configuration: {path or file}")
        return found
    before, now = kept.to_dict(), found.to_dict()
    if others := changes(before["lang"], now["lang"], "lang"):
        raise ConfigError(
            f"{path or '--set'}: {', '.join(others)}; {file} tells what the language folder was made with: expected the "
            "same, or a folder made anew with `fsachain lang`"
        )
    told = ", ".join(changes(before, now))
    click.echo(
        f"configuration: {path}; other than {file}: {told}" if path else f"configuration: {file}; {told}"
    )
    return found


_SETTINGS = f"{__name__}.settings"
_GIVEN = f"{__name__}.given"


def config_options(otherwise: Experiment | None = None, told: str = "that of the language folder") -> Any:
    """--config and --set; without --config the configuration is `otherwise`, which `told` describes."""
    return together(
        option(
            FILE,
            f"YAML file of the experiment; without it {told}, see `fsachain config`.",
            "--config",
            "experiment",
            callback=partial(_read_config, otherwise=otherwise),
        ),
        option(
            str,
            "Change one option of the configuration; may be given several times.",
            "--set",
            multiple=True,
            metavar="SECTION.OPTION=VALUE",
            is_eager=True,  # read before --config
            expose_value=False,
            callback=lambda context, _, settings: context.meta.update({_SETTINGS: settings}),
        ),
    )


config_option = config_options()


# Every option of a configuration, from the docstrings of its dataclasses: `fsachain config`, docs/configuration.md.

# The networks of the package: what they need beside these options follows from features and tree.
NETWORKS: dict[str, Any] = {kind: NetworkSpec(kind, {}, 1, 1).config for kind in BUILT_IN}
SECTIONS = tuple(one.name for one in dataclasses.fields(Experiment))
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*)(?: \((?P<unit>[^)]+)\))?: (?P<meaning>.*)", re.DOTALL)
_WIDTH = 120
_HEAD = """\
# Configuration

The options of the YAML file that commands take as `--config`, each with its default, its unit in parentheses, and its
meaning. An option that is left out keeps its default. `--set SECTION.OPTION=VALUE` changes one for one command.
`fsachain config` prints this page, `fsachain config --section train` a part of it, `fsachain config --defaults` a file
of all defaults to begin with, `fsachain config --diff FILE` what a file changes, and `fsachain config --for DATA` the
options that `fsachain run` chooses for a data set ([defaults.md](defaults.md)).
"""
_NETWORK = """\
- `network.kind` = `tdnnf`: "tdnnf", "conformer", or package.module:Class, a class of yours (docs/networks.md).
- `network.init_from` = `null`: file of weights that a training begins with.
"""


class Option(NamedTuple):
    """`name` is SECTION.OPTION; `unit` is empty for text and switches."""

    name: str
    default: Any
    unit: str
    meaning: str

    def __str__(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        text = f"- `{self.name}` = `{_yaml(self.default)}`{unit}: {self.meaning}"
        return textwrap.fill(
            text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def options_of(section: Any, place: str) -> Iterator[Option]:
    """The options of a dataclass with its defaults; those of dataclasses within it follow theirs."""
    described, values = _described(type(section)), to_dict(section)
    for one in dataclasses.fields(section):
        inner, name = getattr(section, one.name), f"{place}.{one.name}"
        if dataclasses.is_dataclass(inner) and isinstance(values[one.name], dict):
            yield from options_of(inner, name)
        elif one.name not in DERIVED:
            yield Option(name, values[one.name], *described[one.name])


def _described(kind: type) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each attribute, from the docstring."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    found = {}
    for entry in re.split(r"\n(?=    \S)", listed.rstrip()):
        if match := _ENTRY.match(" ".join(entry.split())):
            for name in match["names"].split(", "):
                found[name] = (match["unit"] or "", re.sub(r"\bNone\b", "null", match["meaning"]))
    return found


def section_text(name: str) -> str:
    """A section of the page."""
    if name == "network":
        parts = ["## network\n\n" + _NETWORK]
        for kind, config in NETWORKS.items():
            lines = [str(option) for option in options_of(config, name)]
            parts.append("\n".join([f"### network, kind: {kind}\n", *lines, ""]))
        return "\n".join(parts)
    section = getattr(Experiment(), name)
    about = (inspect.getdoc(type(section)) or "").partition("\nAttributes:\n")[0].strip()
    lines = [str(option) for option in options_of(section, name)]
    return "\n".join([f"## {name}\n", about, "", *lines, ""])


def differences(experiment: Experiment) -> Iterator[str]:
    """A line for each option that differs from its default."""
    kind = experiment.network.get("kind", "tdnnf")
    before = {**Experiment().to_dict(), "network": _network(kind, {"kind": "tdnnf"})}
    after = {**experiment.to_dict(), "network": _network(kind, experiment.network)}
    known = dict(flat(before))
    for name, value in flat(after):
        if name not in known:
            yield f"{name}: {_yaml(value)}"
        elif value != known[name]:
            yield f"{name}: {_yaml(value)} (default {_yaml(known[name])})"


def defaults_text() -> str:
    """A YAML file of all defaults."""
    every = {**Experiment().to_dict(), "network": _network("tdnnf", {})}
    return "".join(dump({name: options}) for name, options in every.items())


def page_text(sections: Sequence[str] = ()) -> str:
    """The text of docs/configuration.md, or these sections of it."""
    head = [] if sections else [_HEAD]
    return "\n".join([*head, *map(section_text, sections or SECTIONS)])


def plain_options(experiment: Experiment) -> dict[str, Any]:
    """All options as a plain table, those of the network included."""
    kind = experiment.network.get("kind", "tdnnf")
    return {**experiment.to_dict(), "network": _network(kind, experiment.network)}


def _network(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    known = to_dict(NETWORKS[kind]) if kind in NETWORKS else {}
    plain = {name: value for name, value in known.items() if name not in DERIVED}
    return {"kind": kind, "init_from": None, **plain, **options}


def dump(value: Any, **how: Any) -> str:
    yaml = require("yaml", extra="recipes")
    return str(yaml.safe_dump(value, sort_keys=False, width=_WIDTH, **how))


def _yaml(value: Any) -> str:
    return dump(value, default_flow_style=True).removesuffix("...\n").strip()
