"""What `test_trainers` runs in the environment of the trainers: a few steps on batches that hold graphs of every kind.

    python trainer_programs.py lightning|accelerate|transformers|fsdp FOLDER

Each prints the losses of its steps. They are those of a plain loop, which every program runs first.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from fsachain import DenominatorGraph, Fsa, LFMMILoss, Numerator, TableBatch, TransitionTable, compile_table

WIDTH, FRAMES, STEPS, RATE = 4, 6, 3, 0.1
FSA = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-0.5, -0.25, -1.0], [-np.inf, 0.0])
NUMERATOR = Numerator(FSA, ("six",), *np.zeros((2, 3), np.int32), np.ones(3, bool))
DENOMINATOR = DenominatorGraph(Fsa(1, [0] * 4, [0] * 4, range(4), [-1.4] * 4, [0.0]), WIDTH)
TABLE = compile_table(FSA, WIDTH)
KINDS = {
    "fsas": Fsa,
    "tables": TransitionTable,
    "numerators": Numerator,
    "batch": TableBatch,
    "denominator": DenominatorGraph,
}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, n):
        return torch.randn(FRAMES, 3, generator=torch.Generator().manual_seed(n))


def collate(features):
    """A batch with graphs of every kind, alone, in lists and deeper."""
    size = len(features)
    return {
        "features": torch.stack(list(features)),
        "lengths": [FRAMES] * size,
        "fsas": [FSA] * size,
        "tables": (TABLE,) * size,
        "numerators": {"all": [NUMERATOR] * size},
        "batch": TableBatch.pack([TABLE] * size),
        "denominator": DENOMINATOR,
    }


def loader():
    return DataLoader(Data(), batch_size=2, collate_fn=collate)


class Model(nn.Module):
    """A linear network whose loss is inside, as in models of transformers; the four kinds of numerators take turns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, WIDTH)
        self.criterion = LFMMILoss(DENOMINATOR)

    def forward(self, features, lengths, fsas, tables, numerators, batch, denominator):
        given = {
            "fsas": list(fsas),
            "tables": list(tables),
            "numerators": list(numerators["all"]),
            "batch": [batch],
            "denominator": [denominator],
        }
        for name, graphs in given.items():
            assert {type(graph) for graph in graphs} == {KINDS[name]}, (name, graphs)
        assert given["fsas"][0].to_text() == FSA.to_text()
        assert list(lengths) == [FRAMES] * len(features)
        scores = self.linear(features)
        each = [self.criterion(scores, lengths, given[name]) for name in ("fsas", "tables", "numerators")]
        each.append(self.criterion(scores, lengths, batch))
        assert all(torch.equal(loss, each[0]) for loss in each)
        return {"loss": torch.stack(each).mean().float()}


def plain_losses(dtype=torch.float32):
    model = Model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for batch in loader():
        batch["features"] = batch["features"].to(dtype)
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_lightning(folder):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = Model(), []

        def training_step(self, batch, index):
            loss = self.model(**batch)["loss"]
            self.losses.append(loss.item())
            return {"loss": loss, "batch": batch}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    found = {}
    for precision, dtype in (("32-true", torch.float32), ("bf16-true", torch.bfloat16)):
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, precision=precision, default_root_dir=folder, **quiet
        )
        module = Module()
        trainer.fit(module, loader())
        found[dtype] = module.losses
    return found


def run_accelerate(folder):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    losses = []
    for batch in batches:
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return {torch.float32: losses}


def run_transformers(folder):
    import transformers

    losses = []

    class Recorded(Model):
        def forward(self, **given):
            found = super().forward(**given)
            losses.append(found["loss"].item())
            return found

    options = transformers.TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        max_grad_norm=0.0,
    )
    model = Recorded()

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    trainer = InOrder(
        model, options, collate, train_dataset=Data(), eval_dataset=Data(), optimizers=(optimizer, schedule)
    )
    trainer.train()
    found = losses[:]
    trainer.evaluate()
    assert len(losses) > len(found)
    return {torch.float32: found}


def run_fsdp(folder):
    """FSDP 2 in one process, which casts what a module gets."""
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
    model = Model()
    mesh = dist.init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    losses = [model(**batch)["loss"].item() for batch in loader()]
    dist.destroy_process_group()
    assert all(np.isfinite(losses))
    return {}


def main():
    program, folder = sys.argv[1:]
    for dtype, losses in globals()[f"run_{program}"](folder).items():
        expected = plain_losses(dtype)
        assert len(losses) == STEPS
        np.testing.assert_allclose(losses, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2)
    print("done")


if __name__ == "__main__":
    main()
