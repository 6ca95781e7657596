"""Running out of memory: how the error looks, and making room after it."""

from __future__ import annotations

import gc
from typing import Final

import torch

#: Parts of the messages of errors that mean too little memory without being of a type of their own.
_SIGNS: Final = (
    ("CUDA", "out of memory"),
    ("MPS", "out of memory"),
    ("HIP", "out of memory"),
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",),
    ("CUBLAS_STATUS_ALLOC_FAILED",),
    ("DefaultCPUAllocator", "can't allocate memory"),
    ("DefaultCPUAllocator", "not enough memory"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device, or of the host, does not suffice.

    Example:
        >>> is_out_of_memory(RuntimeError("CUDA error: out of memory")), is_out_of_memory(RuntimeError("shapes"))
        (True, False)
    """
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and any(all(part in message for part in sign) for sign in _SIGNS)


def release_memory() -> None:
    """Let go of what nobody refers to any more, and of what CUDA keeps in reserve."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
