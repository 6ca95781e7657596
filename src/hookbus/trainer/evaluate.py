"""The evaluation loop: validation inside fit, ``Trainer.validate`` and ``Trainer.test``.

::

    on_{stage}_model_eval
    on_{stage}_start, on_{stage}_epoch_start
    for loader in loaders:
        for batch in loader:
            transfer hooks, on_{stage}_batch_start, {stage}_step, on_{stage}_batch_end
    on_{stage}_epoch_end
    loggers
    on_{stage}_end
    on_{stage}_model_train        # or every submodule's mode as it was
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hookbus.errors import MisconfigurationException
from hookbus.trainer.data import Loaders, batches, evaluation_loaders, set_epoch
from hookbus.trainer.participants import next_look
from hookbus.trainer.signals import SIGTERMException
from hookbus.trainer.states import RunningStage, TrainerFn

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer

#: The word in the names of hooks, steps and loaders of each stage.
_WORDS = {
    RunningStage.VALIDATING: ("validation", "val"),
    RunningStage.TESTING: ("test", "test"),
    RunningStage.PREDICTING: ("predict", "predict"),
}


class EvaluationLoop:
    """Runs the module over the validation or test data without training it.

    Args:
        trainer: owns everything but the loaders.
        stage: ``VALIDATING`` or ``TESTING``.

    Attributes:
        loaders: the loaders, None until they were asked for.
    """

    def __init__(self, trainer: Trainer, stage: RunningStage) -> None:
        self._trainer = trainer
        self._stage = stage
        self._word, self._prefix = _WORDS[stage]
        self.loaders: Loaders | None = None
        self._loaded_in_epoch = 0
        self._seen: dict[int, int] = defaultdict(int)

    @property
    def num_batches(self) -> list[int | float]:
        """Batches of each loader, as limited."""
        return list(self.loaders.num_batches) if self.loaders else []

    def load_data(self, *, required: bool = False) -> None:
        """Ask for the loaders, unless there are some, nothing is to be evaluated, or the module has no such step.

        Args:
            required: whether it is an error that there are none.
        """
        trainer = self._trainer
        limit = getattr(trainer.settings, f"limit_{self._prefix}_batches")
        if self.loaders is not None or limit == 0 or not (required or trainer.bus.implemented(f"{self._word}_step")):
            return
        answer = getattr(trainer.bus.fire, f"{self._prefix}_dataloader")(trainer)
        if answer is None:
            if required:
                raise MisconfigurationException(
                    f"{trainer.state.fn} needs data: pass dataloaders or a datamodule, or define {self._prefix}_dataloader() "
                    f"in the module or a plugin; {type(trainer.lightning_module).__name__} has none"
                )
            return
        overfit = bool(trainer.settings.overfit_batches) and trainer.state.fn is TrainerFn.FITTING
        self.loaders = evaluation_loaders(self._prefix, answer, limit, overfit=overfit)
        self._loaded_in_epoch = trainer.progress.epoch
        if self is trainer.fit_loop.val_loop:
            trainer.fit_loop.place.loaders_came(self.loaders.loaders)
        trainer._participants.read_module(several_loaders=len(self.loaders.loaders) > 1)
        _check_dataloader_idx(trainer.lightning_module, self._word, self._prefix, len(self.loaders.loaders))

    def run(self) -> list[dict[str, float]]:
        """Evaluate on all loaders.

        Returns:
            For each loader the metrics that were logged for it, as numbers.
        """
        trainer = self._trainer
        every = trainer.settings.reload_every
        if self.loaders is not None and every and trainer.progress.epoch - self._loaded_in_epoch >= every:
            self.loaders = None
        self.load_data()
        limits = self._limits()
        if self.loaders is None or sum(limits) == 0:
            return []
        # Inside a fit no inference mode, as in Lightning: what a callback keeps from here may meet autograd in training.
        inference_mode = trainer.settings.inference_mode and trainer.state.fn is not TrainerFn.FITTING
        with _without_gradients(inference_mode):
            return self._run(self.loaders, limits)

    def _limits(self) -> list[int | float]:
        limits = self.num_batches
        if self._trainer.sanity_checking:
            limits = [min(n, self._trainer.settings.num_sanity_val_steps) for n in limits]
        return limits

    def _run(self, loaders: Loaders, limits: list[int | float]) -> list[dict[str, float]]:
        trainer, word = self._trainer, self._word
        module, fire, metrics = trainer.lightning_module, trainer.bus.fire, trainer._metrics
        hooks = {point: getattr(fire, f"on_{word}_{point}") for point in ("start", "epoch_start", "epoch_end", "end")}
        trainer._several_loaders = several = len(loaders.loaders) > 1
        trainer.bus.expect_loaders(several=several)
        trainer._participants.sync()
        modes = {submodule: submodule.training for submodule in module.modules()}
        getattr(fire, f"on_{word}_model_eval")(trainer, module)
        metrics.start("sanity" if trainer.sanity_checking else self._stage.value)
        hooks["start"](trainer, module)
        if (
            self.loaders is not None and self.loaders is not loaders
        ):  # somebody asked for them again, with other batches
            loaders, limits = self.loaders, self._limits()
        hooks["epoch_start"](trainer, module)
        for index, loader in enumerate(loaders.loaders):
            set_epoch(loader, trainer.progress.epoch)
            trainer._dataloader_idx = index
            try:
                self._run_batches(loader, limits[index], index)
            finally:
                trainer._dataloader_idx = None  # what is logged between and after the loaders belongs to none of them
            if trainer._several_loaders:
                metrics.finish_batches(index)
        metrics.finish_batches()
        trainer._participants.follow()
        hooks["epoch_end"](trainer, module)
        results = trainer._outlets.log_eval_end_metrics(len(loaders.loaders))
        trainer.progress.validated |= not trainer.sanity_checking
        hooks["end"](trainer, module)
        self._restore_modes(modes)
        if not trainer.sanity_checking:  # the check's values stay visible in on_sanity_check_end
            metrics.finish_epoch()
        trainer._several_loaders = False
        return results

    def _run_batches(self, loader: Any, limit: int | float, dataloader_idx: int) -> None:
        """Evaluate on the batches of one loader."""
        trainer, word, fire = self._trainer, self._word, self._trainer.bus.fire
        module, metrics = trainer.lightning_module, trainer._metrics
        start, step, end = (
            getattr(fire, name) for name in (f"on_{word}_batch_start", f"{word}_step", f"on_{word}_batch_end")
        )
        precision, counts = trainer._precision, not trainer.sanity_checking
        participants, look_at = trainer._participants, 0
        for batch_idx, (batch, _) in enumerate(batches(loader, limit)):
            if batch_idx >= look_at or participants.moved:
                participants.follow()
                look_at = next_look(batch_idx)
            batch = trainer._transfer(batch, dataloader_idx)
            start(trainer, module, batch, batch_idx, dataloader_idx)
            if precision.wraps_steps:
                with precision.forward_context():
                    outputs = step(trainer, module, batch, batch_idx, dataloader_idx)
            else:
                outputs = step(trainer, module, batch, batch_idx, dataloader_idx)
            end(trainer, module, outputs, batch, batch_idx, dataloader_idx)
            metrics.finish_batch()
            if counts:
                trainer._outlets.update_eval_step_metrics(self._seen[dataloader_idx])
                self._seen[dataloader_idx] += 1
            if trainer.received_sigterm:
                raise SIGTERMException

    def _restore_modes(self, modes: dict[torch.nn.Module, bool]) -> None:
        trainer, hook = self._trainer, f"on_{self._word}_model_train"
        if trainer.bus.implemented(hook):
            getattr(trainer.bus.fire, hook)(trainer, trainer.lightning_module)
            return
        for submodule, training in modes.items():
            submodule.training = training


def _without_gradients(inference_mode: bool) -> Any:
    return torch.inference_mode() if inference_mode else torch.no_grad()


def _check_dataloader_idx(module: Any, word: str, prefix: str, number: int) -> None:
    """With several loaders, each method that is told of a batch must be able to tell whose it is.

    Raises:
        RuntimeError: a method lacks ``dataloader_idx``, or demands it although there is one loader only.
    """
    for name in (f"on_{word}_batch_start", f"{word}_step", f"on_{word}_batch_end"):
        method: Callable[..., Any] | None = getattr(module, name, None)
        if method is None:
            continue
        try:
            parameters = inspect.signature(method).parameters
        except (TypeError, ValueError):
            continue
        takes_any = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
        index = parameters.get("dataloader_idx")
        where = f"{type(module).__name__}.{name}"
        if number > 1 and index is None and not takes_any:
            raise RuntimeError(
                f"there are {number} {prefix}_dataloaders, but {where}() has no argument dataloader_idx to tell them apart; "
                "add dataloader_idx=0 to its signature"
            )
        if number == 1 and index is not None and index.default is index.empty and name.endswith("_step"):
            raise RuntimeError(
                f"there is a single {prefix}_dataloader, but {where}() demands dataloader_idx; give it the default 0"
            )
