"""What the module had still to do in a hook in which a checkpoint was saved."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus


class Moving(hookbus.LightningModule):
    """Its target follows its weight, in the two hooks that come after those of the callbacks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(1, 1)
        self.register_buffer("target", torch.zeros(()))
        self.modes = []

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch) - self.target).pow(2).mean()
        return {"loss": loss, "seen": batch.sum()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.target += outputs["seen"] + batch_idx + batch.mean()
        self.log("target", self.target, on_step=True, on_epoch=True)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch).mean())

    def on_validation_end(self):
        self.modes.append((self.training, torch.is_grad_enabled(), self.trainer.validating))
        self.target *= 0.5

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Saves(hookbus.Callback):
    def __init__(self, hook, at, path):
        self.left, self.path = at, path
        setattr(self, hook, self.save)

    def save(self, trainer, *args):
        if not trainer.sanity_checking:
            self.left -= 1
            if self.left == 0:
                trainer.save_checkpoint(self.path)


def fit(*callbacks, ckpt_path=None):
    model = Moving()
    trainer = hookbus.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, val_check_interval=2, num_sanity_val_steps=0, callbacks=list(callbacks),
    )  # fmt: skip
    data = torch.arange(8.0).view(8, 1)
    trainer.fit(model, DataLoader(data, batch_size=2), DataLoader(data, batch_size=4), ckpt_path=ckpt_path)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return model, metrics


@pytest.mark.parametrize(
    ("hook", "at"),
    [("on_train_batch_end", 1), ("on_train_batch_end", 6), ("on_validation_end", 1), ("on_validation_end", 2)],
)
def test_it_is_done_when_the_run_goes_on(hook, at, tmp_path):
    path = tmp_path / "x.ckpt"
    straight, wanted = fit(Saves(hook, at, path))
    resumed, metrics = fit(ckpt_path=path)
    assert torch.equal(straight.target, resumed.target)
    assert torch.equal(straight.net.weight, resumed.net.weight)
    assert metrics == wanted
    assert set(resumed.modes) == set(straight.modes) == {(False, False, True)}


def test_what_was_done_already_is_not_done_again(tmp_path):
    class SavesItself(Moving):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            super().on_train_batch_end(outputs, batch, batch_idx)
            if batch_idx == 1 and self.current_epoch == 0:
                self.trainer.save_checkpoint(tmp_path / "x.ckpt")

    trainer = hookbus.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False)
    model, data = SavesItself(), DataLoader(torch.arange(8.0).view(8, 1), batch_size=2)
    trainer.fit(model, data)
    resumed = Moving()
    other = hookbus.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False)
    other.fit(resumed, data, ckpt_path=tmp_path / "x.ckpt")
    assert torch.equal(model.target, resumed.target)
