"""Words from network outputs: beam search over a decoding graph with kaldi-decoder.

The graph is what `fsachain.graph.build_decoding_graph` makes: input label pdf + 1, output label word id,
costs. It crosses to kaldifst as a file, which is exact. kaldi-decoder holds the interpreter
lock while it searches, so utterances are shared out over processes, not threads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fsachain.decode.search_graph import Graph, Source, load, portable
from fsachain.decode.workers import Search, search_all
from fsachain.errors import ConfigError, DataError, GraphError, ShapeError, require
from fsachain.kaldi.lattice import read_lattice
from fsachain.kaldi.lattice_arrays import Lattice
from fsachain.kaldi.stream import open_file

Float32Array = npt.NDArray[np.float32]
SEARCHES = ("lattice", "beam")


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
        graph: Path or bytes of an OpenFst file (vector or const, binary or text), or a pywrapfst object.
        words: Word of id 1, 2, ...: `lexicon.words`.
        config: Options of the search.

    Raises:
        GraphError: the graph cannot be read, is damaged, has no start state, a cycle of epsilons with a negative
            cost, or a word id beyond `words`.
    """

    def __init__(self, graph: Graph, words: Sequence[str], config: DecoderConfig | None = None) -> None:
        self.config = config or DecoderConfig()
        self.words = tuple(words)
        self._fst, self._num_pdfs, max_word = load(portable(graph))
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
        scores = self._scaled(nnet_output, name)
        if not len(scores):
            return NO_PATH
        ok, path, complete = self._search(scores)
        if not ok:
            return NO_PATH
        kaldifst = require("kaldifst", extra="recipes")
        _, _, word_ids, weight = kaldifst.get_linear_symbol_sequence(path)
        words = tuple(self.words[word_id - 1] for word_id in word_ids)
        return Hypothesis(words, -weight.value1, -weight.value2, complete)

    def _search(self, scores: Float32Array) -> tuple[bool, Any, bool]:
        """Whether a path survived, the path as a linear lattice, and whether it ends in a final state."""
        if self.config.search == "beam":
            kaldi_decoder = require("kaldi_decoder", extra="recipes")
            beam_options = kaldi_decoder.FasterDecoderOptions(
                beam=self.config.beam, max_active=self.config.max_active
            )
            beam = kaldi_decoder.FasterDecoder(self._fst, beam_options)
            beam.decode(kaldi_decoder.DecodableCtc(scores))
            ok, path = beam.get_best_path()
            return ok, path, beam.reached_final()
        lattice = self._lattice_search(scores)
        ok, path = lattice.get_best_path()
        return ok, path, bool(np.isfinite(lattice.final_relative_cost()))

    def lattice(self, nnet_output: npt.ArrayLike, name: str = "") -> Lattice | None:
        """The likely paths of one utterance, whatever `config.search` says.

        Args:
            nnet_output: as for `decode`.
            name: utterance id for messages.

        Returns:
            Paths whose cost exceeds that of the best by at most about `lattice_beam`. Transitions are pdf + 1; costs are
            those of the search, acoustic scale included. If no final state was reached every state of the last frame is
            final. None when no path survived.

        Raises:
            ShapeError, DataError: as `decode`.
        """
        scores = self._scaled(nnet_output, name)
        if not len(scores):
            return None
        ok, lattice = self._lattice_search(scores).get_raw_lattice()
        if not ok or not lattice.num_states:
            return None
        with tempfile.TemporaryDirectory(
            prefix="fsachain-"
        ) as folder:  # kaldifst writes lattices to files alone
            path = Path(folder, "lattice")
            lattice.write(str(path))
            return read_lattice(open_file(path)).expanded()

    def _scaled(self, nnet_output: npt.ArrayLike, name: str) -> Float32Array:
        scores = _checked_scores(nnet_output, self._num_pdfs, name)
        scale = self.config.acoustic_scale
        return scores if scale == 1.0 else scores * np.float32(scale)

    def _lattice_search(self, scores: Float32Array) -> Any:
        """A decoder of kaldi-decoder that has searched, and keeps a lattice."""
        kaldi_decoder = require("kaldi_decoder", extra="recipes")
        options = kaldi_decoder.LatticeSimpleDecoderConfig(
            beam=self.config.beam, lattice_beam=self.config.lattice_beam
        )
        lattice = kaldi_decoder.LatticeSimpleDecoder(self._fst, options)
        lattice.decode(kaldi_decoder.DecodableCtc(scores))
        return lattice


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
    make = partial(_best_path, portable(graph), tuple(words), config)
    return search_all(nnet_outputs, make, num_workers=num_workers, executor=executor, progress=progress)


def _best_path(source: Source, words: tuple[str, ...], config: DecoderConfig | None) -> Search[Hypothesis]:
    return Decoder(source, words, config).decode


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
