"""The tests see the sources beside them, also where the plugin is not installed, and no settings of hookbus.

``tiny`` makes the network of the recorded maps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

SOURCES = str(Path(__file__).parents[1] / "src")

if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)


@pytest.fixture(autouse=True)
def _no_plugin_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOOKBUS_")]:
        monkeypatch.delenv(name)


class TinyCNN(nn.Module):
    """Two convolutions, global average pooling and a linear layer; weights from a formula, without random numbers."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.relu1 = nn.ReLU(inplace)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.relu2 = nn.ReLU(inplace)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(6, 3)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                flat = torch.arange(parameter.numel(), dtype=torch.float64)
                parameter.copy_((0.6 * torch.sin(1.3 * flat + 0.7 * number + 0.5)).view_as(parameter))  # in float32
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return self.fc(self.pool(features).flatten(1))


@pytest.fixture
def tiny():
    return TinyCNN


@pytest.fixture
def images() -> torch.Tensor:
    """Two images of 8 x 8 pixels, (2, 1, 8, 8)."""
    place = torch.arange(8, dtype=torch.float64)
    return torch.stack([torch.cos(0.9 * place[:, None] + 0.4 * place * (b + 1)) + 0.1 * b for b in range(2)])[:, None]
