"""Two processes over gloo, by Lightning and by accelerate: gradients are those of one process on the whole batch.

    python process_programs.py lightning|accelerate FOLDER

The batch is shared unevenly by frames, so that a plain average of the two losses would give another gradient.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from tolerances import SHARED_GRADIENT
from torch import nn

from fsachain import DenominatorGraph, Fsa, LFMMILoss

WIDTH, PROCESSES = 4, 2
LENGTHS = [9, 8, 4, 3]
FSA = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-0.5, -0.25, -1.0], [-np.inf, 0.0])
DENOMINATOR = DenominatorGraph(Fsa(1, [0] * 4, [0] * 4, range(4), [-1.4] * 4, [0.0]), WIDTH)


def batch_of(rows):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(LENGTHS), max(LENGTHS), 3, generator=generator)
    return features[rows], [LENGTHS[row] for row in rows], [FSA] * len(rows)


def shared_batch(rank):
    """The long half for the first process, the short half for the second."""
    return batch_of([0, 1] if rank == 0 else [2, 3])


def make_network():
    torch.manual_seed(0)
    return nn.Linear(3, WIDTH)


def expected_gradients():
    network = make_network()
    features, lengths, graphs = batch_of([0, 1, 2, 3])
    LFMMILoss(DENOMINATOR)(network(features), lengths, graphs).backward()
    return [parameter.grad for parameter in network.parameters()]


def compare(network):
    for parameter, gradient in zip(network.parameters(), expected_gradients(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=SHARED_GRADIENT, atol=SHARED_GRADIENT)


def run_lightning(folder):
    import lightning
    import torch.distributed as dist

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = make_network()
            self.loss_of = LFMMILoss(DENOMINATOR)

        def training_step(self, batch, index):
            features, lengths, graphs = batch
            loss = self.loss_of(self.network(features), lengths, graphs)
            frames = self.loss_of.last_record.weight_ok
            everywhere = self.all_reduce(frames)
            return loss * frames / everywhere * self.trainer.world_size

        def all_reduce(self, frames):
            total = frames.clone()
            dist.all_reduce(total)
            return total

        def on_before_optimizer_step(self, optimizer):
            assert dist.get_world_size() == PROCESSES
            compare(self.network)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rank = int(os.environ["RANK"])
    loader = torch.utils.data.DataLoader([shared_batch(rank)], batch_size=None)
    trainer = lightning.Trainer(
        max_steps=1,
        accelerator="cpu",
        devices=PROCESSES,
        strategy=lightning.pytorch.strategies.DDPStrategy(process_group_backend="gloo"),
        default_root_dir=folder,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), loader)
    assert trainer.global_step == 1


def run_accelerate(folder):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == PROCESSES
    network = accelerator.prepare(make_network())
    loss_of = LFMMILoss(DENOMINATOR)
    features, lengths, graphs = shared_batch(accelerator.process_index)
    loss = loss_of(network(features), lengths, graphs)
    frames = loss_of.last_record.weight_ok
    everywhere = accelerator.reduce(frames.clone(), "sum")
    accelerator.backward(loss * frames / everywhere * accelerator.num_processes)
    compare(accelerator.unwrap_model(network))


def start(program, folder):
    """Start both processes, as torchrun would, which needs a port; they meet on one that is free."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(PROCESSES):
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": PROCESSES,
            "LOCAL_WORLD_SIZE": PROCESSES,
            "NODE_RANK": 0,
        }
        place |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "GROUP_RANK": 0,
            "TORCHELASTIC_RUN_ID": "test",
        }
        environment = os.environ | {name: str(value) for name, value in place.items()}
        command = [sys.executable, __file__, program, folder, "worker"]
        processes.append(subprocess.Popen(command, env=environment))
    statuses = [process.wait() for process in processes]
    assert statuses == [0] * PROCESSES, statuses


if __name__ == "__main__":
    program, folder, *kind = sys.argv[1:]
    if kind:
        globals()[f"run_{program}"](folder)
        Path(folder, f"rank-{os.environ['RANK']}").touch()
    else:
        start(program, folder)
        assert len(list(Path(folder).glob("rank-*"))) == PROCESSES
        print("done")
