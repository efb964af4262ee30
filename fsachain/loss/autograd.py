"""Operators of torch made from functions of tensors, with a fake kernel and a first derivative.

Everything that a backward needs is computed in forward; operators that compute gradients have no derivative of their own, so
that differentiating twice raises where it would be wrong. A `TableBatch` travels as its key. Scores may live on a device;
keys, lengths and counts stay on the host, and nothing waits for the device but what `by_host` runs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fsachain.backends import arrays, dispatch
from fsachain.backends.cuda import backend as cuda
from fsachain.batch import Graphs, TableBatch, pack_graphs
from fsachain.errors import BackendUnavailable, ShapeError
from fsachain.loss.registered import (
    Inputs,
    Registered,
    Run,
    is_in_forward_mode,
    refuse_forward_mode,
    refuse_gradient,
    single_level,
    to_number,
)

_PLAIN_TENSORS = frozenset((Tensor, torch.nn.Parameter))
# Torch has no public names for these three; where it lacks the private ones, everything counts as traced.
_count_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_has_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_is_traced = getattr(torch._C, "_is_tracing", lambda: False)
# Nor for whether a profiler runs; where this is absent, none does.
_is_profiled = getattr(torch._C._autograd, "_profiler_enabled", lambda: False)
# Nor for whether backward may come again; where this is absent, it may.
_may_come_again = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
# Nor for the tensors of `torch.autograd.grad(..., is_grads_batched=True)`, which no transform shows.
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)


def is_watched() -> bool:
    """Whether a compiler, a tracer or a transform sees what is done to tensors."""
    return bool(torch.compiler.is_compiling() or _count_modes() or _has_transforms())


def may_be_written(factor: Tensor) -> bool:
    """Whether a backward pass with this incoming gradient may write over what forward kept.

    It may not where somebody differentiates again, or for one of several gradients.
    """
    return not (torch.is_grad_enabled() or is_batched(factor))


def is_batched(factor: Tensor) -> bool:
    """Whether this incoming gradient may stand for several."""
    return bool(_has_transforms() or _is_batched(factor))


def refuse_jit_trace() -> None:
    """Raise in `torch.jit.trace`, to which lengths, and with them losses, would be constants."""
    if not torch.compiler.is_compiling() and _is_traced():
        raise RuntimeError(
            "fsachain has no losses under torch.jit.trace; expected torch.export.export or torch.compile"
        )


def refuse_watchers(name: str, remedy: str) -> None:
    """Raise where a graph is recorded or a transform at work, for a loss that calls a function of the caller.

    Under a compiler the call goes on outside of the compiled part; with fullgraph=True this is the error.
    """
    message = (
        f"{name} calls a function of yours again in backward, which no graph can hold; expected {remedy}"
    )
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg=message)
    elif _has_transforms() or _is_recorded():
        raise RuntimeError(message)


def _is_recorded() -> bool:
    """Whether operations go into a graph, as those of `make_fx` and `torch.export`."""
    if not _count_modes():
        return False
    return importlib.import_module("torch.fx.experimental.proxy_tensor").get_proxy_mode() is not None


def _picker(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The entries of a tuple at these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda entries: tuple([entries[place] for place in places])


class Operator:
    """A function of tensors, called as the kernel that it is made of.

    Under a compiler, a tracer or a transform it is an operator of torch's registry, which keeps graphs whole; else a plain
    node of autograd, since an operator written in Python takes a fifth of a millisecond each way.

    `kernel` and `fake` take tensors, numbers and strings, or one NamedTuple of them. A kernel returns a tensor or a
    NamedTuple of tensors, none of which is a view of another or of an argument; only the first has a gradient. `gradient`
    takes the incoming gradient and, by name, arguments and results of the kernel (also those of `needs`), and returns
    gradients by name; without it the kernel has no derivative. If it takes `is_last`, that says whether nobody reads these
    tensors after it, so that they may be written to. `by` names the tensors that have a gradient, each with the argument
    that says whether the kernel makes what the gradient is made of, or None where it always does: a graph may have been
    recorded before anybody wanted one. Other tensors that want a gradient are refused. `mutates` names arguments that the
    kernel writes to; it then returns None. `apart`: see `Registered`.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        fake: Callable[..., Any],
        gradient: Callable[..., dict[str, Tensor | None]] | None = None,
        needs: tuple[str, ...] = (),
        by: dict[str, str | None] | None = None,
        mutates: tuple[str, ...] = (),
        apart: dict[str, Any] | None = None,
    ) -> None:
        self._gradient = gradient
        types = typing.get_type_hints(kernel)
        returned = types.pop("return")
        self._given: Any = next(iter(types.values()))
        self._takes_tuple = hasattr(self._given, "_fields")
        if self._takes_tuple:
            types = typing.get_type_hints(self._given)
        self.kernel: Callable[[Any], Any] = kernel if self._takes_tuple else lambda inputs: kernel(*inputs)
        self._names = tuple(types)
        self._fields: tuple[str, ...] = getattr(returned, "_fields", ())
        self._result: Any = None if returned is type(None) else returned
        self._mutated = tuple(self._names.index(name) for name in mutates)
        self._pick = _picker([i for i, kind in enumerate(types.values()) if kind is Tensor])
        self.tensor_names = self._pick(self._names)
        if gradient is not None:
            asked = [*list(inspect.signature(gradient).parameters)[1:], *needs]
            self._asks_for_last = "is_last" in asked
            # Where each is found: among the arguments followed by the results.
            places = {name: i for i, name in enumerate((*self._names, *self._fields))}
            known = [(name, places[name]) for name in asked if name in places]
            tensors = [one for one in known if types.get(one[0], Tensor) is Tensor]
            options = [one for one in known if one not in tensors]
            self._kept_names = [name for name, _ in (*tensors, *options)]
            self._saved, self._options = (_picker([i for _, i in kind]) for kind in (tensors, options))
            by = by or {}
            self._constants = frozenset(i for i, name in enumerate(self.tensor_names) if name not in by)
            self._switches = {
                self.tensor_names.index(name): self._names.index(switch)
                for name, switch in by.items()
                if switch
            }
        places_apart = {self._names.index(name): value for name, value in (apart or {}).items()}
        num_results = len(self._fields) or int(self._result is not None)
        name = kernel.__name__.lstrip("_")
        self._shown = f"fsachain::{name}"
        # A class of its own, under whose name torch.profiler shows the node and its backward.
        node = type(self._shown, (_Node,), {})
        # What `apply` itself calls once it has found no transform, as `__call__` has by then, or at one level of one.
        self._apply: Any = super(torch.autograd.Function, node).apply  # type: ignore[misc]
        self.registered = Registered(
            *(name, types, num_results),
            *(lambda inputs: self.kernel(self._packed(inputs)), self._fake_of(fake), self._differentiate),
            *(mutates, places_apart),
        )

    def _packed(self, inputs: Inputs) -> Any:
        return self._given(*inputs) if self._takes_tuple else inputs

    def _fake_of(self, fake: Callable[..., Any]) -> Run:
        if self._takes_tuple:
            return lambda inputs: fake(self._packed(inputs))
        return lambda inputs: fake(*inputs)

    def __call__(self, *given: Any) -> Any:
        inputs = given[0] if self._takes_tuple else given
        if torch.compiler.is_compiling():  # which cannot follow an itemgetter
            return self._registered_call(inputs)
        refuse_jit_trace()
        tensors = self._pick(inputs)
        if is_watched() or not _PLAIN_TENSORS.issuperset(map(type, tensors)):
            return self._registered_call(inputs)
        if self._gradient is None and any(map(_is_batched, tensors)):
            return self._registered_call(inputs)
        if is_in_forward_mode():
            refuse_forward_mode(tensors)
        if not torch.is_grad_enabled():
            found = self._run(inputs)
            for i in self._mutated:
                torch.autograd.graph.increment_version(inputs[i])
            return found
        wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        if not wanted:
            return self._run(inputs)
        results = self._with_node(self.kernel, inputs, tensors, wanted)
        return self._result(*results) if self._fields else results

    def _run(self, inputs: Inputs) -> Any:
        """The kernel's results, without a node of autograd that a profiler would show."""
        if not _is_profiled():
            return self.kernel(inputs)
        with torch.profiler.record_function(self._shown):
            return self.kernel(inputs)

    def _registered_call(self, inputs: Inputs) -> Any:
        found = self.registered(inputs)
        return self._result(*found) if self._fields else found

    def _differentiate(self, run: Run, inputs: Inputs) -> Any:
        """For `Registered`: the results of `run`, with what the gradient needs if one is wanted now."""
        tensors = self._pick(inputs)
        wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        if not wanted or self._mutated:
            return run(inputs)
        if self._gradient is not None:
            arguments = list(inputs)
            for i in wanted:
                if i in self._switches:
                    arguments[self._switches[i]] = True
            inputs = tuple(arguments)
        with single_level():
            return self._with_node(run, inputs, tensors, wanted)

    def _with_node(self, run: Run, inputs: Inputs, tensors: Sequence[Tensor], wanted: list[int]) -> Any:
        """The results of `run` in a graph of autograd with those of the tensors that want a gradient."""
        likes = [tensors[i] for i in wanted]
        if self._gradient is None:
            return _apply_refusing((run, inputs), *likes)
        if not self._constants.isdisjoint(wanted):
            refuse_gradient(next(self.tensor_names[i] for i in wanted if i in self._constants))
        rest: list[Tensor] = []
        first = self._apply((self, run, inputs, wanted, rest), *likes)
        return (first, *rest) if self._fields else first

    def keep(self, ctx: Any, inputs: Inputs, results: tuple[Tensor, ...]) -> None:
        known = (*inputs, *results)
        ctx.save_for_backward(*self._saved(known))
        ctx.options = self._options(known)
        ctx.set_materialize_grads(False)

    def gradients(self, ctx: Any, factor: Tensor | None, is_last: bool) -> dict[str, Tensor | None]:
        if factor is None or self._gradient is None:
            return {}
        options = ctx.options
        if ctx.is_registered and not is_watched():  # numbers that were tensors to whoever watched
            options = [to_number(option) for option in options]
        kept: dict[str, Any] = dict(zip(self._kept_names, (*ctx.saved_tensors, *options), strict=True))
        if self._asks_for_last:
            kept["is_last"] = is_last
        return self._gradient(factor, **kept)


