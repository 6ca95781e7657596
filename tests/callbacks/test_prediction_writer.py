"""BasePredictionWriter: what it is given, as recorded from Lightning; indices with workers; ranks beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import Numbers, _identity, _writer
from torch.utils.data import DataLoader

from hookbus.callbacks import BasePredictionWriter
from hookbus.errors import MisconfigurationException


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("writer", tmp_path), RECORDED["writer"])


@pytest.mark.parametrize("return_predictions", [True, False])
def test_indices_are_those_of_the_batch_with_workers(return_predictions: bool, tmp_path: Path) -> None:
    """A sample of this dataset is its own index, so predictions and indices must agree."""
    calls: list[Any] = []
    loader = DataLoader(Numbers(23), batch_size=2, shuffle=True, num_workers=2)
    trainer = HOOKBUS.trainer(tmp_path, callbacks=[_writer(HOOKBUS, "batch_and_epoch", calls)])
    trainer.predict(HOOKBUS.model(predict_step=_identity), loader, return_predictions=return_predictions)
    *batches, (_, predictions, indices) = calls
    assert len(batches) == 12
    assert all(prediction == indices == batch for _, prediction, indices, batch, _, _ in batches)
    assert [predictions] == indices


def test_several_writers_with_several_loaders(tmp_path: Path) -> None:
    by_batch: list[Any] = []
    at_end: list[Any] = []
    writers = [_writer(HOOKBUS, "batch", by_batch), _writer(HOOKBUS, "epoch", at_end)]
    trainer = HOOKBUS.trainer(tmp_path, callbacks=writers)
    loaders = {"a": DataLoader(Numbers(3), batch_size=2), "b": DataLoader(Numbers(2, 7), batch_size=2)}
    trainer.predict(HOOKBUS.model(predict_step=_identity), loaders, return_predictions=False)
    assert [(row[2], row[5]) for row in by_batch] == [([0, 1], 0), ([2], 0), ([0, 1], 1)]
    assert at_end == [["epoch", [[[0, 1], [2]], [[7, 8]]], [[[0, 1], [2]], [[0, 1]]]]]


def test_nothing_is_kept_that_nobody_wants(tmp_path: Path) -> None:
    calls: list[Any] = []
    trainer = HOOKBUS.trainer(tmp_path, callbacks=[_writer(HOOKBUS, "batch", calls)])
    trainer.predict(HOOKBUS.model(predict_step=_identity), DataLoader(Numbers(4)), return_predictions=False)
    assert len(calls) == 4
    assert trainer.predict_loop.predictions == []
    assert trainer.predict_loop.epoch_batch_indices == [[]]


def test_indices_can_be_read_without_a_writer(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path)
    trainer.predict(HOOKBUS.model(predict_step=_identity), DataLoader(Numbers(3), batch_size=2))
    assert trainer.predict_loop.epoch_batch_indices == [[[0, 1], [2]]]


def test_ranks_write_beside_each_other(tmp_path: Path) -> None:
    """The example in the class's documentation, run as two processes would run it."""

    class Writer(BasePredictionWriter):
        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            path = tmp_path / f"predictions_{trainer.global_rank}.pt"
            torch.save({"predictions": predictions, "samples": batch_indices}, path)

    for rank in (0, 1):
        trainer = HOOKBUS.trainer(tmp_path, callbacks=[Writer("epoch")])
        trainer.strategy.global_rank = rank
        share = torch.utils.data.DistributedSampler(Numbers(6), num_replicas=2, rank=rank, shuffle=False)
        trainer.predict(
            HOOKBUS.model(predict_step=_identity), DataLoader(Numbers(6), sampler=share), return_predictions=False
        )
    written = [torch.load(tmp_path / f"predictions_{rank}.pt") for rank in (0, 1)]
    assert [one["samples"] for one in written] == [[[[0], [2], [4]]], [[[1], [3], [5]]]]


def test_an_exception_while_writing_ends_the_run(tmp_path: Path) -> None:
    class Full(BasePredictionWriter):
        def write_on_batch_end(self, *args: Any) -> None:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        HOOKBUS.trainer(tmp_path, callbacks=[Full()]).predict(HOOKBUS.model(), DataLoader(torch.zeros(2, 2)))


@pytest.mark.parametrize(("interval", "method"), [("batch", "write_on_batch_end"), ("epoch", "write_on_epoch_end")])
def test_a_method_that_is_missing_is_named_before_the_work(interval: Any, method: str, tmp_path: Path) -> None:
    class Unfinished(BasePredictionWriter):
        pass

    trainer = HOOKBUS.trainer(tmp_path, callbacks=[Unfinished(interval)])
    with pytest.raises(MisconfigurationException, match=f"Unfinished .* does not define {method}"):
        trainer.predict(HOOKBUS.model(), DataLoader(torch.zeros(2, 2)))


def test_another_interval_is_refused() -> None:
    with pytest.raises(
        MisconfigurationException, match="must be one of 'batch', 'epoch', 'batch_and_epoch'; got 'step'"
    ):
        BasePredictionWriter("step")  # type: ignore[arg-type]
