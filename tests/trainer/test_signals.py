"""SIGTERM: noticed while a run lasts, honoured at its points, handed on to whoever was there before."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.trainer.signals import SIGTERMException, sigterm_noticed


@pytest.fixture(autouse=True)
def handled():
    """Calls of a handler that was there before; no SIGTERM may end the tests."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(signum))
    yield calls
    signal.signal(signal.SIGTERM, before)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_is_noticed_and_handed_on(handled):
    trainer = SimpleNamespace(received_sigterm=True)
    with sigterm_noticed(trainer):
        assert not trainer.received_sigterm
        terminate()
        assert trainer.received_sigterm
    assert handled == [signal.SIGTERM]


def test_the_former_handler_comes_back_also_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), sigterm_noticed(SimpleNamespace()):
        1 / 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_default_handler_does_not_end_the_process_while_a_run_lasts():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    trainer = SimpleNamespace()
    with sigterm_noticed(trainer):
        terminate()
    assert trainer.received_sigterm
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_leaves_the_handlers_alone():
    found = []

    def run():
        before = signal.getsignal(signal.SIGTERM)
        with sigterm_noticed(trainer := SimpleNamespace()):
            found.append((signal.getsignal(signal.SIGTERM) is before, trainer.received_sigterm))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(True, False)]


def test_the_exception_is_an_exit_with_143():
    assert issubclass(SIGTERMException, SystemExit)
    assert SIGTERMException().code == 143


class Module(hookbus.LightningModule):
    """Gets SIGTERM in one of its steps."""

    def __init__(self, where, at=0):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.where, self.at, self.done = where, at, []

    def step(self, where, batch_idx):
        if (where, batch_idx) == (self.where, self.at):
            terminate()

    def training_step(self, batch, batch_idx):
        self.step("train", batch_idx)
        return self.net(batch).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.done.append(f"train {batch_idx}")

    def validation_step(self, batch, batch_idx):
        self.step("validate", batch_idx)

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.done.append(f"validate {batch_idx}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


LOADER = DataLoader(torch.ones(6, 2), batch_size=2)


def make_trainer(**options):
    return hookbus.Trainer(
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        **options,
    )


@pytest.mark.parametrize(
    ("where", "at", "done"),
    [
        ("train", 1, ["train 0", "train 1"]),
        ("train", 2, ["train 0", "train 1", "train 2", "validate 0"]),
        ("validate", 1, ["train 0", "train 1", "train 2", "validate 0", "validate 1"]),
    ],
)
def test_a_fit_ends_after_the_batch_at_hand(where, at, done):
    module = Module(where, at)
    with pytest.raises(SIGTERMException):
        make_trainer().fit(module, LOADER, LOADER)
    assert module.done == done


def test_on_exception_hears_of_it():
    heard = []

    class Listen(hookbus.Callback):
        def on_exception(self, trainer, pl_module, exception):
            heard.append((type(exception), trainer.received_sigterm, trainer.global_step))

    with pytest.raises(SIGTERMException):
        make_trainer(callbacks=[Listen()]).fit(Module("train", 1), LOADER)
    assert heard == [(SIGTERMException, True, 2)]


def test_the_next_run_is_a_new_one():
    trainer, module = make_trainer(), Module("train", 1)
    with pytest.raises(SIGTERMException):
        trainer.fit(module, LOADER)
    module.where = "nowhere"
    trainer.fit(module, LOADER)
    assert trainer.state.finished
