"""SpikeDetection: which losses end a run and what is written, as recorded from Lightning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import SpikeDetection
from hookbus.callbacks.spike import TrainingSpikeException
from hookbus.errors import MisconfigurationException


def fit(folder: Path, losses: list[float | None], detection: Any, **options: Any) -> Any:
    """Train with these losses, one per batch."""

    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        loss = losses[batch_idx]
        return None if loss is None else 0 * module(batch).sum() + loss

    ckpt_path = options.pop("ckpt_path", None)
    trainer = HOOKBUS.trainer(folder, callbacks=[detection], **{"max_epochs": 1, **options})
    trainer.fit(HOOKBUS.model(training_step=step), loader(len(losses), batch_size=1), ckpt_path=ckpt_path)
    return trainer


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("spikes", tmp_path), RECORDED["spikes"])


def test_says_which_batch_it_was(tmp_path: Path) -> None:
    with pytest.raises(TrainingSpikeException, match="the loss leapt at batch 2") as caught:
        fit(tmp_path, [1.0, 1.0, 9.0], SpikeDetection())
    assert caught.value.batch_idx == 2


@pytest.mark.parametrize(
    ("given", "file"), [(None, "skip_batches.json"), ("notes", "notes/skip_batches.json"), ("a/b.json", "a/b.json")]
)
def test_where_it_writes(given: str | None, file: str, tmp_path: Path) -> None:
    detection = SpikeDetection(exclude_batches_path=None if given is None else tmp_path / given)
    with pytest.raises(TrainingSpikeException):
        fit(tmp_path, [1.0, 1.0, 9.0], detection)
    assert json.loads((tmp_path / file).read_text()) == [1, 2]


def test_a_first_batch_has_none_before_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingSpikeException):
        fit(tmp_path, [float("nan")], SpikeDetection(warmup=0))
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [0]


def test_batches_without_a_loss_are_passed_over(tmp_path: Path) -> None:
    trainer = fit(tmp_path, [1.0, None, 1.0], SpikeDetection())
    assert trainer.global_step == 3


def test_losses_are_compared_under_accumulation_and_with_validations(tmp_path: Path) -> None:
    with pytest.raises(TrainingSpikeException, match="batch 3"):
        fit(tmp_path, [1.0, 1.0, 1.0, 9.0], SpikeDetection(), accumulate_grad_batches=2)


def test_the_mean_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    first = fit(tmp_path, [4.0, 4.0, 4.0], SpikeDetection(rtol=1.0, warmup=0))
    first.save_checkpoint(path)
    with pytest.raises(TrainingSpikeException, match="batch 0"):
        fit(tmp_path, [9.0, 4.0, 4.0], SpikeDetection(rtol=1.0, warmup=0), ckpt_path=path, max_epochs=2)
    assert (
        fit(tmp_path, [9.0, 9.0, 9.0], SpikeDetection(rtol=1.0, warmup=0)).global_step == 3
    )  # nothing to compare with


def test_earlier_findings_stay_in_the_file(tmp_path: Path) -> None:
    detection = SpikeDetection()
    detection.load_state_dict({"last_val": 1.0, "bad_batches": [7, 8], "recent": [1.0]})
    with pytest.raises(TrainingSpikeException):
        fit(tmp_path, [1.0, 1.0, 9.0], detection)
    assert json.loads((tmp_path / "skip_batches.json").read_text()) == [7, 8, 1, 2]
    assert detection.state_dict() == {"last_val": 1.0, "bad_batches": [7, 8, 1, 2], "recent": [1.0, 1.0, 1.0]}


def test_a_trial_run(tmp_path: Path) -> None:
    assert fit(tmp_path, [1.0, 9.0], SpikeDetection(), fast_dev_run=True).global_step == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "mean"}, "mode must be 'min' or 'max'"),
        ({"window": 0}, "window must be a whole number of 1 or more"),
        ({"warmup": -1}, "warmup must be a whole number of 0 or more"),
        ({"atol": None, "rtol": None}, "atol and rtol are both None"),
        ({"rtol": "2"}, "rtol must be a number or None"),
        ({"atol": float("nan")}, "atol must be a number or None"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        SpikeDetection(**arguments)
