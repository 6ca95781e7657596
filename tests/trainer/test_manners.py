"""How the trainer behaves when things go wrong, and what it leaves alone."""

from __future__ import annotations

import signal
import traceback
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.dialects.callback import HookNameWarning
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl


class Module(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(batches=2):
    return DataLoader(torch.ones(batches * 2, 2), batch_size=2)


def trainer(**options):
    options = {
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        **options,
    }
    return hookbus.Trainer(**options)


class Boom(hookbus.Callback):
    """Raises in one hook."""

    def __init__(self, hook, error):
        setattr(self, hook, self.boom)
        self.error = error

    def boom(self, *args):
        raise self.error


class Told(hookbus.Callback):
    """Notes which exceptions it was told of."""

    def __init__(self):
        self.exceptions = []

    def on_exception(self, trainer, pl_module, exception):
        self.exceptions.append(exception)


class Closed:
    """Notes how each run was closed."""

    def __init__(self):
        self.calls = []

    @hookimpl
    def on_run_close(self, stage, exception):
        self.calls.append((stage, exception))


# -- exceptions --------------------------------------------------------------------------------------------------------


def test_every_on_exception_runs_and_the_first_error_leaves_with_the_others_as_notes():
    first, told = ValueError("first"), Told()
    callbacks = [Boom("on_train_batch_end", first), Boom("on_exception", KeyError("second")), told]
    with pytest.raises(ValueError, match="first") as caught:
        trainer(callbacks=callbacks).fit(Module(), data())
    assert caught.value is first
    assert told.exceptions == [first]
    assert any("KeyError" in note and "second" in note for note in caught.value.__notes__)


def test_the_plugin_that_raised_is_named_in_a_note():
    with pytest.raises(ValueError, match="x") as caught:
        trainer(callbacks=[Boom("on_train_start", ValueError("x"))]).fit(Module(), data())
    assert any("'Boom'" in note and "on_train_start" in note for note in caught.value.__notes__)


def test_on_exception_sees_the_traceback_of_the_users_line():
    lines = []

    class Look(hookbus.Callback):
        def on_exception(self, trainer, pl_module, exception):
            lines.append(traceback.extract_tb(exception.__traceback__)[-1].line)

    class Bad(Module):
        def training_step(self, batch, batch_idx):
            return self.net(batch[:, :1]).mean()

    with pytest.raises(RuntimeError, match="shapes"):
        trainer(callbacks=[Look()]).fit(Bad(), data())
    assert lines
    assert "linear" in lines[0].lower()


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), None])
def test_on_run_close_is_the_last_word_of_every_run(error):
    closed, told = Closed(), Told()
    run = trainer(plugins=[closed], callbacks=[told, *([] if error is None else [Boom("on_train_start", error)])])
    if error is None:
        run.fit(Module(), data())
        run.predict(Module(), data())
        assert closed.calls == [("fit", None), ("predict", None)]
        return
    with pytest.raises(type(error)):
        run.fit(Module(), data())
    assert closed.calls == [("fit", error)]
    assert told.exceptions == [error]
    assert run.state.status == "interrupted"


def test_teardown_is_not_called_after_an_exception_but_after_a_normal_end():
    calls = []

    class Down(hookbus.Callback):
        def teardown(self, trainer, pl_module, stage):
            calls.append(stage)

    with pytest.raises(ValueError, match="x"):
        trainer(callbacks=[Down(), Boom("on_train_start", ValueError("x"))]).fit(Module(), data())
    assert calls == []
    trainer(callbacks=[Down()]).fit(Module(), data())
    assert calls == ["fit"]


def test_ctrl_c_leaves_as_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt):
        trainer(callbacks=[Boom("on_train_batch_start", KeyboardInterrupt())]).fit(Module(), data())


def test_a_stop_iteration_in_user_code_is_an_error():
    class Ends(Module):
        def training_step(self, batch, batch_idx):
            return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        trainer().fit(Ends(), data())
    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_error_in_setup_reaches_on_exception():
    told = Told()
    with pytest.raises(ValueError, match="x"):
        trainer(callbacks=[told, Boom("setup", ValueError("x"))]).fit(Module(), data())
    assert len(told.exceptions) == 1


