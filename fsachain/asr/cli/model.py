"""A trained model as one file: weights, feature normalisation, and the configuration that made them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fsachain.asr.cli.advice import advice
from fsachain.asr.cli.config import Experiment, NetworkSpec
from fsachain.asr.cli.lang import LEXICON, TREE, Lang, load_lang
from fsachain.asr.cli.options import FOLDER, Read, note, option
from fsachain.asr.data.augment import shift_frames
from fsachain.asr.data.cmvn import Cmvn
from fsachain.asr.data.dataset import Example, collate, estimate_cmvn, load_examples
from fsachain.asr.data.features import FeatureConfig
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.align import FrameTiming
from fsachain.asr.nn.network import Network, TakenWeights, num_parameters, take_weights
from fsachain.asr.nn.word_network import MARKS, WordNetwork
from fsachain.asr.pipeline.hub import download, is_address
from fsachain.asr.train.checkpoint import Tensors, check_header_size, load_tensors, save_tensors
from fsachain.asr.train.config import to_dict
from fsachain.errors import ConfigError, DataError, FsachainError, brief, counted, require
from fsachain.files import parse_json

FINAL_MODEL = "model.safetensors"  # in the folder of a training
WORD_NETWORK = "word_network.safetensors"  # in the folder of the stage rescore
KIND, WORD_KIND = "acoustic model", "word network"  # of files
_MEAN_LETTERS = 64  # of the words of a word network, at most: each is held as some of its parts
_BATCH_SIZE = 32
_MAX_PARTS = 100_000
_PERMITTED: ContextVar[frozenset[str]] = ContextVar("permitted imports", default=frozenset())


@contextmanager
def permitted_imports(paths: Collection[str]) -> Iterator[None]:
    """Within the block, models whose network is one of these classes ("package.module:Class") are loaded."""
    before = _PERMITTED.set(_PERMITTED.get() | frozenset(paths))
    try:
        yield
    finally:
        _PERMITTED.reset(before)


def find_model(path: Path) -> Path:
    """The file of a model: the path itself, or what a training or `fsachain run` wrote to this folder."""
    if not path.is_dir():
        return path
    for place in (path / FINAL_MODEL, path / "model" / FINAL_MODEL):
        if place.is_file():
            return place
    raise DataError(
        f"{path}: no {FINAL_MODEL} in this folder or in {path / 'model'}{advice(path) or '; `fsachain train` writes it'}"
    )


@dataclass(frozen=True)
class AcousticModel:
    """A network in evaluation mode, with all that is needed to run it on recordings.

    `experiment` is the configuration of its training, `cmvn` the normalisation of the training set; statistics of scope
    "speaker" are taken from each data set. `lang` are the words, phones and pdfs it was trained with; None in files of
    earlier versions. `path` is where it was read. `other` is another network with its weight in the mean that `outputs`
    takes, see `mean_with`; it is not saved.
    """

    experiment: Experiment
    network: Network
    cmvn: Cmvn
    lang: Lang | None = None
    path: Path | None = None
    other: tuple[Network, float] | None = None

    __repr__ = brief

    @property
    def kind(self) -> str:
        return self.experiment.network_spec(self.network.num_pdfs).kind

    @property
    def timing(self) -> FrameTiming:
        shift = self.experiment.features.frame_shift_ms / 1000.0
        return FrameTiming(self.network.subsampling, self.network.time_offset, shift)

    def save(self, path: Path) -> None:
        """All or nothing, as a safetensors file."""
        parts: dict[str, Any] = {
            "network.": cast(nn.Module, self.network).state_dict(),
            "cmvn.": {name: torch.from_numpy(np.array(array)) for name, array in self.cmvn.state().items()},
        }
        if self.lang is not None:  # the files that give words and pdfs their meaning, as bytes
            with TemporaryDirectory() as folder:
                replace(self.lang, experiment=None).save(Path(folder))
                files = {name: bytearray((Path(folder) / name).read_bytes()) for name in (LEXICON, TREE)}
            parts["lang."] = {name: torch.frombuffer(file, dtype=torch.uint8) for name, file in files.items()}
        tensors = {part + name: tensor for part, found in parts.items() for name, tensor in found.items()}
        header = {"num_pdfs": self.network.num_pdfs, "experiment": self.experiment.to_dict()}
        save_tensors(path, tensors, {"kind": KIND, **header})

    @classmethod
    def load(cls, path: str | Path, imports: Collection[str] = ()) -> AcousticModel:
        """Read a model: its file, the folder of its training, or one on the Hugging Face Hub. A file imports nothing.

        `path` may be hf://OWNER/NAME, with @REVISION for a branch, tag or commit: `huggingface_hub` then downloads
        model.safetensors once.

        `imports` are the classes ("package.module:Class") that may be imported and called with the file's options, if its
        network is one of them; see also `permitted_imports`.
        """
        path = download(path, FINAL_MODEL) if is_address(path) else find_model(Path(path))
        try:
            tensors, header = load_tensors(path)
        except DataError as error:
            raise DataError(f"{error}{advice(path)}") from error
        if header.get("kind") != KIND:
            raise DataError(
                f"{path}: holds no acoustic model; `fsachain train` writes one as model.safetensors"
            )
        weights, statistics = (_under(part, tensors) for part in ("network.", "cmvn."))
        try:
            experiment = Experiment.from_dict(header["experiment"])
            spec = experiment.network_spec(header["num_pdfs"])
            known = spec.import_path
            if known is not None and known not in _PERMITTED.get() and known not in imports:
                raise DataError(
                    f"its network is {known}, which is not imported on the word of a file; if you know this class and "
                    f"trust the file: fsachain --allow-import {known} COMMAND ..."
                )
            _check_shapes(spec, weights)
            network = cast(nn.Module, spec.build())
            network.load_state_dict(weights)
            cmvn = Cmvn.from_state(experiment.cmvn, statistics, experiment.features.loudness)
            files = _under("lang.", tensors)
            lang = _lang_of_files(files, path) if files else None
            if lang is not None and lang.tree.num_pdfs != header["num_pdfs"]:
                raise DataError(
                    f"{counted(int(header['num_pdfs']), 'pdf')}, its tree has {lang.tree.num_pdfs}"
                )
        except (FsachainError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"{path}: the acoustic model is not complete: {error}") from error
        return cls(experiment, cast(Network, network.eval()), cmvn, lang, path)

    def examples(self, data: DataDir) -> list[Example]:
        """Normalised features; the first that cannot be read is an error."""
        return normalise_set(load_examples(data, self.experiment.features), self.cmvn)

    def mean_with(self, other: AcousticModel, share: float) -> AcousticModel:
        """This model with outputs that are `share` of the other network's and the rest its own, before a softmax."""
        for what, own, its in (
            ("features", self.experiment.features, other.experiment.features),
            ("cmvn", self.experiment.cmvn, other.experiment.cmvn),
            ("pdfs", self.network.num_pdfs, other.network.num_pdfs),
            ("subsampling", self.network.subsampling, other.network.subsampling),
        ):
            if own != its:
                raise ConfigError(
                    f"decoding.first_pass_share: expected models of the same {what}, {self.path} has {own}, "
                    f"{other.path} has {its}"
                )
        return replace(self, other=(other.network, share))

    def outputs(
        self,
        examples: Sequence[Example],
        progress: Callable[[int, int], None] | None = None,
        frame_shift: int = 0,
    ) -> dict[str, NDArray[np.float32]]:
        """Network outputs [T', P] by utterance id; an utterance without frames has none.

        They are the mean over features delayed by -`frame_shift` to `frame_shift` frames, and with `other`. `progress` is
        called with (utterances done, utterances in all).
        """
        found: dict[str, NDArray[np.float32]] = {}
        with torch.inference_mode():
            # Utterances of similar length together, so that little padding is computed.
            ordered = sorted((e for e in examples if e.num_frames), key=lambda example: example.num_frames)
            for start in range(0, len(ordered), _BATCH_SIZE):
                batch = ordered[start : start + _BATCH_SIZE]
                passes, lengths = [], torch.empty(0)
                for shift in range(-frame_shift, frame_shift + 1):
                    moved = collate(
                        [replace(one, features=shift_frames(one.features, shift)) for one in batch]
                    )
                    nnet_output, lengths, _ = self.network(moved.features, moved.lengths)
                    if self.other is not None:
                        network, share = self.other
                        its = network(moved.features, moved.lengths).nnet_output
                        nnet_output = torch.lerp(nnet_output, its, share)
                    passes.append(nnet_output)
                scores = torch.stack(passes).mean(dim=0).numpy()
                for example, own, length in zip(batch, scores, lengths.tolist(), strict=True):
                    found[example.id] = own[:length].copy()
                if progress is not None:
                    progress(len(found), len(examples))
        return {example.id: found[example.id] for example in examples if example.id in found}


