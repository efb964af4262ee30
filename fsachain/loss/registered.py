"""Operators in torch's own registry: what compilers, tracers and transforms see of the operators of `autograd`.

`torch.library.custom_op` makes operators that have no gradient under `torch.func.grad`, count as constants in forward mode
without a word, and do not learn that a graph made without gradients is differentiated after all. So this file registers the
kernels itself: the one of autograd is called like those of torch's own operators, at each level of a transform.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fsachain.errors import ConfigError

Inputs = tuple[Any, ...]
Run = Callable[[Inputs], Any]

# Torch's name for the type of an argument. Numbers travel as float64 tensors of the host: a compiler would make a graph for
# each value of a float.
_TORCH_NAMES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "Tensor",
    float | None: "Tensor?",
    list[float]: "Tensor",
    int: "SymInt",
    list[int]: "SymInt[]",
    bool: "bool",
    str: "str",
}
_NUMBERS = (float, float | None, list[float])

# Torch has no public names for these two. Where it lacks the first, it lacks what needs it, too.
_single_level = getattr(
    torch._functorch.utils, "enable_single_level_autograd_function", contextlib.nullcontext
)
_register_vmap = getattr(
    torch.library, "register_vmap", None
)  # since torch 2.5; before, torch runs a loop and warns

_libraries: dict[
    str, torch.library.Library
] = {}  # an operator lives as long as the library that it was put into


def to_tensor(value: Any) -> Tensor | None:
    """A number or a list of numbers as a float64 tensor on the host."""
    if value is None or isinstance(value, Tensor):
        return value if value is None else value.double()
    if not torch.compiler.is_compiling():
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(value, list):
        numbers = [_to_scalar(number) for number in value]
        return torch.stack(numbers) if numbers else torch.zeros(0, dtype=torch.float64, device="cpu")
    return _to_scalar(value)


def _to_scalar(value: Any) -> Tensor:
    """By a product, the one way from a number to a tensor for which a compiler does not make a graph for each value."""
    if isinstance(value, Tensor):
        return value.double()
    return torch.ones((), dtype=torch.float64, device="cpu") * value


def to_number(value: Any) -> Any:
    """What `to_tensor` was given."""
    if not isinstance(value, Tensor):
        return value
    return value.tolist()


def is_traced_number(name: str, value: Any) -> bool:
    """Whether an argument is a number that a compiler has as a tensor, whose value is known only when it runs."""
    if not isinstance(value, Tensor) or not torch.compiler.is_compiling():
        return False
    if value.requires_grad:
        refuse_gradient(name)
    return True


def number_option(name: str, check: Callable[[str, Any], Any]) -> Any:
    """An attribute of a module that is a number, and a tensor to a compiler.

    So the values of a schedule, which a compiler would take for constants, do not make it compile again and again.

    Args:
        check: raises for a value that the attribute must not have.
    """
    number, tensor = f"_{name}", f"_{name}_tensor"

    def read(module: Any) -> Any:
        return getattr(module, tensor if torch.compiler.is_compiling() else number)

    def write(module: Any, value: Any) -> None:
        check(name, value)
        setattr(module, number, float(value))
        # Another tensor each time: the backward pass of an earlier call may still read the one before.
        setattr(module, tensor, torch.tensor(float(value), dtype=torch.float64, device="cpu"))

    return property(read, write)


def refuse_gradient(name: str) -> NoReturn:
    raise ConfigError(f"{name} wants a gradient, and a loss has none by it; expected {name}.detach()")


def refuse_forward_mode(tensors: Sequence[Any]) -> None:
    """Raise if one of these tensors is differentiated in forward mode.

    Torch takes an operator without a forward derivative for a constant, in silence: `torch.func.jvp`, `jacfwd` and `hessian`
    would give 0.
    """
    for tensor in tensors:
        if isinstance(tensor, Tensor) and torch._VF._unpack_dual(tensor, level=0)[1] is not None:
            raise RuntimeError(
                "fsachain has derivatives in reverse mode only; expected its losses outside of torch.func.jvp, jacfwd, "
                "hessian and torch.autograd.forward_ad"
            )


def is_in_forward_mode() -> bool:
    """Whether tensors may have forward derivatives; torch has no public name for the level."""
    return bool(getattr(forward_ad, "_current_level", 0) >= 0)


class Registered:
    """An operator of torch, `torch.ops.fsachain.NAME`.

    `kernel` takes the arguments as a tuple, and returns a tensor, a tuple of tensors or, if it writes to arguments, None.
    `fake` does the same for tensors without data, whose numbers are unknown. `differentiate(run, inputs)` returns the
    results of `run(inputs)` with their gradient. `apart` are arguments, by place, as they have to be where vmap makes one
    call for each slice of tensors.
    """

    def __init__(
        self,
        name: str,
        types: dict[str, Any],
        num_results: int,
        kernel: Run,
        fake: Run,
        differentiate: Callable[[Run, Inputs], Any],
        mutates: tuple[str, ...] = (),
        apart: dict[int, Any] | None = None,
    ) -> None:
        self._name, self._kernel, self._fake, self._differentiate = name, kernel, fake, differentiate
        self._numbers = [place for place, kind in enumerate(types.values()) if kind in _NUMBERS]
        self._mutated = [place for place, argument in enumerate(types) if argument in mutates]
        self._apart = apart or {}
        if name in _libraries:  # as a module does that is loaded again
            _libraries.pop(name)._destroy()
        library = _libraries[name] = torch.library.Library("fsachain", "FRAGMENT")
        tags = torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order
        library.define(name + _schema(types, num_results, mutates), tags=tags)
        self.op = getattr(torch.ops.fsachain, name).default
        library.impl(name, self._run, "CompositeExplicitAutograd")
        library.impl(name, self._with_autograd, "Autograd", with_keyset=True)
        torch.library.register_fake(f"fsachain::{name}", self._run_fake, lib=library)
        if _register_vmap is not None:
            _register_vmap(f"fsachain::{name}", self._run_slices, lib=library)

    def arguments(self, inputs: Inputs) -> list[Any]:
        """The arguments of `op`."""
        arguments = list(inputs)
        for place in self._numbers:
            arguments[place] = to_tensor(arguments[place])
        return arguments

    def __call__(self, inputs: Inputs) -> Any:
        return self.op(*self.arguments(inputs))

    def _run(self, *arguments: Any) -> Any:
        inputs = list(arguments)
        for place in self._numbers:
            inputs[place] = to_number(inputs[place])
        results = _plain(self._kernel(tuple(inputs)))
        for place in self._mutated:
            torch.autograd.graph.increment_version(inputs[place])
        return results

    def _run_fake(self, *arguments: Any) -> Any:
        return _plain(self._fake(arguments))

    def _with_autograd(self, keyset: Any, *arguments: Any) -> Any:
        refuse_forward_mode(arguments)
        below = keyset & torch._C._after_autograd_keyset

        def run(inputs: Inputs) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return self.op.redispatch(below, *inputs)

        if not torch.is_grad_enabled():
            return run(arguments)
        return self._differentiate(run, arguments)

    def _run_slices(self, info: Any, dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        """A call for each slice of tensors that `torch.vmap` runs over, and its results side by side."""
        if self._mutated:
            raise RuntimeError(f"fsachain::{self._name} writes to its arguments; expected it outside of vmap")
        if not info.batch_size:
            raise RuntimeError("fsachain has no losses of nothing; expected vmap over one entry or more")
        results = []
        for index in range(info.batch_size):
            inputs = [
                value.select(dim, index) if isinstance(dim, int) else value  # of a list there are several
                for value, dim in zip(arguments, dims, strict=True)
            ]
            for place, value in self._apart.items():
                inputs[place] = value
            results.append(self.op(*inputs))
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = tuple(torch.stack(each) for each in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)


def _plain(results: Any) -> Any:
    """A NamedTuple as the tuple that torch knows."""
    return tuple(results) if isinstance(results, tuple) else results


def _schema(types: dict[str, Any], num_results: int, mutates: tuple[str, ...]) -> str:
    """As in "(Tensor scores, SymInt blank) -> (Tensor, Tensor)"."""
    parts = []
    for index, (argument, kind) in enumerate(types.items()):
        name = _TORCH_NAMES[kind]
        if argument in mutates:
            name = f"Tensor(a{index}!)"
        parts.append(f"{name} {argument}")
    results = "Tensor" if num_results == 1 else f"({', '.join(['Tensor'] * num_results)})"
    return f"({', '.join(parts)}) -> {results}"


def single_level() -> AbstractContextManager[None]:
    """In which a node of autograd may be made while a transform is at work."""
    context: AbstractContextManager[None] = _single_level()
    return context
