"""Optimisers and learning-rate schedulers: what ``configure_optimizers`` may return, and when a scheduler steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookbus.errors import MisconfigurationException

_FORMS = (
    "configure_optimizers must return one of: an optimizer; a list of optimizers; a pair (list of optimizers, list of "
    'schedulers); a dictionary {"optimizer": …, "lr_scheduler": …}; a list of such dictionaries; None'
)
_KEYS = ("scheduler", "name", "interval", "frequency", "reduce_on_plateau", "monitor", "strict")


@dataclass
class LRSchedulerConfig:
    """One scheduler and when it steps.

    Attributes:
        scheduler: the scheduler.
        name: its name in logs.
        interval: ``epoch`` or ``step``.
        frequency: it steps at every so many of them.
        reduce_on_plateau: whether it is given the value of a metric.
        monitor: that metric's name.
        strict: whether a missing metric is an error (else a warning).
    """

    scheduler: Any
    name: str | None = None
    interval: str = "epoch"
    frequency: int = 1
    reduce_on_plateau: bool = False
    monitor: str | None = None
    strict: bool = True


class MockOptimizer(Optimizer):
    """Stands in where a module has no optimiser: the loop runs and nothing is updated."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def step(self, closure: Any = None) -> Any:
        """Run the closure and change nothing."""
        return closure() if closure is not None else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: there are no gradients."""


def parse(answer: Any, *, automatic: bool) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """The optimisers and schedulers that ``configure_optimizers`` returned.

    Args:
        answer: what it returned.
        automatic: whether the loop itself steps them; only then must a plateau scheduler name a metric.

    Raises:
        MisconfigurationException: for any form but those that Lightning accepts; the message lists them.
    """
    if answer is None:
        warnings.warn("configure_optimizers returned None: this fit will run with no optimizer", stacklevel=2)
        return [MockOptimizer()], []
    optimizers, schedulers, monitor = _split(answer)
    for optimizer in optimizers:
        if not _optimizable(optimizer):
            raise MisconfigurationException(f"{_FORMS}; got a {type(optimizer).__name__} where an optimizer belongs")
    configs = [_config(scheduler, monitor, automatic) for scheduler in schedulers]
    for config in configs:
        owner = getattr(config.scheduler, "optimizer", None)
        if owner is not None and not any(owner is optimizer for optimizer in optimizers):
            raise MisconfigurationException(
                f"a {type(config.scheduler).__name__} is attached to an optimizer that configure_optimizers did not return; "
                "return that optimizer, or attach the scheduler to one that is returned"
            )
    return optimizers, configs


def due(configs: Sequence[LRSchedulerConfig], interval: str, index: int, *, plateau: bool) -> list[LRSchedulerConfig]:
    """The schedulers that step now.

    Args:
        configs: all of them.
        interval: ``epoch`` or ``step``: what has just ended.
        index: its index, from 0.
        plateau: choose those that are given a metric, or those that are not.
    """
    return [
        config
        for config in configs
        if config.interval == interval and config.reduce_on_plateau is plateau and (index + 1) % config.frequency == 0
    ]


def monitored_value(config: LRSchedulerConfig, metrics: Mapping[str, Any]) -> Any | None:
    """The value that a plateau scheduler is given; None if it is missing and need not be there.

    Raises:
        MisconfigurationException: if it is missing and the scheduler is strict.
    """
    assert config.monitor is not None
    value = metrics.get(config.monitor)
    if value is not None:
        return value
    message = (
        f"{type(config.scheduler).__name__} depends on the metric {config.monitor!r}, which has not been logged; there are: "
        f"{', '.join(sorted(metrics)) or 'none'}. Log it, change `monitor`, or set `strict` to False"
    )
    if config.strict:
        raise MisconfigurationException(message)
    warnings.warn(message + "; the scheduler is skipped", RuntimeWarning, stacklevel=2)
    return None


def _split(answer: Any) -> tuple[list[Any], list[Any], str | None]:
    """Optimisers, schedulers, and a ``monitor`` that stands beside them."""
    if _optimizable(answer):
        return [answer], [], None
    if isinstance(answer, Mapping):
        return _from_dictionaries([answer])
    if isinstance(answer, (list, tuple)):
        if len(answer) == 2 and isinstance(answer[0], list) and all(_optimizable(o) for o in answer[0]):
            schedulers = answer[1] if isinstance(answer[1], (list, tuple)) else [answer[1]]
            return list(answer[0]), list(schedulers), None
        if answer and all(isinstance(part, Mapping) for part in answer):
            return _from_dictionaries(answer)
        if all(_optimizable(part) for part in answer):
            return list(answer), [], None
    raise MisconfigurationException(f"{_FORMS}; got {answer!r}")


def _from_dictionaries(parts: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Any], str | None]:
    optimizers, schedulers, monitor = [], [], None
    for part in parts:
        unknown = sorted(set(part) - {"optimizer", "lr_scheduler", "monitor", "frequency"})
        if unknown:
            warnings.warn(f"configure_optimizers: unknown key(s) {', '.join(unknown)} are ignored", stacklevel=4)
        if "optimizer" not in part:
            raise MisconfigurationException(f'{_FORMS}; got a dictionary without "optimizer": {sorted(part)}')
        optimizers.append(part["optimizer"])
        monitor = part.get("monitor", monitor)
        if part.get("lr_scheduler") is not None:
            schedulers.append(part["lr_scheduler"])
    return optimizers, schedulers, monitor


def _config(scheduler: Any, monitor: str | None, automatic: bool) -> LRSchedulerConfig:
    if isinstance(scheduler, LRSchedulerConfig):
        return scheduler
    if not isinstance(scheduler, Mapping):
        config = LRSchedulerConfig(scheduler)
    else:
        unknown = sorted(set(scheduler) - set(_KEYS))
        if unknown:
            warnings.warn(
                f"lr_scheduler: unknown key(s) {', '.join(unknown)} are ignored; known: {_KEYS}", stacklevel=4
            )
        if scheduler.get("scheduler") is None:
            raise MisconfigurationException(
                'an lr_scheduler dictionary needs the key "scheduler" with the scheduler itself'
            )
        config = LRSchedulerConfig(**{key: scheduler[key] for key in _KEYS if key in scheduler})
    if config.interval not in ("epoch", "step"):
        raise MisconfigurationException(f'lr_scheduler: "interval" must be "epoch" or "step", got {config.interval!r}')
    if isinstance(config.frequency, bool) or not isinstance(config.frequency, int) or config.frequency < 1:
        raise MisconfigurationException(f'lr_scheduler: "frequency" must be an int >= 1, got {config.frequency!r}')
    config.reduce_on_plateau = config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)
    if config.reduce_on_plateau:
        config.monitor = config.monitor or monitor
        if config.monitor is None and automatic:
            raise MisconfigurationException(
                'configure_optimizers must name the metric of a ReduceLROnPlateau: {"optimizer": …, "lr_scheduler": '
                '{"scheduler": …, "monitor": "the name you log"}}'
            )
    return config


def _optimizable(value: Any) -> bool:
    """Whether ``value`` can serve as an optimiser: torch's own, or one with the same parts."""
    return isinstance(value, Optimizer) or all(
        hasattr(value, name) for name in ("param_groups", "state_dict", "load_state_dict", "step", "zero_grad", "state")
    )
