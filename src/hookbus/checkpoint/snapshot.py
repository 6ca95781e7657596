"""A copy of a checkpoint in host memory, so that the training may go on while it is written.

The memory is kept from one save to the next: to touch new memory costs several times as much as to copy into it. What
several saves have not used is given back. What is in host memory already is copied by threads of this module: those of
torch wait for one another, which takes long on a machine whose cores are busy.
"""

from __future__ import annotations

import copy
import ctypes
import os
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor

_CHUNK: Final = 2**24  # bytes that one thread copies at a time
_THREADS: Final = min(4, os.cpu_count() or 1)
_ROUNDS: Final = 3  # copies after which memory that they did not use is given back


class HostCopies:
    """Makes copies of checkpoints, one at a time, in memory of its own."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[tuple[int, Tensor]]] = defaultdict(list)
        self._round = 0
        self._used: list[Tensor] = []
        self._moves: list[tuple[int, int, int]] = []

    def copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A copy that nothing can change any more; tensors that share memory share it in the copy, too.

        It holds until :meth:`release` is called.
        """
        storages: dict[tuple[torch.device, int], Tensor] = {}
        self._moves.clear()
        copied: dict[str, Any] = self._copied(checkpoint, storages, {})
        _move(self._moves)
        for device in {device for device, _ in storages if device.type == "cuda"}:
            torch.cuda.synchronize(device)  # copies into pinned memory are still under way
        return copied

    def release(self) -> None:
        """The memory of the last copy may be used again."""
        self._round += 1
        for buffer in self._used:
            self._free[buffer.numel()].append((self._round, buffer))
        self._used.clear()
        for size, buffers in list(self._free.items()):
            self._free[size] = [entry for entry in buffers if entry[0] > self._round - _ROUNDS]
            if not self._free[size]:
                del self._free[size]

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
            storages[key] = self._fill(source)
        made = torch.empty(0, dtype=tensor.dtype)
        made.set_(storages[key].untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        return torch.nn.Parameter(made, tensor.requires_grad) if kind is torch.nn.Parameter else made

    def _fill(self, source: torch.UntypedStorage) -> Tensor:
        """Memory that holds the bytes of ``source``, at the latest when :meth:`copy` is about to return."""
        size, on_host = source.nbytes(), source.device.type == "cpu"
        free = self._free[size]
        buffer = free.pop()[1] if free else torch.empty(size, dtype=torch.uint8, pin_memory=source.is_cuda)
        self._used.append(buffer)
        if on_host:
            self._moves.append((buffer.data_ptr(), source.data_ptr(), size))
        else:
            numbers = torch.empty(0, dtype=torch.uint8, device=source.device).set_(source)
            buffer.copy_(numbers, non_blocking=source.is_cuda)
        return buffer


def _move(moves: list[tuple[int, int, int]]) -> None:
    """Copy memory: to where, from where, how many bytes."""
    chunks = []
    for to, source, size in moves:
        if size < _CHUNK // 16:
            ctypes.memmove(to, source, size)  # a thread costs more
        else:
            chunks += [(to + at, source + at, min(_CHUNK, size - at)) for at in range(0, size, _CHUNK)]
    if chunks:
        with ThreadPoolExecutor(min(_THREADS, len(chunks))) as threads:
            list(threads.map(lambda chunk: ctypes.memmove(*chunk), chunks))
