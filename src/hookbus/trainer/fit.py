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
import warnings
from typing import TYPE_CHECKING, Any

from hookbus.errors import MisconfigurationException
from hookbus.trainer import schedules
from hookbus.trainer.data import Loaders, set_epoch, training_loader
from hookbus.trainer.evaluate import EvaluationLoop
from hookbus.trainer.fit_view import FitLoopView
from hookbus.trainer.place import Place
from hookbus.trainer.schedules import LRSchedulerConfig
from hookbus.trainer.signals import SIGTERMException
from hookbus.trainer.states import RunningStage
from hookbus.trainer.step import AutomaticStep, ManualStep, Outputs, shown

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
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loaders: Loaders | None = None
        self.val_loop = EvaluationLoop(trainer, RunningStage.VALIDATING)
        self.place = Place(trainer)
        self._val_every: int | float = math.inf
        self._loaded_in_epoch = 0

    # -- limits ------------------------------------------------------------------------------------------------------

    @property
    def max_epochs(self) -> int:
        """Upper bound of epochs, -1 for none; callbacks may change it."""
        return self._trainer.settings.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int) -> None:
        self._trainer.settings.max_epochs = value

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
    def _steps_done(self) -> bool:
        return self.max_steps != -1 and self._trainer.progress.global_step >= self.max_steps

    @property
    def _done(self) -> bool:
        """Whether no further epoch begins."""
        progress = self._trainer.progress
        if self._num_batches == 0 or self._steps_done:
            return True
        if self.max_epochs != -1 and progress.epochs_trained >= self.max_epochs:
            progress.epoch = progress.epochs_trained
            return True
        return self._trainer.should_stop and self.may_stop_early

    @property
    def _num_batches(self) -> int | float:
        return self.loaders.num_batches[0] if self.loaders else 0

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train."""
        trainer = self._trainer
        trainer.state.stage = RunningStage.TRAINING
        if self.loaders is None:  # somebody may have asked for them already, through estimated_stepping_batches
            self._load_data()
        module, fire, progress = trainer.lightning_module, trainer.bus.fire, trainer.progress
        logged, go_on = self.place.restore_metrics(), self._cut_by_steps
        inside, ending = progress.mid_epoch, progress.epoch < progress.epochs_trained
        if ending and logged and not (go_on and not self._steps_done):
            self._finish_epoch()
        if not inside and not ending and self._done:
            self._say_why_nothing_runs()
            return
        if progress.epoch_started:
            progress.drop_batch()
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
            if progress.batch_done < progress.batch:
                self._finish_batch()
        else:
            progress.begin_epoch(keep_batches=go_on)
            fire.on_train_epoch_start(trainer, module)
        loaders = self.loaders or loaders  # somebody may have asked for them again, with other batches
        step = AutomaticStep(trainer) if module.automatic_optimization else ManualStep(trainer)
        if not self._epoch_is_over():
            self._run_batches(step, loaders)
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
        if self._all_batches_ready:
            self._step_schedulers("epoch", plateau=True)
        trainer._outlets.update_train_epoch_metrics()
        trainer._metrics.finish_epoch()
        trainer.progress.epoch += 1

    def _run_batches(self, step: AutomaticStep | ManualStep, loaders: Loaders) -> None:
        """Train on the batches of an epoch from where the counters stand, and validate where that is due.

        This is the hot path: what hardly ever happens is asked for in one line and done elsewhere.
        """
        trainer, progress, control = self._trainer, self._trainer.progress, self._trainer.control
        module, fire, shortcuts = trainer.lightning_module, trainer.bus.fire, trainer._shortcuts
        participants, settings, strategy = trainer._participants, trainer.settings, trainer.strategy
        num_batches = loaders.num_batches[0]
        for batch, last in self.place.batches(loaders.loaders[0], num_batches):
            batch_idx = progress.batch
            progress.is_last_batch = last or batch_idx + 1 >= num_batches
            if participants.list_changed:
                participants.sync()
            batch = trainer._transfer(batch, 0)
            progress.batch = batch_idx + 1
            progress.total_batches += 1
            progress.validated = False
            control.step = progress.global_step
            outputs: Outputs = {}
            if batch is None:
                warnings.warn("train_dataloader gave None as a batch: nothing is trained on it", stacklevel=2)
            else:
                answers = fire.on_train_batch_start(trainer, module, batch, batch_idx)
                if answers and _says_stop(answers):
                    self._end_before_batch()
                    return
                if control.pending:
                    if control.take_skip():
                        if self._epoch_is_over():
                            return
                        continue
                    # Asked for in time to step at the end of the window.
                    progress.is_last_batch |= control.take_stop_epoch()
                stepping = batch_idx + 1 - progress.batch_stepped >= settings.accumulate_grad_batches or self._stepping
                outputs = step(batch, batch_idx, stepping)
                if stepping:
                    progress.batch_stepped = batch_idx + 1
            if strategy.lr_scheduler_configs:
                self._step_schedulers("step", plateau=False)
                if self._all_batches_ready:
                    self._step_schedulers("epoch", plateau=False)
            progress.batch_trained = batch_idx + 1
            if not shortcuts.no_outputs:
                fire.on_train_batch_end(trainer, module, shown(outputs), batch, batch_idx)
            self._finish_batch()
            if control.should_stop:
                trainer._outlets.save()
            if control.pending:
                self._honour_requests()
            if trainer.received_sigterm and not self._training_done:
                raise SIGTERMException
            if (
                progress.is_last_batch
                or control.should_stop
                or settings.max_steps != -1
                or self.loaders is not loaders  # somebody asked for them again: there may be fewer batches now
            ) and self._epoch_is_over():
                return

    def _end_before_batch(self) -> None:
        """The module has ended the epoch by answering -1 to ``on_train_batch_start``."""
        self._trainer.progress.is_last_batch = True
        self._step_schedulers("step", plateau=False)
        self._step_schedulers("epoch", plateau=False)

    def _honour_requests(self) -> None:
        """What was asked for while the batch went on, and can wait until everything else is done."""
        trainer = self._trainer
        trainer.control.pending = False
        trainer._writer.poll()
        if trainer.control.take_save():
            trainer._save_on_request()

    def _finish_batch(self) -> None:
        """What follows ``on_train_batch_end``: loggers, the validation if one is due, schedulers that want its result.

        Also called first in a run that goes on from a checkpoint: what was saved in ``on_train_batch_end``, or while
        validating, had this still before it.
        """
        trainer, progress, control = self._trainer, self._trainer.progress, self._trainer.control
        batch, settings = progress.batch, trainer.settings
        if progress.batch_logged < batch:
            trainer._metrics.finish_batch()
            progress.batch_logged = batch
            every = settings.log_every_n_steps
            if every and ((progress.logging_step + 1) % every == 0 or control.should_stop or settings.fast_dev_run):
                trainer._outlets.update_train_step_metrics()
            if control.pending and control.take_stop_epoch() and not self._all_batches_ready:
                progress.is_last_batch = True
                self._step_schedulers("epoch", plateau=False)
        validate = self._val_every
        maybe = progress.is_last_batch or control.should_stop or control.pending or validate == math.inf
        maybe = maybe or batch % validate == 0 or progress.total_batches % validate == 0
        if maybe and not progress.validated and self._validation_due():
            self._validate()
        if trainer.strategy.lr_scheduler_configs:
            self._step_schedulers("step", plateau=True)
        if progress.batch_stepped == batch or self._stepping:
            progress.logging_step += 1
        progress.batch_done = batch

    # -- questions that the loop asks itself -------------------------------------------------------------------------

    @property
    def _cut_by_steps(self) -> bool:
        """Whether the checkpoint is of a run that ``max_steps`` ended inside an epoch.

        A run that counts in steps goes on with the batch that was next, one that counts in epochs with a new epoch.
        """
        progress = self._trainer.progress
        inside = (
            0 < progress.batch_done < self._num_batches and not progress.is_last_batch and not progress.epoch_started
        )
        return inside and self._trainer.ckpt_path is not None and self.max_epochs == -1

    @property
    def _all_batches_ready(self) -> bool:
        """Whether the current batch is the last of its epoch."""
        progress = self._trainer.progress
        return progress.is_last_batch or progress.batch >= self._num_batches

    @property
    def _stepping(self) -> bool:
        """Whether the current batch ends an accumulation window; the last batch of an epoch always does."""
        progress = self._trainer.progress
        window = progress.batch - progress.batch_stepped  # 0 once the optimiser has stepped
        return window == 0 or window >= self._trainer.accumulate_grad_batches or self._all_batches_ready

    def _should_accumulate(self) -> bool:
        """Lightning's name for "the current batch does not end in an optimiser step"; callbacks in the wild ask this."""
        return not self._stepping

    @property
    def _training_done(self) -> bool:
        return self._steps_done or self._all_batches_ready

    def _epoch_is_over(self) -> bool:
        return self._training_done or (self._trainer.should_stop and self.may_stop_early)

    def _validation_due(self) -> bool:
        """Whether a validation follows the current batch."""
        trainer = self._trainer
        if trainer.control.pending and trainer.control.take_evaluate() and trainer.enable_validation:
            return True
        # Whoever stops early still sees the state he stops at.
        due = self._validation_point or (trainer.should_stop and self.may_stop_early)
        return due and self._validation_in_epoch and trainer.enable_validation

    @property
    def _validation_point(self) -> bool:
        """Whether the current batch is one after which epochs are validated."""
        progress, settings = self._trainer.progress, self._trainer.settings
        endless = math.isinf(self._val_every)
        if progress.is_last_batch and endless:
            return True
        limit = settings.limit_train_batches
        if isinstance(limit, int) and endless:
            return limit > 0 and progress.batch % limit == 0
        if not endless:
            counted = progress.total_batches if settings.check_val_every_n_epoch is None else progress.batch
            return counted % self._val_every == 0 or (self._ended_early and self._val_every >= self._num_batches)
        return progress.is_last_batch

    @property
    def _validation_in_epoch(self) -> bool:
        """Whether the current epoch is one of those that are validated."""
        every = self._trainer.settings.check_val_every_n_epoch
        return every is None or (self._trainer.progress.epoch + 1) % every == 0

    @property
    def _ended_early(self) -> bool:
        """Whether somebody made a batch the last one by ``control.stop_epoch()``."""
        progress = self._trainer.progress
        return progress.is_last_batch and progress.batch < self._num_batches

    def _validate(self) -> None:
        trainer = self._trainer
        trainer.state.stage = RunningStage.VALIDATING
        if self._stepping:
            trainer.bus.fire.on_validation_model_zero_grad(trainer, trainer.lightning_module)
        self.place.validation_begins()
        self.val_loop.run()
        self.place.validation_ends()
        trainer.state.stage = RunningStage.TRAINING

    def _step_schedulers(self, interval: str, *, plateau: bool) -> None:
        trainer = self._trainer
        configs: list[LRSchedulerConfig] = trainer.lr_scheduler_configs
        if not configs or not trainer.lightning_module.automatic_optimization:
            return
        if interval == "step" and not self._stepping:
            return
        index = trainer.progress.batch_idx if interval == "step" else trainer.progress.epoch
        for config in schedules.due(configs, interval, index, plateau=plateau):
            metric = schedules.monitored_value(config, trainer.callback_metrics) if plateau else None
            if metric is not None or not plateau:
                trainer.bus.fire.lr_scheduler_step(trainer, trainer.lightning_module, config.scheduler, metric)

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
        self._val_every = self._validation_interval(self.loaders.num_batches[0])

    def _reload_data(self) -> None:
        every, epoch = self._trainer.settings.reload_every, self._trainer.progress.epoch
        if every and epoch - self._loaded_in_epoch >= every:
            self._load_data()

    def _validation_interval(self, num_batches: int | float) -> int | float:
        """Training batches between validations, ``inf`` for "at the end of an epoch of unknown length"."""
        settings = self._trainer.settings
        interval = settings.val_check_interval
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

    def _say_why_nothing_runs(self) -> None:
        trainer, progress = self._trainer, self._trainer.progress
        if trainer.settings.limit_train_batches == 0 or trainer.should_stop or 0 in (self.max_epochs, self.max_steps):
            return  # asked for, in so many words
        if self._num_batches:
            warnings.warn(
                f"fit trains nothing: this trainer has already done {progress.epochs_trained} epoch(s) and "
                f"{progress.global_step} step(s), with max_epochs={self.max_epochs} and max_steps={self.max_steps}; raise "
                "the limit (trainer.fit_loop.max_epochs = …) to go on, or use a new Trainer to start over",
                stacklevel=2,
            )

    def load_validation_data(self) -> None:
        """Ask for the validation loaders, if a validation can take place in the epoch that begins."""
        trainer = self._trainer
        if trainer.enable_validation and self._validation_in_epoch:
            trainer.state.stage = RunningStage.VALIDATING
            self.val_loop.load_data()
            trainer.state.stage = RunningStage.TRAINING


def _says_stop(answers: list[Any]) -> bool:
    """Whether -1 is among the answers of a hook: ``-1 in [tensor]`` would compare element by element."""
    return any(isinstance(answer, int) and answer == -1 for answer in answers)
