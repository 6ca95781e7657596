"""GradientAccumulationScheduler: steps and weights as recorded from Lightning, schedules by step, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import Callback, GradientAccumulationScheduler
from hookbus.errors import MisconfigurationException


class Steps(Callback):
    """Keeps the number of steps after each batch."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.seen.append(trainer.global_step)


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("accumulation", tmp_path), RECORDED["accumulation"])


@pytest.mark.parametrize(
    ("scheduling", "steps"),
    [
        ({0: 1, 4: 2}, [1, 2, 3, 4, 4, 5, 5, 6, 6, 7]),
        ({0: 1, 3: 2}, [1, 2, 3, 3, 4, 4, 5, 5, 6, 7]),  # the window need not begin at a multiple of its length
        ({0: 3, 2: 1}, [0, 0, 1, 1, 1, 2, 3, 4, 5, 6]),
        ({5: 4}, [1, 2, 3, 4, 5, 5, 5, 5, 6, 7]),
    ],
)
def test_by_step(scheduling: dict[int, int], steps: list[int], tmp_path: Path) -> None:
    seen = Steps()
    callbacks = [GradientAccumulationScheduler(scheduling, by="step"), seen]
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=callbacks)
    trainer.fit(HOOKBUS.model(), loader(20), [loader(2), loader(2)])
    assert seen.seen == steps


def test_by_step_trains_as_a_loop_of_ones_own(tmp_path: Path) -> None:
    scheduling = {0: 1, 3: 2, 5: 3}
    model = HOOKBUS.model()
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=2, callbacks=[GradientAccumulationScheduler(scheduling, by="step")])
    trainer.fit(model, loader(20))

    own = HOOKBUS.model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    step = 0
    for _ in range(2):
        window: list[torch.Tensor] = []
        batches = list(loader(20))
        for index, batch in enumerate(batches):
            factor = scheduling[max(key for key in scheduling if key <= step)]
            window.append(batch)
            if len(window) == factor or index == len(batches) - 1:
                optimizer.zero_grad()
                for member in window:
                    (own(member).pow(2).mean() / factor).backward()
                optimizer.step()
                step, window = step + 1, []
    assert trainer.global_step == step
    for found, expected in zip(model.parameters(), own.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("by", ["epoch", "step"])
@pytest.mark.parametrize("batches", [4, 12, 13])  # in the first epoch; in the second, between windows and inside one
def test_a_resumed_run_is_the_uninterrupted_one(by: Any, batches: int, tmp_path: Path) -> None:
    scheduling = {0: 1, 1: 2, 2: 3} if by == "epoch" else {0: 1, 3: 2, 6: 3}
    path = tmp_path / "middle.ckpt"

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.progress.total_batches == batches and not path.exists():
                trainer.save_checkpoint(path)

    results = []
    for resume in (None, path):
        model, steps = HOOKBUS.model(), Steps()
        callbacks = [GradientAccumulationScheduler(scheduling, by=by), steps, Save()]
        trainer = HOOKBUS.trainer(tmp_path, max_epochs=3, callbacks=callbacks)
        trainer.fit(model, loader(20), ckpt_path=resume)
        results.append((steps.seen, [p.detach().clone() for p in model.parameters()]))
    assert results[1][0] == results[0][0][batches:]
    for whole, resumed in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(whole, resumed)


def test_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[GradientAccumulationScheduler({0: 2})])
    model = HOOKBUS.model()
    trainer.fit(model, loader(8))
    assert trainer.accumulate_grad_batches == 1
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader(8))
    assert trainer.global_step == 4


def test_also_after_an_exception(tmp_path: Path) -> None:
    def failing(module: Any, batch: Any, batch_idx: int) -> Any:
        raise RuntimeError("as planned")

    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[GradientAccumulationScheduler({0: 2})])
    with pytest.raises(RuntimeError, match="as planned"):
        trainer.fit(HOOKBUS.model(training_step=failing), loader(8))
    assert trainer.accumulate_grad_batches == 1


def test_the_argument_is_left_alone() -> None:
    scheduling = {2: 4}
    scheduler = GradientAccumulationScheduler(scheduling)
    assert scheduling == {2: 4}
    assert scheduler.scheduling == {0: 1, 2: 4}
    assert scheduler.going_to_accumulate_grad_batches()


def test_two_who_set_the_number_are_refused(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(
        tmp_path, max_epochs=1, accumulate_grad_batches=2, callbacks=[GradientAccumulationScheduler({1: 2})]
    )
    with pytest.raises(ValueError, match="both set how many batches make a step"):
        trainer.fit(HOOKBUS.model(), loader(4))
    assert trainer.accumulate_grad_batches == 2


def test_manual_optimization_is_refused(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[GradientAccumulationScheduler({0: 2})])
    with pytest.raises(RuntimeError, match="manual optimization"):
        trainer.fit(HOOKBUS.model(automatic_optimization=False), loader(4))


def test_warns_of_hooks_that_are_called_less_often(tmp_path: Path) -> None:
    def optimizer_zero_grad(module: Any, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad()

    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[GradientAccumulationScheduler({0: 2})])
    with pytest.warns(UserWarning, match="once per step"):
        trainer.fit(HOOKBUS.model(optimizer_zero_grad=optimizer_zero_grad), loader(4))


def test_a_trial_run(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=3, callbacks=[GradientAccumulationScheduler({0: 2})])
    trainer.fit(HOOKBUS.model(), loader(12), loader(4))
    assert trainer.global_step == 2


@pytest.mark.parametrize(
    ("scheduling", "options", "error"),
    [
        ({}, {}, TypeError),
        ({-1: 2}, {}, MisconfigurationException),
        ({"0": 2}, {}, MisconfigurationException),
        ({0: 0}, {}, MisconfigurationException),
        ({0: 1.5}, {}, MisconfigurationException),
        ({0: True}, {}, MisconfigurationException),
        ({0: 2}, {"by": "batch"}, MisconfigurationException),
    ],
)
def test_bad_arguments_are_refused(scheduling: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"scheduling|by must be"):
        GradientAccumulationScheduler(scheduling, **options)
