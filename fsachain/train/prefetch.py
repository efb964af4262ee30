"""Items made ahead of their use by a thread, and how long one had to wait for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, up to `depth` of them made ahead by a thread; its errors are raised here."""
    ready: queue.Queue[tuple[str, Item | BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(kind: str, value: Item | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    return
        except BaseException as error:  # the consumer raises it
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=produce, name="fsachain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if isinstance(value, BaseException):
                raise value
            yield value  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()


def timed(items: Iterable[Item]) -> Iterator[tuple[float, Item]]:
    """Each item with the seconds that it took to get it."""
    started = time.perf_counter()
    for item in items:
        yield time.perf_counter() - started, item
        started = time.perf_counter()
