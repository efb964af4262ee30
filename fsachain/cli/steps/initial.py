"""The weights that a training begins with: `network.init_from`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from fsachain.cli.config import Experiment
from fsachain.cli.network_spec import NetworkSpec
from fsachain.errors import DataError, require
from fsachain.nn.network import Network, num_parameters
from fsachain.nn.weights import TakenWeights, take_weights
from fsachain.train.checkpoint import Tensors, check_tensor_names, load_tensors

_PARTS = ("network.", "model.")  # under which an acoustic model and a checkpoint keep the network


def read_weights(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The network's weights in a safetensors file: an acoustic model, a checkpoint, or any other.

    Nothing is imported or run, whatever network the file is of.

    Returns:
        The weights by name, on the host, and the file's header, which is empty for files that were not written here.

    Raises:
        DataError: the file is absent or damaged.
    """
    foreign = _foreign_tensors(path)
    if foreign is not None:
        return foreign, {}
    tensors, header = load_tensors(path)
    for part in _PARTS:
        mine = {name.removeprefix(part): one for name, one in tensors.items() if name.startswith(part)}
        if mine:
            return mine, header
    return tensors, header


def _foreign_tensors(path: Path) -> Tensors | None:
    """What a safetensors file holds that was not written here; None for those that were, which have a checksum."""
    safetensors = require("safetensors", extra="recipes")
    try:
        check_tensor_names(path)
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            if "header" in (file.metadata() or {}):
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: cannot read the weights: {error}") from error


@dataclass(frozen=True)
class Beginning:
    """A network before its first step, lines that say what it is, and which weights it took from `network.init_from`."""

    network: Network
    lines: tuple[str, ...]
    taken: TakenWeights | None


def begin_network(experiment: Experiment, spec: NetworkSpec) -> Beginning:
    """The network with random weights, or those of `network.init_from` where they fit.

    The path counts from the working directory.

    Raises:
        ConfigError: as `NetworkSpec.build`.
        DataError: the file is absent or damaged, or nothing in it fits; the message has its name.
    """
    network = spec.build()
    module = cast(nn.Module, network)
    told = [f"network: {spec.kind}, {num_parameters(network)} parameters"]
    if spec.init_from is None:
        return Beginning(network, tuple(told), None)
    path = Path(spec.init_from)
    weights, header = read_weights(path)
    try:
        taken = take_weights(module, weights)
    except DataError as error:
        raise DataError(f"{path}: {error} (network.init_from)") from error
    told.append(f"init_from {path}: {taken}")
    other = _features(header)
    if other is not None and other != experiment.to_dict()["features"]:
        told.append(f"init_from {path}: was trained on other features: {_differences(other, experiment)}")
    return Beginning(network, tuple(told), taken)


def _features(header: Mapping[str, Any]) -> dict[str, Any] | None:
    experiment = header.get("experiment")
    features = experiment.get("features") if isinstance(experiment, dict) else None
    return features if isinstance(features, dict) else None


def _differences(other: Mapping[str, Any], experiment: Experiment) -> str:
    own = experiment.to_dict()["features"]
    names = sorted(name for name in own if own[name] != other.get(name))
    return ", ".join(f"{name} {other.get(name)!r} (here {own[name]!r})" for name in names)
