"""How large data sets and graphs are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import DataError
from fsachain.fsa import Fsa
from fsachain.graph.facts import GraphFacts, graph_facts
from fsachain.graph.numerator_files import load_numerators
from fsachain.report.media import seconds_of

MOST_RECORDINGS = 20_000
MOST_NUMERATOR_BYTES = 20_000_000


@dataclass(frozen=True)
class DataSize:
    """One data directory; `seconds` is None where it is not known of every utterance."""

    name: str
    utterances: int
    words: int
    distinct_words: int
    speakers: int
    seconds: float | None


@dataclass(frozen=True)
class GraphSize:
    """One graph file and what it is like."""

    name: str
    num_bytes: int
    facts: GraphFacts


def data_size(name: str, data: DataDir) -> DataSize:
    """Sizes of a data directory; lengths are read from the headers of recordings, of at most 20,000."""
    words = [word for utterance in data for word in utterance.words]
    speakers = {utterance.speaker for utterance in data}
    return DataSize(name, len(data), len(words), len(set(words)), len(speakers), _seconds(data))


def graph_size(path: Path) -> GraphSize:
    """Facts about one OpenFst file.

    Raises:
        GraphError: it is none, or is cut short.
    """
    return GraphSize(path.name, path.stat().st_size, graph_facts(Fsa.read(path)))


def _seconds(data: DataDir) -> float | None:
    if len(data) > MOST_RECORDINGS:
        return None
    try:
        return sum(seconds_of(utterance) for utterance in data)
    except DataError:  # a command, a feature matrix, or a recording that is not there
        return None


def numerator_size(path: Path) -> str:
    """Number and size of the numerators in one file, in a line; of a file beyond 20 MB the bytes alone.

    Raises:
        GraphError: the file holds none, or is cut short.
    """
    num_bytes = path.stat().st_size
    if num_bytes > MOST_NUMERATOR_BYTES:
        return f"{num_bytes / 1e6:,.0f} MB of numerators"
    arcs = load_numerators(path).num_arcs
    return f"{len(arcs):,} numerators, {arcs.sum():,} arcs, at most {arcs.max(initial=0):,} in one"
