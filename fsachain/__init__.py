"""Lattice-free MMI training on arbitrary FSAs, from transcripts to a word error rate.

The names below are the public interface; each is imported on first use, so that `import fsachain` stays quick and the
graph-building and recipe packages are needed only by those who call them. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fsachain import moved

__version__ = "0.1.0"

if find_spec(f"{__name__}.kernels") is None:  # a checkout that nobody has installed
    __path__.append(str(Path(__file__).parents[1]))

moved.install()

_NAMES = {  # by module
    "backends.cpu.threads": "get_num_threads set_num_threads",
    "backends.dispatch": (
        "BestPath ForwardBackward NBest SampledPaths available_backends best_path forward_backward n_best sample_paths"
    ),
    "batch": "TableBatch",
    "asr.cli.alignment": "Aligner",
    "asr.decode.align": "Alignment Tolerance",
    "asr.decode.compare": "TierTimes TimeDifference TimesReport compare_times",
    "asr.decode.forced": "TimedToken TokenSpan forced_align merge_tokens spans",
    "asr.decode.keyword": "OperatingPoint false_reject_rate keyword_scores",
    "denominator": "DenominatorGraph",
    "errors": (
        "AlignmentError BackendUnavailable ConfigError DataError FsachainError GraphError MissingExtraError ShapeError"
    ),
    "fsa": "Fsa",
    "graph.algorithms": "GraphFacts determinize equivalent graph_facts minimize random_paths",
    "graph.context": "BiphoneCounts ContextTree",
    "graph.ctc": "ctc_graph",
    "graph.decoding": "DecodingGraph build_decoding_graph",
    "graph.denominator": "build_denominator ctc_denominator ctc_numerator",
    "graph.forgive": "Forgiveness forgive",
    "graph.grammar": "estimate_arpa grammar_from_arpa ngram_acceptor word_loop",
    "graph.lexicon": "Lexicon lm_phones",
    "graph.numerator": "Numerator build_numerator",
    "graph.open_vocabulary": "spelling_model words_and_pieces",
    "graph.patterns": (
        "OneOf build_pattern_numerator numerator_of_words optional parse_pattern phone_model_of_words"
    ),
    "graph.phone_lm": "estimate_phone_lm",
    "graph.shards": "NumeratorMaker TableShards make_shards",
    "graph.spelling": "phone_loop",
    "graph.supervision": "AlignedPhone PhoneLattice Supervision build_supervision",
    "graph.tied_tree": "BiphoneStatistics build_tied_tree",
    "graph.topology": "HmmState Topology",
    "graph.transducer": "product",
    "asr.kaldi.lattice": "CompactLattice Lattice lattice_pdfs phone_lattice read_lattice",
    "loss.base": "LFMMIRecord MBRRecord",
    "loss.chunks": "transducer_loss",
    "loss.ctc": "CTCLoss ctc_loss",
    "loss.grid": "mutual_information_recursion",
    "loss.lfmmi": "LFMMILoss",
    "loss.mbr": "MBRLoss expected_accuracy",
    "loss.pruned": (
        "do_rnnt_pruning get_rnnt_prune_ranges rnnt_loss_pruned rnnt_loss_simple rnnt_loss_smoothed"
    ),
    "loss.rnnt": (
        "RNNTLoss TransducerAlignment TransducerLattice TransducerOccupancy rnnt_lattice rnnt_loss"
    ),
    "loss.total": "total_log_prob",
    "loss.variants": "hat_lattice hat_loss multi_blank_loss tdt_lattice tdt_loss",
    "table": "TransitionTable compile_table",
}
_HOME_OF = {name: f"fsachain.{home}" for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fsachain' has no attribute {name!r}")
    home = _HOME_OF[name]
    if ".cli." in home:
        import_module("fsachain.errors").require("click", extra="recipes")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
