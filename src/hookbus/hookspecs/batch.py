"""A batch on its way to the device: three folds, each handing the batch on.

Called for every batch of every stage, in this order, before ``on_…_batch_start``. Each implementation gets what the one
before returned; the last value is what the step gets. Which stage it is, ``trainer.training``, ``trainer.validating``,
… tell.
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import Device, LightningModule, Trainer
from hookbus.markers import hookspec


@hookspec(fold="batch", native_only=True)
def on_before_batch_transfer(trainer: Trainer, pl_module: LightningModule, batch: Any, dataloader_idx: int) -> Any:
    """Change a batch while it is still on the host.

    Called after the dataloader made the batch and before ``transfer_batch_to_device``. Good for what is cheap on the
    CPU, such as dropping fields that need not travel.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: what the dataloader made, or what the implementation before returned.
        dataloader_idx: which of several dataloaders it comes from, from 0; 0 in training.

    Returns:
        The batch to hand on; None hands on the one that came.
    """


@hookspec(fold="batch", native_only=True)
def transfer_batch_to_device(
    trainer: Trainer, pl_module: LightningModule, batch: Any, device: Device, dataloader_idx: int
) -> Any:
    """Move a batch to the device.

    Called between ``on_before_batch_transfer`` and ``on_after_batch_transfer``. The module's own method moves every
    tensor inside lists, tuples, mappings and dataclasses, and objects that have ``.to(device)``. Implement it for types
    that this does not reach.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the batch so far.
        device: where the model computes.
        dataloader_idx: which of several dataloaders it comes from, from 0; 0 in training.

    Returns:
        The batch on the device; None hands on the one that came.
    """


@hookspec(fold="batch", native_only=True)
def on_after_batch_transfer(trainer: Trainer, pl_module: LightningModule, batch: Any, dataloader_idx: int) -> Any:
    """Change a batch when it is on the device.

    Called after ``transfer_batch_to_device`` and before ``on_…_batch_start``. Good for augmentation that the
    accelerator does faster.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the batch on the device, or what the implementation before returned.
        dataloader_idx: which of several dataloaders it comes from, from 0; 0 in training.

    Returns:
        The batch to hand on; None hands on the one that came.
    """
