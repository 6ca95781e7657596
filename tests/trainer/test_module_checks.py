"""What is said of a module that lacks something or has too much."""

from __future__ import annotations

import warnings

import pytest
from tests.trainer.least import Module, numbers, trainer

import hookbus
from hookbus.errors import MisconfigurationException, PossibleUserWarning


class Validated(Module):
    """With a step for validation."""

    def validation_step(self, batch, batch_idx):
        """Nothing to be done."""


def test_a_hook_of_lightning_1_is_refused_with_its_successor(tmp_path):
    class Old(Module):
        def training_epoch_end(self, outputs):
            """Nobody calls this any more."""

    with pytest.raises(NotImplementedError, match=r"define on_train_epoch_end\(self\)"):
        trainer(tmp_path).fit(Old(), numbers(1))
    Old.test_step, Old.test_epoch_end = (lambda self, batch, batch_idx: None), Old.training_epoch_end
    del Old.training_epoch_end
    trainer(tmp_path).fit(Old(), numbers(1))
    with pytest.raises(NotImplementedError, match=r"define on_test_epoch_end\(self\)"):
        trainer(tmp_path).test(Old(), numbers(1))


def test_a_prediction_takes_a_step_or_forward(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"by default forward\(\), and Module defines neither"):
        trainer(tmp_path).predict(Module(), numbers(1))
    module = Validated()
    module.predict_step = None
    with pytest.raises(MisconfigurationException, match="Validated defines neither"):
        trainer(tmp_path).predict(module, numbers(1))


def test_half_a_validation_is_warned_of(tmp_path):
    with pytest.warns(PossibleUserWarning, match="Validated has a validation_step, but there is no val_dataloader"):
        trainer(tmp_path).fit(Validated(), numbers(1))
    with pytest.warns(UserWarning, match="there is a val_dataloader, but Module has no validation_step"):
        trainer(tmp_path).fit(Module(), numbers(1), numbers(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(tmp_path).fit(Validated(), numbers(1), numbers(1))
        trainer(tmp_path, limit_val_batches=0).fit(Validated(), numbers(1))
        trainer(tmp_path).fit(Module(), numbers(1))


def test_a_transfer_hook_of_the_module_that_is_not_called_is_warned_of(tmp_path):
    class Moves(Module):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            raise AssertionError

    class Data(hookbus.LightningDataModule):
        def train_dataloader(self):
            return numbers(1)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch

    with pytest.warns(UserWarning, match=r"both Moves and Data define on_after_batch_transfer\(\): the data module's"):
        trainer(tmp_path).fit(Moves(), datamodule=Data())
