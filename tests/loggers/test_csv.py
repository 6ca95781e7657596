"""``CSVLogger``: what is in the files, whatever happens to the process."""

from __future__ import annotations

import csv
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.loggers import CSVLogger
from hookbus.loggers.rank_zero import rank_zero_only


def rows_of(logger: CSVLogger) -> list[dict[str, str]]:
    with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_per_call(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"loss": torch.tensor(0.5), "epoch": 0}, step=3)
    logger.log_metrics({"loss": float("nan"), "epoch": 1}, step=4)
    logger.save()
    assert rows_of(logger) == [
        {"epoch": "0", "step": "3", "loss": "0.5"},
        {"epoch": "1", "step": "4", "loss": "nan"},
    ]
    assert logger.log_dir == str(tmp_path / "lightning_logs" / "version_0")


def test_metrics_that_appear_later_get_a_column_and_no_row_is_lost(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    for step, metrics in enumerate([{"a": 1}, {"b": 2}, {"a": 3, "c, d": "x\ny"}, {"b": 4}]):
        logger.log_metrics(metrics, step)
        logger.save()
    empty = {"a": "", "b": "", "c, d": ""}
    assert rows_of(logger) == [
        {**empty, "step": "0", "a": "1"},
        {**empty, "step": "1", "b": "2"},
        {**empty, "step": "2", "a": "3", "c, d": "x\ny"},
        {**empty, "step": "3", "b": "4"},
    ]
    assert sorted(path.name for path in Path(logger.log_dir).iterdir()) == ["metrics.csv"]


def test_rows_are_written_every_n_steps_and_in_one_go(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=10)
    for step in range(9):
        logger.log_metrics({"a": step}, step)
    assert not (Path(logger.log_dir) / "metrics.csv").exists()
    logger.log_metrics({"a": 9}, 9)
    assert len(rows_of(logger)) == 10
    for step in range(50, 550, 50):  # steps that never end with a nine
        logger.log_metrics({"a": step}, step)
    assert len(rows_of(logger)) == 20


def test_a_tensor_changed_after_it_was_logged_keeps_its_value(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    weight = torch.ones((), requires_grad=True)
    logger.log_metrics({"w": weight}, 0)
    with torch.no_grad():
        weight += 1
    logger.save()
    assert rows_of(logger)[0]["w"] == "1.0"


def test_a_tensor_of_several_elements_is_refused_by_name(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    with pytest.raises(ValueError, match=r"'scores'.*\(2,\)"):
        logger.log_metrics({"scores": torch.zeros(2)}, 0)
    logger.log_metrics({"scores": torch.zeros(1)}, 1)
    logger.finalize("success")
    assert [row["step"] for row in rows_of(logger)] == ["1"]


def test_each_run_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    first, second = CSVLogger(tmp_path, name="exp"), CSVLogger(tmp_path, name="exp")
    assert (first.version, second.version) == (0, 1)
    (tmp_path / "exp" / "version_7").mkdir()
    (tmp_path / "exp" / "version_x").mkdir()
    assert CSVLogger(tmp_path, name="exp").version == 8
    assert CSVLogger(tmp_path, name=None, version="mine").log_dir == str(tmp_path / "mine")


def test_home_and_variables_stand_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RUNS", "runs")
    logger = CSVLogger("~/$RUNS", name="exp")
    logger.log_metrics({"a": 1}, 0)
    logger.finalize("success")
    assert (tmp_path / "runs" / "exp" / "version_0" / "metrics.csv").exists()


def test_a_logger_derived_from_it_may_compute_the_parts_of_its_folder(tmp_path: Path) -> None:
    class Mine(CSVLogger):
        @property
        def name(self) -> str:
            return "mine"

        @property
        def version(self) -> str:
            return "today"

    class Elsewhere(CSVLogger):
        @property
        def root_dir(self) -> str:
            return str(tmp_path / "elsewhere")

    for cls, folder in ((Mine, tmp_path / "mine" / "today"), (Elsewhere, tmp_path / "elsewhere" / "version_0")):
        logger = cls(tmp_path)
        logger.log_metrics({"a": 1}, 0)
        logger.finalize("success")
        assert (folder / "metrics.csv").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "mine"]


def test_a_save_of_ones_own_is_what_writes_every_n_steps(tmp_path: Path) -> None:
    class Counts(CSVLogger):
        saves = 0

        def save(self) -> None:
            self.saves += 1
            super().save()

    logger = Counts(tmp_path, flush_logs_every_n_steps=2)
    logger.log_metrics({"a": 1}, 0)
    assert (logger.saves, (Path(logger.log_dir) / "metrics.csv").exists()) == (0, False)
    logger.log_metrics({"a": 2}, 1)
    assert (logger.saves, len(rows_of(logger))) == (1, 2)


def test_a_version_that_exists_is_continued(tmp_path: Path) -> None:
    first = CSVLogger(tmp_path, version=3)
    first.log_metrics({"a": 1}, 0)
    first.finalize("failed")
    second = CSVLogger(tmp_path, version=3)
    second.log_metrics({"b": 2}, 1)
    second.finalize("success")
    assert rows_of(second) == [{"step": "0", "a": "1", "b": ""}, {"step": "1", "a": "", "b": "2"}]


def test_a_row_cut_off_by_a_kill_does_not_swallow_the_next(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, version=0)
    path = Path(logger.log_dir)
    path.mkdir(parents=True)
    (path / "metrics.csv").write_bytes(b"step,a\r\n0,1\r\n1,")
    logger.log_metrics({"a": 5}, 2)
    logger.save()
    assert rows_of(logger)[-1] == {"step": "2", "a": "5"}


def test_logging_goes_on_after_finalize_and_in_a_pickled_copy(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 1}, 0)
    logger.finalize("success")
    logger.log_metrics({"a": 2}, 1)
    logger.save()
    copy = pickle.loads(pickle.dumps(logger))
    copy.log_metrics({"a": 3}, 2)
    copy.finalize("success")
    assert [row["a"] for row in rows_of(logger)] == ["1", "2", "3"]


def test_prefix(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, prefix="p")
    logger.log_metrics({"a": 1}, 0)
    logger.save()
    assert rows_of(logger) == [{"step": "0", "p-a": "1"}]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 1}, 0)
    logger.log_hyperparams({"lr": 1})
    logger.experiment.anything(1)
    logger.finalize("success")
    assert logger.version == 0
    assert list(tmp_path.iterdir()) == []


def test_hyperparameters_of_an_earlier_run_stay(tmp_path: Path) -> None:
    first = CSVLogger(tmp_path, version=0)
    first.log_hyperparams({"lr": 0.1})
    first.log_hyperparams(Namespace(layers=[1, 2]))
    second = CSVLogger(tmp_path, version=0)
    second.log_hyperparams({"lr": 0.2})
    second.log_hyperparams({"more": True})
    assert (tmp_path / "lightning_logs/version_0/hparams.yaml").read_text() == "lr: 0.1\nlayers: [1, 2]\n"
    assert (tmp_path / "lightning_logs/version_0/hparams_1.yaml").read_text() == "lr: 0.2\nmore: true\n"


def test_remote_paths_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="directory of this machine"):
        CSVLogger("s3://bucket/logs")


def test_columns_read_back_in_the_order_they_appeared(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    metrics: dict[str, Any] = {"z": 1, "a": 2, "epoch": 0}
    logger.log_metrics(metrics, 0)
    logger.log_metrics({"m": 1}, 1)
    logger.save()
    assert list(rows_of(logger)[0]) == ["epoch", "step", "z", "a", "m"]
