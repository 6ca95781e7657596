"""Names for what hooks pass around, so that signatures read well without importing torch or the trainer.

The catalogue must load in milliseconds and stands below everything that makes these objects, so the names are aliases:
what they stand for is said here and checked nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Trainer: TypeAlias = Any
"""The ``hookbus.Trainer`` that runs: counters, loggers, ``callback_metrics``, ``control``, ``should_stop``."""

LightningModule: TypeAlias = Any
"""The user's module, a ``torch.nn.Module`` with ``training_step`` and friends."""

Tensor: TypeAlias = Any
"""A ``torch.Tensor``."""

Optimizer: TypeAlias = Any
"""A ``torch.optim.Optimizer``."""

Scheduler: TypeAlias = Any
"""A learning-rate scheduler: ``torch.optim.lr_scheduler`` or anything with ``step()`` and ``state_dict()``."""

Device: TypeAlias = Any
"""A ``torch.device``."""

TapEvent: TypeAlias = Any
"""What a tap saw inside the network; its attributes are listed in :mod:`hookbus.hookspecs.taps`."""

STEP_OUTPUT: TypeAlias = Tensor | Mapping[str, Any] | None
"""What a step returns: a loss or result tensor, a mapping (with ``"loss"`` in training), or None."""

Closure: TypeAlias = Callable[[], Any]
"""A function without arguments that computes loss and gradients; ``optimizer.step(closure)`` calls it."""

Checkpoint: TypeAlias = dict[str, Any]
"""The whole checkpoint: ``state_dict``, ``optimizer_states``, ``callbacks``, ``epoch``, ``global_step``, …"""
