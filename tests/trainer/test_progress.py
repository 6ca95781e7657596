"""The counters: what they say during a run, and how they are stored."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.trainer.progress import Progress


def test_counters_survive_a_checkpoint():
    progress = Progress(epoch=2, epochs_trained=2, global_step=14, logging_step=7, batch=3, epoch_started=True)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_the_state_is_plain_numbers():
    assert all(type(value) in (int, bool) for value in Progress().state_dict().values())


def test_absent_counters_keep_their_value_and_unknown_ones_are_refused():
    progress = Progress(epoch=1)
    progress.load_state_dict({"global_step": 3})
    assert (progress.epoch, progress.global_step) == (1, 3)
    with pytest.raises(ValueError, match=r"no counter\(s\) flux, warp; the file is of a newer version"):
        progress.load_state_dict({"warp": 1, "flux": 2})


def test_a_new_epoch_begins_at_its_first_batch():
    progress = Progress(batch=4, batch_trained=4, batch_done=4, is_last_batch=True)
    progress.begin_epoch()
    assert (progress.batch, progress.batch_idx, progress.is_last_batch, progress.mid_epoch) == (0, -1, False, True)


def test_a_batch_that_was_never_trained_is_taken_again():
    progress = Progress(batch=4, batch_trained=3, batch_done=3, total_batches=9, epoch_started=True)
    assert progress.mid_epoch
    progress.drop_batch()
    assert (progress.batch, progress.total_batches) == (3, 8)


def test_counters_in_each_hook():
    seen = []

    class Look(hookbus.Callback):
        def look(self, trainer, hook):
            p = trainer.progress
            row = (hook, p.epoch, p.epochs_trained, p.global_step, p.batch, p.batch_trained, p.batch_done)
            seen.append((*row, p.is_last_batch))

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.look(trainer, "start")

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.look(trainer, "end")

        def on_validation_end(self, trainer, pl_module):
            self.look(trainer, "validation")

        def on_train_epoch_end(self, trainer, pl_module):
            self.look(trainer, "epoch")

    class Module(hookbus.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            return self.net(batch).mean()

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = hookbus.Trainer(
        max_epochs=1,
        callbacks=[Look()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        num_sanity_val_steps=0,
    )
    loader = DataLoader(torch.ones(4, 2), batch_size=2)
    trainer.fit(Module(), loader, loader)
    assert seen == [
        ("start", 0, 0, 0, 1, 0, 0, False),
        ("end", 0, 0, 1, 1, 1, 0, False),
        ("start", 0, 0, 1, 2, 1, 1, True),
        ("end", 0, 0, 2, 2, 2, 1, True),
        ("validation", 0, 0, 2, 2, 2, 1, True),
        ("epoch", 0, 1, 2, 2, 2, 2, True),
    ]
    assert (trainer.current_epoch, trainer.global_step, trainer.progress.total_batches) == (1, 2, 2)
