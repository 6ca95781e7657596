"""Turning many logged values into Python numbers at once, so that the device is waited for once and not per value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with its one-element tensors (and numpy scalars) as Python numbers; other values stay.

    Raises:
        ValueError: a tensor has more than one element.
    """
    return dict(zip(metrics, numbers_of(list(metrics.items())), strict=True))


def numbers_of(items: list[tuple[str, Any]]) -> list[Any]:
    """The values of ``(name, value)`` pairs as Python numbers, with one transfer per device and dtype.

    Raises:
        ValueError: a tensor has more than one element.
    """
    values = [value for _, value in items]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, (name, value) in enumerate(items):
        if isinstance(value, Tensor):
            check_single(name, value)
            groups.setdefault((value.device, value.dtype), []).append(position)
        elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            values[position] = value.item()  # a numpy scalar
    for positions in groups.values():
        stacked = torch.stack([values[position].detach().reshape(()) for position in positions])
        for position, number in zip(positions, stacked.tolist(), strict=True):
            values[position] = number
    return values


def check_single(name: str, value: Tensor) -> None:
    """Raise ValueError unless ``value`` has one element."""
    if value.numel() != 1:
        raise ValueError(
            f"the metric {name!r} must be one number to be written, got a tensor of shape {tuple(value.shape)}"
        )
