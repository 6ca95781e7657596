"""ThroughputMonitor: counters and rates as recorded from Lightning with a clock of our own, but for two of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import ThroughputMonitor
from hookbus.errors import MisconfigurationException


def parts(rows: list[Any]) -> dict[str, list[Any]]:
    """Rows of training, of the validations within a fit, of a validation alone, and of a test."""
    stages = [next(iter(sorted(set(metrics) - {"epoch"})))[:4] for _, metrics in rows]
    end_of_fit = len(stages) - 1 - stages[::-1].index("trai")
    evaluated = [row for row, stage in zip(rows, stages, strict=True) if stage == "vali"]
    # The scenario's two validations in fit log as much as each other; what the one alone logs comes after.
    within = [row for row in rows[:end_of_fit] if row in evaluated]
    return {
        "train": [row for row, stage in zip(rows, stages, strict=True) if stage == "trai"],
        "within": evaluated[: 2 * len(within)],
        "alone": evaluated[2 * len(within) :],
        "test": [row for row, stage in zip(rows, stages, strict=True) if stage == "test"],
    }


def test_does_as_lightning(tmp_path: Path) -> None:
    found = observed("throughput", tmp_path)
    for name, rows in RECORDED["throughput"].items():
        mine, theirs = parts(found[name]), parts(rows)
        agree(mine["train"], theirs["train"], name)
        agree(mine["test"], theirs["test"], name)
        # Lightning gives batches of the second validation the steps of the first one again; here steps go on.
        agree([metrics for _, metrics in mine["within"]], [metrics for _, metrics in theirs["within"]], name)
        half = len(theirs["within"]) // 2
        assert [step for step, _ in mine["within"]] == [
            step + 4 * (index >= half) for index, (step, _) in enumerate(theirs["within"])
        ]
        # It goes on with the counters of the fit in a validation alone, while its time begins at 0; here all do.
        assert [step for step, _ in mine["alone"]] == [step for step, _ in theirs["alone"]]
        for (_, own), (_, other) in zip(mine["alone"], theirs["alone"], strict=True):
            agree(
                {key: value for key, value in own.items() if "_per_sec" in key or "time" in key},
                {key: value for key, value in other.items() if "_per_sec" in key or "time" in key},
                name,
            )
            counted = [value for key, value in own.items() if key in ("validate/batches", "validate.batches")]
            assert counted in ([], [1], [2], [3], [4])


def test_steps_of_validations_go_on_in_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    steps = []
    for epochs, resume in ((1, None), (2, path)):
        logger = HOOKBUS.logger()
        trainer = HOOKBUS.trainer(
            tmp_path, max_epochs=epochs, logger=logger, callbacks=[ThroughputMonitor(batch_size_fn=len)]
        )
        trainer.fit(HOOKBUS.model(), loader(4), [loader(4), loader(2)], ckpt_path=resume)
        trainer.save_checkpoint(path)
        steps.append([step for step, metrics in logger.rows if "validate/time" in metrics])
    assert steps == [[1, 2, 3], [4, 5, 6]]


def test_steps_of_evaluations_by_themselves_go_on(tmp_path: Path) -> None:
    logger, monitor = HOOKBUS.logger(), ThroughputMonitor(batch_size_fn=len)
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=logger, callbacks=[monitor])
    for _ in range(2):
        trainer.validate(HOOKBUS.model(), loader(4), verbose=False)
    assert [step for step, metrics in logger.rows if "validate/time" in metrics] == [1, 2, 3, 4]


def test_a_function_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    def size(batch: Any) -> int:
        raise KeyError("images")

    monitor = ThroughputMonitor(batch_size_fn=size)
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=HOOKBUS.logger(), callbacks=[monitor])
    with pytest.warns(RuntimeWarning, match="monitor 'ThroughputMonitor' failed in on_train_batch_end"):
        trainer.fit(HOOKBUS.model(), loader(6))
    assert trainer.global_step == 3


def test_without_a_logger_nothing_happens(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, callbacks=[ThroughputMonitor(batch_size_fn=len)])
    trainer.fit(HOOKBUS.model(), loader(6), loader(2))
    trainer.predict(HOOKBUS.model(), loader(2))
    assert trainer.global_step == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size_fn": 8}, "batch_size_fn must be a function"),
        ({"batch_size_fn": len, "length_fn": 8}, "length_fn must be a function"),
        ({"batch_size_fn": len, "window_size": 1}, "window_size must be a whole number of 2 or more"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        ThroughputMonitor(**arguments)
