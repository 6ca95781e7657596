"""A trainer arms taps for its steps, knows where it is, and takes everything off at the end, however it ends."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from tests.taps.networks import Net, Training, hooks_on, loader, trainer
from torch import nn

import hookbus
from hookbus import hookimpl, taps
from hookbus.taps import SelectionError


class Listener:
    """Records where and when it was called."""

    def __init__(self):
        self.heard = []

    @hookimpl(modules="net.head")
    def on_module_forward(self, event):
        self.heard.append((event.phase, event.step, event.micro_step, event.epoch))


def phases(listener):
    return [phase for phase, *_ in listener.heard]


def test_a_fit_with_validation():
    listener, model = Listener(), Training()
    run = trainer(listener, max_epochs=2)
    run.fit(model, loader(3), loader(2))
    assert phases(listener) == ["sanity"] * 2 + (["train"] * 3 + ["val"] * 2) * 2
    assert [(step, epoch) for phase, step, _, epoch in listener.heard if phase == "train"] == [
        *((0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)),
    ]
    assert hooks_on(model) == 0
    assert "taps" not in run.bus.names()


@pytest.mark.parametrize(("stage", "phase"), [("validate", "val"), ("test", "test"), ("predict", "predict")])
def test_other_entry_points(stage, phase):
    listener, model = Listener(), Training()
    getattr(trainer(listener), stage)(model, loader(2))
    assert phases(listener) == [phase] * 2
    assert hooks_on(model) == 0


def test_nothing_is_added_to_a_run_in_which_nobody_taps():
    seen = []

    class Looker(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            seen.append((trainer.bus.names(), hooks_on(pl_module)))

    trainer(Looker()).fit(Training(), loader(1))
    assert seen == [(["Looker", "module", "dataloaders"], 0)]


def test_a_run_in_which_nobody_taps_calls_nothing_of_taps_and_has_no_hooks():
    """Whatever is called between the first batch and the last one, none of it is code of ``hookbus.taps``."""
    folder, called, hooks = str(Path(taps.__file__).parent), [], []

    def watch(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            called.append(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    class Watcher(hookbus.Callback):
        def on_train_start(self, trainer, pl_module):
            sys.setprofile(watch)

        def on_before_backward(self, trainer, pl_module, loss):
            hooks.append(hooks_on(pl_module))

        def on_train_end(self, trainer, pl_module):
            sys.setprofile(None)

    before = sys.getprofile()
    try:
        trainer(Watcher()).fit(Training(), loader(3), loader(2))
        assert (called, hooks) == ([], [0, 0, 0])
        run = trainer(Watcher(), Listener())
        run.fit(Training(), loader(3), loader(2))
        assert "After.run" in called or "run" in called  # the watch is awake
        called.clear()
        run = trainer(Watcher())
        with run.taps.tap("net.head", print):  # gone before the run begins
            pass
        run.fit(Training(), loader(3), loader(2))
        assert called == []
    finally:
        sys.setprofile(before)


def test_nothing_is_left_in_the_steps_after_the_last_tap_was_closed():
    names = []

    class Closing(hookbus.Callback):
        def on_before_backward(self, trainer, pl_module, loss):
            if trainer.global_step == 1:
                tap.close()

        def on_train_batch_start(self, trainer, *args):
            names.append("taps" in trainer.bus.names())

    run = trainer(Closing())
    heard = []
    tap = run.taps.tap("net.head", lambda event: heard.append(event.step))
    model = Training()
    run.fit(model, loader(4), loader(2))
    assert heard == [0, 0, 0, 1]  # twice in the sanity check
    assert names == [True, True, False, False]
    assert hooks_on(model) == 0


def test_hooks_are_on_during_due_steps_only():
    on = {}

    class Looker(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            on["start", batch_idx] = hooks_on(pl_module)

        def on_before_backward(self, trainer, pl_module, loss):
            on["backward", trainer.global_step] = hooks_on(pl_module)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            on["end", batch_idx] = hooks_on(pl_module)

    class Plugin:
        @hookimpl(modules="net.*", every=2)
        def on_module_forward(self, event):
            on["step", event.step] = hooks_on(event.module)

    trainer(Looker(), Plugin()).fit(Training(), loader(4))
    assert {key for key, count in on.items() if count} == {("step", 1), ("step", 3)}


def test_windows_of_accumulation_are_one_step():
    heard = {"all": [], "first": [], "last": []}
    run = trainer(accumulate_grad_batches=2)
    for micro, steps in heard.items():
        run.taps.tap(
            "net.head", lambda e, to=steps: to.append((e.step, e.micro_step)), micro=micro, every=2, phases="train"
        )
    run.fit(Training(), loader(7))
    assert heard["all"] == [(1, 0), (1, 1), (3, 0)]
    assert heard["first"] == [(1, 0), (3, 0)]
    assert heard["last"] == [(1, 1), (3, 0)]  # the last batch of an epoch ends a window by itself


def test_evaluations_count_their_batches():
    heard = []
    run = trainer()
    run.taps.tap("net.head", lambda event: heard.append(event.moment.number), phases="val", every=2)
    run.fit(Training(), loader(2), loader(5))
    assert heard == [2, 4]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["training_step", "on_before_backward", "on_train_batch_end", "validation_step"])
def test_nothing_stays_after_an_exception(error, place):
    model, listener = Training(), Listener()

    def fail(*_):
        raise error("stop")

    if place.endswith("step"):
        setattr(model, place, lambda batch, batch_idx: (model.net(batch), fail()))
        plugins = [listener]
    else:
        plugins = [listener, type("Failing", (hookbus.Callback,), {place: fail})()]
    run = trainer(*plugins, num_sanity_val_steps=0)
    run.taps.tap("net.*", lambda event: None, kinds=["forward", "parameter_grad", "grad_output"])
    with pytest.raises(error, match="stop"):
        run.fit(model, loader(2), loader(2))
    assert listener.heard
    assert hooks_on(model) == 0
    assert "taps" not in run.bus.names()


def test_errors_inside_the_network_are_told():
    model, heard = Training(), []
    model.net.head = nn.Linear(7, 3)

    class Plugin:
        @hookimpl
        def on_module_forward_error(self, event):
            heard.append((event.name, event.args[0].shape, str(event.exception)[:15]))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer(Plugin()).fit(model, loader(1))
    assert heard == [("net.head", (2, 6), "mat1 and mat2 s"), ("net", (2, 4), "mat1 and mat2 s")]


def test_callbacks_and_the_module_itself_may_tap():
    heard = []

    class Watching(hookbus.Callback):
        @hookimpl(modules="net.blocks.*", every=2, phases="train")
        def on_module_forward(self, event):
            heard.append(("callback", event.name, event.step))

    class Model(Training):
        @hookimpl(types=nn.Linear, modules="net.head", phases="val")
        def on_module_forward(self, event):
            heard.append(("module", event.name, event.step))

        def on_module_forward_pre(self, event):  # not marked, so the module's own business
            raise AssertionError

    run = trainer(callbacks=[Watching()], num_sanity_val_steps=0)
    run.fit(Model(), loader(3), loader(1))
    assert heard == [
        *(("callback", "net.blocks.0", 1), ("callback", "net.blocks.1", 1)),
        ("module", "net.head", 3),
    ]


def test_every_tap_of_the_catalogue_is_called_in_a_fit():
    """Those that ``hookbus hooks`` lists, by a plugin that implements them all; gradients in the order of autograd."""
    heard = []

    def recorder(name):
        return hookimpl(modules="net.head", phases="train")(lambda event: heard.append((name, event.name)))

    names = [name for name, hook in vars(trainer().bus.hook).items() if hook.is_tap]
    plugin = type("Everything", (), {name: staticmethod(recorder(name)) for name in names})()
    model = Training()
    trainer(plugin).fit(model, loader(1))
    assert heard == [
        ("on_module_forward_pre", "net.head"),
        ("on_module_forward", "net.head"),
        ("on_module_grad_output", "net.head"),
        *sorted(heard[3:], key=heard.index),
    ]
    assert sorted(heard[3:]) == [
        ("on_module_grad_input", "net.head"),
        *(("on_parameter_grad", "net.head.bias"), ("on_parameter_grad", "net.head.weight")),
    ]
    heard.clear()
    model.net.head = nn.Linear(7, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer(plugin).fit(model, loader(1))
    assert heard == [("on_module_forward_pre", "net.head"), ("on_module_forward_error", "net.head")]


def test_gradients_are_ready_once_per_step_of_a_subclassed_and_of_a_replaced_optimizer():
    """torch's own hooks would be called twice by the ``step`` that calls its parent's, and stay with the old optimizer."""
    heard = []

    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    class Replacing(hookbus.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            heard.append(
                (trainer.global_step, type(optimizer).__name__, float(pl_module.net.head.bias.grad.abs().sum()))
            )

        def on_train_batch_end(self, trainer, pl_module, *args):
            if trainer.global_step == 2:
                trainer.optimizers = [torch.optim.Adam(pl_module.parameters())]

    model = Training()
    model.configure_optimizers = lambda: Own(model.parameters(), lr=0.1)
    trainer(Replacing()).fit(model, loader(4))
    assert [entry[:2] for entry in heard] == [(0, "Own"), (1, "Own"), (2, "Adam"), (3, "Adam")]
    assert all(total > 0 for *_, total in heard)


def test_a_replaced_parameter_is_followed():
    heard = []

    class Replacing(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                state = {name: value.clone() for name, value in pl_module.state_dict().items()}
                pl_module.load_state_dict(state, assign=True)
                trainer.optimizers = [torch.optim.SGD(pl_module.parameters(), lr=0.1)]

    run = trainer(Replacing())
    run.taps.tap("net.head", lambda e: heard.append((e.step, e.name, e.grad is not None)), kinds="parameter_grad")
    model = Training()
    run.fit(model, loader(2))
    assert sorted(heard) == [(step, f"net.head.{name}", True) for step in (0, 1) for name in ("bias", "weight")]
    assert hooks_on(model) == 0


def test_taps_of_the_trainer_before_and_during_a_fit():
    heard, model = [], Training()
    run = trainer()

    class Late(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                self.tap = trainer.taps.tap("net.stem", lambda event: heard.append(("late", event.step)))
            if batch_idx == 3:
                self.tap.close()

    run.callbacks.append(Late())
    with run.taps.capture("net.head", keep="all", phases="train") as kept:
        run.fit(model, loader(4))
    assert [record.moment.step for record in kept] == [0, 1, 2, 3]
    assert heard == [("late", 1), ("late", 2)]
    run.fit_loop.max_epochs = 2
    run.fit(model, loader(4))
    assert len(kept) == 4


def test_the_first_subscriber_may_come_in_the_middle_of_a_fit():
    heard = []

    class Late(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                trainer.taps.tap("net.head", lambda event: heard.append(event.step))

    trainer(Late()).fit(Training(), loader(4))
    assert heard == [2, 3]


def test_wrong_names_of_a_tap_are_told_when_the_run_begins():
    run, model = trainer(), Training()
    run.taps.tap("net.haed", print)
    with pytest.raises(SelectionError, match=r"did you mean 'net\.head'"):
        run.fit(model, loader(1))
    assert hooks_on(model) == 0


def test_wrong_names_of_a_plugin_are_a_warning():
    class Plugin:
        @hookimpl(modules="encoder.*")
        def on_module_forward(self): ...

    with pytest.warns(hookbus.taps.TapWarning, match=r"plugin 'Plugin'.*selects 'encoder.\*', and no module"):
        trainer(Plugin()).fit(Training(), loader(1))


def test_gradients_in_mixed_precision_are_scaled_and_say_so():
    heard = []
    run = trainer(precision="16-mixed", accelerator="cpu")
    run.taps.tap("net.head", lambda e: heard.append((e.amp_scale, e.grad.abs().max().item())), kinds="grad_output")
    model = Training()
    model.training_step = lambda batch, batch_idx: model.net(batch).float().sum() / 4
    run.fit(model, loader(1))
    ((scale, largest),) = heard
    assert (scale, largest) == (2.0**16, 2.0**14)


def test_a_skipped_step_is_told():
    heard = []

    class Plugin:
        @hookimpl
        def on_optimizer_step_skipped(self, trainer, optimizer):
            heard.append((trainer.global_step, type(optimizer).__name__))

    model = Training()
    model.training_step = lambda batch, batch_idx: (
        model.net(batch).float().mean() / 4 * (torch.inf if batch_idx == 1 else 1.0)
    )
    trainer(Plugin(), precision="16-mixed", accelerator="cpu").fit(model, loader(3))
    assert heard == [(1, "SGD")]


def test_rank_zero_means_rank_zero():
    heard = []

    class Plugin:
        @hookimpl(modules="net.head", rank_zero=True)
        def on_module_forward(self, event):
            heard.append(event.rank)

    trainer(Plugin()).fit(Training(), loader(2))
    assert heard == [0, 0]


def test_manual_optimization_with_two_steps_per_batch():
    class Manual(Training):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                loss = self.net(batch).square().mean()
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()

    heard = []
    run = trainer()
    run.taps.tap(
        "net.head",
        lambda event: heard.append((event.kind, event.call_index)),
        every=2,
        kinds=["forward", "grad_output"],
    )
    run.fit(Manual(), loader(4))
    one = [("forward", 0), ("grad_output", 0), ("forward", 1), ("grad_output", 1)]
    assert heard == one * 2


def test_taps_do_not_change_what_is_trained():
    def weights(*plugins):
        torch.manual_seed(0)
        model = Training()
        run = trainer(*plugins, max_epochs=2)
        if plugins:
            run.taps.capture(None, grads=True)
            run.taps.capture("net.blocks.*", attached=True)
        run.fit(model, loader(4), loader(2))
        return model.state_dict()

    plain, tapped = weights(), weights(Listener())
    assert all(torch.equal(plain[name], tapped[name]) for name in plain)


def test_rehearsals_are_not_heard():
    listener = Listener()

    class Finder(hookbus.Callback):
        def on_fit_start(self, trainer, pl_module):
            with trainer.rehearse() as rehearsal:
                rehearsal.run(3)

    trainer(listener, Finder()).fit(Training(), loader(2))
    assert phases(listener) == ["train", "train"]


def test_a_trainer_can_be_copied_in_the_middle_of_a_run():
    listener, copies = Listener(), []

    class Copying(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            if not copies:
                copies.append((copy.deepcopy(trainer.bus), copy.deepcopy(trainer.taps)))

    run = trainer(listener, Copying())
    run.fit(Training(), loader(2))
    ((bus, taps),) = copies
    heard = bus.get_plugin("Listener").heard
    taps.bus.get_plugin("Listener").heard.clear()
    assert len(listener.heard) == 2
    model = Net()
    taps.attach(nn.ModuleDict({"net": model}), trainer=True)
    assert heard is not listener.heard


def test_other_hooks_of_the_module_stay():
    model = Training()
    nn.utils.parametrizations.weight_norm(model.net.head)
    calls = []
    model.net.stem.register_forward_hook(lambda *_: calls.append(1))
    before = hooks_on(model)
    trainer(Listener()).fit(model, loader(2))
    assert hooks_on(model) == before
    assert calls == [1, 1]


def test_replaced_modules_are_followed():
    heard = []

    class Replacing(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 1:
                pl_module.net.head = nn.Sequential(pl_module.net.head)

    run = trainer(Replacing())
    run.taps.tap("net.head", lambda event: heard.append(type(event.module).__name__))
    run.fit(Training(), loader(2))
    assert heard == ["Linear", "Sequential"]
