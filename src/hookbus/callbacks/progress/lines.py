"""``LinePrinter``: the state of a loop as a line of text, for log files and other places where nothing can be redrawn."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus.callbacks.progress.meter import Meter


class LinePrinter:
    """Prints lines such as ``Epoch 0/4: 50/200 batches, 0:00:30, 0:01:30 left, 1.7 it/s, loss=0.4321``.

    Args:
        file: where to print; None for standard output, as it is at that moment.
    """

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file
        self._printed: tuple[str, int] | None = None

    def print(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        """Print the state of ``meter``, unless the line for it stands there already, or is about to follow."""
        if self.is_due(meter, final=final):
            self.write(line_of(meter, metrics, final=final))

    def is_due(self, meter: Meter, *, final: bool) -> bool:
        """Whether this state has a line to get; asked once for each."""
        state = (meter.description, meter.done)
        if final and state == self._printed:  # the end of the training is the end of its last epoch
            return False
        if not final and meter.done == meter.total:  # a moment later the line for the end follows
            return False
        self._printed = state if final else None
        return True

    def write(self, line: str) -> None:
        """Print a line."""
        print(line, file=self._file or sys.stdout, flush=True)

    def forget(self) -> None:
        """The display ends: the next line is printed in any case."""
        self._printed = None


def line_of(meter: Meter, metrics: dict[str, Any], *, final: bool) -> str:
    """The state of a loop in words; ``final`` leaves out how long it will still take."""
    parts = [f"{meter.description.rstrip()}: {meter.count} batches", clock_time(meter.elapsed)]
    if not final and meter.remaining is not None:
        parts.append(f"{clock_time(meter.remaining)} left")
    parts.append(speed_text(meter.rate))
    parts.extend(f"{name}={metric_text(value)}" for name, value in metrics.items())
    return ", ".join(part for part in parts if part)


def clock_time(seconds: float | None) -> str:
    """``h:mm:ss``, or ``-:--:--`` for None."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def speed_text(rate: float | None) -> str:
    """``12.3 it/s``, or ``2.50 s/it`` where a batch takes longer than a second; empty for None."""
    if rate is None:
        return ""
    return f"{rate:.1f} it/s" if rate >= 1 else f"{1 / rate:.2f} s/it"


def metric_text(value: Any, number_format: str = ".4g") -> str:
    """A metric as text; tensors that a ``get_metrics`` of a user's bar returns are read here."""
    item = getattr(value, "item", None)
    number = item() if callable(item) else value
    return format(number, number_format) if isinstance(number, float) else str(number)
