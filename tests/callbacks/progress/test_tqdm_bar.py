"""TQDMProgressBar: where the bars end, as recorded from Lightning; what is printed; what happens without tqdm."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import Callback, TQDMProgressBar
from hookbus.callbacks.progress import tqdm_bar
from hookbus.callbacks.progress.meter import Meter
from hookbus.errors import MisconfigurationException, MissingExtraError


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("tqdm_bar", tmp_path), RECORDED["tqdm_bar"])


def fit(folder: Path, bar: Any, *callbacks: Any, **arguments: Any) -> Any:
    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        loss = module(batch).pow(2).mean()
        module.log("loss", loss, prog_bar=True)
        return loss

    options = {"max_epochs": 2, "enable_progress_bar": True, "num_sanity_val_steps": 1, **arguments}
    trainer = HOOKBUS.trainer(folder, callbacks=[bar, *callbacks], **options)
    trainer.fit(HOOKBUS.model(training_step=step), loader(6), [loader(4), loader(2)])
    return trainer


def test_shows_epochs_and_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, TQDMProgressBar())
    printed = capsys.readouterr().out
    assert "Epoch 1/1" in printed
    assert "3/3" in printed
    assert "loss=" in printed


@pytest.mark.parametrize(("leave", "ends"), [(False, ["Epoch 1/1"]), (True, ["Epoch 0/1", "Epoch 1/1"])])
def test_leaves_a_bar_for_each_epoch_or_the_last(
    leave: bool,
    ends: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    fit(tmp_path, TQDMProgressBar(leave=leave))
    left = [line.split("\r")[-1] for line in capsys.readouterr().out.split("\n")]
    assert [end for end in ends if any(end in line for line in left)] == ends
    assert sum("Epoch" in line and "3/3" in line for line in left) == len(ends)


def test_prints_few_lines_without_control_codes_into_a_log_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, TQDMProgressBar(), max_epochs=40)
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "Epoch" in line]
    assert 1 <= len(lines) < 20
    assert lines[-1].startswith("Epoch 39/39: 100%")
    assert "loss=" in lines[-1]
    assert "\x1b" not in printed
    assert "\r" not in printed


def test_a_subclass_changes_the_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Short(TQDMProgressBar):
        def init_train_tqdm(self) -> Any:
            bar = super().init_train_tqdm()
            bar.bar_format = "{n_fmt} of {total_fmt} done"
            return bar

    fit(tmp_path, Short())
    assert "3 of 3 done" in capsys.readouterr().out


def test_prints_above_the_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Say(Callback):
        def on_train_epoch_end(self, trainer: Any, *args: Any) -> None:
            trainer.print("half", "done", sep="-")

    fit(tmp_path, TQDMProgressBar(), Say())
    assert "half-done" in capsys.readouterr().out.replace("\r", "\n").split("\n")
    TQDMProgressBar().print("no bar", "here")
    assert "no bar here" in capsys.readouterr().out


def test_an_exception_ends_the_display(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise RuntimeError("as planned")

    bar = TQDMProgressBar()
    with pytest.raises(RuntimeError, match="as planned"):
        fit(tmp_path, bar, Fail())
    assert all(made.disable for made in bar._bars.values())  # tqdm's word for "closed"


def test_counts_from_where_a_resumed_epoch_goes_on(tmp_path: Path) -> None:
    path, seen = tmp_path / "x.ckpt", []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1 and not path.exists():
                trainer.save_checkpoint(path)
            trainer.progress_bar_callback.refresh()
            bar = trainer.progress_bar_callback.train_progress_bar
            seen.append((bar.n, bar.total, (bar.format_dict["rate"] or 0) >= 0))

    fit(tmp_path, TQDMProgressBar(), Look(), max_epochs=1)
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, enable_progress_bar=True, callbacks=[TQDMProgressBar(), Look()])
    trainer.fit(HOOKBUS.model(), loader(6), ckpt_path=path)
    assert seen == [(1, 3, True), (2, 3, True), (3, 3, True), (3, 3, True)]


def test_the_speed_is_that_of_the_loop_however_late_the_bar_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    bar = TQDMProgressBar()
    bar._shown = True
    for kind in ("train", "validate"):
        bar._draw(Meter(kind, kind, 1000, started=0.0, done=50, now=100.0), {}, final=False)
    rates = [bar.train_progress_bar.format_dict["elapsed"], bar.val_progress_bar.format_dict["elapsed"]]
    assert rates == pytest.approx([100, 100], abs=5)
    bar.stop()
    assert "0.50it/s" in capsys.readouterr().out


def test_shows_nothing_with_refresh_rate_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = TQDMProgressBar(refresh_rate=0)
    fit(tmp_path, bar)
    assert bar.is_disabled
    assert "Epoch" not in capsys.readouterr().out


def test_a_trial_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, TQDMProgressBar(), fast_dev_run=True)
    assert "1/1" in capsys.readouterr().out


def test_goes_to_another_process_without_its_bars(tmp_path: Path) -> None:
    bar = TQDMProgressBar(process_position=1)
    fit(tmp_path, bar)
    for name in ("_trainer", "log", "log_dict"):  # what belongs to the trainer goes there on its own
        vars(bar).pop(name, None)
    assert pickle.loads(pickle.dumps(bar)).process_position == 1


@pytest.mark.parametrize("refresh_rate", [0, 1])
def test_a_subclass_finds_the_bars_as_soon_as_their_loops_begin(refresh_rate: int, tmp_path: Path) -> None:
    found: list[Any] = []

    class Mine(TQDMProgressBar):
        def on_train_start(self, *args: Any) -> None:
            super().on_train_start(*args)
            self.train_progress_bar.colour = "green"

        def on_train_epoch_start(self, *args: Any) -> None:
            super().on_train_epoch_start(*args)
            self.train_progress_bar.set_description("mine")

        def on_train_batch_end(self, *args: Any) -> None:
            super().on_train_batch_end(*args)
            self.refresh()
            bar = self.train_progress_bar
            found.append((getattr(bar, "desc", "mine: "), bar.colour))  # one that shows nothing has no description

        def on_validation_batch_end(self, *args: Any) -> None:
            super().on_validation_batch_end(*args)
            found.append(self.val_progress_bar.total)

    fit(tmp_path, Mine(refresh_rate), max_epochs=1, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    assert found == [("mine: ", "green"), ("mine: ", "green"), *([None, None] if refresh_rate == 0 else [1, 1])]


def test_a_bar_is_there_only_while_its_loop_runs() -> None:
    with pytest.raises(TypeError, match="has no train bar now"):
        TQDMProgressBar().train_progress_bar


def test_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tqdm_bar, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "hookbus\[tqdm\]"'):
        TQDMProgressBar()


@pytest.mark.parametrize("arguments", [{"refresh_rate": -1}, {"process_position": "top"}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(MisconfigurationException, match="must be a whole number of 0 or more"):
        TQDMProgressBar(**arguments)