def test_signal_handlers_come_back_after_a_run():
    before = signal.getsignal(signal.SIGTERM)
    trainer().fit(Module(), data())
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_finishes_the_batch_and_leaves_with_143():
    class Term(hookbus.Callback):
        ended = 0

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                signal.raise_signal(signal.SIGTERM)

        def on_train_batch_end(self, *args):
            self.ended += 1

    previous = signal.signal(signal.SIGTERM, lambda *args: None)
    try:
        term, told = Term(), Told()
        with pytest.raises(SystemExit) as caught:
            trainer(callbacks=[term, told]).fit(Module(), data(4))
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert caught.value.code == 143
    assert term.ended == 2
    assert told.exceptions == [caught.value]


# -- the list of callbacks -----------------------------------------------------------------------------------------------


class Count(hookbus.Callback):
    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, *args):
        self.batches += 1


def test_the_users_list_is_never_touched():
    mine = [Count()]
    for _ in range(2):
        run = trainer(callbacks=mine, enable_progress_bar=True)
        run.callbacks.append(Count())
    assert len(mine) == 1


def test_the_trainers_list_is_plain_and_live():
    run = trainer()
    assert type(run.callbacks) is list
    early, late = Count(), Count()
    run.callbacks.append(early)

    class Append(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                trainer.callbacks.append(late)

    run.callbacks.append(Append())
    run.fit(Module(), data(4))
    assert early.batches == 4
    assert late.batches == 2  # from the next batch on


def test_a_callback_removes_itself_without_skipping_its_neighbour():
    class Once(hookbus.Callback):
        calls = 0

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.calls += 1
            trainer.callbacks.remove(self)

    once, neighbour = Once(), Count()
    trainer(callbacks=[once, neighbour]).fit(Module(), data(3))
    assert once.calls == 1
    assert neighbour.batches == 3


def test_a_replaced_and_reordered_list_counts():
    order = []

    class Say(hookbus.Callback):
        def __init__(self, name):
            self.name = name

        @property
        def state_key(self):
            return self.name

        def on_train_start(self, trainer, pl_module):
            order.append(self.name)

    run = trainer(callbacks=[Say("a"), Say("b")])
    run.callbacks = [Say("c"), *reversed(run.callbacks)]
    run.fit(Module(), data())
    assert order == ["c", "b", "a"]


def test_a_callback_added_in_setup_is_set_up_in_the_same_pass():
    stages = []

    class Late(hookbus.Callback):
        def setup(self, trainer, pl_module, stage):
            stages.append(stage)

    class Adds(hookbus.Callback):
        def setup(self, trainer, pl_module, stage):
            if not any(isinstance(callback, Late) for callback in trainer.callbacks):
                trainer.callbacks.append(Late())

    trainer(callbacks=[Adds()]).fit(Module(), data())
    assert stages == ["fit"]


def test_methods_assigned_on_instances_are_called():
    calls = []
    callback, module = hookbus.Callback(), Module()
    callback.on_train_start = lambda trainer, pl_module: calls.append("callback")
    step = module.training_step
    module.training_step = lambda batch, batch_idx: (calls.append("step"), step(batch, batch_idx))[1]
    trainer(callbacks=[callback]).fit(module, data(1))
    assert calls == ["callback", "step"]


def test_what_a_callback_patches_in_on_fit_start_is_used():
    calls = []

    class Patch(hookbus.Callback):
        def on_fit_start(self, trainer, pl_module):
            step = pl_module.training_step

            def traced(batch, batch_idx):
                calls.append(batch_idx)
                return step(batch, batch_idx)

            pl_module.training_step = traced

    trainer(callbacks=[Patch()]).fit(Module(), data(2))
    assert calls == [0, 1]


def test_misspelt_hooks_are_named():
    class Wrong(hookbus.Callback):
        def on_train_bacth_end(self, *args):
            pass

    with pytest.warns(HookNameWarning, match="on_train_bacth_end.*on_train_batch_end"):
        trainer(callbacks=[Wrong()])


def test_a_class_in_place_of_an_instance_is_refused():
    with pytest.raises(TypeError, match="instance, not the class"):
        trainer(callbacks=[Count])


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_a_module_without_a_step_is_refused():
    class Empty(hookbus.LightningModule):
        def configure_optimizers(self):
            return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    with pytest.raises(MisconfigurationException, match=r"training_step.*Empty does not define"):
        trainer().fit(Empty(), data())


def test_a_module_without_an_optimizer_is_refused():
    class Without(hookbus.LightningModule):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(MisconfigurationException, match=r"configure_optimizers"):
        trainer().fit(Without(), data())


@pytest.mark.parametrize("hook", ["training_step", "validation_step"])
def test_a_step_that_wants_the_iterator_of_the_loader_is_refused(hook):
    def step(self, dataloader_iter):
        raise AssertionError("never called")

    model = type("Fetching", (Module,), {hook: step})()
    with pytest.raises(
        MisconfigurationException, match=rf"Fetching\.{hook}\(\) takes dataloader_iter.*self, batch, batch_idx"
    ):
        trainer().fit(model, data())


def test_misspelt_methods_of_the_module_are_named_when_it_is_trained():
    class Slip(Module):
        def on_train_epoch_strat(self):
            raise AssertionError("never called")

    with pytest.warns(HookNameWarning, match=r"Slip\.on_train_epoch_strat.*'on_train_epoch_start'"):
        trainer().fit(Slip(), data())


def test_something_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match="must be a LightningModule, got Linear"):
        trainer().fit(torch.nn.Linear(1, 1), data())


