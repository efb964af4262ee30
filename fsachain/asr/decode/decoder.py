"""Words from network outputs: beam search over a decoding graph with kaldi-decoder.

The graph is what `fsachain.graph.decoding` makes: input label pdf + 1, output label word id, costs. For the search its
output labels are replaced by the numbers of its arcs, so that all that is known of an arc is known in a lattice.
OpenFst allocates what the header of a file claims, aborts the process where it cannot, and follows arcs to states that do
not exist. So graphs are read and checked by our own reader, and what it read is written anew for kaldifst. kaldi-decoder
holds the interpreter lock while it searches, so utterances are divided among processes, not threads.

Its search for a lattice has a beam and no other bound, and says nothing until it ends: with a network that knows little it
took 45 s for an utterance of dev. So its live states are counted beforehand, by a search that keeps their costs alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from fsachain.asr.decode.lattices import WordLattice
from fsachain.asr.kaldi.lattice import Lattice
from fsachain.backends.cpu.paths import LiveStates
from fsachain.errors import DataError, GraphError, ShapeError, brief_of, check_range, counted, require
from fsachain.graph.decoding import DecodingGraph
from fsachain.graph.open_vocabulary import Piece, spelt_out
from fsachain.openfst import LATTICE_ARC, Transducer, read_body, read_fst, read_header
from fsachain.stream import Cursor, open_file

Float32Array = npt.NDArray[np.float32]
_WIDENED = 3.0  # nats by which the beam of a lattice is wider in each further search
_NARROWED = 1.0  # nats by which it is narrower where too much is alive
# States that a frame keeps, whatever the beam; kaldi-decoder asks for more than that as max_active.
_MIN_ACTIVE = 20
_NAMED = 5  # utterances
_ROUNDING = 0.01  # nats between the costs of a path in two searches
Found = TypeVar("Found")
Progress = Callable[[int, int], None]  # called with (utterances done, utterances in all)
Graph = Any  # a DecodingGraph, path of an OpenFst file, its bytes, or a pywrapfst object


class GraphFile(NamedTuple):
    """Time and size are there so that a file written anew is read anew."""

    path: str
    modified_ns: int
    num_bytes: int


Source = GraphFile | bytes | DecodingGraph


def portable(graph: Graph) -> Source:
    """The graph as it crosses to another process. GraphError: no such file, or none of the kinds of `Graph`."""
    if isinstance(graph, bytes | GraphFile | DecodingGraph):
        return graph
    if hasattr(graph, "write_to_string"):
        return bytes(graph.write_to_string())
    if not isinstance(graph, str | Path):
        raise GraphError(
            f"graph: expected a path, bytes, a DecodingGraph or a pywrapfst object, got {type(graph).__name__}"
        )
    path = Path(graph).resolve()
    if not path.is_file():
        raise GraphError(f"{path}: no such file")
    return GraphFile(str(path), path.stat().st_mtime_ns, path.stat().st_size)


@lru_cache(maxsize=1)
def load(source: Source) -> tuple[Any, Transducer]:
    """The graph as kaldifst object whose output labels are the arcs' numbers from 1, and its arcs; the last is cached."""
    kaldifst = require("kaldifst", extra="recipes")
    if isinstance(source, DecodingGraph):
        where, arcs = "graph", source.arcs
    else:
        where = "graph" if isinstance(source, bytes) else source.path
        try:
            arcs = read_fst(Cursor(source, where) if isinstance(source, bytes) else open_file(source.path))
        except DataError as error:
            raise GraphError(f"{where}: not a readable OpenFst file ({error})") from error
    # An epsilon cycle that has an arc of negative cost: the search would not end.
    silent = np.flatnonzero((arcs.ilabel == 0) & (arcs.log_prob > -np.inf))
    src, dst, log_prob = arcs.src[silent], arcs.dst[silent], arcs.log_prob[silent]
    if (log_prob > 0).any():
        adjacency = sparse.csr_array((np.ones(len(silent)), (src, dst)), shape=(arcs.num_states,) * 2)
        _, component = csgraph.connected_components(adjacency, connection="strong")
        for bad in np.flatnonzero((component[src] == component[dst]) & (log_prob > 0)):
            raise GraphError(
                f"{where}: the epsilon arc from state {src[bad]} to {dst[bad]} has cost {-log_prob[bad]:g} and lies on a "
                "cycle of epsilon arcs; expected no negative cost there (the search would not end)"
            )
    numbered = replace(arcs, olabel=np.arange(1, len(arcs.src) + 1))
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        path = Path(folder, "graph.fst")
        path.write_bytes(numbered.to_bytes())
        return kaldifst.StdVectorFst.read(str(path)), arcs