class _Node(torch.autograd.Function):
    """An operator and its inputs, of which torch is told those that want a gradient: it looks at each several times.

    So it does at results. Those behind the first, which have no gradient, are put into `rest`.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Operator, Run, Inputs, list[int], list[Tensor]], *_: Tensor) -> Tensor:
        owner, run, inputs, wanted, rest = call
        found = run(inputs)
        results = found if isinstance(found, tuple) else (found,)
        owner.keep(ctx, inputs, results)
        ctx.owner, ctx.wanted = owner, wanted
        ctx.is_registered = run is not owner.kernel
        rest += results[1:]
        first: Tensor = results[0]
        return first

    @staticmethod
    def backward(ctx: Any, factor: Tensor | None) -> tuple[Tensor | None, ...]:
        may_be_read = _may_come_again() or torch.is_grad_enabled() or is_watched() or ctx.is_registered
        is_last = not (may_be_read or (factor is not None and _is_batched(factor)))
        found = ctx.owner.gradients(ctx, factor, is_last)
        names = ctx.owner.tensor_names
        return None, *[found.get(names[i]) for i in ctx.wanted]


class _Refusing(torch.autograd.Function):
    """A first derivative, such that differentiating it raises."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Run, Inputs], *_: Tensor) -> Any:
        run, inputs = call
        found = run(inputs)
        return tuple(found) if isinstance(found, tuple) else found

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> NoReturn:
        refuse_second_derivative()


