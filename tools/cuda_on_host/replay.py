"""Replays launches of a `HostDevice` under sanitizers, and finds what depends on memory that was never written.

with record(device) as recordings:
    ...                                    # anything that launches kernels on the device
for recording in one_of_each(recordings):
    replay(recording, Sanitizer.THREAD)    # raises SanitizerError
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tools.cuda_on_host import build
from tools.cuda_on_host.build import Sanitizer
from tools.cuda_on_host.device import HostDevice, HostMemory, Launch

FILLS = (0xFF, 0x5A)
# Of a replayed launch whose blocks may run one after another: two blocks at least, so that they can meet in memory.
THREADS_AT_ONCE = 256
PATIENCE_SECONDS = 60
REPORT_CHARACTERS = 4000
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0:history_size=4",
}
# Lines of a report about what calls the kernel.
_OWN_FRAME = re.compile(r"^ +#\d+ .*(cuda_on_host|<stdin>|/bits/|nptl|clone3)")

Bytes = npt.NDArray[np.uint8]


class SanitizerError(Exception):
    """What a sanitizer has found in a kernel, in its own words."""


class Slot(NamedTuple):
    """An argument: a place in a buffer, or eight bytes that hold a scalar."""

    is_pointer: bool
    value: int
    offset: int


class Recording(NamedTuple):
    """One launch, and the buffers that its arguments point to before and after it."""

    launch: Launch
    folder: Path
    fill: int
    slots: tuple[Slot, ...]
    before: tuple[Bytes, ...]
    after: tuple[Bytes, ...]

    @property
    def name(self) -> str:
        return f"{self.launch.kernel.text}: {self.launch.kernel.name}"


@contextmanager
def record(device: HostDevice) -> Iterator[list[Recording]]:
    """Record the launches of a device, in their order, while the context lasts."""
    recordings: list[Recording] = []

    def start(launch: Launch) -> Callable[[], None]:
        buffers: list[HostMemory] = []
        slots = []
        for letter, value in launch.arguments:
            if letter != "P" or not value:
                slots.append(Slot(False, value, 0))
                continue
            memory = device.memory_at(value)
            assert memory is not None  # the launch was checked
            if memory not in buffers:
                buffers.append(memory)
            slots.append(Slot(True, buffers.index(memory), value - memory.pointer))
        before = tuple(buffer.bytes.copy() for buffer in buffers)

        def end() -> None:
            after = tuple(buffer.bytes.copy() for buffer in buffers)
            recordings.append(Recording(launch, device.folder, device.fill, tuple(slots), before, after))

        return end

    device.observers.append(start)
    try:
        yield recordings
    finally:
        device.observers.remove(start)


def one_of_each(recordings: Sequence[Recording]) -> list[Recording]:
    """The last launch of each kernel in each configuration and size of block."""
    last = {(r.launch.kernel, r.launch.block): r for r in recordings}
    return list(last.values())


def replay(recording: Recording, sanitizer: Sanitizer) -> None:
    """Run a recorded launch again, with concurrent threads and in a process of its own, under a sanitizer.

    Raises:
        SanitizerError: the sanitizer has found something, the launch has failed, or it wrote other bits. Words that one of
            the two runs left unwritten are not compared.
    """
    kernel = recording.launch.kernel
    program = build.program(recording.folder, kernel.text, kernel.defines, sanitizer)
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder) / "launch", Path(folder) / "result"
        _write(recording, given)
        command = [str(program), kernel.name, str(given), str(result)]
        if sanitizer is Sanitizer.THREAD and (setarch := shutil.which("setarch")):
            # ThreadSanitizer wants addresses that much randomisation of the kernel's may take away.
            command = [setarch, "-R", *command]
        watched = {**os.environ, **OPTIONS}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=watched
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            report = "\n".join(line for line in said if not _OWN_FRAME.search(line))[:REPORT_CHARACTERS]
            raise SanitizerError(f"{recording.name} under {sanitizer.name}: exit {done.returncode}\n{report}")
        _compare(recording, np.fromfile(result, np.uint8), sanitizer)


def _write(recording: Recording, path: Path) -> None:
    launch = recording.launch
    kernel, (x, y) = launch.kernel, launch.grid
    together = min(x * y // kernel.cluster, max(2, THREADS_AT_ONCE // (launch.block * kernel.cluster)))
    numbers = [x, y, launch.block, launch.shared_bytes, kernel.cluster, int(kernel.cooperative)]
    numbers += [recording.fill, together, PATIENCE_SECONDS, len(recording.slots)]
    for slot in recording.slots:
        numbers += [int(slot.is_pointer), slot.value, slot.offset]
    numbers += [len(recording.before), *(buffer.size for buffer in recording.before)]
    with path.open("wb") as file:
        file.write(np.array(numbers, np.uint64).tobytes())
        for buffer in recording.before:
            file.write(buffer.tobytes())


def _compare(recording: Recording, result: Bytes, sanitizer: Sanitizer) -> None:
    start = 0
    for i, expected in enumerate(recording.after):
        got = result[start : start + expected.size]
        start += expected.size
        # Blocks that race for a decision which makes their work needless may leave places unwritten.
        written = ~(_unwritten(expected, recording.fill) | _unwritten(got, recording.fill))
        differs = np.flatnonzero((got != expected) & written)
        if differs.size:
            raise SanitizerError(
                f"{recording.name} under {sanitizer.name}: {differs.size} bytes of buffer {i} ({expected.size} bytes) "
                f"differ from the recorded run, the first at {differs[0]}"
            )


def _unwritten(buffer: Bytes, fill: int) -> npt.NDArray[np.bool_]:
    """Of each byte, whether its word of four bytes holds nothing but the filling."""
    words = np.append(buffer, np.full(-buffer.size % 4, fill, np.uint8)).reshape(-1, 4)
    return np.repeat((words == fill).all(axis=1), 4)[: buffer.size]


def uninitialised_reads(run: Callable[[HostDevice], None], make: Callable[[int], HostDevice]) -> list[str]:
    """What depends on memory that was never written: one message for each buffer of a launch that tells.

    Args:
        run: launches kernels on the device that it gets, in the same order each time.
        make: a new device whose memory is filled with the byte that it gets.
    """
    runs = []
    for fill in FILLS:
        device = make(fill)
        with record(device) as recordings:
            run(device)
        runs.append(recordings)
    if len(runs[0]) != len(runs[1]):
        return [f"{len(runs[0])} launches with one filling of memory, {len(runs[1])} with another"]
    found = []
    for first, second in zip(*runs, strict=True):
        for i, (a, b) in enumerate(zip(first.after, second.after, strict=True)):
            # Bytes that hold both fillings were not written; that is no fault as long as nobody reads them.
            told = np.flatnonzero((a != b) & ~((a == FILLS[0]) & (b == FILLS[1])))
            if told.size:
                found.append(f"{first.name}: {told.size} bytes of buffer {i}, the first at {told[0]}")
    return found
