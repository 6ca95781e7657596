from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

import hookbus
from hookbus.errors import MisconfigurationException


class Data(hookbus.DataModule):
    def __init__(self, x: int, y: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.served = 0

    def train_dataloader(self) -> Any:
        return DataLoader(torch.ones(4, 2), batch_size=2)

    def state_dict(self) -> dict[str, Any]:
        return {"served": self.served}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.served = state_dict["served"]


def test_defaults() -> None:
    data = hookbus.LightningDataModule()
    assert hookbus.DataModule is hookbus.LightningDataModule
    assert data.trainer is data.name is None
    assert data.prepare_data_per_node is True
    assert data.allow_zero_length_dataloader_with_multiple_devices is False
    assert data.state_dict() == {}
    for hook in (data.prepare_data, lambda: data.setup("fit"), lambda: data.teardown("fit")):
        assert hook() is None
    assert data.on_exception(ValueError()) is None
    batch = [torch.ones(1)]
    assert data.on_before_batch_transfer(batch, 0) is data.on_after_batch_transfer(batch, 0) is batch
    assert data.transfer_batch_to_device(batch, torch.device("meta"), 0)[0].device.type == "meta"


@pytest.mark.parametrize("prefix", ["train", "val", "test", "predict"])
def test_a_missing_loader_says_what_to_define(prefix: str) -> None:
    with pytest.raises(MisconfigurationException, match=rf"defines no {prefix}_dataloader\(self\)"):
        getattr(hookbus.LightningDataModule(), f"{prefix}_dataloader")()


def test_it_works_without_super_init() -> None:
    class Careless(hookbus.LightningDataModule):
        def __init__(self) -> None:
            self.path = "here"

    assert Careless().trainer is None
    assert Careless().hparams == {}


def test_from_datasets() -> None:
    dataset = TensorDataset(torch.ones(4, 2))
    data = hookbus.LightningDataModule.from_datasets(dataset, [dataset, dataset], {"a": dataset}, batch_size=2)
    train = data.train_dataloader()
    assert isinstance(train.sampler, RandomSampler)
    assert train.batch_size == 2
    first, second = data.val_dataloader()
    assert isinstance(first.sampler, SequentialSampler)
    assert isinstance(second, DataLoader)
    assert list(data.test_dataloader()) == ["a"]
    with pytest.raises(MisconfigurationException, match="predict_dataloader"):
        data.predict_dataloader()


def test_from_datasets_does_not_shuffle_a_stream() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([1, 2, 3])

    data = hookbus.LightningDataModule.from_datasets(Stream(), batch_size=3)
    assert [batch.tolist() for batch in data.train_dataloader()] == [[1, 2, 3]]


def test_from_datasets_tells_a_subclass() -> None:
    class Own(hookbus.LightningDataModule):
        def __init__(self, batch_size: int, title: str) -> None:
            super().__init__()
            self.batch_size, self.title = batch_size, title

    data: Any = Own.from_datasets(TensorDataset(torch.ones(4)), batch_size=2, title="t")
    assert (data.batch_size, data.title) == (2, "t")


def test_load_from_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "data.ckpt"
    torch.save(
        {
            "datamodule_hyper_parameters": {"x": 1, "y": 3},
            "datamodule_hparams_name": "kwargs",
            "hyper_parameters": {"x": "the module's"},
            "Data": {"served": 7},
        },
        path,
    )
    loaded = Data.load_from_checkpoint(path, y=4)
    assert loaded.hparams == {"x": 1, "y": 4}
    assert loaded.served == 7
    with pytest.raises(TypeError, match="call it on the class"):
        loaded.load_from_checkpoint(path)


def test_a_run_knows_its_data_module() -> None:
    class Model(hookbus.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = Data(1)
    trainer = hookbus.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer.fit(Model(), datamodule=data)
    assert data.trainer is trainer
    assert trainer.global_step == 2
