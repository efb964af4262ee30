"""Which network an experiment trains: section `network` of its configuration, from a name or an import path to a module."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from fsachain.errors import ConfigError
from fsachain.nn.conformer import Conformer
from fsachain.nn.network import Network
from fsachain.nn.tdnnf import Tdnnf
from fsachain.train.config import from_dict

BUILT_IN: dict[str, type[nn.Module]] = {"tdnnf": Tdnnf, "conformer": Conformer}
_DERIVED = ("num_features", "num_pdfs")
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

    Attributes:
        kind: "tdnnf", "conformer", or "package.module:Class", a class of yours that is what `fsachain.nn.Network` says.
        options: of its configuration: of `TdnnfConfig`, `ConformerConfig`, or of your class.
        num_features: columns of the features.
        num_pdfs: pdfs of the tree.
        init_from: file whose weights a training begins with, or None.
    """

    kind: str
    options: Mapping[str, Any]
    num_features: int
    num_pdfs: int
    init_from: str | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any], num_features: int, num_pdfs: int) -> NetworkSpec:
        """Read section `network`; nothing is imported.

        Raises:
            ConfigError: `kind` or `init_from` is not what it should be, or an option that features or tree decide.
        """
        options = dict(section)
        kind, init_from = options.pop("kind", "tdnnf"), options.pop("init_from", None)
        if not isinstance(kind, str) or not (kind in BUILT_IN or _IMPORT_PATH.fullmatch(kind)):
            raise ConfigError(
                f"network.kind: {kind!r:.80} is no network; expected {', '.join(BUILT_IN)} or package.module:Class"
            )
        if not isinstance(init_from, str | None):
            raise ConfigError(f"network.init_from: expected the path of a file, got {init_from!r}")
        given = sorted(set(_DERIVED) & options.keys())
        if given:
            raise ConfigError(f"network.{given[0]}: is not an option, it follows from features and tree")
        return cls(kind, options, num_features, num_pdfs, init_from)

    @property
    def import_path(self) -> str | None:
        """What is imported to build the network; None for those of this package."""
        return None if self.kind in BUILT_IN else self.kind

    @property
    def config(self) -> Any:
        """The configuration that the class takes; None where it takes its options as keyword arguments.

        Raises:
            ConfigError: as `build`.
        """
        constructor = self._class
        kind = _config_class(constructor)
        if kind is None:
            return None
        fields = {field.name for field in dataclasses.fields(kind)}
        for name in _DERIVED:
            if name not in fields:
                raise ConfigError(
                    f"network.kind: {self.kind}: {kind.__name__} has no field {name!r}; expected one"
                )
        return from_dict(kind, {**self.options, **self._derived}, "network")

    def build(self) -> Network:
        """The network with random weights; `Class(config)`, or `Class(num_features=..., num_pdfs=..., **options)`.

        Raises:
            ConfigError: the class cannot be imported, is no `nn.Module`, lacks something, or does not take an option.
        """
        config = self.config
        if config is None:
            arguments = {**self.options, **self._derived}
            _check_arguments(self.kind, self._class, arguments)
            network = self._class(**arguments)
        else:
            network = self._class(config)
        _check_members(self.kind, network)
        return cast(Network, network)

    @property
    def subsampling(self) -> int:
        """Input frames per output frame."""
        return int(self._sketch.subsampling)

    @property
    def time_offset(self) -> int:
        """See `Network`."""
        return int(self._sketch.time_offset)

    @property
    def context(self) -> tuple[int, int]:
        """Input frames that an output sees before and after its own.

        Raises:
            ConfigError: it sees the whole utterance.
        """
        found = self._sketch.context
        if found is None:
            raise ConfigError(
                f"network.kind: each output of {self.kind} sees the whole utterance; expected a network of bounded context, "
                "such as a conformer with network.chunk"
            )
        return int(found[0]), int(found[1])

    @cached_property
    def _sketch(self) -> Network:
        """A network that is asked for its sizes: without memory for weights where that is known to work."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu" if self.import_path else "meta"):
            return self.build()

    @property
    def _derived(self) -> dict[str, int]:
        return {"num_features": self.num_features, "num_pdfs": self.num_pdfs}

    @cached_property
    def _class(self) -> type[nn.Module]:
        return BUILT_IN[self.kind] if self.import_path is None else _import_class(self.kind)


def _import_class(path: str) -> type[nn.Module]:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"network.kind: {path}: cannot import {module} ({error}); expected a module that is installed or on PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"network.kind: {path}: {module} has no {name!r}") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"network.kind: {path}: is {found!r}; expected a class of torch.nn.Module")
    return found


def _config_class(constructor: type) -> Any:
    """The dataclass with which the constructor's only argument is annotated, if that is so."""
    names = list(inspect.signature(constructor).parameters)
    try:
        hints = typing.get_type_hints(constructor.__init__)  # type: ignore[misc]
    except NameError:  # an annotation for type checkers alone
        return None
    hint = hints.get(names[0]) if len(names) == 1 else None
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _check_arguments(path: str, constructor: type, arguments: Mapping[str, Any]) -> None:
    parameters = inspect.signature(constructor).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        for name in arguments.keys() - parameters.keys():
            if name in _DERIVED:
                raise ConfigError(f"network.kind: {path}: takes no argument {name!r}; expected one")
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(parameters)}"
            raise ConfigError(f"network.{name}: unknown option of {path}; {hint}")
    for name, one in parameters.items():
        named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if named and one.default is one.empty and name not in arguments:
            raise ConfigError(f"network.{name}: {path} needs this option; expected a value")


def _check_members(path: str, network: nn.Module) -> None:
    """Name what the rest of the package would miss sooner or later."""
    for name, expected in _EXPECTED.items():
        lacking = (
            type(network).forward is nn.Module.forward if name == "forward" else not hasattr(network, name)
        )
        if lacking:
            raise ConfigError(f"network.kind: {path}: has no {name!r}; expected {expected}")
