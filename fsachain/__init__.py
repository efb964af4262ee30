"""Lattice-free MMI training on arbitrary FSAs, from transcripts to a word error rate.

The names below are the public interface; each is imported on first use, so that `import fsachain` stays quick and the
graph-building and recipe packages are needed only by those who call them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "fsachain.backends.cpu.threads": ["get_num_threads", "set_num_threads"],
    "fsachain.backends.dispatch": [
        "available_backends",
        "best_path",
        "forward_backward",
        "n_best",
        "sample_paths",
    ],
    "fsachain.backends.results": ["BestPath", "ForwardBackward", "NBest", "SampledPaths"],
    "fsachain.batch": ["TableBatch"],
    "fsachain.decode.keyword": ["OperatingPoint", "false_reject_rate", "keyword_scores"],
    "fsachain.denominator": ["DenominatorGraph"],
    "fsachain.errors": [
        "BackendUnavailable",
        "ConfigError",
        "DataError",
        "FsachainError",
        "GraphError",
        "MissingExtraError",
        "ShapeError",
    ],
    "fsachain.fsa": ["Fsa"],
    "fsachain.graph.algorithms": [
        "GraphFacts",
        "determinize",
        "equivalent",
        "graph_facts",
        "minimize",
        "random_paths",
    ],
    "fsachain.graph.context": ["BiphoneCounts", "ContextTree"],
    "fsachain.graph.ctc": ["ctc_graph"],
    "fsachain.graph.denominator": ["build_denominator", "ctc_denominator"],
    "fsachain.graph.grammar": ["ngram_acceptor"],
    "fsachain.graph.lexicon": ["Lexicon", "lm_phones"],
    "fsachain.graph.numerator": ["Numerator", "build_numerator"],
    "fsachain.graph.patterns": [
        "OneOf",
        "build_pattern_numerator",
        "numerator_of_words",
        "optional",
        "parse_pattern",
        "phone_loop",
    ],
    "fsachain.graph.phone_lattice": ["PhoneLattice"],
    "fsachain.graph.phone_lm": ["estimate_phone_lm"],
    "fsachain.graph.shards": ["NumeratorMaker", "TableShards", "make_shards"],
    "fsachain.graph.spelling": ["phone_model_of_words"],
    "fsachain.graph.supervision": ["AlignedPhone", "Supervision", "build_supervision"],
    "fsachain.graph.tied_tree": ["BiphoneStatistics", "build_tied_tree"],
    "fsachain.graph.topology": ["HmmState", "Topology"],
    "fsachain.graph.transducer": ["product"],
    "fsachain.kaldi.lattice": ["CompactLattice", "Lattice", "lattice_pdfs", "phone_lattice", "read_lattice"],
    "fsachain.loss.base": ["LFMMIRecord", "MBRRecord"],
    "fsachain.loss.chunks": ["transducer_loss"],
    "fsachain.loss.ctc": ["CTCLoss", "ctc_loss"],
    "fsachain.loss.grid": ["mutual_information_recursion"],
    "fsachain.loss.lattice": [
        "TransducerAlignment",
        "TransducerLattice",
        "TransducerOccupancy",
        "rnnt_lattice",
    ],
    "fsachain.loss.lfmmi": ["LFMMILoss"],
    "fsachain.loss.mbr": ["MBRLoss", "expected_accuracy"],
    "fsachain.loss.pruned": [
        "do_rnnt_pruning",
        "get_rnnt_prune_ranges",
        "rnnt_loss_pruned",
        "rnnt_loss_simple",
        "rnnt_loss_smoothed",
    ],
    "fsachain.loss.rnnt": ["RNNTLoss", "rnnt_loss"],
    "fsachain.loss.total": ["total_log_prob"],
    "fsachain.loss.variants": ["hat_lattice", "hat_loss", "multi_blank_loss", "tdt_lattice", "tdt_loss"],
    "fsachain.table": ["TransitionTable", "compile_table"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "AlignedPhone",
    "BackendUnavailable",
    "BestPath",
    "BiphoneCounts",
    "BiphoneStatistics",
    "CTCLoss",
    "CompactLattice",
    "ConfigError",
    "ContextTree",
    "DataError",
    "DenominatorGraph",
    "ForwardBackward",
    "Fsa",
    "FsachainError",
    "GraphError",
    "GraphFacts",
    "HmmState",
    "LFMMILoss",
    "LFMMIRecord",
    "Lattice",
    "Lexicon",
    "MBRLoss",
    "MBRRecord",
    "MissingExtraError",
    "NBest",
    "Numerator",
    "NumeratorMaker",
    "OneOf",
    "OperatingPoint",
    "PhoneLattice",
    "RNNTLoss",
    "SampledPaths",
    "ShapeError",
    "Supervision",
    "TableBatch",
    "TableShards",
    "Topology",
    "TransducerAlignment",
    "TransducerLattice",
    "TransducerOccupancy",
    "TransitionTable",
    "available_backends",
    "best_path",
    "build_denominator",
    "build_numerator",
    "build_pattern_numerator",
    "build_supervision",
    "build_tied_tree",
    "compile_table",
    "ctc_denominator",
    "ctc_graph",
    "ctc_loss",
    "determinize",
    "do_rnnt_pruning",
    "equivalent",
    "estimate_phone_lm",
    "expected_accuracy",
    "false_reject_rate",
    "forward_backward",
    "get_num_threads",
    "get_rnnt_prune_ranges",
    "graph_facts",
    "hat_lattice",
    "hat_loss",
    "keyword_scores",
    "lattice_pdfs",
    "lm_phones",
    "make_shards",
    "minimize",
    "multi_blank_loss",
    "mutual_information_recursion",
    "n_best",
    "ngram_acceptor",
    "numerator_of_words",
    "optional",
    "parse_pattern",
    "phone_lattice",
    "phone_loop",
    "phone_model_of_words",
    "product",
    "random_paths",
    "read_lattice",
    "rnnt_lattice",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "sample_paths",
    "set_num_threads",
    "tdt_lattice",
    "tdt_loss",
    "total_log_prob",
    "transducer_loss",
]

if TYPE_CHECKING:
    from fsachain.backends.cpu.threads import get_num_threads, set_num_threads
    from fsachain.backends.dispatch import (
        available_backends,
        best_path,
        forward_backward,
        n_best,
        sample_paths,
    )
    from fsachain.backends.results import BestPath, ForwardBackward, NBest, SampledPaths
    from fsachain.batch import TableBatch
    from fsachain.decode.keyword import OperatingPoint, false_reject_rate, keyword_scores
    from fsachain.denominator import DenominatorGraph
    from fsachain.errors import (
        BackendUnavailable,
        ConfigError,
        DataError,
        FsachainError,
        GraphError,
        MissingExtraError,
        ShapeError,
    )
    from fsachain.fsa import Fsa
    from fsachain.graph.algorithms import (
        GraphFacts,
        determinize,
        equivalent,
        graph_facts,
        minimize,
        random_paths,
    )
    from fsachain.graph.context import BiphoneCounts, ContextTree
    from fsachain.graph.ctc import ctc_graph
    from fsachain.graph.denominator import build_denominator, ctc_denominator
    from fsachain.graph.grammar import ngram_acceptor
    from fsachain.graph.lexicon import Lexicon, lm_phones
    from fsachain.graph.numerator import Numerator, build_numerator
    from fsachain.graph.patterns import (
        OneOf,
        build_pattern_numerator,
        numerator_of_words,
        optional,
        parse_pattern,
        phone_loop,
    )
    from fsachain.graph.phone_lattice import PhoneLattice
    from fsachain.graph.phone_lm import estimate_phone_lm
    from fsachain.graph.shards import NumeratorMaker, TableShards, make_shards
    from fsachain.graph.spelling import phone_model_of_words
    from fsachain.graph.supervision import AlignedPhone, Supervision, build_supervision
    from fsachain.graph.tied_tree import BiphoneStatistics, build_tied_tree
    from fsachain.graph.topology import HmmState, Topology
    from fsachain.graph.transducer import product
    from fsachain.kaldi.lattice import CompactLattice, Lattice, lattice_pdfs, phone_lattice, read_lattice
    from fsachain.loss.base import LFMMIRecord, MBRRecord
    from fsachain.loss.chunks import transducer_loss
    from fsachain.loss.ctc import CTCLoss, ctc_loss
    from fsachain.loss.grid import mutual_information_recursion
    from fsachain.loss.lattice import (
        TransducerAlignment,
        TransducerLattice,
        TransducerOccupancy,
        rnnt_lattice,
    )
    from fsachain.loss.lfmmi import LFMMILoss
    from fsachain.loss.mbr import MBRLoss, expected_accuracy
    from fsachain.loss.pruned import (
        do_rnnt_pruning,
        get_rnnt_prune_ranges,
        rnnt_loss_pruned,
        rnnt_loss_simple,
        rnnt_loss_smoothed,
    )
    from fsachain.loss.rnnt import RNNTLoss, rnnt_loss
    from fsachain.loss.total import total_log_prob
    from fsachain.loss.variants import hat_lattice, hat_loss, multi_blank_loss, tdt_lattice, tdt_loss
    from fsachain.table import TransitionTable, compile_table


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fsachain' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
