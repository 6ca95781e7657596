"""Small models and random data under the names of ``lightning.pytorch.demos.boring_classes``.

Bug reports, documentation and tests of packages build on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hookbus.datamodule import LightningDataModule
from hookbus.module import LightningModule

_FEATURES, _SAMPLES = 32, 64


class RandomDataset(Dataset[Tensor]):
    """``length`` random vectors of ``size`` numbers."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return self.len


class RandomDictDataset(Dataset[dict[str, Tensor]]):
    """As :class:`RandomDataset`, in dictionaries ``{"a": x, "b": x + 1}``."""

    def __init__(self, size: int, length: int) -> None:
        self.len = length
        self.data = torch.randn(length, size)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"a": self.data[index], "b": self.data[index] + 1}

    def __len__(self) -> int:
        return self.len


class RandomIterableDataset(IterableDataset[Tensor]):
    """A stream of ``count`` random vectors of ``size`` numbers."""

    def __init__(self, size: int, count: int) -> None:
        self.count, self.size = count, size

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self.count):
            yield torch.randn(self.size)


class RandomIterableDatasetWithLen(RandomIterableDataset):
    """The same, saying how many."""

    def __len__(self) -> int:
        return self.count


class BoringModel(LightningModule):
    """One linear layer, with every step and every loader."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(_FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, 32) to (batch, 2)."""
        out: Tensor = self.layer(x)
        return out

    def loss(self, predictions: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean squared distance from ``labels``, by default from ones."""
        return torch.nn.functional.mse_loss(predictions, torch.ones_like(predictions) if labels is None else labels)

    def step(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss(self(batch))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss."""
        return {"loss": self.step(batch)}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, under ``x``."""
        return {"x": self.step(batch)}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, under ``y``."""
        return {"y": self.step(batch)}

    def configure_optimizers(self) -> Any:
        """SGD, and a schedule per epoch."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]

    def train_dataloader(self) -> DataLoader[Tensor]:
        """64 batches of one sample."""
        return DataLoader(RandomDataset(_FEATURES, _SAMPLES))

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class ManualOptimBoringModel(BoringModel):
    """The same, stepping its optimiser itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step of the optimiser."""
        optimizer = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


class BoringDataModule(LightningDataModule):
    """Random data for :class:`BoringModel`, split in ``setup``."""

    def __init__(self) -> None:
        super().__init__()
        self.random_full = RandomDataset(_FEATURES, _SAMPLES * 4)

    def setup(self, stage: str) -> None:
        """Cut the 256 samples into four parts of 64, and take those that the stage needs."""
        parts = [Subset(self.random_full, range(_SAMPLES * i, _SAMPLES * (i + 1))) for i in range(4)]
        if stage == "fit":
            self.random_train = parts[0]
        if stage in ("fit", "validate"):
            self.random_val = parts[1]
        if stage == "test":
            self.random_test = parts[2]
        if stage == "predict":
            self.random_predict = parts[3]

    def train_dataloader(self) -> DataLoader[Any]:
        """64 batches of one sample."""
        return DataLoader(self.random_train)

    def val_dataloader(self) -> DataLoader[Any]:
        """64 batches of one sample."""
        return DataLoader(self.random_val)

    def test_dataloader(self) -> DataLoader[Any]:
        """64 batches of one sample."""
        return DataLoader(self.random_test)

    def predict_dataloader(self) -> DataLoader[Any]:
        """64 batches of one sample."""
        return DataLoader(self.random_predict)
