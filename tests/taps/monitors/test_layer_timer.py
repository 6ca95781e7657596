"""Times of layers, by a clock that the layers themselves put forward."""

import math

import pytest
import torch
from tests.taps.monitors.test_activation_stats import Log
from tests.taps.networks import Net, Training, loader, trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookbus import tapping
from hookbus.taps.monitors import LayerTimer, layer_timer, timed_pass


class Clock:
    """Stands still unless something works."""

    now = 0.0
    tick = 0.0  # what it takes to read it

    def work(self, seconds):
        self.now += seconds

    def perf_counter(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (layer_timer, timed_pass):
        monkeypatch.setattr(module, "time", made)
    return made


class Work(torch.autograd.Function):
    """Identity times a weight, which takes its time in both directions."""

    @staticmethod
    def forward(ctx, x, weight, clock, forward, backward):
        ctx.clock, ctx.seconds = clock, backward
        ctx.save_for_backward(x)  # which a checkpointed layer must compute again
        clock.work(forward)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        assert ctx.saved_tensors
        ctx.clock.work(ctx.seconds)
        return grad * 1, grad.sum(), None, None, None


class Layer(nn.Module):
    def __init__(self, clock, forward, backward, *, weight=True):
        super().__init__()
        self.times = (clock, forward, backward)
        self.weight = nn.Parameter(torch.ones(())) if weight else None

    def forward(self, x):
        return Work.apply(x, self.weight if self.weight is not None else torch.ones(()), *self.times)


class Outer(nn.Module):
    """Two layers, and work of its own before, between and after them."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.one, self.two = Layer(clock, 1.0, 2.0), Layer(clock, 3.0, 4.0, weight=False)

    def forward(self, x):
        self.clock.work(0.5)
        x = Work.apply(self.one(x), torch.ones(()), self.clock, 0.25, 8.0)
        return self.two(x)


class FakeEvent:
    """An event of a device that works in step with the host."""

    clock, waits = None, 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = self.clock.now

    def elapsed_time(self, end):
        return 1000 * (end.at - self.at)


def pretend_device(monkeypatch, clock):
    waits = []
    monkeypatch.setattr(FakeEvent, "clock", clock)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(layer_timer, "on_host", lambda tensor: False)
    return waits


def times(rows):
    return {row.name: (row.forward, row.forward_self, row.backward, row.backward_self) for row in rows}


@pytest.mark.parametrize("where", ["host", "device"])
def test_own_time_and_that_of_the_layers_inside(clock, where, monkeypatch):
    waits = pretend_device(monkeypatch, clock) if where == "device" else []
    model, timer = nn.Sequential(Layer(clock, 16.0, 32.0), Outer(clock)), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2)).sum().backward()
    assert not waits
    assert times(timer.table()) == {
        "": (20.75, 0.0, 46.0, 0.0),
        "0": (16.0, 16.0, 32.0, 32.0),
        "1": (4.75, 0.75, 14.0, 8.0),
        "1.one": (1.0, 1.0, 2.0, 2.0),
        "1.two": (3.0, 3.0, 4.0, 4.0),
    }
    assert [row.calls for row in timer.table()] == [1] * 5
    assert [row.name for row in timer.table().sorted_by("total_self")[:2]] == ["0", "1"]
    row = timer.table()["1"]
    assert (row.total, row.total_self, row.forward_ms, row.backward_self_ms) == (18.75, 8.75, 4750.0, 8000.0)
    assert len(waits) == (where == "device")


def test_events_that_wait_on_a_device_do_not_pile_up(clock, monkeypatch):
    waits = pretend_device(monkeypatch, clock)
    monkeypatch.setattr(layer_timer, "_MOST_PENDING", 10)
    model, timer = Outer(clock), LayerTimer()
    with tapping(model, timer):
        for _ in range(20):
            model(torch.ones(2))
    assert len(waits) == 4
    assert timer.table()[""].calls == 20


def test_calls_without_a_backward_pass_do_not_count_in_its_mean(clock):
    model, timer = Outer(clock), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2)).sum().backward()
        with torch.no_grad():
            model(torch.ones(2))
    row = timer.table()["one"]
    assert (row.calls, row.backward_calls, row.forward_ms, row.backward_ms) == (2, 1, 1000.0, 2000.0)


def test_without_a_backward_pass_there_is_no_time_for_it(clock):
    model, timer = Outer(clock).eval(), LayerTimer()
    with tapping(model, timer), torch.no_grad():
        model(torch.ones(2))
    assert times(timer.table())["two"] == (3.0, 3.0, None, None)
    assert not timer.table("train")


def test_a_layer_without_parameters_at_the_input_has_no_end_that_can_be_seen(clock):
    model, timer = nn.Sequential(Layer(clock, 1.0, 2.0, weight=False), Layer(clock, 1.0, 2.0)), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2)).sum().backward()
    assert times(timer.table()) == {
        "": (2.0, 0.0, 2.0, 0.0),
        "0": (1.0, 1.0, None, None),
        "1": (1.0, 1.0, 2.0, 2.0),
    }


def test_branches_that_share_an_input_are_not_charged_with_each_other(clock):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Layer(clock, 0.0, 1.0)
            self.branches = nn.ModuleList(Layer(clock, 0.0, seconds) for seconds in (2.0, 3.0, 4.0))

        def forward(self, x):
            x = self.first(x)
            return sum(branch(x) for branch in self.branches)

    model, timer = Branches(), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2)).sum().backward()
    assert [timer.table()[f"branches.{i}"].backward for i in range(3)] == [2.0, 3.0, 4.0]


def test_what_measuring_takes_is_not_charged_to_the_modules_around(clock):
    clock.tick = 0.125
    model, timer = nn.Sequential(*(Layer(clock, 1.0, 0.0) for _ in range(10))), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2))
    # Between two layers the clock is read four times, of which one counts as time of the layer and one as its parent's.
    assert timer.table()["3"].forward == 1.125
    assert timer.table()[""].forward == 10 * 1.25 + 0.125


def test_calls_add_up(clock):
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(clock, 1.0, 2.0)

        def forward(self, x):
            return self.layer(self.layer(self.layer(x)))

    model, timer = Again(), LayerTimer()
    with tapping(model, timer):
        for _ in range(2):
            model(torch.ones(2)).sum().backward()
    row = timer.table()["layer"]
    assert (row.calls, row.forward, row.forward_ms) == (6, 6.0, 1000.0)
    assert row.backward == 12.0


def test_backward_passes_in_another_order_than_forward_passes(clock):
    model, timer = nn.Sequential(Layer(clock, 1.0, 2.0), Layer(clock, 3.0, 4.0)), LayerTimer()
    with tapping(model, timer):
        losses = [model(torch.ones(2)).sum() for _ in range(3)]
        for loss in losses:
            loss.backward()
    assert times(timer.table())["1"] == (9.0, 9.0, 12.0, 12.0)


def test_two_backward_passes_that_share_a_network_are_measured_apart(clock):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer(clock, 1.0, 2.0)

        def forward(self, x):
            return self.layer(x), self.layer(x)

    model, timer = Twice(), LayerTimer("layer")
    with tapping(model, timer):
        real, fake = model(torch.ones(2))
        real.sum().backward()
        clock.work(100.0)  # as the optimiser of a GAN's discriminator does before the generator's turn
        fake.sum().backward()
    assert times(timer.table()) == {"layer": (2.0, 2.0, 4.0, 4.0)}
    assert timer.table()["layer"].backward_calls == 2


def test_what_checkpointing_repeats_is_part_of_the_backward_pass(clock):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = Layer(clock, 1.0, 2.0), Layer(clock, 3.0, 4.0)

        def forward(self, x):
            return checkpoint(self.inner, self.first(x), use_reentrant=False)

    model, timer = Checkpointed(), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2)).sum().backward()
    assert timer.table()["inner"].calls == 1
    assert timer.table()["inner"].forward == 3.0
    assert timer.table()["inner"].backward == 3.0 + 4.0
    assert timer.table()[""].backward == 2.0 + 3.0 + 4.0


def test_calls_that_raise_are_not_counted(clock):
    class Failing(nn.Module):
        fail = True

        def __init__(self):
            super().__init__()
            self.layer = Layer(clock, 1.0, 2.0)

        def forward(self, x):
            x = self.layer(x)
            if self.fail:
                raise RuntimeError("stop")
            return x

    model, timer = Failing(), LayerTimer()
    with tapping(model, timer):
        with pytest.raises(RuntimeError):
            model(torch.ones(2))
        Failing.fail = False
        model(torch.ones(2))
    assert {row.name: row.calls for row in timer.table()} == {"layer": 2, "": 1}
    assert timer.table()[""].forward_self == 0.0


def test_layers_after_a_call_that_raised(clock):
    class Trying(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing, self.layer = Layer(clock, 1.0, 2.0), Layer(clock, 4.0, 2.0)

        def forward(self, x):
            try:
                self.failing("text")
            except Exception:
                return self.layer(x)

    model, timer = Trying(), LayerTimer()
    with tapping(model, timer):
        model(torch.ones(2))
    assert times(timer.table()) == {"": (5.0, 1.0, None, None), "layer": (4.0, 4.0, None, None)}


def test_parts_of_the_network_that_are_called_by_themselves(clock):
    model, timer = Outer(clock), LayerTimer()
    with tapping(model, timer):
        for _ in range(3):
            model.one(torch.ones(2))
    assert times(timer.table()) == {"one": (3.0, 3.0, None, None)}
    assert timer.table()["one"].calls == 3


def test_a_trainer_logs_milliseconds_and_prints_the_slowest(clock, capsys):
    log = Log()
    model = Training(Outer(clock))
    model.training_step = lambda batch, batch_idx: model.net(batch).sum()
    model.net.one.weight.requires_grad_(True)
    trainer(LayerTimer(every=2, show=2), log).fit(model, loader(4), loader(1))
    names = {
        f"layer_time/train/{kind}/{name}" for kind in ("forward", "backward") for name in ("net", "net.one", "net.two")
    }
    assert [(step, set(metrics)) for step, metrics in log.calls] == [(1, names), (3, names)]
    assert log.calls[0][1]["layer_time/train/forward/net"] == 4750.0
    assert log.calls[0][1]["layer_time/train/backward/net"] == 14000.0
    printed = capsys.readouterr().out
    assert "net.two" in printed
    assert "net.one" not in printed
    silent = LayerTimer(every=1, show=0, phases="val")
    trainer(silent, num_sanity_val_steps=0).fit(model, loader(1), loader(3))
    assert "net.two" not in capsys.readouterr().out
    assert silent.table()["net.two"].calls == 3


def test_windows_of_accumulation_with_the_real_clock():
    timer = LayerTimer(every=1, show=0)
    trainer(timer, accumulate_grad_batches=2).fit(Training(), loader(4))
    rows = {row.name: row for row in timer.table()}
    assert rows["net"].calls == 4
    assert rows["net.relu"].calls == 8
    assert all(row.forward >= row.forward_self >= 0 for row in rows.values())
    assert all(math.isfinite(row.backward) and row.backward >= row.backward_self >= 0 for row in rows.values())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"show": -1}, ValueError, "show must be a number of layers"),
        ({"log": "everything"}, ValueError, "log must be some of forward, forward_self"),
        ({"recompute": True}, TypeError, "a repeated forward pass is part of the backward pass"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        LayerTimer(**arguments)


def test_a_selection_has_times_for_what_it_names():
    timer = LayerTimer("blocks.*")
    with tapping(model := Net(), timer):
        model(torch.ones(2, 4)).sum().backward()
    assert [row.name for row in timer.table()] == ["blocks.0", "blocks.1"]
    assert all(row.backward is not None for row in timer.table())
