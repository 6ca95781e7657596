"""The values logged under one name in one epoch: kept cheaply while steps run, reduced when somebody asks.

A step must cost little and never wait for the device. So a logged tensor is *copied* into the next row of a small
buffer on its own device (copied, because users go on to change their tensors in place), and the rows are summed up
when the buffer is full or the epoch's value is wanted. Python numbers are added up in Python, and so are float32 tensors
on the CPU, where reading a number waits for nothing and costs a third of a copy.
"""

from __future__ import annotations

import numbers
from typing import Any, Protocol

import torch
from torch import Tensor

from hookbus.errors import MisconfigurationException
from hookbus.trainer.metric_rules import LogOptions

_FLOAT32 = torch.float32
_FIRST_BLOCK = 8
_BLOCK = 128


class MetricObject(Protocol):
    """What is expected of an object that accumulates by itself, as those of torchmetrics do.

    ``_forward_cache``, the value of the last call, is optional: without it the object has no value for a step.
    """

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Take in one batch."""

    def compute(self) -> Any:
        """The value of everything since ``reset``."""

    def reset(self) -> Any:
        """Forget everything."""


def is_metric_object(value: object) -> bool:
    """Whether ``value`` can be logged as a :class:`MetricObject`."""
    return all(callable(getattr(value, method, None)) for method in ("update", "compute", "reset"))


class Series:
    """What both kinds of series share: where the values come from, and where they are to be shown.

    Attributes:
        name, hook, loader: as logged; ``loader`` is None unless there are several.
        options: the resolved options.
        given: the options as the user wrote them, to recognise an unchanged call at once.
        per_batch: logged in a hook that runs for each batch.
        logged: something was logged since the last ``clear``.
        fresh: something changed since the trainer's dictionaries were last brought up to date.
        over: its loader's batches are over, so the value of the epoch is what counts.
        pending: the value of the epoch needs other processes (or the object's ``compute``) and is not there yet.
    """

    __slots__ = ("fresh", "given", "hook", "loader", "logged", "name", "options", "over", "pending", "per_batch")

    def __init__(self, name: str, hook: str, loader: int | None, options: LogOptions, *, per_batch: bool) -> None:
        self.name = name
        self.hook = hook
        self.loader = loader
        self.options = options
        self.given: tuple[Any, ...] | None = None
        self.per_batch = per_batch
        self.logged = self.fresh = self.over = self.pending = False

    @property
    def suffix(self) -> str:
        """What distinguishes the loaders in the shown name."""
        return "" if self.loader is None or not self.options.add_dataloader_idx else f"/dataloader_idx_{self.loader}"

    def shown_name(self, fork: str) -> str:
        """The name for loggers; ``fork`` is "_step" or "_epoch", used if the name has both values."""
        return f"{self.name}{fork if self.options.forked else ''}{self.suffix}"

    def add(self, value: Any, weight: Any) -> None:
        """Take in one logged value; ``weight`` is the batch size."""
        raise NotImplementedError

    def step_value(self) -> Tensor | None:
        """The last logged value: a fresh 0-dim tensor."""
        raise NotImplementedError

    def epoch_value(self) -> Tensor | None:
        """The reduction of all logged values: a fresh tensor. None while ``pending``."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """The values so far, as plain data."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget the values, keep the options."""
        self.logged = self.fresh = self.over = self.pending = False


class NumberSeries(Series):
    """Numbers and one-element tensors, reduced by mean (weighted by batch size), sum, max or min."""

    __slots__ = (
        "_buffer",
        "_filled",
        "_last",
        "_number",
        "_reduced",
        "_rows",
        "_sums",
        "_total",
        "_weight",
        "_weights",
        "synced",
    )

    def __init__(
        self, name: str, hook: str, loader: int | None, options: LogOptions, *, per_batch: bool, synced: bool = False
    ) -> None:
        super().__init__(name, hook, loader, options, per_batch=per_batch)
        self.synced = synced
        self._sums = options.on_epoch and options.reduction == "mean"
        self._buffer = torch.empty(0, dtype=torch.float32)
        self._rows: tuple[Tensor, ...] = ()
        self.clear()

    def clear(self) -> None:
        """Forget the values; the buffer stays for the next epoch."""
        super().clear()
        self._filled = 0
        self._weights: list[Any] = []
        self._last: Any = None
        self._number: float | None = None
        self._total: Tensor | None = None
        self._weight: Any = 0
        self._reduced: Tensor | None = None

    def add(self, value: Any, weight: Any) -> None:
        """Take in one number or one-element tensor.

        Raises:
            ValueError: the value is neither.
        """
        if (
            type(value) is Tensor
            and type(weight) is int
            and value.is_cpu
            and value.dtype is _FLOAT32 is torch.get_default_dtype()
        ):
            try:
                value = value.item()
            except RuntimeError:
                value = self._single(value).item()
        if type(value) is float and not isinstance(weight, Tensor):
            self._last = value
            if self._sums:
                self._number = (self._number or 0.0) + value * weight
                self._weight += weight
            elif self.options.on_epoch:
                self._add_number(value)
        elif isinstance(value, Tensor):
            if value.requires_grad:
                value = value.detach()
            row = self._filled
            if row == len(self._rows):
                row = self._make_room(value)
            try:
                self._rows[row].copy_(value)
            except RuntimeError:
                self._rows[row].copy_(self._single(value))
            self._last = self._rows[row]
            if self.options.on_epoch:
                self._filled = row + 1
                self._weights.append(weight)
        elif isinstance(value, (float, int, numbers.Real)):
            number = float(value)
            self.add(torch.as_tensor(number, device=weight.device) if isinstance(weight, Tensor) else number, weight)
            return
        else:
            raise ValueError(self._refusal(value))
        self.logged = self.fresh = True
        self.pending = self.synced

    def _add_number(self, value: float) -> None:
        reduction = self.options.reduction
        if self._number is None:
            self._number = value
        elif reduction == "sum":
            self._number += value
        elif value != value or (value > self._number if reduction == "max" else value < self._number):
            self._number = value  # a NaN, once there, stays

    def _single(self, value: Tensor) -> Tensor:
        if value.numel() != 1:
            raise ValueError(
                f"self.log({self.name!r}, ...) takes one number, got a tensor of shape {tuple(value.shape)}: log its "
                ".mean() (or .sum(), .max()) instead."
            ) from None
        return value.reshape(())

    def _refusal(self, value: object) -> str:
        if isinstance(value, dict):
            return (
                f"self.log({self.name!r}, ...) takes one number, got a dict with the keys {sorted(map(str, value))}: "
                "use self.log_dict({...}) for several names at once."
            )
        return (
            f"self.log({self.name!r}, ...) takes a number, a one-element tensor or a metric object, got "
            f"{type(value).__name__}: {value!r:.100}"
        )

    def _make_room(self, value: Tensor) -> int:
        """Sum up the full buffer; the first one is small, since many series see only a few values."""
        self._single(value)  # before memory is taken for something that cannot be logged
        self.fold()
        wanted = (_BLOCK if self._rows else _FIRST_BLOCK) if self.options.on_epoch else 1
        dtype = torch.promote_types(_kept_dtype(value.dtype), self._buffer.dtype)
        if (len(self._rows), self._buffer.dtype, self._buffer.device) != (wanted, dtype, value.device):
            # Outside inference mode, since values of later steps may come from outside it too.
            with torch.inference_mode(False):
                self._buffer = torch.zeros(wanted, dtype=dtype, device=value.device)
                self._rows = self._buffer.unbind()
        return 0

    def fold(self) -> None:
        """Sum up the rows of the buffer."""
        count = self._filled
        if not count:
            return
        reduction = self.options.reduction
        with torch.inference_mode(False):
            rows = self._buffer[:count]
            if reduction == "mean":
                part = _weighted_sum(rows, self._weights)
                self._weight = self._weight + sum(self._weights)
            elif reduction == "sum":
                part = rows.sum()
            else:
                part = rows.amax() if reduction == "max" else rows.amin()
            self._total = part if self._total is None else _combine(reduction, self._total.to(part.device), part)
        self._filled = 0
        self._weights = []

    def sums(self) -> tuple[Tensor, Any]:
        """The reduction of all values of this process, and for a mean the sum of the weights (else 0)."""
        self.fold()
        if self._number is None:
            assert self._total is not None
            return self._total, self._weight
        if self._total is None:
            return torch.tensor(self._number, dtype=_kept_dtype()), self._weight
        number = torch.full_like(self._total, self._number)
        return _combine(self.options.reduction, self._total, number), self._weight

    def settle(self, value: Tensor) -> None:
        """Take the epoch's value as reduced over all processes."""
        self._reduced = value
        self.pending = False

    def set_step_value(self, value: Tensor) -> None:
        """Take the last value as reduced over all processes."""
        self._last = value

    def step_value(self) -> Tensor | None:
        """The last logged value, on its device, in float32 (float64 stays so)."""
        if isinstance(self._last, Tensor):
            return self._last.clone()
        return None if self._last is None else torch.tensor(self._last, dtype=_kept_dtype())

    def epoch_value(self) -> Tensor | None:
        """The reduction of the epoch so far, over all processes if it is synchronised."""
        if self.pending:
            return None
        if self._reduced is not None:
            return self._reduced.clone()
        total, weight = self.sums()
        return total / weight if self.options.reduction == "mean" else total.clone()

    def state(self) -> dict[str, Any]:
        """The values so far, as tensors and numbers."""
        self.fold()
        last = self._last.clone() if isinstance(self._last, Tensor) else self._last
        total = None if self._total is None else self._total.clone()
        reduced = None if self._reduced is None else self._reduced.clone()
        return {
            "last": last,
            "number": self._number,
            "total": total,
            "weight": self._weight,
            "reduced": reduced,
            "over": self.over,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.clear()
        self._last, self._number = state["last"], state["number"]
        self._total, self._weight = state["total"], state["weight"]
        self._reduced, self.over = state["reduced"], state["over"]
        self.logged = True
        self.fresh = not self.over  # else it stands in the dictionaries already
        self.pending = self.synced and self._reduced is None


class ObjectSeries(Series):
    """A metric object: its last value for the step, its ``compute`` for the epoch, ``reset`` when the epoch is over."""

    __slots__ = ("_computed", "_last", "_metric")

    def __init__(self, name: str, hook: str, loader: int | None, options: LogOptions, *, per_batch: bool) -> None:
        super().__init__(name, hook, loader, options, per_batch=per_batch)
        self._metric: Any = None
        self._last: Tensor | None = None
        self._computed: Tensor | None = None

    def add(self, value: Any, weight: Any) -> None:
        """Note the object and its last value.

        Raises:
            MisconfigurationException: this name was logged with an object before, and now with something else.
        """
        if not is_metric_object(value):
            raise MisconfigurationException(
                f"self.log({self.name!r}, ...) was called with a metric object before and now with a "
                f"{type(value).__name__} in `{self.hook}`: use two names."
            )
        self._metric = value
        if self.options.on_step:
            last = getattr(value, "_forward_cache", None)
            self._last = None if last is None else self._tensor(last, "last value")
        self._computed = None
        self.logged = self.fresh = True
        self.pending = self.options.on_epoch

    def settle(self) -> None:
        """Ask the object for the value of the epoch; a distributed one talks to the other processes here."""
        self._computed = self._tensor(self._metric.compute(), "compute()")
        self.pending = False

    def step_value(self) -> Tensor | None:
        """The value of the last ``forward``; None if there was none."""
        return self._last

    def epoch_value(self) -> Tensor | None:
        """What ``compute`` gave."""
        return self._computed

    @property
    def metric(self) -> Any:
        """The object, None before the first value."""
        return self._metric

    def state(self) -> dict[str, Any]:
        """The values so far; what the object holds is its own affair."""
        return {"last": self._last, "computed": self._computed, "over": self.over}

    def load(self, state: dict[str, Any], metric: Any) -> None:
        """Go on from what ``state`` returned, with an object that has been restored."""
        self._metric, self._last, self._computed = metric, state["last"], state["computed"]
        self.logged, self.over = True, state["over"]
        self.fresh = not self.over
        self.pending = self.options.on_epoch and self._computed is None

    def clear(self) -> None:
        """Reset the object, and let go of it."""
        super().clear()
        if self._metric is not None:
            self._metric.reset()
        self._metric = self._last = self._computed = None

    def _tensor(self, value: object, what: str) -> Tensor:
        if not isinstance(value, Tensor):
            raise ValueError(
                f"the {what} of the metric object logged as {self.name!r} must be a tensor, got "
                f"{type(value).__name__}: {value!r:.100}"
            )
        return value.detach()


def _kept_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype for values of ``dtype``: float32 and float64 as they are, others in the default dtype or float32."""
    for candidate in (dtype, torch.get_default_dtype()):
        if candidate in (torch.float32, torch.float64):
            return candidate
    return torch.float32


def _combine(reduction: str, first: Tensor, second: Tensor) -> Tensor:
    if reduction in ("mean", "sum"):
        return first + second
    return torch.maximum(first, second) if reduction == "max" else torch.minimum(first, second)


def _weighted_sum(rows: Tensor, weights: list[Any]) -> Tensor:
    """``sum(rows * weights)`` without waiting for the device."""
    if any(issubclass(kind, Tensor) for kind in set(map(type, weights))):
        return (rows * torch.stack([torch.as_tensor(weight, device=rows.device) for weight in weights])).sum()
    first = weights[0]
    if weights.count(first) == len(weights):
        return rows.sum() * float(first)
    factors = torch.tensor(weights, dtype=rows.dtype)
    if rows.is_cuda:
        factors = factors.pin_memory()  # a copy from ordinary memory would wait for the device
    return rows @ factors.to(rows.device, non_blocking=True)
