"""``TensorBoardLogger``: what TensorBoard would show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.loggers import TensorBoardLogger
from hookbus.loggers.rank_zero import rank_zero_only


def test_without_the_package_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'hookbus\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)


def shown(logger: TensorBoardLogger) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(logger.log_dir, size_guidance={accumulator.IMAGES: 0})
    events.Reload()
    return events


def test_scalars_hyperparameters_and_images(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(tmp_path, name="exp", sub_dir="part")
    logger.log_metrics({"loss": torch.tensor(0.5), "acc": 1}, step=3)
    logger.log_hyperparams({"lr": 0.1, "nested": {"a": [1]}})
    logger.log_image("cam", torch.rand(3, 4, 5), step=1)
    logger.log_image("grey", torch.rand(4, 5), step=1)
    with pytest.raises(ValueError, match="log_image"):
        logger.log_image("bad", torch.rand(7, 4, 5))
    logger.save()
    logger.finalize("success")
    logger.log_metrics({"loss": 0.25}, step=4)
    logger.finalize("success")
    assert logger.log_dir == str(tmp_path / "exp" / "version_0" / "part")
    assert (Path(logger.log_dir) / "hparams.yaml").read_text() == "lr: 0.1\nnested:\n  a: [1]\n"
    events = shown(logger)
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 0.5), (4, 0.25)]
    assert {"acc", "loss", "hp_metric"} <= set(events.Tags()["scalars"])
    assert set(events.Tags()["images"]) == {"cam", "grey"}


def test_hyperparameters_are_in_a_file_also_where_there_are_none(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(tmp_path, version=0)
    logger.save()
    assert list(tmp_path.iterdir()) == []  # nothing was logged yet
    logger.log_metrics({"a": 1.0}, 0)
    logger.save()
    file = Path(logger.log_dir) / TensorBoardLogger.NAME_HPARAMS_FILE
    assert file.read_text() == "{}\n"
    logger.log_hyperparams({"lr": 0.1})
    assert file.read_text() == "lr: 0.1\n"
    later = TensorBoardLogger(tmp_path, version=0)
    later.log_metrics({"a": 2.0}, 1)
    later.save()
    assert file.read_text() == "lr: 0.1\n"
    assert len(list(file.parent.glob("hparams*"))) == 1


def test_a_logger_derived_from_it_may_compute_the_parts_of_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class Mine(TensorBoardLogger):
        @property
        def name(self) -> str:
            return "mine"

        @property
        def version(self) -> str:
            return "today"

    logger = Mine(tmp_path, sub_dir="part")
    logger.log_metrics({"a": 1.0}, 0)
    logger.finalize("success")
    assert [event.value for event in shown(logger).Scalars("a")] == [1.0]
    assert [path.name for path in (tmp_path / "mine" / "today" / "part").glob("events*")]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(rank_zero_only, "rank", 2)
    logger = TensorBoardLogger(tmp_path)
    logger.log_metrics({"a": 1.0})
    logger.experiment.add_scalar("a", 1)
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []


def test_graph_without_an_example_warns(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    with pytest.warns(UserWarning, match="example_input_array"):
        logger.log_graph(torch.nn.Linear(1, 1))
    logger.log_graph(torch.nn.Linear(1, 1), torch.zeros(1, 1))
    logger.finalize("success")
