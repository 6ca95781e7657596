"""What callbacks read of ``trainer.fit_loop``: Lightning's names for its limits and counters, all derived from Progress.

Packages reach into the loop for what the trainer itself does not tell, most often ``fit_loop.epoch_loop.batch_idx``,
``fit_loop.epoch_loop._batches_that_stepped`` and ``fit_loop.epoch_progress.current.completed``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookbus.bus.dispatch import running_hook

if TYPE_CHECKING:
    from hookbus.trainer.data import Loaders
    from hookbus.trainer.progress import Progress
    from hookbus.trainer.trainer import Trainer


@dataclass(frozen=True)
class Counts:
    """How many were made ready, started, worked through, and completed with everything that follows."""

    ready: int
    started: int
    processed: int
    completed: int


@dataclass(frozen=True)
class LoopProgress:
    """The counts of a loop.

    Attributes:
        current: of the epoch (batches) or the run (epochs).
        total: of the whole run.
        is_last_batch: whether the current batch is the last of its epoch; False for epochs.
    """

    current: Counts
    total: Counts
    is_last_batch: bool = False


class EpochLoop:
    """The part of a fit that goes through one epoch, as Lightning names it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def _progress(self) -> Progress:
        return self._trainer.progress

    @property
    def batch_idx(self) -> int:
        """The index of the current training batch in its epoch, from 0; -1 before the first."""
        return self._progress.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """The index of the current training batch in the whole run, from 0; -1 before the first."""
        return self._progress.total_batches - 1

    @property
    def global_step(self) -> int:
        """Optimiser steps taken."""
        return self._progress.global_step

    @property
    def max_steps(self) -> int:
        """Upper bound of optimiser steps, -1 for none; callbacks may change it."""
        return self._trainer.settings.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._trainer.settings.max_steps = value

    @property
    def _batches_that_stepped(self) -> int:
        """The step that loggers are given; some loggers set it to go on from an earlier run."""
        return self._progress.logging_step

    @_batches_that_stepped.setter
    def _batches_that_stepped(self, value: int) -> None:
        self._progress.logging_step = value

    @property
    def batch_progress(self) -> LoopProgress:
        """Counts of training batches."""
        progress = self._progress
        # A batch is completed when its on_train_batch_end has been through.
        completed = progress.batch_trained - (running_hook() == "on_train_batch_end")
        current = Counts(progress.batch, progress.batch, progress.batch_trained, completed)
        before = progress.total_batches - progress.batch
        total = Counts(*(before + n for n in (current.ready, current.started, current.processed, current.completed)))
        return LoopProgress(current, total, progress.is_last_batch)

    @property
    def val_loop(self) -> Any:
        """The loop that validates during a fit."""
        return self._trainer.fit_loop.val_loop


class FitLoopView:
    """The readable side of the fit loop. Everything here is derived; nothing is stored."""

    _trainer: Trainer
    loaders: Loaders | None

    @property
    def epoch_loop(self) -> EpochLoop:
        """The part that goes through one epoch."""
        return EpochLoop(self._trainer)

    @property
    def epoch_progress(self) -> LoopProgress:
        """Counts of training epochs."""
        progress = self._trainer.progress
        begun = progress.epochs_trained + progress.epoch_started
        counts = Counts(begun, begun, progress.epochs_trained, progress.epoch)
        return LoopProgress(counts, counts)

    @property
    def batch_idx(self) -> int:
        """The index of the current training batch in its epoch, from 0; -1 before the first."""
        return self._trainer.progress.batch_idx

    @property
    def total_batch_idx(self) -> int:
        """The index of the current training batch in the whole run, from 0; -1 before the first."""
        return self._trainer.progress.total_batches - 1

    @property
    def done(self) -> bool:
        """Whether a limit is reached, or somebody has asked to stop, so that no further epoch begins."""
        trainer, progress = self._trainer, self._trainer.progress
        settings = trainer.settings
        steps = settings.max_steps != -1 and progress.global_step >= settings.max_steps
        epochs = settings.max_epochs != -1 and progress.epochs_trained >= settings.max_epochs
        stop = trainer.should_stop and trainer.fit_loop.may_stop_early
        return self.max_batches == 0 or steps or epochs or stop

    @property
    def min_epochs(self) -> int | None:
        """Epochs before which no early stop is honoured."""
        return self._trainer.settings.min_epochs

    @property
    def min_steps(self) -> int | None:
        """Steps before which no early stop is honoured."""
        return self._trainer.settings.min_steps

    @property
    def max_batches(self) -> int | float:
        """Training batches of an epoch; ``inf`` if unknown, or before the loader was asked for."""
        if self.loaders is not None:
            return self.loaders.num_batches[0]
        return 0 if self._trainer.settings.limit_train_batches == 0 else math.inf
