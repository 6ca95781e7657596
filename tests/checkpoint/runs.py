"""The smallest training that can be saved and taken up, for tests in which only the checkpoint matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import hookbus


class Tiny(hookbus.LightningModule):
    """One layer, which begins with the same weights each time; four batches are an epoch, and the loss only falls."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, width)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> hookbus.Trainer:
    """A trainer that writes nothing but what it is asked for."""
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    if not any(isinstance(callback, hookbus.callbacks.Checkpoint) for callback in callbacks):
        quiet["enable_checkpointing"] = False
    return hookbus.Trainer(**{"max_epochs": 1, "default_root_dir": folder, **quiet, **options}, callbacks=[*callbacks])


def data() -> Any:
    return DataLoader(torch.arange(8.0).reshape(4, 2), batch_size=1)


def fit(folder: Path, *callbacks: Any, module: Any = None, ckpt_path: Any = None, **options: Any) -> hookbus.Trainer:
    """Train for an epoch, and give the trainer."""
    made = trainer(folder, *callbacks, **options)
    made.fit(Tiny() if module is None else module, data(), ckpt_path=ckpt_path)
    return made


def saved(folder: Path, *callbacks: Any, name: str = "x.ckpt", **options: Any) -> Path:
    """The path of a checkpoint that was saved after an epoch."""
    fit(folder, *callbacks, **options).save_checkpoint(folder / name)
    return folder / name
