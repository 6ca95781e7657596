"""Parameters under ``torch.nn.utils.prune``, which holds one as ``NAME_orig`` and ``NAME_mask``, in modules and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune


@dataclass(frozen=True)
class PrunedTensor:
    """One parameter that is or may be pruned.

    Attributes:
        module: its owner.
        name: its name there.
        path: the owner's name in the whole module.
    """

    module: nn.Module
    name: str
    path: str

    @property
    def key(self) -> str:
        """Its name in the whole module."""
        return f"{self.path}.{self.name}" if self.path else self.name

    @property
    def mask(self) -> Tensor | None:
        """1 where a weight is left, 0 where it is pruned; None before the first time."""
        return self.module._buffers.get(f"{self.name}_mask")

    @property
    def values(self) -> nn.Parameter:
        """The weights, as they are under the mask."""
        parameter = self.module._parameters[self.name if self.mask is None else f"{self.name}_orig"]
        assert parameter is not None
        return parameter

    @property
    def size(self) -> int:
        """How many weights it has."""
        return int(getattr(self.module, self.name).numel())

    @property
    def zeros(self) -> int:
        """How many of them are pruned."""
        return 0 if self.mask is None else int((self.mask == 0).sum())

    def take_mask(self, mask: Tensor) -> None:
        """Prune what a mask says."""
        mask = mask.to(self.values.device)
        prune.custom_from_mask(self.module, self.name, mask)  # type: ignore[no-untyped-call]

    def set_values(self, values: Tensor) -> None:
        """Set the weights, under the mask if there is one."""
        mask, parameter = self.mask, self.values
        with torch.no_grad():
            parameter.copy_(values)
        if mask is not None:  # what forward will make of it, for those who look before
            setattr(self.module, self.name, parameter * mask)


def owners(module: nn.Module) -> Iterator[nn.Module]:
    """The submodules that may own parameters to prune: not the module itself, nor mere containers."""
    for part in module.modules():
        if part is not module and not isinstance(part, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            yield part


def made_permanent(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A ``state_dict`` in which masks are applied, and gone."""
    return _plain(weights, lambda original, mask: mask.to(original.dtype) * original)


def without_masks(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A ``state_dict`` in which masks are gone and the weights under them are as they are."""
    return _plain(weights, lambda original, _: original)


def bring_back(checkpoint: dict[str, Any], module: nn.Module) -> None:
    """Apply the masks in a checkpoint, if the module that is to be loaded has none."""
    if not any(name.endswith("_mask") for name in module.state_dict()):
        checkpoint["state_dict"] = made_permanent(checkpoint["state_dict"])


def _plain(weights: Mapping[str, Any], value: Any) -> dict[str, Any]:
    plain = dict(weights)
    for name in [name.removesuffix("_mask") for name in weights if name.endswith("_mask")]:
        if f"{name}_orig" in weights:
            plain[name] = value(plain.pop(f"{name}_orig"), plain.pop(f"{name}_mask"))
    return plain
