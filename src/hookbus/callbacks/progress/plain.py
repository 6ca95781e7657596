"""``PlainProgress``: lines of text where there is no terminal: in log files, in a scheduler's output, in CI."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from hookbus.callbacks.progress.timed import Meter, TimedProgressBar, clock_time, metric_text, speed_text


class PlainProgress(TimedProgressBar):
    """Prints a line at the end of each epoch, and in long ones every ``every_seconds``.

    Epochs shorter than a second do not each get a line; the last one does.

    Args:
        every_seconds: time between two lines within an epoch or evaluation.
        file: where to print; standard output by default.
    """

    def __init__(self, every_seconds: float = 30.0, file: TextIO | None = None) -> None:
        super().__init__()
        self.interval = every_seconds
        self.epoch_interval = min(1.0, every_seconds)
        self._file = file
        self._printed: tuple[str, int] | None = None

    def _first_delay(self) -> float:
        return self.interval

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        state = (meter.description, meter.done)
        if final and state == self._printed:  # the end of the training is the end of its last epoch
            return
        if not final and meter.done == meter.total:  # a moment later the line for the end follows
            return
        self._printed = state if final else None
        parts = [f"{meter.description.rstrip()}: {meter.count} batches", clock_time(meter.elapsed)]
        if not final and meter.remaining is not None:
            parts.append(f"{clock_time(meter.remaining)} left")
        parts.append(speed_text(meter.rate))
        parts.extend(f"{name}={metric_text(value)}" for name, value in metrics.items())
        print(", ".join(part for part in parts if part), file=self._file or sys.stdout, flush=True)

    def _stop_display(self) -> None:
        self._printed = None
