"""``GradientAccumulationScheduler``: changes ``accumulate_grad_batches`` while training."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hookbus.callback import Callback
from hookbus.dialects.base import overridden
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class GradientAccumulationScheduler(Callback):
    """Sets how many batches make one optimiser step, by epoch or by step.

    Args:
        scheduling: the number of batches from a certain epoch (or step) on, counted from 0: ``{0: 8, 4: 4, 8: 1}``.
            Before the first entry it is 1.
        by: what the keys of ``scheduling`` are: ``"epoch"``, or ``"step"`` for optimiser steps.

    Attributes:
        scheduling: with an entry for 0.
        epochs: its keys, sorted; epochs or steps.

    Raises:
        TypeError: ``scheduling`` is empty.
        MisconfigurationException: a key, a value or ``by`` is out of range.
        RuntimeError: during fit, if the module optimises by hand.
        ValueError: during fit, if the Trainer was given ``accumulate_grad_batches`` as well.

    Example:
        >>> from hookbus.callbacks import GradientAccumulationScheduler
        >>> scheduler = GradientAccumulationScheduler({4: 2})
        >>> [scheduler.get_accumulate_grad_batches(epoch) for epoch in range(6)]
        [1, 1, 1, 1, 2, 2]
    """

    role: ClassVar[str] = "mutator"

    def __init__(self, scheduling: dict[int, int], *, by: Literal["epoch", "step"] = "epoch") -> None:
        super().__init__()
        if not scheduling:
            raise TypeError(
                f"scheduling must map an epoch or step to a number of batches, such as {{4: 2}}; got {scheduling!r}"
            )
        if by not in ("epoch", "step"):
            raise MisconfigurationException(f"by must be 'epoch' or 'step', got {by!r}")
        _check_numbers(f"the keys of scheduling ({by}s)", list(scheduling), 0)
        _check_numbers("the values of scheduling (batches per step)", list(scheduling.values()), 1)
        self.scheduling = {0: 1, **scheduling}
        self.epochs = sorted(self.scheduling)
        self.by = by
        self._begun = False

    def going_to_accumulate_grad_batches(self) -> bool:
        """Whether any step is made of several batches."""
        return any(factor > 1 for factor in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """How many batches make a step in this epoch (or at this step)."""
        return self.scheduling[self.epochs[bisect_right(self.epochs, epoch) - 1]]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See to it that nobody else sets the number."""
        if not pl_module.automatic_optimization:
            raise RuntimeError(
                "GradientAccumulationScheduler has no effect in manual optimization, where training_step decides when to "
                "step; drop the callback, or set automatic_optimization = True"
            )
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(
                f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}) and GradientAccumulationScheduler "
                "both set how many batches make a step; drop one of them"
            )
        own = [name for name in ("optimizer_step", "optimizer_zero_grad") if overridden(pl_module, name) is not None]
        if own and self.going_to_accumulate_grad_batches():
            warnings.warn(
                f"{type(pl_module).__name__} defines {' and '.join(own)}: with several batches per step it is called once "
                "per step, not per batch",
                stacklevel=2,
            )
        self._begun = True
        self._set(trainer)  # a run that resumes in the middle of an epoch sees no on_train_epoch_start

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the number for this epoch."""
        self._set(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the number for this step; within a window of batches it stays the same."""
        if self.by == "step":
            self._set(trainer)

    def _set(self, trainer: pl.Trainer) -> None:
        now = trainer.current_epoch if self.by == "epoch" else trainer.global_step
        trainer.accumulate_grad_batches = self.get_accumulate_grad_batches(now)

    @hookimpl
    def on_run_close(self, trainer: pl.Trainer) -> None:
        """Leave the trainer as it was."""
        if self._begun:
            self._begun = False
            trainer.accumulate_grad_batches = 1


def _check_numbers(what: str, numbers: list[Any], least: int) -> None:
    if any(not isinstance(number, int) or isinstance(number, bool) or number < least for number in numbers):
        raise MisconfigurationException(f"{what} must be whole numbers of {least} or more, got {numbers}")
