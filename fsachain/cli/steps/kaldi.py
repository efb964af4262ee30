"""From Kaldi's directories and archives to folders of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fsachain.cli.steps.graphs import write_denominator
from fsachain.cli.steps.lang import Lang, save_lang
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


def import_denominator(
    lang: Lang, den: Path, out: Path, merge: Literal["sum", "min"] = "sum"
) -> DenominatorGraph:
    """A denominator folder from Kaldi's den.fst; the normalization is computed from it, not read.

    Raises:
        GraphError: no acceptor, or with pdfs that the tree of `lang` does not have.
    """
    denominator = DenominatorGraph(Fsa.read(den), lang.tree.num_pdfs)
    write_denominator(lang, denominator, out, merge)
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
