"""How far a run has come. One value, the only source of counters, and what a checkpoint stores of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class Progress:
    """The counters of a run.

    Attributes:
        epoch: completed training epochs; during an epoch also its index, from 0.
        epochs_trained: epochs whose batches are done; runs ahead of ``epoch`` during ``on_train_epoch_end``.
        global_step: optimiser steps taken, over all epochs.
        logging_step: batches that ended with a step; the step that loggers are given, one per batch however many
            optimisers a module has.
        batch: training batches begun in the current epoch.
        batch_trained: those of them that were trained on; ahead of ``batch_done`` from ``on_train_batch_end`` on.
        batch_logged: those of them whose values loggers have got; behind ``batch_trained`` during ``on_train_batch_end``.
        batch_done: those of them with which everything is done, a validation that was due included.
        batch_stepped: batches begun in the current epoch when the optimiser last stepped: an accumulation window begins
            with the next one.
        total_batches: training batches begun in the whole run.
        validated: whether the validation that is due after the current batch has got as far as ``on_validation_end``.
        epoch_started: whether the current epoch's ``on_train_epoch_start`` was called.
        is_last_batch: whether the current training batch is the last of its epoch.
    """

    epoch: int = 0
    epochs_trained: int = 0
    global_step: int = 0
    logging_step: int = 0
    batch: int = 0
    batch_trained: int = 0
    batch_logged: int = 0
    batch_done: int = 0
    batch_stepped: int = 0
    total_batches: int = 0
    validated: bool = False
    epoch_started: bool = False
    is_last_batch: bool = False

    @property
    def batch_idx(self) -> int:
        """The index of the current training batch in its epoch, from 0; -1 before the first."""
        return self.batch - 1

    @property
    def mid_epoch(self) -> bool:
        """Whether the current epoch has begun, with its ``on_train_epoch_start``, and is not over."""
        return self.epoch_started

    def begin_epoch(self, *, keep_batches: bool = False) -> None:
        """Set the counters of batches back for a new epoch, unless they are to be kept."""
        if not keep_batches:
            self.batch = self.batch_trained = self.batch_logged = self.batch_done = self.batch_stepped = 0
        self.is_last_batch = False
        self.epoch_started = True

    def drop_batch(self, *, window: bool = False) -> None:
        """Forget a batch that was begun and never trained on, so that it is taken again.

        Args:
            window: forget all batches since the optimiser last stepped.
        """
        last = self.batch_stepped if window else self.batch_trained
        self.is_last_batch = self.is_last_batch and last == self.batch
        self.total_batches -= self.batch - last
        self.batch = last
        self.batch_trained = min(self.batch_trained, last)
        self.batch_logged = min(self.batch_logged, last)
        self.batch_done = min(self.batch_done, last)

    def state_dict(self) -> dict[str, Any]:
        """The counters as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved counters; unknown ones are an error, absent ones keep their value."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(state) - known)
        if unknown:
            raise ValueError(f"progress has no counter(s) {', '.join(unknown)}; the file is of a newer version")
        for name, value in state.items():
            setattr(self, name, value)
