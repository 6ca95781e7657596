"""Peak rates are found by the names that drivers give devices."""

from __future__ import annotations

import pytest
import torch

from hookbus.engine.peak_flops import get_available_flops, peak_of


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H200", torch.bfloat16, 989.4e12),
        ("NVIDIA H100 80GB HBM3", torch.float16, 989.4e12),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA A100-SXM4-40GB", torch.float32, 19.5e12),
        ("NVIDIA A100-SXM4-40GB", torch.float64, 9.7e12),
        ("NVIDIA L4", torch.bfloat16, 121e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA A10", torch.float16, 125e12),
        ("Tesla V100-SXM2-16GB", torch.float16, 125e12),
        ("Tesla T4", torch.bfloat16, None),
        ("NVIDIA A100-SXM4-40GB", torch.int8, None),
        ("NVIDIA GeForce GT 710", torch.float32, None),
    ],
)
def test_by_name(name: str, dtype: torch.dtype, peak: float | None) -> None:
    assert peak_of(name, dtype) == peak


def test_tf32_where_torch_uses_it() -> None:
    assert peak_of("NVIDIA A100-SXM4-40GB", torch.float32, tf32=True) == 156e12
    assert peak_of("Tesla T4", torch.float32, tf32=True) == 8.1e12


def test_a_cpu_has_none() -> None:
    assert get_available_flops(torch.device("cpu"), torch.float32) is None


def test_an_unknown_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some New Device")
    with pytest.warns(UserWarning, match="'Some New Device' with torch.float16 is not known"):
        assert get_available_flops(torch.device("cuda", 0), torch.float16) is None
