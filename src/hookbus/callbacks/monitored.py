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

    Args:
        counters: whether ``epoch`` and ``step``, where nobody logs something of that name, are the trainer's counters,
            which say something of the present weights at any time.

    Attributes:
        changes: how often a new value was seen.
        step: the optimiser step at which the present one was first seen; None before the first.
        validated: whether a validation is over, so that everything had its chance to be logged.
    """

    def __init__(self, *, counters: bool = False) -> None:
        self._counters = counters
        self._loaded: dict[str, Any] | None = None
        self._forget()

    def _forget(self) -> None:
        self.changes = 0
        self.step: int | None = None
        self.validated = False
        self._seen: Any = None
        self._before_epoch = self._used = 0

    def __eq__(self, other: object) -> bool:
        """Whether another one has seen the same, so that a copy of a callback equals it."""
        if not isinstance(other, MonitoredValue):
            return NotImplemented
        return all(vars(self)[name] == vars(other)[name] for name in vars(self) if name != "_seen")

    __hash__ = None  # type: ignore[assignment]  # it changes

    def look(self, trainer: Any, name: str | None) -> Any | None:
        """The present value of ``name``, None if there is none; notes whether it is a new one."""
        value = None if name is None else trainer.callback_metrics.get(name)
        if value is None and self._counters and name in ("epoch", "step"):
            value = trainer.current_epoch if name == "epoch" else trainer.global_step
        if value is not None and (value is not self._seen or not isinstance(value, Tensor)):
            self._seen = value
            self.step = trainer.global_step
            self.changes += 1
        return value

    def begin(self, trainer: Any, name: str | None) -> bool:
        """Training begins: what there is already is old. If it goes on, what was new when it was saved is so again.

        Returns:
            Whether it goes on.
        """
        self._forget()
        state, self._loaded = self._loaded, None
        if state is None:
            self.look(trainer, name)
            self._before_epoch = self._used = self.changes
            return False
        self.changes, self.step, self.validated = state["changes"], state["step"], state["validated"]
        self._before_epoch, self._used = state["before_epoch"], state["used"]
        if not state["unseen"] and name is not None:
            self._seen = trainer.callback_metrics.get(name)
        return True

    def begin_epoch(self, trainer: Any, name: str | None) -> None:
        """What there is already is of earlier epochs."""
        self.look(trainer, name)
        self._before_epoch = self.changes

    def use(self) -> None:
        """What there is now has been decided upon."""
        self._used = self.changes

    def state(self, trainer: Any, name: str | None) -> dict[str, Any]:
        """What is known of the value, for a run that goes on."""
        if self._loaded is not None:  # which has not begun yet
            return self._loaded
        value = None if name is None else trainer.callback_metrics.get(name)
        return {
            "changes": self.changes,
            "step": self.step,
            "validated": self.validated,
            "before_epoch": self._before_epoch,
            "used": self._used,
            "unseen": value is not None and value is not self._seen,
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on, in :meth:`begin`, from what :meth:`state` was; None to start anew."""
        self._loaded = state

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


def keep_decisions(checkpoint: dict[str, Any], key: str, decisions: dict[str, Any]) -> None:
    """Put into a checkpoint what a callback needs to decide as it would have; its state has Lightning's keys only.

    Args:
        checkpoint: the dictionary.
        key: the callback's ``state_key``.
        decisions: plain data.
    """
    checkpoint.setdefault("hookbus", {}).setdefault("decisions", {})[key] = decisions


def kept_decisions(checkpoint: dict[str, Any], key: str) -> dict[str, Any]:
    """What :func:`keep_decisions` put there; empty for a checkpoint of Lightning's."""
    decisions = (checkpoint.get("hookbus") or {}).get("decisions") or {}
    return dict(decisions.get(key) or {})


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
