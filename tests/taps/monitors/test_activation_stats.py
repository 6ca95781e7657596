"""Statistics of activations are those that torch gives, over all calls of a period."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.taps.monitors.waiting import Waiting, pretend_device
from tests.taps.networks import Many, Net, Training, Wrapper, loader, trainer
from torch import nn

from hookbus import hookimpl, tapping
from hookbus.taps.monitors import ActivationRow, ActivationStats

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Log:
    """Keeps what is logged."""

    def __init__(self):
        self.calls = []

    @hookimpl
    def log_metrics(self, metrics, step):
        self.calls.append((step, dict(metrics)))


def of(values, **arguments):
    """The row for one tensor as the output of a layer."""
    stats = ActivationStats(**arguments)
    model = nn.Sequential(nn.Identity())
    with tapping(model, stats):
        model(values)
    return stats.table()["0"]


@pytest.fixture(params=["host", "device"])
def anywhere(request, monkeypatch):
    if request.param == "device":
        pretend_device(monkeypatch)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.usefixtures("anywhere")
def test_values_are_those_of_torch(dtype):
    values = (torch.randn(7, 11, 5, generator=torch.Generator().manual_seed(1)) * 3 + 1).relu().to(dtype)
    exact = values.double()
    row = of(values)
    assert (row.name, row.phase, row.calls, row.count, row.nonfinite) == ("0", "train", 1, 385, 0)
    assert row.zeros == int((exact == 0).sum())
    assert row.zero_share == row.zeros / 385
    assert row.absmax == exact.abs().max().item()
    digits = 1e-13 if dtype is torch.float64 else 1e-6
    assert row.mean == pytest.approx(exact.mean().item(), rel=digits)
    assert row.std == pytest.approx(exact.std(correction=0).item(), rel=digits)
    assert row.rms == pytest.approx(exact.square().mean().sqrt().item(), rel=digits)


@pytest.mark.usefixtures("anywhere")
def test_a_small_spread_round_a_great_mean_is_not_lost():
    values = 1000 + torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 0.01
    assert of(values).std == pytest.approx(values.double().std(correction=0).item(), rel=1e-3)


@pytest.mark.usefixtures("anywhere")
def test_what_is_not_finite_is_counted_and_left_out_of_the_rest():
    values = torch.tensor([[1.0, math.nan, -4.0], [math.inf, 0.0, -math.inf]])
    row = of(values, histogram=(-5.0, 5.0, 2))
    assert (row.count, row.nonfinite, row.zeros, row.absmax, row.mean) == (3, 3, 1, 4.0, -1.0)
    assert row.std == pytest.approx(np.std([1, -4, 0]))
    assert row.histogram == (0, 1, 2, 0)
    nothing = of(torch.full((4,), math.nan))
    assert (nothing.count, nothing.nonfinite, nothing.absmax) == (0, 4, 0.0)
    assert math.isnan(nothing.rms)


def test_great_values_do_not_overflow():
    row = of(torch.tensor([3e38, 3e38, -1e38]))
    assert row.nonfinite == 0
    assert row.rms == pytest.approx(math.sqrt((9 + 9 + 1) / 3) * 1e38, rel=1e-6)
    assert row.mean == pytest.approx(5e38 / 3, rel=1e-6)
    half = of(torch.full((1000,), 6e4, dtype=torch.float16))
    assert (half.nonfinite, half.std, half.mean) == (0, 0.0, pytest.approx(6e4, rel=1e-3))


@pytest.mark.usefixtures("anywhere")
def test_histograms_are_those_of_numpy_with_what_is_outside():
    values = torch.randn(500, generator=torch.Generator().manual_seed(0))
    values = torch.cat([values, torch.tensor([-1.0, 1.0, 0.5])])
    stats = ActivationStats(histogram=(-1.0, 1.0, 8))
    model = nn.Sequential(nn.Identity())
    with tapping(model, stats):
        model(values)
        model(values)
    inside, edges = np.histogram(values.numpy(), bins=8, range=(-1, 1))
    assert stats.edges == tuple(edges)
    below, above = int((values < -1).sum()), int((values > 1).sum())
    assert stats.table()["0"].histogram == tuple(2 * n for n in (below, *inside, above))


numbers = st.lists(st.floats(-1e3, 1e3, width=32), max_size=20)


@settings(deadline=None, max_examples=50)
@given(numbers, numbers)
def test_two_parts_merge_to_the_whole(left, right):
    def row(values):
        return of(torch.tensor(values, dtype=torch.float64)) if values else ActivationRow("0")

    merged, whole = row(left).merge(row(right)), row(left + right)
    assert (merged.count, merged.zeros, merged.absmax) == (whole.count, whole.zeros, whole.absmax)
    assert merged.mean == pytest.approx(whole.mean, abs=1e-9)
    assert merged.m2 == pytest.approx(whole.m2, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ("tuple", ["inner.0", "inner.1.0"]),
        ("dict", ["inner.a", "inner.b.c"]),
        ("dataclass", ["inner.logits", "inner.hidden.0"]),
    ],
)
def test_a_layer_with_several_outputs_has_several_rows(shape, names):
    stats = ActivationStats()
    with tapping(model := Wrapper(Many(shape)), stats):
        model(torch.ones(3, 4))
    assert [row.name for row in stats.table()] == names
    assert [row.mean for row in stats.table()] == [1.0, 2.0]


def test_only_layers_that_compute_are_measured_unless_others_are_asked_for():
    model, x = Net(), torch.ones(2, 4)
    stats, whole = ActivationStats(), ActivationStats("blocks.*")
    with tapping(model, stats, whole):
        model(x)
        model.eval()(x)
    leaves = ["stem", "relu", "blocks.0.conv", "blocks.0.act", "blocks.1.conv", "blocks.1.act", "head"]
    assert [row.name for row in stats.table("train")] == leaves
    assert stats.table("train")["relu"].calls == 2
    assert [(row.name, row.phase) for row in whole.table()] == [
        ("blocks.0", "train"),
        ("blocks.1", "train"),
        ("blocks.0", "val"),
        ("blocks.1", "val"),
    ]
    stats.reset()
    assert len(stats.table()) == 0


def test_whole_numbers_are_passed_over():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Flatten())
    stats = ActivationStats(where=lambda name, module: True)
    with tapping(model, stats):
        model(torch.tensor([[0, 2]]))
    assert [row.name for row in stats.table()] == ["0", "1", ""]


def test_a_trainer_logs_the_whole_window_under_its_step():
    log, stats, seen = Log(), ActivationStats("net.head", every=2, log=("mean", "nonfinite")), []
    run = trainer(stats, log, accumulate_grad_batches=2)
    run.taps.tap("net.head", lambda event: seen.append(event.output.clone()), phases="train")
    run.fit(Training(), loader(8))
    whole = torch.cat(seen[2:4])
    names = {"activations/train/mean/net.head", "activations/train/nonfinite/net.head"}
    assert [(step, set(metrics)) for step, metrics in log.calls] == [(1, names), (3, names)]
    assert log.calls[0][1]["activations/train/mean/net.head"] == pytest.approx(whole.mean().item(), rel=1e-5)
    assert stats.table()["net.head"].count == torch.cat(seen[6:8]).numel()


def test_as_often_as_the_trainer_logs_by_default():
    log = Log()
    trainer(ActivationStats(phases="train", log="rms"), log, log_every_n_steps=3).fit(Training(), loader(7))
    assert [step for step, _ in log.calls] == [2, 5]
    never = ActivationStats()
    trainer(never, log_every_n_steps=0).fit(Training(), loader(3))
    assert not never.table()


def test_the_sanity_check_is_not_measured():
    stats = ActivationStats(every=1)
    trainer(stats).fit(Training(), loader(1), loader(2))
    assert {row.phase for row in stats.table()} == {"train", "val"}


def test_an_evaluation_is_one_period_over_all_its_loaders():
    class Several(Training):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.net(batch)

    log, stats = Log(), ActivationStats("net.head", every=1, phases=["val", "test"], log="mean")
    run = trainer(stats, log, max_epochs=2)
    model = Several()
    run.fit(model, loader(3), [loader(2), loader(3)])
    assert [(step, *metrics) for step, metrics in log.calls] == [(s, "activations/val/mean/net.head") for s in (2, 5)]
    assert stats.table("val")["net.head"].calls == 5
    run.test(model, loader(2), verbose=False)
    assert log.calls[-1][1].keys() == {"activations/test/mean/net.head"}
    assert [row.phase for row in stats.table()] == ["val", "test"]  # what the fit has measured is still there


def test_a_device_is_waited_for_once_per_step(monkeypatch):
    pretend_device(monkeypatch)
    model, stats = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), ActivationStats(histogram=(-1, 1, 4))
    with tapping(model, stats), Waiting() as waiting:
        model(torch.ones(2, 4))
        assert not waiting.count
        stats.table()
    assert waiting.count == {"tolist": 1}


def test_rows_that_wait_on_a_device_do_not_pile_up(monkeypatch):
    pretend_device(monkeypatch)
    monkeypatch.setattr("hookbus.taps.monitors.activation_stats._MOST_PENDING", 4)
    model, stats = nn.Sequential(nn.Linear(4, 4)), ActivationStats()
    with tapping(model, stats):
        for _ in range(10):
            model(torch.ones(2, 4))
            assert len(stats._pending) < 4
    assert stats.table()["0"].calls == 10


def test_repeated_forward_passes_do_not_count_twice():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    stats = ActivationStats()
    with tapping(model := Net(), stats):
        model(torch.ones(2, 4)).sum().backward()
    assert [row.calls for row in stats.table()] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"histogram": (1, 0, 3)}, "low < high"),
        ({"histogram": 3}, r"\(low, high, bins\)"),
        ({"histogram": (0, math.inf, 3)}, "low < high"),
        ({"log": ["median"]}, "log must be some of mean"),
        ({"prefix": ""}, "prefix must be a word"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ActivationStats(**arguments)


def test_the_table_prints_and_sorts():
    stats = ActivationStats()
    with tapping(model := Net(), stats):
        model(torch.ones(2, 4))
    table = stats.table()
    assert "blocks.1.conv" in str(table)
    assert [row.absmax for row in table.sorted_by("absmax")] == sorted((row.absmax for row in table), reverse=True)
    assert len(table[:2]) == 2
    with pytest.raises(KeyError, match="did you mean 'head'"):
        table["heat"]
