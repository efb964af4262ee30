"""Small runs of every family of kernels on a GPU, each result compared with the float64 reference; also for sanitizers.

    python -m tools.gpu_driver [FAMILY ...]
    compute-sanitizer --tool memcheck python -m tools.gpu_driver "cluster of 4"

Shapes are small, because a sanitizer makes each access many times as slow; the device pretends to have little shared memory,
so that small graphs go where large ones do. A family that does not launch what it is there for has failed. Each comparison
is a line of JSON as soon as it is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from fsachain import Fsa, TableBatch, best_path, forward_backward
from fsachain.backends import arrays
from fsachain.backends.cuda import backend as cuda_backend
from fsachain.backends.cuda import device as cuda_device
from fsachain.backends.cuda import launch as cuda_launch
from fsachain.backends.cuda.device import KernelSpec
from fsachain.backends.dispatch import bind
from fsachain.backends.reference import sums as reference
from fsachain.denominator import DenominatorGraph
from fsachain.loss.autograd import scale_rows
from fsachain.loss.ctc import ctc_loss
from fsachain.loss.pruned import rnnt_loss_simple, rnnt_loss_smoothed
from fsachain.loss.rnnt import rnnt_loss
from fsachain.loss.total import total_log_prob
from fsachain.loss.variants import hat_loss, multi_blank_loss, tdt_loss
from tests import tolerances
from tools import parser_of
from tools.bench.workloads import connected, ctc_graph, entered_by_one_pdf, left_to_right, packed
from tools.golden.rows import Row, compare, log_prob_limits
from tools.gpu_results import tell

NUM_PDFS, SIZE, FRAMES = 20, 4, 8
LENGTHS = np.array([FRAMES, FRAMES, FRAMES - 3, 0])
SCALES = np.array([1.0, 200.0, 1e7, 1.0])  # for plain numbers, wide ones and logs
DTYPES = ("float32", "float16", "bfloat16", "float64")
WINDOWS = ("", None), (", windows", 1.0)  # names and bytes for the history


_HOME_OF = arrays.home_of
Checks = Callable[[torch.device], Iterator[Row]]


@dataclass(frozen=True)
class Family:
    """Checks, limits that the device pretends to have, and texts and macros with which kernels must have been launched.

    at_once: how many clusters the device says that it runs at the same time, each for one sequence; 0: what it does.
    """

    checks: Checks
    limits: dict[str, int] = field(default_factory=dict)
    launched: tuple[tuple[str, dict[str, int]], ...] = ()
    at_once: int = 0


def check(name: str, ours: Any, exact: Any, allowed: Any) -> Row:
    """As for the goldens, but NaN on both sides agree."""
    found, right = (torch.as_tensor(x).detach().double().cpu().numpy() for x in (ours, exact))
    known = ~(np.isnan(found) & np.isnan(right))
    return compare(name, "", np.where(known, found, 0.0), np.where(known, right, 0.0), allowed)


def denominator(states: int, arcs: int) -> TableBatch:
    return entered_by_one_pdf(states, arcs, NUM_PDFS).batch(SIZE)


def twins() -> TableBatch:
    """Two of each state, with arcs from and to the same states, of other weights: kernels sum them side by side."""
    fsa, size = connected(30, 900, NUM_PDFS), 30
    src, dst = (np.tile(values, 4) for values in (fsa.src, fsa.dst))
    src[len(src) // 2 :] += size
    dst.reshape(4, -1)[1::2] += size
    log_prob = -3.0 * np.random.default_rng(3).random(len(src))
    pair = Fsa(2 * size, src, dst, np.tile(fsa.pdf, 4), log_prob, np.tile(fsa.final_log_prob, 2))
    return DenominatorGraph(pair, NUM_PDFS).batch(SIZE)


def numerators() -> TableBatch:
    """Some fit a block and one does not; a CTC graph."""
    rng = np.random.default_rng(2)
    graphs = [connected(300, 700, NUM_PDFS), ctc_graph(rng.integers(1, NUM_PDFS, 3))]
    graphs += [left_to_right(rng.integers(0, NUM_PDFS, 3), np.zeros(3, bool), -1.0, 1) for _ in range(2)]
    return packed(graphs, NUM_PDFS)


def make_scores(dtype: str) -> torch.Tensor:
    """Halves have no room for the larger ones."""
    normal = np.random.default_rng(1).standard_normal((SIZE, FRAMES, NUM_PDFS))
    scales = np.minimum(SCALES, 200.0) if dtype in ("float16", "bfloat16") else SCALES
    return torch.from_numpy(normal * scales[:, None, None]).to(getattr(torch, dtype))


def of_usual_size(dtype: str) -> torch.Tensor:
    return make_scores(dtype) / torch.from_numpy(SCALES)[:, None, None]


def recursion(make: Callable[[], TableBatch], leaks: Sequence[float], device: torch.device) -> Iterator[Row]:
    """Whole and in windows."""
    batch = make()
    for dtype, leak in product(DTYPES, leaks):
        scores, options = make_scores(dtype), {"leaky_hmm_coefficient": leak}
        wide, there = scores.double().numpy(), scores.to(device)
        exact = forward_backward(batch, wide, LENGTHS, backend="reference", **options)
        for name, budget in WINDOWS:
            ours = forward_backward(batch, there, LENGTHS, memory_budget=budget, **options)
            title = f"{dtype}, leak {leak:g}{name}"
            yield check(f"{title}: log Z", ours.log_prob, exact.log_prob, log_prob_limits)
            yield check(f"{title}: occupancy", ours.occupancy, exact.occupancy, tolerances.OCCUPANCY)


def paths(device: torch.device) -> Iterator[Row]:
    """The same paths as the reference, whole and in windows."""
    batches = {"shared": denominator(80, 600), "packed": numerators()}
    for (title, batch), dtype in product(batches.items(), DTYPES):
        scores = make_scores(dtype)
        exact = best_path(batch, scores.double().numpy(), LENGTHS, backend="reference")
        for name, budget in WINDOWS:
            found = bind(batch, scores.to(device), LENGTHS, memory_budget=budget).best_paths(batch)
            same = all(np.array_equal(a, b) for a, b in zip(found.arcs, exact.arcs, strict=True))
            yield check(f"{title}, {dtype}{name}: score", found.score, exact.score, log_prob_limits)
            yield check(f"{title}, {dtype}{name}: arcs", same, True, tolerances.YES_OR_NO)


def penalties(device: torch.device) -> Iterator[Row]:
    """The sums of a loss of log Z 3, 2, -inf and 0, and the gradient that its penalties have."""
    weights, factors = np.array([1.0, 0.5, 4.0, 2.0]), (0.01, 0.5, 30.0)
    num, ok = torch.tensor([3.0, 2.0, -np.inf, 0.0]).double(), torch.tensor([True, True, False, True])
    numbers, used = torch.from_numpy(np.stack([weights, LENGTHS])), np.where(ok, weights, 0.0)
    given = [x.to(device) for x in (numbers, num, ok, torch.ones(1).double())]
    for dtype in DTYPES:
        scores = make_scores(dtype).clamp(-300.0, 300.0)
        expected = np.zeros(scores.shape)
        terms = reference.add_penalties(scores.double().numpy(), LENGTHS, used, factors, expected)
        there = scores.to(device)
        (at, log_z, is_ok, one), on = map(cuda_backend.view, given), cuda_backend.find_device(there)
        results = torch.empty_like(given[1]), torch.empty_like(given[2]), *given[1].new_empty(2, 9)
        out = torch.zeros(scores.shape, dtype=torch.float64 if dtype == "float64" else torch.float32).to(
            device
        )
        rows, into, made = (cuda_backend.view(x) for x in (there, out, torch.empty_like(there)))
        found = cuda_backend.LossTerms(*map(cuda_backend.view, results))
        rest = (log_z, log_z), 0.5, -10.0, factors, None, False, found
        cuda_backend.loss_terms(on, rows, FRAMES, at, *rest)
        objf = float(used @ np.nan_to_num(0.5 * num.numpy(), neginf=0.0))
        frames, frames_ok = float(weights @ LENGTHS), float(used @ LENGTHS)
        sums = [objf - 10.0 * (frames - frames_ok), objf, *terms, 0.0, 0.0, frames, frames_ok, -frames_ok]
        yield check(f"{dtype}: sums", results[2], np.array(sums), log_prob_limits)
        yield check(f"{dtype}: ok", results[1], ok, tolerances.YES_OR_NO)
        cuda_backend.finish_gradient(on, into, rows, at, is_ok, factors, None, one, None, made)
        rounding = 2.0 * torch.finfo(scores.dtype).eps * np.maximum(1.0, np.abs(expected))
        yield check(f"{dtype}: derivatives", made.owner, expected, log_prob_limits(expected) + rounding)


def scaled_rows(device: torch.device) -> Iterator[Row]:
    """By an infinite factor and one that is no number too; transposed as CTC gives them; packed by the recursion."""
    values = make_scores("float64").transpose(0, 1)
    values[:, 2:, ::2] = 0.0
    factors = torch.tensor([0.5, -2.0, np.inf, np.nan] * 2, dtype=torch.float64)
    for dtype in DTYPES:
        wide = values.to(torch.float64 if dtype == "float64" else torch.float32)
        like = torch.empty(0, dtype=getattr(torch, dtype))
        exact = torch.where(wide == 0, 0, wide * factors.to(wide.dtype).view(-1, 1, 1)).to(like.dtype)
        found = scale_rows(wide.to(device), factors.to(device), like.to(device))
        same = torch.equal(found.cpu().nan_to_num(-7.0), exact.nan_to_num(-7.0))
        yield check(dtype, same, True, tolerances.YES_OR_NO)
    loss = partial(total_log_prob, numerators(), lengths=LENGTHS)
    for dtype in DTYPES:
        yield from loss_check(loss, dtype, [of_usual_size(dtype)], device, "packed")


Loss = Callable[..., torch.Tensor]


def loss_check(
    loss: Loss, dtype: str, inputs: Sequence[torch.Tensor], device: torch.device, title: str
) -> Iterator[Row]:
    """A loss of sequences and its gradients, with the device's inputs against the reference's in float64."""
    found = []
    given = getattr(torch, dtype)
    for where, backend in ((device, "auto"), (torch.device("cpu"), "reference")):
        of_type = given if backend == "auto" else torch.float64
        own = [x.detach().to(given).to(where, of_type).requires_grad_() for x in inputs]
        home_of = arrays.home_of if backend == "auto" else _HOME_OF
        # The reference is on the host, whatever that pretends to be.
        with patch.object(arrays, "home_of", home_of):
            values = loss(*own, backend=backend)
            values.sum().backward()
        found.append([values, *(x.grad for x in own)])
    ours, exact = found
    yield check(f"{title}, {dtype}: loss", ours[0], exact[0], log_prob_limits)
    # Sums of two scores are rounded; so is the gradient, to the type of the scores.
    rounded = max(1.0, max(float(x.abs().max()) for x in inputs) / 100.0) * tolerances.OCCUPANCY
    for number, (mine, right) in enumerate(zip(ours[1:], exact[1:], strict=True)):
        limit = rounded + torch.finfo(given).eps * max(1.0, float(right.abs().max()))
        yield check(f"{title}, {dtype}: gradient {number}", mine, right, limit)


def ctc(device: torch.device) -> Iterator[Row]:
    targets = torch.tensor([[1, 2, 2], [3, 4, 0], [5, 0, 0], [0, 0, 0]])
    counts = [3, 2, 1, 0]

    def loss(topology: str, scores: torch.Tensor, backend: str) -> torch.Tensor:
        options: Any = {"inputs": "logits", "reduction": "none", "topology": topology, "backend": backend}
        return ctc_loss(scores.transpose(0, 1), targets.to(scores.device), LENGTHS, counts, **options)[:3]

    for dtype, topology in product(DTYPES, ("standard", "compact")):
        yield from loss_check(partial(loss, topology), dtype, [of_usual_size(dtype)], device, topology)


LABELS = 2
RNNT_LENGTHS, RNNT_COUNTS = [FRAMES, FRAMES - 3, 4, 1], [LABELS, 1, 2, 0]
TRANSDUCERS: dict[str, Loss] = {
    "regular": rnnt_loss,
    "constrained": partial(rnnt_loss, rnnt_type="constrained", fastemit_lambda=0.1),
    "HAT": hat_loss,
    "TDT": lambda *given, **options: tdt_loss(*given[:4], [0, 1, 2, 4], *given[4:], **options),
    "multi-blank": lambda *given, **options: multi_blank_loss(
        *given[:4], {NUM_PDFS - 2: 2, NUM_PDFS - 3: 4}, *given[4:], **options
    ),
}


def transducer(kind: str, device: torch.device) -> Iterator[Row]:
    targets = torch.tensor([[1, 2], [3, 0], [4, 4], [0, 0]])
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(SIZE, FRAMES, LABELS + 1, NUM_PDFS, generator=generator, dtype=torch.float64)

    def loss(values: torch.Tensor, backend: str) -> torch.Tensor:
        given = values, targets.to(values.device), RNNT_LENGTHS, RNNT_COUNTS
        blank = 0 if kind == "TDT" else NUM_PDFS - 1
        return TRANSDUCERS[kind](*given, blank, reduction="none", backend=backend)

    for dtype in DTYPES:
        yield from loss_check(loss, dtype, [logits], device, kind)


def pairs(device: torch.device) -> Iterator[Row]:
    """At scale 80 the product of matrices has lost nearly all pairs."""
    symbols = torch.tensor([[1, 2], [3, 5], [4, 4], [6, 7]])
    generator = torch.Generator().manual_seed(2)
    shapes = (SIZE, LABELS + 1, NUM_PDFS), (SIZE, FRAMES, NUM_PDFS)
    inputs = [80.0 * torch.randn(shape, generator=generator).double() for shape in shapes]

    def loss(kind: Loss, lm: torch.Tensor, am: torch.Tensor, backend: str) -> torch.Tensor:
        return kind(lm, am, symbols.to(lm.device), 0, reduction="none", backend=backend)

    kinds = {"simple": rnnt_loss_simple, "smoothed": rnnt_loss_smoothed}
    for (name, kind), dtype in product(kinds.items(), ("float32", "float64")):
        yield from loss_check(partial(loss, kind), dtype, inputs, device, name)


ON_CHIP = "forward_backward.cu"


def _shared(make: Callable[[], TableBatch], shared_bytes: int, at_once: int = 0, **wanted: int) -> Family:
    checks = partial(recursion, make, (0.1, 0.0))
    return Family(checks, {"shared_bytes": shared_bytes}, ((ON_CHIP, {"ON_CHIP": 1, **wanted}),), at_once)


def _transducer(kind: str) -> Family:
    return Family(partial(transducer, kind), {}, (("grid.cu", {"ON_CHIP": 1}), ("grid_rows.cu", {})))


small, dense = partial(denominator, 80, 600), partial(denominator, 100, 3000)
FAMILIES: dict[str, Family] = {
    "cluster of 1": _shared(small, 26_000, CLUSTER=1),
    "cluster of 2": _shared(small, 9500, CLUSTER=2),
    "cluster in turns": _shared(small, 9500, 2, CLUSTER=2, LANES=1),
    "cluster of 4": _shared(dense, 16_000, CLUSTER=4),
    "cluster of 8": _shared(dense, 9500, CLUSTER=8),
    "cluster with its metadata": _shared(
        partial(denominator, 40, 1500), 12_000, CLUSTER=4, FORWARD_METADATA=3
    ),
    "cluster with twins": _shared(twins, 26_000, TILES=1, SUM_COLUMNS=1),
    "teams in memory": _shared(partial(denominator, 1600, 8400), 9500, ON_CHIP=0, CHUNK=1, cooperative=1),
    "numerators": Family(
        partial(recursion, numerators, (0.0,)),
        {"shared_bytes": 12_000},
        ((ON_CHIP, {"ON_CHIP": 1}), (ON_CHIP, {"ON_CHIP": 0, "CHUNK": 32})),
    ),
    "paths": Family(paths, {}, (("best_path.cu", {"ON_CHIP": 1}),)),
    "paths in memory": Family(paths, {"shared_bytes": 2000}, (("best_path.cu", {"ON_CHIP": 0}),)),
    "scaled rows": Family(scaled_rows, {}, (("dense_rows.cu", {}),)),
    "penalties": Family(penalties, {}, (("penalties.cu", {}),)),
    "CTC": Family(ctc, {}, (("ctc.cu", {}), ("log_softmax.cu", {}))),
    **{kind: _transducer(kind) for kind in TRANSDUCERS},
    "grid in memory": replace(
        _transducer("TDT"), limits={"shared_bytes": 600}, launched=(("grid.cu", {"ON_CHIP": 0}),)
    ),
    "pairs": Family(pairs, {}, (("pairs.cu", {}),)),
}


@contextmanager
def device_of(family: Family, on_host: bool) -> Iterator[tuple[torch.device, list[KernelSpec]]]:
    """A device as the family wants it, and the kernels that it is given while the context lasts."""
    kernels: list[KernelSpec] = []
    real, launch = cuda_device._limits, cuda_device.Device.launch

    def noted(self: Any, kernel: KernelSpec, *arguments: Any) -> None:
        kernels.append(kernel)
        launch(self, kernel, *arguments)

    with ExitStack() as stack:

        def change(of: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(of, name, value))

        if family.at_once:
            change(cuda_device.Device, "at_once", lambda *_: family.at_once)
            change(cuda_launch, "lanes_for", lambda *_: 1)
        if on_host:
            from tools.cuda_on_host import pretended

            device = stack.enter_context(pretended(**family.limits))
            yield torch.device("cpu"), kernels
            kernels += [launched.kernel for launched in device.launches]
            return
        cuda_device._function.cache_clear()  # which knows how much shared memory there is
        change(cuda_device, "_limits", lambda index: real(index)._replace(**family.limits))
        change(cuda_device.Device, "launch", noted)
        yield torch.device("cuda"), kernels
        torch.cuda.synchronize()


def run(name: str, on_host: bool) -> bool:
    """Whether all checks of a family hold; each is told as soon as it is known."""
    family, all_hold = FAMILIES[name], True
    with device_of(family, on_host) as (device, kernels):
        for row in family.checks(device):
            all_hold &= row.agrees
            tell(f"{name}: {row.case}", row.agrees, f"{row.ratio:.2g} of what is allowed")
    for text, wanted in family.launched:
        had = [{**dict(k.defines), "cooperative": int(k.cooperative)} for k in kernels if k.text == text]
        if not any(wanted.items() <= defines.items() for defines in had):
            all_hold = False
            tell(f"{name}: launches", False, f"no kernel of {text} with {wanted} was launched")
    return all_hold


def main(arguments: Sequence[str] | None = None) -> int:
    """1 where a result is wrong."""
    parser = parser_of(__doc__)
    parser.add_argument("family", nargs="*", choices=[[], *FAMILIES], help="default: all")
    parser.add_argument("--on-host", action="store_true", help="on a device that is the host")
    options = parser.parse_args(arguments)
    wrong = [name for name in options.family or FAMILIES if not run(name, options.on_host)]
    print(f"wrong: {', '.join(wrong)}" if wrong else "all results agree with the reference")
    return int(bool(wrong))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a device that is lost would hang what Python ends with