@dataclass(frozen=True)
class DecoderConfig:
    """Options of the search.

    Attributes:
        beam (nats): Paths worse than the best of their frame by more than this cost are dropped.
        lattice_beam (nats): Paths of the lattice worse than the best one by more than this are pruned.
        acoustic_scale (factor): Factor on the network outputs; 1.0 is right for LF-MMI.
        max_active (states): Most that are alive per frame, what keeps a wide beam fast where scores are flat. Where a search
            for a lattice has more on average its beam is narrowed, by steps of 1 nat.
        first_beam (nats): The beam of the search for a lattice. Where the best path that the search without one finds is not
            in the lattice it is widened by steps of 3, at most to `beam`.
    """

    beam: float = 16.0
    lattice_beam: float = 6.0
    acoustic_scale: float = 1.0
    max_active: int = 2500
    first_beam: float = 9.0

    def __post_init__(self) -> None:
        check_range(self, "(0, inf]", "beam", "lattice_beam", "acoustic_scale", "first_beam")
        check_range(self, "[2, inf)", "max_active")


@dataclass(frozen=True)
class Hypothesis:
    """Best path of one utterance.

    If no final state was reached it is the best path to any state, and not `complete`; when no path survived at all there
    are no words and both scores are -inf.
    """

    words: tuple[str, ...]
    graph_log_prob: float  # of the path in the graph, its final weight included
    acoustic_log_prob: float  # sum of the scaled network outputs along the path
    complete: bool


NO_PATH = Hypothesis((), -np.inf, -np.inf, complete=False)


class _Paths(NamedTuple):
    """A lattice: start, costs of the ends [S, 2], sources and the rest of its arcs, whose `olabel` is an arc's number."""

    start: int
    finals: npt.NDArray[np.float32]
    src: npt.NDArray[np.int32]
    arcs: npt.NDArray[Any]


def _paths_of(found: bool, lattice: Any) -> _Paths | None:
    """Of a lattice of kaldifst, which writes them to files alone."""
    if not found:
        return None
    with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
        path = Path(folder, "lattice")
        lattice.write(str(path))
        cursor = open_file(path)
        header = read_header(cursor)
        return _Paths(header.start, *read_body(cursor, header, LATTICE_ARC))


def _beside(one: _Paths, other: _Paths) -> _Paths:
    """The paths of both, whose starts become one."""
    number = len(one.finals) + np.arange(len(other.finals), dtype=np.int32)
    number[other.start + 1 :] -= 1
    number[other.start] = one.start
    arcs = other.arcs.copy()
    arcs["dst"] = number[arcs["dst"]]
    src = np.concatenate([one.src, number[other.src]])
    order = np.argsort(src, kind="stable")
    finals = np.concatenate([one.finals, np.delete(other.finals, other.start, axis=0)])
    return _Paths(one.start, finals, src[order], np.concatenate([one.arcs, arcs])[order])


def _cost(path: Any) -> float:
    """Of a linear lattice of kaldifst; inf for None."""
    if path is None:
        return np.inf
    weight = require("kaldifst", extra="recipes").get_linear_symbol_sequence(path)[-1]
    return float(weight.value1 + weight.value2)


