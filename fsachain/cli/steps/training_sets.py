"""Utterances with the numerators that were made for them, whichever step made them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.network_spec import NetworkSpec
from fsachain.data.dataset import Example, cut_example
from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import DataError
from fsachain.graph.chunks import Chunk, holds_chunks, load_chunks
from fsachain.graph.numerator import Numerator
from fsachain.graph.numerator_files import load_numerators, source_of
from fsachain.graph.shards import TableShards
from fsachain.table import TransitionTable, compile_table


@dataclass(frozen=True)
class TrainingSet:
    """Utterances and the numerators of those that can be used, by utterance id."""

    data: DataDir
    numerators: Mapping[str, Numerator]

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> TrainingSet:
        """The utterances with the numerators that `make_numerators` wrote for them.

        Raises:
            DataError: a numerator was made for another transcript.
        """
        graphs = load_numerators(numerators)
        # Those of patterns and graphs say what they say, whatever the transcript.
        compared = graphs if source_of(numerators) == "transcripts" else ()
        for utterance in data:
            if utterance.id in compared and graphs.words(utterance.id) != utterance.words:
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, graphs)

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances that have a numerator."""
        return self.numerators

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        """The utterances as they are."""
        return copies

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the utterances and of their copies, whose ids have a prefix."""
        compiled = {
            name: compile_table(numerator.fsa, num_pdfs, name=name)
            for name, numerator in self.numerators.items()
        }
        return {prefix + name: table for prefix in prefixes for name, table in compiled.items()}


@dataclass(frozen=True)
class ChunkedSet:
    """Utterances and the chunks of those that can be used: for each one list of chunks per copy.

    Attributes:
        data: the utterances.
        chunks: as `load_chunks` gives them.
        path: the file they came from, for messages.
    """

    data: DataDir
    chunks: Mapping[str, list[list[Chunk]]]
    path: Path

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances that have chunks."""
        return self.chunks

    def cut(self, copies: list[list[Example]], network: NetworkSpec) -> list[list[Example]]:
        """The chunks of every copy, with as much context as the network sees; utterances without are left out.

        Raises:
            DataError: the file was made for other copies, or for utterances of another length.
        """
        found: list[list[Example]] = [[] for _ in copies]
        for utterance, *examples in zip(self.data.utterances, *copies, strict=True):
            lists = self.chunks.get(utterance.id)
            if lists is None:
                continue
            names = [one[0].utterance for one in lists]
            if names != [example.id for example in examples]:
                raise DataError(
                    f"{self.path}: has chunks of {', '.join(names)}, expected those of "
                    f"{', '.join(example.id for example in examples)}; supervise anew after a change of speeds"
                )
            for made, example, chunks in zip(found, examples, lists, strict=True):
                made += [self._cut_one(example, chunk, network) for chunk in chunks]
        return found

    def _cut_one(self, example: Example, chunk: Chunk, network: NetworkSpec) -> Example:
        frames = -(-example.num_frames // network.subsampling)
        if frames != chunk.of_frames:
            raise DataError(
                f"{self.path}: chunk {chunk.id!r} is of {chunk.of_frames} output frames, the utterance has "
                f"{frames}; supervise anew after a change of features or network"
            )
        return cut_example(
            example,
            chunk.start,
            chunk.frame_weights,
            subsampling=network.subsampling,
            context=network.context,
            name=chunk.id,
        )

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """Compiled numerators by the ids of the chunks; these have the prefix of their copy already."""
        every = (chunk for lists in self.chunks.values() for one in lists for chunk in one)
        return {chunk.id: compile_table(chunk.fsa, num_pdfs, name=chunk.id) for chunk in every}


@dataclass(frozen=True)
class CompiledSet(TrainingSet):
    """Utterances and shards of compiled numerators; `numerators` is empty.

    Attributes:
        shards: tables by utterance id, mapped into memory.
    """

    shards: TableShards

    @property
    def supervised(self) -> Container[str]:
        """Ids of the utterances in the shards."""
        return self.shards

    @classmethod
    def read(cls, data: DataDir, numerators: Path) -> CompiledSet:
        """The utterances with the shards that `make_shards` wrote for them.

        Raises:
            DataError: as for `TrainingSet.read`, or a shard is damaged: found now, and not hours later.
        """
        shards = TableShards(numerators)
        shards.check_bodies()
        for utterance in data:
            if utterance.id in shards and not shards.says(utterance.id, utterance.words):
                raise DataError(
                    f"{numerators}: the transcript of {utterance.id!r} has changed since its numerator was made; "
                    "build the numerators anew"
                )
        return cls(data, {}, shards)

    def tables(self, num_pdfs: int, prefixes: Sequence[str]) -> dict[str, TransitionTable]:
        """The tables by the ids of the utterances and of their copies, whose ids have a prefix.

        Raises:
            DataError: a table was made for a tree of another number of pdfs.
        """
        for name, table in self.shards.items():
            if table.num_pdfs != num_pdfs:
                raise DataError(
                    f"{self.shards.folder}: the numerator of {name!r} was made for {table.num_pdfs} pdfs; expected "
                    f"{num_pdfs}; compile the numerators anew"
                )
        return {prefix + name: table for prefix in prefixes for name, table in self.shards.items()}


def read_training_set(data: DataDir, numerators: Path) -> TrainingSet | ChunkedSet:
    """The utterances with what `make_numerators`, `make_shards` (a folder) or `make_supervision` wrote for them.

    Raises:
        GraphError: the file holds neither.
        DataError: as `TrainingSet.read`.
    """
    if numerators.is_dir():
        return CompiledSet.read(data, numerators)
    if holds_chunks(numerators):
        return ChunkedSet(data, load_chunks(numerators), numerators)
    return TrainingSet.read(data, numerators)


def read_flat_set(data: DataDir, numerators: Path) -> TrainingSet:
    """The utterances with whole numerators, from a file or a folder of shards; errors as `read_training_set`."""
    return CompiledSet.read(data, numerators) if numerators.is_dir() else TrainingSet.read(data, numerators)
