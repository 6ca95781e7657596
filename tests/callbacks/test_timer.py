"""Timer: where it ends a training, as recorded from Lightning with a clock of our own; limits per run and over all."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import _tick, loader, ticking

from hookbus.callbacks import Timer
from hookbus.callbacks.timer import Interval
from hookbus.errors import MisconfigurationException


def fit(
    folder: Path, timer: Any, clock: list[float], *, model: Any = None, ckpt_path: Any = None, **arguments: Any
) -> Any:
    """Train four batches an epoch, each of which takes a second."""
    trainer = HOOKBUS.trainer(folder, callbacks=[_tick(HOOKBUS, clock), *([timer] if timer else [])], **arguments)
    with ticking(clock):
        trainer.fit(model or HOOKBUS.model(), loader(8), ckpt_path=ckpt_path)
    return trainer


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("timer", tmp_path), RECORDED["timer"])


def test_the_message_names_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, Timer({"seconds": 3}), [0.0], max_epochs=5)
    said = capsys.readouterr().out
    assert "time limit of 0:00:03 reached after 0:00:03: training stops" in said
    assert not re.search("<|method|object", said)
    assert "time limit" in trainer.control.history[-1].reason


def test_the_message_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, Timer({"seconds": 3}, verbose=False), [0.0], max_epochs=5)
    assert "time limit" not in capsys.readouterr().out


@pytest.mark.parametrize(("per_run", "steps"), [(False, [4, 6]), (True, [4, 10])])
def test_a_limit_over_all_runs_or_for_each(per_run: bool, steps: list[int], tmp_path: Path) -> None:
    path, found = tmp_path / "x.ckpt", []
    for epochs, resume in ((1, None), (9, path)):
        timer = Timer({"seconds": 6}, per_run=per_run)
        trainer = fit(tmp_path, timer, [0.0], max_epochs=epochs, ckpt_path=resume)
        trainer.save_checkpoint(path)
        found.append(trainer.global_step)
    assert found == steps
    assert timer.time_elapsed() == 6.0


def test_a_run_whose_time_is_used_up_does_not_train(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    fit(tmp_path, Timer({"seconds": 2}), [0.0], max_epochs=9).save_checkpoint(path)
    trainer = fit(tmp_path, Timer({"seconds": 2}), [0.0], max_epochs=9, ckpt_path=path)
    assert trainer.global_step == 2


def test_a_second_fit_adds_its_time(tmp_path: Path) -> None:
    timer, clock = Timer(), [0.0]
    trainer = fit(tmp_path, timer, clock, max_epochs=1)
    trainer.fit_loop.max_epochs = 2
    clock[0] += 100  # in between nobody trains
    with ticking(clock):
        trainer.fit(trainer.lightning_module, loader(8))
    assert timer.time_elapsed() == 8.0


def test_minimum_epochs_hold(tmp_path: Path) -> None:
    assert fit(tmp_path, Timer({"seconds": 1}), [0.0], min_epochs=2, max_epochs=9).global_step == 8


def test_an_exception_ends_what_was_measured(tmp_path: Path) -> None:
    def failing(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise RuntimeError("as planned")
        return module(batch).mean()

    timer, clock = Timer(), [0.0]
    with pytest.raises(RuntimeError, match="as planned"):
        fit(tmp_path, timer, clock, model=HOOKBUS.model(training_step=failing), max_epochs=1)
    clock[0] += 50
    assert timer.time_elapsed() == 3.0


def test_max_time_adds_a_timer(tmp_path: Path) -> None:
    trainer = fit(tmp_path, None, [0.0], max_time={"seconds": 5})
    assert trainer.global_step == 5
    assert [type(c).__name__ for c in trainer.callbacks] == ["Tick", "Timer"]


def test_a_timer_goes_before_max_time(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="max_time is ignored"):
        trainer = HOOKBUS.Trainer(
            callbacks=[Timer({"seconds": 3})], max_time="00:00:00:01", logger=False, enable_progress_bar=False
        )
    assert sum(isinstance(c, Timer) for c in trainer.callbacks) == 1


def test_several_timers_keep_a_state_each(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[Timer(), Timer(interval="epoch")])
    trainer.fit(HOOKBUS.model(), loader(4))
    trainer.save_checkpoint(path)
    import torch

    assert sorted(torch.load(path, weights_only=True)["callbacks"]) == ["Timer", "Timer#2"]


def test_a_trial_run(tmp_path: Path) -> None:
    assert fit(tmp_path, Timer({"seconds": 60}), [0.0], fast_dev_run=True).global_step == 1


def test_durations() -> None:
    forms = ["01:02:03:04", timedelta(1, 7384), {"days": 1, "hours": 2, "minutes": 3, "seconds": 4}]
    assert {Timer(form).time_remaining() for form in forms} == {93784.0}
    assert Timer().time_remaining() is None
    assert Timer(interval=Interval.epoch).time_elapsed("test") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"duration": "6:00"}, "'DD:HH:MM:SS'"),
        ({"duration": 60}, "'DD:HH:MM:SS'"),
        ({"duration": {"hour": 1}}, "arguments of datetime.timedelta"),
        ({"duration": timedelta(seconds=-1)}, "must not be negative"),
        ({"interval": "batch"}, "interval must be 'step' or 'epoch'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        Timer(**arguments)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no stage 'fit'; there are train, "):
        Timer().time_elapsed("fit")
