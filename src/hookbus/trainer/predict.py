"""The prediction loop: ``Trainer.predict``.

::

    on_predict_model_eval
    on_predict_start, on_predict_epoch_start
    for loader in loaders:
        for batch in loader:
            transfer hooks, on_predict_batch_start, predict_step, on_predict_batch_end
    on_predict_epoch_end
    on_predict_end
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from hookbus.engine.device import move_to
from hookbus.errors import MisconfigurationException
from hookbus.trainer.data import Loaders, batches, evaluation_loaders, set_epoch
from hookbus.trainer.evaluate import _check_dataloader_idx, _without_gradients
from hookbus.trainer.participants import next_look
from hookbus.trainer.samples import SampleIndices, with_last_batch

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


class PredictionLoop:
    """Collects what ``predict_step`` returns.

    Args:
        trainer: owns everything but loaders and predictions.

    Attributes:
        loaders: the loaders, None until they were asked for.
        predictions: a list per loader of what each batch gave, on the CPU.
        current_batch_indices: the indices in the dataset of the samples of the current batch; empty if not known.
        epoch_batch_indices: a list per loader of these for each batch; empty for a loader where they are not known.
        return_predictions: whether ``Trainer.predict`` returns the predictions.
        keep_predictions: whether predictions and indices are kept until the end; who needs them sets this in
            ``on_predict_start``. They are if they are returned.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loaders: Loaders | None = None
        self.predictions: list[list[Any]] = []
        self.current_batch_indices: list[Any] = []
        self.epoch_batch_indices: list[list[list[Any]]] = []
        self.return_predictions = self.keep_predictions = True

    @property
    def num_batches(self) -> list[int | float]:
        """Batches of each loader, as limited."""
        return list(self.loaders.num_batches) if self.loaders else []

    def load_data(self) -> None:
        """Ask for the loaders.

        Raises:
            MisconfigurationException: there are none.
        """
        trainer = self._trainer
        if trainer.settings.limit_predict_batches == 0:
            return
        answer = trainer.bus.fire.predict_dataloader(trainer)
        if answer is None:
            raise MisconfigurationException(
                "predict needs data: pass dataloaders or a datamodule, or define predict_dataloader() in the module or a "
                f"plugin; {type(trainer.lightning_module).__name__} has none"
            )
        limit = trainer.settings.limit_predict_batches
        self.loaders = evaluation_loaders("predict", answer, limit)
        whole = [with_last_batch(loader) for loader in self.loaders.loaders]
        if any(new is not old for new, old in zip(whole, self.loaders.loaders, strict=True)):
            self.loaders = replace(evaluation_loaders("predict", whole, limit), given=self.loaders.given)
        trainer._participants.read_module(several_loaders=len(self.loaders.loaders) > 1)
        _check_dataloader_idx(trainer.lightning_module, "predict", "predict", len(self.loaders.loaders))

    def run(self) -> list[Any] | list[list[Any]] | None:
        """Predict on all loaders.

        Returns:
            What each batch gave: one list for one loader, a list of lists for several; None if not to be returned.
        """
        self._trainer._metrics.reset()
        self.load_data()
        if self.loaders is None or sum(self.num_batches) == 0:
            return [] if self.return_predictions else None
        with _without_gradients(self._trainer.settings.inference_mode):
            self._run(self.loaders)
        if not self.return_predictions:
            self.predictions = []
            return None
        return self.predictions[0] if len(self.predictions) == 1 else self.predictions

    def _run(self, loaders: Loaders) -> None:
        trainer = self._trainer
        module, fire = trainer.lightning_module, trainer.bus.fire
        trainer._several_loaders = several = len(loaders.loaders) > 1
        trainer.bus.expect_loaders(several=several)
        trainer._participants.sync()
        modes = {submodule: submodule.training for submodule in module.modules()}
        fire.on_predict_model_eval(trainer, module)
        self.predictions = [[] for _ in loaders.loaders]
        self.epoch_batch_indices = [[] for _ in loaders.loaders]
        self.keep_predictions = self.return_predictions
        fire.on_predict_start(trainer, module)
        loaders = self.loaders or loaders  # somebody may have asked for them again, with other batches
        fire.on_predict_epoch_start(trainer, module)
        for index, loader in enumerate(loaders.loaders):
            set_epoch(loader, trainer.progress.epoch)
            samples = SampleIndices(loader)
            trainer._dataloader_idx = index
            try:
                self._run_batches(samples, loaders.num_batches[index], index)
            finally:
                trainer._dataloader_idx = None
        trainer._participants.follow()
        fire.on_predict_epoch_end(trainer, module)
        fire.on_predict_end(trainer, module)
        trainer._several_loaders = False
        for submodule, training in modes.items():
            submodule.training = training

    def _run_batches(self, samples: SampleIndices, limit: int | float, dataloader_idx: int) -> None:
        """Predict on the batches of one loader."""
        trainer, fire, precision = self._trainer, self._trainer.bus.fire, self._trainer._precision
        module, predictions, host = trainer.lightning_module, self.predictions[dataloader_idx], torch.device("cpu")
        participants, look_at = trainer._participants, 0
        for batch_idx, (batch, _) in enumerate(batches(samples.loader, limit)):
            if batch_idx >= look_at or participants.moved:
                participants.follow()
                look_at = next_look(batch_idx)
            self.current_batch_indices = samples.of_next_batch()
            batch = trainer._transfer(batch, dataloader_idx)
            fire.on_predict_batch_start(trainer, module, batch, batch_idx, dataloader_idx)
            if precision.wraps_steps:
                with precision.forward_context():
                    outputs = fire.predict_step(trainer, module, batch, batch_idx, dataloader_idx)
            else:
                outputs = fire.predict_step(trainer, module, batch, batch_idx, dataloader_idx)
            if outputs is None:
                trainer._warn_once("predict_step returned None for a batch; return the prediction, or ignore this")
            if self.keep_predictions and self.current_batch_indices:
                self.epoch_batch_indices[dataloader_idx].append(self.current_batch_indices)
            fire.on_predict_batch_end(trainer, module, outputs, batch, batch_idx, dataloader_idx)
            if self.keep_predictions:
                predictions.append(move_to(outputs, host))