class Decoder:
    """A decoding graph made ready for search.

    `narrowed` has the beams, in nats, of the searches for a lattice that `max_active` narrowed, by the name of the
    utterance; 0 where the lattice is the best path alone.

    `graph` is a `DecodingGraph`, the path or bytes of an OpenFst file (vector or const, binary or text), or a pywrapfst
    object; `words` are those of id 1, 2, ...: `lexicon.words`, or `words_and_pieces(lexicon)`, whose pieces are joined to
    words. A graph that cannot be read, is damaged, has no start state, a cycle of epsilons with a negative cost, or a word
    id beyond `words` is a GraphError.
    """

    __repr__ = brief_of("words", "config")

    def __init__(
        self, graph: Graph, words: Sequence[str | Piece], config: DecoderConfig | None = None
    ) -> None:
        self.config = config or DecoderConfig()
        self.words = tuple(words)
        source = portable(graph)
        self._fst, self._arcs = load(source)
        self._graph = source if isinstance(source, DecodingGraph) else None
        self._live_states: LiveStates | None = None
        self.narrowed: dict[str, float] = {}
        self._num_pdfs = int(self._arcs.ilabel.max(initial=0))
        max_word = int(self._arcs.olabel.max(initial=0))
        if max_word > len(self.words):
            raise GraphError(
                f"graph: word id {max_word} stands on an arc, but words has only {len(self.words)}"
            )

    def decode(self, nnet_output: npt.ArrayLike, name: str = "") -> Hypothesis:
        """Best path for one utterance, `name` in messages, with pseudo-log-likelihoods [T, P].

        -inf is legal; NaN and +inf are a DataError, fewer columns than the graph has pdfs or other than two axes a
        ShapeError. No lattice is kept, which is several times faster and finds the same path.
        """
        path, complete = self._best_path(self._scaled(nnet_output, name))
        if path is None:
            return NO_PATH
        kaldifst = require("kaldifst", extra="recipes")
        _, _, numbers, weight = kaldifst.get_linear_symbol_sequence(path)
        word_ids = self._arcs.olabel[np.array(numbers, dtype=np.int64) - 1].tolist()
        words = spelt_out(self.words[word_id - 1] for word_id in word_ids if word_id)
        return Hypothesis(words, -weight.value1, -weight.value2, complete)

    def _best_path(self, scores: Float32Array) -> tuple[Any, bool]:
        """As a linear lattice of kaldifst, None where no path survived; and whether it reached a final state."""
        if not len(scores):
            return None, False
        kaldi_decoder = require("kaldi_decoder", extra="recipes")
        most = self.config.max_active
        options = kaldi_decoder.FasterDecoderOptions(
            beam=self.config.beam, max_active=most, min_active=min(_MIN_ACTIVE, most - 1)
        )
        search = kaldi_decoder.FasterDecoder(self._fst, options)
        search.decode(kaldi_decoder.DecodableCtc(scores))
        ok, path = search.get_best_path()
        return (path, bool(search.reached_final())) if ok else (None, False)

    def lattice(self, nnet_output: npt.ArrayLike, name: str = "") -> Lattice | None:
        """The likely paths of one utterance; arguments and errors as for `decode`.

        Their cost exceeds that of the best by at most about `lattice_beam`. Transitions are pdf + 1; costs are those of the
        search, acoustic scale included. If no final state was reached every state of the last frame is final. None when
        no path survived. The lattice of a `DecodingGraph` is a `WordLattice`. Where the beam was narrowed (`narrowed`), the
        path that `decode` finds is in it nevertheless.
        """
        found = self._likely_paths(self._scaled(nnet_output, name), name)
        if found is None:
            return None
        start, finals, src, arcs = found
        number, dst = arcs["olabel"] - 1, arcs["dst"].copy()
        labels = (self._arcs.ilabel[number], self._arcs.olabel[number])
        columns: list[Any] = [len(finals), start, src, dst, *labels, *arcs["cost"].T.copy(), *finals.T.copy()]
        graph = self._graph
        if graph is None:
            return Lattice(*columns)
        state = np.full(len(finals), graph.arcs.start)  # of the graph
        state[dst] = graph.arcs.dst[number]
        ends = graph.final_language_cost[state]
        columns += [graph.language_cost[number].astype(np.float32)]
        columns += [np.where(np.isfinite(ends), ends, 0.0).astype(np.float32), graph.weights, graph.words]
        return WordLattice(*columns)

    def _likely_paths(self, scores: Float32Array, name: str) -> _Paths | None:
        """Of a search that found no worse a path than `_best_path` does, or, where it would be too large, beside that path.

        What beam is needed differs from utterance to utterance.
        """
        self.narrowed.pop(name, None)
        if not len(scores):
            return None
        path, complete = self._best_path(scores)
        beam, search, narrowed = min(self.config.first_beam, self.config.beam), None, 0.0
        while self._is_small(scores, beam):
            search = self._search(scores, beam)
            found, best = search.get_best_path()
            if beam >= self.config.beam or (found and _cost(best) <= _cost(path) + _ROUNDING):
                return _paths_of(*search.get_raw_lattice())
            beam, narrowed = min(beam + _WIDENED, self.config.beam), beam
        while search is None and beam > _NARROWED:
            beam -= _NARROWED
            if self._is_small(scores, beam):
                search, narrowed = self._search(scores, beam), beam
        self.narrowed[name] = narrowed
        known = _paths_of(path is not None, path)
        if search is None:
            return known
        likely, ends = _paths_of(*search.get_raw_lattice()), bool(np.isfinite(search.final_relative_cost()))
        if likely is None or known is None:
            return likely or known
        if ends != complete:
            return likely if ends else known
        return _beside(likely, known)

    def _is_small(self, scores: Float32Array, beam: float) -> bool:
        """Whether a search with this beam has at most `max_active` live states a frame, on average."""
        if self._arcs.num_states <= self.config.max_active:
            return True
        if self._live_states is None:
            self._live_states = LiveStates(self._arcs)
        most = self.config.max_active * (len(scores) + 1)
        return self._live_states.count(scores, beam, most) <= most

    def _search(self, scores: Float32Array, beam: float) -> Any:
        """kaldi-decoder's object after a search for a lattice."""
        kaldi_decoder = require("kaldi_decoder", extra="recipes")
        options = kaldi_decoder.LatticeSimpleDecoderConfig(beam=beam, lattice_beam=self.config.lattice_beam)
        search = kaldi_decoder.LatticeSimpleDecoder(self._fst, options)
        search.decode(kaldi_decoder.DecodableCtc(scores))
        return search

    def _scaled(self, nnet_output: npt.ArrayLike, name: str) -> Float32Array:
        """The scores, contiguous. kaldi-decoder reads beyond the end of a short row, hence the checks."""
        scores = np.ascontiguousarray(nnet_output, dtype=np.float32)
        where = f"nnet_output of {name!r}" if name else "nnet_output"
        if scores.ndim != 2:
            raise ShapeError(f"{where}: expected [T, P], got shape {list(scores.shape)}")
        if scores.shape[1] < self._num_pdfs:
            raise ShapeError(
                f"{where}: has {counted(scores.shape[1], 'column')}, the graph has pdfs up to {self._num_pdfs - 1}"
            )
        if np.isnan(scores).any() or np.isposinf(scores).any():
            raise DataError(f"{where}: NaN or +inf among the scores")
        scale = self.config.acoustic_scale
        return scores if scale == 1.0 else scores * np.float32(scale)


