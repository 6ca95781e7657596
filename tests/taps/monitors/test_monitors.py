"""What holds for all monitors: they do not disturb a run, they leave nothing behind, they refuse what cannot work."""

import copy
import gc
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from tests.taps.monitors.waiting import pretend_device
from tests.taps.networks import Training, hooks_on, loader, trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookbus
from hookbus.taps import TapWarning
from hookbus.taps.monitors import ActivationStats, DeadNeurons, GradientStats, LayerTimer, NaNGuard, NonFiniteError


def everything(**arguments):
    return [
        ActivationStats(histogram=(-1.0, 1.0, 4), **arguments),
        GradientStats(log="parameter", **arguments),
        NaNGuard(**arguments),
        DeadNeurons(window=2, **arguments),
        LayerTimer(show=0, **arguments),
    ]


class Inner(nn.Module):
    """Normalises, works in place, and drops at random: whatever a careless monitor could spoil."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.again = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.rnn = nn.GRU(8, 3, batch_first=True)

    def forward(self, x):
        x = self.drop(self.relu(self.norm(self.linear(x))))
        x = x + checkpoint(self.again, x, use_reentrant=False)
        out, state = self.rnn(x.unsqueeze(1))
        return self.relu(out.squeeze(1)) + state[-1]


class Model(Training):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("loss", self.net(batch).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def fitted(monitors, **arguments):
    hookbus.seed_everything(3)
    model = Model(Inner())
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1, "max_epochs": 2, "log_every_n_steps": 1}
    run = trainer(*monitors, **{**settings, **arguments})
    run.fit(model, loader(5), [loader(2), loader(3)])
    streams = [
        torch.get_rng_state(),
        torch.tensor(random.getstate()[1][:100]),
        torch.tensor(np.random.get_state()[1][:9]),
    ]
    return [*model.state_dict().values(), *streams, run.callback_metrics["loss/dataloader_idx_1"]], model, run


@pytest.mark.parametrize("arguments", [{}, {"precision": "bf16-mixed"}], ids=["float32", "bf16"])
@pytest.mark.parametrize("every", [None, 2])
def test_a_run_is_the_same_to_the_last_bit(arguments, every):
    without, _, _ = fitted([], **arguments)
    monitors = everything(every=every)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TapWarning)
        watched, model, run = fitted(monitors, **arguments)
    assert all(torch.equal(one, other) for one, other in zip(without, watched, strict=True))
    assert all(module.training for module in model.modules())
    assert hooks_on(model) == 0
    assert not run.optimizers[0]._optimizer_step_post_hooks
    assert all(len(monitor.table()) for monitor in monitors if not isinstance(monitor, NaNGuard))


def test_nothing_is_on_the_model_between_due_steps():
    on = []

    class Look(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            on.append(hooks_on(pl_module))

        def on_before_backward(self, trainer, pl_module, loss):
            if (trainer.global_step + 1) % 3:
                on.append(hooks_on(pl_module))

        def on_train_batch_end(self, trainer, pl_module, *args):
            on.append(hooks_on(pl_module) + len(trainer.optimizers[0]._optimizer_step_post_hooks))

    trainer(*everything(every=3), Look()).fit(Training(), loader(7))
    assert on
    assert set(on) == {0}


@pytest.mark.parametrize("place", ["training_step", "on_before_backward", "on_before_optimizer_step"])
def test_an_exception_leaves_nothing_behind(place):
    class Failing(hookbus.Callback):
        pass

    def fail(*_):
        raise RuntimeError("stop")

    model, plugins = Training(), everything(every=1)
    if place == "training_step":
        model.training_step = lambda batch, batch_idx: (model.net(batch), fail())
    else:
        setattr(Failing, place, fail)
    run = trainer(*plugins, Failing())
    with pytest.raises(RuntimeError, match="stop"):
        run.fit(model, loader(2))
    assert hooks_on(model) == 0
    assert not run.optimizers[0]._optimizer_step_post_hooks
    other = trainer(*plugins)
    other.fit(Training(), loader(2))  # and they can be used again


def test_what_monitors_hold_does_not_grow():
    monitors = everything(every=1)
    sizes = []

    class Count(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx in (5, 55):
                gc.collect()
                kinds = [type(thing) for thing in gc.get_objects()]
                tensors = sum(issubclass(kind, torch.Tensor) for kind in kinds)
                sizes.append((tensors, sum(str(kind.__module__).startswith("hookbus.taps") for kind in kinds)))

    trainer(*monitors, Count()).fit(Training(), loader(60))
    assert all(later <= earlier for earlier, later in zip(*sizes, strict=True))


def test_monitors_are_copied_and_pickled_with_what_they_measured():
    monitors = everything()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with hookbus.tapping(model, *monitors):
        model(torch.ones(1, 2)).sum().backward()
    for copied in (copy.deepcopy(monitors), pickle.loads(pickle.dumps(monitors))):
        assert copied[0].table()["0"] == monitors[0].table()["0"]
        assert copied[3].table()["1"] == monitors[3].table()["1"]
        other = nn.Sequential(nn.Linear(2, 2))
        with hookbus.tapping(other, copied[2]), pytest.raises(NonFiniteError):
            other(torch.full((1, 2), float("nan")))
        assert not monitors[2].findings


@pytest.mark.parametrize("device", [False, True])
def test_values_within_vmap_are_passed_over(device, monkeypatch):
    if device:
        pretend_device(monkeypatch)
    stats, guard = ActivationStats(), NaNGuard()
    model = nn.Sequential(nn.Linear(2, 2))
    with hookbus.tapping(model, stats, guard):
        torch.vmap(model)(torch.full((3, 2), float("nan")))
        assert not stats.table()
        model(torch.ones(1, 2))
    assert stats.table()["0"].calls == 1


def test_two_monitors_of_one_kind_stand_side_by_side(tmp_path):
    first, second = DeadNeurons(window=50, every=1), DeadNeurons(window=50, every=2, prefix="seldom")
    run = trainer(callbacks=[first, second])
    run.fit(Training(), loader(4))
    run.save_checkpoint(tmp_path / "x.ckpt")
    states = torch.load(tmp_path / "x.ckpt", weights_only=True)["callbacks"]
    assert {key: state["steps"] for key, state in states.items()} == {"DeadNeurons": 4, "DeadNeurons#2": 2}


@pytest.mark.parametrize("monitor", [ActivationStats, GradientStats, NaNGuard, DeadNeurons, LayerTimer])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be"),
        ({"every": 2.5}, ValueError, "every must be"),
        ({"edits": True}, TypeError, "a monitor does not edit"),
        ({"evry": 3}, TypeError, "no argument evry"),
        ({"on_missing": "shout"}, ValueError, "on_missing must be"),
        ({"where": "head"}, ValueError, "where must be a function"),
        ({"types": "Linear"}, TypeError, "types must be classes, such as torch.nn.Linear, got 'Linear'"),
        ({"modules": 3}, TypeError, "modules must be names"),
    ],
)
def test_bad_arguments_are_refused_at_once(monitor, arguments, error, message):
    with pytest.raises(error, match=message):
        monitor(**arguments)


@pytest.mark.parametrize("monitor", [ActivationStats, NaNGuard, DeadNeurons, LayerTimer])
def test_unknown_phases_are_refused(monitor):
    with pytest.raises(ValueError, match="phases must be"):
        monitor(phases="training")


@pytest.mark.parametrize("monitor", [ActivationStats, GradientStats, NaNGuard, DeadNeurons, LayerTimer])
def test_a_selection_that_means_nothing_is_reported(monitor):
    with pytest.warns(TapWarning, match="did you mean 'net.head'"):
        trainer(monitor("net.haed", every=1)).fit(Training(), loader(1))
    ran = trainer(monitor("net.haed", every=1, on_missing="ignore"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TapWarning)
        ran.fit(Training(), loader(1))


@pytest.mark.parametrize("monitor", [ActivationStats, GradientStats, DeadNeurons, LayerTimer])
def test_a_run_that_is_too_short_for_a_monitor_says_so(monitor):
    name = monitor.__name__
    with pytest.warns(
        TapWarning, match=rf"{name} has looked at no training step: every is 5, .* 4; say {name}\(every=1\)"
    ):
        trainer(monitor(every=5)).fit(Training(), loader(4))
    with pytest.warns(
        TapWarning, match="no training step: log_every_n_steps of the Trainer, .* is 50, and there were 4"
    ):
        trainer(monitor()).fit(Training(), loader(4))


def test_a_monitor_that_had_its_step_or_is_to_have_none_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", TapWarning)
        trainer(ActivationStats(every=4)).fit(Training(), loader(4))
        trainer(ActivationStats(), log_every_n_steps=0).fit(Training(), loader(4))
        trainer(ActivationStats(every=9, phases="val")).fit(Training(), loader(4), loader(1))
        trainer(ActivationStats(every=9)).validate(Training(), loader(1))


def test_a_phase_that_there_is_not_has_no_figures_to_give():
    for monitor in (ActivationStats(), LayerTimer()):
        with pytest.raises(ValueError, match=r"phase must be one of 'train', .*; got 'validation'"):
            monitor.table("validation")
    for monitor in (ActivationStats(), GradientStats(), DeadNeurons(), LayerTimer(), NaNGuard()):
        with pytest.raises(ValueError, match=r"phase must be one of 'train', .*; got 'training'"):
            monitor.flush("training")
        assert monitor.flush("train") == {}


def test_a_compiled_network_gives_the_same_figures():
    x, net = torch.linspace(-1, 1, 12).view(3, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def watched(model):
        monitors = [ActivationStats(), DeadNeurons(phases=None), LayerTimer(show=0), NaNGuard()]
        with hookbus.tapping(model, *monitors):
            for _ in range(3):
                model(x).sum().backward()
        return list(monitors[0].table()), list(monitors[1].table()), [row.calls for row in monitors[2].table()]

    torch._dynamo.reset()
    assert watched(torch.compile(net, backend="eager")) == watched(net)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 8
    torch._dynamo.reset()


def test_they_are_found_by_name():
    assert hookbus.taps.monitors.ActivationStats is ActivationStats
    with pytest.raises(AttributeError, match="no attribute 'monitor'"):
        hookbus.taps.monitor
