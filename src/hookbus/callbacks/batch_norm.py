"""Batch-norm statistics of weights that were never trained on: those of averages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn


def has_batch_norm(module: nn.Module) -> bool:
    """Whether there are running statistics in the module."""
    return any(isinstance(part, _BatchNorm) and part.track_running_stats for part in module.modules())


def update_batch_norm(trainer: Any) -> None:
    """Compute the running statistics of the module anew, in one pass over the training data.

    The pass calls ``training_step`` on each batch, without gradients and updates; of everything else it leaves no
    trace. With manual optimization a step would train, so there a warning asks the user to see to it.

    Args:
        trainer: in a fit that has loaded its data.
    """
    module = trainer.lightning_module
    if not has_batch_norm(module):
        return
    if not module.automatic_optimization:
        warnings.warn(
            "the batch-norm statistics are those of the weights as trained, not of their average: with manual "
            "optimization, call torch.optim.swa_utils.update_bn(loader, module) after fit",
            UserWarning,
            stacklevel=2,
        )
        return
    momenta = [(part, part.momentum) for part in module.modules() if isinstance(part, _BatchNorm)]
    try:
        with trainer.rehearse(values=False) as rehearsal:
            update_bn(_wrapped(rehearsal.training_batches()), _TrainingStep(module, rehearsal))
    finally:
        for part, momentum in momenta:
            part.momentum = momentum


def _wrapped(batches: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any]]:
    """Each batch and its index as the only item of a tuple, whose first item is what ``update_bn`` passes on."""
    for batch in batches:
        yield (batch,)


class _TrainingStep(nn.Module):
    """Lets ``update_bn`` call ``training_step`` in the place of ``forward``."""

    def __init__(self, module: nn.Module, rehearsal: Any) -> None:
        super().__init__()
        self.module = module
        self._rehearsal = rehearsal

    def forward(self, batch: tuple[Any, int]) -> Any:
        return self._rehearsal.training_step(*batch)
