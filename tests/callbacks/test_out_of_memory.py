from __future__ import annotations

import pytest
import torch

from hookbus.callbacks.out_of_memory import is_out_of_memory, release_memory


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if …"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:64] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.cuda.OutOfMemoryError("of whatever text"),
        MemoryError(),
    ],
)
def test_errors_that_mean_too_little_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_other_errors() -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("CUDA out of memory"))


def test_a_real_one() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
    release_memory()