MODEL = Read(AcousticModel.load, folder=None)
TRAINED = {"type": MODEL, "is_eager": True}  # read before options that need it


def _lang_of_files(files: Tensors, path: Path) -> Lang:
    with TemporaryDirectory() as folder:
        for name in (LEXICON, TREE):
            (Path(folder) / name).write_bytes(files[name].numpy().tobytes())
        return replace(load_lang(Path(folder)), folder=path)


def check_lang(model: AcousticModel, lang: Lang) -> None:
    """The language folder must give the model's pdfs and words the meaning that they had in its training.

    It may have other words, or more pronunciations of a word, of which a line tells.
    """
    num_pdfs, difference = model.network.num_pdfs, None
    if model.lang is not None:
        difference = model.lang.difference(lang)
    elif num_pdfs != lang.tree.num_pdfs:
        difference = f"the model has {counted(num_pdfs, 'pdf')}, {lang.name} {lang.tree.num_pdfs}"
    else:
        note(
            f"warning: {model.path or 'the model'} holds no words, phones and tree, an earlier version wrote it: whether "
            f"those of {lang.name} are its own is not checked"
        )
    if difference is not None:
        raise DataError(f"{lang.name} is not what {model.path or 'the model'} was trained with: {difference}")
    if model.lang is not None and (told := model.lang.other_words(lang)):
        note(f"{lang.name} has the phones and pdfs of {model.path or 'the model'}, and {told}")


