"""The plugin in real runs, with a clock that only the loader and the steps move: so the figures are exact."""

from __future__ import annotations

import csv
from pathlib import Path

import importlib_metadata
import pytest
import torch

import hookbus
import hookbus_throughput
from hookbus_throughput import Tally, Throughput, batch_size

FETCH, STEP, VALIDATION = 1.0, 3.0, 100.0


class Clock:
    """Stands in for ``perf_counter``."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowLoader:
    """Batches that take ``FETCH`` seconds each."""

    def __init__(self, clock: Clock, batches: list[object], seconds: float = FETCH) -> None:
        self.clock, self.batches, self.seconds = clock, batches, seconds

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.clock.now += self.seconds
            yield batch


class Model(hookbus.LightningModule):
    """A step takes ``STEP`` seconds, a validation step ``VALIDATION``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.layer = torch.nn.Linear(2, 1)
        self.fail_at: int | None = None

    def training_step(self, batch, batch_idx):
        if self.fail_at == batch_idx:
            raise ZeroDivisionError("a mistake in the step")
        self.clock.now += STEP
        return self.layer(torch.ones(4, 2)).sum()

    def validation_step(self, batch, batch_idx):
        self.clock.now += VALIDATION

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hookbus_throughput, "perf_counter", clock)
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    return clock


@pytest.fixture
def trainer(tmp_path):
    def make(**options) -> hookbus.Trainer:
        given = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "plugins": [Throughput()]}
        return hookbus.Trainer(default_root_dir=tmp_path, **{**given, **options})

    return make


def logged(trainer: hookbus.Trainer) -> list[dict[str, str]]:
    """The rows of metrics.csv that hold a figure of the plugin."""
    path = Path(trainer.log_dir) / "metrics.csv"
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("throughput/data_wait_fraction")]


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.ones(4, 2) for _ in range(count)]


def test_report_at_the_end_of_fit(clock, trainer, capsys):
    trainer().fit(Model(clock), SlowLoader(clock, tensors(10)))
    out = capsys.readouterr().out
    assert "throughput of 10 batches in 40.00 s of training" in out
    assert "samples/s  1.0\n" in out
    assert "steps/s    0.2\n" in out
    assert "data wait  25.0% of the time, 1000.00 ms per batch" in out
    assert "compute    75.0% of the time, 3000.00 ms per batch" in out


def test_one_row_per_epoch_in_the_log(clock, trainer):
    run = trainer(max_epochs=2)
    run.fit(Model(clock), SlowLoader(clock, tensors(10)))
    rows = logged(run)
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "9"), ("1", "19")]
    for row in rows:
        assert float(row["throughput/samples_per_second"]) == pytest.approx(1.0)
        assert float(row["throughput/steps_per_second"]) == pytest.approx(0.25)
        assert float(row["throughput/data_wait_fraction"]) == pytest.approx(0.25)


def test_validation_is_not_waiting(clock, trainer, capsys):
    loader, validation = SlowLoader(clock, tensors(10)), SlowLoader(clock, tensors(3), seconds=VALIDATION)
    trainer(val_check_interval=0.25, max_epochs=2).fit(Model(clock), loader, validation)
    assert "throughput of 20 batches in 80.00 s of training" in capsys.readouterr().out


