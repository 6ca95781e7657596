from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch.utils.data import DataLoader

import hookbus
from hookbus.callbacks import BatchSizeFinder, Callback
from hookbus.errors import MisconfigurationException


def own_loader(prefix: str, **options: Any) -> dict[str, Any]:
    return {f"{prefix}_dataloader": lambda self: DataLoader(data(self.samples), batch_size=self.batch_size, **options)}


def tuned(room: int = 40, samples: int = 200, **parts: Any) -> Any:
    model = net(HOOKBUS, **parts)
    model.samples, model.room = samples, room
    return model


def test_sizes_and_the_training_after_it_are_lightnings(tmp_path: Path) -> None:
    agree(observed("batch_sizes", tmp_path), RECORDED["batch_sizes"])


def test_a_start_that_is_too_large_is_halved_until_it_fits(tmp_path: Path) -> None:
    for mode, size in (("power", 32), ("binsearch", 40)):
        model, finder = tuned(), BatchSizeFinder(mode, init_val=128, margin=0.0)
        run(model, finder, folder=tmp_path)
        assert model.batch_size == finder.optimal_batch_size == size


def test_the_training_is_that_of_a_module_with_this_size(tmp_path: Path) -> None:
    shuffled = own_loader("train", shuffle=True)
    found = tuned(batch_norm=True, **shuffled)
    run(found, BatchSizeFinder(), folder=tmp_path, max_epochs=2)
    plain = tuned(batch_norm=True, **shuffled)
    plain.batch_size = found.batch_size
    run(plain, folder=tmp_path, max_epochs=2)
    assert same_weights(found, plain)
    assert found.batch_size == 32


def test_nothing_is_left_of_the_search_and_nobody_hears_of_it(tmp_path: Path) -> None:
    seen: list[Any] = []
    told: list[int] = []
    logger = HOOKBUS.logger()

    class Around(Callback):
        @hookbus.hookimpl(trylast=True, after="BatchSizeFinder")
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append((weights(pl_module), torch.get_rng_state().tolist(), trainer.progress.state_dict()))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            told.append(len(batch[0]))

    model = tuned()
    before = (weights(model), torch.get_rng_state().tolist())
    run(model, BatchSizeFinder(), Around(), folder=tmp_path, logger=logger)
    assert seen[0][:2] == before
    assert not any(seen[0][2].values())
    assert told == [32] * 6 + [8]
    assert len(logger.rows) == 7


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_it_searches_before_an_evaluation_and_leaves_the_modes_alone(stage: str, tmp_path: Path) -> None:
    sizes: list[int] = []

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        if len(batch[0]) > self.room:
            raise RuntimeError("CUDA out of memory.")
        sizes.append(len(batch[0]))
        return self(batch[0])

    prefix, name = {"validate": ("val", "validation_step")}.get(stage, (stage, f"{stage}_step"))
    model = tuned(batch_norm=True, **own_loader(prefix), **{name: step})
    model.backbone[1].eval()
    modes = [part.training for part in model.modules()]
    before = weights(model)
    finder = BatchSizeFinder("binsearch", margin=0.0)
    getattr(HOOKBUS.trainer(tmp_path, callbacks=[finder]), stage)(model)
    assert finder.optimal_batch_size == model.batch_size == 40
    assert sizes[-5:] == [40] * 5
    assert [part.training for part in model.modules()] == modes
    assert weights(model) == before


def test_validations_of_a_fit_are_not_searched_for(tmp_path: Path) -> None:
    model = tuned(val_dataloader=lambda self: [DataLoader(data(8), batch_size=4)] * 2)
    finder = BatchSizeFinder()
    run(model, finder, folder=tmp_path, num_sanity_val_steps=1)
    assert model.batch_size == 32


def test_the_data_module_may_hold_the_size(tmp_path: Path) -> None:
    class Data(hookbus.LightningDataModule):
        batch_size = 4

        def train_dataloader(self) -> Any:
            return DataLoader(data(200), batch_size=self.batch_size)

    model, source = net(HOOKBUS), Data()
    del model.batch_size
    model.room = 40
    HOOKBUS.trainer(tmp_path, callbacks=[BatchSizeFinder()], max_epochs=1).fit(model, datamodule=source)
    assert source.batch_size == 32


def test_it_works_with_accumulation_and_in_the_middle_of_a_training(tmp_path: Path) -> None:
    class AtMilestones(BatchSizeFinder):
        def on_fit_start(self, *args: Any, **kwargs: Any) -> None:
            return

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                self.scale_batch_size(trainer, pl_module)

    sizes: list[int] = []
    model = tuned(on_train_batch_end=lambda self, outputs, batch, batch_idx: sizes.append(len(batch[0])))
    trainer = run(model, AtMilestones(), folder=tmp_path, max_epochs=2, accumulate_grad_batches=2)
    assert sizes[:50] == [4] * 50
    assert sizes[-7:] == [32] * 6 + [8]
    assert trainer.global_step == 25 + 4


def test_a_resumed_run_keeps_the_size_and_searches_no_more(tmp_path: Path) -> None:
    finders: list[BatchSizeFinder] = []

    def make() -> BatchSizeFinder:
        finders.append(BatchSizeFinder())
        return finders[-1]

    whole, resumed = resumed_and_not(tmp_path, tuned, make, epochs=3, cut=1)
    assert same_weights(whole, resumed)
    assert resumed.batch_size == finders[1].optimal_batch_size == 32


def test_another_error_leaves_the_size_as_it_was(tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        raise ZeroDivisionError

    model = tuned(training_step=training_step)
    before = weights(model)
    with pytest.raises(ZeroDivisionError):
        run(model, BatchSizeFinder(), folder=tmp_path)
    assert model.batch_size == 4
    assert weights(model) == before


def test_too_little_memory_for_one_sample_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no batch fits into memory: batch_size=1 is the smallest that was tried"):
        run(tuned(room=0), BatchSizeFinder(), folder=tmp_path)


def test_a_trial_run_does_not_search(tmp_path: Path) -> None:
    model = tuned()
    with pytest.warns(UserWarning, match="fast_dev_run: no batch size is searched for"):
        run(model, BatchSizeFinder(), folder=tmp_path, fast_dev_run=True)
    assert model.batch_size == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "cubic"}, "mode must be"),
        ({"steps_per_trial": 0}, "steps_per_trial must be"),
        ({"init_val": 0}, "init_val must be"),
        ({"max_trials": 2.5}, "max_trials must be"),
        ({"margin": 1.0}, "margin must be"),
        ({"max_val": -1}, "max_val must be"),
        ({"batch_arg_name": ""}, "batch_arg_name must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        BatchSizeFinder(**arguments)


def test_loaders_that_have_their_size_already_are_refused(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, callbacks=[BatchSizeFinder()])
    with pytest.raises(MisconfigurationException, match=r"passed to fit\(\) have their batch size already"):
        trainer.fit(net(HOOKBUS), DataLoader(data(), batch_size=4))
    model = tuned(val_dataloader=lambda self: [DataLoader(data(), batch_size=self.batch_size)] * 2)
    with pytest.raises(MisconfigurationException, match="with one dataloader; validate has 2"):
        trainer.validate(model)
    with pytest.raises(MisconfigurationException, match="there is no 'size' to tune"):
        HOOKBUS.trainer(tmp_path, callbacks=[BatchSizeFinder(batch_arg_name="size")]).fit(tuned())
