"""Data sets: which recordings there are, who speaks and what is said, as Kaldi data directories say it.

Manifests of lhotse (`fsachain.data.cuts`) give the same utterances.

Nothing is read but their small tables (`fsachain.data.kaldi_tables`): audio is opened in `fsachain.data.audio`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain.data.cuts import holds_cuts, read_cuts
from fsachain.data.faults import Fault, Faults, NoFaults
from fsachain.data.kaldi_tables import read_folder
from fsachain.data.tables import Table, read_table
from fsachain.data.utterance import Utterance, is_command
from fsachain.data.utterances import Chosen, Joined
from fsachain.errors import DataError
from fsachain.names import Names

__all__ = ["DataDir", "Table", "Utterance", "is_command", "read_table"]


@dataclass(frozen=True)
class DataDir:
    """Utterances with unique ids.

    Attributes:
        utterances: in the order of their recordings' table. Those that were read are made when they are asked for;
            slices are tuples.
    """

    utterances: Sequence[Utterance]

    def __post_init__(self) -> None:
        if isinstance(self.utterances, Chosen):  # from what is unique
            return
        seen = Names()
        for number, utterance in enumerate(self.utterances):
            if seen.add(utterance.id) < number:
                raise DataError(
                    f"utterance {utterance.id!r} occurs twice; ids are unique within joined directories"
                )

    def __len__(self) -> int:
        return len(self.utterances)

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    @classmethod
    def read(cls, path: str | Path, *, allow_commands: bool = False) -> DataDir:
        """Read one Kaldi data directory, lhotse manifest of cuts (`.jsonl`, `.jsonl.gz`) or folder of Shar shards.

        Args:
            path: the directory or file.
            allow_commands: accept recordings that are shell commands (or, in manifests, URLs). They are run
                later, by whoever loads the audio; do this only with data whose author you trust.

        Raises:
            DataError: a table is missing, malformed, or does not fit the others; the message names file and
                line.
        """
        return cls(_read(Path(path), allow_commands, NoFaults(Names())))

    @classmethod
    def check(cls, path: str | Path, *, allow_commands: bool = False) -> tuple[DataDir, Sequence[Fault]]:
        """What `read` reads, without stopping at faults.

        Args:
            path: as for `read`.
            allow_commands: as for `read`.

        Returns:
            The utterances that the tables agree on, and what is wrong with each of the others: the first fault.

        Raises:
            DataError: there is no such directory or file, or it lacks the tables themselves, or hundreds of lines
                are none of such a table.
        """
        faults = Faults(Names())
        return cls(_read(Path(path), allow_commands, faults)), faults

    @classmethod
    def join(cls, parts: Iterable[DataDir]) -> DataDir:
        """All utterances of several directories, in their order.

        Raises:
            DataError: an utterance id occurs twice.
        """
        return cls(Joined(part.utterances for part in parts))

    def select(self, keep: Callable[[Utterance], bool]) -> DataDir:
        """The utterances for which `keep` is true, in the same order."""
        places = array("I", (place for place, one in enumerate(self.utterances) if keep(one)))
        return DataDir(Chosen(self.utterances, places))


def _read(path: Path, allow_commands: bool, faults: Faults) -> Chosen:
    return (read_cuts if holds_cuts(path) else read_folder)(path, allow_commands, faults)
