"""Rehearsals: a few steps on the side, of which nothing is left: for finders, and for passes over the data.

::

    with trainer.rehearse(probe) as rehearsal:
        rehearsal.run(100)                 # 100 optimiser steps, or batches of an evaluation
    # weights, optimisers, random streams, counters, metrics, … are as they were before

Callbacks, plugins and loggers do not hear of it, but for the probe and for those that declare
``in_rehearsals = True``. What belongs to the step itself stays in force whoever implements it: ``training_step``,
``backward``, ``optimizer_step``, the transfer of batches, the dataloaders.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hookbus.bus import Bus
from hookbus.checkpoint import rng
from hookbus.loggers import DummyLogger
from hookbus.trainer.combined import CombinedLoader, leaves
from hookbus.trainer.control import Control
from hookbus.trainer.data import batches
from hookbus.trainer.evaluate import EvaluationLoop
from hookbus.trainer.fit import FitLoop
from hookbus.trainer.metrics import MetricStore
from hookbus.trainer.predict import PredictionLoop
from hookbus.trainer.progress import Progress
from hookbus.trainer.snapshot import ModuleSnapshot, OptimizerSnapshot, streams_kept
from hookbus.trainer.states import RunningStage, TrainerFn

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer

#: What a rehearsal replaces on the trainer, or what running changes there.
_REPLACED = (
    "settings", "progress", "control", "fit_loop", "validate_loop", "test_loop", "predict_loop", "_metrics", "_loggers",
    "_batch", "_known_batch_size", "_dataloader_idx", "_several_loaders",
)  # fmt: skip

_EVALUATIONS = {
    TrainerFn.VALIDATING: ("validate_loop", "limit_val_batches"),
    TrainerFn.TESTING: ("test_loop", "limit_test_batches"),
    TrainerFn.PREDICTING: ("predict_loop", "limit_predict_batches"),
}


class Rehearsal:
    """What can be run within :func:`rehearsal`.

    Args:
        trainer: in the middle of an entry point.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._settings = trainer.settings
        self._progress = trainer.progress
        self._own_loaders = trainer.fit_loop.loaders

    def load(self) -> list[Any]:
        """Ask for the dataloaders anew: the training loader of a fit, else those of the evaluation that is going on."""
        return self._prepare(1)[1]

    def number_of_samples(self) -> int | None:
        """The samples of the largest dataset that the loaders read; None if none of them has a length."""
        found = []
        for loader in self.load():
            for leaf in leaves(loader.iterables) if isinstance(loader, CombinedLoader) else [loader]:
                dataset = getattr(leaf, "dataset", None)
                found += [len(dataset)] if isinstance(dataset, Sized) else []
        return max(found, default=None)

    def run(self, steps: int) -> int:
        """Run on dataloaders that are asked for anew: training in fit, else the evaluation that is going on.

        May be repeated; counters begin anew each time, weights go on from the run before.

        Args:
            steps: optimiser steps of a training, batches of an evaluation.

        Returns:
            The number that was run; fewer if the data of an evaluation end, or if somebody asks to stop.
        """
        trainer = self._trainer
        loop, loaders = self._prepare(steps)
        with streams_kept(loaders):
            loop.run()
        if isinstance(loop, FitLoop):
            return trainer.progress.global_step - self._progress.global_step
        return int(sum(loop.num_batches))

    def _prepare(self, steps: int) -> tuple[FitLoop | EvaluationLoop | PredictionLoop, list[Any]]:
        """A fresh loop in the place of the one that is going on, and its loaders."""
        trainer, was, fn = self._trainer, self._progress, self._trainer.state.fn
        trainer.progress = Progress(
            epoch=was.epoch,
            epochs_trained=was.epoch,
            global_step=was.global_step,
            logging_step=was.logging_step,
            total_batches=was.total_batches,
        )
        trainer.control = Control()
        trainer._metrics = MetricStore()
        trainer._batch = None  # it takes up memory, as do the gradients
        for parameter in trainer.lightning_module.parameters():
            parameter.grad = None
        loop: FitLoop | EvaluationLoop | PredictionLoop
        if fn is TrainerFn.FITTING:
            trainer.settings = replace(
                self._settings,
                max_epochs=-1,
                max_steps=was.global_step + steps,
                min_epochs=None,
                min_steps=None,
                limit_val_batches=0,
                reload_every=0,
            )
            loop = trainer.fit_loop = FitLoop(trainer)
            loop._load_data()
        else:
            assert fn is not None
            name, limit = _EVALUATIONS[fn]
            trainer.settings = replace(self._settings)
            setattr(trainer.settings, limit, steps)
            if fn is TrainerFn.PREDICTING:
                loop = PredictionLoop(trainer)
                loop.return_predictions = False
                loop.load_data()
            else:
                stage = RunningStage.VALIDATING if fn is TrainerFn.VALIDATING else RunningStage.TESTING
                loop = EvaluationLoop(trainer, stage)
                loop.load_data(required=True)
            setattr(trainer, name, loop)
        return loop, loop.loaders.loaders if loop.loaders is not None else []

    def training_batches(self) -> Iterator[tuple[Any, int]]:
        """The batches of one epoch of the fit that is going on, each on the device, with its index.

        Nothing is trained on them; :meth:`training_step` computes the loss of one.
        """
        trainer, loaders = self._trainer, self._own_loaders
        if loaders is None:
            return
        trainer._metrics = MetricStore()
        trainer._metrics.start("train")
        with streams_kept(loaders.loaders):
            for index, (batch, _) in enumerate(batches(loaders.loaders[0], loaders.num_batches[0])):
                yield trainer._transfer(batch, 0), index
                trainer._metrics.finish_batch()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """What the hook ``training_step`` answers, without backward and update."""
        trainer = self._trainer
        with trainer._precision.forward_context():
            return trainer.bus.fire.training_step(trainer, trainer.lightning_module, batch, batch_idx)


