"""When a checkpoint is due: every so many optimiser steps, every so many epochs, or after some time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hookbus.errors import MisconfigurationException


def check_rhythm(
    every_n_train_steps: int | None, every_n_epochs: int | None, train_time_interval: timedelta | None
) -> tuple[int, int, timedelta | None]:
    """The one of three rhythms that was chosen: every epoch if none was.

    Args:
        every_n_train_steps: optimiser steps between saves; 0 and None for never.
        every_n_epochs: epochs between saves; 0 and None for never.
        train_time_interval: time between saves.

    Returns:
        The same with 0 for never; at most one of them is not.

    Raises:
        MisconfigurationException: an argument is out of range, or there are two rhythms.
    """
    for name, value in (("every_n_train_steps", every_n_train_steps), ("every_n_epochs", every_n_epochs)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise MisconfigurationException(f"{name} must be a whole number of 0 or more, or None, got {value!r}")
    if train_time_interval is not None and not isinstance(train_time_interval, timedelta):
        raise MisconfigurationException(
            f"train_time_interval must be a datetime.timedelta, got {train_time_interval!r}; write "
            "timedelta(minutes=30), say"
        )
    if train_time_interval is not None and train_time_interval < timedelta(0):
        raise MisconfigurationException(f"train_time_interval must not be negative, got {train_time_interval}")
    if every_n_train_steps is None and every_n_epochs is None and train_time_interval is None:
        every_n_epochs = 1
    steps, epochs = every_n_train_steps or 0, every_n_epochs or 0
    if (steps > 0) + (epochs > 0) + (train_time_interval is not None) > 1:
        raise MisconfigurationException(
            f"every_n_train_steps={steps}, every_n_epochs={epochs} and train_time_interval={train_time_interval} "
            "exclude each other; use one callback for each rhythm"
        )
    return steps, epochs, train_time_interval


@dataclass
class Pace:
    """The steps and the time that went by since the last batch, or the last save."""

    _step: int = 0
    _step_before: int = 0
    _clock: float | None = None

    def start(self, trainer: Any) -> None:
        """Training begins: steps and time count from here."""
        self._step = self._step_before = trainer.global_step
        self._clock = time.monotonic()

    def step_taken(self, trainer: Any) -> bool:
        """Whether the batch that ends now ended in an optimiser step; to be asked once for every batch.

        In between, while gradients accumulate, there is nothing to save that one could resume from.
        """
        self._step_before, self._step = self._step, trainer.global_step
        return self._step != self._step_before or not trainer.lightning_module.automatic_optimization

    def reached(self, every: int) -> bool:
        """Whether this batch reached or passed a multiple of ``every``: several optimisers may take several steps."""
        return self._step // every > self._step_before // every

    def approaches(self, every: int, trainer: Any) -> bool:
        """Whether the next batch will."""
        return every - self._step % every <= max(1, len(trainer.optimizers))

    def elapsed(self, interval: timedelta, trainer: Any) -> bool:
        """Whether ``interval`` has gone by since the last time that it had; the same for all processes."""
        if self._clock is None:
            return False
        now = time.monotonic()
        over = bool(trainer.strategy.broadcast(now - self._clock >= interval.total_seconds()))
        if over:
            self._clock = now
        return over


def at_train_epoch_end(trainer: Any) -> bool:
    """Whether an epoch is judged at its end: there is one validation per epoch, or none at all."""
    if not can_validate(trainer):
        return True
    return bool(trainer.check_val_every_n_epoch == 1 and trainer.val_check_interval == 1.0)


def can_validate(trainer: Any) -> bool:
    """Whether there are validations in this fit, as far as is known: the data are loaded when they are needed first."""
    batches = trainer.num_val_batches
    return bool(trainer.enable_validation) and (not batches or sum(batches) > 0)


def validation_follows(trainer: Any) -> bool:
    """Whether a validation is due after the training batch that ends now."""
    if not can_validate(trainer):
        return False
    every = trainer.check_val_every_n_epoch
    if every is not None and (trainer.current_epoch + 1) % every:
        return False
    if trainer.should_stop and trainer.fit_loop.may_stop_early:
        return True  # who stops early still sees the state he stops at
    interval, batches = trainer.val_check_interval, trainer.num_training_batches
    if isinstance(interval, timedelta):
        return bool(trainer.fit_loop.time_to_validate)
    if not isinstance(interval, int):
        if math.isinf(batches):
            return bool(trainer.is_last_batch)
        interval = max(1, int(batches * interval))
    progress = trainer.progress
    return bool((progress.total_batches if every is None else progress.batch) % interval == 0)
