"""Kaldi's alignments, phone sequences and chain examples as files that the other steps take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fsachain.data.kaldi_examples import SupervisedExample, read_examples
from fsachain.decode.ctm import CtmEntry, write_ctm
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, save_chunks
from fsachain.graph.lexicon import read_phones
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.transitions import read_transition_model
from fsachain.kaldi.values import read_alignment, write_matrices

DATA, CHUNKS = "data", "chunks.npz"


def alignments_to_ctm(
    tables: Sequence[str], model: Path, phones: Path, out: Path, *, frame_shift: float
) -> int:
    """Write the phones of alignments with their times as CTM; returns the number of utterances.

    Args:
        tables: of alignments, transition ids frame by frame, as for `read_table`.
        model: the transition model that they are of.
        phones: its phones.txt.
        out: the CTM file.
        frame_shift: seconds for each frame of the alignments.

    Raises:
        ConfigError: a frame shift that is not above 0.
        DataError: a file that cannot be read, or files that do not belong together.
    """
    if not 0 < frame_shift < float("inf"):
        raise ConfigError(f"frame_shift = {frame_shift}: expected seconds above 0")
    transitions, names = read_transition_model(model), read_phones(phones)
    if transitions.num_phones != len(names):
        raise DataError(f"{model} has {transitions.num_phones} phones; expected {len(names)}, as in {phones}")
    entries: list[CtmEntry] = []
    seen: set[str] = set()
    for table in tables:
        for name, alignment in read_table(table, read_alignment):
            if name in seen:
                raise DataError(f"{table}: the alignment of {name!r} is in another table too")
            seen.add(name)
            try:
                spans = transitions.phones(alignment)
            except DataError as error:
                raise DataError(f"{table}: utterance {name!r}: {error}") from error
            entries += [
                CtmEntry(name, frame_shift * first, frame_shift * (end - first), names[phone - 1])
                for phone, first, end in spans
            ]
    write_ctm(out, entries)
    return len(seen)


def estimate_lm_of_phones(
    table: str, out: Path, *, ngram_order: int, num_extra_lm_states: int, no_prune_ngram_order: int
) -> Fsa:
    """Estimate a phone language model of sequences of phone ids and write it as an OpenFst file.

    Args:
        table: of integer vectors, as for `read_table`.
        out: the file.
        ngram_order: as for `estimate_phone_lm`.
        num_extra_lm_states: as for `estimate_phone_lm`.
        no_prune_ngram_order: as for `estimate_phone_lm`.

    Raises:
        DataError: the table cannot be read or is empty.
    """
    sequences = [phones.tolist() for _, phones in read_table(table, read_alignment)]
    if not sequences:
        raise DataError(f"{table}: no sequence of phones")
    fsa = estimate_phone_lm(
        sequences,
        ngram_order=ngram_order,
        num_extra_lm_states=num_extra_lm_states,
        no_prune_ngram_order=no_prune_ngram_order,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    fsa.write(out)
    return fsa


@dataclass(frozen=True)
class ExampleSummary:
    """What `import_examples` wrote."""

    num_examples: int
    num_features: int
    num_pdfs: int
    subsampling: int
    num_speaker_vectors: int

    def __str__(self) -> str:
        text = (
            f"{self.num_examples} examples of {self.num_features} features and {self.num_pdfs} pdfs, one output for "
            f"{self.subsampling} frames"
        )
        if self.num_speaker_vectors:
            text += f"; {self.num_speaker_vectors} speaker vectors left out, our networks take none"
        return text


def import_examples(tables: Sequence[str], out: Path) -> ExampleSummary:
    """Turn chain examples into a data directory of features and a file of chunks, for `train_model`.

    The chunks are the examples' own, with the graphs that Kaldi made, normalization included. Weights of examples become
    factors on the derivatives of their frames.

    Args:
        tables: of chain examples, as for `read_table`; merged ones are taken apart.
        out: folder for `data` and `chunks.npz`.

    Raises:
        DataError: a table that cannot be read, examples of different kinds, one name twice, or no example.
    """
    features: dict[str, np.ndarray] = {}
    chunks: dict[str, list[list[Chunk]]] = {}
    kinds: set[tuple[int, int, int]] = set()
    speakers = 0
    for table in tables:
        for found in read_examples(table):
            name, matrix = found.example.id, found.example.features
            if name in features:
                raise DataError(f"{table}: the example {name!r} is in another table too")
            kinds.add((matrix.shape[1], found.num_pdfs, found.subsampling))
            if len(kinds) > 1:
                raise DataError(
                    f"{table}: example {name!r}: examples have (features, pdfs, subsampling) of {sorted(kinds)}; expected "
                    "one kind"
                )
            features[name], chunks[name] = matrix, [[_chunk(found)]]
            speakers += found.speaker_vector is not None
    if not features:
        raise DataError(f"{', '.join(tables)}: no example")
    data = (out / DATA).resolve()
    data.mkdir(parents=True, exist_ok=True)
    write_matrices(data / "feats.ark", features)
    (data / "text").write_text("".join(f"{name}\n" for name in features), encoding="utf-8")
    save_chunks(out / CHUNKS, chunks)
    return ExampleSummary(len(features), *kinds.pop(), speakers)


def _chunk(found: SupervisedExample) -> Chunk:
    window, subsampling = found.example.window, found.subsampling
    assert window is not None
    return Chunk(
        found.example.id,
        window.first,
        window.first + window.length,
        -(-found.example.num_frames // subsampling),
        found.numerator,
        np.float32(found.weight) * window.frame_weights,
    )
