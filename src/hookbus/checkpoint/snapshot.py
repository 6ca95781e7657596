"""A copy of a checkpoint in host memory, so that the training may go on while it is written.

The memory is kept from one save to the next: to touch new memory costs several times as much as to copy into it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor


class HostCopies:
    """Makes copies of checkpoints, one at a time, in memory of its own."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._used: list[Tensor] = []

    def copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A copy that nothing can change any more; tensors that share memory share it in the copy, too.

        It holds until :meth:`release` is called.
        """
        storages: dict[tuple[torch.device, int], Tensor] = {}
        copied: dict[str, Any] = self._copied(checkpoint, storages, {})
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # copies into pinned memory are still under way
        return copied

    def release(self) -> None:
        """The memory of the last copy may be used again."""
        for buffer in self._used:
            self._free[buffer.numel()].append(buffer)
        self._used.clear()

    def drop(self) -> None:
        """Give all memory back."""
        self._free.clear()
        self._used.clear()

    def _copied(self, value: Any, storages: dict[tuple[torch.device, int], Tensor], memo: dict[int, Any]) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, storages)
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            made = kind()
            for key, item in value.items():
                made[key] = self._copied(item, storages, memo)
            if kind is OrderedDict:
                vars(made).update(copy.deepcopy(vars(value), memo))  # torch notes the versions of submodules there
            return made
        if kind in (list, tuple, set):
            return kind(self._copied(item, storages, memo) for item in value)
        return copy.deepcopy(value, memo)

    def _tensor(self, tensor: Tensor, storages: dict[tuple[torch.device, int], Tensor]) -> Tensor:
        kind = type(tensor)
        ordinary = kind is Tensor or kind is torch.nn.Parameter
        if (
            not ordinary
            or tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return tensor.detach().cpu().clone()
        source = tensor.detach().untyped_storage()
        key = (tensor.device, source.data_ptr())
        if key not in storages or storages[key].numel() != source.nbytes():
            storages[key] = self._fill(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(source))
        made = torch.empty(0, dtype=tensor.dtype)
        made.set_(storages[key].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        return torch.nn.Parameter(made, tensor.requires_grad) if kind is torch.nn.Parameter else made

    def _fill(self, source: Tensor) -> Tensor:
        size = source.numel()
        free = self._free[size]
        buffer = free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=source.is_cuda)
        self._used.append(buffer)
        return buffer.copy_(source, non_blocking=source.is_cuda)
