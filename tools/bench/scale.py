"""Print what a training step costs in one process, or in each of those that torchrun starts, and what their messages cost.

    python -m tools.bench.scale FOLDER [--config FILE] [--steps 12] [--rounds 5]
    torchrun --standalone --nproc-per-node 2 -m tools.bench.scale FOLDER

FOLDER is that of a recipe's run, with data/, lang/, graphs/ and cache/. Each process has one thread. The same steps are
taken in every round; the least times of each step count, by the clock and of the processor in the thread that trains.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fsachain.backends.cpu.threads import set_num_threads
from fsachain.cli.config import Experiment, PerturbationConfig
from fsachain.cli.graphs import load_denominator
from fsachain.cli.lang import load_lang
from fsachain.cli.model import begin_network
from fsachain.cli.resources import Resources
from fsachain.cli.training_data import Loader, read_training_set
from fsachain.data.kaldi_dir import DataDir
from fsachain.loss.lfmmi import LFMMILoss
from fsachain.train.config import load_yaml
from fsachain.train.optimizer import make_optimizer
from fsachain.train.source import SupervisedBatch
from fsachain.train.stats import EpochSums
from fsachain.train.step import Stepper
from fsachain.train.world import World

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = (1, 257, 280_000, 5_000_000)  # in a message
REPEATS = 20
Parts = tuple[SupervisedBatch, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", type=Path, default=ROOT / "recipes" / "digits" / "config.yaml")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    set_num_threads(1)
    with World.from_environment() as world:
        stepper, batches = prepare(world, options.folder, options.config, options.steps)
        found = {"processes": world.size, "step": step_times(world, stepper, batches, options.rounds)}
        if world.size > 1:
            found["message"] = {count: message_time(world, count) for count in NUMBERS}
        if world.is_first:
            print(json.dumps(found))


def prepare(world: World, folder: Path, config: Path, steps: int) -> tuple[Stepper, list[Parts]]:
    """The stepper of a training, and this process's part of its first steps; all recordings at their own speed."""
    experiment = Experiment.from_dict(load_yaml(config), str(config))
    experiment = replace(experiment, perturbation=PerturbationConfig())
    lang = load_lang(folder / "lang")
    spec = experiment.network_spec(lang.tree.num_pdfs)
    torch.manual_seed(0)
    network = begin_network(experiment, spec).network
    assert isinstance(network, nn.Module)
    train = read_training_set(DataDir.read(folder / "data" / "train"), folder / "graphs" / "train.npz")
    resources = Resources(cache=folder / "cache")
    sources = Loader(experiment, lang, network.output_lengths, resources).load(train, None)
    loss = LFMMILoss(load_denominator(lang, folder / "graphs"), **experiment.loss.at(0.0))
    optimizer = make_optimizer(network, experiment.train.optimizer)
    stepper = Stepper(network.train(), loss, optimizer, experiment.train, world)
    return stepper, list(islice(sources.train.batches(0, 0, stepper.share), steps))


def step_times(world: World, stepper: Stepper, batches: list[Parts], rounds: int) -> dict[str, float]:
    """Means over the steps of the least times, and the share of the wall time that was spent on other processes."""
    clock, processor, waited = np.zeros((3, rounds, len(batches)))
    stepper.step(batches[0], EpochSums())  # compiles and allocates
    for number in range(rounds):
        for place, parts in enumerate(batches):
            world.wait("the next step")
            before, wall, work = world.seconds, time.perf_counter(), time.thread_time()
            stepper.step(parts, EpochSums())
            processor[number, place] = time.thread_time() - work
            clock[number, place] = time.perf_counter() - wall
            waited[number, place] = world.seconds - before
    return {
        "clock": 1e3 * float(clock.min(axis=0).mean()),
        "processor": 1e3 * float(processor.min(axis=0).mean()),
        "world_share": float(waited.sum() / clock.sum()),
    }


def message_time(world: World, count: int) -> float:
    """The least time in which `count` float32 numbers are added up."""
    values = torch.zeros(count)
    times = []
    for _ in range(REPEATS):
        world.wait("the next message")
        started = time.perf_counter()
        world.add_up(values)
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