def lang_of(model: AcousticModel) -> Lang:
    """What the model holds, else `lang` in its folder or beside it."""
    if model.lang is not None:
        return model.lang
    path = model.path or Path()
    beside = (path.parent / "lang", path.parent.parent / "lang")
    return load_lang(next((found for found in beside if found.is_dir()), beside[1]))


# The default of the parameter `lang` of a command that has a model; checked.
model_lang_option = option(
    FOLDER,
    "Folder made by `fsachain lang`, with other words than the model holds.  [default: the model's own]",
    "--lang",
    is_eager=True,
    callback=lambda context, _, folder: load_lang(folder) if folder else lang_of(context.params["model"]),
    prepare=lambda arguments, _: check_lang(arguments["model"], arguments["lang"]),
)


def _under(part: str, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name.removeprefix(part): one for name, one in tensors.items() if name.startswith(part)}


def _check_shapes(spec: NetworkSpec, weights: Mapping[str, torch.Tensor]) -> None:
    """Compare the sizes that a header claims with the weights, before memory is taken for them."""
    if len(weights) > _MAX_PARTS:
        raise DataError(f"more than {_MAX_PARTS} weights")
    if spec.import_path is not None:
        return  # its class was made by somebody else, who knows how it can be built
    with torch.device("meta"):
        expected = cast(nn.Module, spec.build()).state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        shapes = [list(part[name].shape) if name in part else None for part in (expected, weights)]
        if shapes[0] != shapes[1]:
            raise DataError(f"the weight {name!r} has shape {shapes[1]}, the options say {shapes[0]}")


