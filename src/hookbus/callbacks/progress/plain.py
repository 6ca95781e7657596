"""``PlainProgress``: lines of text where there is no terminal: in log files, in a scheduler's output, in CI."""

from __future__ import annotations

from typing import Any, TextIO

from hookbus.callbacks.progress.lines import LinePrinter
from hookbus.callbacks.progress.meter import Meter
from hookbus.callbacks.progress.timed import TimedProgressBar


class PlainProgress(TimedProgressBar):
    """Prints a line at the end of each epoch, and in long ones every ``every_seconds``.

    Epochs shorter than a second do not each get a line; the last one does.

    Args:
        every_seconds: time between two lines within an epoch or evaluation.
        file: where to print; standard output by default.

    Example:
        >>> from hookbus.callbacks import PlainProgress
        >>> bar = PlainProgress(every_seconds=600)  # a line in ten minutes, and one at the end of each epoch
        >>> bar.is_enabled
        True
    """

    def __init__(self, every_seconds: float = 30.0, file: TextIO | None = None) -> None:
        super().__init__()
        self.line_interval = every_seconds
        self._lines = LinePrinter(file)

    def _is_live(self) -> bool:
        return False

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        self._lines.print(meter, metrics, final=final)

    def _stop_display(self) -> None:
        self._lines.forget()
