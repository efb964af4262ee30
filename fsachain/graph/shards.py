"""Numerators of a whole corpus, compiled, in files of a few thousand tables each, made by any number of workers.

Each shard is made by one worker and written all or nothing, so a job that was killed goes on with the shards that
are missing. A shard carries a fingerprint of what it was made of; if text, lexicon, tree or normalization have
changed, it is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fsachain.errors import ConfigError, DataError, GraphError, brief, but_for, counted
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.forgive import Forgiveness
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import Numerator, build_numerator, made_with, told_without_floored
from fsachain.table import VERSION, TableFile, TransitionTable, compile_table, write_tables

SUFFIX = ".tables"
DEFAULT_SHARD_SIZE = 2000
Transcripts = Sequence[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, eq=False)
class NumeratorMaker:
    """Makes a compiled numerator of a transcript.

    Attributes:
        lexicon, tree: as for `build_numerator`.
        normalization: `DenominatorGraph.normalization_fsa()`, or None.
        forgive: what transcripts may be wrong in, or None.
        floor: as for `build_numerator`.
    """

    lexicon: Lexicon
    tree: ContextTree
    normalization: Fsa | None = None
    forgive: Forgiveness | None = None
    floor: float = 0.0

    __repr__ = brief

    def numerator(self, name: str, words: Sequence[str]) -> Numerator:
        """Errors as for `build_numerator`."""
        how: dict[str, Any] = {"forgive": self.forgive, "floor": self.floor, "name": name}
        return build_numerator(words, self.lexicon, self.tree, normalization=self.normalization, **how)

    def table(self, name: str, words: Sequence[str]) -> TransitionTable:
        """The compiled numerator; errors as for `build_numerator`."""
        return self.compiled(name, self.numerator(name, words))

    def compiled(self, name: str, numerator: Numerator) -> TransitionTable:
        """The table of one of its numerators, which may have a pdf more than the tree, that of stars of frames."""
        stars = self.forgive is not None and self.forgive.has_star_of_frames
        return compile_table(numerator.fsa, self.tree.num_pdfs + stars, name=name)


@dataclass(frozen=True)
class ShardSummary:
    """What `make_shards` did.

    `num_reused` of the shards were there already, `num_floored` of the tables have n-grams that the normalization never
    saw; excluded: utterance -> why it has no table.
    """

    num_tables: int
    num_shards: int
    num_reused: int
    excluded: dict[str, str] = field(default_factory=dict)
    num_floored: int = 0

    def __str__(self) -> str:
        return (
            f"{counted(self.num_tables, 'numerator')} in {counted(self.num_shards, 'shard')}"
            f"{f', {self.num_reused} of them were there' if self.num_reused else ''}"
            f"{but_for(len(self.excluded))}{told_without_floored(self.num_floored)}"
        )


def make_shards(
    transcripts: Transcripts,
    maker: NumeratorMaker,
    out: str | os.PathLike[str],
    *,
    shard_size: int = DEFAULT_SHARD_SIZE,
    jobs: int = 1,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShardSummary:
    """Compile the numerators of `transcripts` into shards in the folder `out`.

    Args:
        transcripts: (utterance, words), in the order of the shards.
        maker: lexicon, tree, normalization.
        out: folder, made if absent. Shards of an earlier run that nothing has changed for stay.
        shard_size: utterances per shard.
        jobs: processes; 1 works in this one.
        executor: used instead of processes of our own; its workers must see the folder.
        progress: called with (utterances done, utterances in all) as shards come in.

    Raises:
        ConfigError: jobs or shard_size below 1.
        DataError: an utterance occurs twice.
    """
    if jobs < 1 or shard_size < 1:
        raise ConfigError(f"jobs = {jobs}, shard_size = {shard_size}: expected at least 1 each")
    if len({name for name, _ in transcripts}) < len(transcripts):
        raise DataError("transcripts: an utterance occurs twice; expected unique ids")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    packed = pickle.dumps(maker)
    made = made_with(maker.lexicon, maker.tree, maker.forgive)
    origin = _fingerprint(made, maker)
    shards = {
        folder / f"{number:05d}{SUFFIX}": tuple(transcripts[first : first + shard_size])
        for number, first in enumerate(range(0, len(transcripts), shard_size))
    }
    for path in folder.glob(f"*{SUFFIX}*"):
        # Others are of an earlier run with more utterances, or half written by one that was killed.
        if path not in shards:
            path.unlink()
    prints = {
        path: hashlib.sha256(json.dumps([origin, list(part)]).encode()).hexdigest()
        for path, part in shards.items()
    }
    missing = [path for path in shards if not _is_sound(path, prints[path])]
    done, total = len(transcripts) - sum(len(shards[path]) for path in missing), len(transcripts)
    if progress is not None:
        progress(done, total)
    is_alone = executor is not None or jobs == 1 or len(missing) <= 1
    with nullcontext(executor) if is_alone else ProcessPoolExecutor(min(jobs, len(missing))) as pool:
        work = [
            (packed, shards[path], str(path), {"fingerprint": prints[path], "made_with": made})
            for path in missing
        ]
        for count in map(_make, work) if pool is None else _as_they_come(pool, work):
            done += count
            if progress is not None:
                progress(done, total)
    files = [TableFile(path) for path in shards]
    excluded = {name: reason for file in files for name, reason in file.facts["excluded"].items()}
    floored = sum(len(file.facts["floored"]) for file in files)
    return ShardSummary(sum(map(len, files)), len(shards), len(shards) - len(missing), excluded, floored)


class TableShards(Mapping[str, TransitionTable]):
    """The tables of all shards in a folder, by utterance.

    Attributes:
        folder: where they are.
        files: the shards, opened, in the order of their names.

    Raises:
        DataError: there is no shard, one is damaged, or an utterance is in two of them.
    """

    def __repr__(self) -> str:
        return f"TableShards({self.folder}: {counted(len(self), 'utterance')} in {counted(len(self.files), 'file')})"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.files = [TableFile(path) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]
        if not self.files:
            raise DataError(f"{self.folder}: no shards of compiled tables (*{SUFFIX})")
        self._file_of = {name: file for file in self.files for name in file}
        if len(self._file_of) != sum(map(len, self.files)):
            raise DataError(f"{self.folder}: an utterance is in two shards; make them anew")

    def check_bodies(self) -> None:
        """Compare every table of every shard with its checksum; all files are read.

        Raises:
            DataError: names the first damaged shard, and how it is made anew.
        """
        for file in self.files:
            try:
                file.check_bodies()
            except DataError as error:
                raise DataError(f"{error}; `fsachain num-tables` makes this shard anew") from error

    @property
    def origin(self) -> Any:
        """What `made_with` said of lexicon and tree; None for shards of earlier versions."""
        return self.files[0].facts.get("made_with")

    @property
    def floored(self) -> frozenset[str]:
        """Utterances whose tables are for development sets alone; see `Numerator.floored`."""
        return frozenset(name for file in self.files for name in file.facts.get("floored", ()))

    def says(self, name: str, words: Sequence[str]) -> bool:
        """Whether the table of an utterance was made of these words."""
        return bool(self._file_of[name].facts["words"][name] == words_checksum(words))

    def __getitem__(self, name: str) -> TransitionTable:
        return self._file_of[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def words_checksum(words: Sequence[str]) -> int:
    """CRC-32 of a transcript, which a shard keeps for each table."""
    return zlib.crc32(" ".join(words).encode())


def _fingerprint(made: Mapping[str, Any], maker: NumeratorMaker) -> str:
    """Hash of all that a table depends on beside its transcript."""
    digest = hashlib.sha256(json.dumps([VERSION, made, maker.floor]).encode())
    if maker.forgive is not None:
        digest.update(repr(maker.forgive).encode())
    if maker.normalization is not None:
        fsa = maker.normalization
        digest.update(repr((fsa.num_states, fsa.start)).encode())
        for array in (fsa.src, fsa.dst, fsa.pdf, fsa.log_prob, fsa.final_log_prob):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _is_sound(path: Path, fingerprint: str) -> bool:
    """Whether a shard has this fingerprint, and nothing in it is damaged."""
    try:
        file = TableFile(path)
        if file.facts.get("fingerprint") != fingerprint:
            return False
        file.check_bodies()
    except DataError:
        return False
    return True


@lru_cache(maxsize=2)
def unpacked(packed: bytes) -> Any:
    """What was pickled, once for all tasks of a worker, so that for instance a normalization is indexed once."""
    return pickle.loads(packed)


def _make(work: tuple[bytes, Transcripts, str, dict[str, Any]]) -> int:
    """Write one shard; the number of utterances that went in, excluded or not."""
    packed, transcripts, path, facts = work
    maker: NumeratorMaker = unpacked(packed)
    tables: dict[str, TransitionTable] = {}
    excluded: dict[str, str] = {}
    floored: list[str] = []
    for name, words in transcripts:
        try:
            numerator = maker.numerator(name, words)
            tables[name] = maker.compiled(name, numerator)
            floored += [name] if numerator.floored else []
        except GraphError as error:
            excluded[name] = str(error)
    said = {name: words_checksum(words) for name, words in transcripts if name in tables}
    write_tables(path, tables, {**facts, "excluded": excluded, "floored": floored, "words": said})
    return len(transcripts)


def _as_they_come(pool: Executor, work: Sequence[Any]) -> Iterator[int]:
    futures = [pool.submit(_make, one) for one in work]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
