"""What averages of weights are made of: a module's tensors under their names, and nothing else of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import nn


def weights_only(module: nn.Module) -> nn.Module:
    """A bare module tree with the same names that holds the same parameters and buffers, not copies.

    ``torch.optim.swa_utils.AveragedModel`` copies the module that it is given. A user's module may hold what should not
    be copied, such as a data set, or cannot be: losses with their graph, locks, open files.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> bare = weights_only(nn.Sequential(layer))
        >>> list(bare.state_dict()), next(bare.parameters()) is layer.weight
        (['0.weight', '0.bias'], True)
    """
    return _bare(module, {})


def _bare(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in made:
        bare = made[id(module)] = nn.Module()
        bare._parameters.update(module._parameters)
        bare._buffers.update(module._buffers)
        bare._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
        for name, child in module._modules.items():
            bare._modules[name] = None if child is None else _bare(child, made)
    return made[id(module)]


def other_name(name: str) -> str:
    """The other name of a parameter that ``torch.nn.utils.prune`` has in its hands: ``weight`` and ``weight_orig``."""
    return name.removesuffix("_orig") if name.endswith("_orig") else f"{name}_orig"


def names_of(module: nn.Module) -> list[str]:
    """The names of its parameters and buffers, in the order in which averages are made of them."""
    return [name for name, _ in itertools.chain(module.named_parameters(), module.named_buffers())]


def take_values(module: nn.Module, values: Mapping[str, Any]) -> None:
    """Set the module's tensors to those of the same names, with or without pruning; others stay."""
    own = module.state_dict()
    module.load_state_dict({name: values.get(name, values.get(other_name(name), own[name])) for name in own})
