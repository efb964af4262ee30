"""From recordings and transcripts to a word error rate, on one page.

    python recipes/wav_to_wer.py CORPUS [--epochs 24] [--seed 1] [--out model.pt]

CORPUS holds Kaldi data directories train, dev and test (wav.scp, text, utt2spk) and lang/lexicon.txt. The steps: read the
data, build the graphs, train a network with LF-MMI, choose the weight of the word language model on dev, score test. What
the commands of `fsachain` do beside this - checkpoints, logs, caches, bad data, many processes - is left to them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fsachain import (
    ContextTree,
    DecodingGraph,
    DenominatorGraph,
    Fsa,
    Lexicon,
    LFMMILoss,
    Topology,
    TransitionTable,
    build_denominator,
    build_numerator,
    compile_table,
    estimate_arpa,
    estimate_phone_lm,
    grammar_from_arpa,
    lm_phones,
)
from fsachain.asr.data import (
    AugmentConfig,
    CmvnConfig,
    DataDir,
    Example,
    FeatureConfig,
    Perturbation,
    augment_all,
    collate,
    estimate_cmvn,
    length_buckets,
    load_examples,
    normalise,
)
from fsachain.asr.decode.decoder import decode, lattices
from fsachain.asr.decode.tune import tune
from fsachain.asr.decode.wer import score
from fsachain.asr.nn import Tdnnf, TdnnfConfig, num_parameters

SPEEDS = (0.9, 1.0, 1.1)  # one of them is drawn for each utterance and epoch
PHONE_ORDER = 2  # right for minutes of speech; 4 from some hours on
WORD_ORDER = 3
BATCH_SIZE = 16  # utterances a step
PEAK_RATE = 4e-3  # of the one-cycle schedule


@dataclass
class Graphs:
    """What the transcripts of the training set give.

    lexicon, tree: words to phones to pdfs; denominator: all phone sequences; normalization: the same for numerators, which
    makes the objective at most 0; word_lm: a trigram in ARPA format.
    """

    lexicon: Lexicon
    tree: ContextTree
    denominator: DenominatorGraph
    normalization: Fsa
    word_lm: str


def build_graphs(train: DataDir, lexicon: Lexicon, seed: int) -> Graphs:
    """Graphs of the training transcripts."""
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    texts = [utterance.words for utterance in train]
    phone_lm = estimate_phone_lm(lm_phones(texts, lexicon, seed=seed), ngram_order=PHONE_ORDER)
    denominator = DenominatorGraph(build_denominator(phone_lm, tree), tree.num_pdfs)
    spoken = [  # words that training never heard may be said all the same
        word
        for word in lexicon.words
        if any(set(entry.phones) - {lexicon.silence_phone} for entry in lexicon.pronunciations_of(word))
    ]
    word_lm = estimate_arpa(texts, WORD_ORDER, vocabulary=spoken)
    return Graphs(lexicon, tree, denominator, denominator.normalization_fsa(), word_lm)


def numerators(data: DataDir, graphs: Graphs) -> list[TransitionTable]:
    """The numerator of each utterance, compiled."""
    made = (
        build_numerator(utterance.words, graphs.lexicon, graphs.tree, normalization=graphs.normalization)
        for utterance in data
    )
    return [compile_table(numerator.fsa, graphs.tree.num_pdfs) for numerator in made]


def train_network(
    network: Tdnnf,
    copies: list[list[Example]],
    tables: list[TransitionTable],
    graphs: Graphs,
    epochs: int,
    seed: int,
) -> None:
    """Train with LF-MMI and cross-entropy from the numerator's occupancies, which regularises.

    Args:
        network: trained in place.
        copies: the training set at each speed, normalised, in the same order.
        tables: the compiled numerator of each utterance.
        graphs: the denominator.
        epochs: passes over the utterances, each at one of its speeds.
        seed: of everything that is drawn.
    """
    lengths = [example.num_frames for example in copies[0]]
    loss_of = LFMMILoss(
        graphs.denominator, leaky_hmm_coefficient=0.1, l2_regularize=5e-5, xent_regularize=0.1
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=PEAK_RATE)
    steps = epochs * len(length_buckets(lengths, batch_size=BATCH_SIZE, seed=seed, epoch=0))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
    draw = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        started, objf, frames = time.perf_counter(), 0.0, 0.0
        network.train()
        for rows in length_buckets(lengths, batch_size=BATCH_SIZE, seed=seed, epoch=epoch):
            speeds = torch.randint(len(copies), (len(rows),), generator=draw).tolist()
            examples = [copies[speed][row] for speed, row in zip(speeds, rows, strict=True)]
            batch = collate(augment_all(examples, AugmentConfig(frame_shift=1, seed=seed), epoch))
            output = network(batch.features, batch.lengths)
            loss = loss_of(
                output.nnet_output,
                output.lengths,
                [tables[row] for row in rows],
                xent_log_probs=output.xent_log_probs,
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            if schedule.last_epoch % 4 == 0:  # as often as Kaldi does
                network.constrain_orthonormal()
            record = loss_of.last_record
            assert record is not None
            objf, frames = objf + float(record.objf_ok), frames + float(record.weight_ok)
            if record.excluded:
                print(f"no path through the numerator: {', '.join(record.excluded)}")
        print(
            f"epoch {epoch + 1:2}  objf {objf / frames:+.4f} a frame  "
            f"rate {schedule.get_last_lr()[0]:.1e}  {time.perf_counter() - started:.1f} s",
            flush=True,
        )


@torch.inference_mode()
def outputs_of(network: Tdnnf, examples: list[Example]) -> dict[str, NDArray[np.float32]]:
    """Network outputs [T', P] by utterance id."""
    network.eval()
    found = {}
    for example in examples:
        batch = collate([example])
        found[example.id] = network(batch.features, batch.lengths).nnet_output[0].numpy()
    return found


def main() -> None:
    """Read, build, train, decode, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="folder with train, dev, test and lang/lexicon.txt")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--sample-rate", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2, help="processes of the search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the trained weights go")
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    sets = {name: DataDir.read(options.corpus / name) for name in ("train", "dev", "test")}
    lexicon = Lexicon.read(options.corpus / "lang" / "lexicon.txt")
    graphs = build_graphs(sets["train"], lexicon, options.seed)
    tables = numerators(sets["train"], graphs)
    print(
        f"{len(lexicon.words)} words, {graphs.tree.num_pdfs} pdfs, "
        f"denominator of {graphs.denominator.table.num_arcs} arcs, {len(tables)} numerators"
    )

    features = FeatureConfig(sample_rate=options.sample_rate, num_mel_bins=40)
    plain = {name: load_examples(data, features) for name, data in sets.items()}
    cmvn = estimate_cmvn(
        plain["train"], CmvnConfig(scope="global", moments="mean-variance"), features.loudness
    )
    copies = [
        normalise(load_examples(sets["train"], features, perturbation=Perturbation(speed)), cmvn)
        for speed in SPEEDS
    ]
    network = Tdnnf(
        TdnnfConfig(
            features.num_mel_bins,
            graphs.tree.num_pdfs,
            channels=options.channels,
            time_strides=(1, 1, 2, 2, 3, 3),
            dropout=0.1,
            xent="branch",
        )
    )
    print(f"{num_parameters(network)} parameters")
    train_network(network, copies, tables, graphs, options.epochs, options.seed)
    if options.out:
        torch.save(network.state_dict(), options.out)

    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder, "word_lm.arpa")
        arpa.write_text(graphs.word_lm, encoding="utf-8")
        grammar = grammar_from_arpa(arpa, lexicon)

    def graph(lm_weight: float, word_insertion_penalty: float) -> DecodingGraph:
        return DecodingGraph.build(
            lexicon, graphs.tree, grammar, lm_weight=lm_weight, word_insertion_penalty=word_insertion_penalty
        )

    dev = outputs_of(network, normalise(plain["dev"], cmvn))
    best = tune(
        lattices(dev, graph(0.5, 0.5), lexicon.words, num_workers=options.workers),
        {utterance.id: utterance.words for utterance in sets["dev"]},
        lexicon.words,
        lm_weights=(0.3, 0.5, 0.7, 0.9, 1.1),
        word_insertion_penalties=(0.0, 0.5, 1.0),
    ).best
    print(f"dev   {best}")
    found = decode(
        outputs_of(network, normalise(plain["test"], cmvn)),
        graph(*best.weights[:2]),
        lexicon.words,
        num_workers=options.workers,
    )
    references = {utterance.id: utterance.words for utterance in sets["test"]}
    print(f"test  {score(references, {name: one.words for name, one in found.items()}).total}")


if __name__ == "__main__":
    main()