# What `apply` itself calls once it has found no transform, as in `Operator`.
_apply_refusing = super(torch.autograd.Function, _Refusing).apply


def refuse_second_derivative(*_: Any) -> NoReturn:
    raise RuntimeError("fsachain gives first derivatives only; expected its losses to be differentiated once")


class _FirstOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *likes: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        refuse_second_derivative()


def first_only(found: Tensor, *likes: Tensor) -> Tensor:
    """`found`, a first derivative that depends on `likes`, such that differentiating it raises."""
    result: Tensor = _FirstOnly.apply(found, *likes)
    return result


def packed(graphs: Graphs, argument: str) -> TableBatch:
    """What a caller gave, as a batch: `pack_graphs`, which a compiler cannot trace."""
    refuse_jit_trace()
    if not isinstance(graphs, TableBatch) and torch.compiler.is_compiling():
        # Without fullgraph=True the call goes on outside of the compiled part; with it, this is the error.
        torch._dynamo.graph_break(
            msg=f"{argument} is a {type(graphs).__name__}; expected a TableBatch under fullgraph=True: pack graphs first "
            "(TableBatch.pack)"
        )
    return pack_graphs(graphs, argument)


def by_host(kernel: Callable[[Any], Any], call: Any, device: torch.device) -> Any:
    """The kernel's results from copies on the host of its tensors, copied to `device`; the host waits."""
    found = kernel(type(call)(*(value.cpu() if isinstance(value, Tensor) else value for value in call)))
    return type(found)(*(result.to(device) for result in found))