def normalise_set(examples: list[Example], cmvn: Cmvn) -> list[Example]:
    """For scope "speaker" with statistics of this set. Features that were just loaded are normalised where they lie."""
    own = estimate_cmvn(examples, cmvn.config, cmvn.loudness) if cmvn.config.scope == "speaker" else cmvn
    for example in examples:
        example.features[:] = own.apply(example.features, example.speaker)
    return examples


def save_word_network(network: WordNetwork, path: Path) -> None:
    """All or nothing, as a safetensors file, with its words as JSON."""
    words = json.dumps([network.counts, network.new_words]).encode()
    tensors = {**network.state_dict(), "words": torch.frombuffer(bytearray(words), dtype=torch.uint8)}
    save_tensors(path, tensors, {"kind": WORD_KIND})


def load_word_network(path: Path) -> WordNetwork:
    """What `save_word_network` wrote, in evaluation mode."""
    tensors, header = load_tensors(path)
    if header.get("kind") != WORD_KIND:
        raise DataError(
            f"{path}: holds no word network; the stage rescore of `fsachain run` writes one as {WORD_NETWORK}"
        )
    try:
        counts, new = parse_json(tensors.pop("words").numpy().tobytes(), str(path))
        words = [*counts, *new]
        count, vectors, letters = len(words) + len(MARKS), len(tensors["read"]), sum(map(len, words))
        if vectors != count or letters > _MEAN_LETTERS * count:
            raise DataError(
                f"{counted(vectors, 'vector')} for {counted(count, 'word')} of {counted(letters, 'letter')} in all"
            )
        network = WordNetwork(Counter(counts), new)
        network.load_state_dict(tensors)
    except (AttributeError, DataError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: the word network is not complete: {error}") from error
    return network.eval()


def read_weights(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The weights by name, on the host, in any safetensors file, and its header, empty in files not written here.

    Nothing is imported or run, whatever network the file is of.
    """
    safetensors = require("safetensors", extra="recipes")
    try:
        check_header_size(path)
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            if "header" not in (file.metadata() or {}):  # not written here, so without a checksum
                return {name: file.get_tensor(name) for name in file.keys()}, {}  # noqa: SIM118 (no mapping)
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: cannot read the weights: {error}") from error
    tensors, header = load_tensors(path)
    for part in ("network.", "model."):  # of an acoustic model, of a checkpoint
        mine = _under(part, tensors)
        if mine:
            return mine, header
    return tensors, header


def begin_network(
    experiment: Experiment, spec: NetworkSpec, lang: Lang | None = None
) -> tuple[Network, list[str], TakenWeights | None]:
    """The network before its first step, lines that say what it is, and which weights it took from `network.init_from`.

    The path counts from the working directory. Where that model was trained with other features, or with words and pdfs of
    another meaning than in `lang`, a line says so.
    """
    network = spec.build()
    first = f"network: {spec.kind}, {counted(num_parameters(network), 'parameter')}"
    if spec.init_from is None:
        return network, [first], None
    path = Path(spec.init_from)
    weights, header = read_weights(path)
    try:
        taken = take_weights(cast(nn.Module, network), weights)
    except DataError as error:
        raise DataError(f"{path}: {error} (network.init_from)") from error
    told = [first, f"init_from {path}: {taken}"]
    before, own = header.get("experiment"), experiment.to_dict()["features"]
    other = before.get("features") if isinstance(before, dict) else None
    if isinstance(other, dict):
        other = to_dict(FeatureConfig()) | other  # that of an earlier version has fewer options
    if isinstance(other, dict) and other != own:
        names = sorted(name for name in own if own[name] != other.get(name))
        changes = ", ".join(f"{name} {other.get(name)!r} (here {own[name]!r})" for name in names)
        told.append(f"init_from {path}: was trained on other features: {changes}")
    files = _under("lang.", load_tensors(path)[0]) if header and lang is not None else {}
    difference = _lang_of_files(files, path).difference(lang) if files and lang is not None else None
    if difference is not None:
        told.append(f"init_from {path}: was trained with other words or pdfs: {difference}")
    return network, told, taken
