"""The loop never waits for the device within a step: no ``.item()``, no copy to the host, no truth value of a tensor."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils.data import DataLoader

import hookbus

#: What makes the host wait for an accelerator's result.
WAITS = {"item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "is_nonzero", "nonzero"}
waited: Counter[str] = Counter()


class OnDevice(torch.Tensor):
    """Stands for a tensor on an accelerator: whatever is computed from it is of its kind, and waiting is counted."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in WAITS:
            waited[name] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Module(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).pow(2).mean()
        assert isinstance(loss, OnDevice)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch.as_subclass(OnDevice)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Watch(hookbus.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        waited.clear()

    def on_train_epoch_end(self, trainer, pl_module):
        self.in_the_epoch = dict(waited)


def test_steps_with_logging_accumulation_and_clipping_never_wait(tmp_path):
    watch = Watch()
    trainer = hookbus.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[watch],
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        log_every_n_steps=1000,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), DataLoader(torch.ones(40, 2), batch_size=2))
    assert watch.in_the_epoch == {}
    assert trainer.callback_metrics["loss_epoch"].item() >= 0  # a decision asks, and waits, once


def test_the_watch_would_notice():
    waited.clear()
    float(torch.ones(1).as_subclass(OnDevice).sum().item())
    assert waited["item"] == 1
