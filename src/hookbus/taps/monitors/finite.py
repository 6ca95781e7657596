"""Whether a tensor is finite: a cheap test for the ordinary case, and an exact one when that trips.

On a CPU the answer is a bool: the sum of finite values is finite, unless it overflows, and only then, or if a value is not
finite, smallest and greatest value are looked for. On a device the answer is these two, so that nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from hookbus.taps.monitors.monitor import is_batched, on_host

#: Whether a tensor holds what it must not; on a device, what tells.
Flag: TypeAlias = "bool | Extremes"

#: What can be allowed.
KINDS = ("nan", "inf", "-inf")


def is_bad(tensor: Tensor, allowed: Collection[str] = (), *, masks: bool = False) -> Flag:
    """Whether a tensor holds a value that is not finite, and not allowed.

    Args:
        tensor: of any kind; one of whole numbers never does.
        allowed: which of :data:`KINDS` may occur.
        masks: whether a tensor may hold ``-inf`` if its greatest value is 0: what is added to attention scores.
    """
    values = _values_of(tensor)
    if values is None or len(allowed) == len(KINDS):
        return False
    if on_host(values):
        wide = torch.float32 if values.dtype is torch.float16 else None  # half precision overflows in no time
        if math.isfinite(values.sum(dtype=wide).item()):
            return False
    if "nan" in allowed:
        values = torch.where(values.isnan(), 0, values)
    extremes = Extremes(*torch.aminmax(values), frozenset(allowed), masks)
    return extremes.are_bad(extremes.least.item(), extremes.greatest.item()) if on_host(values) else extremes


class Extremes(NamedTuple):
    """The smallest and the greatest value of a tensor, on a device, and what they may be. A NaN makes both NaN."""

    least: Tensor
    greatest: Tensor
    allowed: frozenset[str]
    masks: bool

    def are_bad(self, least: float, greatest: float) -> bool:
        """Whether these values of them show a value that is not finite, and not allowed."""
        if math.isnan(least):
            return True
        too_great = greatest == math.inf and "inf" not in self.allowed
        too_small = least == -math.inf and "-inf" not in self.allowed and not (self.masks and greatest == 0)
        return too_great or too_small


def read_flags(flags: Sequence[Flag]) -> list[bool]:
    """All flags as booleans; each device is waited for once."""
    by_device: dict[torch.device, list[tuple[int, Extremes]]] = {}
    for index, flag in enumerate(flags):
        if isinstance(flag, Extremes):
            by_device.setdefault(flag.least.device, []).append((index, flag))
    read = [flag is True for flag in flags]
    for some in by_device.values():
        values = torch.stack([value for _, flag in some for value in flag[:2]]).tolist()
        for (index, flag), least, greatest in zip(some, values[::2], values[1::2], strict=True):
            read[index] = flag.are_bad(least, greatest)
    return read


def described(tensor: Tensor) -> str:
    """How many values of which kind are not finite: ``3 NaN, 1 inf of 12``. Waits for the device."""
    values = _values_of(tensor)
    assert values is not None
    found = {"NaN": values.isnan(), "inf": values == math.inf, "-inf": values == -math.inf}
    numbers = {word: int(which.sum()) for word, which in found.items()}
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number) + f" of {values.numel()}"


def _values_of(tensor: Tensor) -> Tensor | None:
    """The values as plain floating-point numbers; None if there are none, or they cannot be read (within vmap)."""
    tensor = tensor.detach()
    if type(tensor) is not Tensor and hasattr(tensor, "to_local"):  # distributed: this process's part of it
        tensor = tensor.to_local()
    if tensor.is_nested:
        tensor = torch.nested.to_padded_tensor(tensor, 0.0)
    if tensor.is_sparse:
        tensor = tensor._values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or not tensor.numel():
        return None
    if is_batched(tensor):
        return None
    return tensor.float() if tensor.element_size() == 1 else tensor


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are views of one memory."""
    if one is other:
        return True
    if one.device != other.device or not one.layout is other.layout is torch.strided:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
