"""The trainer: arguments in, entry points out. What it does stands in ``run.py``, ``fit.py``, ``evaluate.py``, …"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from hookbus.bus import Bus
from hookbus.checkpoint import store
from hookbus.checkpoint.dump import dump
from hookbus.checkpoint.plain import alike, versions
from hookbus.checkpoint.writer import AsyncWriter, Writer, write_now
from hookbus.dialects import logger as logger_dialect
from hookbus.engine.device import batch_size_of, move_to
from hookbus.engine.optimizer import LightningOptimizer
from hookbus.engine.precision import make_precision
from hookbus.engine.strategy import SingleDeviceStrategy
from hookbus.errors import MisconfigurationException
from hookbus.hparams import merged
from hookbus.taps import Taps
from hookbus.trainer import roster, schedules
from hookbus.trainer.assembly import configure_torch, make_loggers, one_device, refuse_unknown, refuse_unsupported
from hookbus.trainer.choice import best_of_last_fit, chosen
from hookbus.trainer.control import Control
from hookbus.trainer.environment import defaults_from_environment
from hookbus.trainer.evaluate import EvaluationLoop
from hookbus.trainer.fit import FitLoop
from hookbus.trainer.metrics import MetricStore
from hookbus.trainer.outlets import Outlets, print_results
from hookbus.trainer.participants import Participants, adopt_discovered, data_of, module_of
from hookbus.trainer.predict import PredictionLoop
from hookbus.trainer.profiling import make_profiler
from hookbus.trainer.progress import Progress
from hookbus.trainer.rehearsal import Rehearsal, rehearsal, reload_data
from hookbus.trainer.run import run
from hookbus.trainer.settings import SETTINGS, check
from hookbus.trainer.shortcuts import Shortcuts
from hookbus.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from hookbus.trainer.step import OptimizerStep, refuse_unheeded, run_manual_backward
from hookbus.trainer.view import TrainerView


class Trainer(TrainerView):
    """Trains, validates, tests and predicts with a module, firing every lifecycle point on a bus.

    The arguments are those of Lightning 2.6, with the same meaning, and likewise ``PL_TRAINER_MAX_EPOCHS=3`` in the
    environment stands for one that is not given; new are:

    Args:
        plugins: plugin objects with ``@hookimpl`` functions, and strings as the command line's ``-p`` takes them:
            ``"name"`` or ``"pkg.mod"`` to load one, ``"no:name"`` to block one.
        strict: raise at a broken plugin instead of reporting it and going on.
        async_checkpoints: write checkpoints in the background; the training waits only until they are copied.
        resume_data: how a run that resumes inside an epoch gets to its place in the training data: ``"skip"`` over what
            was seen where the loader is indexed, and load it again elsewhere; ``"replay"``, load it again in any case, as
            is right if workers of the loader draw random numbers; ``"refuse"`` to load it again.

    Attributes:
        bus: who takes part; ``trainer.bus.order("on_train_start")`` says in which order.
        callbacks: a plain list, the trainer's own; what is appended or removed takes part, or does no more, from the
            next batch, epoch or stage on.
        control: requests to the loop: ``trainer.control.stop("why")``.
        progress: the counters of the run.
        settings: the checked arguments.
        taps: what plugins want to hear of inside the network; ``with trainer.taps.capture("layer3") as captured: …``.

    Raises:
        MisconfigurationException: an argument is out of range, or two of them exclude each other.
    """

    @defaults_from_environment
    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: Any = "auto",
        devices: list[int] | str | int = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        logger: Any = None,
        callbacks: Any = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: int | float | str | timedelta | dict[str, int] | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Any = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Sequence[Any] | str | None = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        async_checkpoints: bool = False,
        resume_data: str = "skip",
    ) -> None:
        config = {name: value for name, value in locals().items() if name not in ("self", "plugins", "strict")}
        arguments = tuple(config)
        wanted = [plugins] if isinstance(plugins, str) else list(plugins or ())
        self.bus = Bus.load(wanted, strict=strict)
        self.bus.expect_loaders(several=False)
        self.taps = Taps(self.bus)
        self.bus.fire.modify_config(self, config)
        refuse_unknown(config, arguments)
        self._build(config)

    def _build(self, config: dict[str, Any]) -> None:
        """Make the parts that the arguments mean, as plugins may have changed them."""
        self.settings = check({name: config[name] for name in SETTINGS})
        refuse_unsupported(config["strategy"], config["num_nodes"], config["sync_batchnorm"])
        self.state = TrainerState()
        self.progress = Progress()
        self.control = Control()
        self.received_sigterm = False
        self.ckpt_path: str | None = None
        device = one_device(config["accelerator"], config["devices"])
        self.strategy = SingleDeviceStrategy(device)
        self._precision: Any = make_precision(config["precision"] or "32-true", device)
        configure_torch(self.settings.deterministic, self.settings.benchmark)
        self._profiled = make_profiler(config["profiler"], self.bus, self.print)
        self._metrics = MetricStore()
        self._outlets = Outlets(self)
        self.fit_loop = FitLoop(self)
        self.validate_loop = EvaluationLoop(self, RunningStage.VALIDATING)
        self.test_loop = EvaluationLoop(self, RunningStage.TESTING)
        self.predict_loop = PredictionLoop(self)
        self.lightning_module: Any = None
        self.datamodule: Any = None
        self._wrapped_optimizers: list[LightningOptimizer] = []
        self._unclaimed_states: dict[str, Any] = {}
        self._saved_last: tuple[str, dict[str, Any], list[int]] | None = None
        self._writer = AsyncWriter(lambda: self.control.look()) if config["async_checkpoints"] else Writer()
        self.strategy._write = write_now
        self._dataloader_idx: int | None = None
        self._several_loaders = False
        self._batch: Any = None
        self._known_batch_size: int | None = None
        self._said: set[str] = set()
        self.bus.set_rank(self.strategy.global_rank)
        self._loggers: list[Any] = []
        self.callbacks: list[Any] = roster.assembled(
            config["callbacks"],
            adopt_discovered(self.bus),
            bar=config["enable_progress_bar"],
            checkpointing=config["enable_checkpointing"],
            summary=config["enable_model_summary"],
            max_time=self.settings.max_time,
            barebones=self.settings.barebones,
        )
        self._participants = Participants(self)
        self._shortcuts = Shortcuts(self.bus)
        self._participants.sync()
        self.loggers = make_loggers(config["logger"], self.settings)

    # -- entry points ------------------------------------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train ``model``.

        A second call with the same module goes on from where the first one ended; with another module the counters
        start at zero.

        Args:
            model: a LightningModule.
            train_dataloaders: an iterable of batches, or a collection of such, or a LightningDataModule.
            val_dataloaders: an iterable of batches, or a collection of such.
            datamodule: gives the loaders, in place of the two arguments above.
            ckpt_path: a checkpoint to resume from.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.

        Raises:
            MisconfigurationException: there is nothing to train with.
            KeyboardInterrupt: the user pressed Ctrl-C; every ``on_exception`` and ``on_run_close`` has run.
            Exception: whatever a hook or the module raised first.
        """
        data = {"train": train_dataloaders, "val": val_dataloaders}
        self._begin(TrainerFn.FITTING, model, data, datamodule)
        refuse_unheeded(self.lightning_module, self.settings)
        self.control.reset()
        self.fit_loop.loaders = self.fit_loop.val_loop.loaders = None
        self.fit_loop.place.forget()
        self.progress.epoch_started = False  # what an exception left unfinished is begun anew
        self._enter(self.fit_loop.run, RunningStage.TRAINING, ckpt_path, weights_only)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run one validation.

        Args:
            model: a LightningModule; None for that of the last call, with the best weights that a ModelCheckpoint has saved.
            dataloaders: an iterable of batches, a collection of such, or a LightningDataModule.
            ckpt_path: a checkpoint whose weights to use; ``"best"`` for the best one of the last fit.
            verbose: print the results.
            datamodule: gives the loaders, in place of ``dataloaders``.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.

        Returns:
            For each loader a dictionary of what was logged, as numbers.
        """
        return self._evaluate(
            TrainerFn.VALIDATING,
            self.validate_loop,
            "val",
            model,
            dataloaders,
            ckpt_path,
            verbose,
            datamodule,
            weights_only,
        )

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, float]]:
        """Run one test; arguments and result as of :meth:`validate`."""
        return self._evaluate(
            TrainerFn.TESTING, self.test_loop, "test", model, dataloaders, ckpt_path, verbose, datamodule, weights_only
        )

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> list[Any] | list[list[Any]] | None:
        """Predict.

        Args:
            model: a LightningModule; None for that of the last call, with the best weights that a ModelCheckpoint has saved.
            dataloaders: an iterable of batches, a collection of such, or a LightningDataModule.
            datamodule: gives the loaders, in place of ``dataloaders``.
            return_predictions: False keeps nothing, for a callback that writes predictions away; None means True.
            ckpt_path: a checkpoint whose weights to use.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.

        Returns:
            What ``predict_step`` gave for each batch: one list, or a list per loader if there are several.
        """
        self._begin(TrainerFn.PREDICTING, model, {"predict": dataloaders}, datamodule)
        ckpt_path = best_of_last_fit(self) if model is None and ckpt_path is None else ckpt_path
        self.predict_loop.return_predictions = return_predictions is not False
        result: list[Any] | None = self._enter(self.predict_loop.run, RunningStage.PREDICTING, ckpt_path, weights_only)
        return result

    def save_checkpoint(
        self, filepath: str | os.PathLike[str], weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, which is whole or absent whatever happens meanwhile.

        What is saved is the state at this moment. Saved from ``on_train_batch_end``, ``on_validation_end``,
        ``on_train_epoch_end`` or ``on_train_end``, or by ``control.save()``, a run resumes exactly: what the module still had
        to do in the first two of these is done first. Callbacks that come later in the hook are not called again. Saved
        in the middle of a validation, it resumes at the beginning of the validation. Saved in the middle of a batch, it
        resumes at the beginning of that batch, or of its accumulation window if the batch may be in the gradients already.

        Args:
            filepath: the file, or a URL for fsspec; folders are made as needed.
            weights_only: leave out what only resuming needs.
            storage_options: for fsspec.

        Raises:
            AttributeError: no module is attached yet.
            TypeError: the state of a plugin holds something that could not be read back.
            OSError: the file could not be written; what stood there before is untouched. With ``async_checkpoints``, the
                file before this one.
        """
        if self.lightning_module is None:
            raise AttributeError("there is nothing to save: call fit, validate, test or predict first")
        self._write(dump(self, weights_only=bool(weights_only)), store.absolute(filepath), storage_options)

    def copy_checkpoint(
        self, source: str | os.PathLike[str], target: str | os.PathLike[str], weights_only: bool | None = None
    ) -> None:
        """Save a checkpoint that is, unless a hook has changed it, the one that was saved just now under another name.

        Everybody is asked for his state again; if nothing differs, the bytes on the disk are shared.

        Args:
            source: the file that was saved.
            target: the file to save.
            weights_only: as for ``source``.
        """
        path, target = store.absolute(source), store.absolute(target)
        checkpoint = dump(self, weights_only=bool(weights_only))
        saved_as, saved, then = self._saved_last or ("", {}, [])
        if saved_as != path or versions(saved) != then or not alike(saved, checkpoint):
            self._write(checkpoint, target, None)
            return

        def copy() -> None:
            store.clone(path, target)
            self.bus.fire.on_checkpoint_saved(self, self.lightning_module, target, checkpoint)

        if self.is_global_zero:
            self._writer.afterwards(copy)
        self.strategy.barrier("Trainer.copy_checkpoint")

    def _write(self, checkpoint: dict[str, Any], path: str, storage_options: Any) -> None:
        """Have a checkpoint written, and tell everybody when it is in place."""

        def tell(written: dict[str, Any]) -> None:
            self.bus.fire.on_checkpoint_saved(self, self.lightning_module, path, written)

        self._saved_last = path, checkpoint, versions(checkpoint)
        if self.is_global_zero:
            self._writer.save(checkpoint, path, tell, storage_options)
        if self.state.status is not TrainerStatus.RUNNING:
            self._writer.wait()
        self.strategy.barrier("Trainer.save_checkpoint")

    def rehearse(self, probe: object | None = None, *, values: bool = True) -> AbstractContextManager[Rehearsal]:
        """Run some steps on the side, of which nothing is left; see :mod:`hookbus.trainer.rehearsal`.

        Args:
            probe: a plugin that hears of what is run.
            values: whether the values of parameters and buffers are put back, too.
        """
        return rehearsal(self, probe, values=values)

    def use_schedulers(self, schedulers: Sequence[Any]) -> None:
        """Let these learning-rate schedulers take the place of all others in the current fit.

        Args:
            schedulers: each as ``configure_optimizers`` may give it.
        """
        automatic = self.lightning_module.automatic_optimization
        self.strategy.lr_scheduler_configs = schedules.parse((self.optimizers, list(schedulers)), automatic=automatic)[
            1
        ]

    def reload_data(self) -> None:
        """Ask for the dataloaders of the entry point that runs again; from the next epoch on they are those."""
        reload_data(self)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process only, without tearing a progress bar apart."""
        if not self.is_global_zero:
            return
        bar = self.progress_bar_callback
        (print if bar is None or not bar.is_enabled else bar.print)(*args, **kwargs)

    # -- loggers -----------------------------------------------------------------------------------------------------

    @property
    def loggers(self) -> list[Any]:
        """The loggers, in order; may be set."""
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: Sequence[Any] | None) -> None:
        for logger in self._loggers:
            if self.bus.is_registered(logger):  # not if its name is blocked
                self.bus.unregister(logger)
        self._loggers = list(loggers or ())
        for logger in self._loggers:
            self.bus.register(
                logger,
                self.bus.get_canonical_name(logger),
                owner="default",
                source="Trainer(logger=…)",
                implementations=logger_dialect.implementations(logger),
            )

    @property
    def logger(self) -> Any | None:
        """The first logger, None without one; may be set."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self.loggers = [] if logger is None else [logger]

    # -- what the loops and the module use -----------------------------------------------------------------------------

    def _evaluate(
        self,
        fn: TrainerFn,
        loop: EvaluationLoop,
        prefix: str,
        model: Any,
        dataloaders: Any,
        ckpt_path: Any,
        verbose: bool,
        datamodule: Any,
        weights_only: bool | None,
    ) -> list[dict[str, float]]:
        self._begin(fn, model, {prefix: dataloaders}, datamodule)
        ckpt_path = best_of_last_fit(self) if model is None and ckpt_path is None else ckpt_path
        loop.loaders = None

        def body() -> list[dict[str, float]]:
            self._metrics.reset()
            loop.load_data(required=True)
            return loop.run()

        stage = RunningStage.VALIDATING if fn is TrainerFn.VALIDATING else RunningStage.TESTING
        results: list[dict[str, float]] = self._enter(body, stage, ckpt_path, weights_only)
        if verbose and self.is_global_zero:
            print_results(fn.value, results)
        return results

    def _begin(self, fn: TrainerFn, model: Any, loaders: dict[str, Any], datamodule: Any) -> None:
        """Attach module and data for one entry point."""
        module = module_of(self.lightning_module if model is None else model, fn)
        loaders, datamodule = data_of(fn, loaders, datamodule)
        if self.lightning_module is not None and self.lightning_module is not module and fn is TrainerFn.FITTING:
            self.progress = Progress()
        self.state.fn = fn
        self._several_loaders = False
        self.lightning_module, self.datamodule = module, datamodule
        self.strategy.lightning_module = module
        module.trainer = self
        if datamodule is not None:
            datamodule.trainer = self
        self._participants.attach(fn, module, datamodule, loaders)

    def _enter(
        self,
        body: Callable[[], Any],
        stage: RunningStage,
        ckpt_path: str | os.PathLike[str] | None,
        weights_only: bool | None,
    ) -> Any:
        self.state.stage = stage
        self._say_header()
        self._participants.sync(just_attached=True)
        self.ckpt_path = chosen(self, ckpt_path)
        self.state.status = TrainerStatus.RUNNING
        return run(self, body, self.ckpt_path, weights_only)

    def _use_optimizers(self, optimizers: list[Any], configs: list[Any]) -> None:
        self.strategy.optimizers, self.strategy.lr_scheduler_configs = optimizers, configs
        if self.lightning_module.automatic_optimization and len(optimizers) > 1:
            raise MisconfigurationException(
                f"configure_optimizers returned {len(optimizers)} optimizers, and automatic optimization drives one; set "
                "self.automatic_optimization = False in the module's __init__ and step them in training_step"
            )
        self._wrapped_optimizers = [
            LightningOptimizer(optimizer, OptimizerStep(self, optimizer), lambda: self.lightning_module)
            for optimizer in optimizers
        ]

    def _transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Bring a batch to the device, through the transfer hooks."""
        if self._precision.converts_input:
            batch = self._precision.convert_input(batch)
        if self._shortcuts.transfer:
            batch = move_to(batch, self.strategy.root_device)
        else:
            module, fire = self.lightning_module, self.bus.fire
            batch = fire.on_before_batch_transfer(self, module, batch, dataloader_idx)
            batch = fire.transfer_batch_to_device(self, module, batch, self.strategy.root_device, dataloader_idx)
            batch = fire.on_after_batch_transfer(self, module, batch, dataloader_idx)
        self._batch, self._known_batch_size = batch, None
        return batch

    def _batch_size(self) -> int | None:
        """The number of samples in the current batch; looked at once per batch, and only if somebody logs a mean."""
        if self._known_batch_size is None and self._batch is not None:
            self._known_batch_size = batch_size_of(self._batch)
        return self._known_batch_size

    def _manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        run_manual_backward(self, loss, *args, **kwargs)

    def _hook_in_autograd(self) -> str | None:
        """The hook that code belongs to which autograd calls: on its own threads, or where the loop takes a shortcut."""
        in_batch = self.training and self.progress.batch > self.progress.batch_trained
        return "backward" if in_batch else None

    def _save_on_request(self) -> None:
        """Save because ``control.save()`` asked for it."""
        name = f"epoch={self.current_epoch}-step={self.global_step}.ckpt"
        self.save_checkpoint(os.path.join(self.log_dir or self.default_root_dir, "checkpoints", name))

    def _hyper_parameters(self) -> dict[str, Any]:
        """The hyper-parameters of module and data module that are meant for loggers.

        Raises:
            MisconfigurationException: both have one of the same name, with different values.
        """
        owners = (self.datamodule, self.lightning_module)
        both = [getattr(o, "hparams_initial", {}) for o in owners if getattr(o, "_log_hyperparams", False)]
        return merged(*both)

    def _warn_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, stacklevel=3)

    def _say_header(self) -> None:
        """At the start of the first run, one line about what was discovered, as pytest has it in its header."""
        report = self.bus.report
        if report is not None and report.plugins and self.is_global_zero and "header" not in self._said:
            self._said.add("header")
            print(report.header(), file=sys.stderr)
