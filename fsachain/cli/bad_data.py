"""What a command does about utterances that cannot be used: it goes on without them and says so, or stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click import echo

from fsachain.data.audio import Perturbation
from fsachain.data.dataset import Example, load_usable
from fsachain.data.features import FeatureConfig
from fsachain.data.kaldi_dir import DataDir
from fsachain.data.utterance import Fault, fault_table, write_faults
from fsachain.errors import ConfigError, DataError, FsachainError, LeftOutError

POLICIES = ("exclude", "stop")
FAULTS_FILE = "faults.jsonl"


@contextmanager
def bad_data_of(arguments: Mapping[str, Any], faults_file: Path) -> Iterator[BadData]:
    """The faults of a command while it runs; at its end they are printed and written, and `LeftOutError` is raised.

    Args:
        arguments: of the command: `bad_data` and `allow_commands`.
        faults_file: where all faults go, one JSON object per line; what an earlier run wrote there is deleted.
    """
    found = BadData(arguments["bad_data"], allow_commands=arguments["allow_commands"])
    try:
        yield found
    except FsachainError:
        if found.faults:
            echo(found.table())
        raise
    if found.faults:
        echo(found.table())
    found.finish(faults_file)


def data_with(path: Path, utterance: str | None, *, allow_commands: bool = False) -> DataDir:
    """A data set to look at one utterance of: what is wrong with others does not matter.

    Raises:
        DataError: there is no such data set, or something is wrong with this utterance.
    """
    data, faults = DataDir.check(path, allow_commands=allow_commands)
    for fault in faults:
        if fault.id == utterance:
            raise DataError(fault.reason)
    return data


def faults_beside(out: Path) -> Path:
    """Where the faults go of a command that writes one file."""
    return out.with_name(f"{out.stem}.{FAULTS_FILE}")


class BadData:
    """The faults of the data sets of one command.

    Args:
        policy: "exclude" keeps faults and goes on without the utterances; "stop" refuses data sets that have any. As
            `bad_data` of `TrainConfig`.
        allow_commands: as for `DataDir.read`.

    Attributes:
        faults: of all data sets that were read, in order.

    Raises:
        ConfigError: another policy.
    """

    def __init__(self, policy: str, *, allow_commands: bool = False) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"bad_data = {policy!r}: expected one of {', '.join(POLICIES)}")
        self.policy = policy
        self.allow_commands = allow_commands
        self.faults: list[Fault] = []

    def read(self, path: Path) -> DataDir:
        """The utterances of a data set that its tables agree on.

        Raises:
            DataError: there is no such data set, or no utterance is left; or there are faults and the policy is "stop".
        """
        data, faults = DataDir.check(path, allow_commands=self.allow_commands)
        return self._without(data, faults, str(path))

    def load(
        self,
        data: DataDir,
        config: FeatureConfig,
        copies: Sequence[Perturbation] = (Perturbation(),),
        *,
        cache: Path | None = None,
        num_workers: int = 1,
        executor: Executor | None = None,
    ) -> tuple[DataDir, list[list[Example]]]:
        """The utterances that have features, and these for each copy; arguments as `load_usable`, errors as `read`."""
        usable, variants, faults = load_usable(
            data, config, copies, cache_dir=cache, num_workers=num_workers, executor=executor
        )
        return self._without(usable, faults, "the recordings"), variants

    def _without(self, usable: DataDir, faults: Sequence[Fault], where: str) -> DataDir:
        self.faults += faults
        if faults and (self.policy == "stop" or not len(usable)):
            why = "bad_data is 'stop'" if len(usable) else "no utterance is left"
            raise DataError(f"{where}: {len(faults)} faults, {why}; the first: {faults[0].reason}")
        return usable

    def table(self) -> str:
        """The faults for people: one table by kind."""
        return f"{len(self.faults)} utterances are left out:\n{fault_table(self.faults)}"

    def finish(self, path: Path) -> None:
        """Write all faults to `path`, or delete what an earlier run wrote there.

        Raises:
            LeftOutError: there are some.
        """
        if not self.faults:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_faults(path, self.faults)
        raise LeftOutError(f"done, but {len(self.faults)} utterances are left out; all are in {path}")
