"""``DeviceStatsMonitor``: logs how busy and how full the device is, before and after batches.

Names are ``DeviceStatsMonitor.<hook>/<value>``. Values of a CPU come from psutil: ``cpu_percent`` (of all cores since
the last look), ``cpu_vm_percent`` (memory in use) and ``cpu_swap_percent``; those of a CUDA device are all of
``torch.cuda.memory_stats``: ``allocated_bytes.all.current``, ``reserved_bytes.all.peak``, ``num_ooms``, …
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hookbus.callback import Callback
from hookbus.callbacks.log_moments import LogMoments, has_outlet, log
from hookbus.errors import MisconfigurationException, MissingExtraError

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class DeviceStatsMonitor(Callback):
    """Logs figures of the device in training, validation and test, as often as ``log_every_n_steps`` says.

    Args:
        cpu_stats: figures of the CPU: always (True), never (False), or if it is the device that trains (None). They
            need the package psutil: ``pip install "hookbus[psutil]"``.

    Raises:
        MisconfigurationException: when a fit is set up, if there is no logger.
        MissingExtraError: when a fit is set up, if psutil is needed and not installed.

    Example:
        >>> from hookbus.callbacks import DeviceStatsMonitor
        >>> monitor = DeviceStatsMonitor(cpu_stats=True)
    """

    role: ClassVar[str] = "monitor"

    def __init__(self, cpu_stats: bool | None = None) -> None:
        if cpu_stats not in (True, False, None):
            raise MisconfigurationException(f"cpu_stats must be True, False or None, got {cpu_stats!r}")
        self._cpu_stats = cpu_stats
        self._moments = LogMoments()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """There must be somebody to log to, and psutil where it is needed."""
        if stage != "fit":
            return
        if not has_outlet(trainer):
            raise MisconfigurationException(
                f"{type(self).__name__} needs a logger, and the Trainer has none: give it one with Trainer(logger=…), or "
                "drop the callback"
            )
        if self._looks_at_cpu(trainer.strategy.root_device) and find_spec("psutil") is None:
            raise MissingExtraError(
                "DeviceStatsMonitor reads the CPU's figures with the package psutil, which is not installed: "
                'pip install "hookbus[psutil]", or use DeviceStatsMonitor(cpu_stats=False)',
                name="psutil",
            )

    def _looks_at_cpu(self, device: torch.device) -> bool:
        return device.type == "cpu" if self._cpu_stats is None else self._cpu_stats

    def _log(self, trainer: pl.Trainer, hook: str) -> None:
        device = trainer.strategy.root_device
        figures = _figures_of(device)
        if self._looks_at_cpu(device):
            figures.update(cpu_figures())
        if figures and has_outlet(trainer):
            separator = trainer.loggers[0].group_separator if trainer.loggers else "/"
            prefix = f"{type(self).__qualname__}.{hook}{separator}"
            log(trainer, {f"{prefix}{name}": value for name, value in figures.items()})

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log, if it is time to."""
        if self._moments.due(trainer):
            self._log(trainer, "on_train_batch_start")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if it is time to."""
        if self._moments.due(trainer):
            self._log(trainer, "on_train_batch_end")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count batches from here."""
        self._moments.begin_evaluation()

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log, if it is time to."""
        self._moments.begin_batch()
        if self._moments.due(trainer):
            self._log(trainer, "on_validation_batch_start")

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Log, if it is time to."""
        if self._moments.due(trainer):
            self._log(trainer, "on_validation_batch_end")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count batches from here."""
        self._moments.begin_evaluation()

    def on_test_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log, if it is time to."""
        self._moments.begin_batch()
        if self._moments.due(trainer):
            self._log(trainer, "on_test_batch_start")

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Log, if it is time to."""
        if self._moments.due(trainer):
            self._log(trainer, "on_test_batch_end")


def cpu_figures() -> dict[str, float]:
    """Percent of this machine's cores, memory and swap space in use."""
    psutil = import_module("psutil")

    return {
        "cpu_vm_percent": psutil.virtual_memory().percent,
        "cpu_percent": psutil.cpu_percent(),
        "cpu_swap_percent": psutil.swap_memory().percent,
    }


def _figures_of(device: torch.device) -> dict[str, float]:
    """torch's own figures of a device; a CPU has none."""
    if device.type == "cuda":
        return dict(torch.cuda.memory_stats(device))
    if device.type == "mps":
        return {
            "allocated_bytes.current": torch.mps.current_allocated_memory(),
            "driver_allocated_bytes.current": torch.mps.driver_allocated_memory(),
        }
    return {}
