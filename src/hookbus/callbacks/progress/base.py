"""``ProgressBar``: what progress bars have in common, with Lightning's names: totals, descriptions, metrics."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

from hookbus.callback import Callback
from hookbus.hookspecs.types import LightningModule, Trainer


class ProgressBar(Callback):
    """Base class of progress bars, also of your own: it knows the trainer, the totals and the metrics to show.

    Displays that refresh by time derive from :class:`~hookbus.callbacks.progress.timed.TimedProgressBar` instead, which
    needs three drawing methods only.

    Example:
        >>> class Percent(ProgressBar):
        ...     def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        ...         if self.is_enabled:
        ...             print(f"{100 * (batch_idx + 1) / self.total_train_batches:.0f} %", end="\\r")
    """

    role: ClassVar[str] = "monitor"

    def __init__(self) -> None:
        self._trainer: Any = None
        self._current_eval_dataloader_idx: int | None = None
        self._enabled = True

    @property
    def trainer(self) -> Any:
        """The trainer, known from ``setup`` on."""
        if self._trainer is None:
            raise TypeError(f"{type(self).__name__}.trainer is known after setup(trainer, pl_module, stage) only")
        return self._trainer

    # --- on and off ---------------------------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        """Whether anything is shown."""
        return self._enabled

    @property
    def is_disabled(self) -> bool:
        """Whether nothing is shown."""
        return not self.is_enabled

    def enable(self) -> None:
        """Show progress from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Show nothing from now on; processes other than that of rank 0 do this in ``setup``."""
        self._enabled = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print without damaging the bar."""
        print(*args, **kwargs)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the trainer; on other ranks be silent."""
        self._trainer = trainer
        if not trainer.is_global_zero:
            self.disable()

    # --- descriptions -------------------------------------------------------------------------------------------------

    @property
    def sanity_check_description(self) -> str:
        """What stands before the bar of the sanity check."""
        return "Sanity Checking"

    @property
    def train_description(self) -> str:
        """What stands before the bar of the training."""
        return "Training"

    @property
    def validation_description(self) -> str:
        """What stands before the bar of a validation."""
        return "Validation"

    @property
    def test_description(self) -> str:
        """What stands before the bar of a test."""
        return "Testing"

    @property
    def predict_description(self) -> str:
        """What stands before the bar of a prediction."""
        return "Predicting"

    # --- totals -------------------------------------------------------------------------------------------------------

    @property
    def total_train_batches(self) -> int | float:
        """Batches of this training epoch; inf if the loader has no length.

        In a run that ``max_steps`` alone ends, no more than are still to come.
        """
        trainer = self.trainer
        total: int | float = trainer.num_training_batches
        max_steps = getattr(trainer, "max_steps", -1)
        if trainer.max_epochs == -1 and max_steps is not None and max_steps > 0:
            return min(total, self._batches_until(max_steps))
        return total

    def _batches_until(self, max_steps: int) -> int:
        """Batches that are still to come before ``max_steps`` optimizer steps are made."""
        steps: int = max(max_steps - self.trainer.global_step, 0)
        return steps * int(getattr(self.trainer, "accumulate_grad_batches", 1) or 1)

    @property
    def total_val_batches_current_dataloader(self) -> int | float:
        """Batches of the validation loader at work (of the sanity check while that runs); inf if it has no length."""
        trainer = self.trainer
        if trainer.sanity_checking:
            return self._of_current_loader(getattr(trainer, "num_sanity_val_batches", trainer.num_val_batches))
        return self._of_current_loader(trainer.num_val_batches)

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """Batches of the test loader at work; inf if it has no length."""
        return self._of_current_loader(self.trainer.num_test_batches)

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """Batches of the prediction loader at work; inf if it has no length."""
        return self._of_current_loader(self.trainer.num_predict_batches)

    @property
    def total_val_batches(self) -> int | float:
        """Batches of all validation loaders together; inf if one has no length."""
        batches = self.trainer.num_val_batches
        total: int | float = sum(batches) if isinstance(batches, list) else batches
        return total

    def _of_current_loader(self, batches: list[int | float] | int | float) -> int | float:
        return batches[self._current_eval_dataloader_idx or 0] if isinstance(batches, list) else batches

    def has_dataloader_changed(self, dataloader_idx: int) -> bool:
        """Note the loader at work, and whether it is another one than before."""
        before = self._current_eval_dataloader_idx
        self._current_eval_dataloader_idx = dataloader_idx
        return before != dataloader_idx

    def reset_dataloader_idx_tracker(self) -> None:
        """Forget the loader at work."""
        self._current_eval_dataloader_idx = None

    # --- metrics ------------------------------------------------------------------------------------------------------

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """What to show beside the bar: what was logged with ``prog_bar=True``, and the version of the run (``v_num``).

        Override it to add or remove entries. It is called at a refresh only, and reads values that are reduced already,
        so it never waits for other processes.
        """
        standard = get_standard_metrics(trainer)
        logged = trainer.progress_bar_metrics
        both = sorted(standard.keys() & logged.keys())
        if both:
            warnings.warn(
                f"the progress bar shows {', '.join(both)} by itself, and self.log(..., prog_bar=True) replaces it: "
                "log it under another name, or remove it in get_metrics",
                stacklevel=2,
            )
        return {**standard, **logged}


def get_standard_metrics(trainer: Trainer) -> dict[str, int | str]:
    """``{"v_num": version}`` of the first logger that has a version, long ones shortened to their last four signs."""
    for logger in getattr(trainer, "loggers", None) or ():
        version = logger.version
        if version not in ("", None):
            return {"v_num": version[-4:] if isinstance(version, str) else version}
    return {}