def search_all(
    search: Callable[[Decoder, npt.ArrayLike, str], Found],
    nnet_outputs: Mapping[str, npt.ArrayLike],
    graph: Graph,
    words: Sequence[str | Piece],
    config: DecoderConfig | None = None,
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    narrowed: dict[str, float] | None = None,
) -> dict[str, Found]:
    """`search(decoder, nnet_output [T, P], name)`, which can be pickled, of every utterance; arguments as for `decode`."""
    scores = {name: np.asarray(output, dtype=np.float32) for name, output in nnet_outputs.items()}
    make = (portable(graph), tuple(words), config)
    workers = min(num_workers or os.cpu_count() or 1, len(scores))
    found: dict[str, tuple[Found, float | None]] = {}
    can_fork = "fork" in multiprocessing.get_all_start_methods()  # not on Windows
    if executor is None and (workers <= 1 or not can_fork):
        found = _search(Decoder(*make), search, scores, progress)
    else:
        # Chunks are dealt out by falling length, so that no worker is left with the long ones. Processes of our own inherit
        # the decoder; to those of an executor the graph goes with every chunk.
        count = min(len(scores), (4 if executor else _CHUNKS) * workers)
        longest_first = sorted(scores, key=lambda name: (-len(scores[name]), name))
        chunks = [{name: scores[name] for name in longest_first[part::count]} for part in range(count)]
        # Forked: the workers touch no threads of torch or numba, which do not survive a fork, and start in milliseconds.
        fork = multiprocessing.get_context("fork" if can_fork else None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            pool = executor or ProcessPoolExecutor(workers, fork, _inherit, (Decoder(*make),))
            with nullcontext() if executor else pool:
                what = make if executor else None
                futures = [pool.submit(_search, what, search, chunk) for chunk in chunks]
                try:
                    for future in as_completed(futures):
                        found |= future.result()
                        if progress is not None:
                            progress(len(found), len(scores))
                finally:  # who is interrupted does not wait for the rest
                    for future in futures:
                        future.cancel()
    beams = {name: beam for name in scores if (beam := found[name][1]) is not None}
    if narrowed is not None:
        narrowed |= beams
    elif beams:
        logging.getLogger("fsachain").warning(told_narrowed(beams))
    return {name: found[name][0] for name in scores}


def told_narrowed(beams: Mapping[str, float]) -> str:
    """A line about `Decoder.narrowed`, which is not empty."""
    widest, least = max(beams.values()), min(beams.values())
    names = [*beams][:_NAMED]
    more = f" and {len(beams) - _NAMED} more" if len(beams) > _NAMED else ""
    return (
        f"{counted(len(beams), 'utterance')} with too many likely paths (decoding.search.max_active), whose lattices have "
        f"a beam of {least:g}{f' to {widest:g}' if widest > least else ''} nats: {', '.join(names)}{more}"
    )


_CHUNKS = 32  # for each process: as often a bar moves
_inherited: list[Decoder] = []  # by a process that a search forked


def _inherit(decoder: Decoder) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _inherited[:] = [decoder]


def _search(
    make: Decoder | tuple[Source, tuple[str | Piece, ...], DecoderConfig | None] | None,
    search: Callable[[Decoder, npt.ArrayLike, str], Found],
    scores: Mapping[str, Float32Array],
    progress: Progress | None = None,
) -> dict[str, tuple[Found, float | None]]:
    """By name what was found, and what `Decoder.narrowed` has of it."""
    decoder = Decoder(*make) if isinstance(make, tuple) else make or _inherited[0]
    found = {}
    for name, output in scores.items():
        found[name] = search(decoder, output, name), decoder.narrowed.get(name)
        if progress is not None:
            progress(len(found), len(scores))
    return found


def decode(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    graph: Graph,
    words: Sequence[str | Piece],
    config: DecoderConfig | None = None,
    **how: Any,
) -> dict[str, Hypothesis]:
    """Best path of every utterance, from network outputs [T, P]; the result does not depend on the number of workers.

    `graph`, `words` and `config` are as for `Decoder`; where the graph is a path, every worker reads it. In `how`,
    `num_workers` counts processes: all processors by default, 1 searches in this process. An `executor`, for instance a
    cluster's, runs the work instead of processes of our own. `progress` is called with (utterances done, utterances in all).
    Searches for lattices fill the dict `narrowed` with what `Decoder.narrowed` has; without it a line is logged.
    """
    return search_all(Decoder.decode, nnet_outputs, graph, words, config, **how)


def lattices(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    graph: DecodingGraph,
    words: Sequence[str | Piece],
    config: DecoderConfig | None = None,
    **how: Any,
) -> dict[str, WordLattice | None]:
    """`Decoder.lattice` of every utterance; arguments as for `decode`."""
    return search_all(_word_lattice, nnet_outputs, graph, words, config, **how)


def _word_lattice(decoder: Decoder, nnet_output: npt.ArrayLike, name: str) -> WordLattice | None:
    found = decoder.lattice(nnet_output, name)
    if not isinstance(found, WordLattice | None):
        raise GraphError("graph: expected a DecodingGraph, which knows the grammar's costs")
    return found
