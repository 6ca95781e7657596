"""Where a module is trained: on one device, for now. Lightning's names for what callbacks ask of a strategy."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hookbus.engine.device import move_to


class Strategy:
    """What the rest of hookbus asks of a strategy; here for one process, to which every collective is the identity.

    A strategy for several processes overrides the ranks, the collectives and :meth:`setup_module`.

    Args:
        device: the device of this process.

    Attributes:
        root_device: the device of this process.
        lightning_module: the user's module.
        model: the module as wrapped for training; the module itself if nothing wraps it.
        optimizers: torch's optimisers of the current fit.
        lr_scheduler_configs: the schedulers of the current fit with their options.
        global_rank, local_rank, node_rank: of this process among all, on its node, and of its node, from 0.
        world_size: the number of processes.
    """

    strategy_name = "single_device"
    global_rank = 0
    local_rank = 0
    node_rank = 0
    world_size = 1
    num_nodes = 1
    handles_gradient_accumulation = False

    def __init__(self, device: torch.device) -> None:
        self.root_device = device
        self.lightning_module: Any = None
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []
        self._model: Any = None
        self._write: Callable[[dict[str, Any], str | os.PathLike[str], Any], None] | None = None  # the trainer's

    @property
    def is_global_zero(self) -> bool:
        """Whether this process is the first of all."""
        return self.global_rank == 0

    @property
    def model(self) -> Any:
        """The module as wrapped for training."""
        return self.lightning_module if self._model is None else self._model

    @model.setter
    def model(self, model: Any) -> None:
        self._model = model

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """``module`` on the device, wrapped if the strategy wraps it."""
        return module.to(self.root_device)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """``batch`` on ``device``, by default that of this process."""
        return move_to(batch, self.root_device if device is None else device)

    def block_backward_sync(self, block: bool = True) -> AbstractContextManager[Any]:
        """Within the block gradients are not synchronised across processes (unless ``block`` is False)."""
        return nullcontext()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the dictionary of a checkpoint, as packages do that make the dictionary themselves.

        ``Trainer.save_checkpoint`` does not come by here: it makes the dictionary, too, and tells the plugins.

        Args:
            checkpoint: the dictionary.
            filepath: the file, or a URL for fsspec; folders are made as needed.
            storage_options: for fsspec.

        Raises:
            RuntimeError: this strategy belongs to no trainer.
        """
        if self._write is None:
            raise RuntimeError("strategy.save_checkpoint works on the strategy of a Trainer only")
        if self.is_global_zero:
            self._write(checkpoint, filepath, storage_options)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """``obj`` of process ``src``, on all processes."""
        return obj

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str | None = "mean") -> Any:
        """``tensor`` reduced over all processes: ``mean``, ``sum``, ``max`` or ``min``."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes (or any of them) say yes."""
        return decision

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """``tensor`` of all processes, stacked along a new first dimension; of one process, the tensor itself."""
        return tensor


class SingleDeviceStrategy(Strategy):
    """One process, one device."""
