"""From Kaldi's directories and archives to folders of ours, and what a Kaldi log can be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fsachain.backends.dispatch import forward_backward
from fsachain.batch import TableBatch
from fsachain.cli.progress import track
from fsachain.cli.steps.graphs import DENOMINATOR, NORMALIZATION
from fsachain.cli.steps.lang import TREE, Lang, save_lang
from fsachain.data.kaldi_examples import SupervisedExample, read_examples
from fsachain.decode.decoder import decode
from fsachain.decode.wer import write_text
from fsachain.denominator import DenominatorGraph
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.lexicon_files import read_phones
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.decoding import pdf_graph
from fsachain.kaldi.fst import read_fst
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import read_transition_model
from fsachain.kaldi.tree import read_context_tree
from fsachain.kaldi.values import read_matrix
from fsachain.table import compile_table

MODELS = ("0.trans_mdl", "final.mdl")


def import_lang(
    lexicon: Path, model_dir: Path, out: Path, *, silence: str, silence_prob: float, oov: str | None
) -> Lang:
    """A language folder with the phones, tree and topology of a Kaldi model.

    Args:
        lexicon: lexicon.txt or lexiconp.txt, over the phones of the model.
        model_dir: has tree, 0.trans_mdl or final.mdl, and phones.txt.
        out: folder.
        silence: as for `Lexicon.read`.
        silence_prob: as for `Lexicon.read`.
        oov: as for `Lexicon.read`.

    Raises:
        DataError: a file of the model is missing, damaged or of another model.
    """
    for name in ("tree", "phones.txt"):
        if not (model_dir / name).is_file():
            raise DataError(f"{model_dir}: no {name}; expected tree, phones.txt and {' or '.join(MODELS)}")
    model = next((model_dir / name for name in MODELS if (model_dir / name).is_file()), None)
    if model is None:
        raise DataError(f"{model_dir}: no {' or '.join(MODELS)}")
    phones = read_phones(model_dir / "phones.txt")
    words = Lexicon.read(lexicon, silence=silence, silence_prob=silence_prob, oov=oov, phones=phones)
    lang = Lang(words, read_context_tree(model_dir / "tree", model, phones))
    save_lang(lang, out)
    return lang


def import_denominator(lang: Lang, den: Path, out: Path) -> DenominatorGraph:
    """A denominator folder from Kaldi's den.fst; the normalization is computed from it, not read.

    Raises:
        GraphError: no acceptor, or with pdfs that the tree of `lang` does not have.
    """
    denominator = DenominatorGraph(Fsa.read(den), lang.tree.num_pdfs)
    out.mkdir(parents=True, exist_ok=True)
    lang.tree.save(out / TREE)
    denominator.fsa.write(out / DENOMINATOR)
    denominator.normalization_fsa().write(out / NORMALIZATION)
    return denominator


def decode_archive(
    outputs: str, hclg: Path, model: Path, words: Path, out: Path, *, acoustic_scale: float, num_workers: int
) -> int:
    """Decode an archive of network outputs with Kaldi's HCLG; writes hyp.txt to `out`; returns the utterances.

    Raises:
        DataError: a file cannot be read, or graph, model and outputs do not fit each other.
    """
    graph = pdf_graph(read_value(hclg, read_fst), read_transition_model(model)).to_openfst()
    matrices = {name: acoustic_scale * matrix for name, matrix in read_table(outputs, read_matrix)}
    found = decode(matrices, graph, read_symbols(words), num_workers=num_workers)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "hyp.txt", {name: hypothesis.words for name, hypothesis in found.items()})
    return len(found)


@dataclass(frozen=True)
class ExampleObjf:
    """Numerator and denominator of one example, log-probabilities of all its frames."""

    name: str
    num_frames: int
    weight: float
    num_log_prob: float
    den_log_prob: float
    ok: bool

    def __str__(self) -> str:
        objf = (self.num_log_prob - self.den_log_prob) / self.num_frames
        fields = (self.num_frames, self.weight, self.num_log_prob, self.den_log_prob, objf)
        return "\t".join(
            [self.name, *(f"{value:.6g}" for value in fields), "ok" if self.ok else "impossible"]
        )


TITLES = "example\tframes\tweight\tnumerator\tdenominator\tobjf per frame\t"


def example_objfs(
    examples: str, outputs: str, den: Path, leaky_hmm_coefficient: float
) -> Iterator[ExampleObjf]:
    """The objective of each chain example, for a comparison with a Kaldi log.

    Args:
        examples: archive of end-to-end chain examples.
        outputs: archive of network outputs [frames, pdfs] by the examples' keys, as nnet3-compute writes them.
        den: den.fst.
        leaky_hmm_coefficient: as in training; 0.1 in Kaldi's end-to-end recipes.

    Raises:
        DataError: an example without outputs, or with outputs of other sizes.
    """
    scores = dict(read_table(outputs, read_matrix))
    graph: DenominatorGraph | None = None
    for example in track(list(read_examples(examples)), "examples"):
        if graph is None:
            graph = DenominatorGraph(Fsa.read(den), example.num_pdfs)
        matrix = _scores_of(example, scores, outputs)
        num = forward_backward(
            TableBatch.pack([compile_table(example.numerator, example.num_pdfs)]), matrix[None]
        )
        both = forward_backward(graph.batch(1), matrix[None], leaky_hmm_coefficient=leaky_hmm_coefficient)
        yield ExampleObjf(
            example.example.id,
            len(matrix),
            example.weight,
            float(num.log_prob[0]),
            float(both.log_prob[0]),
            bool(num.ok[0] and both.ok[0]),
        )


def _scores_of(example: SupervisedExample, scores: Mapping[str, np.ndarray], where: str) -> np.ndarray:
    name = example.example.id
    if name not in scores:
        raise DataError(f"{where}: no outputs for the example {name!r}")
    assert example.example.window is not None
    expected = (example.example.window.length, example.num_pdfs)
    if scores[name].shape != expected:
        raise DataError(
            f"{where}: outputs of {name!r} are {list(scores[name].shape)}; expected {list(expected)}"
        )
    return scores[name]
