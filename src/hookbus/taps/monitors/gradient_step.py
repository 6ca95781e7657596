"""One step of an optimiser, while it is measured, and the rows that come of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hookbus.taps.monitors.monitor import on_host

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Level = Literal["parameter", "group", "total"]


@dataclass(frozen=True)
class GradientRow:
    """The gradient of a parameter, or of all parameters of a group, at one optimiser step.

    Attributes:
        name: the parameter's dotted name; of a group, its ``name`` or ``pg1``, ``pg2``, …; of all, ``total``.
        level: ``parameter``, ``group`` or ``total``.
        numel: number of values.
        norm: their 2-norm; not finite if a value is not.
        nonfinite: number of values that are NaN or infinite.
        weight_norm: 2-norm of the parameters before the step; None if updates are not measured.
        update_norm: 2-norm of what the step changed them by; None if there was no step, or updates are not measured.
    """

    name: str
    level: Level
    numel: int
    norm: float
    nonfinite: int
    weight_norm: float | None = None
    update_norm: float | None = None

    @property
    def rms(self) -> float:
        """Root of the mean square of the values."""
        return self.norm / math.sqrt(self.numel)

    @property
    def update_ratio(self) -> float | None:
        """Norm of the update divided by that of the weights; None if either is not known, or the weights are zero."""
        if self.update_norm is None or not self.weight_norm:
            return None
        return self.update_norm / self.weight_norm


class MeasuredStep:
    """One step of one optimiser, while it is measured.

    Attributes:
        optimizer: the optimiser.
        stepped: whether it has stepped.
    """

    def __init__(self, optimizer: Optimizer, names: dict[int, str], *, updates: bool) -> None:
        self.optimizer = optimizer
        self.stepped = False
        self.names: list[str] = []
        self.groups: list[str] = []
        self.parameters: list[Tensor] = []
        for number, group in enumerate(optimizer.param_groups, start=1):
            for parameter in group["params"]:
                if id(parameter) in names:
                    self.names.append(names[id(parameter)])
                    self.groups.append(str(group.get("name", f"pg{number}")))
                    self.parameters.append(parameter)
        self.norms: list[Tensor | None] = []
        self.nonfinite: list[Tensor | None] = []
        self.weights: list[Tensor] = []
        self.updates: list[Tensor] = []
        self._handle: RemovableHandle | None = None
        with torch.no_grad():
            self._before = [p.detach().clone() for p in self.parameters] if updates else []
            self.weights = [_norm(p) for p in self._before]

    def listen(self) -> None:
        """Measure updates as soon as it has stepped."""
        # Called twice for an optimiser whose step calls that of its base; what it finds last counts.
        self._handle = self.optimizer.register_step_post_hook(lambda *_: self.measure_updates())

    def measure_gradients(self) -> None:
        """Take the norms, and count what is not finite."""
        self.norms, self.nonfinite = [], []
        with torch.no_grad():
            for parameter in self.parameters:
                grad = parameter.grad
                if grad is None:
                    self.norms.append(None)
                    self.nonfinite.append(None)
                    continue
                values = _values_of(grad)
                norm = _norm(values)
                if not on_host(values):
                    self.nonfinite.append(_count(values))
                elif math.isfinite(norm.item()):
                    self.nonfinite.append(torch.zeros((), dtype=torch.int64))
                else:
                    count = _count(values)
                    norm = norm if count.item() else _norm(values.double())  # too great for float32
                    self.nonfinite.append(count)
                self.norms.append(norm)

    def measure_updates(self) -> None:
        """Compare the weights with what they were."""
        self.stepped = True
        with torch.no_grad():
            self.updates = [_norm(p.detach() - b) for p, b in zip(self.parameters, self._before, strict=False)]

    def close(self) -> None:
        """Let the optimiser and the copies of the weights go."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._before = []


def _values_of(grad: Tensor) -> Tensor:
    """The values of a gradient, also of a sparse one."""
    values: Tensor = grad.coalesce().values() if grad.is_sparse else grad.detach()
    return values


def _norm(values: Tensor) -> Tensor:
    wide = torch.promote_types(values.dtype, torch.float32)
    return _whole(torch.linalg.vector_norm(values, dtype=wide))


def _count(values: Tensor) -> Tensor:
    return _whole(values.isfinite().logical_not().sum())


def _whole(scalar: Tensor) -> Tensor:
    """The value over all processes, if that of a distributed tensor is spread over them."""
    return scalar.full_tensor() if hasattr(scalar, "full_tensor") else scalar


def rows_of(steps: Sequence[MeasuredStep]) -> list[GradientRow]:
    """Rows of parameters, groups and the total, with one fetch from each device."""
    steps = [step for step in steps if step.norms]
    numbers = _fetch([t for step in steps for t in (*step.norms, *step.nonfinite, *step.weights, *step.updates)])
    rows: list[GradientRow] = []
    groups: dict[str, list[GradientRow]] = {}
    for prefix, step in zip(_prefixes(steps), steps, strict=True):
        for index, parameter in enumerate(step.parameters):
            norm, nonfinite = step.norms[index], step.nonfinite[index]
            if norm is None or nonfinite is None:
                continue
            row = GradientRow(
                step.names[index],
                "parameter",
                parameter.numel(),
                numbers(norm),
                round(numbers(nonfinite)),
                numbers(step.weights[index]) if step.weights else None,
                numbers(step.updates[index]) if step.updates else None,
            )
            rows.append(row)
            groups.setdefault(prefix + step.groups[index], []).append(row)
    if not rows:
        return []
    several = [_together(name, "group", some) for name, some in groups.items()] if len(groups) > 1 else []
    return [*rows, *several, _together("total", "total", rows)]


def _together(name: str, level: Level, rows: Sequence[GradientRow]) -> GradientRow:
    def norm(of: Callable[[GradientRow], float | None]) -> float | None:
        values = [of(row) for row in rows]
        return None if any(value is None for value in values) else math.hypot(*values)  # type: ignore[arg-type]

    whole = norm(lambda row: row.norm)
    assert whole is not None
    # math.hypot of infinity and NaN is infinity; a NaN among the gradients makes the norm NaN.
    whole = math.nan if any(math.isnan(row.norm) for row in rows) else whole
    return GradientRow(
        name,
        level,
        sum(row.numel for row in rows),
        whole,
        sum(row.nonfinite for row in rows),
        norm(lambda row: row.weight_norm),
        norm(lambda row: row.update_norm),
    )


def _prefixes(steps: Sequence[MeasuredStep]) -> list[str]:
    """What tells the groups of several optimisers apart; nothing where there is one."""
    if len(steps) == 1:
        return [""]
    kinds = [type(step.optimizer).__name__ for step in steps]
    return [
        f"{kind}/" if not kinds[:i].count(kind) else f"{kind}-{kinds[:i].count(kind)}/" for i, kind in enumerate(kinds)
    ]


def _fetch(tensors: Sequence[Tensor | None]) -> Callable[[Tensor], float]:
    """The values of scalars, by the tensor; each device is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append(tensor)
    values: dict[int, float] = {}
    for device, some in by_device.items():
        wide = torch.float32 if device.type == "mps" else torch.float64
        floats = torch.stack([tensor.to(wide) for tensor in some]).tolist()
        values.update(zip(map(id, some), floats, strict=True))
    return lambda tensor: values[id(tensor)]
