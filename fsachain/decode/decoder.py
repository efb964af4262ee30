"""Words from network outputs: beam search over a decoding graph with kaldi-decoder.

The graph is what `fsachain.graph.build_decoding_graph` makes: input label pdf + 1, output label word id,
costs. It crosses from pywrapfst to kaldifst as a file, which is exact. kaldi-decoder holds the interpreter
lock while it searches, so utterances are shared out over processes, not threads.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.errors import ConfigError, DataError, GraphError, ShapeError, require

Float32Array = npt.NDArray[np.float32]
Graph = Any  # path of an OpenFst file, its bytes, or a pywrapfst object

SEARCHES = ("lattice", "beam")


@dataclass(frozen=True)
class _GraphFile:
    """A graph on disk; time and size are there so that a file written anew is read anew."""

    path: str
    modified_ns: int
    num_bytes: int


Source = _GraphFile | bytes


@dataclass(frozen=True)
class DecoderConfig:
    """Options of the search.

    Attributes:
        beam: Paths worse than the best of their frame by more than this cost are dropped. 10 to 16.
        lattice_beam: Paths of the lattice worse than the best one by more than this are pruned.
        acoustic_scale: Factor on the network outputs; 1.0 is right for LF-MMI.
        search: `lattice` keeps a lattice and reads its best path; `beam` keeps one path per state, which is
            several times faster and finds the same best path.
        max_active: Most states alive per frame; `beam` search only.
    """

    beam: float = 13.0
    lattice_beam: float = 6.0
    acoustic_scale: float = 1.0
    search: str = "lattice"
    max_active: int = 7000

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise ConfigError(f"search: {self.search!r} is not one of {', '.join(SEARCHES)}")
        for name in ("beam", "lattice_beam", "acoustic_scale", "max_active"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not positive")


@dataclass(frozen=True)
class Hypothesis:
    """Best path of one utterance.

    Attributes:
        words: The words, in order.
        graph_log_prob: Log-probability of the path in the graph, its final weight included.
        acoustic_log_prob: Sum of the scaled network outputs along the path.
        complete: True when the path ends in a final state. If none was reached, the best path to any state
            stands in; when no path survived at all there are no words and both scores are -inf.
    """

    words: tuple[str, ...]
    graph_log_prob: float
    acoustic_log_prob: float
    complete: bool


NO_PATH = Hypothesis((), -np.inf, -np.inf, complete=False)


class Decoder:
    """A decoding graph made ready for search.

    Args:
        graph: Path or bytes of an OpenFst file (standard arcs), or a pywrapfst object.
        words: Word of id 1, 2, ...: `lexicon.words`.
        config: Options of the search.

    Raises:
        GraphError: the graph cannot be read, has no start state, or has a word id beyond `words`.
    """

    def __init__(self, graph: Graph, words: Sequence[str], config: DecoderConfig | None = None) -> None:
        self.config = config or DecoderConfig()
        self.words = tuple(words)
        self._fst, self._num_pdfs, max_word = _load(_portable(graph))
        if max_word > len(self.words):
            raise GraphError(
                f"graph: word id {max_word} stands on an arc, but words has only {len(self.words)}"
            )

    def decode(self, nnet_output: npt.ArrayLike, name: str = "") -> Hypothesis:
        """Best path for one utterance.

        Args:
            nnet_output: [T, P] pseudo-log-likelihoods. -inf is legal, NaN and +inf are not.
            name: Utterance id for messages.

        Raises:
            ShapeError: not two axes, or fewer columns than the graph has pdfs.
            DataError: NaN or +inf among the scores.
        """
        scores = _checked_scores(nnet_output, self._num_pdfs, name)
        if not len(scores):
            return NO_PATH
        if self.config.acoustic_scale != 1.0:
            scores = scores * np.float32(self.config.acoustic_scale)
        ok, path, complete = self._search(scores)
        if not ok:
            return NO_PATH
        kaldifst = require("kaldifst", extra="recipes")
        _, _, word_ids, weight = kaldifst.get_linear_symbol_sequence(path)
        words = tuple(self.words[word_id - 1] for word_id in word_ids)
        return Hypothesis(words, -weight.value1, -weight.value2, complete)

    def _search(self, scores: Float32Array) -> tuple[bool, Any, bool]:
        """Whether a path survived, the path as a linear lattice, and whether it ends in a final state."""
        kaldi_decoder = require("kaldi_decoder", extra="recipes")
        decodable = kaldi_decoder.DecodableCtc(scores)
        if self.config.search == "beam":
            beam_options = kaldi_decoder.FasterDecoderOptions(
                beam=self.config.beam, max_active=self.config.max_active
            )
            beam = kaldi_decoder.FasterDecoder(self._fst, beam_options)
            beam.decode(decodable)
            ok, path = beam.get_best_path()
            return ok, path, beam.reached_final()
        lattice_options = kaldi_decoder.LatticeSimpleDecoderConfig(
            beam=self.config.beam, lattice_beam=self.config.lattice_beam
        )
        lattice = kaldi_decoder.LatticeSimpleDecoder(self._fst, lattice_options)
        lattice.decode(decodable)
        ok, path = lattice.get_best_path()
        return ok, path, bool(np.isfinite(lattice.final_relative_cost()))


def decode(
    nnet_outputs: Mapping[str, npt.ArrayLike],
    graph: Graph,
    words: Sequence[str],
    config: DecoderConfig | None = None,
    *,
    num_workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Hypothesis]:
    """Best path of every utterance; the result does not depend on the number of workers.

    Args:
        nnet_outputs: [T, P] network outputs by utterance id.
        graph: As for `Decoder`. A path must be readable by every worker.
        words: As for `Decoder`.
        config: Options of the search.
        num_workers: Processes; all processors by default, 1 searches in this process.
        executor: Runs the work instead of processes of our own, for instance a cluster's.
        progress: Called with (utterances done, utterances in all) as results come in.

    Raises:
        GraphError, ShapeError, DataError: as `Decoder` and `Decoder.decode`.
    """
    settings = config or DecoderConfig()
    source = _portable(graph)
    scores = {name: np.asarray(output, dtype=np.float32) for name, output in nnet_outputs.items()}
    workers = min(num_workers or os.cpu_count() or 1, len(scores))
    if executor is None and workers <= 1:
        decoder = Decoder(source, words, settings)
        return dict(_decode_here(decoder, scores, progress))
    with process_pool(workers) if executor is None else _borrowed(executor) as pool:
        chunks = _chunks(scores, workers)
        futures = [pool.submit(_decode_chunk, source, tuple(words), settings, chunk) for chunk in chunks]
        found: dict[str, Hypothesis] = {}
        for future in as_completed(futures):
            found.update(future.result())
            if progress is not None:
                progress(len(found), len(scores))
    return {name: found[name] for name in scores}


@contextmanager
def process_pool(num_workers: int) -> Iterator[Executor]:
    """Processes for `decode`.

    Forked where the system can: the workers touch neither torch nor numba, so the threads of these libraries,
    which do not survive a fork, are not missed, and workers start in milliseconds.
    """
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield pool


@contextmanager
def _borrowed(executor: Executor) -> Iterator[Executor]:
    yield executor


def _chunks(scores: Mapping[str, Float32Array], workers: int) -> list[dict[str, Float32Array]]:
    """Four chunks a worker, dealt out by falling length, so that no worker is left with the long ones."""
    count = min(len(scores), 4 * workers)
    longest_first = sorted(scores, key=lambda name: (-len(scores[name]), name))
    return [{name: scores[name] for name in longest_first[part::count]} for part in range(count)]


def _decode_chunk(
    source: Source, words: tuple[str, ...], config: DecoderConfig, scores: Mapping[str, Float32Array]
) -> dict[str, Hypothesis]:
    return dict(_decode_here(Decoder(source, words, config), scores, None))


def _decode_here(
    decoder: Decoder, scores: Mapping[str, Float32Array], progress: Callable[[int, int], None] | None
) -> Iterator[tuple[str, Hypothesis]]:
    for done, (name, output) in enumerate(scores.items(), start=1):
        yield name, decoder.decode(output, name)
        if progress is not None:
            progress(done, len(scores))


def _portable(graph: Graph) -> Source:
    """The graph as it crosses to another process; two versions of a file are told apart."""
    if isinstance(graph, bytes | _GraphFile):
        return graph
    if isinstance(graph, str | Path):
        path = Path(graph).resolve()
        if not path.is_file():
            raise GraphError(f"{path}: no such file")
        status = path.stat()
        return _GraphFile(str(path), status.st_mtime_ns, status.st_size)
    if hasattr(graph, "write_to_string"):
        return bytes(graph.write_to_string())
    raise GraphError(f"graph: expected a path, bytes or a pywrapfst object, got {type(graph).__name__}")


@lru_cache(maxsize=1)
def _load(source: Source) -> tuple[Any, int, int]:
    """The graph as kaldifst object, with the largest input and output label."""
    kaldifst = require("kaldifst", extra="recipes")
    if isinstance(source, bytes):
        with tempfile.TemporaryDirectory(prefix="fsachain-") as folder:
            path = Path(folder, "graph.fst")
            path.write_bytes(source)
            fst = kaldifst.StdVectorFst.read(str(path))
    else:
        fst = kaldifst.StdVectorFst.read(source.path)
    where = "graph" if isinstance(source, bytes) else source.path
    if fst is None:
        raise GraphError(f"{where}: not a readable OpenFst file with standard arcs")
    if fst.start < 0:
        raise GraphError(f"{where}: the graph has no start state")
    max_input = max_output = 0
    for state in kaldifst.StateIterator(fst):
        for arc in kaldifst.ArcIterator(fst, state):
            max_input = max(max_input, arc.ilabel)
            max_output = max(max_output, arc.olabel)
    return fst, max_input, max_output


def _checked_scores(nnet_output: npt.ArrayLike, num_pdfs: int, name: str) -> Float32Array:
    """The scores, contiguous. kaldi-decoder reads beyond a row without a word, hence the checks."""
    scores = np.ascontiguousarray(nnet_output, dtype=np.float32)
    where = f"nnet_output of {name!r}" if name else "nnet_output"
    if scores.ndim != 2:
        raise ShapeError(f"{where}: expected [T, P], got shape {list(scores.shape)}")
    if scores.shape[1] < num_pdfs:
        raise ShapeError(f"{where}: has {scores.shape[1]} columns, the graph has pdfs up to {num_pdfs - 1}")
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise DataError(f"{where}: NaN or +inf among the scores")
    return scores
