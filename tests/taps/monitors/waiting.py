"""Pretends that tensors are on a device, and counts how often the host waits for it."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.overrides import TorchFunctionMode

from hookbus.taps.monitors import activation_stats, finite, gradient_step

WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "is_nonzero", "nonzero"}


class Waiting(TorchFunctionMode):
    """Counts what would make the host wait."""

    def __init__(self):
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in WAITS:
            self.count[name] += 1
        return function(*args, **(kwargs or {}))


def pretend_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the monitors take every tensor for one that must be waited for."""
    for module in (activation_stats, finite, gradient_step):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
