"""A long epoch holds no more than a short one, whatever is logged."""

from __future__ import annotations

import gc
import tracemalloc

import torch

import hookbus


class Net(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).pow(2).mean()
        self.log("number", 1.0, on_step=True, on_epoch=True)
        self.log("double", loss.double(), on_step=True, on_epoch=True)  # kept in a buffer of tensors
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return {"loss": loss, "more": batch}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Batches:
    def __len__(self):
        return 800

    def __iter__(self):
        for _ in range(800):
            yield torch.ones(1, 2)


class Measures(hookbus.Callback):
    def __init__(self):
        self.held = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 100:
            tracemalloc.start()
        if batch_idx in (250, 750):  # the buffers of logged tensors have been full and were emptied
            gc.collect()
            tensors = sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)
            self.held[batch_idx] = (tensors, tracemalloc.get_traced_memory()[0])


def test_memory_does_not_grow_with_the_steps(tmp_path):
    measures = Measures()
    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, callbacks=[measures],
        default_root_dir=tmp_path, log_every_n_steps=10**6,
    )  # fmt: skip
    try:
        trainer.fit(Net(), Batches())
    finally:
        tracemalloc.stop()
    (few, before), (many, after) = measures.held.values()
    assert abs(many - few) <= 1
    assert after - before < 20_000
