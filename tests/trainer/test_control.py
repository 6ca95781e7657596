"""Requests to the loop: what they do, when they are honoured, what is kept of them."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import hookbus
from hookbus.trainer.control import Control, Request


class Module(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [StepLR(optimizer, 1, gamma=0.5)]


class Log(hookbus.Callback):
    """Writes down what happens."""

    def __init__(self):
        self.lines = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.lines.append(f"batch {batch_idx}")

    def on_validation_start(self, trainer, pl_module):
        self.lines.append("validation")

    def on_train_epoch_end(self, trainer, pl_module):
        self.lines.append("end")


class Asks(hookbus.Callback):
    """Asks for something in one hook: at one batch of the first epoch, where the hook is told of batches."""

    def __init__(self, what, hook="on_train_batch_start", at=1):
        self.what, self.at = what, at
        setattr(self, hook, self.ask)

    def ask(self, trainer, pl_module, *args):
        told = [a for a in args if isinstance(a, int)]
        if trainer.current_epoch == 0 and (not told or told[0] == self.at):
            getattr(trainer.control, self.what)("because")


def fit(asks, *, val=1, **options):
    trainer = hookbus.Trainer(
        callbacks=[asks, Log()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        num_sanity_val_steps=0,
        **{"max_epochs": 1, **options},
    )
    loader = DataLoader(torch.ones(8, 2), batch_size=2)
    trainer.fit(Module(), loader, [DataLoader(torch.ones(2, 2), batch_size=2)] * val or None)
    return trainer


def log(trainer):
    return trainer.callbacks[1].lines


def learning_rate(trainer):
    return trainer.optimizers[0].param_groups[0]["lr"]


def test_requests_are_kept_with_reason_and_step():
    trainer = fit(Asks("stop_epoch", at=2))
    assert trainer.control.history == [Request("stop_epoch", "because", 2)]


def test_a_skipped_batch_is_not_trained():
    trainer = fit(Asks("skip_batch"))
    assert log(trainer) == ["batch 0", "batch 2", "batch 3", "validation", "end"]
    assert trainer.global_step == 3


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_before_zero_grad", "on_train_batch_end"])
def test_an_epoch_that_is_stopped_is_validated_and_its_scheduler_steps(hook):
    trainer = fit(Asks("stop_epoch", hook, at=0), max_epochs=2)
    whole = ["batch 0", "batch 1", "batch 2", "batch 3", "validation", "end"]
    assert log(trainer) == ["batch 0", "validation", "end", *whole]
    assert learning_rate(trainer) == 0.25  # one step of the scheduler in each epoch


def test_stopping_an_epoch_at_its_last_batch_changes_nothing():
    trainer = fit(Asks("stop_epoch", "on_train_batch_end", at=3))
    assert log(trainer) == ["batch 0", "batch 1", "batch 2", "batch 3", "validation", "end"]
    assert learning_rate(trainer) == 0.5


def test_an_epoch_stopped_inside_of_a_window_ends_with_a_step():
    trainer = fit(Asks("stop_epoch", at=0), accumulate_grad_batches=4)
    assert trainer.global_step == 1


def test_a_validation_on_request_comes_after_the_batch():
    trainer = fit(Asks("evaluate", "on_before_zero_grad"))
    assert log(trainer) == [*(w for i in range(4) for w in (f"batch {i}", "validation")), "end"]


def test_a_validation_without_data_is_not_run():
    assert "validation" not in log(fit(Asks("evaluate"), val=0))


def test_stop_waits_for_the_minimum():
    assert fit(Asks("stop"), max_epochs=3, min_epochs=2).current_epoch == 2
    assert fit(Asks("stop"), max_epochs=3).global_step == 2


def test_should_stop_is_the_same_request():
    trainer = fit(Asks("stop"))
    assert trainer.should_stop
    trainer.should_stop = False
    assert not trainer.control.should_stop


def test_a_new_run_starts_without_requests():
    trainer = fit(Asks("stop"), max_epochs=2)
    assert trainer.control.history
    trainer.callbacks.clear()
    trainer.fit(trainer.lightning_module, DataLoader(torch.ones(8, 2), batch_size=2))
    assert trainer.control.history == []
    assert trainer.current_epoch == 2


def test_each_request_is_honoured_once():
    control = Control()
    for what, take in (
        ("skip_batch", control.take_skip),
        ("stop_epoch", control.take_stop_epoch),
        ("evaluate", control.take_evaluate),
        ("save", control.take_save),
    ):
        assert not take()
        getattr(control, what)()
        assert take()
        assert not take()
    assert [request.what for request in control.history] == ["skip_batch", "stop_epoch", "evaluate", "save"]
