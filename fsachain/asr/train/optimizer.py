"""Optimisers by name, over groups of parameters with learning rates of their own."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, chain
from typing import Any

import torch
from torch import nn

from fsachain.asr.train.config import OptimizerConfig, TrainConfig
from fsachain.asr.train.schedule import Scheduled, learning_rate, training_progress, value_at
from fsachain.errors import ConfigError

_KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "sgd": torch.optim.SGD,
}
_FUSED = ("adam", "adamw", "sgd")  # the others use torch's `foreach` form


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of `config` over all parameters that are to move, in torch's fastest form.

    Parameters are grouped by factor on the learning rate and weight decay; `set_learning_rate` reads a group's `factor`.
    """
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    factors = by_prefix(named, config.factors, 1.0, "train.optimizer.factors")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        decays = config.decayed == "all" or parameter.dim() > 1
        key = (factors[name], config.weight_decay if decays else 0.0)
        groups.setdefault(key, []).append(parameter)
    constants: dict[str, Any] = {"betas": config.betas, "eps": config.epsilon}
    if config.name == "sgd":
        constants = {"momentum": config.momentum}
    # torch's fused SGD fails where some parameters have no momentum yet because they were frozen until now.
    late = config.name == "sgd" and bool(config.freeze_epochs)
    constants["fused" if config.name in _FUSED and not late else "foreach"] = True
    tables = [
        {"params": parameters, "factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]
    return _KINDS[config.name](tables, lr=0.0, **constants)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)  # checkpoints of older versions have no factor


def by_prefix(
    names: Iterable[str], values: Mapping[str, float], default: float, where: str
) -> dict[str, float]:
    """For each dotted name the value of its longest prefix in `values`: of `encoder.linear.weight`, "encoder", not "enc".

    A prefix that begins no name is a ConfigError that says `where`, the option of the values.
    """
    prefixes = {name: list(accumulate(name.split("."), "{}.{}".format)) for name in names}  # shortest first
    known = dict.fromkeys(chain.from_iterable(prefixes.values()))  # in order
    for prefix in values:
        if prefix not in known:
            near = difflib.get_close_matches(prefix, known, n=1)
            tops = [name for name in known if "." not in name]
            hint = f"did you mean {near[0]!r}?" if near else f"they begin with {', '.join(tops)}"
            raise ConfigError(f"{where}: {prefix!r} begins no parameter's name; {hint}")
    return {
        name: next((values[prefix] for prefix in reversed(own) if prefix in values), default)
        for name, own in prefixes.items()
    }


def dropout_setters(module: nn.Module) -> Iterator[Callable[[float], None]]:
    """Functions that set the dropout proportion, one for each part of a network that drops something.

    - A module with a method `set_dropout(proportion)` is asked, and its children are left to it.
    - A dropout module, torch's or one with "Dropout" in the name of its class and a number `p`, gets this p.
    - torch's attention and recurrent layers get their `dropout`: of attention weights, or of what passes between layers.
    """
    if hasattr(module, "set_dropout"):
        yield module.set_dropout  # type: ignore[misc]
        return
    if "Dropout" in type(module).__name__ and isinstance(getattr(module, "p", None), float | int):
        yield partial(setattr, module, "p")
    elif isinstance(module, nn.MultiheadAttention) or (
        isinstance(module, nn.RNNBase) and module.num_layers > 1
    ):
        yield partial(setattr, module, "dropout")
    for child in module.children():
        yield from dropout_setters(child)


class Schedules:
    """Sets, before each step, all that changes with the progress of a training.

    These are the learning rate by group of parameters, frozen parameters, dropout, and options of the loss (by its
    `adjust(**options)`). All are pure functions of the number of steps done, so that a checkpoint needs to keep this number
    alone. `values` holds what was set last, by name, for the log; the learning rate is that of factor 1.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        loss_options: Mapping[str, Scheduled],
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._config = config
        self.loss_options = dict(loss_options)
        if self.loss_options and not hasattr(loss, "adjust"):
            raise ConfigError(
                f"loss_schedules: {', '.join(self.loss_options)} for a {type(loss).__name__}, which has no `adjust`"
            )
        self._dropout = [] if config.dropout_schedule is None else list(dropout_setters(model))
        if config.dropout_schedule is not None and not self._dropout:
            raise ConfigError(
                f"train.dropout_schedule: nothing in {type(model).__name__} drops anything; expected a dropout module, "
                "or a module with set_dropout(proportion)"
            )
        # Parameters that the user froze stay frozen.
        movable = {name: value for name, value in model.named_parameters() if value.requires_grad}
        freeze, option = config.optimizer.freeze_epochs, "train.optimizer.freeze_epochs"
        frozen = by_prefix(movable, freeze, 0.0, option)
        if movable and min(frozen.values()) > 0:
            raise ConfigError(f"{option}: {freeze} freezes every parameter in the first epoch")
        self._frozen = [(movable[name], epochs) for name, epochs in frozen.items() if epochs]
        self.values: dict[str, float] = {}

    def apply(self, step: int, num_steps: int) -> None:
        """`step` is counted from 0 over `num_steps` of all epochs together."""
        self.values = self.at(step, num_steps)
        set_learning_rate(self._optimizer, self.values["learning_rate"])
        epochs = step * self._config.num_epochs / max(num_steps, 1)
        for parameter, until in self._frozen:
            moves = epochs >= until
            if not moves:
                parameter.grad = None  # one from before a resumed training would still move it
            parameter.requires_grad_(moves)
        self._adjust(self.values)
        for set_proportion in self._dropout:
            set_proportion(self.values["dropout"])

    def at(self, step: int, num_steps: int) -> dict[str, float]:
        """The `values` of a step; nothing is set."""
        progress = training_progress(step, num_steps)
        found = {"learning_rate": learning_rate(self._config.schedule, step, num_steps)}
        found |= {name: value_at(value, progress) for name, value in self.loss_options.items()}
        if self._config.dropout_schedule is not None:
            found["dropout"] = value_at(self._config.dropout_schedule, progress)
        return found

    def apply_final(self) -> None:
        """Give the loss its options of the last step, so that evaluations at any time can be compared."""
        self._adjust(self.at(1, 1))

    def _adjust(self, values: Mapping[str, float]) -> None:
        if self.loss_options:
            self._loss.adjust(**{name: values[name] for name in self.loss_options})


class MaxChange:
    """Scales the step that is taken within its `with` block, whatever takes it.

        with limit:
            optimizer.step()

    As in Kaldi's neural-network training, with Euclidean norms:

        d_c   = change of the parameters of component c in the step, all of its tensors together
        f_c   = min(1, per_component / |d_c|)
        g     = min(1, total / sqrt(sum_c f_c^2 |d_c|^2))
        step  = g f_c d_c

    A component is a module with parameters of its own: a convolution or linear layer with weight and bias is what Kaldi
    calls an affine component. Kaldi's recipes have 0.75 per component and 2 in total.

    The change is the parameters after the step less a copy made before it: the one thing that every optimiser has in
    common. The copy takes as much memory as the parameters, half of what Adam keeps. Parameters without a gradient
    take no part. Projections that come after the step, such as `constrain_orthonormal`, are not limited, as in Kaldi.

    Args:
        model: whose parameters are watched.
        per_component: largest norm of a component's change, > 0; None for no limit.
        total: largest norm of the whole change, > 0; None for no limit.

    Attributes:
        limited: whether the last step was scaled down as a whole: 1 or 0.
        limited_components: how many components were scaled down by themselves in the last step.
        norm: of the last step after scaling; NaN without limits.
    """

    def __init__(
        self, model: nn.Module, *, per_component: float | None = None, total: float | None = None
    ) -> None:
        self.per_component = math.inf if per_component is None else per_component
        self.total = math.inf if total is None else total
        self.limited = 0
        self.limited_components = 0
        self.norm = math.nan
        self._component: dict[torch.Tensor, int] = {}  # a tensor that two modules share belongs to the first
        for number, module in enumerate(model.modules()):
            for parameter in module.parameters(recurse=False):
                self._component.setdefault(parameter, number)
        self._copies: dict[torch.Tensor, torch.Tensor] = {}
        self._moving: list[torch.Tensor] = []

    def __enter__(self) -> MaxChange:
        """Without a limit the block costs nothing."""
        if min(self.per_component, self.total) < math.inf:
            self._moving = [parameter for parameter in self._component if parameter.grad is not None]
            new = [parameter for parameter in self._moving if parameter not in self._copies]
            self._copies |= {parameter: torch.empty_like(parameter, requires_grad=False) for parameter in new}
            if self._moving:
                with torch.no_grad():
                    torch._foreach_copy_([self._copies[one] for one in self._moving], self._moving)
        return self

    @torch.no_grad()
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take back what is too much: parameters += (1 - g f_c) (before - after)."""
        if kind is not None or min(self.per_component, self.total) == math.inf:
            return
        self.limited, self.limited_components, self.norm = 0, 0, 0.0
        if not self._moving:
            return
        back = [self._copies[parameter] for parameter in self._moving]
        torch._foreach_sub_(back, self._moving)
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(back)]).tolist()
        pairs = zip(self._moving, back, self._factors(norms), strict=True)
        much = [(parameter, excess, factor) for parameter, excess, factor in pairs if factor < 1.0]
        if much:
            parameters, excess, factors = map(list, zip(*much, strict=True))
            torch._foreach_mul_(excess, [1.0 - factor for factor in factors])
            torch._foreach_add_(parameters, excess)

    def _factors(self, norms: list[float]) -> list[float]:
        """g f_c for every moving tensor, from the norms of their changes."""
        squares: dict[int, float] = {}
        components = [self._component[parameter] for parameter in self._moving]
        for number, norm in zip(components, norms, strict=True):
            squares[number] = squares.get(number, 0.0) + norm * norm
        changes = {number: math.sqrt(square) for number, square in squares.items()}
        if not all(map(math.isfinite, changes.values())):
            return [1.0] * len(norms)  # not finite; the next loss is reported
        scale = {number: _down_to(self.per_component, change) for number, change in changes.items()}
        whole = math.sqrt(sum((scale[number] * change) ** 2 for number, change in changes.items()))
        overall = _down_to(self.total, whole)
        self.limited_components = sum(factor < 1.0 for factor in scale.values())
        self.limited = int(overall < 1.0)
        self.norm = overall * whole
        return [overall * scale[number] for number in components]


def _down_to(limit: float, norm: float) -> float:
    return 1.0 if norm <= limit else limit / norm
