"""Which device to use, moving batches to it, and how many samples a batch has."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hookbus.errors import MisconfigurationException


def select_device(accelerator: str, devices: int | str | list[int]) -> list[torch.device]:
    """The devices that Lightning's two arguments mean.

    Args:
        accelerator: ``auto`` (CUDA, then MPS, then CPU), ``cpu``, ``gpu``, ``cuda`` or ``mps``.
        devices: ``auto``, a number, ``-1`` for all, or the indices (list, or a string such as ``"0,1"``).

    Raises:
        MisconfigurationException: no such accelerator, or not that many devices here.
    """
    kind = _kind(str(accelerator).lower())
    if kind == "cpu":
        count = 1 if devices in ("auto", -1, "-1") else _number(devices)
        return [torch.device("cpu")] * count
    available = torch.cuda.device_count() if kind == "cuda" else 1
    if devices == "auto":
        indices = [0]
    elif devices in (-1, "-1"):
        indices = list(range(available))
    elif isinstance(devices, int) or (isinstance(devices, str) and devices.strip().isdigit()):
        indices = list(range(_number(devices)))
    else:
        listed = devices.split(",") if isinstance(devices, str) else devices
        indices = [int(index) for index in listed]
    if not indices or max(indices) >= available or min(indices) < 0:
        raise MisconfigurationException(
            f"devices={devices!r} asks for {kind} device(s) {indices}, here are {available}"
        )
    return [torch.device(kind, index) for index in indices]


def _kind(accelerator: str) -> str:
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if accelerator == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    if accelerator == "gpu":
        accelerator = "mps" if mps and not cuda else "cuda"
    if accelerator not in ("cpu", "cuda", "mps"):
        raise MisconfigurationException(f"accelerator must be auto, cpu, gpu, cuda or mps, got {accelerator!r}")
    if (accelerator == "cuda" and not cuda) or (accelerator == "mps" and not mps):
        raise MisconfigurationException(
            f"accelerator {accelerator!r} is not available on this machine; use 'auto' or 'cpu'"
        )
    return accelerator


def _number(devices: int | str | list[int]) -> int:
    try:
        number = len(devices) if isinstance(devices, list) else int(devices)
    except ValueError:
        number = 0
    if number < 1:
        raise MisconfigurationException(f"devices must be 'auto' or a number of at least 1, got {devices!r}")
    return number


def move_to(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``.

    Tensors are found in lists, tuples, named tuples, mappings and dataclasses, nested as they may be; an object with a
    method ``to(device)`` is asked to move itself. Where nothing moves, the same object comes back, so a batch stays the
    object that its loader made.
    """
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=device.type != "cpu")
    if isinstance(batch, (str, bytes, int, float, type(None))):
        return batch
    if isinstance(batch, (list, tuple)):
        moved = [move_to(item, device) for item in batch]
        if all(new is old for new, old in zip(moved, batch, strict=True)):
            return batch
        if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*moved)
        return moved if type(batch) is list else type(batch)(moved)
    if isinstance(batch, Mapping):
        values = {key: move_to(value, device) for key, value in batch.items()}
        if all(values[key] is batch[key] for key in values):
            return batch
        return _mapping_like(batch, values)
    if callable(getattr(batch, "to", None)):
        moved_itself = batch.to(device)
        return batch if moved_itself is None else moved_itself
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _dataclass_on(batch, device)
    return batch


def _mapping_like(original: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """``values`` in a mapping of the original's kind, with whatever else it carries (a default factory, say)."""
    if type(original) is dict:
        return values
    try:
        import copy

        result: Any = copy.copy(original)
        for key, value in values.items():
            result[key] = value
    except TypeError:  # a mapping that cannot be changed
        return type(original)(values)  # type: ignore[call-arg]
    return result


def _dataclass_on(batch: Any, device: torch.device) -> Any:
    """A copy of a dataclass instance with its fields moved; the instance itself if nothing moves."""
    import copy

    values = {
        field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if hasattr(batch, field.name)
    }
    moved = {name: move_to(value, device) for name, value in values.items()}
    if all(moved[name] is values[name] for name in values):
        return batch
    result = copy.copy(batch)
    for name, value in moved.items():
        object.__setattr__(result, name, value)  # frozen ones as well
    return result


def batch_size_of(batch: Any) -> int | None:
    """The number of samples in ``batch``: the first dimension of its tensors, 1 for one without dimensions.

    If they disagree, the first is taken and a warning says so, as in Lightning. None if there is no tensor.
    """
    sizes = _sizes(batch)
    first = next(sizes, None)
    if first is not None and not isinstance(batch, Tensor) and any(size != first for size in sizes):
        warnings.warn(
            f"the batch holds tensors of different first dimension, so its size is ambiguous; {first} is taken. Pass "
            "batch_size to self.log(…) to be sure",
            stacklevel=2,
        )
    return first


def _sizes(batch: Any) -> Iterator[int]:
    if isinstance(batch, Tensor):
        yield batch.shape[0] if batch.ndim else 1
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _sizes(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _sizes(value)
    elif isinstance(batch, str):
        yield len(batch)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from _sizes(getattr(batch, field.name, None))