def test_what_callbacks_do_between_epochs_is_not_waiting(clock, trainer, capsys):
    class Slow(hookbus.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            clock.now += 1000

    trainer(callbacks=[Slow()], max_epochs=2).fit(Model(clock), SlowLoader(clock, tensors(10)))
    assert "throughput of 20 batches in 80.00 s of training" in capsys.readouterr().out


def test_what_others_do_with_a_batch_is_computing(clock, trainer, capsys):
    class Slow(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            clock.now += 2

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            clock.now += 4

    trainer(callbacks=[Slow()]).fit(Model(clock), SlowLoader(clock, tensors(10)))
    out = capsys.readouterr().out
    assert "data wait  10.0%" in out
    assert "9000.00 ms per batch" in out


def test_steps_are_those_of_the_optimizer(clock, trainer, capsys):
    trainer(accumulate_grad_batches=4).fit(Model(clock), SlowLoader(clock, tensors(10)))  # 3 steps in 40 s
    out = capsys.readouterr().out
    assert "throughput of 10 batches" in out
    assert "steps/s    0.1\n" in out


def test_each_fit_is_reported_for_itself(clock, trainer, capsys):
    run, model, loader = trainer(), Model(clock), SlowLoader(clock, tensors(10))
    run.fit(model, loader)
    run.fit_loop.max_epochs = 3
    capsys.readouterr()
    run.fit(model, loader)
    assert "throughput of 20 batches in 80.00 s of training" in capsys.readouterr().out
    assert len(logged(run)) == 3


def test_fit_that_fails_reports_what_was_measured(clock, trainer, capsys):
    model = Model(clock)
    model.fail_at = 6
    run = trainer()
    with pytest.raises(ZeroDivisionError):
        run.fit(model, SlowLoader(clock, tensors(10)))
    out = capsys.readouterr().out
    assert "throughput of 6 batches in 25.00 s of training" in out  # the seventh batch was fetched, too
    model.fail_at = None
    run.validate(model, SlowLoader(clock, tensors(1)), verbose=False)
    assert "throughput" not in capsys.readouterr().out


def test_fit_that_trains_nothing_reports_nothing(clock, trainer, capsys):
    trainer(max_epochs=0).fit(Model(clock), SlowLoader(clock, tensors(10)))
    assert "throughput" not in capsys.readouterr().out


def test_fetching_a_batch_that_is_skipped_is_waiting(clock, trainer, capsys):
    class SkipEverySecond(hookbus.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx % 2:
                trainer.control.skip_batch("only the even ones")

    trainer(callbacks=[SkipEverySecond()]).fit(Model(clock), SlowLoader(clock, tensors(10)))
    out = capsys.readouterr().out
    assert "throughput of 5 batches in 25.00 s of training" in out  # ten were fetched
    assert "compute    60.0% of the time, 3000.00 ms per batch" in out


def test_unknown_batch_size_leaves_samples_out(clock, trainer, capsys):
    run = trainer()
    run.fit(Model(clock), SlowLoader(clock, [*tensors(1), "no tensor"]))
    assert "samples/s  unknown: the batches do not tell their size" in capsys.readouterr().out
    (row,) = logged(run)
    assert "throughput/samples_per_second" not in row
    assert float(row["throughput/steps_per_second"]) == pytest.approx(0.25)


def test_weights_are_the_same_with_and_without(clock, trainer):
    def weights(plugins: list[object]) -> torch.Tensor:
        hookbus.seed_everything(0, verbose=False)
        model = Model(clock)
        trainer(plugins=plugins, max_epochs=2).fit(model, SlowLoader(clock, tensors(5)))
        return model.layer.weight.detach()

    assert torch.equal(weights([Throughput()]), weights([]))


def test_installing_is_all_it_takes(trainer, capsys, monkeypatch):
    monkeypatch.delenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    try:
        importlib_metadata.distribution("hookbus-throughput")
    except importlib_metadata.PackageNotFoundError:
        pytest.skip("hookbus-throughput is not installed here; `make test` installs it")
    run = trainer(plugins=[])
    assert run.bus.registration("throughput").role == "monitor"
    run.fit(Model(Clock()), SlowLoader(Clock(), tensors(3)))
    printed = capsys.readouterr()
    assert "throughput-0.1.0" in printed.err
    assert "throughput of 3 batches" in printed.out
    assert not trainer(plugins=["no:throughput"]).bus.has_plugin("throughput")


def test_each_trainer_gets_its_own(trainer):
    first, second = (trainer(plugins=["hookbus_throughput:Throughput"]) for _ in range(2))
    name = next(name for name in first.bus.names() if "throughput" in name.lower())
    assert first.bus.get_plugin(name) is not second.bus.get_plugin(name)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.ones(4, 2), 4),
        ([torch.ones(3, 2), torch.ones(3)], 3),
        ({"name": "x", "image": torch.ones(5, 1, 8, 8)}, 5),
        ((["a", "b"], {"x": [torch.ones(2)]}), 2),
        (torch.tensor(1.0), None),
        ("text", None),
        ([], None),
        (None, None),
    ],
)
def test_batch_size(batch, expected):
    assert batch_size(batch) == expected


def test_empty_tally_has_no_numbers():
    assert Tally().metrics() == {}
