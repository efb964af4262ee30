"""Train a small transducer on a prepared recipe, and keep its logits before and after: lattices to be looked at.

    python -m tools.small_transducer exp/digits exp/small-transducer --epochs 8
    fsachain plot occupancy exp/small-transducer/random.npz exp/small-transducer/trained.npz lattices.png

Phones of the first pronunciation of each word are its labels. The network is no recipe: two strided convolutions and a
bidirectional LSTM, the last label's embedding, and a sum of both. It learns within minutes on a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fsachain.cli.config import Experiment
from fsachain.cli.lang import load_lang
from fsachain.data.dataset import Example, load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.graph.lexicon import Lexicon
from fsachain.loss.rnnt import rnnt_loss

BLANK = 0
SHOWN = 3  # utterances whose logits are kept
SUBSAMPLING = 4


class SmallTransducer(nn.Module):
    """Features [N, T, F] and labels [N, U] to logits [N, T // 4, U + 1, V]."""

    def __init__(self, num_features: int, num_classes: int, width: int = 128) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(num_features, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.ReLU(),
        )
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.predictor = nn.Embedding(num_classes, width)
        self.output = nn.Linear(width, num_classes)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        frames = self.encoder(self.conv(features.transpose(1, 2)).transpose(1, 2))[0]
        history = self.predictor(nn.functional.pad(labels, (1, 0), value=BLANK))
        return self.output(torch.tanh(frames[:, :, None] + history[:, None]))


def batches(
    examples: Sequence[Example], labels: Sequence[Sequence[int]], size: int, order: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Padded features, labels, output frames, numbers of labels; utterances of like length together."""
    by_length = sorted(order, key=lambda n: examples[n].num_frames)
    groups = [by_length[first : first + size] for first in range(0, len(by_length), size)]
    for place in torch.randperm(len(groups)).tolist():
        chosen = groups[place]
        lengths = torch.tensor([len(labels[n]) for n in chosen])
        features = nn.utils.rnn.pad_sequence(
            [torch.from_numpy(examples[n].features) for n in chosen], batch_first=True
        )
        targets = nn.utils.rnn.pad_sequence([torch.tensor(labels[n]) for n in chosen], batch_first=True)
        frames = torch.tensor([-(-examples[n].num_frames // SUBSAMPLING) for n in chosen])
        yield features, targets, frames, lengths


def phones_of(example: Example, lexicon: Lexicon) -> list[int]:
    return [phone for word in example.words for phone in lexicon.pronunciations_of(word)[0].phones]


def standardised(data: DataDir, experiment: Experiment, cache: Path) -> list[Example]:
    """Examples whose features have mean 0 and deviation 1 in each utterance."""
    made = []
    for one in load_examples(data, experiment.features, cache_dir=cache, num_workers=2):
        values = one.features - one.features.mean(axis=0)
        made.append(Example(one.id, one.speaker, one.words, values / (values.std(axis=0) + 1e-5)))
    return made


def save_lattices(path: Path, model: SmallTransducer, shown: Sequence[Example], lexicon: Lexicon) -> None:
    """The inputs of `rnnt_loss` for the utterances shown, as `fsachain plot occupancy` reads them."""
    labels = [phones_of(example, lexicon) for example in shown]
    features = nn.utils.rnn.pad_sequence(
        [torch.from_numpy(example.features) for example in shown], batch_first=True
    )
    targets = nn.utils.rnn.pad_sequence([torch.tensor(one) for one in labels], batch_first=True)
    with torch.no_grad():
        logits = model.eval()(features, targets)
    np.savez_compressed(
        path,
        logits=logits.numpy(),
        targets=targets.numpy(),
        logit_lengths=np.array([-(-example.num_frames // SUBSAMPLING) for example in shown]),
        target_lengths=np.array([len(one) for one in labels]),
        blank=BLANK,
        symbols=np.array(["<blank>", *lexicon.phones]),
        names=np.array([f"{example.id}: {' '.join(example.words)}" for example in shown]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exp", type=Path, help="folder of a recipe's run: data, lang, cache, model")
    parser.add_argument("out", type=Path, help="folder for random.npz and trained.npz")
    parser.add_argument("--config", type=Path, default=Path("recipes/digits/config.yaml"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    experiment, lexicon = Experiment.read(options.config), load_lang(options.exp / "lang").lexicon
    train, test = (
        standardised(DataDir.read(options.exp / "data" / part), experiment, options.exp / "cache")
        for part in ("train", "test")
    )
    labels = [phones_of(example, lexicon) for example in train]
    model = SmallTransducer(train[0].features.shape[1], len(lexicon.phones) + 1)
    options.out.mkdir(parents=True, exist_ok=True)
    save_lattices(options.out / "random.npz", model, test[:SHOWN], lexicon)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        total = count = 0.0
        model.train()
        for features, targets, frames, lengths in batches(train, labels, 16, range(len(train))):
            loss = rnnt_loss(model(features, targets), targets.int(), frames, lengths, BLANK)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total, count = total + float(loss.detach()), count + 1
        print(f"epoch {epoch + 1}: loss {total / count:.3f} per utterance", flush=True)
        save_lattices(options.out / "trained.npz", model, test[:SHOWN], lexicon)


if __name__ == "__main__":
    main()
