"""Small networks that the tests of taps share, and how to look at the hooks on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

import hookbus


class Block(nn.Module):
    def __init__(self, width: int = 6):
        super().__init__()
        self.conv = nn.Linear(width, width)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.conv(x))


class Net(nn.Module):
    """Linear in, two residual blocks, one ReLU that is called twice, linear out."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.relu = nn.ReLU()
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.relu(x))


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Outcome:
    logits: Tensor
    hidden: list[Tensor]
    note: str = "none"


class Many(nn.Module):
    """Gives whatever structure it is told to give; keyword arguments only, if asked."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.shape = shape

    def forward(self, x=None, *, scale=None):
        y = x * self.weight
        y = y if scale is None else y * scale
        return {
            "tensor": lambda: y,
            "tuple": lambda: (y, (2 * y, None)),
            "list": lambda: [y, 2 * y],
            "dict": lambda: {"a": y, "b": {"c": 2 * y}},
            "named": lambda: Pair(y, 2 * y),
            "dataclass": lambda: Outcome(y, [2 * y]),
            "structseq": lambda: torch.max(y, dim=1),
        }[self.shape]()


class Wrapper(nn.Module):
    """A network with one inner module, which is called as given."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def hooks_on(model: nn.Module) -> int:
    """The number of all hooks on modules and parameters."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    count = sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)
    on_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return count + sum(len(getattr(p, kind) or {}) for p in model.parameters() for kind in on_parameters)


class Training(hookbus.LightningModule):
    """A Net that trains, validates and predicts on batches of four numbers."""

    def __init__(self, net: nn.Module | None = None):
        super().__init__()
        self.net = net or Net()

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.net(batch)

    def test_step(self, batch, batch_idx):
        self.net(batch)

    def predict_step(self, batch, batch_idx):
        return self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(batches: int = 4, size: int = 2):
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.DataLoader(torch.randn(batches * size, 4, generator=generator), batch_size=size)


def trainer(*plugins: object, **arguments):
    """A trainer that shows and writes nothing."""
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    return hookbus.Trainer(**{**quiet, "max_epochs": 1, "plugins": list(plugins), **arguments})
