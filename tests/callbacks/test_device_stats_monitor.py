"""DeviceStatsMonitor: names and steps as recorded from Lightning, the CPU's figures, and what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader

from hookbus.callbacks import DeviceStatsMonitor, device_stats_monitor
from hookbus.errors import MisconfigurationException, MissingExtraError

CPU = {"cpu_percent", "cpu_vm_percent", "cpu_swap_percent"}


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("device_stats", tmp_path), RECORDED["device_stats"])


def test_figures_are_percentages(tmp_path: Path) -> None:
    logger = HOOKBUS.logger()
    trainer = HOOKBUS.trainer(tmp_path, max_steps=1, logger=logger, callbacks=[DeviceStatsMonitor()])
    trainer.fit(HOOKBUS.model(), loader(2))
    (_, before), *_ = logger.rows
    assert before.keys() == {f"DeviceStatsMonitor.on_train_batch_start/{name}" for name in CPU}
    assert all(0 <= value <= 100 for value in before.values())


def test_a_subclass_logs_under_its_own_name(tmp_path: Path) -> None:
    class Watch(DeviceStatsMonitor):
        pass

    logger = HOOKBUS.logger()
    HOOKBUS.trainer(tmp_path, max_steps=1, logger=logger, callbacks=[Watch()]).fit(HOOKBUS.model(), loader(2))
    assert "Watch.on_train_batch_end/cpu_percent" in logger.rows[1][1].__str__()


@pytest.mark.parametrize(("cpu_stats", "names"), [(None, set()), (False, set()), (True, CPU)])
def test_figures_of_a_cuda_device(
    cpu_stats: bool | None, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is made up: torch's figures go to the logger as they are."""
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"allocated_bytes.all.peak": 7, "num_ooms": 0})
    logger = HOOKBUS.logger()
    monitor = DeviceStatsMonitor(cpu_stats)
    trainer = HOOKBUS.trainer(tmp_path, max_steps=1, logger=logger, callbacks=[monitor])
    monkeypatch.setattr(monitor, "_log", _on_cuda(monitor._log))
    trainer.fit(HOOKBUS.model(), loader(2))
    _, metrics = logger.rows[0]
    assert {name.rpartition("/")[2] for name in metrics} == {"allocated_bytes.all.peak", "num_ooms"} | names


def _on_cuda(log: Any) -> Any:
    def logged(trainer: Any, hook: str) -> None:
        own, trainer.strategy.root_device = trainer.strategy.root_device, torch.device("cuda", 0)
        try:
            log(trainer, hook)
        finally:
            trainer.strategy.root_device = own

    return logged


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_cuda_device(tmp_path: Path) -> None:
    logger = HOOKBUS.logger()
    trainer = HOOKBUS.trainer(
        tmp_path, accelerator="cuda", devices=1, max_steps=1, logger=logger, callbacks=[DeviceStatsMonitor(True)]
    )
    trainer.fit(HOOKBUS.model(), loader(2))
    names = {name.rpartition("/")[2] for name in logger.rows[0][1]}
    assert names >= CPU | {"allocated_bytes.all.current", "reserved_bytes.all.peak", "num_ooms"}
    assert logger.rows[0][1]["DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current"] > 0


def test_needs_a_logger(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="needs a logger"):
        HOOKBUS.trainer(tmp_path, callbacks=[DeviceStatsMonitor()]).fit(HOOKBUS.model(), loader(2))


def test_says_which_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stats_monitor, "find_spec", lambda name: None)
    trainer = HOOKBUS.trainer(tmp_path, logger=HOOKBUS.logger(), callbacks=[DeviceStatsMonitor()])
    with pytest.raises(MissingExtraError, match=r'pip install "hookbus\[psutil\]"') as caught:
        trainer.fit(HOOKBUS.model(), loader(2))
    assert isinstance(caught.value, ModuleNotFoundError)
    assert caught.value.name == "psutil"


def test_a_failure_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, float]:
        raise OSError("no /proc here")

    monkeypatch.setattr(device_stats_monitor, "cpu_figures", broken)
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=HOOKBUS.logger(), callbacks=[DeviceStatsMonitor()])
    with pytest.warns(RuntimeWarning, match="monitor 'DeviceStatsMonitor' failed in on_train_batch_start: OSError"):
        trainer.fit(HOOKBUS.model(), loader(6))
    assert trainer.global_step == 3


def test_a_trial_run(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, logger=True, callbacks=[DeviceStatsMonitor()])
    trainer.fit(HOOKBUS.model(), loader(4), loader(4))
    assert trainer.global_step == 1


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(MisconfigurationException, match="cpu_stats must be True, False or None"):
        DeviceStatsMonitor(cpu_stats="yes")  # type: ignore[arg-type]