def as_tensor(values: Any, dtype: torch.dtype | None = None, name: str = "values") -> Tensor:
    """A tensor where it is, anything else on the host, wherever torch makes tensors by default.

    ShapeError with the argument's name: what is no numbers.
    """
    device = values.device if isinstance(values, Tensor) else "cpu"
    try:
        return torch.as_tensor(values, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{name} is no tensor of numbers ({error})") from error


def _placed(values: Tensor, like: Tensor) -> Tensor:
    if values.is_cpu and arrays.home_of(like) == "cuda":
        as_bytes = values.detach().contiguous().view(torch.uint8)  # numpy has no bfloat16
        found: Tensor = cuda.place(like, as_bytes.numpy()).view(values.dtype)
        return found
    return values.to(like.device)


_placed_there = Operator(_placed, lambda values, like: like.new_empty(values.shape, dtype=values.dtype))


def beside(values: Tensor, like: Tensor) -> Tensor:
    """`values`, which have no gradient, where `like` is.

    What the host has gets there by a buffer of `backends.cuda.memory`: nobody waits, and a captured CUDA graph, which reads
    it at each replay, finds it as it was. Memory of the host that is not pinned is somebody else's by then.
    """
    found: Tensor = values if values.device == like.device else _placed_there(values, like.detach())
    return found


def wants_gradient(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def check_constant(tensor: Tensor, name: str) -> None:
    """Raise where a gradient is wanted that a loss does not have, and that torch would leave out without a word."""
    if wants_gradient(tensor):
        refuse_gradient(name)


def new_buffer(scores: Tensor, wanted: bool) -> Tensor:
    """Zeros [N, T, P] for occupancies of these scores; an empty tensor where none are wanted."""
    kind = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.zeros(scores.shape if wanted else (0, 0, 0), dtype=kind, device=scores.device)


def add_at(into: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """`into.scatter_add_(2, index, values)`, on a device too in an order of its own, which atomic additions have not."""
    if into.is_cpu:
        return into.scatter_add_(2, index, values)
    first, second = (torch.arange(count, device=into.device) for count in index.shape[:2])
    return into.index_put_((first.view(-1, 1, 1), second.view(-1, 1), index), values, accumulate=True)


_LARGEST_SUBNORMAL = {
    kind: torch.finfo(kind).tiny * (1.0 - torch.finfo(kind).eps) for kind in (torch.float32, torch.float64)
}


def flushed(values: Tensor) -> Tensor:
    """The values, with 0 for those below the least normal number of their type, which slow down what reads them."""
    return torch.nn.functional.hardshrink(values, _LARGEST_SUBNORMAL[values.dtype])


def _same(values: Tensor) -> Tensor:
    return values.clone()


# The same values, whose gradient comes without subnormal numbers.
flush_gradient = Operator(
    _same, torch.empty_like, lambda factor: {"values": flushed(factor)}, by={"values": None}
)


def _fits_kernel(values: Tensor, factors: Tensor) -> bool:
    """Whether the kernel of the CPU can scale these: numpy arrays of its types without gaps."""
    on_host = arrays.home_of(values) == "cpu" and factors.is_cpu
    return (
        on_host
        and dispatch.has_kernels_of_host()
        and values.is_contiguous()
        and values.numel() > 0
        and values.dtype in (torch.float32, torch.float64)
    )


def _rows_scaled(
    values: Tensor, factors: Tensor, like: Tensor, lists: Tensor | None, in_place: bool = False
) -> Tensor:
    if in_place and factors.is_cpu and not factors.ndim and factors.item() == 1.0:  # as in most calls
        return (values if values.dtype == like.dtype else values.to(like.dtype)).detach()
    if arrays.home_of(values) == "cuda" and values.numel():
        out = (
            values if in_place and values.dtype == like.dtype else torch.empty_like(values, dtype=like.dtype)
        )
        first, last = (x if x.ndim == 3 else x.view(len(x), -1, x.shape[-1]) for x in (values, out))
        with contextlib.suppress(BackendUnavailable):  # torch may use a device for which there is no cupy
            device, by_row = cuda.find_device(values), factors.double().expand(len(first))
            if lists is None:
                cuda.scale_rows(device, *map(cuda.view, (first, by_row, last)))
            else:
                cuda.spread_rows(device, *map(cuda.view, (first, lists, by_row, last)))
            return out.detach()
    if _fits_kernel(values, factors) and values.dtype == like.dtype:
        out = values if in_place else torch.empty_like(values)
        rows = factors.numel()
        as_rows = (values.detach().view(rows, -1).numpy(), out.detach().view(rows, -1).numpy())
        dispatch.scale_rows(as_rows[0], factors.double().view(-1).numpy(force=True), as_rows[1])
        return out.detach()
    by_row = factors.to(values.dtype).view(-1, *[1] * (values.ndim - 1)) if factors.ndim else factors
    if not factors.is_cpu:
        return (values * by_row).masked_fill_(values == 0, 0).to(like.dtype)
    each = factors.tolist() if factors.ndim else [factors.item()]
    infinite: list[Any] = [n for n, factor in enumerate(each) if not math.isfinite(factor)]
    if infinite and not factors.ndim:
        infinite = [...]
    if in_place and not infinite:
        return flushed(values.mul_(by_row)).to(like.dtype).detach()
    scaled = values * by_row
    for n in infinite:
        scaled[n] = torch.where(values[n] == 0, 0, scaled[n])
    return flushed(scaled).to(like.dtype)


def _scale_rows(values: Tensor, factors: Tensor, like: Tensor, lists: Tensor | None) -> Tensor:
    return _rows_scaled(values, factors, like, lists)


_scale_rows_apart = Operator(
    _scale_rows, lambda values, factors, like, lists: torch.empty_like(values, dtype=like.dtype)
)


def scale_rows(
    values: Tensor, factors: Tensor, like: Tensor, in_place: bool = False, lists: Tensor | None = None
) -> Tensor:
    """values [N, .., P] times factors [N], or one of all, in the dtype of `like`; what is 0 stays 0 whatever its factor.

    `in_place`: `values` may be written to. The result is then another tensor in their memory, since torch copies gradients
    that somebody else holds. lists: unless empty, of rows that a device has packed, see `cuda.add_occupancy`.
    """
    lists = None if lists is None or not len(lists) else lists
    if in_place:
        return _rows_scaled(values, factors, like, lists, True)
    return _scale_rows_apart(values, factors, like, lists)
