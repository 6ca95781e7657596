"""Whether the value that a callback monitors is new.

``trainer.callback_metrics`` keeps a value until the next one of its name is logged, which may be a whole epoch later.
Whoever decides by it must know whether it says something of the present weights. The trainer enters a fresh tensor
each time, so a value is new if it is another object than the one seen before.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


class MonitoredValue:
    """One name in ``trainer.callback_metrics``, watched during a fit.

    Attributes:
        changes: how often a new value was seen.
        step: the optimiser step at which the present one was first seen; None before the first.
        validated: whether a validation is over, so that everything had its chance to be logged.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.step: int | None = None
        self.validated = False
        self._seen: Any = None
        self._before_epoch = self._used = 0

    def look(self, trainer: Any, name: str | None) -> Any | None:
        """The present value of ``name``, None if there is none; notes whether it is a new one."""
        value = None if name is None else trainer.callback_metrics.get(name)
        if value is not None and (value is not self._seen or not isinstance(value, Tensor)):
            self._seen = value
            self.step = trainer.global_step
            self.changes += 1
        return value

    def begin(self, trainer: Any, name: str | None) -> None:
        """Training begins, or goes on: what there is already is old."""
        self.look(trainer, name)
        self._before_epoch = self._used = self.changes

    def begin_epoch(self, trainer: Any, name: str | None) -> None:
        """What there is already is of earlier epochs."""
        self.look(trainer, name)
        self._before_epoch = self.changes

    def use(self) -> None:
        """What there is now has been decided upon."""
        self._used = self.changes

    @property
    def unused(self) -> bool:
        """Whether the present value came since the last decision."""
        return self.changes > self._used

    def of_step(self, step: int) -> bool:
        """Whether the present value was first seen at this step."""
        return self.step == step

    @property
    def of_epoch(self) -> bool:
        """Whether the present value came in this epoch."""
        return self.changes > self._before_epoch


def absence(who: object, name: str | None, trainer: Any) -> str:
    """The text of an error or a warning about a monitored name that was not logged."""
    there = ", ".join(map(repr, sorted(trainer.callback_metrics))) or "nothing"
    return (
        f"{type(who).__name__} monitors {name!r}, which was not logged; there is: {there}. Log it with "
        f"self.log({name!r}, …), or monitor one of these"
    )


def staleness(who: object, name: str | None, value: MonitoredValue, trainer: Any) -> str:
    """The text of a warning about a monitored value that is too old to decide by."""
    return (
        f"{type(who).__name__} monitors {name!r}, whose value is from step {value.step} or before and says nothing of "
        f"step {trainer.global_step}: no checkpoint is ranked by it here. Log it before each save, or save where it is "
        "logged"
    )
