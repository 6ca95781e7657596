"""Whether the value that a callback monitors is new.

``trainer.callback_metrics`` keeps a value until the next one of its name is logged, which may be a whole epoch later.
Whoever decides by it must know whether it says something of the present weights. The trainer enters a fresh tensor
each time, so a value is new if it is another object than the one seen before.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


class MonitoredValue:
    """One name in ``trainer.callback_metrics``, watched.

    Attributes:
        changes: how often a new value was seen.
        step: the optimiser step at which the present one was first seen; None before the first.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.step: int | None = None
        self._seen: Any = None

    def look(self, trainer: Any, name: str | None) -> Any | None:
        """The present value of ``name``, None if there is none; notes whether it is a new one."""
        value = None if name is None else trainer.callback_metrics.get(name)
        if value is not None and (value is not self._seen or not isinstance(value, Tensor)):
            self._seen = value
            self.step = trainer.global_step
            self.changes += 1
        return value


def absence(who: str, name: str, metrics: Any) -> str:
    """The text of an error or a warning about a monitored name that was not logged."""
    there = ", ".join(map(repr, sorted(metrics))) or "nothing"
    return (
        f"{who} monitors {name!r}, which was not logged; there is: {there}. Log it with self.log({name!r}, …), or "
        "monitor one of these"
    )
