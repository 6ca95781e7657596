"""A unit is dead if no sample in a whole window of training steps has made it active."""

import contextlib

import pytest
import torch
from tests.taps.monitors.test_activation_stats import Log
from tests.taps.networks import Training, loader, trainer
from torch import nn

import hookbus
from hookbus import tapping
from hookbus.taps import TapWarning
from hookbus.taps.monitors import DeadNeurons


class Fixed(nn.Module):
    """Linear and ReLU whose units are active from inputs of 0, 1, 2, … on."""

    def __init__(self, units=4, relu=None):
        super().__init__()
        self.linear, self.relu = nn.Linear(1, units), relu or nn.ReLU()
        with torch.no_grad():
            self.linear.weight.fill_(1.0)
            self.linear.bias.copy_(-torch.arange(units))

    def forward(self, x):
        return self.relu(self.linear(x))


def dead(model, *inputs, **arguments):
    monitor = DeadNeurons(**arguments)
    with tapping(model, monitor):
        for x in inputs:
            model(torch.as_tensor(x, dtype=torch.float32))
    return {row.name: (row.units, row.indices) for row in monitor.table()}


def test_active_once_is_active():
    assert dead(Fixed(), [[0.5], [0.1]]) == {"relu": (4, (1, 2, 3))}
    assert dead(Fixed(), [[0.5]], [[2.5]], [[0.1]]) == {"relu": (4, (3,))}
    assert dead(Fixed(), [[9.0]]) == {"relu": (4, ())}


def test_layers_that_give_small_or_negative_values_by_nature_do_not_count():
    model = nn.Sequential(nn.Linear(1, 3), nn.LeakyReLU(), nn.GELU(), nn.Tanh(), nn.Identity())
    assert dead(model, [[-1.0]], on_missing="ignore") == {}
    with pytest.warns(TapWarning, match="selects no module of the network: none fits types=ReLU"):
        dead(model, [[-1.0]])


@pytest.mark.parametrize("relu", [nn.ReLU6(), nn.Threshold(0.0, 0.0), nn.ReLU(inplace=True)])
def test_other_layers_that_cut_off(relu):
    assert dead(Fixed(relu=relu), [[1.5], [0.2]]) == {"relu": (4, (2, 3))}
    positive = nn.Sequential(nn.Softshrink(0.5))
    assert dead(positive, [[-2.0, 0.1, 2.0]]) == {"0": (3, (1,))}  # active is what is not zero, negative as well


def test_layers_that_only_come_close_to_zero_need_a_threshold():
    model = Fixed(relu=nn.GELU())
    assert dead(model, [[-6.0]], types=nn.GELU, threshold=1e-3) == {"relu": (4, (0, 1, 2, 3))}
    assert dead(model, [[2.5]], types=nn.GELU, threshold=1e-3) == {"relu": (4, ())}


@pytest.mark.parametrize(
    ("shape", "units", "arguments"),
    [
        ((2, 5), 5, {}),
        ((2, 5, 3, 4), 5, {}),
        ((2, 5, 2, 3, 4), 5, {}),
        ((2, 7, 5), 5, {}),
        ((2, 5, 7), 5, {"channel_dim": 1}),
        ((2, 3, 4, 5), 5, {"channel_dim": -1}),
        ((5,), 5, {}),
    ],
)
def test_units_are_channels(shape, units, arguments):
    x = torch.ones(shape)
    dimension = arguments.get("channel_dim", -1 if len(shape) in (1, 3) else 1)
    x.select(dimension, 2).fill_(-1)
    assert dead(nn.Sequential(nn.ReLU()), x, **arguments) == {"0": (units, (2,))}


def test_a_relu_that_is_no_layer_is_seen_at_the_layer_behind_it():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    with torch.no_grad():
        layer.linear1.bias.fill_(9.0)
        layer.linear1.bias[5] = -99.0
    x = torch.linspace(-1, 1, 24).view(2, 3, 4)
    assert dead(layer, x, modules="linear2", types=nn.Linear, of="input") == {"linear2": (8, (5,))}


def test_a_dimension_that_changes_does_not_count_units():
    monitor = DeadNeurons()
    model = nn.Sequential(nn.ReLU())
    with tapping(model, monitor):
        model(torch.ones(2, 4, 7))
        with pytest.warns(RuntimeWarning, match="does not count units; say which one does"):
            model(torch.ones(2, 4, 8))


def test_calls_of_a_layer_that_is_used_twice_are_told_apart():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(torch.cat([self.relu(x), x], dim=1))

    assert dead(Twice(), [[1.0, -1.0]]) == {"relu#0": (2, (1,)), "relu#1": (4, (1, 3))}


