from __future__ import annotations

from types import SimpleNamespace

import pytest

from hookbus.callbacks import BatchSizeFinder, LearningRateFinder
from hookbus.callbacks.tuned_attribute import TunedAttribute, has_attribute
from hookbus.errors import MisconfigurationException


def test_every_holder_gets_the_value() -> None:
    module = SimpleNamespace(lr=1.0, hparams={"lr": 2.0, "width": 3})
    datamodule = SimpleNamespace(hparams=SimpleNamespace(lr=4.0))
    attribute = TunedAttribute(SimpleNamespace(lightning_module=module, datamodule=datamodule), "lr")
    assert attribute.value == 1.0
    attribute.value = 0.5
    assert (module.lr, module.hparams["lr"], datamodule.hparams.lr, attribute.value) == (0.5, 0.5, 0.5, 0.5)
    assert not hasattr(datamodule, "lr")


def test_hyper_parameters_alone_suffice() -> None:
    trainer = SimpleNamespace(lightning_module=SimpleNamespace(hparams={"lr": 2.0}), datamodule=None)
    assert TunedAttribute(trainer, "lr").value == 2.0
    assert not has_attribute(trainer, "learning_rate")


def test_an_absent_name_is_refused() -> None:
    with pytest.raises(MisconfigurationException, match="there is no 'lr' to tune: neither SimpleNamespace nor its"):
        TunedAttribute(SimpleNamespace(lightning_module=SimpleNamespace(), datamodule=None), "lr")


def test_what_lightning_raises_is_caught_as_before() -> None:
    with pytest.raises(AttributeError):
        TunedAttribute(SimpleNamespace(lightning_module=SimpleNamespace(), datamodule=None), "lr")
    for finder in (LearningRateFinder, BatchSizeFinder):
        with pytest.raises(ValueError, match="mode must be"):
            finder(mode="cubic")
