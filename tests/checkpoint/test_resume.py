"""A run that is saved and taken up again is the run that was never interrupted, to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.world import (
    Net,
    Numbers,
    Plan,
    Run,
    all_resumed_equal_straight,
    difference,
    resumed_equals_straight,
    saver,
    train,
)

from hookbus import Callback
from hookbus.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from hookbus.errors import MisconfigurationException

Make = Callable[[Path], Sequence[Callback]]


def nothing(folder: Path) -> Sequence[Callback]:
    return ()


CASES: dict[str, tuple[Plan, Make]] = {
    "windows, plateau by step": (
        Plan(epochs=2, batches=5, accumulate=3, val_interval=2, scheduler="plateau by step"),
        nothing,
    ),
    "shares of an epoch, plateau": (
        Plan(epochs=3, batches=4, accumulate=2, val_interval=0.5, scheduler="plateau"),
        nothing,
    ),
    "schedule by step": (Plan(epochs=2, batches=4, scheduler="step", noise=True), nothing),
    "schedule by epoch": (Plan(epochs=3, batches=3, scheduler="epoch"), nothing),
    "every other epoch": (Plan(epochs=4, batches=3, val_every_epochs=2), nothing),
    "across epochs": (Plan(max_steps=8, batches=3, val_every_epochs=None, val_interval=4), nothing),
    "bf16": (Plan(epochs=2, batches=4, accumulate=2, precision="bf16-mixed"), nothing),
    "a scaler": (Plan(epochs=2, batches=4, accumulate=2, precision="16-mixed", val_interval=2), nothing),
    "64 bits": (Plan(epochs=2, batches=3, precision="64-true"), nothing),
    "by hand": (Plan(epochs=2, batches=5, manual=True, accumulate=2, optimizers=2, val_interval=3), nothing),
    "by hand with a scaler": (Plan(epochs=2, batches=4, manual=True, optimizers=2, precision="16-mixed"), nothing),
    "several validation loaders": (Plan(epochs=2, batches=4, val_loaders=2, val_interval=2), nothing),
    "clipped": (Plan(epochs=2, batches=4, options={"gradient_clip_val": 0.1}), lambda _: [LearningRateMonitor("step")]),
    "a moving average": (
        Plan(epochs=2, batches=4, accumulate=2, val_interval=2),
        lambda _: [EMAWeightAveraging(decay=0.8)],
    ),
    "an average without buffers": (Plan(epochs=2, batches=4), lambda _: [WeightAveraging(use_buffers=False)]),
    "averages of epochs": (
        Plan(epochs=4, batches=3, scheduler="epoch"),
        lambda _: [StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=2)],
    ),
    "growing windows": (Plan(epochs=3, batches=4), lambda _: [GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})]),
    "stopped after epochs": (Plan(epochs=6, batches=3), lambda _: [EarlyStopping("val", patience=1, min_delta=5.0)]),
    "stopped after validations": (
        Plan(epochs=6, batches=4, val_interval=2),
        lambda _: [EarlyStopping("val", patience=2, min_delta=5.0)],
    ),
    "stopped late": (
        Plan(epochs=6, batches=3, val_every_epochs=2, options={"min_epochs": 4}),
        lambda _: [EarlyStopping("val", stopping_threshold=1e9)],
    ),
    "the best are kept": (
        Plan(epochs=3, batches=3),
        lambda folder: [ModelCheckpoint(folder / "kept", monitor="val", save_top_k=2, save_last=True)],
    ),
    "saves that wait for a validation": (
        Plan(epochs=2, batches=4, val_interval=2),
        lambda folder: [
            EarlyStopping("val", patience=3, min_delta=5.0),
            ModelCheckpoint(folder / "kept", monitor="val", every_n_train_steps=2, save_top_k=1, save_last=True),
        ],
    ),
    "time": (Plan(epochs=2, batches=3), lambda _: [Timer(timedelta(hours=1))]),
}
MOMENTS = [
    ("on_train_batch_end", 0),
    ("on_train_batch_end", 4),
    ("on_validation_batch_end", 1),
    ("on_validation_end", 0),
    ("on_train_epoch_end", 0),
]


@pytest.mark.parametrize("name", CASES)
def test_taken_up_is_never_interrupted(name: str, tmp_path: Path) -> None:
    plan, make = CASES[name]
    runs = list(all_resumed_equal_straight(plan, MOMENTS, tmp_path, lambda: make(tmp_path / "run")))
    assert len(runs) == len(MOMENTS)


def test_with_workers(tmp_path: Path) -> None:
    plan = Plan(epochs=2, batches=4, workers=2, accumulate=3)
    assert resumed_equals_straight(plan, "on_train_batch_end", 5, tmp_path) is not None


def test_saved_in_any_hook_between_two_batches(tmp_path: Path) -> None:
    several = ("train_epoch_start", "train_batch_end", "validation_start", "validation_epoch_start")
    several += ("validation_batch_start", "validation_batch_end", "validation_epoch_end", "validation_end")
    moments = [(f"on_{hook}", 1) for hook in (*several, "train_epoch_end")]
    moments += [("on_train_start", 0), ("on_train_end", 0), ("on_fit_end", 0)]
    plan = Plan(epochs=2, batches=3, val_interval=2, scheduler="plateau by step")
    assert len(list(all_resumed_equal_straight(plan, moments, tmp_path))) == len(moments)


# --- in the middle of a batch -----------------------------------------------------------------------------------------

INSIDE = (
    *("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    "on_before_optimizer_step",
)


def trained(run: Run) -> dict[str, Any]:
    """What an optimiser has made, and of which batches; a batch that was begun twice is in statistics and logs twice."""
    return {
        "weights": [parameter.tolist() for parameter in run.module.parameters()],
        "optimizers": run.result["optimizers"],
        "steps": (run.trainer.global_step, run.trainer.current_epoch, run.trainer.progress.total_batches),
    }


@pytest.mark.parametrize("nth", [0, 2, 3, 5])
@pytest.mark.parametrize("moment", INSIDE)
def test_a_batch_that_was_begun_is_taken_again(moment: str, nth: int, tmp_path: Path) -> None:
    path, plan = tmp_path / "x.ckpt", Plan(epochs=2, batches=3, dropout=0.0)
    straight = train(plan, saver(path, moment, nth), folder=tmp_path / "run")
    resumed = train(plan, ckpt_path=path, folder=tmp_path / "run")
    assert resumed.module.seen == straight.module.seen[nth:]
    assert not difference(trained(resumed), trained(straight))


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("moment", ["on_train_batch_start", "on_before_backward", "on_after_backward"])
def test_no_batch_counts_twice_in_the_gradients_of_a_window(moment: str, nth: int, tmp_path: Path) -> None:
    path, plan = tmp_path / "x.ckpt", Plan(epochs=1, batches=5, accumulate=3, dropout=0.0, hooks=False)
    straight = train(plan, saver(path, moment, nth), folder=tmp_path / "run")
    resumed = train(plan, ckpt_path=path, folder=tmp_path / "run")
    # After the gradients of a batch have been added to those of its window, all batches of the window are taken again.
    first = nth - nth % 3 if moment == "on_after_backward" else nth
    assert resumed.module.seen == straight.module.seen[first:]
    assert not difference(trained(resumed), trained(straight))


def test_saving_inside_a_batch_is_said(tmp_path: Path) -> None:
    run = train(Plan(epochs=1), folder=tmp_path)
    run.trainer.fit_loop.max_epochs = 2

    class Save(Callback):
        def on_before_optimizer_step(self, trainer: Any, *args: Any) -> None:
            trainer.save_checkpoint(tmp_path / "x.ckpt")

    run.trainer.callbacks.append(Save())
    with pytest.warns(UserWarning, match=r"in the middle of a batch \(on_before_optimizer_step\).*control\.save\(\)"):
        run.trainer.fit(run.module, torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=3))


# --- after an exception -------------------------------------------------------------------------------------------------


class Trouble(RuntimeError):
    pass


def breaking(hook: str, nth: int) -> Callback:
    """A callback that raises in the ``nth`` call of a hook, once."""
    calls = []

    def method(self: Callback, trainer: Any, *args: Any) -> None:
        calls.append(hook)
        if len(calls) == nth + 1:
            raise Trouble(hook)

    made: Callback = type("Breaking", (Callback,), {hook: method})()
    return made


@pytest.mark.parametrize(
    ("hook", "nth"),
    [
        *(("on_train_batch_start", 0), ("on_train_batch_start", 2), ("on_train_batch_start", 3)),
        *(("on_before_backward", 4), ("on_after_backward", 1), ("on_before_optimizer_step", 1)),
        *(("on_validation_batch_start", 1), ("on_validation_end", 0), ("on_train_epoch_start", 1)),
    ],
)
def test_a_run_that_an_exception_ended(hook: str, nth: int, tmp_path: Path) -> None:
    options = {"num_sanity_val_steps": 0}
    plan = Plan(epochs=2, batches=3, accumulate=2, dropout=0.0, val_interval=2, hooks=False, options=options)
    straight = train(plan, folder=tmp_path)
    rescue = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(Trouble):
        train(plan, breaking(hook, nth), rescue, folder=tmp_path)
    resumed = train(plan, ckpt_path=rescue.ckpt_path, folder=tmp_path)
    assert not difference(trained(resumed), trained(straight))
    assert resumed.module.seen == straight.module.seen[-len(resumed.module.seen) :]


def test_data_that_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = Plan(epochs=2, batches=3, workers=0)
    straight = train(plan, folder=tmp_path)
    rescue = OnExceptionCheckpoint(tmp_path)
    get, gotten = Numbers.__getitem__, []

    def failing(self: Numbers, index: int) -> torch.Tensor:
        gotten.append(index)
        if len(gotten) == 29:  # 9 of training, 7 of validation, 9 and 3
            raise Trouble("disk")
        return get(self, index)

    monkeypatch.setattr(Numbers, "__getitem__", failing)
    with pytest.raises(Trouble):
        train(plan, rescue, folder=tmp_path)
    monkeypatch.setattr(Numbers, "__getitem__", get)
    resumed = train(plan, ckpt_path=rescue.ckpt_path, folder=tmp_path)
    assert not difference(resumed.result, straight.result)


# --- the end of a run -----------------------------------------------------------------------------------------------------


class Stop(Callback):
    """Asks for the end after a batch."""

    def __init__(self, nth: int, *, attribute: bool = False) -> None:
        self.nth, self.attribute = nth, attribute

    def on_train_batch_end(self, trainer: Any, module: Net, *args: Any) -> None:
        if len(module.seen) == self.nth:
            if self.attribute:
                trainer.should_stop = True
            else:
                trainer.control.stop("enough")


@pytest.mark.parametrize("attribute", [False, True])
def test_a_stopped_run_stays_stopped(attribute: bool, tmp_path: Path) -> None:
    plan, path = Plan(epochs=3, batches=4, val_interval=2), tmp_path / "x.ckpt"
    stopped = train(plan, Stop(5, attribute=attribute), saver(path, "on_train_end", 0), folder=tmp_path / "run")
    assert len(stopped.module.seen) == 5
    resumed = train(plan, ckpt_path=path, folder=tmp_path)
    assert resumed.module.seen == []
    assert not difference(resumed.result, stopped.result)
    further = train(plan, ckpt_path=path, folder=tmp_path, max_epochs=4)
    assert len(further.module.seen) > 0, "a later end was asked for"


@pytest.mark.parametrize(
    ("options", "lifted"),
    [
        ({"patience": 1, "min_delta": 5.0}, {"patience": 9, "min_delta": 5.0}),
        ({"stopping_threshold": 1e9}, {}),
        ({"divergence_threshold": 1e-9}, {}),
    ],
)
def test_what_early_stopping_ended_stays_ended(
    options: dict[str, Any], lifted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, path = Plan(epochs=5, batches=2), tmp_path / "x.ckpt"
    first = EarlyStopping("val", **options)
    stopped = train(plan, first, saver(path, "on_train_end", 0), folder=tmp_path / "run")
    assert stopped.trainer.current_epoch < 5
    again = EarlyStopping("val", **options)
    resumed = train(plan, again, ckpt_path=path, folder=tmp_path)
    assert resumed.module.seen == []
    assert (again.stopping_reason, again.stopped_epoch) == (first.stopping_reason, first.stopped_epoch)
    assert "EarlyStopping had ended the run of this checkpoint" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*goes on with patience")
        further = train(plan, EarlyStopping("val", **lifted), ckpt_path=path, folder=tmp_path)
    assert further.trainer.current_epoch == 5


def test_a_run_with_a_later_end_goes_on(tmp_path: Path) -> None:
    path, short = tmp_path / "x.ckpt", Plan(epochs=2, batches=3, accumulate=2, scheduler="plateau")
    first = train(short, saver(path, "on_train_end", 0), folder=tmp_path / "run")
    resumed = train(short, ckpt_path=path, folder=tmp_path, max_epochs=4)
    straight = train(short, folder=tmp_path, max_epochs=4)
    assert first.module.seen + resumed.module.seen == straight.module.seen
    assert first.logger.rows + resumed.logger.rows == straight.logger.rows
    assert not difference(resumed.result, straight.result)


def test_a_number_of_steps_raised_within_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    plan = Plan(max_steps=5, batches=4, val_every_epochs=None, val_interval=3, hooks=False)
    first = train(plan, saver(path, "on_train_end", 0), folder=tmp_path / "run")
    resumed = train(plan, ckpt_path=path, folder=tmp_path, max_steps=9)
    straight = train(plan, folder=tmp_path, max_steps=9)
    assert first.module.seen + resumed.module.seen == straight.module.seen
    # That the epoch was ended in between has left its traces in counters and in what was logged of it.
    found = difference(resumed.result, straight.result)
    assert not found.keys() & {"weights", "optimizers", "random"}, found


def test_a_run_that_is_over_does_nothing_and_stands_where_it_stood(tmp_path: Path) -> None:
    path, plan = tmp_path / "x.ckpt", Plan(epochs=1, batches=3)
    ended = train(plan, saver(path, "on_train_end", 0), folder=tmp_path / "run")
    with pytest.warns(UserWarning, match="fit trains nothing"):
        resumed = train(plan, ckpt_path=path, folder=tmp_path)
    assert resumed.module.seen == []
    assert not difference(resumed.result, ended.result)


def test_an_end_before_the_epoch_of_the_file_is_refused(tmp_path: Path) -> None:
    path, plan = tmp_path / "x.ckpt", Plan(epochs=3, batches=3)
    train(plan, saver(path, "on_train_end", 0), folder=tmp_path / "run")
    with pytest.raises(MisconfigurationException, match=r"saved in epoch .*max_epochs=1 ends before: raise"):
        train(plan, ckpt_path=path, folder=tmp_path, max_epochs=1)


def test_a_validation_that_was_due_is_not_lost(tmp_path: Path) -> None:
    plan, path = Plan(epochs=1, batches=4, val_interval=2), tmp_path / "x.ckpt"
    straight = train(plan, saver(path, "on_train_batch_end", 1), folder=tmp_path / "run")
    resumed = train(plan, ckpt_path=path, folder=tmp_path)
    assert straight.counter.calls["on_validation_end"] == resumed.counter.calls["on_validation_end"] == 2
    validated = [row for row in resumed.logger.rows if "val" in row[1]]
    assert validated == [row for row in straight.logger.rows if "val" in row[1]]


def test_control_saves_after_the_batch(tmp_path: Path) -> None:
    class Ask(Callback):
        def on_before_optimizer_step(self, trainer: Any, *args: Any) -> None:
            if trainer.progress.total_batches == 2:
                trainer.control.save()

    plan = Plan(epochs=1, batches=4, val_interval=2)
    straight = train(plan, Ask(), folder=tmp_path)
    path = tmp_path / "checkpoints" / "epoch=0-step=2.ckpt"
    resumed = train(plan, ckpt_path=path, folder=tmp_path)
    assert resumed.module.seen == straight.module.seen[2:]
    assert not difference(resumed.result, straight.result)


# --- objects that accumulate ----------------------------------------------------------------------------------------------


class Values(torch.nn.Module):
    """A metric as those of torchmetrics are: the mean of all that it was given, one by one in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def update(self, value: torch.Tensor) -> None:
        self.values.append(value.detach())
        self.total += value.detach()
        self._update_count += 1

    def compute(self) -> torch.Tensor:
        return torch.stack(self.values).mean() + self.total

    def reset(self) -> None:
        self.values: list[torch.Tensor] = []
        self.total = torch.zeros(())
        self._update_count = 0

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"values": self.values, "total": self.total}


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_validation_batch_end", "on_validation_epoch_end"])
def test_metric_objects(moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Updated with each batch, logged at the end of an epoch."""
    make, train_step, val_step = Net.__init__, Net.training_step, Net.validation_step

    def init(self: Net, plan: Plan) -> None:
        make(self, plan)
        self.of_training, self.of_validation = Values(), Values()

    def training_step(self: Net, batch: torch.Tensor, batch_idx: int) -> Any:
        self.of_training.update(batch[:, 1].mean())
        return train_step(self, batch, batch_idx)

    def validation_step(self: Net, batch: torch.Tensor, batch_idx: int) -> None:
        self.of_validation.update(batch[:, 1].mean())
        val_step(self, batch, batch_idx)

    monkeypatch.setattr(Net, "__init__", init)
    monkeypatch.setattr(Net, "training_step", training_step)
    monkeypatch.setattr(Net, "validation_step", validation_step)
    epoch_end = Net.on_train_epoch_end

    def on_train_epoch_end(self: Net) -> None:
        epoch_end(self)
        self.log("of_training", self.of_training)

    monkeypatch.setattr(Net, "on_train_epoch_end", on_train_epoch_end)
    monkeypatch.setattr(
        Net, "on_validation_epoch_end", lambda self: self.log("of_validation", self.of_validation), raising=False
    )
    plan = Plan(epochs=2, batches=4, val_interval=2)
    assert resumed_equals_straight(plan, moment, 1, tmp_path) is not None
