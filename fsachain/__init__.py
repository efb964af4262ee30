"""Lattice-free MMI training on arbitrary FSAs, from transcripts to a word error rate.

The names below are the public interface; each is imported on first use, so that `import fsachain` stays quick and the
graph-building and recipe packages are needed only by those who call them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "fsachain.backends.dispatch": ["available_backends", "best_path", "forward_backward"],
    "fsachain.backends.paths": ["n_best", "sample_paths"],
    "fsachain.backends.results": ["BestPath", "ForwardBackward", "NBest", "SampledPaths"],
    "fsachain.backends.threads": ["get_num_threads", "set_num_threads"],
    "fsachain.batch": ["TableBatch"],
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
    "fsachain.graph.context": ["ContextTree"],
    "fsachain.graph.denominator": ["build_denominator"],
    "fsachain.graph.lexicon": ["Lexicon"],
    "fsachain.graph.lm_phones": ["lm_phones"],
    "fsachain.graph.numerator": ["Numerator", "build_numerator"],
    "fsachain.graph.phone_lm": ["estimate_phone_lm"],
    "fsachain.graph.topology": ["Topology"],
    "fsachain.graph.supervision": ["AlignedPhone", "Supervision", "build_supervision"],
    "fsachain.loss.lfmmi": ["LFMMILoss"],
    "fsachain.loss.mbr": ["MBRLoss", "expected_accuracy"],
    "fsachain.loss.record": ["LFMMIRecord", "MBRRecord"],
    "fsachain.loss.total": ["total_log_prob"],
    "fsachain.table": ["TransitionTable", "compile_table"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "AlignedPhone",
    "BackendUnavailable",
    "BestPath",
    "ConfigError",
    "ContextTree",
    "DataError",
    "DenominatorGraph",
    "ForwardBackward",
    "Fsa",
    "FsachainError",
    "GraphError",
    "LFMMILoss",
    "LFMMIRecord",
    "Lexicon",
    "MBRLoss",
    "MBRRecord",
    "MissingExtraError",
    "NBest",
    "Numerator",
    "SampledPaths",
    "ShapeError",
    "Supervision",
    "TableBatch",
    "Topology",
    "TransitionTable",
    "available_backends",
    "best_path",
    "build_denominator",
    "build_numerator",
    "build_supervision",
    "compile_table",
    "estimate_phone_lm",
    "expected_accuracy",
    "forward_backward",
    "get_num_threads",
    "lm_phones",
    "n_best",
    "sample_paths",
    "set_num_threads",
    "total_log_prob",
]

if TYPE_CHECKING:
    from fsachain.backends.dispatch import available_backends, best_path, forward_backward
    from fsachain.backends.paths import n_best, sample_paths
    from fsachain.backends.results import BestPath, ForwardBackward, NBest, SampledPaths
    from fsachain.backends.threads import get_num_threads, set_num_threads
    from fsachain.batch import TableBatch
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
    from fsachain.graph.context import ContextTree
    from fsachain.graph.denominator import build_denominator
    from fsachain.graph.lexicon import Lexicon
    from fsachain.graph.lm_phones import lm_phones
    from fsachain.graph.numerator import Numerator, build_numerator
    from fsachain.graph.phone_lm import estimate_phone_lm
    from fsachain.graph.supervision import AlignedPhone, Supervision, build_supervision
    from fsachain.graph.topology import Topology
    from fsachain.loss.lfmmi import LFMMILoss
    from fsachain.loss.mbr import MBRLoss, expected_accuracy
    from fsachain.loss.record import LFMMIRecord, MBRRecord
    from fsachain.loss.total import total_log_prob
    from fsachain.table import TransitionTable, compile_table


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fsachain' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
