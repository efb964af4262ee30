"""Numerators of what is not one transcript: patterns of words, and graphs from files of FSTs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fsachain.cli.steps.graphs import NumeratorSummary, write_numerators
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.parallel import collect
from fsachain.data.kaldi_dir import read_table
from fsachain.errors import ConfigError, DataError, GraphError
from fsachain.fsa import Fsa
from fsachain.graph.epsilons import remove_epsilons
from fsachain.graph.numerator import NO_WORD, Numerator, numerator_of_phones
from fsachain.graph.pattern_text import LOOP, parse_pattern
from fsachain.graph.patterns import build_pattern_numerator, numerator_of_words, phone_loop
from fsachain.graph.product import product
from fsachain.graph.transducer import Transducer
from fsachain.kaldi.archive import read_table as read_values
from fsachain.kaldi.archive import read_value
from fsachain.kaldi.decoding import grammar_over, pdf_graph
from fsachain.kaldi.fst import read_fst
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.transitions import TransitionModel, read_transition_model

LABELS = ("words", "phones", "pdfs", "transition-ids")
DEFAULT_STOP_PROB = 0.1


def make_pattern_numerators(
    lang: Lang,
    patterns: Path,
    out: Path,
    normalization: Fsa | None,
    *,
    parts: Mapping[str, Path] | None = None,
    stop_prob: float = DEFAULT_STOP_PROB,
    jobs: int = 1,
    executor: Executor | None = None,
) -> NumeratorSummary:
    """Build the numerators of a file of patterns and write them to one npz file.

    Args:
        lang: lexicon and tree.
        patterns: lines of an utterance and its pattern, as `parse_pattern` reads it; those that are refused are left out
            and named.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.
        parts: files with acceptors over phones, label = phone id, by the name that stands for them in patterns. The name
            `<loop>` has a loop of all phones, silence among them, unless it is given.
        stop_prob: of that loop; see `phone_loop`.
        jobs: processes.
        executor: used in place of processes of our own.

    Raises:
        DataError: a file that cannot be read, or no utterance is left.
    """
    lexicon = lang.lexicon
    known = {LOOP: phone_loop(range(1, len(lexicon.phones) + 1), stop_prob=stop_prob)}
    known |= {name: _part(path) for name, path in (parts or {}).items()}
    lines = [(name, (name, text)) for name, (_, text) in read_table(patterns).items()]
    maker = PatternMaker(lang, known, normalization)
    return write_numerators(out, *collect(maker, lines, "numerators", jobs, executor), "graphs")


def _part(path: Path) -> Fsa:
    graph = read_value(path, read_fst)
    try:
        return remove_epsilons(graph, range(len(graph.src)))[0].input_fsa()
    except GraphError as error:
        raise DataError(f"{path}: no acceptor over phones: {error}") from error


@dataclass(frozen=True, eq=False)
class PatternMaker:
    """Turns (name, pattern as text) into a numerator."""

    lang: Lang
    parts: Mapping[str, Fsa]
    normalization: Fsa | None

    def __call__(self, item: tuple[str, str]) -> Numerator:
        """The numerator; a `GraphError` names the utterance."""
        name, text = item
        try:
            pattern = parse_pattern(text, self.parts)
        except GraphError as error:
            raise GraphError(f"utterance {name!r}: {error}") from error
        if not pattern:
            raise GraphError(f"utterance {name!r}: the pattern is empty: a numerator needs at least one word")
        lexicon, tree = self.lang.lexicon, self.lang.tree
        return build_pattern_numerator(pattern, lexicon, tree, normalization=self.normalization, name=name)


def make_fst_numerators(
    lang: Lang,
    table: str,
    out: Path,
    normalization: Fsa | None,
    *,
    labels: str = "words",
    words: Path | None = None,
    model: Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> NumeratorSummary:
    """Build numerators from a table of FSTs (OpenFst binary or AT&T text) and write them to one npz file.

    Args:
        lang: lexicon and tree.
        table: as for `fsachain.kaldi.archive.read_table`: an archive, or an scp file of FST files by utterance.
        out: the npz file.
        normalization: of the denominator; None leaves the numerators unnormalised.
        labels: what input labels mean: "words", "phones", "pdfs" (pdf + 1) or "transition-ids". Label 0 is epsilon;
            output labels are ignored.
        words: words.txt of the graphs; None: that of `lang`.
        model: the transition model that transition ids are of.
        jobs: processes.
        executor: used in place of processes of our own.

    Raises:
        ConfigError: unknown labels, or transition ids without a model.
        DataError: a file that cannot be read, or no utterance is left.
    """
    if labels not in LABELS:
        raise ConfigError(f"labels = {labels!r}: expected one of {', '.join(LABELS)}")
    if (labels == "transition-ids") != (model is not None):
        raise ConfigError(
            f"labels = {labels!r}, model = {model}: transition ids need their model, others have none"
        )
    maker = FstMaker(
        lang,
        normalization,
        labels,
        lang.lexicon.words if words is None else read_symbols(words),
        None if model is None else read_transition_model(model),
    )
    items = [(name, (name, graph)) for name, graph in read_values(table, read_fst)]
    return write_numerators(out, *collect(maker, items, "numerators", jobs, executor), "graphs")


@dataclass(frozen=True, eq=False)
class FstMaker:
    """Turns (name, graph) into a numerator."""

    lang: Lang
    normalization: Fsa | None
    labels: str
    words: Sequence[str]
    model: TransitionModel | None = field(default=None)

    def __call__(self, item: tuple[str, Transducer]) -> Numerator:
        """The numerator; an error names the utterance."""
        name, graph = item
        try:
            return self._numerator(name, replace(graph, olabel=graph.ilabel))
        except (DataError, GraphError) as error:
            text = str(error)
            raise GraphError(text if repr(name) in text else f"utterance {name!r}: {text}") from error

    def _numerator(self, name: str, graph: Transducer) -> Numerator:
        lexicon, tree = self.lang.lexicon, self.lang.tree
        if self.labels == "words":
            return numerator_of_words(
                grammar_over(graph, self.words, lexicon.words),
                lexicon,
                tree,
                normalization=self.normalization,
                name=name,
            )
        if self.model is not None:
            graph = pdf_graph(graph, self.model)
        plain = remove_epsilons(graph, range(len(graph.src)))[0]
        if self.labels == "phones":
            return numerator_of_phones(
                plain,
                [NO_WORD] * len(plain.src),
                (),
                lexicon,
                tree,
                normalization=self.normalization,
                name=name,
            )
        fsa = plain.input_fsa()
        if fsa.num_arcs and fsa.pdf.max() >= tree.num_pdfs:
            raise GraphError(f"has pdf {fsa.pdf.max()}; the tree has {tree.num_pdfs}")
        if self.normalization is not None:
            fsa, _ = product(fsa, self.normalization)
        if not fsa.num_arcs:
            raise GraphError("no path is left, or none that the normalization accepts")
        none = np.zeros(fsa.num_arcs, dtype=np.int32)
        return Numerator(fsa, (), none, none + NO_WORD, none.astype(np.bool_))
