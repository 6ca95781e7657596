"""``RichProgressBar``: live bars in a terminal, drawn with rich."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn

from hookbus.callbacks.progress.lines import LinePrinter, clock_time, metric_text, speed_text
from hookbus.callbacks.progress.meter import Meter
from hookbus.callbacks.progress.timed import TimedProgressBar
from hookbus.errors import MisconfigurationException
from hookbus.hookspecs.types import LightningModule, Trainer


@dataclass
class RichProgressBarTheme:
    """The styles of the bar's parts, in rich's notation; the field names are Lightning's."""

    description: str = ""
    progress_bar: str = "#6206E0"
    progress_bar_finished: str = "#6206E0"
    progress_bar_pulse: str = "#6206E0"
    batch_progress: str = ""
    time: str = "dim"
    processing_speed: str = "dim underline"
    metrics: str = "italic"
    metrics_text_delimiter: str = " "
    metrics_format: str = ".3f"


class RichProgressBar(TimedProgressBar):
    """A bar for the epoch, and one for an evaluation while that runs; in a log file, lines of text.

    Args:
        refresh_rate: refreshes per second at most; more than ten are never made. 0 shows nothing.
        leave: leave a bar behind for each epoch.
        theme: styles.
        console_kwargs: arguments for ``rich.console.Console``; by default rich's global console is used.

    Raises:
        MisconfigurationException: ``refresh_rate`` is negative.

    Example:
        >>> from hookbus.callbacks import RichProgressBar
        >>> from hookbus.callbacks.progress import RichProgressBarTheme
        >>> bar = RichProgressBar(refresh_rate=2, leave=True, theme=RichProgressBarTheme(metrics_format=".3e"))
        >>> bar.interval  # seconds between two refreshes, at least
        0.5
    """

    def __init__(
        self,
        refresh_rate: float = 100,
        leave: bool = False,
        theme: RichProgressBarTheme = RichProgressBarTheme(),  # noqa: B008 - as in Lightning; nobody changes it
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(refresh_rate, bool) or not isinstance(refresh_rate, (int, float)) or not refresh_rate >= 0:
            raise MisconfigurationException(
                f"refresh_rate must be a number of refreshes per second, 0 for no bar, got {refresh_rate!r}"
            )
        self._refresh_rate = refresh_rate
        self._leave = leave
        self.theme = theme or RichProgressBarTheme()
        self._console_kwargs = console_kwargs
        self.progress: Progress | None = None
        self._lines = LinePrinter()
        self._tasks: dict[str, TaskID] = {}
        if refresh_rate == 0:
            self.disable()
        else:
            self.interval = max(type(self).interval, 1 / refresh_rate)

    @property
    def refresh_rate(self) -> float:
        """As given."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        """Whether anything is shown."""
        return super().is_enabled and self._refresh_rate > 0

    def _task(self, kind: str) -> Task:
        if self.progress is None or kind not in self._tasks:
            raise TypeError(f"{type(self).__name__} has no {kind} bar now: it is made when its loop is first shown")
        return self.progress.tasks[self.progress.task_ids.index(self._tasks[kind])]

    @property
    def train_progress_bar(self) -> Task:
        """The task of the training, in rich's sense.

        Raises:
            TypeError: there is none, as for those below.
        """
        return self._task("train")

    @property
    def val_sanity_check_bar(self) -> Task:
        """The task of the sanity check."""
        return self._task("sanity")

    @property
    def val_progress_bar(self) -> Task:
        """The task of the validation."""
        return self._task("validate")

    @property
    def test_progress_bar(self) -> Task:
        """The task of the test."""
        return self._task("test")

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        """The columns between the ends of the bar; override it to add some.

        A column finds ``count``, ``time``, ``speed`` and ``metrics``, all text, in ``task.fields``.
        """
        theme = self.theme
        return [
            TextColumn("{task.description}", style=theme.description or "none", markup=False),
            BarColumn(
                complete_style=theme.progress_bar,
                finished_style=theme.progress_bar_finished,
                pulse_style=theme.progress_bar_pulse,
            ),
            TextColumn("{task.fields[count]}", style=theme.batch_progress or "none", markup=False),
            TextColumn("{task.fields[time]}", style=theme.time or "none", markup=False),
            TextColumn("{task.fields[speed]}", style=theme.processing_speed or "none", markup=False),
            TextColumn("{task.fields[metrics]}", style=theme.metrics or "none", markup=False),
        ]

    def _console(self) -> Console:
        return get_console() if self._console_kwargs is None else Console(**self._console_kwargs)

    def _is_live(self) -> bool:
        console = self._console()
        return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)

    def _start_display(self) -> None:
        console = self._console()
        self._tasks = {}
        if not self._live:
            self._lines = LinePrinter(console.file)
            return
        # No refresh thread: one that draws while nothing changed takes time from the training.
        self.progress = Progress(*self.configure_columns(self._trainer), console=console, auto_refresh=False)
        self.progress.start()

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        if not self._live:
            self._lines.print(meter, metrics, final=final)
            return
        assert self.progress is not None
        known = math.isfinite(meter.total)
        fields: dict[str, Any] = {
            "description": meter.description,
            "total": meter.total if known else None,
            "completed": meter.done,
            "count": meter.count,
            "time": f"{clock_time(meter.elapsed)} • {clock_time(meter.remaining)}",
            "speed": speed_text(meter.rate),
            "metrics": self._metrics_text(metrics),
        }
        if meter.kind not in self._tasks:
            self._tasks[meter.kind] = self.progress.add_task(**fields)
        else:
            self.progress.update(self._tasks[meter.kind], **fields)
        self.progress.refresh()

    def _metrics_text(self, metrics: dict[str, Any]) -> str:
        texts = (f"{name}: {metric_text(value, self.theme.metrics_format)}" for name, value in metrics.items())
        return self.theme.metrics_text_delimiter.join(texts)

    def _end_meter(self, meter: Meter) -> None:
        """Within a fit, the bar of an evaluation goes away; alone, it stays, one for each loader."""
        task = self._tasks.pop(meter.kind, None)
        if task is not None and self.progress is not None and (self._train is not None or meter.kind == "sanity"):
            self.progress.remove_task(task)
            self.progress.refresh()

    def _stop_display(self) -> None:
        progress, self.progress = self.progress, None
        if progress is not None:
            progress.stop()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch's bar; with ``leave``, below the one before."""
        if self._leave and self._train is not None:
            self._refresh(trainer, pl_module, final=True)
            self._tasks.pop("train", None)
        super().on_train_epoch_start(trainer, pl_module)

    def __getstate__(self) -> dict[str, Any]:
        # Console and Progress hold locks, which cannot go to another process.
        return {**self.__dict__, "progress": None, "_tasks": {}, "_lines": LinePrinter(), "_shown": False}