def test_fit_without_data_says_what_to_pass():
    with pytest.raises(MisconfigurationException, match="pass train_dataloaders or a datamodule"):
        trainer().fit(Module())


def test_an_empty_loader_is_said_and_nothing_is_trained():
    run = trainer()
    with pytest.warns(UserWarning, match="train_dataloader is empty: expected at least one batch"):
        run.fit(Module(), DataLoader(torch.ones(0, 2)))
    assert run.global_step == 0


def test_something_that_is_no_loader_is_refused():
    with pytest.raises(TypeError, match="train_dataloader must give an iterable of batches"):
        trainer().fit(Module(), 7)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("text", "must return a scalar tensor.*got str"),
        ({"lost": torch.ones(1)}, "without a loss.*'lost'"),
        (torch.ones(3), r"one element.*shape \(3,\)"),
        ({"loss": 1.0}, "must be a tensor with one element.*got float"),
    ],
)
def test_a_step_that_returns_junk_is_refused(answer, message):
    class Junk(Module):
        def training_step(self, batch, batch_idx):
            return answer

    with pytest.raises(MisconfigurationException, match=message):
        trainer().fit(Junk(), data())


def test_a_batch_the_model_cannot_take_leaves_a_short_traceback():
    class Wrong(Module):
        def training_step(self, batch, batch_idx):
            image, label = batch, batch.label
            return image, label

    with pytest.raises(AttributeError, match="label") as caught:
        trainer().fit(Wrong(), data())
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "training_step"
    assert frames[-1].filename == __file__
    assert len(frames) <= 14
    assert any("module" in (frame.line or "") for frame in frames)  # the compiled frame says whose step it was


def test_a_second_fit_that_would_train_nothing_says_so():
    run, module = trainer(), Module()
    run.fit(module, data())
    with pytest.warns(UserWarning, match=r"trains nothing: this trainer has already done 1 epoch"):
        run.fit(module, data())
    run.fit_loop.max_epochs = 3
    run.fit(module, data())
    assert run.current_epoch == 3
    assert run.global_step == 6


def test_a_second_module_is_trained_from_the_start():
    run = trainer()
    run.fit(Module(), data())
    second = Module()
    before = second.net.weight.clone()
    run.fit(second, data())
    assert not torch.equal(before, second.net.weight)
    assert run.current_epoch == 1


def test_a_normal_run_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer().fit(Module(), data())


def test_an_unknown_argument_is_refused_by_name():
    with pytest.raises(TypeError, match="max_epoch"):
        hookbus.Trainer(max_epoch=3)
