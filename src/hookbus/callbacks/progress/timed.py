"""``TimedProgressBar``: a bar that follows the loops at the cost of one look at the clock per batch.

Per batch it stores the batch's number and compares the time. Only when a refresh is due, at most ten times a second and
never more than a hundredth of the run's time, are metrics read and the display drawn. A display that fails is switched
off with one warning: the run goes on.
"""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from hookbus.bus.guard import undisturbed
from hookbus.callbacks.progress.base import ProgressBar
from hookbus.callbacks.progress.meter import Meter
from hookbus.hookspecs.types import STEP_OUTPUT, LightningModule, Trainer
from hookbus.markers import hookimpl

_SHARE_OF_TIME = 1 / 100


class TimedProgressBar(ProgressBar):
    """Follows training and evaluation; subclasses draw.

    A subclass defines ``_start_display``, ``_draw`` and ``_stop_display``. ``interval`` is the shortest time between
    two refreshes, in seconds; where nothing can be redrawn (``_is_live``), what is drawn stays as a line of a log, and
    ``line_interval`` is the shortest time between two of them. Ends of epochs may follow each other faster, by a second.
    """

    disturbs_nothing: ClassVar[bool] = True  # what a subclass may draw by chance, it does in a refresh: see _safely

    interval = 0.1
    line_interval = 30.0

    #: The bar that is on display: a trainer inside another trainer's hook stays silent.
    _on_display: weakref.ref[TimedProgressBar] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._clock: Callable[[], float] = time.monotonic
        self._due = self._epoch_due = 0.0
        self._train: Meter | None = None
        self._eval: Meter | None = None
        self._train_done = self._eval_done = 0
        self._shown = False
        self._live = True
        self._failed = False

    # --- what subclasses draw -----------------------------------------------------------------------------------------

    def _start_display(self) -> None:
        """Begin; called before the first ``_draw``, and again after a ``_stop_display``."""

    def _is_live(self) -> bool:
        """Whether what is drawn can be redrawn: False for files; asked before the display begins."""
        return True

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        """Show ``meter``; ``final`` at the end of its loop."""
        raise NotImplementedError

    def _end_meter(self, meter: Meter) -> None:
        """The loop of ``meter`` is over."""

    def _stop_display(self) -> None:
        """End; what is shown stays."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the trainer; on other ranks be silent. A display that failed in an earlier run is tried again."""
        if self._failed:
            self._failed = False
            self.enable()
        super().setup(trainer, pl_module, stage)

    # --- refreshing ---------------------------------------------------------------------------------------------------

    def enable(self) -> None:
        """Show progress from now on."""
        super().enable()
        self._due = self._epoch_due = 0.0

    def disable(self) -> None:
        """Show nothing from now on."""
        super().disable()
        self._due = self._epoch_due = math.inf
        self.stop()

    def stop(self) -> None:
        """End the display; may be called at any time and as often as one likes."""
        if self._shown:
            self._shown = False
            TimedProgressBar._on_display = None
            self._safely(self._stop_display)

    def refresh(self) -> None:
        """Draw what is running now, whether it is due or not."""
        if self._trainer is not None:
            self._refresh(self._trainer, getattr(self._trainer, "lightning_module", None))

    def _open(self) -> None:
        """Begin the display unless it is there, or another bar's is."""
        other = TimedProgressBar._on_display() if TimedProgressBar._on_display else None
        if self._shown or self.is_disabled or (other is not None and other is not self):
            return
        self._shown, self._live = True, self._is_live()
        TimedProgressBar._on_display = weakref.ref(self)
        now = self._clock()
        self._due, self._epoch_due = now + (0.0 if self._live else self.line_interval), now
        self._safely(self._start_display)

    @property
    def _pauses(self) -> tuple[float, float]:
        """Seconds between two refreshes, and between two at ends of epochs, at least."""
        if self._live:
            return self.interval, self.interval
        return self.line_interval, min(1.0, self.line_interval)

    def _refresh(self, trainer: Trainer, pl_module: LightningModule, *, final: bool = False) -> None:
        meter = self._eval or self._train
        began = self._clock()
        if meter is not None and self._shown:
            meter.done = self._eval_done if meter is self._eval else self._train_done
            meter.now = began
            self._safely(self._draw_with_metrics, meter, trainer, pl_module, final)
        if self.is_enabled:
            now = self._clock()
            pause = (now - began) / _SHARE_OF_TIME
            within, between = self._pauses
            self._due = now + max(within, pause)
            if final or self._live:
                self._epoch_due = now + max(between, pause)

    def _draw_with_metrics(self, meter: Meter, trainer: Trainer, pl_module: LightningModule, final: bool) -> None:
        self._draw(meter, self.get_metrics(trainer, pl_module), final=final)

    def _safely(self, draw: Callable[..., None], *args: Any) -> None:
        """Draw; an error ends the display, not the run."""
        try:
            with undisturbed():
                draw(*args)
        except Exception as error:  # noqa: BLE001  # whatever it is, a display must not end a training
            if self._enabled:
                self._failed = True
                warnings.warn(
                    f"{type(self).__name__} failed and is off for the rest of the run: {type(error).__name__}: {error}",
                    stacklevel=2,
                )
            self.disable()

    # --- training -----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the display."""
        self._open()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch's bar."""
        self._begin_epoch(trainer, 0)

    def _begin_epoch(self, trainer: Trainer, done: int) -> None:
        self._train_done = done
        if self.is_disabled:
            return
        total = min(self.trainer.num_training_batches, done + self.total_train_batches)
        self._train = Meter("train", self._epoch_description(trainer), total, self._clock(), first=done, done=done)

    def _epoch_description(self, trainer: Trainer) -> str:
        last = trainer.max_epochs
        total = f"/{last - 1}" if last is not None and last > 0 else ""
        return f"Epoch {trainer.current_epoch}{total}".ljust(len(self.validation_description))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Count, and refresh if it is due."""
        self._train_done = batch_idx + 1
        if self._train is None and self._shown:  # an epoch resumed in its middle has no on_train_epoch_start
            self._begin_epoch(trainer, batch_idx + 1)
        if self._clock() >= self._due:
            self._refresh(trainer, pl_module)

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refresh, after everybody has logged what belongs to the epoch."""
        if self._clock() >= self._epoch_due:
            self._refresh(trainer, pl_module, final=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last state on display."""
        self._refresh(trainer, pl_module, final=True)
        self._train = None

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _begin_eval(self, kind: str, description: str, dataloader_idx: int) -> None:
        if self.is_disabled or not self.has_dataloader_changed(dataloader_idx):
            return
        self._end_eval_meter()
        of_loader = "val" if kind in ("sanity", "validate") else kind
        total = getattr(self, f"total_{of_loader}_batches_current_dataloader")
        loaders = getattr(self.trainer, f"num_{of_loader}_batches")
        if isinstance(loaders, list) and len(loaders) > 1:
            description = f"{description} DataLoader {dataloader_idx}"
        self._eval_done = 0
        self._eval = Meter(kind, description, total, self._clock())

    def _end_eval(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last loader is done: leave its state on display, or go back to the training's bar."""
        alone = self._train is None
        if self._eval is not None and (alone or self._clock() >= self._epoch_due):
            self._refresh(trainer, pl_module, final=alone)
        self._end_eval_meter()
        self.reset_dataloader_idx_tracker()

    def _end_eval_meter(self) -> None:
        meter, self._eval = self._eval, None
        if meter is not None and self._shown:
            self._safely(self._end_meter, meter)

    def _count_eval(self, trainer: Trainer, pl_module: LightningModule, batch_idx: int) -> None:
        self._eval_done = batch_idx + 1
        if self._clock() >= self._due:
            self._refresh(trainer, pl_module)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the display."""
        self._open()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the sanity check's bar away."""
        self._end_eval_meter()
        self.reset_dataloader_idx_tracker()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the display, if it is not there."""
        self._open()

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a loader's bar."""
        if dataloader_idx != self._current_eval_dataloader_idx:
            if trainer.sanity_checking:
                self._begin_eval("sanity", self.sanity_check_description, dataloader_idx)
            else:
                self._begin_eval("validate", self.validation_description, dataloader_idx)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and refresh if it is due."""
        self._count_eval(trainer, pl_module, batch_idx)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the loader's bar."""
        if not trainer.sanity_checking:
            self._end_eval(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the display."""
        self._open()

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a loader's bar."""
        if dataloader_idx != self._current_eval_dataloader_idx:
            self._begin_eval("test", self.test_description, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: STEP_OUTPUT,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and refresh if it is due."""
        self._count_eval(trainer, pl_module, batch_idx)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the loader's bar."""
        self._end_eval(trainer, pl_module)

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the display."""
        self._open()

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a loader's bar."""
        if dataloader_idx != self._current_eval_dataloader_idx:
            self._begin_eval("predict", self.predict_description, dataloader_idx)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and refresh if it is due."""
        self._count_eval(trainer, pl_module, batch_idx)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the loader's bar."""
        self._end_eval(trainer, pl_module)

    # --- end ----------------------------------------------------------------------------------------------------------

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the display, so that the error's message stands alone."""
        self._finish()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the display."""
        self._finish()

    @hookimpl
    def on_run_close(self) -> None:
        """End the display, whatever happened."""
        self._finish()

    def _finish(self) -> None:
        self.stop()
        self._train = self._eval = None
        self.reset_dataloader_idx_tracker()
