"""Progress bars, driven by hand: what is shown, when, and what it costs the run."""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import rich
import torch
from rich.text import Text

from hookbus.callbacks.progress import (
    NotebookProgress,
    PlainProgress,
    ProgressBar,
    RichProgressBar,
    RichProgressBarTheme,
    TimedProgressBar,
    default_progress_bar,
)
from hookbus.errors import MisconfigurationException


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Trainer(SimpleNamespace):
    """What a bar needs of a trainer; counts how often the metrics are read."""

    reads = 0

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        self.reads += 1
        return self.shown

    def __init__(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "num_training_batches": 10,
            "num_val_batches": [4],
            "num_sanity_val_batches": [2],
            "num_test_batches": [3],
            "num_predict_batches": [3],
            "current_epoch": 0,
            "max_epochs": 2,
            "max_steps": -1,
            "global_step": 0,
            "sanity_checking": False,
            "is_global_zero": True,
            "loggers": [],
            "shown": {},
        }
        super().__init__(**{**values, **changes})


@pytest.fixture(autouse=True)
def _no_bar_on_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedProgressBar, "_on_display", None)


class Spy(TimedProgressBar):
    """Notes what it is asked to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[str, str, bool]] = []
        self.metrics: list[dict[str, Any]] = []
        self.calls: list[str] = []

    def _start_display(self) -> None:
        self.calls.append("start")

    def _draw(self, meter: Any, metrics: dict[str, Any], *, final: bool) -> None:
        self.drawn.append((meter.description.strip(), meter.count, final))
        self.metrics.append(dict(metrics))

    def _stop_display(self) -> None:
        self.calls.append("stop")


def made(bar: Any, **changes: Any) -> tuple[Any, Trainer, Clock]:
    trainer, clock = Trainer(**changes), Clock()
    bar._clock = clock
    bar.setup(trainer, None, "fit")
    return bar, trainer, clock


def train_epoch(bar: Any, trainer: Trainer, clock: Clock, *, batches: int = 10, seconds: float = 0.01) -> None:
    bar.on_train_epoch_start(trainer, None)
    for index in range(batches):
        clock.time += seconds
        bar.on_train_batch_end(trainer, None, None, None, index)
    bar.on_train_epoch_end(trainer, None)


def evaluate(bar: Any, trainer: Trainer, clock: Clock, stage: str, sizes: list[int], seconds: float = 0.01) -> None:
    getattr(bar, f"on_{stage}_start")(trainer, None)
    for loader, size in enumerate(sizes):
        for index in range(size):
            getattr(bar, f"on_{stage}_batch_start")(trainer, None, None, index, loader)
            clock.time += seconds
            getattr(bar, f"on_{stage}_batch_end")(trainer, None, None, None, index, loader)
    getattr(bar, f"on_{stage}_end")(trainer, None)


# --- when ---------------------------------------------------------------------------------------------------------


def test_it_refreshes_by_time_and_reads_metrics_only_then() -> None:
    bar, trainer, clock = made(Spy(), num_training_batches=1000)
    bar.on_train_start(trainer, None)
    train_epoch(bar, trainer, clock, batches=1000, seconds=0.001)  # one second
    bar.on_train_end(trainer, None)
    assert 9 <= len(bar.drawn) <= 12
    assert trainer.reads == len(bar.drawn)
    assert bar.drawn[-1] == ("Epoch 0/1", "1000/1000", True)


def test_a_slow_display_is_drawn_less_often() -> None:
    bar, trainer, clock = made(Spy(), num_training_batches=1000)
    draw = bar._draw

    def slow(*args: Any, **kwargs: Any) -> None:
        clock.time += 0.1
        draw(*args, **kwargs)

    bar._draw = slow
    bar.on_train_start(trainer, None)
    train_epoch(bar, trainer, clock, batches=1000, seconds=0.01)  # ten seconds
    assert len(bar.drawn) <= 3


def test_what_is_logged_at_the_end_of_the_epoch_is_shown() -> None:
    bar, trainer, clock = made(Spy())
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    clock.time += 1
    trainer.shown = {"late": 1.0}  # the module logs before on_train_epoch_end of the bar, which is trylast
    bar.on_train_epoch_end(trainer, None)
    assert bar.metrics[-1] == {"late": 1.0}
    assert bar.on_train_epoch_end.hookbus_impl["trylast"]


# --- what ---------------------------------------------------------------------------------------------------------


def test_validation_of_several_loaders_within_an_epoch() -> None:
    bar, trainer, clock = made(Spy(), num_val_batches=[2, float("inf")])
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    clock.time += 1
    bar.on_train_batch_end(trainer, None, None, None, 0)
    evaluate(bar, trainer, clock, "validation", [2, 3], seconds=1)
    clock.time += 1
    bar.on_train_batch_end(trainer, None, None, None, 1)
    assert bar.drawn == [
        ("Epoch 0/1", "1/10", False),
        ("Validation DataLoader 0", "1/2", False),
        ("Validation DataLoader 0", "2/2", False),
        ("Validation DataLoader 1", "1", False),
        ("Validation DataLoader 1", "2", False),
        ("Validation DataLoader 1", "3", False),
        ("Epoch 0/1", "2/10", False),
    ]
    assert bar.total_val_batches == float("inf")


def test_the_sanity_check_has_its_own_bar() -> None:
    bar, trainer, clock = made(Spy(), sanity_checking=True)
    bar.on_sanity_check_start(trainer, None)
    evaluate(bar, trainer, clock, "validation", [2], seconds=1)
    bar.on_sanity_check_end(trainer, None)
    trainer.sanity_checking = False
    evaluate(bar, trainer, clock, "validation", [1], seconds=1)
    assert bar.drawn == [
        ("Sanity Checking", "1/2", False),
        ("Sanity Checking", "2/2", False),
        ("Validation", "1/4", False),
        ("Validation", "1/4", True),
    ]


@pytest.mark.parametrize(("stage", "name"), [("test", "Testing"), ("predict", "Predicting")])
def test_test_and_predict_end_with_their_last_state(stage: str, name: str) -> None:
    bar, trainer, clock = made(Spy())
    evaluate(bar, trainer, clock, stage, [3], seconds=0)
    bar.teardown(trainer, None, stage)
    assert bar.drawn == [(name, "1/3", False), (name, "3/3", True)]
    assert bar.calls == ["start", "stop"]


def test_an_epoch_resumed_in_its_middle_counts_from_there() -> None:
    bar, trainer, clock = made(Spy())
    bar.on_train_start(trainer, None)
    for index in range(7, 10):
        clock.time += 1
        bar.on_train_batch_end(trainer, None, None, None, index)
    assert [count for _, count, _ in bar.drawn] == ["8/10", "9/10", "10/10"]
    assert bar._train.rate == 1.0
    assert bar._train.remaining == 0.0


def test_totals_follow_max_steps() -> None:
    bar, trainer, _ = made(Spy(), max_epochs=-1, max_steps=12, global_step=10, accumulate_grad_batches=2)
    assert bar.total_train_batches == 4
    trainer.max_epochs = 5
    assert bar.total_train_batches == 10
    trainer.num_training_batches = float("inf")
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    bar.on_train_batch_end(trainer, None, None, None, 4)
    assert bar.drawn == [("Epoch 0/4", "5", False)]


def test_the_version_of_the_run_is_shown_and_may_be_replaced() -> None:
    loggers = [SimpleNamespace(version=""), SimpleNamespace(version="abcdefgh")]
    bar, trainer, _ = made(Spy(), loggers=loggers, shown={"loss": 1.0})
    assert bar.get_metrics(trainer, None) == {"v_num": "efgh", "loss": 1.0}
    trainer.shown = {"v_num": 2.0}
    with pytest.warns(UserWarning, match="v_num"):
        assert bar.get_metrics(trainer, None) == {"v_num": 2.0}


# --- safety -------------------------------------------------------------------------------------------------------


def test_a_display_that_fails_is_off_after_one_warning() -> None:
    bar, trainer, clock = made(Spy())

    def fail(*args: Any, **kwargs: Any) -> None:
        raise IndexError("pop from empty list")

    bar._draw = bar._stop_display = fail
    bar.on_train_start(trainer, None)
    with pytest.warns(UserWarning, match="Spy failed and is off .*IndexError: pop from empty list"):
        train_epoch(bar, trainer, clock, seconds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_epoch(bar, trainer, clock, seconds=1)
        bar.on_train_end(trainer, None)
        bar.teardown(trainer, None, "fit")
    assert not bar.is_enabled
    bar.setup(trainer, None, "fit")  # whatever was in its way may be gone in the next run
    assert bar.is_enabled


def test_what_a_display_draws_by_chance_does_not_change_the_run() -> None:
    bar, trainer, clock = made(Spy())
    bar._draw = lambda *args, **kwargs: torch.rand(3)
    bar.on_train_start(trainer, None)
    before = torch.get_rng_state()
    train_epoch(bar, trainer, clock, seconds=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("end", ["on_exception", "teardown", "on_run_close"])
def test_stopping_twice_stops_once(end: str) -> None:
    bar, trainer, _ = made(Spy())
    bar.on_train_start(trainer, None)
    arguments = () if end == "on_run_close" else (trainer, None, "fit")
    for _ in range(2):
        getattr(bar, end)(*arguments)
    bar.stop()
    assert bar.calls == ["start", "stop"]


def test_only_one_bar_is_on_display() -> None:
    outer, trainer, clock = made(Spy())
    inner, inner_trainer, _ = made(Spy())
    outer.on_train_start(trainer, None)
    inner.on_train_start(inner_trainer, None)
    train_epoch(inner, inner_trainer, clock, seconds=1)
    inner.on_train_end(inner_trainer, None)
    inner.teardown(inner_trainer, None, "fit")
    assert inner.drawn == inner.calls == []
    train_epoch(outer, trainer, clock, seconds=1)
    assert outer.drawn
    outer.teardown(trainer, None, "fit")
    inner.on_train_start(inner_trainer, None)
    assert inner.calls == ["start"]
    inner.stop()


def test_other_ranks_and_disabled_bars_show_nothing_and_read_no_metrics() -> None:
    other, trainer, clock = made(Spy(), is_global_zero=False)
    off, _, _ = made(Spy())
    off.disable()
    zero = RichProgressBar(refresh_rate=0)
    assert zero.is_disabled
    for bar in (other, off):
        bar.on_train_start(trainer, None)
        train_epoch(bar, trainer, clock, seconds=1)
        evaluate(bar, trainer, clock, "validation", [4], seconds=1)
        bar.on_train_end(trainer, None)
        assert bar.drawn == bar.calls == []
    assert trainer.reads == 0
    off.enable()
    off.on_train_start(trainer, None)
    assert off.calls == ["start"]
    off.stop()


def test_the_trainer_is_known_after_setup_only() -> None:
    with pytest.raises(TypeError, match="after setup"):
        ProgressBar().trainer


# --- the two displays ---------------------------------------------------------------------------------------------


def test_plain_lines() -> None:
    file = io.StringIO()
    bar, trainer, clock = made(PlainProgress(every_seconds=5, file=file))
    bar.on_train_start(trainer, None)
    trainer.shown = {"loss": 0.123456, "n": 3}
    train_epoch(bar, trainer, clock, seconds=1)
    trainer.current_epoch = 1
    bar.on_train_epoch_start(trainer, None)
    evaluate(bar, trainer, clock, "validation", [4], seconds=2)
    train_epoch(bar, trainer, clock, seconds=0.01)
    bar.on_train_end(trainer, None)
    bar.teardown(trainer, None, "fit")
    assert file.getvalue().splitlines() == [
        "Epoch 0/1: 5/10 batches, 0:00:05, 0:00:05 left, 1.0 it/s, loss=0.1235, n=3",
        "Epoch 0/1: 10/10 batches, 0:00:10, 1.0 it/s, loss=0.1235, n=3",
        "Validation: 3/4 batches, 0:00:06, 0:00:02 left, 2.00 s/it, loss=0.1235, n=3",
        "Epoch 1/1: 10/10 batches, 0:00:00, 100.0 it/s, loss=0.1235, n=3",
    ]


def test_plain_lines_of_very_short_epochs_are_few_and_end_with_the_last() -> None:
    file = io.StringIO()
    bar, trainer, clock = made(PlainProgress(file=file), max_epochs=300)
    bar.on_train_start(trainer, None)
    for trainer.current_epoch in range(300):
        train_epoch(bar, trainer, clock, seconds=0.001)  # three seconds in all
    bar.on_train_end(trainer, None)
    lines = file.getvalue().splitlines()
    assert len(lines) <= 5
    assert lines[-1].startswith("Epoch 299/299: 10/10 batches")


def rich_bar(**kwargs: Any) -> tuple[RichProgressBar, io.StringIO]:
    file = io.StringIO()
    options = {"file": file, "force_terminal": True, "width": 120, "color_system": None, "legacy_windows": False}
    return RichProgressBar(console_kwargs=options, **kwargs), file


def text_of(file: io.StringIO) -> list[str]:
    """The lines on the screen, most recent last, without control sequences."""
    return [Text.from_ansi(line).plain.rstrip() for line in file.getvalue().replace("\r", "\n").split("\n")]


def test_rich_bar() -> None:
    bar, file = rich_bar(theme=RichProgressBarTheme(metrics_format=".4g"))
    bar, trainer, clock = made(bar, num_val_batches=[float("inf")], shown={"loss": 0.5, "[x]": 1e-7})
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    clock.time += 2
    bar.on_train_batch_end(trainer, None, None, None, 3)
    evaluate(bar, trainer, clock, "validation", [2], seconds=1)
    clock.time += 1
    bar.on_train_batch_end(trainer, None, None, None, 9)
    bar.on_train_epoch_end(trainer, None)
    bar.on_train_end(trainer, None)
    bar.teardown(trainer, None, "fit")
    lines = text_of(file)
    last = next(line for line in reversed(lines) if "Epoch 0/1" in line)
    for part in ("10/10", "0:00:05", "loss: 0.5", "[x]: 1e-07", "2.0 it/s"):
        assert part in last
    assert any("Validation" in line and " 2 " in line for line in lines)
    assert bar.progress is None
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_rich_bar_prints_through(capsys: pytest.CaptureFixture[str]) -> None:
    bar, file = rich_bar()
    bar, trainer, clock = made(bar)
    bar.on_train_start(trainer, None)
    train_epoch(bar, trainer, clock, seconds=1)
    bar.print("hello")
    bar.on_exception(trainer, None, ValueError())
    assert "hello" in file.getvalue()
    print("after")
    assert capsys.readouterr().out == "after\n"


def test_rich_bar_leaves_one_line_per_epoch() -> None:
    bar, _ = rich_bar(leave=True)
    bar, trainer, clock = made(bar)
    bar.on_train_start(trainer, None)
    for trainer.current_epoch in range(2):
        train_epoch(bar, trainer, clock, seconds=1)
    bar.on_train_end(trainer, None)
    assert bar.progress is not None
    assert [task.description.strip() for task in bar.progress.tasks] == ["Epoch 0/1", "Epoch 1/1"]
    assert [task.completed for task in bar.progress.tasks] == [10, 10]
    bar.stop()


def test_rich_bar_prints_lines_without_control_codes_into_a_log_file() -> None:
    file = io.StringIO()
    bar, trainer, clock = made(RichProgressBar(console_kwargs={"file": file}), num_training_batches=1000)
    bar.on_train_start(trainer, None)
    train_epoch(bar, trainer, clock, batches=1000, seconds=0.125)
    bar.on_train_end(trainer, None)
    bar.teardown(trainer, None, "fit")
    lines = file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"Epoch 0/1: {done}/1000 batches" for done in (240, 480, 720, 960, 1000)
    ]
    assert "\x1b" not in file.getvalue()
    assert "\r" not in file.getvalue()


def test_rich_bar_refreshes_as_often_a_second_as_told_and_ten_times_at_most() -> None:
    assert [RichProgressBar(refresh_rate=rate).interval for rate in (0.5, 4, 100)] == [2.0, 0.25, 0.1]
    for rate in (-1, "often", True):
        with pytest.raises(MisconfigurationException, match="refreshes per second"):
            RichProgressBar(refresh_rate=rate)


def test_notebook_bar_replaces_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            shown.append(content)

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    bar, trainer, clock = made(NotebookProgress(), shown={"<m>": 0.5})
    bar.on_train_start(trainer, None)
    bar.on_train_epoch_start(trainer, None)
    clock.time += 2
    bar.on_train_batch_end(trainer, None, None, None, 3)
    evaluate(bar, trainer, clock, "validation", [2], seconds=1)
    during = shown[-2]["text/plain"].splitlines()
    assert [line.split(",")[0] for line in during] == ["Epoch 0/1: 4/10 batches", "Validation: 2/4 batches"]
    clock.time += 1
    bar.on_train_batch_end(trainer, None, None, None, 9)
    bar.on_train_end(trainer, None)
    bar.teardown(trainer, None, "fit")
    assert shown[-1] == {
        "text/plain": "Epoch 0/1: 10/10 batches, 0:00:05, 2.0 it/s, <m>=0.5",
        "text/html": '<progress value="10" max="10"></progress> Epoch 0/1: 10/10 batches, 0:00:05, 2.0 it/s, &lt;m&gt;=0.5',
    }
    assert len(shown) <= 8
    vars(bar)["_trainer"] = None
    assert pickle.loads(pickle.dumps(bar)).is_enabled


@pytest.mark.parametrize(
    ("terminal", "notebook", "kind"),
    [(True, False, "RichProgressBar"), (False, True, "NotebookProgress"), (False, False, "PlainProgress")],
)
def test_the_default_suits_where_output_goes(
    terminal: bool, notebook: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = SimpleNamespace(is_terminal=terminal, is_jupyter=notebook)
    monkeypatch.setattr(rich, "get_console", lambda: console)
    assert type(default_progress_bar()).__name__ == kind


def test_bars_go_to_other_processes() -> None:
    bar, _ = rich_bar()
    bar._console_kwargs = None
    bar._trainer = None
    for one in (bar, PlainProgress()):
        assert pickle.loads(pickle.dumps(one)).is_enabled


def test_a_method_may_be_overridden_as_in_lightning() -> None:
    class Mine(RichProgressBar):
        def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
            return {**super().get_metrics(trainer, pl_module), "mine": 1}

        @property
        def validation_description(self) -> str:
            return "running validation ..."

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)

    bar, trainer, clock = made(Mine(console_kwargs={"file": io.StringIO()}))
    bar.on_train_start(trainer, None)
    train_epoch(bar, trainer, clock, seconds=1)
    bar.on_run_close()
    assert bar.get_metrics(trainer, None) == {"mine": 1}
