"""What training changes, kept aside so that it can be put back: a module, its optimisers, the streams of loaders.

Values are put back into the very tensors and dictionaries that others hold. Those of accelerators are kept in host
memory, so that a snapshot takes nothing away from a search for the largest batch.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookbus.checkpoint.loaders import set_streams, streams


class ModuleSnapshot:
    """Parameters, buffers, gradients, and the mode of every submodule.

    The gradients are taken away, to make room, and come back with :meth:`restore`.

    Args:
        module: any module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(submodule, submodule.training) for submodule in module.modules()]
        self._buffers = [(submodule, dict(submodule._buffers)) for submodule in module.modules()]
        tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
        kept = [tensor for tensor in tensors.values() if not is_lazy(tensor)]
        self._values = [(tensor, _copy(tensor)) for tensor in kept]
        self._parameters = [(parameter, parameter.requires_grad, parameter.grad) for parameter in module.parameters()]
        for parameter, _, _ in self._parameters:
            parameter.grad = None

    def restore(self) -> None:
        """Put everything back."""
        for submodule, buffers in self._buffers:
            submodule._buffers.update(buffers)
        with torch.no_grad():
            for tensor, values in self._values:
                tensor.copy_(values)
        self.restore_state_of_training()

    def restore_state_of_training(self) -> None:
        """Put everything back but the values of parameters and buffers."""
        for parameter, requires_grad, gradient in self._parameters:
            parameter.requires_grad = requires_grad
            parameter.grad = gradient
        for submodule, training in self._modes:
            submodule.training = training


class OptimizerSnapshot:
    """The parameter groups and the state of an optimiser.

    Args:
        optimizer: torch's own, or one with the same parts.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._groups = [
            (group, {**_copied_options(group), "params": group["params"]}) for group in optimizer.param_groups
        ]
        self._state = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}

    def restore(self) -> None:
        """Put everything back."""
        for group, values in self._groups:
            group.clear()
            group.update(values)
        self._optimizer.param_groups[:] = [group for group, _ in self._groups]
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


@contextlib.contextmanager
def streams_kept(loaders: Iterable[Any]) -> Iterator[None]:
    """Put the random streams that loaders hold back afterwards as they were before."""
    kept = [(loader, streams(loader)) for loader in loaders]
    try:
        yield
    finally:
        for loader, state in kept:
            set_streams(loader, state)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()


def _copied_options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
