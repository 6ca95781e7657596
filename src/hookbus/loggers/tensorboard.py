"""``TensorBoardLogger``: metrics, hyperparameters, images and figures for TensorBoard (an optional extra)."""

from __future__ import annotations

import os
import time
import warnings
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hookbus.loggers.hparams import write_hparams
from hookbus.loggers.logger import Logger, plain_params, prefixed
from hookbus.loggers.rank_zero import rank_zero_experiment, rank_zero_only
from hookbus.loggers.scalars import to_numbers
from hookbus.loggers.versions import RunDirectory, directory_of

_SECONDS_BETWEEN_FLUSHES = 2.0


class TensorBoardLogger(Logger):
    """Logs to ``save_dir/name/version[/sub_dir]``; show it with ``tensorboard --logdir save_dir``.

    Args:
        save_dir: where all experiments lie; ``~`` and ``$VARIABLES`` are replaced.
        name: the experiment, a directory; empty or None for none.
        version: an int for ``version_N``, a string for a directory of that name, None for the next free number.
        log_graph: draw the model's computation, if it has an ``example_input_array``.
        default_hp_metric: show hyperparameters with a metric ``hp_metric`` of -1 where none is given, since TensorBoard
            lists runs with a metric only.
        prefix: put before each name, with a ``-``.
        sub_dir: directory below the version's.
        **kwargs: passed on to ``torch.utils.tensorboard.SummaryWriter`` (``flush_secs``, ``max_queue``, ...).

    Raises:
        ImportError: the package tensorboard is not installed.
    """

    LOGGER_JOIN_CHAR = "-"
    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        _require_tensorboard()
        self._directory = RunDirectory(save_dir, name, version)
        self._log_graph = log_graph
        self._default_hp_metric = default_hp_metric
        self._prefix = prefix
        self._sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self._writer_options = kwargs
        self._experiment: Any = None
        self._flushed = 0.0
        self._hparams_file: Path | None = None
        self.hparams: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The experiment."""
        return self._directory.name

    @property
    def version(self) -> int | str:
        """Which run of the experiment this is."""
        return self._directory.version_in(self.root_dir)

    @property
    def save_dir(self) -> str:
        """Where all experiments lie."""
        return self._directory.save_dir

    @property
    def root_dir(self) -> str:
        """Directory of all versions."""
        return os.path.join(self.save_dir, self.name)

    @property
    def sub_dir(self) -> str | None:
        """Directory below the version's."""
        return self._sub_dir

    @property
    def log_dir(self) -> str:
        """Directory of this version, with ``sub_dir``."""
        path = directory_of(self.root_dir, self.version)
        return path if self.sub_dir is None else os.path.join(path, self.sub_dir)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The ``SummaryWriter``."""
        if self._experiment is None:
            from torch.utils.tensorboard import SummaryWriter

            os.makedirs(self.log_dir, exist_ok=True)
            self._experiment = SummaryWriter(log_dir=self.log_dir, **self._writer_options)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write numbers; a dictionary as value becomes one chart with several lines."""
        writer = self.experiment
        groups = {name: value for name, value in metrics.items() if isinstance(value, Mapping)}
        single = {name: value for name, value in metrics.items() if name not in groups}
        for name, number in prefixed(to_numbers(single), self._prefix, self.LOGGER_JOIN_CHAR).items():
            writer.add_scalar(name, number, step)
        for name, group in prefixed(groups, self._prefix, self.LOGGER_JOIN_CHAR).items():
            writer.add_scalars(name, to_numbers(group), step)

    @rank_zero_only
    def log_hyperparams(
        self,
        params: Mapping[str, Any] | Namespace | None,
        metrics: Mapping[str, Any] | float | None = None,
        step: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Write the hyperparameters, with ``metrics`` (default ``hp_metric``) to compare runs by."""
        self.hparams.update(plain_params(params))
        self._hparams_file = write_hparams(self._made_log_dir(), self.hparams, self._hparams_file)
        if metrics is None:
            metrics = {"hp_metric": -1} if self._default_hp_metric else {}
        elif not isinstance(metrics, Mapping):
            metrics = {"hp_metric": metrics}
        if not metrics:
            return
        from torch.utils.tensorboard.summary import hparams as summaries

        self.log_metrics(metrics, 0 if step is None else step)
        writer = self.experiment._get_file_writer()
        for summary in summaries(_flat(self.hparams), dict(metrics)):  # type: ignore[no-untyped-call]
            writer.add_summary(summary)

    @rank_zero_only
    def log_graph(self, model: nn.Module, input_array: Tensor | None = None) -> None:
        """Draw the computation of ``model``; the input defaults to its ``example_input_array``."""
        if not self._log_graph:
            return
        example = getattr(model, "example_input_array", None) if input_array is None else input_array
        if not isinstance(example, (Tensor, tuple)):
            warnings.warn(
                "log_graph needs an input: set self.example_input_array to a tensor or a tuple of the arguments of "
                f"forward; it is {type(example).__name__}",
                stacklevel=2,
            )
            return
        self.experiment.add_graph(model, example)

    @rank_zero_only
    def log_image(self, key: str, image: Any, step: int | None = None) -> None:
        """Show an image of shape (H, W), (H, W, C) or (C, H, W), with C 1, 3 or 4."""
        shape = tuple(image.shape)
        if len(shape) not in (2, 3) or (len(shape) == 3 and not {shape[0], shape[-1]} & {1, 3, 4}):
            raise ValueError(f"log_image({key!r}) takes (H, W), (H, W, C) or (C, H, W) with C 1, 3 or 4, got {shape}")
        layout = "HW" if len(shape) == 2 else "HWC" if shape[-1] in (1, 3, 4) else "CHW"
        self.experiment.add_image(key, image, step, dataformats=layout)

    @rank_zero_only
    def log_figure(self, key: str, image: Any, step: int | None = None) -> None:
        """Show a matplotlib figure, which stays open."""
        self.experiment.add_figure(key, image, step, close=False)

    @rank_zero_only
    def save(self) -> None:
        """Write what waits, at most every two seconds: the trainer calls this after each row.

        Hyperparameters are in a file also where there are none, for who reads them back with the weights.
        """
        if self._experiment is None:
            return
        if self._hparams_file is None and not Path(self.log_dir, self.NAME_HPARAMS_FILE).exists():
            self._hparams_file = write_hparams(self._made_log_dir(), self.hparams)
        now = time.monotonic()
        if now - self._flushed > _SECONDS_BETWEEN_FLUSHES:
            self._flushed = now
            self._experiment.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what waits and close the files; logging may go on later, in a further file."""
        if self._experiment is not None:
            self._experiment.flush()
            self._experiment.close()
            self._experiment = None

    def _made_log_dir(self) -> Path:
        path = Path(self.log_dir)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_experiment": None}


def _require_tensorboard() -> None:
    try:
        import_module("tensorboard")
    except ImportError as error:
        raise ImportError(
            "TensorBoardLogger needs the package tensorboard: pip install 'hookbus[tensorboard]', or use CSVLogger, "
            "which needs nothing"
        ) from error


def _flat(params: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested hyperparameters as ``outer/inner`` names with values that TensorBoard can show."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
