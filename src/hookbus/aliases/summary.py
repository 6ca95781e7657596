"""``ModelSummary(model, max_depth)`` as packages written for Lightning make it."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookbus import model_summary


class ModelSummary(model_summary.ModelSummary):
    """The summary of a network, made by its constructor; see :func:`hookbus.model_summary.summarize`.

    Args:
        model: the network.
        max_depth: how deep the layers listed may be nested: 1 for children only, -1 for all, 0 for none.
    """

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        self.__dict__.update(vars(model_summary.summarize(model, max_depth)))
        self.max_depth = max_depth

    @property
    def layer_names(self) -> list[str]:
        """The layers' names."""
        return [layer.name for layer in self.layers]

    @property
    def layer_types(self) -> list[str]:
        """The layers' classes."""
        return [layer.layer_type for layer in self.layers]

    @property
    def param_nums(self) -> list[int]:
        """The layers' numbers of parameters."""
        return [layer.num_parameters for layer in self.layers]

    @property
    def training_modes(self) -> list[bool]:
        """Whether each layer is in train mode."""
        return [layer.training for layer in self.layers]

    @property
    def in_sizes(self) -> list[Any]:
        """The shapes of the layers' inputs."""
        return [layer.in_size for layer in self.layers]

    @property
    def out_sizes(self) -> list[Any]:
        """The shapes of the layers' outputs."""
        return [layer.out_size for layer in self.layers]


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """Look at a network; arguments as of :class:`ModelSummary`."""
    return ModelSummary(lightning_module, max_depth)
