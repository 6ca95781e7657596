"""What a module and callbacks are told."""

from __future__ import annotations

import pickle
import warnings
from datetime import timedelta

import pytest
import torch
from tests.trainer.least import Module, numbers, trainer
from torch.utils.data import DataLoader

import hookbus
from hookbus.errors import PossibleUserWarning
from hookbus.loggers import CSVLogger


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


class Stepping(Module):
    """Notes what its steps are called with."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append("old")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.seen.append("old")

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        self.seen.append("old")
        return batch


class Assigning(hookbus.Callback):
    """After a batch it puts methods on objects."""

    def __init__(self, when, assign):
        self.when, self.assign = when, assign

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.when:
            self.assign(trainer, pl_module)

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end


class Heard(hookbus.Callback):
    """Notes the batches that it hears of, through whatever method it has."""

    def __init__(self):
        self.batches = []

    def hear(self, *args):
        self.batches.append(args[-1])


STEPS = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}
WORDS = {"fit": "train", "validate": "validation", "test": "test", "predict": "predict"}


def run(fn, module, data, tmp_path, *callbacks, **options):
    made = trainer(tmp_path, callbacks=list(callbacks), **options)
    getattr(made, fn)(
        module, **(data if isinstance(data, dict) else {"dataloaders" if fn != "fit" else "train_dataloaders": data})
    )
    return made


@pytest.mark.parametrize("fn", STEPS)
def test_a_step_that_is_assigned_in_the_middle_is_the_one_of_the_next_batch(fn, tmp_path):
    module = Stepping()

    def new(batch, batch_idx):
        module.seen.append("new")
        return (module.weight * batch).mean()

    def newer(batch, batch_idx):
        module.seen.append("newer")
        return (module.weight * batch).mean()

    first = Assigning(0, lambda trainer, pl_module: setattr(pl_module, STEPS[fn], new))
    second = Assigning(1, lambda trainer, pl_module: setattr(pl_module, STEPS[fn], newer))
    third = Assigning(2, lambda trainer, pl_module: delattr(pl_module, STEPS[fn]))
    run(fn, module, numbers(1.0, 2.0, 3.0, 4.0, 5.0), tmp_path, first, second, third)
    assert module.seen == ["old", "new", "newer", "old", "old"]


@pytest.mark.parametrize("fn", STEPS)
def test_callbacks_and_their_methods_take_part_from_the_next_batch_on(fn, tmp_path):
    assigned, appended = Heard(), Heard()
    hook = f"on_{WORDS[fn]}_batch_end"
    setattr(appended, hook, appended.hear)

    def assign(trainer, pl_module):
        setattr(assigned, hook, assigned.hear)
        trainer.callbacks.append(appended)

    run(fn, Stepping(), numbers(*map(float, range(5))), tmp_path, Assigning(1, assign), assigned)
    assert len(assigned.batches) == len(appended.batches) == 3


def test_late_in_a_long_epoch_it_takes_some_batches_until_a_callbacks_method_is_seen(tmp_path):
    late = Heard()
    assign = Assigning(20, lambda trainer, pl_module: setattr(late, "on_train_batch_end", late.hear))
    run("fit", Stepping(), numbers(*map(float, range(40))), tmp_path, assign, late)
    assert late.batches == list(range(32, 40))


def test_methods_of_a_data_module_that_are_assigned_count_from_the_next_epoch_on(tmp_path):
    seen = []

    class Data(hookbus.LightningDataModule):
        def train_dataloader(self):
            seen.append("old")
            return numbers(1.0)

    data = Data()

    class Assign(hookbus.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 0:
                data.train_dataloader = lambda: seen.append("new") or numbers(2.0)
                data.on_after_batch_transfer = lambda batch, dataloader_idx: seen.append("transfer") or batch

    run("fit", Stepping(), {"datamodule": data}, tmp_path, Assign(), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    assert seen == ["old", "new", "transfer"]


def test_what_is_no_callback_is_refused_when_it_is_found_in_the_list(tmp_path):
    append = Assigning(0, lambda trainer, pl_module: trainer.callbacks.append(5))
    with pytest.raises(TypeError, match=r"callbacks must be hookbus.Callback objects, got int: 5"):
        run("fit", Stepping(), numbers(1.0, 2.0), tmp_path, append)
