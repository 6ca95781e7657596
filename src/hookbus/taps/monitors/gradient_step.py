"""One step of an optimiser, while it is measured, and the rows that come of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
            self.weights = over_processes([_norm(_values_of(p)) for p in self._before], self._before, norm=True)

    def listen(self) -> None:
        """Measure updates as soon as it has stepped."""
        # Called twice for an optimiser whose step calls that of its base; what it finds last counts.
        self._handle = self.optimizer.register_step_post_hook(lambda *_: self.measure_updates())

    def measure_gradients(self) -> None:
        """Take the norms, and count what is not finite."""
        with torch.no_grad():
            grads = [parameter.grad for parameter in self.parameters]
            known = [_summed_up(grad) for grad in grads if grad is not None]
            measured = [_measured(_values_of(grad)) for grad in known]
            norms = iter(over_processes([norm for norm, _ in measured], known, norm=True))
            counts = iter(over_processes([count for _, count in measured], known, norm=False))
            self.norms = [None if grad is None else next(norms) for grad in grads]
            self.nonfinite = [None if grad is None else next(counts) for grad in grads]

    def measure_updates(self) -> None:
        """Compare the weights with what they were."""
        self.stepped = True
        with torch.no_grad():
            changes = [p.detach() - before for p, before in zip(self.parameters, self._before, strict=False)]
            self.updates = over_processes([_norm(_values_of(change)) for change in changes], changes, norm=True)

    def close(self) -> None:
        """Let the optimiser and the copies of the weights go."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._before = []


def is_spread(tensor: Any) -> bool:
    """Whether it is a DTensor, such as FSDP's parameters and their gradients: each process has a part of it."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def _values_of(tensor: Any) -> Tensor:
    """The values of a parameter or gradient, also of a sparse one; of one that is spread, this process's part."""
    values: Tensor
    if is_spread(tensor):
        values = tensor.detach().to_local()
    else:
        values = tensor.coalesce().values() if tensor.is_sparse else tensor.detach()
    return values


def _summed_up(grad: Any) -> Any:
    """The gradient, whole if each process had a summand of it and not a part."""
    return grad.full_tensor() if is_spread(grad) and any(place.is_partial() for place in grad.placements) else grad


def _measured(values: Tensor) -> tuple[Tensor, Tensor]:
    """Norm, and number of values that are not finite."""
    norm = _norm(values)
    if not on_host(values):
        return norm, _count(values)
    if math.isfinite(norm.item()):
        return norm, torch.zeros((), dtype=torch.int64)
    count = _count(values)
    return (norm if count.item() else _norm(values.double())), count  # or too great for float32


def _norm(values: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
    return norm


def _count(values: Tensor) -> Tensor:
    count: Tensor = values.isfinite().logical_not().sum()
    return count


def over_processes(figures: Sequence[Tensor], of: Sequence[Any], *, norm: bool) -> list[Tensor]:
    """Figures of whole tensors from those of the parts that this process has.

    There is one collective for all tensors that are spread in the same way, and none if no tensor is.

    Args:
        figures: a scalar for each tensor.
        of: the tensors.
        norm: whether the figures are norms, to be added as squares; otherwise they are counts.
    """
    whole = list(figures)
    ways: dict[Any, list[int]] = {}
    for index, tensor in enumerate(of):
        if is_spread(tensor):
            way = (tensor.device_mesh, tuple(place.is_shard() for place in tensor.placements))
            ways.setdefault(way, []).append(index)
    for (mesh, shards), indices in ways.items():
        from torch.distributed.tensor import DTensor, Partial, Replicate

        parts = torch.stack([figures[index].double() for index in indices])  # squares of float32 would overflow
        places = [Partial() if shard else Replicate() for shard in shards]
        summed = DTensor.from_local(parts.square() if norm else parts, mesh, places).full_tensor()
        for index, figure in zip(indices, (summed.sqrt() if norm else summed).unbind(), strict=True):
            whole[index] = figure
    return whole


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
