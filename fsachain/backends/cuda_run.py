"""One kind of number for the sequences of one seat: the launches of the forward and of the backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fsachain.backends.cuda_device import Argument, DeviceArray, KernelSpec, Memory
from fsachain.backends.cuda_elements import C_TYPES, element, place_of
from fsachain.backends.cuda_group import Groups
from fsachain.backends.cuda_inputs import Call, LaneMemory, Tables
from fsachain.backends.cuda_place import VALUE_BYTES, Seat
from fsachain.backends.cuda_plan import MEMORY_THREADS, RESIDENT_BLOCKS

RECURSIONS, FRAMES = "forward_backward.cu", "frames.cu"
THREADS = 256
TILE = 32  # of frames.cu
NULL = np.uint64(0)


@dataclass
class Run:
    """A kind of number, a seat and its groups.

    Attributes:
        lanes: sequences of a thread.
        counters: memory and the byte in it where those of this run begin, a uint32 for each group.
        shared_bytes: of a block on chip.
        frames: of a window.
        least_total: see `cuda_numbers.least_plain_total`; 0 for other kinds.
        checkpoints: states at the beginnings of the windows, the last window's end behind them, once `forward` has run.
    """

    call: Call
    kind: int
    seat: Seat
    lanes: int
    groups: Groups
    tables: Tables
    on_lanes: LaneMemory
    counters: tuple[Memory, int]
    frames: int
    least_total: float
    num_frames: int
    shared_bytes: int
    checkpoints: list[Memory] = field(default_factory=list)
    history: Memory | None = None
    _memory: dict[str, Memory] = field(default_factory=dict)

    def prepare(self, first_kinds: Memory, size: int, counters: Memory, num_counters: int) -> None:
        """Set `kinds` of a batch of `size` and the counters of all runs; once before any of them starts."""
        self.call.device.launch(
            self._recursion("prepare"),
            -(-max(size, num_counters) // THREADS),
            THREADS,
            0,
            [first_kinds, self.call.kinds, np.int32(size), counters, np.int32(num_counters)],
        )

    def forward(self, keep: bool) -> None:
        """log Z of the sequences of this kind; `keep`: the last window's history and the states before all windows."""
        self.checkpoints, states = [], [self._state(), self._state()]
        begins = self._windows()
        for number, begin in enumerate(begins):
            before = states[number % 2] if number else None
            after = states[(number + 1) % 2]
            if keep and number:
                self.checkpoints.append(states[number % 2])
                states[(number + 1) % 2] = after = self._state()
            last = number == len(begins) - 1
            if keep and last:
                self.history = self._empty("history")
            self._read(begin)
            self._forward(begin, before, after, self.history if keep and last else None)
        self._finish(states[len(begins) % 2])

    def backward(self, weights: Memory, out: DeviceArray) -> None:
        """Add weights [N] x occupancy of the sequences of this kind to `out`; `forward` has run with `keep`."""
        begins = self._windows()
        betas: list[Memory] = []
        if len(begins) > 1:
            betas = [self._state(), self._state()]
        for number in reversed(range(len(begins))):
            last = number == len(begins) - 1
            if not last:
                self._read(begins[number])
                before = self.checkpoints[number - 1] if number else None
                self._forward(begins[number], before, None, self.history)
            after = None if last else betas[(number + 1) % 2]
            before = betas[number % 2] if number else None
            self._backward(begins[number], after, before)
            self._write(begins[number], weights, out)
        self.release()

    def release(self) -> None:
        """Give back all memory that only this run uses."""
        self.checkpoints, self.history = [], None
        self._memory.clear()

    def _windows(self) -> list[int]:
        """Where the windows begin; one without frames where no sequence has any."""
        return list(range(0, max(self.num_frames, 1), self.frames))

    def _end(self, begin: int) -> np.int32:
        return np.int32(min(begin + self.frames, self.num_frames))

    def _empty(self, name: str) -> Memory:
        """Memory for all groups, the same one at each call."""
        if name not in self._memory:
            frames = self.frames if name in ("probs", "history") else 1
            count = self.groups.sizes[name] * frames * VALUE_BYTES[self.kind]
            self._memory[name] = self.call.device.empty(count)
        return self._memory[name]

    def _scratch(self, name: str, num_bytes: int) -> Memory:
        if name not in self._memory:
            self._memory[name] = self.call.device.empty(num_bytes)
        return self._memory[name]

    def _state(self) -> Memory:
        return self.call.device.empty(self.groups.sizes["state"] * VALUE_BYTES[self.kind])

    @property
    def _num_lanes(self) -> int:
        return len(self.groups.sequences)

    def _defines(self) -> tuple[tuple[str, int | str], ...]:
        return ("KIND", self.kind), ("LANES", self.lanes), ("SLICE", self.seat.place.slice)

    def _recursion(self, name: str) -> KernelSpec:
        place = self.seat.place
        defines = (
            *self._defines(),
            ("LEAK", int(self.call.leaky > 0.0)),
            ("PLACE", int(not place.on_chip)),
            ("CLUSTER", place.cluster),
            ("ARCS_ON_CHIP", int(place.arcs_on_chip)),
            ("THREADS", place.threads),
            ("EXPONENTS", int(self.tables.exponents)),
        )
        waits = name in ("forward", "backward")
        return KernelSpec(RECURSIONS, name, defines, cluster=place.cluster if waits else 1)

    def _lanes_arguments(self) -> list[Argument]:
        return [self.on_lanes.sequences, self.on_lanes.lengths, self.call.kinds]

    def _log_leak(self) -> np.float64:
        return np.float64(math.log(self.call.leaky) if self.call.leaky > 0.0 else -math.inf)

    def _read(self, begin: int) -> None:
        frames = int(self._end(begin)) - begin
        tiles = -(-frames // (TILE // self.seat.place.sequences(self.lanes)))
        if not tiles:
            return
        value = VALUE_BYTES[self.kind]
        # OUT does not concern `read_frames`; with the usual one it is compiled together with `write_occupancies`.
        out = "OUT", C_TYPES["float64" if self.call.scores.dtype == "float64" else "float32"]
        kernel = KernelSpec(FRAMES, "read_frames", (*self._defines(), element(self.call.scores), out))
        shared = 16 * TILE + 16 * TILE + TILE * (TILE + 1) * value
        self.call.device.launch(
            kernel,
            len(self.groups.fields) * tiles,
            THREADS,
            shared,
            [
                *(self.on_lanes.directory, self.tables.pdfs, *self._lanes_arguments()),
                *place_of(self.call.scores),
                *(self._empty("probs"), self._scratch("offsets", 8 * self.num_frames * self._num_lanes)),
                *(np.int32(self._num_lanes), np.int32(begin), self._end(begin)),
            ],
        )

    def _pass(self, name: str, arguments: list[Argument], tail: list[Argument]) -> None:
        """Launch `forward` or `backward`; its arguments before and after the counters."""
        device, place, count = self.call.device, self.seat.place, len(self.groups.fields)
        kernel = self._recursion(name)
        if place.on_chip:
            block = [np.int32(0), np.int32(place.cluster)]
            shared = self.shared_bytes
            arguments = [*arguments, NULL, NULL, *block, *tail]
            device.launch(kernel, count * place.cluster, place.threads, shared, arguments)
            return
        at_once = RESIDENT_BLOCKS * device.limits.multiprocessors
        shares = int(self.seat.of("shares").max())
        team = max(1, min(shares, at_once // count))
        block = [np.int32(0), np.int32(team)]
        shared = 32 * VALUE_BYTES[self.kind] * (MEMORY_THREADS // 32)
        arguments = [
            *arguments,
            self._empty("work"),
            np.uint64(self.counters[0].pointer + self.counters[1]),
            *block,
            *tail,
        ]
        device.launch(kernel._replace(cooperative=team > 1), count * team, place.threads, shared, arguments)

    def _forward(
        self, begin: int, before: Memory | None, after: Memory | None, history: Memory | None
    ) -> None:
        exponents = self._scratch("exponents", 8 * self._num_lanes)
        self._pass(
            "forward",
            [
                *(
                    self.on_lanes.directory,
                    *self.tables.forward,
                    self.tables.vectors,
                    *self._lanes_arguments(),
                ),
                *(self._probs(), history or NULL, before or NULL, after or NULL, exponents),
            ],
            [np.int32(begin), self._end(begin), self._log_leak(), np.float32(self.least_total)],
        )

    def _backward(self, begin: int, after: Memory | None, before: Memory | None) -> None:
        assert self.history is not None
        self._pass(
            "backward",
            [
                *(self.on_lanes.directory, *self.tables.backward, self.tables.pairs, self.tables.vectors),
                *(*self._lanes_arguments(), self._probs(), self.history, after or NULL, before or NULL),
            ],
            [np.int32(begin), self._end(begin), self._log_leak()],
        )

    def _probs(self) -> Memory:
        return self._empty("probs")

    def _finish(self, state: Memory) -> None:
        offsets = self._scratch("offsets", 8 * self.num_frames * self._num_lanes)
        self.call.device.launch(
            self._recursion("finish"),
            self._num_lanes,
            THREADS,
            THREADS * (VALUE_BYTES[self.kind] + 8),
            [
                *(self.on_lanes.directory, self.tables.vectors, *self._lanes_arguments(), state, offsets),
                *(self._scratch("exponents", 8 * self._num_lanes), np.int32(self._num_lanes)),
                *(self._log_leak(), self.call.log_prob, self.call.ok),
            ],
        )

    def _write(self, begin: int, weights: Memory, out: DeviceArray) -> None:
        assert self.history is not None
        frames = int(self._end(begin)) - begin
        if not frames:
            return
        width = self.seat.place.sequences(self.lanes)
        kernel = KernelSpec(
            FRAMES, "write_occupancies", (*self._defines(), element(self.call.scores), element(out, "OUT"))
        )
        self.call.device.launch(
            kernel,
            len(self.groups.fields) * frames,
            TILE * width,
            TILE * width * VALUE_BYTES[self.kind],
            [
                *(
                    self.on_lanes.directory,
                    self.tables.pdfs,
                    self.tables.pairs_by_column,
                    self.tables.column_ends,
                ),
                *(*self._lanes_arguments(), self.call.ok, np.uint64(weights.pointer), self.history),
                *place_of(out),
                *(np.int32(begin), self._end(begin)),
            ],
        )
