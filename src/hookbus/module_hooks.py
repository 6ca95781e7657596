"""What a module or data module may override, with what happens where it does not. Lightning's names and signatures.

The docstrings say when each is called; ``hookbus hooks NAME`` says it at length, and for plugins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hookbus.engine.device import move_to
from hookbus.errors import MisconfigurationException

_NO_LOADER = "{owner} defines no {name}(self); return an iterable of batches there, such as a torch DataLoader"


class ModelHooks:
    """Lifecycle hooks of a module."""

    def on_fit_start(self) -> None:
        """At the very beginning of fit."""

    def on_fit_end(self) -> None:
        """At the very end of fit."""

    def on_train_start(self) -> None:
        """Before the first epoch, after the sanity check."""

    def on_train_end(self) -> None:
        """After the last epoch."""

    def on_train_epoch_start(self) -> None:
        """At the beginning of a training epoch."""

    def on_train_epoch_end(self) -> None:
        """At the very end of a training epoch, after its validation."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Before a training batch; answer -1 to skip the rest of the epoch."""
        return None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training batch."""

    def on_validation_start(self) -> None:
        """At the beginning of a validation."""

    def on_validation_end(self) -> None:
        """At the end of a validation."""

    def on_validation_epoch_start(self) -> None:
        """At the beginning of a validation's epoch."""

    def on_validation_epoch_end(self) -> None:
        """At the end of a validation's epoch, before its values are sent to the loggers."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a validation batch."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a validation batch."""

    def on_test_start(self) -> None:
        """At the beginning of a test."""

    def on_test_end(self) -> None:
        """At the end of a test."""

    def on_test_epoch_start(self) -> None:
        """At the beginning of a test's epoch."""

    def on_test_epoch_end(self) -> None:
        """At the end of a test's epoch, before its values are sent to the loggers."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a test batch."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a test batch."""

    def on_predict_start(self) -> None:
        """At the beginning of a prediction."""

    def on_predict_end(self) -> None:
        """At the end of a prediction."""

    def on_predict_epoch_start(self) -> None:
        """At the beginning of a prediction's epoch."""

    def on_predict_epoch_end(self) -> None:
        """At the end of a prediction's epoch."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Before a prediction batch."""

    def on_predict_batch_end(self, outputs: Any | None, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """After a prediction batch."""

    def on_validation_model_zero_grad(self) -> None:
        """Before a validation within a training: free the gradients."""
        self.zero_grad()  # type: ignore[attr-defined]

    def on_validation_model_eval(self) -> None:
        """Before a validation: switch to evaluation mode."""
        self.eval()  # type: ignore[attr-defined]

    def on_validation_model_train(self) -> None:
        """After a validation; where it is not overridden, every submodule's mode is put back as it was."""
        self.train()  # type: ignore[attr-defined]

    def on_test_model_eval(self) -> None:
        """Before a test: switch to evaluation mode."""
        self.eval()  # type: ignore[attr-defined]

    def on_test_model_train(self) -> None:
        """After a test; where it is not overridden, every submodule's mode is put back as it was."""
        self.train()  # type: ignore[attr-defined]

    def on_predict_model_eval(self) -> None:
        """Before a prediction: switch to evaluation mode."""
        self.eval()  # type: ignore[attr-defined]

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """After ``training_step``, before the gradients are cleared."""

    def on_before_backward(self, loss: Tensor) -> None:
        """Before ``backward``."""

    def on_after_backward(self) -> None:
        """After ``backward``; under AMP the gradients are still scaled."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Before the optimiser updates; gradients are accumulated and unscaled, but not clipped."""

    def configure_model(self) -> None:
        """Create submodules here if they are large; called at each entry point, so it must not do its work twice."""

    def configure_sharded_model(self) -> None:
        """The deprecated name of :meth:`configure_model`."""


class DataHooks:
    """Hooks about data, of modules and data modules.

    Attributes:
        prepare_data_per_node: whether ``prepare_data`` runs once per node (else once in all).
        allow_zero_length_dataloader_with_multiple_devices: Lightning's; without effect on one device.
    """

    prepare_data_per_node = True
    allow_zero_length_dataloader_with_multiple_devices = False

    def prepare_data(self) -> None:
        """Download and the like, once per node, before ``setup``; do not set attributes here."""

    def setup(self, stage: str) -> None:
        """At the beginning of fit, validate, test or predict (``stage``)."""

    def teardown(self, stage: str) -> None:
        """At the end of fit, validate, test or predict (``stage``); not after an exception."""

    def train_dataloader(self) -> Any:
        """The batches to train on: an iterable, or a collection of such."""
        raise MisconfigurationException(_NO_LOADER.format(owner=type(self).__name__, name="train_dataloader"))

    def val_dataloader(self) -> Any:
        """The batches to validate on: an iterable, or a collection of such."""
        raise MisconfigurationException(_NO_LOADER.format(owner=type(self).__name__, name="val_dataloader"))

    def test_dataloader(self) -> Any:
        """The batches to test on: an iterable, or a collection of such."""
        raise MisconfigurationException(_NO_LOADER.format(owner=type(self).__name__, name="test_dataloader"))

    def predict_dataloader(self) -> Any:
        """The batches to predict on: an iterable, or a collection of such."""
        raise MisconfigurationException(_NO_LOADER.format(owner=type(self).__name__, name="predict_dataloader"))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it goes to the device; return it."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch to ``device``; override it for containers of your own."""
        return move_to(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch on the device; return it."""
        return batch


class CheckpointHooks:
    """Hooks about checkpoints."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read from a checkpoint what :meth:`on_save_checkpoint` put there."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put something into a checkpoint before it is written."""
