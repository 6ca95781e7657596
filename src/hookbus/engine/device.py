"""Which device to use, moving batches to it, and how many samples a batch has."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hookbus.engine.nested import map_leaves, tensors_in
from hookbus.errors import MisconfigurationException


def select_device(accelerator: str, devices: int | str | list[int]) -> list[torch.device]:
    """The devices that Lightning's two arguments mean.

    Args:
        accelerator: ``auto`` (CUDA, then MPS, then CPU), ``cpu``, ``gpu``, ``cuda`` or ``mps``.
        devices: a number, ``-1`` for all, or the indices (a list, or a string such as ``"0,1"``). ``auto`` is one
            device, also where there are more.

    Raises:
        MisconfigurationException: no such accelerator, or not those devices here.
    """
    kind = _kind(str(accelerator).lower())
    if kind == "cpu":
        return [torch.device("cpu")] * (1 if devices in ("auto", -1, "-1") else len(_indices(devices)))
    available = torch.cuda.device_count() if kind == "cuda" else 1
    if devices == "auto":
        indices = [0]
    elif devices in (-1, "-1"):
        indices = list(range(available))
    else:
        indices = _indices(devices)
    absent = [index for index in indices if index >= available]
    if absent:
        raise MisconfigurationException(
            f"devices={devices!r} asks for {kind} device(s) {indices}, but there is no {', '.join(map(str, absent))} here: "
            f"{available} device(s), counted from 0"
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


def _indices(devices: Any) -> list[int]:
    """The indices that a number, a list or a string such as ``"2"`` or ``"0,1"`` means."""
    try:
        if isinstance(devices, str):
            text = devices.strip()
            found = [int(part) for part in text.split(",") if part.strip()] if "," in text else list(range(int(text)))
        elif isinstance(devices, int) and not isinstance(devices, bool):
            found = list(range(devices))
        else:
            found = [int(index) for index in devices]
    except (TypeError, ValueError):
        found = []
    if not found or min(found) < 0 or len(set(found)) < len(found) or isinstance(devices, bool):
        raise MisconfigurationException(
            f"devices must be 'auto', -1, a number of at least 1, or different indices such as [0, 1] or '0,1'; got {devices!r}"
        )
    return found


def move_to(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``.

    Tensors are found in lists, tuples, named tuples, mappings and dataclasses, nested as they may be; an object with a
    method ``to(device)`` is asked to move itself. Where nothing moves, the same object comes back, so a batch stays the
    object that its loader made.
    """
    kind = type(batch)
    if kind is Tensor:
        return batch if batch.device == device else _moved(batch, device)
    # What most loaders make, being there already, should cost next to nothing.
    if kind is list or kind is tuple:
        for item in batch:
            if type(item) is not Tensor or item.device != device:
                break
        else:
            return batch
    elif kind is dict:
        for item in batch.values():
            if type(item) is not Tensor or item.device != device:
                break
        else:
            return batch
    return map_leaves(batch, lambda leaf: _moved(leaf, device), _is_movable)


def bring_to(module: nn.Module, device: torch.device) -> None:
    """Let ``module`` move to ``device``; one that is there already is not asked, unless it has a way of its own to move."""
    for part in module.modules():
        if type(part).to is not nn.Module.to or type(part)._apply is not nn.Module._apply:
            break
        if any(t is not None and t.device != device for t in (*part._parameters.values(), *part._buffers.values())):
            break
    else:
        return
    module.to(device)


def _is_movable(value: Any) -> bool:
    return isinstance(value, Tensor) or callable(getattr(value, "to", None))


def _moved(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Tensor):
        # Copies from the host may overlap with work on CUDA devices; elsewhere the data might be read too early.
        return leaf.to(device, non_blocking=device.type not in ("cpu", "mps"))
    moved = leaf.to(device)
    return leaf if moved is None else moved  # None: it has moved in place


def batch_size_of(batch: Any) -> int | None:
    """The number of samples in ``batch``: the first dimension of its first tensor, 1 for one without dimensions.

    If the tensors disagree, a warning says so, as in Lightning. None if there is no tensor.
    """
    tensors = tensors_in(batch)
    first = next(tensors, None)
    if first is None:
        return None
    size = _length(first)
    if any(_length(tensor) != size for tensor in tensors):
        warnings.warn(
            "the tensors of the batch differ in their first dimension, so its size is ambiguous: that of the first tensor is "
            "taken to weight means. Pass batch_size to self.log(…) to be sure",
            stacklevel=2,
        )
    return size


def _length(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.ndim else 1
