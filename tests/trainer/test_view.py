"""What callbacks read of the trainer: the values were compared with those of Lightning 2.6.6 in the same run."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.callbacks import ModelCheckpoint
from hookbus.errors import MisconfigurationException
from hookbus.trainer.states import RunningStage, TrainerFn


class Module(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", float(self.current_epoch))

    def test_step(self, batch, batch_idx):
        self.log("weight", self.layer.weight.mean())

    def predict_step(self, batch, batch_idx):
        return self.layer.weight.item()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data():
    return DataLoader(torch.ones(5, 1))


@pytest.fixture
def make(tmp_path):
    def make(**options):
        silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return hookbus.Trainer(**{"default_root_dir": tmp_path, "enable_checkpointing": False, **silent, **options})

    return make


def counters(trainer):
    loop = trainer.fit_loop
    current, epochs = loop.epoch_loop.batch_progress.current, loop.epoch_progress.current
    return {
        "batch_idx": loop.epoch_loop.batch_idx,
        "total_batch_idx": loop.total_batch_idx,
        "stepped": loop.epoch_loop._batches_that_stepped,
        "steps": loop.epoch_loop.global_step,
        "batches": (current.ready, current.started, current.processed, current.completed),
        "total": loop.epoch_loop.batch_progress.total.ready,
        "last": loop.epoch_loop.batch_progress.is_last_batch,
        "epochs": (epochs.ready, epochs.started, epochs.processed, epochs.completed),
    }


def test_counters_of_the_loops(make):
    seen = {}

    class Reader(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.current_epoch == 0 and batch_idx == 3:
                seen["in a batch"] = counters(trainer)

        def on_validation_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                seen["validation"] = counters(trainer)

        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                seen["epoch end"] = counters(trainer)

    trainer = make(max_epochs=3, accumulate_grad_batches=2, callbacks=[Reader()], num_sanity_val_steps=0)
    seen["before"] = counters(trainer)
    trainer.fit(Module(), data(), data())
    seen["after"] = counters(trainer)

    def expected(batch_idx, total_batch_idx, stepped, steps, batches, total, last, epochs):
        return locals()

    assert seen == {
        "before": expected(-1, -1, 0, 0, (0, 0, 0, 0), 0, False, (0, 0, 0, 0)),
        "in a batch": expected(3, 3, 1, 2, (4, 4, 4, 3), 4, False, (1, 1, 0, 0)),
        "validation": expected(4, 9, 5, 6, (5, 5, 5, 5), 10, True, (2, 2, 1, 1)),
        "epoch end": expected(4, 9, 6, 6, (5, 5, 5, 5), 10, True, (2, 2, 2, 1)),
        "after": expected(4, 14, 9, 9, (5, 5, 5, 5), 15, True, (3, 3, 3, 3)),
    }


def test_the_number_of_batches_is_unknown_before_the_loader_was_asked_for(make):
    trainer = make(max_epochs=1)
    assert trainer.num_training_batches == trainer.fit_loop.max_batches == math.inf
    assert trainer.val_check_batch is None
    assert make(limit_train_batches=0).num_training_batches == 0
    trainer.fit(Module(), data())
    assert trainer.num_training_batches == trainer.fit_loop.max_batches == trainer.val_check_batch == 5


def test_private_names_that_packages_use(make):
    seen = []

    class Reader(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            seen.append(trainer._logger_connector.should_update_logs)

    trainer = make(
        max_epochs=1, callbacks=[ModelCheckpoint(), Reader()], enable_checkpointing=True, log_every_n_steps=2
    )
    trainer.fit(Module(), data())
    assert seen == [False, True, False, True, False]
    assert trainer._accelerator_connector.is_distributed is False
    assert trainer._accelerator_connector.strategy is trainer.strategy
    assert trainer._signal_connector.received_sigterm is False
    saver, reader = trainer.checkpoint_callback, trainer.callbacks[0]
    assert trainer._callback_connector._reorder_callbacks([saver, reader]) == [reader, saver]


def test_a_checkpoint_made_and_written_in_two_steps(make, tmp_path):
    trainer = make(max_epochs=1)
    trainer.fit(Module(), data())
    path = tmp_path / "sub" / "own.ckpt"
    trainer.strategy.save_checkpoint(trainer._checkpoint_connector.dump_checkpoint(weights_only=True), path)
    assert set(torch.load(path)["state_dict"]) == {"layer.weight", "layer.bias"}
    assert "optimizer_states" in trainer._checkpoint_connector.dump_checkpoint()


def test_init_module(make):
    with make(precision="64-true").init_module():
        layer = torch.nn.Linear(1, 1)
    assert layer.weight.dtype == torch.float64
    with pytest.raises(MisconfigurationException, match="empty_init"), make().init_module(empty_init=True):
        pass


def test_scaler(make):
    assert make().scaler is None


def test_callbacks_log_as_modules_do(make):
    class Logging(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.log("batch", float(batch_idx), on_step=True, on_epoch=True)

        def on_train_epoch_end(self, trainer, pl_module):
            self.log_dict({"epoch": 1.0})

    class WithItsOwn(hookbus.Callback):
        def __init__(self):
            self.heard = []

        def log(self, text):
            self.heard.append(text)

        def on_train_start(self, trainer, pl_module):
            self.log("mine")

    own = WithItsOwn()
    trainer = make(max_epochs=1, callbacks=[Logging(), own])
    trainer.fit(Module(), data())
    values = {name: value.item() for name, value in trainer.callback_metrics.items() if name != "loss"}
    assert values == {"batch": 2.0, "batch_step": 4.0, "batch_epoch": 2.0, "epoch": 1.0}
    assert own.heard == ["mine"]


def test_a_trial_run_has_its_checkpoint_callback_and_writes_nothing(make, tmp_path):
    trainer = make(
        fast_dev_run=True, callbacks=[ModelCheckpoint(dirpath=tmp_path / "saved")], enable_checkpointing=None
    )
    trainer.fit(Module(), data(), data())
    assert trainer.checkpoint_callback.best_model_path == ""
    assert not (tmp_path / "saved").exists() or not list((tmp_path / "saved").iterdir())
    assert make(fast_dev_run=True, enable_checkpointing=None).checkpoint_callback is not None


def test_validation_in_a_fit_leaves_tensors_that_autograd_takes(make):
    class Keeping(hookbus.Callback):
        def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            self.kept = batch * 2
            self.modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    callback = Keeping()
    trainer = make(max_epochs=1, callbacks=[callback])
    trainer.fit(Module(), data(), data())
    assert callback.modes == (False, False)
    assert not callback.kept.is_inference()
    trainer.validate(trainer.lightning_module, data(), verbose=False)
    assert callback.modes == (False, True)


def test_prediction_puts_the_modes_back(make):
    module = Module()
    module.layer.eval()
    make().predict(module, data())
    assert (module.training, module.layer.training) == (True, False)


def test_without_a_model_the_best_weights_are_evaluated(make, tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path, monitor="val", mode="min")  # "val" grows: the first epoch is the best
    trainer = make(max_epochs=3, callbacks=[keeper], enable_checkpointing=True)
    module = Module()
    trainer.fit(module, data(), data())
    best = torch.load(keeper.best_model_path)["state_dict"]["layer.weight"].item()
    last = module.layer.weight.item()
    assert best != last
    assert trainer.predict(module, data())[0] == last
    with pytest.warns(UserWarning, match=r"test\(\) was called without a model: it takes the best checkpoint"):
        results = trainer.test(dataloaders=data(), verbose=False)
    assert results == [{"weight": pytest.approx(best)}]
    assert trainer.ckpt_path == keeper.best_model_path


def test_without_a_model_and_a_checkpoint_the_weights_stay(make):
    trainer = make(max_epochs=1)
    trainer.fit(Module(), data())
    weight = trainer.lightning_module.layer.weight.item()
    assert trainer.predict(dataloaders=data())[0] == weight


def test_words_are_found_in_dictionaries():
    assert {"fit": 1}[TrainerFn.FITTING] == {TrainerFn.FITTING: 1}["fit"] == 1
    assert {"train": 2}[RunningStage.TRAINING] == 2


@pytest.mark.parametrize(("asked", "shown"), [(True, True), (1, True), (3, 3), (False, False), (0, False)])
def test_a_trial_run_of_a_single_batch_is_shown_as_true(tmp_path, asked, shown):
    run = hookbus.Trainer(fast_dev_run=asked, accelerator="cpu", default_root_dir=tmp_path, enable_progress_bar=False)
    assert (run.fast_dev_run, type(run.fast_dev_run)) == (shown, type(shown))
