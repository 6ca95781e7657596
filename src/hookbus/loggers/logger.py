"""``Logger``: what the trainer asks of everything that writes metrics down. Names and meanings are Lightning's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hookbus.loggers.rank_zero import DummyExperiment


class MetricLogger(ABC):
    """What any loop may ask of a logger, with a trainer or without.

    A class of its own, as Fabric's is in Lightning: packages ship one logger for both, as
    ``class Mine(Logger, MineForFabric)``, which needs two different bases.
    """

    @property
    @abstractmethod
    def name(self) -> str | None:
        """Name of the experiment."""

    @property
    @abstractmethod
    def version(self) -> int | str | None:
        """Which run of the experiment this is."""

    @property
    def root_dir(self) -> str | None:
        """Directory of all versions; None if nothing is written on this machine."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Directory of this version; None if nothing is written on this machine."""
        return None

    @property
    def group_separator(self) -> str:
        """What joins a group and a name: ``"grad/norm"``."""
        return "/"

    @abstractmethod
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write numbers.

        Args:
            metrics: numbers by name, already reduced across processes.
            step: the optimizer step they belong to, from 0.
        """

    @abstractmethod
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write the hyperparameters of the run."""

    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:  # noqa: B027
        """Write the computation of ``model``."""

    def save(self) -> None:  # noqa: B027
        """Write what is still in memory."""

    def finalize(self, status: str) -> None:
        """Write what is still in memory and close; ``status`` is "success" or "failed"."""
        self.save()


class Logger(MetricLogger):
    """Base class of loggers.

    A logger of your own defines ``name``, ``version``, ``log_metrics`` and ``log_hyperparams``, and decorates what
    writes with ``@rank_zero_only``. The other methods do nothing unless overridden.
    """

    @property
    def save_dir(self) -> str | None:
        """Directory given to the logger; None if nothing is written on this machine."""
        return None

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Called when ``checkpoint_callback`` has saved a checkpoint."""


class DummyLogger(Logger):
    """Takes everything and writes nothing; used where a run should leave no trace (``fast_dev_run``)."""

    def __init__(self) -> None:
        self._experiment = DummyExperiment()

    @property
    def experiment(self) -> DummyExperiment:
        """An object whose every method does nothing."""
        return self._experiment

    @property
    def name(self) -> str:
        """Empty."""
        return ""

    @property
    def version(self) -> str:
        """Empty."""
        return ""

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def __getitem__(self, index: int) -> DummyLogger:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle ask for these
            raise AttributeError(name)
        return self._experiment.nop


def plain_params(params: Mapping[str, Any] | Namespace | None) -> dict[str, Any]:
    """Hyperparameters as a dictionary, whichever way they were given."""
    if params is None:
        return {}
    return dict(vars(params) if isinstance(params, Namespace) else params)


def prefixed(metrics: Mapping[str, Any], prefix: str, separator: str = "-") -> dict[str, Any]:
    """The metrics with ``prefix`` before each name, unless it is empty."""
    return {f"{prefix}{separator}{name}": value for name, value in metrics.items()} if prefix else dict(metrics)
