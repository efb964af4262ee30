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
    "fsachain.backends.results": ["BestPath", "ForwardBackward"],
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
    "fsachain.loss.lfmmi": ["LFMMILoss"],
    "fsachain.loss.record": ["LFMMIRecord"],
    "fsachain.loss.total": ["total_log_prob"],
    "fsachain.table": ["TransitionTable", "compile_table"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
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
    "MissingExtraError",
    "Numerator",
    "ShapeError",
    "TableBatch",
    "Topology",
    "TransitionTable",
    "available_backends",
    "best_path",
    "build_denominator",
    "build_numerator",
    "compile_table",
    "estimate_phone_lm",
    "forward_backward",
    "get_num_threads",
    "lm_phones",
    "set_num_threads",
    "total_log_prob",
]

if TYPE_CHECKING:
    from fsachain.backends.dispatch import available_backends, best_path, forward_backward
    from fsachain.backends.results import BestPath, ForwardBackward
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
    from fsachain.graph.topology import Topology
    from fsachain.loss.lfmmi import LFMMILoss
    from fsachain.loss.record import LFMMIRecord
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