class Data(Training):
    """Trains on numbers that are given, so that it is known which units are active when."""

    def __init__(self):
        super().__init__(Fixed())

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum() * 0

    def on_train_start(self):
        self.net.eval()  # whatever the layers' mode


def numbers(*values):
    return torch.utils.data.DataLoader(torch.tensor(values).view(-1, 1), batch_size=1)


def test_windows_are_logged_as_they_end():
    log, monitor = Log(), DeadNeurons(window=2, every=1)
    run = trainer(monitor, log)
    run.fit(Data(), numbers(0.5, 2.5, 0.5, 0.6, 9.0))
    assert log.calls == [
        (1, {"dead_neurons/share": 0.25, "dead_neurons/share/net.relu": 0.25}),
        (3, {"dead_neurons/share": 0.75, "dead_neurons/share/net.relu": 0.75}),
    ]
    row = monitor.table()["net.relu"]
    assert (row.dead, row.units, row.share, row.steps, row.indices) == (3, 4, 0.75, 2, (1, 2, 3))


def test_a_window_counts_steps_that_are_looked_at_and_batches_of_a_step_as_one():
    log, monitor = Log(), DeadNeurons(window=2, every=2)
    trainer(monitor, log, accumulate_grad_batches=2).fit(Data(), numbers(9, 9, 0.5, 1.5, 9, 9, 0.1, 0.1))
    assert log.calls == [(3, {"dead_neurons/share": 0.5, "dead_neurons/share/net.relu": 0.5})]


def test_validation_does_not_count():
    monitor = DeadNeurons(window=10, every=1)
    trainer(monitor).fit(Data(), numbers(0.5, 0.6), numbers(9.0))
    assert monitor.table()["net.relu"].indices == (1, 2, 3)


@pytest.mark.parametrize(("batches", "logged"), [((0.5, 2.5, 0.5), [(0, 3), (1, 3)]), ((0.5,), [(1, 2)])])
def test_a_window_in_evaluations_ends_with_one(batches, logged):
    log, monitor = Log(), DeadNeurons(window=2, every=1, phases="val")
    run = trainer(monitor, log, max_epochs=2, num_sanity_val_steps=0)
    run.fit(Data(), numbers(0.5), numbers(*batches))
    share = 0.75 if len(batches) == 1 else 0.25
    assert log.calls == [
        (step, {"dead_neurons/share": share, "dead_neurons/share/net.relu": share}) for step, _ in logged
    ]
    assert monitor.table()["net.relu"].steps == logged[-1][1]


def test_a_run_that_goes_on_continues_the_window(tmp_path):
    def run(**arguments):
        log = Log()
        made = trainer(DeadNeurons(window=4, every=1), log, max_epochs=-1, **arguments)
        return made, log

    data = numbers(0.5, 2.5, 0.5, 0.6, 0.5, 0.5)
    whole, expected = run(max_steps=6)
    whole.fit(Data(), data)
    first, _ = run(max_steps=3)
    first.fit(Data(), data)
    first.save_checkpoint(tmp_path / "x.ckpt")
    second, log = run(max_steps=6)
    second.fit(Data(), data, ckpt_path=tmp_path / "x.ckpt")
    assert log.calls == expected.calls
    assert expected.calls[0][1]["dead_neurons/share"] == 0.25


def test_a_loop_by_hand_begins_a_new_window_when_one_is_over():
    monitor, model = DeadNeurons(window=2), Fixed()
    with tapping(model, monitor):
        for x in (0.5, 0.5, 9.0):
            model(torch.tensor([[x]]))
    assert monitor.table()["relu"].indices == (1, 2, 3)
    monitor.reset()
    assert len(monitor.table()) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_loop_by_hand_after_a_run(fails):
    monitor, model = DeadNeurons(window=2, every=1), Data()
    if fails:
        model.training_step = lambda batch, batch_idx: 1 / 0
    run = trainer(monitor)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        run.fit(model, numbers(9.0))
    monitor.reset()
    with tapping(model.net, monitor):
        for x in (0.5, 0.5, 9.0):
            model.net.train()(torch.tensor([[x]]))
    assert monitor.table()["relu"].indices == (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window must be a number of steps"),
        ({"threshold": -1}, "threshold must be a number of at least 0"),
        ({"threshold": float("nan")}, "threshold must be a number of at least 0"),
        ({"of": "gradient"}, "of must be one of 'output', 'input'"),
        ({"channel_dim": 0}, "channel_dim must be a dimension other than 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        DeadNeurons(**arguments)


def test_hooks_are_on_such_layers_only():
    on = []

    class Look(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            on.extend(row.module for row in trainer.taps.report().rows if row.plugin == "DeadNeurons")

    trainer(DeadNeurons(every=1), Look()).fit(Training(), loader(1))
    assert on == ["net.blocks.0.act", "net.blocks.1.act", "net.relu"]
