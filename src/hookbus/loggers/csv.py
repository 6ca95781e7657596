"""``CSVLogger``: metrics in ``metrics.csv``, one row per call, and hyperparameters in ``hparams.yaml``.

Rows wait in memory with their tensors as they are; writing turns all of them into numbers at once and appends them to
the file, which stays open. A metric that appears later gets a column at the right end: then the file is written anew
beside the old one and replaces it in one step, so a crash at any moment costs no row that was flushed.
"""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from hookbus.loggers.hparams import write_hparams
from hookbus.loggers.logger import Logger, plain_params, prefixed
from hookbus.loggers.rank_zero import rank_zero_experiment, rank_zero_only
from hookbus.loggers.scalars import check_single, numbers_of
from hookbus.loggers.versions import RunDirectory, directory_of


class ExperimentWriter:
    """Writes ``metrics.csv`` and ``hparams.yaml`` into a directory, continuing a ``metrics.csv`` that is there.

    Args:
        log_dir: the directory; it is created.
    """

    NAME_METRICS_FILE = "metrics.csv"
    NAME_HPARAMS_FILE = "hparams.yaml"

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        os.makedirs(self.log_dir, exist_ok=True)
        self.metrics_file_path = os.path.join(self.log_dir, self.NAME_METRICS_FILE)
        self.metrics: list[dict[str, Any]] = []
        self.metrics_keys: list[str] = []
        self.hparams: dict[str, Any] = {}
        self._hparams_file: Path | None = None
        self._file: TextIO | None = None

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Note one row; its tensors are copied, and turned into numbers by :meth:`save`.

        Raises:
            ValueError: a tensor has more than one element.
        """
        row: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, Tensor):
                check_single(name, value)
                value = value.detach().clone()
            row[name] = value
        row["step"] = len(self.metrics) if step is None else step
        self.metrics.append(row)

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """Add hyperparameters and write all of them."""
        self.hparams.update(params)
        self._hparams_file = write_hparams(Path(self.log_dir), self.hparams, self._hparams_file)

    def save(self) -> None:
        """Write the rows that wait."""
        if not self.metrics:
            return
        rows = self._numbers()
        new = dict.fromkeys(name for row in rows for name in row)
        file = self._file or self._open()
        added = [name for name in new if name not in self.metrics_keys]
        if added:
            first = [name for name in ("epoch", "step") if name in added]
            file = self._widen(first + [name for name in added if name not in first])
        writer = csv.writer(file)
        writer.writerows([row.get(name, "") for name in self.metrics_keys] for row in rows)
        file.flush()
        self.metrics = []

    def close(self) -> None:
        """Write the rows that wait and close the file; logging may go on later."""
        self.save()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _numbers(self) -> list[dict[str, Any]]:
        """The rows that wait, with all their tensors turned into numbers together."""
        numbers = iter(numbers_of([item for row in self.metrics for item in row.items()]))
        return [{name: next(numbers) for name in row} for row in self.metrics]

    def _open(self) -> TextIO:
        """Open the file for appending, with the columns of the one that is there."""
        path = self.metrics_file_path
        torn = False
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as existing:
                self.metrics_keys = next(csv.reader(existing), [])
            with open(path, "rb") as existing_bytes:
                size = existing_bytes.seek(0, os.SEEK_END)
                existing_bytes.seek(max(size - 1, 0))
                torn = size > 0 and existing_bytes.read() != b"\n"
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  # stays open between rows
        if torn:  # the run before was killed in the middle of a row
            self._file.write("\r\n")
        return self._file

    def _widen(self, added: list[str]) -> TextIO:
        """Add columns: write the file anew under another name, then put it in the place of the old one."""
        self.metrics_keys = self.metrics_keys + added
        if self._file is not None:
            self._file.close()
        path, new = self.metrics_file_path, f"{self.metrics_file_path}.new"
        with open(path, newline="", encoding="utf-8") as old, open(new, "w", newline="", encoding="utf-8") as wide:
            reader, writer = csv.reader(old), csv.writer(wide)
            next(reader, None)
            writer.writerow(self.metrics_keys)
            for row in reader:
                writer.writerow(row + [""] * (len(self.metrics_keys) - len(row)))
        os.replace(new, path)
        self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115  # stays open between rows
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


class CSVLogger(Logger):
    """Logs to ``save_dir/name/version/metrics.csv``, and hyperparameters to ``hparams.yaml`` beside it.

    Args:
        save_dir: where all experiments lie; ``~`` and ``$VARIABLES`` are replaced.
        name: the experiment, a directory; empty or None for none.
        version: an int for ``version_N``, a string for a directory of that name, None for the next free number. A
            version that exists is continued: rows are appended, nothing is overwritten.
        prefix: put before each name, with a ``-``.
        flush_logs_every_n_steps: write at least that often; ``save`` and ``finalize`` write, too.
    """

    LOGGER_JOIN_CHAR = "-"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "lightning_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        self._directory = RunDirectory(save_dir, name, version)
        self._prefix = prefix
        self._flush_every = flush_logs_every_n_steps
        self._experiment: ExperimentWriter | None = None

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
    def log_dir(self) -> str:
        """Directory of this version."""
        return directory_of(self.root_dir, self.version)

    @property
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer behind this logger."""
        if self._experiment is None:
            self._experiment = ExperimentWriter(self.log_dir)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Note one row; it is written every ``flush_logs_every_n_steps`` steps."""
        writer: ExperimentWriter = self.experiment
        writer.log_metrics(prefixed(metrics, self._prefix, self.LOGGER_JOIN_CHAR), step)
        if len(writer.metrics) >= self._flush_every or (step is not None and (step + 1) % self._flush_every == 0):
            self.save()

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace | None = None, *args: Any, **kwargs: Any) -> None:
        """Write the hyperparameters."""
        self.experiment.log_hparams(plain_params(params))

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that wait."""
        if self._experiment is not None:
            self._experiment.save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write the rows that wait and close the file."""
        if self._experiment is not None:
            self._experiment.close()
