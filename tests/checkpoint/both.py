"""One training for hookbus and for Lightning: data in a fixed order, and whatever has a place of its own in a checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

EPOCHS, BATCHES = 4, 5


def classes(root: Any) -> tuple[Any, Any, Any]:
    """Module, data module and a callback with state, derived from those of ``root``: hookbus or ``lightning.pytorch``."""

    class Net(root.LightningModule):
        def __init__(self, width: int = 3, rate: float = 0.05) -> None:
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(1)
            self.inner, self.outer = torch.nn.Linear(2, width), torch.nn.Linear(width, 1)
            self.norm = torch.nn.BatchNorm1d(width)

        def loss(self, batch: Any) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.outer(self.norm(self.inner(x))), y)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.loss(batch))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.rate)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["from_the_module"] = [1, "a"]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.got = checkpoint["from_the_module"]

    class Data(root.LightningDataModule):
        def __init__(self, seed: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.asked = 0

        def _loader(self) -> Any:
            generator = torch.Generator().manual_seed(self.hparams.seed)
            rows = [
                (torch.randn(2, generator=generator), torch.randn(1, generator=generator)) for _ in range(4 * BATCHES)
            ]
            return DataLoader(rows, batch_size=4)  # type: ignore[arg-type]

        def train_dataloader(self) -> Any:
            self.asked += 1
            return self._loader()

        def val_dataloader(self) -> Any:
            return self._loader()

        def state_dict(self) -> dict[str, Any]:
            return {"asked": self.asked}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.asked = state_dict["asked"]

    class Tally(root.Callback):
        """Counts batches; ``restored`` is the count that it got from a checkpoint."""

        def __init__(self) -> None:
            self.batches = 0
            self.restored: int | None = None

        def on_train_batch_end(self, *args: Any) -> None:
            self.batches += 1

        def state_dict(self) -> dict[str, Any]:
            return {"batches": self.batches}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.batches = self.restored = state_dict["batches"]

    return Net, Data, Tally


def fit(
    root: Any, folder: Path, *, epochs: int = EPOCHS, every: int | None = None, ckpt_path: Any = None, **options: Any
) -> Any:
    """Train, keep all checkpoints in ``folder``, and give the trainer.

    Args:
        root: hookbus or ``lightning.pytorch``.
        folder: for the checkpoints.
        epochs: ``max_epochs``.
        every: steps between checkpoints; None for one per epoch.
        ckpt_path: from which to go on.
        options: further ones of ``fit``.
    """
    net, data, tally = classes(root)
    saver = root.callbacks.ModelCheckpoint(folder, "{epoch}-{step}", save_top_k=-1, every_n_train_steps=every)
    stopper = root.callbacks.EarlyStopping("val_loss", patience=50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = root.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0, callbacks=[tally(), stopper, saver],
        )  # fmt: skip
        trainer.fit(net(), datamodule=data(), ckpt_path=ckpt_path, **options)
    return trainer


def outcome(trainer: Any) -> dict[str, Any]:
    """What two trainings must have in common, as JSON can hold it."""
    tally = next(callback for callback in trainer.callbacks if type(callback).__name__ == "Tally")
    return {
        "weights": {name: value.tolist() for name, value in trainer.lightning_module.state_dict().items()},
        "moments": [state["exp_avg"].tolist() for state in trainer.optimizers[0].state_dict()["state"].values()],
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "global_step": trainer.global_step,
        "current_epoch": trainer.current_epoch,
        "batches": tally.batches,
        "restored": tally.restored,
        "asked": trainer.datamodule.asked,
        "stopper": round(float(trainer.early_stopping_callback.best_score), 6),
        "got": getattr(trainer.lightning_module, "got", None),
    }
