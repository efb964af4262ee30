"""An executor of machines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from fsachain.errors import ConfigError, require

CONNECT_SECONDS = 30


@contextmanager
def executor_at(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask cluster whose scheduler has this address; None for None.

    The workers need fsachain, in the same version, and the files under the same paths.

    Args:
        address: such as `tcp://host:8786`.

    Raises:
        ConfigError: nobody answers there.
    """
    if address is None:
        yield None
        return
    distributed = require("distributed", extra="cluster")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # a timeout is an OSError
        raise ConfigError(f"scheduler {address!r}: cannot be reached ({error})") from error
    with client:
        executor: Executor = client.get_executor()
        yield executor
