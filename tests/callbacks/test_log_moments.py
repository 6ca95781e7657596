"""When callbacks log: by step in training, by batch in evaluations, as often as the trainer does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hookbus.callbacks.log_moments import LogMoments


def trainer(**changes: Any) -> SimpleNamespace:
    values = {"log_every_n_steps": 3, "training": True, "should_stop": False, "logging_step": 0, **changes}
    return SimpleNamespace(progress=SimpleNamespace(logging_step=values.pop("logging_step")), **values)


@pytest.mark.parametrize(("step", "due"), [(0, False), (1, False), (2, True), (3, False), (5, True)])
def test_every_nth_step_of_training(step: int, due: bool) -> None:
    assert LogMoments().due(trainer(logging_step=step)) is due


def test_every_nth_batch_of_an_evaluation() -> None:
    moments, found = LogMoments(), []
    for _ in range(2):
        moments.begin_evaluation()
        for _ in range(4):
            moments.begin_batch()
            found.append(moments.due(trainer(training=False)))
    assert found == [False, False, True, False] * 2


def test_always_when_training_is_about_to_stop() -> None:
    assert LogMoments().due(trainer(should_stop=True))


def test_never_where_logging_is_off() -> None:
    assert not LogMoments().due(trainer(log_every_n_steps=0, should_stop=True))
