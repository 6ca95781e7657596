"""OnExceptionCheckpoint: what it saves and when it cleans up, as Lightning does; and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import Callback, OnExceptionCheckpoint


class FailAt(Callback):
    """Raises in a hook, once a number of steps is made."""

    def __init__(self, step: int, error: BaseException, hook: str = "on_train_batch_start") -> None:
        def fail(trainer: Any, *args: Any) -> None:
            if trainer.global_step >= step:
                raise error

        setattr(self, hook, fail)


def fit(folder: Path, *callbacks: Any, ckpt_path: Any = None) -> Any:
    trainer = HOOKBUS.trainer(folder, max_epochs=3, callbacks=[*callbacks, saver(folder)], enable_checkpointing=True)
    trainer.fit(HOOKBUS.model(), loader(6), [loader(2), loader(2)], ckpt_path=ckpt_path)
    return trainer


def saver(folder: Path) -> OnExceptionCheckpoint:
    return OnExceptionCheckpoint(folder / "rescued")


def path_of(folder: Path) -> Path:
    return folder / "rescued" / "on_exception.ckpt"


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("on_exception", tmp_path), RECORDED["on_exception"])


@pytest.mark.parametrize("error", [RuntimeError("as planned"), KeyboardInterrupt()])
def test_a_run_that_is_resumed_ends_as_an_uninterrupted_one(error: BaseException, tmp_path: Path) -> None:
    whole = fit(tmp_path)
    with pytest.raises(type(error)):
        fit(tmp_path, FailAt(6, error))
    assert path_of(tmp_path).exists()
    resumed = fit(tmp_path, ckpt_path=path_of(tmp_path))
    assert resumed.global_step == whole.global_step == 9
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not path_of(tmp_path).exists()


def test_nothing_is_resumed_by_itself(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fit(tmp_path, FailAt(4, RuntimeError("as planned")))
    first_epochs = []

    class Look(Callback):
        def on_train_start(self, trainer: Any, *args: Any) -> None:
            first_epochs.append((trainer.current_epoch, trainer.global_step))

    fit(tmp_path, Look())
    assert first_epochs == [(0, 0)]


@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_sanity_check_start"])
def test_a_failure_before_training_overwrites_nothing(hook: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fit(tmp_path, FailAt(4, RuntimeError("as planned")))
    before = path_of(tmp_path).read_bytes()
    trainer = HOOKBUS.trainer(
        tmp_path,
        max_epochs=3,
        num_sanity_val_steps=1,
        callbacks=[FailAt(0, RuntimeError("at once"), hook), saver(tmp_path)],
        enable_checkpointing=True,
    )
    with pytest.raises(RuntimeError, match="at once"):
        trainer.fit(HOOKBUS.model(), loader(6), loader(2))
    assert path_of(tmp_path).read_bytes() == before


def test_an_evaluation_saves_and_removes_nothing(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=3, callbacks=[saver(tmp_path)], enable_checkpointing=True)
    path_of(tmp_path).parent.mkdir()
    path_of(tmp_path).write_text("of another run")
    trainer.validate(HOOKBUS.model(), loader(2), verbose=False)
    trainer.callbacks.append(FailAt(0, RuntimeError("as planned"), "on_test_start"))
    with pytest.raises(RuntimeError):
        trainer.test(HOOKBUS.model(), loader(2))
    assert path_of(tmp_path).read_text() == "of another run"


def test_the_first_error_is_seen_if_saving_fails_too(tmp_path: Path) -> None:
    (tmp_path / "rescued").write_text("no folder")
    with pytest.raises(RuntimeError, match="as planned") as caught:
        fit(tmp_path, FailAt(4, RuntimeError("as planned")))
    if hasattr(caught.value, "__notes__"):
        assert any("on_exception" in note for note in caught.value.__notes__)


def test_a_trial_run_leaves_nothing(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[saver(tmp_path)], enable_checkpointing=True)
    trainer.fit(HOOKBUS.model(), loader(4), loader(4))
    assert not path_of(tmp_path).exists()


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="filename must not be empty"):
        OnExceptionCheckpoint(".", filename="")
