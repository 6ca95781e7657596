"""``LearningRateMonitor``: logs the learning rates, and on request momentum and weight decay, of all optimisers.

A name is made of the scheduler's ``name`` if it has one, else of ``lr-`` and the optimiser's class; a number for the
second optimiser of a class and further ones; and the parameter group's ``name``, or ``pg1``, ``pg2``, … if there are
several: ``lr-SGD``, ``lr-SGD-1``, ``lr-AdamW/encoder``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hookbus.callback import Callback
from hookbus.callbacks.log_moments import LogMoments, has_outlet, log
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from hookbus.hookspecs import types as pl


@dataclass(frozen=True)
class _Source:
    """An optimiser, the names of its groups, and how often its scheduler steps (None without one)."""

    optimizer: Optimizer
    names: list[str]
    interval: str | None


class LearningRateMonitor(Callback):
    """Logs learning rates, under the step of the training batch that uses them.

    They stand in ``trainer.callback_metrics``, too. Works in manual optimisation as well.

    Args:
        logging_interval: log all of them at each ``"step"`` (as often as ``log_every_n_steps`` says) or at the start of
            each ``"epoch"``; None for as often as each scheduler steps, and both for optimisers without one.
        log_momentum: log ``<name>-momentum`` too: the momentum, or Adam's first beta, or 0.
        log_weight_decay: log ``<name>-weight_decay`` too.

    Attributes:
        lrs: all values that were logged in this fit, by name.
        last_momentum_values, last_weight_decay_values: the last one of each name; None before the first.

    Raises:
        MisconfigurationException: ``logging_interval`` is another word; before training, if there is no logger, or if
            two parameter groups of one optimiser have the same name.

    Example:
        >>> from hookbus.callbacks import LearningRateMonitor
        >>> monitor = LearningRateMonitor(logging_interval="step", log_weight_decay=True)
        >>> monitor.lrs
        {}
    """

    role: ClassVar[str] = "monitor"

    def __init__(
        self, logging_interval: str | None = None, log_momentum: bool = False, log_weight_decay: bool = False
    ) -> None:
        if logging_interval not in (None, "step", "epoch"):
            raise MisconfigurationException(
                f"logging_interval must be 'step', 'epoch', or None for each scheduler's own; got {logging_interval!r}"
            )
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.lrs: dict[str, list[float]] = {}
        self.last_momentum_values: dict[str, float | None] = {}
        self.last_weight_decay_values: dict[str, float | None] = {}
        self._moments = LogMoments()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """There must be somebody to log to."""
        if stage == "fit" and not has_outlet(trainer):
            raise MisconfigurationException(
                f"{type(self).__name__} needs a logger, and the Trainer has none: give it one with Trainer(logger=…), or "
                "drop the callback"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the values of an earlier fit."""
        sources = list(_sources(trainer))
        if self.log_momentum and not all({"momentum", "betas"} & set(s.optimizer.defaults) for s in sources):
            warnings.warn(
                "log_momentum=True: an optimizer without momentum is logged with a momentum of 0",
                RuntimeWarning,
                stacklevel=2,
            )
        names = [name for source in sources for name in source.names]
        self.lrs = {name: [] for name in names}
        self.last_momentum_values = {f"{name}-momentum": None for name in names}
        self.last_weight_decay_values = {f"{name}-weight_decay": None for name in names}

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log what is logged by step."""
        if self.logging_interval != "epoch" and self._moments.due(trainer):
            self._log(trainer, "step")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what is logged by epoch."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch")

    def _log(self, trainer: pl.Trainer, interval: str) -> None:
        values: dict[str, float] = {}
        for source in list(_sources(trainer)):
            self._follow_growth(source.names)
            if self.logging_interval is None and source.interval not in (None, interval):
                continue
            for group, name in zip(source.optimizer.param_groups, source.names, strict=True):
                values.update(self._values_of(group, name))
        if values:
            trainer.callback_metrics.update(
                {name: torch.tensor(value, device=trainer.strategy.root_device) for name, value in values.items()}
            )
            log(trainer, values)

    def _values_of(self, group: dict[str, Any], name: str) -> dict[str, float]:
        """What is logged of one parameter group; nothing of one whose optimiser has no rate, or chooses it by itself."""
        rate = _number(group.get("lr"))
        if rate is None:
            return {}
        self.lrs[name].append(rate)
        values = {name: rate}
        if self.log_momentum:
            momentum = _number(group["betas"][0] if "betas" in group else group.get("momentum", 0))
            values[f"{name}-momentum"] = self.last_momentum_values[f"{name}-momentum"] = momentum
        if self.log_weight_decay:
            decay = _number(group.get("weight_decay", 0))
            values[f"{name}-weight_decay"] = self.last_weight_decay_values[f"{name}-weight_decay"] = decay
        return values

    def _follow_growth(self, names: list[str]) -> None:
        """Groups may be added while training: what was ``x`` alone is ``x/pg1`` from then on."""
        for name in names:
            alone = name.removesuffix("/pg1")
            if name not in self.lrs:
                self.lrs[name] = self.lrs.pop(alone, [])


def _sources(trainer: pl.Trainer) -> Iterator[_Source]:
    """All optimisers: those with schedulers in the order of the schedulers, then the others.

    Raises:
        MisconfigurationException: two groups of an optimiser have the same name.
    """
    seen: Counter[type] = Counter()
    scheduled = []
    for config in trainer.lr_scheduler_configs:
        optimizer = config.scheduler.optimizer
        scheduled.append(optimizer)
        seen[type(optimizer)] += config.name is None
        name = config.name if config.name is not None else f"lr-{type(optimizer).__name__}"
        yield _Source(optimizer, _group_names(optimizer, name, seen), config.interval)
    for optimizer in trainer.optimizers:
        if not any(optimizer is other for other in scheduled):
            seen[type(optimizer)] += 1
            yield _Source(optimizer, _group_names(optimizer, f"lr-{type(optimizer).__name__}", seen), None)


def _group_names(optimizer: Optimizer, name: str, seen: Counter[type]) -> list[str]:
    groups = optimizer.param_groups
    own = [group.get("name", f"pg{i}" if len(groups) > 1 else None) for i, group in enumerate(groups, start=1)]
    twice = sorted(str(one) for one, count in Counter(own).items() if count > 1)
    if twice:
        raise MisconfigurationException(
            f"parameter groups of {name} share the name(s) {', '.join(twice)}, so their learning rates cannot be told "
            "apart; give each group of the optimizer a name of its own"
        )
    if seen[type(optimizer)] > 1:
        name = f"{name}-{seen[type(optimizer)] - 1}"
    return [f"{name}/{one}" if one else name for one in own]


def _number(value: Any) -> Any:
    """Rates may be tensors (``capturable`` optimisers)."""
    return value.item() if isinstance(value, torch.Tensor) else value
