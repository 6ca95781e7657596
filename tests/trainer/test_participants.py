"""What a module and callbacks are told."""

from __future__ import annotations

import pickle
import warnings
from datetime import timedelta

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.errors import PossibleUserWarning
from hookbus.loggers import CSVLogger


class Module(hookbus.LightningModule):
    """The least that can be trained."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def numbers(*values):
    return DataLoader(torch.tensor(values, dtype=torch.float32))


def trainer(tmp_path, **options):
    quiet = {
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "logger": False,
    }
    return hookbus.Trainer(**{"max_epochs": 1, "accelerator": "cpu", "default_root_dir": tmp_path, **quiet, **options})


class Told(Module):
    """Notes which loader it is told of; its defaults tell whether it is."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def validation_step(self, batch, batch_idx, dataloader_idx=None):
        self.seen.append(dataloader_idx)

    def on_validation_batch_end(self, *args):
        self.seen.append(args[3:])

    def predict_step(self, *args):
        self.seen.append(args[2:])


class Listener(hookbus.Callback):
    """The same as a callback."""

    def __init__(self):
        self.seen = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=None):
        self.seen.append(dataloader_idx)

    def on_predict_batch_start(self, *args):
        self.seen.append(args[4:])


def test_with_a_single_loader_defaults_of_ones_own_hold(tmp_path):
    module, callback = Told(), Listener()
    run = trainer(tmp_path, callbacks=[callback])
    run.validate(module, numbers(1))
    run.predict(module, numbers(1))
    assert module.seen == [None, (), ()]
    assert callback.seen == [None, ()]


def test_with_several_loaders_everybody_is_told_which(tmp_path):
    module, callback = Told(), Listener()
    run = trainer(tmp_path, callbacks=[callback])
    run.fit(module, numbers(1), [numbers(1), numbers(2)])
    assert module.seen[-4:] == [0, (0,), 1, (1,)]
    assert callback.seen[-2:] == [0, 1]
    run.predict(module, [numbers(1), numbers(2)])
    assert module.seen[-2:] == callback.seen[-2:] == [(0,), (1,)]
    run.validate(module, numbers(1))
    assert (module.seen[-2:], callback.seen[-1]) == ([None, ()], None)


def test_the_stage_is_passed_by_name(tmp_path):
    stages = []

    class Named(Module):
        def setup(self, *, stage):
            stages.append(stage)

    class Any(hookbus.Callback):
        def teardown(self, trainer, pl_module, **kwargs):
            stages.append(kwargs)

    trainer(tmp_path, callbacks=[Any()]).fit(Named(), numbers(1))
    assert stages == ["fit", {"stage": "fit"}]


def test_arguments_of_clipping_are_passed_by_name(tmp_path):
    seen = []

    class Swapped(Module):
        def configure_gradient_clipping(self, optimizer, gradient_clip_algorithm=None, gradient_clip_val=None):
            seen.append((gradient_clip_val, gradient_clip_algorithm))

    trainer(tmp_path, gradient_clip_val=0.5, gradient_clip_algorithm="value").fit(Swapped(), numbers(1))
    assert seen == [(0.5, "value")]


@pytest.mark.parametrize("entry", ["fit", "validate"])
def test_gradients_of_before_are_gone_when_the_loop_begins(tmp_path, entry):
    class Looks(Module):
        def validation_step(self, batch, batch_idx):
            assert self.weight.grad is None or entry == "fit"

        def on_train_start(self):
            assert self.weight.grad is None

    module = Looks()
    module.weight.grad = torch.ones(())
    getattr(trainer(tmp_path), entry)(module, numbers(1))


def test_who_does_not_say_how_long_to_train_is_told(tmp_path):
    class Stops(Module):
        def training_step(self, batch, batch_idx):
            self.trainer.should_stop = True
            return super().training_step(batch, batch_idx)

    with pytest.warns(PossibleUserWarning, match="this fit takes 1000 epochs"):
        trainer(tmp_path, max_epochs=None).fit(Stops(), numbers(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trainer(tmp_path, max_epochs=None)
        run.fit_loop.max_epochs = 1
        run.fit(Stops(), numbers(1))
        trainer(tmp_path, max_epochs=None, max_steps=1).fit(Stops(), numbers(1))


@pytest.mark.parametrize(
    ("interval", "options", "after"),
    [
        (timedelta(0), {}, [1, 2, 3, 4]),
        (timedelta(0), {"check_val_every_n_epoch": 2}, [3, 4]),
        (timedelta(days=1), {}, []),
        (timedelta(days=1), {"check_val_every_n_epoch": None}, []),
    ],
)
def test_validations_by_the_clock(tmp_path, interval, options, after):
    class Validated(Told):
        def on_validation_start(self):
            self.seen.append(self.trainer.global_step)

        def validation_step(self, batch, batch_idx):
            """Nothing to be noted."""

        on_validation_batch_end = hookbus.LightningModule.on_validation_batch_end

    module = Validated()
    run = trainer(tmp_path, max_epochs=2, val_check_interval=interval, num_sanity_val_steps=0, **options)
    run.fit(module, numbers(1, 2), numbers(1))
    assert module.seen == after
    assert (run.val_check_interval, run.val_check_batch) == (interval, None)


def test_every_sample_is_predicted_whoever_made_the_batches(tmp_path):
    class Copies(Module):
        def predict_step(self, batch, batch_idx):
            return batch

    epochs = []

    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            epochs.append(epoch)

    batches = torch.utils.data.BatchSampler(Sampler(range(5)), 2, drop_last=True)
    predictions = trainer(tmp_path).predict(Copies(), DataLoader(range(5), batch_sampler=batches))
    assert [batch.tolist() for batch in predictions] == [[0, 1], [2, 3], [4]]
    assert epochs == [0]


def test_a_trainer_with_loggers_can_be_pickled_before_and_after_a_fit(tmp_path):
    run = trainer(tmp_path, logger=CSVLogger(tmp_path))
    assert pickle.loads(pickle.dumps(run)).max_epochs == 1
    run.fit(Module(), numbers(1))
    run.lightning_module = run.strategy.lightning_module = None  # its class is local to this test's module
    assert pickle.loads(pickle.dumps(run)).global_step == 1


def test_several_values_are_no_single_one(tmp_path):
    class Logs(Module):
        def __init__(self):
            super().__init__()
            self.several = torch.nn.ModuleDict({"a": torch.nn.Identity()})

        def training_step(self, batch, batch_idx):
            self.log("several", self.several)

    with pytest.raises(ValueError, match=r"takes one value, and a ModuleDict has several: use self.log_dict\(\)"):
        trainer(tmp_path).fit(Logs(), numbers(1))
