"""``RichProgressBar``: live bars in a terminal, drawn with rich."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

from hookbus.callbacks.progress.timed import Meter, TimedProgressBar, clock_time, metric_text, speed_text
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
    metrics_format: str = ".4g"


class RichProgressBar(TimedProgressBar):
    """A bar for the epoch, and one for an evaluation while that runs.

    Args:
        refresh_rate: 0 shows nothing; any other number is accepted for scripts written for Lightning, where it counts
            batches: here the bar refreshes by time.
        leave: leave a bar behind for each epoch.
        theme: styles.
        console_kwargs: arguments for ``rich.console.Console``; by default rich's global console is used.
    """

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._refresh_rate = refresh_rate
        self._leave = leave
        self.theme = theme or RichProgressBarTheme()
        self._console_kwargs = console_kwargs
        self.progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if refresh_rate == 0:
            self.disable()

    @property
    def refresh_rate(self) -> int:
        """As given."""
        return self._refresh_rate

    @property
    def is_enabled(self) -> bool:
        """Whether anything is shown."""
        return super().is_enabled and self._refresh_rate > 0

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

    def _start_display(self) -> None:
        console = get_console() if self._console_kwargs is None else Console(**self._console_kwargs)
        self._tasks = {}
        # No refresh thread: one that draws while nothing changed takes time from the training.
        self.progress = Progress(*self.configure_columns(self._trainer), console=console, auto_refresh=False)
        self.progress.start()

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
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
        return {**self.__dict__, "progress": None, "_tasks": {}, "_shown": False}
