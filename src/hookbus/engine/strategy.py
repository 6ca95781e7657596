"""Where a module is trained: on one device, for now. Lightning's names for what callbacks ask of a strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SingleDeviceStrategy:
    """One process, one device; all collective operations are identities.

    Args:
        device: the device.

    Attributes:
        root_device: the device.
        lightning_module: the module.
        model: the module as wrapped for training; here the module itself.
        optimizers: torch's optimisers of the current fit.
        lr_scheduler_configs: the schedulers of the current fit with their options.
    """

    strategy_name = "single_device"
    global_rank = 0
    local_rank = 0
    node_rank = 0
    world_size = 1
    num_nodes = 1
    is_global_zero = True
    handles_gradient_accumulation = False

    def __init__(self, device: torch.device) -> None:
        self.root_device = device
        self.lightning_module: Any = None
        self.optimizers: list[Any] = []
        self.lr_scheduler_configs: list[Any] = []

    @property
    def model(self) -> Any:
        """The module as wrapped for training."""
        return self.lightning_module

    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """``obj`` of process ``src``, on all processes."""
        return obj

    def reduce(self, tensor: Any, group: Any = None, reduce_op: str | None = "mean") -> Any:
        """``tensor`` reduced over all processes."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes (or any) say yes."""
        return decision

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """``tensor`` of all processes, stacked along a new first dimension; of one process, the tensor itself."""
        return tensor
