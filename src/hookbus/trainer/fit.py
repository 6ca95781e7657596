"""The training loop, as a page to read.

::

    on_train_start
    for epoch in epochs:
        on_train_epoch_start
        for batch in train_dataloader:
            transfer hooks, on_train_batch_start
            the step (step.py)
            schedulers by step; by epoch after the last batch
            on_train_batch_end
            loggers
            validation, if due
            plateau schedulers by step
        on_train_epoch_end            # EarlyStopping and ModelCheckpoint after the module
        plateau schedulers by epoch
        loggers
    on_train_end
"""

from __future__ import annotations

import math
import time
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING

from hookbus.errors import MisconfigurationException, PossibleUserWarning
from hookbus.trainer.data import Loaders, begin_in_vain, set_epoch, training_loader
from hookbus.trainer.epoch import TrainingEpoch
from hookbus.trainer.evaluate import EvaluationLoop
from hookbus.trainer.fit_view import FitLoopView
from hookbus.trainer.place import Place
from hookbus.trainer.signals import SIGTERMException
from hookbus.trainer.states import RunningStage

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


class FitLoop(FitLoopView):
    """Trains a module until a limit is reached or somebody asks to stop.

    Args:
        trainer: owns settings, progress and everything else; the loop keeps loaders only.

    Attributes:
        loaders: the training loader, None until it was asked for.
        val_loop: runs the validations.
        place: what a checkpoint holds of the fit beside its counters.
        epoch: goes through the batches of an epoch.
        val_every: training batches between validations, ``inf`` for "at the end of an epoch of unknown length".
        validated_at: when the last validation ended, or the data were loaded, by ``time.monotonic``.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loaders: Loaders | None = None
        self.val_loop = EvaluationLoop(trainer, RunningStage.VALIDATING)
        self.place = Place(trainer)
        self.epoch = TrainingEpoch(trainer, self)
        self.val_every: int | float = math.inf
        self.validated_at = 0.0
        self._loaded_in_epoch = 0

    # -- limits ------------------------------------------------------------------------------------------------------

    @property
    def max_epochs(self) -> int:
        """Upper bound of epochs, -1 for none; callbacks may change it."""
        return self._trainer.settings.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int) -> None:
        self._trainer.settings.max_epochs = value
        self._trainer.settings.epochs_unsaid = False

    @property
    def max_steps(self) -> int:
        """Upper bound of optimiser steps, -1 for none; callbacks may change it."""
        return self._trainer.settings.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._trainer.settings.max_steps = value

    @property
    def may_stop_early(self) -> bool:
        """Whether the minimum numbers of epochs and steps are reached."""
        settings, progress = self._trainer.settings, self._trainer.progress
        epochs = not settings.min_epochs or progress.epochs_trained >= settings.min_epochs
        return epochs and (not settings.min_steps or progress.global_step >= settings.min_steps)

    @property
    def steps_done(self) -> bool:
        """Whether ``max_steps`` is reached."""
        return self.max_steps != -1 and self._trainer.progress.global_step >= self.max_steps

    @property
    def _done(self) -> bool:
        """Whether no further epoch begins."""
        progress = self._trainer.progress
        if self.num_batches == 0 or self.steps_done:
            return True
        if self.max_epochs != -1 and progress.epochs_trained >= self.max_epochs:
            progress.epoch = progress.epochs_trained
            return True
        return self._trainer.should_stop and self.may_stop_early

    @property
    def num_batches(self) -> int | float:
        """Training batches of an epoch, as limited; 0 before the loader was asked for."""
        return self.loaders.num_batches[0] if self.loaders else 0

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train."""
        trainer = self._trainer
        trainer.state.stage = RunningStage.TRAINING
        if self.loaders is None:  # somebody may have asked for them already, through estimated_stepping_batches
            self._load_data()
        self._say_how_long()
        module, fire, progress = trainer.lightning_module, trainer.bus.fire, trainer.progress
        logged, go_on = self.place.restore_metrics(), self._cut_by_steps
        inside, ending = progress.mid_epoch, progress.epoch < progress.epochs_trained
        if ending and logged and not (go_on and not self.steps_done):
            self._finish_epoch()
        if not inside and not ending and self._done:
            self._say_why_nothing_runs()
            self.place.take_up()
            return
        if progress.epoch_started:
            progress.drop_batch(window=self.place.window_is_lost)
        if not go_on:
            progress.epoch = progress.epochs_trained
        elif progress.epoch < progress.epochs_trained:  # saved in on_train_epoch_end: it is that epoch that goes on
            progress.epochs_trained, progress.epoch_started = progress.epoch, True
        self.load_validation_data()
        trainer._metrics.start("train")
        fire.on_train_start(trainer, module)
        self.place.take_up()
        while inside or not self._done:
            trainer._participants.sync()
            self._reload_data()
            self._run_epoch(go_on=go_on)
            go_on = inside = False
        trainer._participants.sync()
        fire.on_train_end(trainer, module)

    def _run_epoch(self, *, go_on: bool) -> None:
        """Train for an epoch, or for what is left of it.

        Args:
            go_on: begin it with the batch after the last one trained, although the epoch of that one has ended.
        """
        trainer, loaders = self._trainer, self.loaders
        assert loaders is not None
        module, fire, progress, metrics = trainer.lightning_module, trainer.bus.fire, trainer.progress, trainer._metrics
        set_epoch(loaders.loaders[0], progress.epoch)
        metrics.start("train")
        if progress.mid_epoch:
            self.place.finish_hook()
            if progress.batch_done < progress.batch:
                self.epoch.finish_batch()
        else:
            progress.begin_epoch(keep_batches=go_on)
            fire.on_train_epoch_start(trainer, module)
        loaders = self.loaders or loaders  # somebody may have asked for them again, with other batches
        if not self.epoch.is_over():
            self.epoch.run(loaders)
        metrics.finish_batches()
        progress.epochs_trained += 1
        progress.epoch_started = False
        fire.on_train_epoch_end(trainer, module)
        self._finish_epoch()
        if trainer.received_sigterm:
            raise SIGTERMException

    def _finish_epoch(self) -> None:
        """What follows ``on_train_epoch_end``; first of all in a run that goes on from what was saved there."""
        trainer = self._trainer
        if self.epoch.all_batches_ready:
            self.epoch.step_schedulers("epoch", plateau=True)
        trainer._outlets.update_train_epoch_metrics()
        trainer._metrics.finish_epoch()
        trainer.progress.epoch += 1

    # -- questions that the loop asks itself -------------------------------------------------------------------------

    @property
    def _cut_by_steps(self) -> bool:
        """Whether the checkpoint is of a run that ``max_steps`` ended inside an epoch.

        A run that counts in steps goes on with the batch that was next, one that counts in epochs with a new epoch.
        """
        progress = self._trainer.progress
        inside = (
            0 < progress.batch_done < self.num_batches and not progress.is_last_batch and not progress.epoch_started
        )
        return inside and self._trainer.ckpt_path is not None and self.max_epochs == -1

    def _should_accumulate(self) -> bool:
        """Lightning's name for "the current batch does not end in an optimiser step"; callbacks in the wild ask this."""
        return not self.epoch.stepping

    # -- data --------------------------------------------------------------------------------------------------------

    def _load_data(self) -> None:
        """Ask for the training loader and work out when to validate."""
        trainer, settings = self._trainer, self._trainer.settings
        if settings.limit_train_batches == 0:
            self.loaders = None
            return
        with self.place.loading():
            answer = trainer.bus.fire.train_dataloader(trainer)
        if answer is None:
            raise MisconfigurationException(
                "fit needs training data: pass train_dataloaders or a datamodule to fit(), or define train_dataloader() in "
                f"the module or a plugin; {type(trainer.lightning_module).__name__} has none"
            )
        limit = settings.limit_train_batches
        self.loaders = training_loader(answer, limit, overfit=bool(settings.overfit_batches))
        self._loaded_in_epoch = self.place.loaded_in_epoch
        self.val_every = self._validation_interval(self.loaders.num_batches[0])
        self.validated_at = time.monotonic()

    def _reload_data(self) -> None:
        every, epoch = self._trainer.settings.reload_every, self._trainer.progress.epoch
        if every and epoch - self._loaded_in_epoch >= every:
            self._load_data()
            if self.loaders is not None:
                begin_in_vain(self.loaders.loaders[0])

    @property
    def time_to_validate(self) -> bool:
        """Whether the wall time between validations has gone by, where that is what ``val_check_interval`` says."""
        interval = self._trainer.settings.val_check_interval
        if not isinstance(interval, timedelta):
            return False
        over = time.monotonic() - self.validated_at >= interval.total_seconds()
        return bool(self._trainer.strategy.broadcast(over))

    def _validation_interval(self, num_batches: int | float) -> int | float:
        """Training batches between validations, ``inf`` for "at the end of an epoch of unknown length"."""
        settings = self._trainer.settings
        interval = settings.val_check_interval
        if isinstance(interval, timedelta):
            return 1  # after each batch the clock is looked at
        if isinstance(interval, int):
            if interval > num_batches and settings.check_val_every_n_epoch is not None:
                raise ValueError(
                    f"val_check_interval ({interval}) must not exceed the number of training batches ({num_batches}); use a "
                    "share of the epoch (float up to 1.0), or check_val_every_n_epoch=None to count across epochs"
                )
            return interval
        if math.isinf(num_batches):
            if interval != 1.0:
                raise MisconfigurationException(
                    f"val_check_interval={interval} is a share of the training batches, whose number is not known; use 1.0 "
                    "or a number of batches (int)"
                )
            return math.inf
        return max(1, int(num_batches * interval))

    def _say_how_long(self) -> None:
        settings = self._trainer.settings
        if settings.epochs_unsaid and settings.max_epochs != -1:
            settings.epochs_unsaid = False
            warnings.warn(
                f"nobody said how long to train: this fit takes {settings.max_epochs} epochs, unless something stops it "
                "before; set max_epochs (-1 for no limit), max_steps or max_time",
                PossibleUserWarning,
                stacklevel=2,
            )

    def _say_why_nothing_runs(self) -> None:
        trainer, progress = self._trainer, self._trainer.progress
        if trainer.settings.limit_train_batches == 0 or trainer.should_stop or 0 in (self.max_epochs, self.max_steps):
            return  # asked for, in so many words
        if self.num_batches:
            warnings.warn(
                f"fit trains nothing: this trainer has already done {progress.epochs_trained} epoch(s) and "
                f"{progress.global_step} step(s), with max_epochs={self.max_epochs} and max_steps={self.max_steps}; raise "
                "the limit (trainer.fit_loop.max_epochs = …) to go on, or use a new Trainer to start over",
                stacklevel=2,
            )

    def load_validation_data(self) -> None:
        """Ask for the validation loaders, if a validation can take place in the epoch that begins."""
        trainer = self._trainer
        if trainer.enable_validation and self.epoch.validated_in_epoch:
            trainer.state.stage = RunningStage.VALIDATING
            self.val_loop.load_data()
            trainer.state.stage = RunningStage.TRAINING