@contextlib.contextmanager
def rehearsal(trainer: Trainer, probe: object | None = None, *, values: bool = True) -> Iterator[Rehearsal]:
    """Run on the side; everything is put back when the block ends, however it ends.

    Args:
        trainer: in the middle of an entry point.
        probe: a plugin that hears of what is run.
        values: whether the values of parameters and buffers are put back, too.
    """
    module, strategy, state = trainer.lightning_module, trainer.strategy, trainer.state
    weights = ModuleSnapshot(module)
    optimizers = [OptimizerSnapshot(optimizer) for optimizer in strategy.optimizers]
    schedulers = strategy.lr_scheduler_configs
    scheduler_states = [copy.deepcopy(config.scheduler.state_dict()) for config in schedulers]
    precision = copy.deepcopy(trainer._precision.state_dict())
    replaced = {name: getattr(trainer, name) for name in _REPLACED}
    stage, status = state.stage, state.status
    with contextlib.ExitStack() as around:
        around.enter_context(rng.isolated())
        around.enter_context(quiet(trainer.bus))
        if probe is not None:
            around.enter_context(trainer.bus.registered(probe, owner="plugin", source="rehearsal"))
        trainer._loggers = [DummyLogger() for _ in trainer.loggers]
        if module.automatic_optimization:
            strategy.lr_scheduler_configs = []  # the loop would step them, by metrics that nobody logs here
        try:
            yield Rehearsal(trainer)
        finally:
            for name, value in replaced.items():
                setattr(trainer, name, value)
            state.stage, state.status = stage, status
            for optimizer in optimizers:
                optimizer.restore()
            strategy.lr_scheduler_configs = schedulers
            for config, saved in zip(schedulers, scheduler_states, strict=True):
                config.scheduler.load_state_dict(saved)
            if precision:
                trainer._precision.load_state_dict(precision)
            if values:
                weights.restore()
            else:
                weights.restore_state_of_training()


@contextlib.contextmanager
def quiet(bus: Bus) -> Iterator[None]:
    """Within the block nobody but the module and its data hears of what happens; counters of filters stand still."""
    hidden = []
    filters = bus.filter_state()
    try:
        for name in bus.names():
            registration = bus.registration(name)
            plugin = registration.plugin
            if registration.owner in ("module", "datamodule") or getattr(plugin, "in_rehearsals", False) is True:
                continue
            own = [entry.read for entry in registration.entries]
            kept = [implementation for implementation in own if not _observes(implementation.hook)]
            if len(kept) < len(own):
                hidden.append((name, plugin, own))
                bus.refresh(plugin, kept)
        yield
    finally:
        for name, plugin, own in hidden:
            if bus.get_plugin(name) is plugin:
                bus.refresh(plugin, own)
        bus.load_filter_state(filters)


def reload_data(trainer: Trainer) -> None:
    """Ask for the dataloaders of the entry point that runs again, or let it ask, if it has not yet.

    A loop that is about to begin an epoch, or an evaluation, walks over the new ones.
    """
    fn = trainer.state.fn
    assert fn is not None
    if fn is TrainerFn.FITTING:
        loop = trainer.fit_loop
        loop.val_loop.loaders = None
        if loop.loaders is not None:
            loop._load_data()
    elif fn is TrainerFn.PREDICTING:
        trainer.predict_loop.load_data()
    else:
        evaluation: EvaluationLoop = getattr(trainer, _EVALUATIONS[fn][0])
        evaluation.loaders = None
        evaluation.load_data(required=True)


def run_aside(trainer: Trainer, fn: TrainerFn, body: Callable[[], Any], model: Any, **data: Any) -> Any:
    """Set up an entry point, run ``body`` in place of its loop, and tear it down.

    Callbacks and plugins are set up and torn down with it and hear of nothing else.

    Args:
        trainer: no entry point of which is running.
        fn: the entry point.
        body: called where the loop would run.
        model: a LightningModule.
        **data: ``datamodule``, and loaders by the prefix of their hook (``train``, ``val``, …).

    Returns:
        What ``body`` returned.
    """
    settings = trainer.settings
    loops = {name: getattr(trainer, name) for name in ("fit_loop", "validate_loop", "test_loop", "predict_loop")}
    try:
        with quiet(trainer.bus):
            trainer._begin(fn, model, data, data.pop("datamodule", None))
            for loop in loops.values():
                loop.loaders = None
            trainer.settings = replace(settings, num_sanity_val_steps=0)
            trainer.control.reset()
            stage = RunningStage.TRAINING if fn is TrainerFn.FITTING else RunningStage(fn.value)
            return trainer._enter(body, stage, None, None)
    finally:
        trainer.settings = settings


def _observes(hook: str) -> bool:
    """Whether a hook only tells of what happens; the rest is a part of what is done."""
    if hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
        return False
    if hook in ("on_plugin_registered", "on_plugin_error"):  # of the bus, not of the run
        return False
    return hook.startswith(("on_", "log_")) or hook == "finalize"
