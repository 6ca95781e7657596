"""What accelerators can do at most: the peak rates of their makers' data sheets, for the utilisation of a device.

All rates are dense ones. Data sheets often print the double, which only matrices with structured sparsity reach.
"""

from __future__ import annotations

import warnings

import torch

_T = 1e12

#: By a part of the device's name, the longest first to match: operations per second with float64, float32, TF32 and
#: the 16-bit types; 0 for what the device does not have.
_PEAKS: dict[str, tuple[float, float, float, float]] = {
    "b200": (37 * _T, 75 * _T, 1100 * _T, 2250 * _T),
    "h200": (34 * _T, 67 * _T, 494.7 * _T, 989.4 * _T),
    "h100 pcie": (26 * _T, 51 * _T, 378 * _T, 756 * _T),
    "h100 nvl": (30 * _T, 60 * _T, 417.5 * _T, 835.5 * _T),
    "h100": (34 * _T, 67 * _T, 494.7 * _T, 989.4 * _T),
    "a100": (9.7 * _T, 19.5 * _T, 156 * _T, 312 * _T),
    "a40": (0.585 * _T, 37.4 * _T, 74.8 * _T, 149.7 * _T),
    "a30": (5.2 * _T, 10.3 * _T, 82 * _T, 165 * _T),
    "a10": (0.488 * _T, 31.2 * _T, 62.5 * _T, 125 * _T),
    "l40s": (1.4 * _T, 91.6 * _T, 183 * _T, 362 * _T),
    "l40": (1.4 * _T, 90.5 * _T, 90.5 * _T, 181 * _T),
    "l4": (0.49 * _T, 30.3 * _T, 60 * _T, 121 * _T),
    "rtx 4090": (1.29 * _T, 82.6 * _T, 82.6 * _T, 165.2 * _T),
    "rtx 3090": (0.556 * _T, 35.6 * _T, 35.6 * _T, 71 * _T),
    "rtx a6000": (0.605 * _T, 38.7 * _T, 77.4 * _T, 154.8 * _T),
    "v100": (7.8 * _T, 15.7 * _T, 0, 125 * _T),
    "t4": (0.254 * _T, 8.1 * _T, 0, 65 * _T),
}
#: Devices before the Ampere generation multiply matrices of float16, not of bfloat16.
_WITHOUT_BFLOAT16 = ("v100", "t4")


def get_available_flops(device: torch.device, dtype: torch.dtype) -> int | None:
    """The peak rate of ``device`` with numbers of ``dtype``, in operations per second; None if it is not known.

    For float32 it is that of TF32 where torch has been told to use it (``torch.set_float32_matmul_precision``).
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peak = peak_of(name, dtype, tf32=torch.get_float32_matmul_precision() != "highest")
    if peak is None:
        warnings.warn(f"the peak rate of {name!r} with {dtype} is not known, so no utilisation is logged", stacklevel=2)
    return peak


def peak_of(name: str, dtype: torch.dtype, *, tf32: bool = False) -> int | None:
    """The peak rate of the device of this name; None if it is not known."""
    words = f" {name.lower().replace('-', ' ')} "
    chip = next((chip for chip in sorted(_PEAKS, key=len, reverse=True) if f" {chip} " in words), None)
    if chip is None or (dtype is torch.bfloat16 and chip in _WITHOUT_BFLOAT16):
        return None
    double, single, tensor_single, half = _PEAKS[chip]
    rate = {
        torch.float64: double,
        torch.float32: tensor_single if tf32 and tensor_single else single,
        torch.float16: half,
        torch.bfloat16: half,
    }.get(dtype)
    return int(rate) if rate else None
