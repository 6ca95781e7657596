"""The batches of a training epoch: the hot path of hookbus.

A batch after which nothing is due (no logging, no validation, no scheduler, no request, no end) takes the quiet way through
:meth:`TrainingEpoch.run`, which asks for all of that in one condition; ``tests/trainer/test_cost.py`` counts what it costs.
"""

from __future__ import annotations

import math
import time
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookbus.engine.device import move_to
from hookbus.trainer import schedules
from hookbus.trainer.data import Loaders
from hookbus.trainer.participants import next_look
from hookbus.trainer.schedules import LRSchedulerConfig
from hookbus.trainer.signals import SIGTERMException
from hookbus.trainer.states import RunningStage
from hookbus.trainer.step import AutomaticStep, ManualStep, Outputs, shown

if TYPE_CHECKING:
    from hookbus.trainer.fit import FitLoop
    from hookbus.trainer.trainer import Trainer


class TrainingEpoch:
    """Trains on batch after batch, and does what is due after each.

    Args:
        trainer: owns settings, progress and everything else.
        loop: of which this is an epoch; it has the loaders and knows the limits.
    """

    def __init__(self, trainer: Trainer, loop: FitLoop) -> None:
        self._trainer = trainer
        self._loop = loop

    def run(self, loaders: Loaders) -> None:
        """Train on the batches from where the counters stand, until the epoch or the training is over.

        Args:
            loaders: the training loader.
        """
        trainer, loop = self._trainer, self._loop
        module, fire, shortcuts = trainer.lightning_module, trainer.bus.fire, trainer._shortcuts
        progress, control, settings, strategy = trainer.progress, trainer.control, trainer.settings, trainer.strategy
        participants, metrics, device = trainer._participants, trainer._metrics, strategy.root_device
        converts, num_batches, validate = trainer._precision.converts_input, loaders.num_batches[0], loop.val_every
        step = AutomaticStep(trainer) if module.automatic_optimization else ManualStep(trainer)
        look_at = 0
        for batch, last in loop.place.batches(loaders.loaders[0], num_batches):
            batch_idx = progress.batch
            progress.is_last_batch = last = last or batch_idx + 1 >= num_batches
            callbacks = trainer.callbacks
            if (
                batch_idx >= look_at
                or callbacks is not participants.known
                or len(callbacks) != participants.length
                or len(participants.space) != participants.size
            ):
                participants.follow()
                look_at = next_look(batch_idx)
            if shortcuts.transfer and not converts:
                if type(batch) is not Tensor or batch.device != device:
                    batch = move_to(batch, device)
                trainer._batch, trainer._known_batch_size = batch, None
            else:
                batch = trainer._transfer(batch, 0)
            progress.batch = number = batch_idx + 1
            progress.total_batches += 1
            progress.validated = False
            control.step = progress.global_step
            outputs: Outputs = {}
            stepping = False
            if batch is None:
                warnings.warn("train_dataloader gave None as a batch: nothing is trained on it", stacklevel=2)
            else:
                answers = fire.on_train_batch_start(trainer, module, batch, batch_idx)
                if answers and _says_stop(answers):
                    self._end_before_batch()
                    return
                if control.pending:
                    if control.take_skip():
                        if self.is_over():
                            return
                        continue
                    # Asked for in time to step at the end of the window.
                    progress.is_last_batch |= control.take_stop_epoch()
                stepping = number - progress.batch_stepped >= settings.accumulate_grad_batches or self.stepping
                outputs = step(batch, batch_idx, stepping)
                if stepping:
                    progress.batch_stepped = number
            if strategy.lr_scheduler_configs:
                self.step_schedulers("step", plateau=False)
                if self.all_batches_ready:
                    self.step_schedulers("epoch", plateau=False)
            progress.batch_trained = number
            if not shortcuts.no_outputs:
                fire.on_train_batch_end(trainer, module, shown(outputs), batch, batch_idx)
            every = settings.log_every_n_steps
            if (
                stepping
                and not (progress.is_last_batch or control.pending or control.should_stop or trainer.received_sigterm)
                and not strategy.lr_scheduler_configs
                and (not every or (progress.logging_step + 1) % every)
                and number % validate  # an infinite interval leaves the number
                and progress.total_batches % validate
                and settings.max_steps == -1
                and loop.loaders is loaders  # else somebody has asked for them again: there may be fewer batches now
                and not settings.fast_dev_run
            ):
                metrics.finish_batch()
                progress.logging_step += 1
                progress.batch_logged = progress.batch_done = number
            elif self._finish_loud_batch():
                return

    def _finish_loud_batch(self) -> bool:
        """Do what may be due after a batch; whether the epoch is over."""
        trainer, control = self._trainer, self._trainer.control
        self.finish_batch()
        if control.should_stop:
            trainer._outlets.save()
        if control.pending:
            self._honour_requests()
        if trainer.received_sigterm and not self.training_done:
            raise SIGTERMException
        return self.is_over()

    def _end_before_batch(self) -> None:
        """The module has ended the epoch by answering -1 to ``on_train_batch_start``."""
        self._trainer.progress.is_last_batch = True
        self.step_schedulers("step", plateau=False)
        self.step_schedulers("epoch", plateau=False)

    def _honour_requests(self) -> None:
        """What was asked for while the batch went on, and can wait until everything else is done."""
        trainer = self._trainer
        trainer.control.pending = False
        trainer._writer.poll()
        if trainer.control.take_save():
            trainer._save_on_request()

    def finish_batch(self) -> None:
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
            if control.pending and control.take_stop_epoch() and not self.all_batches_ready:
                progress.is_last_batch = True
                self.step_schedulers("epoch", plateau=False)
        validate = self._loop.val_every
        maybe = progress.is_last_batch or control.should_stop or control.pending or validate == math.inf
        maybe = maybe or batch % validate == 0 or progress.total_batches % validate == 0
        if maybe and not progress.validated and self._validation_due():
            self._validate()
        if trainer.strategy.lr_scheduler_configs:
            self.step_schedulers("step", plateau=True)
        if progress.batch_stepped == batch or self.stepping:
            progress.logging_step += 1
        progress.batch_done = batch

    # -- questions that the loop asks itself -------------------------------------------------------------------------

    @property
    def all_batches_ready(self) -> bool:
        """Whether the current batch is the last of its epoch."""
        progress = self._trainer.progress
        return progress.is_last_batch or progress.batch >= self._loop.num_batches

    @property
    def stepping(self) -> bool:
        """Whether the current batch ends an accumulation window; the last batch of an epoch always does."""
        progress = self._trainer.progress
        window = progress.batch - progress.batch_stepped  # 0 once the optimiser has stepped
        return window == 0 or window >= self._trainer.accumulate_grad_batches or self.all_batches_ready

    @property
    def training_done(self) -> bool:
        """Whether no further batch is due, in this epoch or in all."""
        return self._loop.steps_done or self.all_batches_ready

    def is_over(self) -> bool:
        """Whether the epoch ends after the current batch."""
        return self.training_done or (self._trainer.should_stop and self._loop.may_stop_early)

    def _validation_due(self) -> bool:
        """Whether a validation follows the current batch."""
        trainer = self._trainer
        if trainer.control.pending and trainer.control.take_evaluate() and trainer.enable_validation:
            return True
        # Whoever stops early still sees the state he stops at.
        due = self._validation_point or (trainer.should_stop and self._loop.may_stop_early)
        return due and self.validated_in_epoch and trainer.enable_validation

    @property
    def _validation_point(self) -> bool:
        """Whether the current batch is one after which epochs are validated."""
        progress, settings = self._trainer.progress, self._trainer.settings
        if isinstance(settings.val_check_interval, timedelta):
            return self._loop.time_to_validate
        endless = math.isinf(self._loop.val_every)
        if progress.is_last_batch and endless:
            return True
        limit = settings.limit_train_batches
        if isinstance(limit, int) and endless:
            return limit > 0 and progress.batch % limit == 0
        if not endless:
            counted = progress.total_batches if settings.check_val_every_n_epoch is None else progress.batch
            return counted % self._loop.val_every == 0 or (
                self._ended_early and self._loop.val_every >= self._loop.num_batches
            )
        return progress.is_last_batch

    @property
    def validated_in_epoch(self) -> bool:
        """Whether the current epoch is one of those that are validated."""
        every = self._trainer.settings.check_val_every_n_epoch
        return every is None or (self._trainer.progress.epoch + 1) % every == 0

    @property
    def _ended_early(self) -> bool:
        """Whether somebody made a batch the last one by ``control.stop_epoch()``."""
        progress = self._trainer.progress
        return progress.is_last_batch and progress.batch < self._loop.num_batches

    def _validate(self) -> None:
        trainer = self._trainer
        trainer.state.stage = RunningStage.VALIDATING
        if self.stepping:
            trainer.bus.fire.on_validation_model_zero_grad(trainer, trainer.lightning_module)
        self._loop.place.validation_begins()
        self._loop.val_loop.run()
        self._loop.place.validation_ends()
        self._loop.validated_at = time.monotonic()
        trainer.state.stage = RunningStage.TRAINING

    def step_schedulers(self, interval: str, *, plateau: bool) -> None:
        """Let those schedulers step that are due.

        Args:
            interval: ``step`` or ``epoch``: what has just ended.
            plateau: those that are given a metric, or those that are not.
        """
        trainer = self._trainer
        configs: list[LRSchedulerConfig] = trainer.lr_scheduler_configs
        if not configs or not trainer.lightning_module.automatic_optimization:
            return
        if interval == "step" and not self.stepping:
            return
        index = trainer.progress.batch_idx if interval == "step" else trainer.progress.epoch
        for config in schedules.due(configs, interval, index, plateau=plateau):
            metric = schedules.monitored_value(config, trainer.callback_metrics) if plateau else None
            if metric is not None or not plateau:
                trainer.bus.fire.lr_scheduler_step(trainer, trainer.lightning_module, config.scheduler, metric)


def _says_stop(answers: list[Any]) -> bool:
    """Whether -1 is among the answers of a hook: ``-1 in [tensor]`` would compare element by element."""
    return any(isinstance(answer, int) and answer == -1 for answer in answers)
