from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch.utils.data import DataLoader

from hookbus.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from hookbus.errors import MisconfigurationException
from hookbus.tuner import Tuner


def test_what_it_finds_is_what_lightning_finds(tmp_path: Path) -> None:
    for name in ("learning_rate_by_tuner", "batch_size_by_tuner"):
        agree(observed(name, tmp_path), RECORDED[name])


def test_callbacks_are_set_up_and_hear_of_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []

    class Told(Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            told.append(f"setup {stage}")

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            told.append("fit")

        def on_train_batch_end(self, *args: Any) -> None:
            told.append("batch")

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            told.append(f"teardown {stage}")

    logger = HOOKBUS.logger()
    trainer = HOOKBUS.trainer(tmp_path, callbacks=[Told()], logger=logger, max_epochs=1, num_sanity_val_steps=2)
    model = net(HOOKBUS)
    curve = Tuner(trainer).lr_find(model, DataLoader(data(), batch_size=4), DataLoader(data()), num_training=30)
    assert curve is not None
    assert model.lr == curve.suggestion()
    assert told == ["setup fit", "teardown fit"]
    assert logger.rows == []
    trainer.fit(model)
    assert told[2:] == ["setup fit", "fit", *["batch"] * 4, "teardown fit"]
    assert trainer.optimizers[0].param_groups[0]["lr"] == model.lr


def test_the_training_after_it_is_the_same_as_without(tmp_path: Path) -> None:
    def train(tune: bool) -> Any:
        model, trainer = net(HOOKBUS, batch_norm=True), HOOKBUS.trainer(tmp_path, max_epochs=2)
        if tune:
            Tuner(trainer).lr_find(model, num_training=20, update_attr=False)
        trainer.fit(model)
        return weights(model), torch.get_rng_state().tolist()

    assert train(True) == train(False)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    model, loader = net(HOOKBUS), DataLoader(data(), batch_size=4)
    tuner = Tuner(HOOKBUS.trainer(tmp_path))
    with pytest.raises(MisconfigurationException, match="in fit only, got method='test'"):
        tuner.lr_find(model, method="test")
    with pytest.raises(ValueError, match="method must be one of fit, validate, test, predict"):
        tuner.scale_batch_size(model, method="train")
    with pytest.raises(MisconfigurationException, match="with method='fit' pass train_dataloaders"):
        tuner.scale_batch_size(model, dataloaders=loader)
    with pytest.raises(MisconfigurationException, match="with method='test' pass dataloaders"):
        tuner.scale_batch_size(model, loader, method="test")
    with pytest.raises(MisconfigurationException, match="have their batch size already"):
        tuner.scale_batch_size(model, loader)
    for finder in (LearningRateFinder(), BatchSizeFinder()):
        tuner = Tuner(HOOKBUS.trainer(tmp_path, callbacks=[finder]))
        search = tuner.lr_find if isinstance(finder, LearningRateFinder) else tuner.scale_batch_size
        with pytest.raises(ValueError, match=f"has a {type(finder).__name__} among its callbacks"):
            search(model)
