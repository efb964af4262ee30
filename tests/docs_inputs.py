"""What the programs in docs/ take as given: names and files that a page says are the reader's own."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Names = dict[str, Any]

LEXICON = """she sh iy
had h ae d
your y er
dark d aa r k
a ax
suit s uw t
ask ae s k
now n aw
hello hh ax l ow
"""
TRANSCRIPTS = {
    "utterance-1": "she had your dark suit",
    "utterance-2": "ask now",
    "utterance-17": "hello she had a dark suit now",
}


def phone_graphs(folder):
    """Lexicon, tree, phone language model and normalization of a few sentences."""
    import fsachain
    from fsachain import ContextTree, DenominatorGraph, Lexicon, Topology

    (folder / "lexicon.txt").write_text(LEXICON, encoding="utf-8")
    lexicon = Lexicon.read(folder / "lexicon.txt")
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    transcripts = {name: text.split() for name, text in TRANSCRIPTS.items()}
    phones = fsachain.lm_phones(list(transcripts.values()) * 5, lexicon, seed=1)
    phone_lm = fsachain.estimate_phone_lm(phones, ngram_order=2)
    denominator = DenominatorGraph(fsachain.build_denominator(phone_lm, tree), tree.num_pdfs)
    graphs = {"denominator": denominator, "normalization": denominator.normalization_fsa()}
    return {"lexicon": lexicon, "tree": tree, "phone_lm": phone_lm, "transcripts": transcripts, **graphs}


def readme(folder):
    """A corpus of three sentences, and outputs of a network for two of them."""
    import torch

    names = phone_graphs(folder)
    texts = list(names["transcripts"].values())
    outputs = torch.randn(2, 40, names["tree"].num_pdfs, generator=torch.Generator().manual_seed(1))
    return {"transcripts": texts, "batch": texts[:2], "nnet_output": outputs, "lengths": [40, 30]}


def graphs(folder):
    """A graph of words in a file, a words.txt, and sequences of units."""
    from fsachain import DenominatorGraph, estimate_phone_lm

    names = phone_graphs(folder)
    words = names["lexicon"].words
    symbols = "".join(f"{word} {index}\n" for index, word in enumerate(("<eps>", *words)))
    (folder / "words.txt").write_text(symbols, encoding="utf-8")
    she, had = (words.index(word) + 1 for word in ("she", "had"))
    (folder / "alternatives.txt").write_text(f"0 1 {she} {she} 0.5\n1 0.25\n1 2 {had} {had} 1.5\n2\n")
    units = {"sequences_of_unit_ids": [[1, 2, 3], [2, 2, 1]], "num_units": 3, "unit_ids": [1, 2, 3]}
    return {**names, **units, "DenominatorGraph": DenominatorGraph, "estimate_phone_lm": estimate_phone_lm}


def kaldi(folder):
    """Files as Kaldi writes them, and an executor."""
    import kaldi_native_io as native

    scp = f"{folder}/feats.ark,{folder}/feats.scp"
    with native.FloatMatrixWriter(f"ark,scp:{scp}") as features:
        features.write("utterance-1", np.zeros((5, 3), np.float32))
    with native.Int32VectorWriter(f"ark:{folder}/ali.1") as alignments:
        alignments.write("utterance-1", [2, 1, 1])
    (folder / "ali.1.gz").write_bytes(gzip.compress((folder / "ali.1").read_bytes()))
    (folder / "graphs.ark").write_text("utterance-1\n0 1 1 1 0.5\n1 0.25\n\n")
    client, names = SimpleNamespace(get_executor=lambda: ThreadPoolExecutor(1)), phone_graphs(folder)
    return {**names, "transcripts": list(names["transcripts"].items()), "client": client}


def pychain(folder):
    """A denominator and two normalised numerators as files, and a network's output."""
    import torch

    from fsachain import build_numerator

    names = phone_graphs(folder)
    lexicon, tree, normalization = names["lexicon"], names["tree"], names["normalization"]
    names["denominator"].fsa.write(folder / "den.fst")
    paths = []
    for name in ("utterance-1", "utterance-2"):
        numerator = build_numerator(names["transcripts"][name], lexicon, tree, normalization=normalization)
        paths.append(folder / f"{name}.fst")
        numerator.fsa.write(paths[-1])
    outputs = torch.randn(2, 40, tree.num_pdfs, generator=torch.Generator().manual_seed(1)).requires_grad_()
    return {"paths": paths, "num_pdfs": tree.num_pdfs, "nnet_output": outputs, "lengths": [30, 40]}


def losses(folder):
    """A network that gives ten frames of five classes for two utterances."""
    import torch

    weights = torch.zeros(5, requires_grad=True)
    return {
        "network": lambda features: features + weights,
        "features": torch.randn(10, 2, 5, generator=torch.Generator().manual_seed(1)),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 0]]),
        "input_lengths": torch.tensor([10, 7]),
        "target_lengths": torch.tensor([3, 2]),
        "utterances": ["a", "b"],
    }


def transducer(folder):
    """Two utterances of 6 and 5 frames with 3 and 2 labels of 4 classes, in every form that the losses take."""
    import torch

    generator = torch.Generator().manual_seed(1)

    class Joiner(torch.nn.Module):
        def forward(self, encoder_out, predictor_out):
            return torch.tanh(encoder_out + predictor_out)

    def random(*shape):
        return torch.randn(*shape, generator=generator).requires_grad_()

    integers = {"logit_lengths": [6, 5], "target_lengths": [3, 2], "targets": [[1, 2, 1], [2, 1, 0]]}
    return {
        **{name: torch.tensor(values, dtype=torch.int32) for name, values in integers.items()},
        "logits": random(2, 6, 4, 4),
        "encoder_out": random(2, 6, 4),
        "predictor_out": random(2, 4, 4),
        "joiner": Joiner(),
        **{name: random(2, 6, 4) for name in ("am", "am_full")},
        **{name: random(2, 4, 4) for name in ("lm", "lm_full")},
        "blank": 0,
        "boundary": torch.tensor([[0, 0, 3, 6], [0, 0, 2, 5]]),
    }


def data_sets(folder):
    """A manifest of three cuts, whose recordings are noise; graphs, and a network's output lengths."""
    import soundfile

    rng = np.random.default_rng(0)
    with (folder / "cuts.jsonl").open("w", encoding="utf-8") as file:
        for name, text in TRANSCRIPTS.items():
            soundfile.write(folder / f"{name}.wav", 0.1 * rng.normal(size=16000), 8000)
            source = {"type": "file", "channels": [0], "source": f"{name}.wav"}
            recording = {"id": name, "sources": [source], "sampling_rate": 8000, "num_samples": 16000}
            said = {"id": name, "recording_id": name, "start": 0.0, "text": text, "speaker": "anna"}
            said, recording = said | {"duration": 2.0}, recording | {"duration": 2.0}
            cut = {"id": name, "start": 0.0, "duration": 2.0, "channel": 0, "type": "MonoCut"}
            file.write(json.dumps(cut | {"supervisions": [said], "recording": recording}) + "\n")
    model = SimpleNamespace(output_lengths=lambda lengths: (lengths + 2) // 3)
    return phone_graphs(folder) | {"model": model}


GIVEN: dict[str, Callable[[Path], Names]] = {
    "README.md": readme, "data.md": data_sets, "graphs.md": graphs, "kaldi.md": kaldi, "losses.md": losses,
    "migration_pychain.md": pychain, "transducer.md": transducer, "weak_transcripts.md": phone_graphs,
}  # fmt: skip
