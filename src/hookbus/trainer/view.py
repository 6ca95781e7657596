"""What can be read from a trainer: Lightning's attribute names, over the few values that really hold the state."""

from __future__ import annotations

import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hookbus.bus import Bus
from hookbus.callbacks.progress import ProgressBar
from hookbus.engine.strategy import SingleDeviceStrategy
from hookbus.errors import MisconfigurationException
from hookbus.trainer.control import Control
from hookbus.trainer.metrics import MetricStore
from hookbus.trainer.private_names import AcceleratorView, CallbackView, CheckpointView, LoggerView, SignalView
from hookbus.trainer.progress import Progress
from hookbus.trainer.settings import Settings
from hookbus.trainer.states import RunningStage, TrainerFn, TrainerState


class TrainerView:
    """The readable side of :class:`hookbus.Trainer`. Everything here is derived; nothing is stored.

    It reads ``settings``, ``progress``, ``state``, ``control``, ``strategy`` and the loops of the trainer.
    """

    settings: Settings
    progress: Progress
    state: TrainerState
    control: Control
    strategy: SingleDeviceStrategy
    bus: Bus
    callbacks: list[Any]
    loggers: list[Any]
    fit_loop: Any
    validate_loop: Any
    test_loop: Any
    predict_loop: Any
    lightning_module: Any
    datamodule: Any
    _metrics: MetricStore
    _precision: Any
    _use_optimizers: Any

    # -- progress ----------------------------------------------------------------------------------------------------

    @property
    def current_epoch(self) -> int:
        """Completed training epochs; during an epoch its index, from 0."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Optimiser steps taken, over all epochs."""
        return self.progress.global_step

    @property
    def is_last_batch(self) -> bool:
        """Whether the current training batch is the last of its epoch."""
        return self.progress.is_last_batch

    @property
    def should_stop(self) -> bool:
        """Whether training ends after the current batch; anybody may set it."""
        return self.control.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.control.should_stop = bool(value)

    # -- stage -------------------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        """Whether the training loop is running."""
        return self.state.stage is RunningStage.TRAINING

    @property
    def validating(self) -> bool:
        """Whether a validation is running."""
        return self.state.stage is RunningStage.VALIDATING

    @property
    def testing(self) -> bool:
        """Whether a test is running."""
        return self.state.stage is RunningStage.TESTING

    @property
    def predicting(self) -> bool:
        """Whether a prediction is running."""
        return self.state.stage is RunningStage.PREDICTING

    @property
    def sanity_checking(self) -> bool:
        """Whether the sanity check before training is running."""
        return self.state.stage is RunningStage.SANITY_CHECKING

    @property
    def evaluating(self) -> bool:
        """Whether a validation, a test or the sanity check is running."""
        return self.state.stage is not None and self.state.stage.evaluating

    @property
    def interrupted(self) -> bool:
        """Whether the last entry point was left by an exception."""
        return self.state.status.value == "interrupted"

    @property
    def enable_validation(self) -> bool:
        """Whether there can be a validation: a step, data, and a limit above 0."""
        bus = self.bus
        return (
            self.settings.limit_val_batches > 0
            and bus.implemented("validation_step")
            and bus.implemented("val_dataloader")
        )

    # -- limits and options ------------------------------------------------------------------------------------------

    @property
    def max_epochs(self) -> int:
        """Upper bound of epochs, -1 for none."""
        return self.settings.max_epochs

    @property
    def min_epochs(self) -> int | None:
        """Epochs before which no early stop is honoured."""
        return self.settings.min_epochs

    @property
    def max_steps(self) -> int:
        """Upper bound of optimiser steps, -1 for none."""
        return self.settings.max_steps

    @property
    def min_steps(self) -> int | None:
        """Steps before which no early stop is honoured."""
        return self.settings.min_steps

    @property
    def limit_train_batches(self) -> int | float:
        """Number (int) or share (float) of training batches."""
        return self.settings.limit_train_batches

    @property
    def limit_val_batches(self) -> int | float:
        """Number (int) or share (float) of validation batches."""
        return self.settings.limit_val_batches

    @property
    def limit_test_batches(self) -> int | float:
        """Number (int) or share (float) of test batches."""
        return self.settings.limit_test_batches

    @property
    def limit_predict_batches(self) -> int | float:
        """Number (int) or share (float) of prediction batches."""
        return self.settings.limit_predict_batches

    @property
    def overfit_batches(self) -> int | float:
        """Number or share of batches that are trained on again and again; 0 for all."""
        return self.settings.overfit_batches

    @property
    def val_check_interval(self) -> int | float | timedelta:
        """Training batches (int), share of an epoch (float) or wall time between validations."""
        return self.settings.val_check_interval

    @property
    def check_val_every_n_epoch(self) -> int | None:
        """Epochs between validations; None counts ``val_check_interval`` across epochs."""
        return self.settings.check_val_every_n_epoch

    @property
    def num_sanity_val_steps(self) -> int | float:
        """Validation batches of each loader before training; ``inf`` for all."""
        return self.settings.num_sanity_val_steps

    @property
    def log_every_n_steps(self) -> int:
        """Steps between two calls of the loggers."""
        return self.settings.log_every_n_steps

    @property
    def reload_dataloaders_every_n_epochs(self) -> int:
        """Epochs after which the dataloaders are asked for again; 0 for never."""
        return self.settings.reload_every

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches per optimiser step; callbacks may set it."""
        return self.settings.accumulate_grad_batches

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self.settings.accumulate_grad_batches = value

    @property
    def gradient_clip_val(self) -> float | None:
        """The bound of gradient clipping, None for no clipping; callbacks may set it."""
        return self.settings.gradient_clip_val

    @gradient_clip_val.setter
    def gradient_clip_val(self, value: float | None) -> None:
        self.settings.gradient_clip_val = value

    @property
    def gradient_clip_algorithm(self) -> str | None:
        """``norm`` or ``value``; None means norm."""
        return self.settings.gradient_clip_algorithm

    @gradient_clip_algorithm.setter
    def gradient_clip_algorithm(self, value: str | None) -> None:
        self.settings.gradient_clip_algorithm = value

    @property
    def fast_dev_run(self) -> bool | int:
        """The number of batches of a trial run, True for a single one; False for a real run."""
        batches = self.settings.fast_dev_run
        return batches if batches > 1 else bool(batches)

    @property
    def barebones(self) -> bool:
        """Whether everything optional is off."""
        return self.settings.barebones

    @property
    def default_root_dir(self) -> str:
        """The folder for whatever is written without a path of its own; may be set."""
        return self.settings.default_root_dir

    @default_root_dir.setter
    def default_root_dir(self, value: str | os.PathLike[str]) -> None:
        self.settings.default_root_dir = os.fspath(value)

    # -- data --------------------------------------------------------------------------------------------------------

    @property
    def train_dataloader(self) -> Any:
        """What ``train_dataloader`` gave, None before it was asked for."""
        loaders = self.fit_loop.loaders
        return None if loaders is None else loaders.given

    @property
    def val_dataloaders(self) -> Any:
        """What ``val_dataloader`` gave."""
        loaders = self.fit_loop.val_loop.loaders or self.validate_loop.loaders
        return None if loaders is None else loaders.given

    @property
    def test_dataloaders(self) -> Any:
        """What ``test_dataloader`` gave."""
        return None if self.test_loop.loaders is None else self.test_loop.loaders.given

    @property
    def predict_dataloaders(self) -> Any:
        """What ``predict_dataloader`` gave."""
        return None if self.predict_loop.loaders is None else self.predict_loop.loaders.given

    @property
    def num_training_batches(self) -> int | float:
        """Training batches of an epoch; ``inf`` if unknown, or before the loader was asked for."""
        batches: int | float = self.fit_loop.max_batches
        return batches

    @property
    def val_check_batch(self) -> int | float | None:
        """Training batches between two validations; None before the loader was asked for, and where time decides."""
        every: int | float | None = self.fit_loop.val_every if self.fit_loop.loaders is not None else None
        return None if isinstance(self.settings.val_check_interval, timedelta) else every

    @property
    def num_val_batches(self) -> list[int | float]:
        """Validation batches of each loader."""
        if self.state.fn is TrainerFn.VALIDATING:
            return list(self.validate_loop.num_batches)
        return list(self.fit_loop.val_loop.num_batches)

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Validation batches of each loader in the sanity check."""
        return [min(self.num_sanity_val_steps, n) for n in self.fit_loop.val_loop.num_batches]

    @property
    def num_test_batches(self) -> list[int | float]:
        """Test batches of each loader."""
        return list(self.test_loop.num_batches)

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Prediction batches of each loader."""
        return list(self.predict_loop.num_batches)

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Optimiser steps that a whole fit will take; ``inf`` if there is no limit. Loads the training data."""
        if self.max_epochs == -1:
            return math.inf if self.max_steps == -1 else self.max_steps
        if self.fit_loop.loaders is None:
            self.fit_loop._load_data()
        batches = self.num_training_batches
        if math.isinf(batches):
            return math.inf if self.max_steps == -1 else self.max_steps
        steps = math.ceil(batches / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        return steps if self.max_steps == -1 else min(self.max_steps, steps)

    # -- metrics -----------------------------------------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """Everything logged, by name, as 0-dim tensors: for callbacks that monitor a value."""
        return self._metrics.callback_metrics

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """Everything logged for the loggers."""
        return self._metrics.logged_metrics

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Everything logged for the progress bar, as numbers."""
        return self._metrics.progress_bar_metrics

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def logger(self) -> Any | None:
        """The first logger, None without one."""
        return self.loggers[0] if self.loggers else None

    @property
    def log_dir(self) -> str | None:
        """The folder of the first logger, the root folder without one."""
        if not self.loggers:
            return self.default_root_dir
        logger = self.loggers[0]
        directory = getattr(logger, "log_dir", None) or getattr(logger, "save_dir", None)
        return None if directory is None else str(directory)

    @property
    def model(self) -> Any:
        """The module as the strategy wraps it."""
        return self.strategy.model if self.strategy.model is not None else self.lightning_module

    @property
    def optimizers(self) -> list[Any]:
        """torch's optimisers of the current fit; others may be put in their places."""
        return self.strategy.optimizers

    @optimizers.setter
    def optimizers(self, value: list[Any]) -> None:
        self._use_optimizers(list(value), self.lr_scheduler_configs)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The learning-rate schedulers of the current fit, with their options."""
        return self.strategy.lr_scheduler_configs

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """The callbacks that save checkpoints, in order."""
        return [c for c in self.callbacks if any(cls.__name__ == "Checkpoint" for cls in type(c).__mro__)]

    @property
    def checkpoint_callback(self) -> Any | None:
        """The first callback that saves checkpoints."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """The EarlyStopping callbacks, in order."""
        return [c for c in self.callbacks if any(cls.__name__ == "EarlyStopping" for cls in type(c).__mro__)]

    @property
    def early_stopping_callback(self) -> Any | None:
        """The first EarlyStopping callback."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def progress_bar_callback(self) -> Any | None:
        """The progress bar, None without one."""
        return next((c for c in self.callbacks if isinstance(c, ProgressBar)), None)

    @property
    def global_rank(self) -> int:
        """The rank of this process among all, from 0."""
        return int(self.strategy.global_rank)

    @property
    def local_rank(self) -> int:
        """The rank of this process on its node, from 0."""
        return int(self.strategy.local_rank)

    @property
    def node_rank(self) -> int:
        """The rank of this node, from 0."""
        return int(getattr(self.strategy, "node_rank", 0))

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return int(self.strategy.world_size)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return int(getattr(self.strategy, "num_nodes", 1))

    @property
    def device_ids(self) -> list[int]:
        """The indices of the devices on this node."""
        return [self.strategy.root_device.index or 0]

    @property
    def num_devices(self) -> int:
        """The number of devices on this node."""
        return len(self.device_ids)

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is the first of all."""
        return bool(self.strategy.is_global_zero)

    @property
    def precision(self) -> str:
        """The numerical precision, such as ``32-true`` or ``bf16-mixed``."""
        return str(self._precision.precision)

    @property
    def precision_plugin(self) -> Any:
        """Lightning's name for what handles precision."""
        return self._precision

    @property
    def scaler(self) -> Any | None:
        """The gradient scaler of ``16-mixed``, None otherwise."""
        return getattr(self._precision, "scaler", None)

    @contextmanager
    def init_module(self, empty_init: bool | None = None) -> Generator[None, None, None]:
        """Within the block modules are made on the trainer's device and in its precision.

        Args:
            empty_init: True is refused: weights are always initialised.

        Raises:
            MisconfigurationException: ``empty_init`` is True.
        """
        if empty_init:
            raise MisconfigurationException(
                "init_module(empty_init=True) is not supported; leave it out, or wrap the layers in torch.nn.utils.skip_init"
            )
        with self.strategy.root_device, self._precision.init_context():
            yield

    # -- private names of Lightning's that packages use ----------------------------------------------------------------

    @property
    def _accelerator_connector(self) -> AcceleratorView:
        return AcceleratorView(self)

    @property
    def _callback_connector(self) -> CallbackView:
        return CallbackView(self)

    @property
    def _checkpoint_connector(self) -> CheckpointView:
        return CheckpointView(self)

    @property
    def _logger_connector(self) -> LoggerView:
        return LoggerView(self)

    @property
    def _signal_connector(self) -> SignalView:
        return SignalView(self)
