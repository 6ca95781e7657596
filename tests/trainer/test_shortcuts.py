"""The loop's shortcuts give what the plain way through the hooks gives, and end where somebody else has a say."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import hookbus
from hookbus.markers import hookimpl
from hookbus.trainer.shortcuts import Shortcuts

#: Hooks for which there is a shortcut, or which a shortcut passes by.
CONCERNED = (
    "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer", "optimizer_step", "backward",
    "optimizer_zero_grad", "configure_gradient_clipping", "on_train_batch_end", "on_before_optimizer_step",
)  # fmt: skip


class Net(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch).pow(2).mean()
        self.log("loss", loss, on_epoch=True)
        return loss if batch_idx % 2 else {"loss": loss, "index": batch_idx}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}]


def overriding(hook, seen):
    """A module that overrides one hook, calling the base's."""

    def method(self, *args, **kwargs):
        seen.append(hook)
        return getattr(hookbus.LightningModule, hook)(self, *args, **kwargs)

    return type("Overriding", (Net,), {hook: method})()


def plugin(hook, seen, *, wrapper):
    """A plugin that implements one hook without changing anything."""

    def observe(self, trainer):
        seen.append(f"plugin {hook}")

    def around(self, trainer):
        seen.append(f"plugin {hook}")
        return (yield)

    body = hookimpl(wrapper=True)(around) if wrapper else hookimpl(observe)
    return type("Plugin", (), {hook: body})()


class Late(hookbus.Callback):
    """Registers a plugin in the middle of the training."""

    def __init__(self, late, batch):
        self.late, self.batch = late, batch

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == self.batch:
            trainer.bus.register(self.late)


def outcome(model, seen, plugins, callbacks, **options):
    """Everything that a fit leaves behind."""
    torch.manual_seed(1)
    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, plugins=plugins, callbacks=callbacks, **options,
    )  # fmt: skip
    trainer.fit(model, DataLoader(torch.randn(12, 2), batch_size=2))
    weights = [parameter.tolist() for parameter in model.parameters()]
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return weights, metrics, copy.copy(trainer.progress), trainer.optimizers[0].state_dict()["state"][0], list(seen)


@settings(max_examples=15, deadline=None)
@given(
    overridden=st.sampled_from(("nothing", *CONCERNED)),
    plugged=st.sampled_from(("nothing", *CONCERNED)),
    wrapper=st.booleans(),
    late=st.one_of(st.none(), st.integers(0, 5)),
    options=st.fixed_dictionaries(
        {
            "accumulate_grad_batches": st.integers(1, 3),
            "gradient_clip_val": st.sampled_from((None, 0.05)),
            "precision": st.sampled_from(("32-true", "64-true", "bf16-mixed")),
            "max_steps": st.sampled_from((-1, 3)),
        }
    ),
)
def test_both_ways_give_the_same(overridden, plugged, wrapper, late, options):
    results = []
    for plain in (False, True):
        seen = []
        model = Net() if overridden == "nothing" else overriding(overridden, seen)
        added = [] if plugged == "nothing" else [plugin(plugged, seen, wrapper=wrapper)]
        callbacks = [] if late is None else [Late(added[0], late)] if added else []
        with pytest.MonkeyPatch.context() as patch:
            if plain:
                patch.setattr(Shortcuts, "begin", lambda self: None)
            results.append(outcome(model, seen, [] if callbacks else added, callbacks, **options))
    fast, slow = results
    assert fast[:3] == slow[:3]
    assert fast[4] == slow[4]
    assert torch.equal(fast[3]["momentum_buffer"], slow[3]["momentum_buffer"])


@pytest.mark.parametrize("hook", ["optimizer_step", "backward", "optimizer_zero_grad", "transfer_batch_to_device"])
def test_the_clock_and_the_monitor_see_the_hook(hook):
    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    data, heard = DataLoader(torch.randn(4, 2), batch_size=2), []
    with trainer.bus.timed() as timing:
        trainer.fit(Net(), data)
    assert timing.spent[hook, "module"].calls == 2
    undo = trainer.bus.add_hookcall_monitoring(lambda name, *_: heard.append(name), lambda *_: None)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Net(), data)
    undo()
    assert heard.count(hook) == heard.count("on_train_batch_end") == 4


def test_logging_in_a_gradient_hook_still_has_a_hook_to_belong_to():
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            out = self.net(batch)
            out.register_hook(lambda grad: self.log("grad", grad.norm(), on_epoch=True))
            return out.pow(2).mean()

    results = outcome(Logs(), [], [], [])
    assert {"grad", "grad_step", "grad_epoch"} <= results[1].keys()


def test_an_optimizer_whose_step_was_replaced_is_stepped_by_what_replaced_it():
    class Counts(hookbus.Callback):
        calls = 0

        def on_train_start(self, trainer, pl_module):
            wrapped = pl_module.optimizers()
            step = wrapped.step

            def counting(*args, **kwargs):
                self.calls += 1
                return step(*args, **kwargs)

            wrapped.step = counting

    counts = Counts()
    outcome(Net(), [], [], [counts])
    assert counts.calls == 6


def test_nothing_is_left_behind_by_a_run_and_a_copy_looks_for_itself():
    trainer = hookbus.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    watchers = {hook.name: len(hook.watchers) for hook in vars(trainer.bus.hook).values()}
    trainer.fit(Net(), DataLoader(torch.randn(4, 2), batch_size=2))
    assert {hook.name: len(hook.watchers) for hook in vars(trainer.bus.hook).values()} == watchers
    seen = []
    other = copy.deepcopy(trainer)
    other.fit_loop.max_epochs = 2
    other.bus.register(plugin("backward", seen, wrapper=False))
    other.fit(other.lightning_module, DataLoader(torch.randn(4, 2), batch_size=2))
    assert seen == ["plugin backward"] * 2


@pytest.mark.parametrize("hook", [*CONCERNED, "on_train_start", "clip_gradients"])
def test_methods_of_the_base_class_that_were_replaced_are_called(hook, monkeypatch):
    """As tests do with ``mock.patch.object(LightningModule, …)``, and tracing libraries for good."""
    seen, original = [], getattr(hookbus.LightningModule, hook)

    def replaced(self, *args, **kwargs):
        seen.append(hook)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(hookbus.LightningModule, hook, replaced)
    outcome(Net(), [], [], [], gradient_clip_val=1.0)
    assert seen
