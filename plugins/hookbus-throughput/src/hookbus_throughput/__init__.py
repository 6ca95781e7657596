"""How fast a training is, and whether it waits for its data: samples per second, steps per second, share of waiting.

Once installed, the plugin takes part in every ``fit``: it logs three numbers at the end of each epoch and prints a
summary at the end of the run. Per batch it looks at the clock twice; it never waits for a device, and as a monitor it
cannot change the run. ``-p no:throughput`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from hookbus import hookimpl

__version__ = "0.1.0"
__all__ = ["Tally", "Throughput", "batch_size"]


@dataclass
class Tally:
    """What was counted and how long it took.

    Attributes:
        batches: training batches that were finished.
        samples: samples in those whose size is known.
        unsized: batches whose size is not known.
        steps: optimizer steps.
        waiting: seconds from the end of one batch to the start of the next: loading, moving to the device, and
            whatever else the loop does in between; validation is not counted.
        computing: seconds from the start of a batch to its end.
    """

    batches: int = 0
    samples: int = 0
    unsized: int = 0
    steps: int = 0
    waiting: float = 0.0
    computing: float = 0.0

    def add(self, other: Tally) -> None:
        """Count what ``other`` counted."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def metrics(self) -> dict[str, float]:
        """The numbers for the loggers; without samples per second where a batch's size is unknown."""
        seconds = self.waiting + self.computing
        if not self.batches or seconds <= 0:
            return {}
        found = {
            "throughput/steps_per_second": self.steps / seconds,
            "throughput/data_wait_fraction": self.waiting / seconds,
        }
        if not self.unsized:
            found["throughput/samples_per_second"] = self.samples / seconds
        return found

    def report(self) -> str:
        """The numbers for people, a block of lines."""
        metrics, seconds = self.metrics(), self.waiting + self.computing
        speed = metrics.get("throughput/samples_per_second")
        share = metrics["throughput/data_wait_fraction"]
        rows = [
            ("samples/s", f"{speed:.1f}" if speed is not None else "unknown: the batches do not tell their size"),
            ("steps/s", f"{metrics['throughput/steps_per_second']:.1f}"),
            ("data wait", f"{share:.1%} of the time, {1000 * self.waiting / self.batches:.2f} ms per batch"),
            ("compute", f"{1 - share:.1%} of the time, {1000 * self.computing / self.batches:.2f} ms per batch"),
        ]
        batches = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        title = f"throughput of {batches} in {seconds:.2f} s of training"
        return "\n".join([title, *(f"  {name:<10} {value}" for name, value in rows)])


class Throughput:
    """The plugin; a Trainer makes its own."""

    role = "monitor"

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._fit, self._epoch = Tally(), Tally()
        self._running = self._in_batch = False
        self._mark = self._paused = 0.0
        self._steps_before = 0

    @hookimpl
    def on_train_start(self, trainer: Any) -> None:
        """Begin to count."""
        self._reset()
        self._running = True
        self._steps_before = trainer.global_step
        self._mark = perf_counter()

    @hookimpl
    def on_train_epoch_start(self) -> None:
        """Leave out what happened between two epochs: callbacks, checkpoints."""
        self._mark = perf_counter()

    @hookimpl(tryfirst=True)
    def on_train_batch_start(self) -> None:
        """The batch is there: the waiting is over."""
        now = perf_counter()
        self._epoch.waiting += now - self._mark
        self._mark = now
        self._in_batch = True

    @hookimpl(trylast=True)
    def on_train_batch_end(self, batch: Any) -> None:
        """The batch is done: the waiting for the next one begins."""
        now = perf_counter()
        tally = self._epoch
        if self._in_batch:
            tally.computing += now - self._mark
            tally.batches += 1
            size = batch_size(batch)
            if size is None:
                tally.unsized += 1
            else:
                tally.samples += size
            self._in_batch = False
        self._mark = now

    @hookimpl(tryfirst=True)
    def on_validation_start(self) -> None:
        """Stop the clock during validation."""
        self._paused = perf_counter()

    @hookimpl(trylast=True)
    def on_validation_end(self) -> None:
        """Let the clock go on."""
        self._mark += perf_counter() - self._paused

    @hookimpl
    def on_train_epoch_end(self, trainer: Any) -> None:
        """Log the epoch; the numbers are those of this process, so that processes need not wait for each other."""
        metrics = self._close_epoch(trainer)
        if metrics:
            step = max(trainer.global_step - 1, 0)
            trainer.bus.fire.log_metrics(trainer, {**metrics, "epoch": trainer.current_epoch}, step)

    @hookimpl
    def on_run_close(self, trainer: Any) -> None:
        """Report, also where the run was left by an exception."""
        if not self._running:
            return
        self._close_epoch(trainer)
        if self._fit.metrics():
            trainer.print(self._fit.report())
        self._reset()

    def _close_epoch(self, trainer: Any) -> dict[str, float]:
        """The numbers of the epoch, which are added to those of the fit."""
        epoch = self._epoch
        epoch.steps = trainer.global_step - self._steps_before
        self._fit.add(epoch)
        self._epoch, self._steps_before = Tally(), trainer.global_step
        return epoch.metrics()


def batch_size(batch: Any) -> int | None:
    """The number of samples in a batch: the first dimension of the first array or tensor in it, None without one.

    Looks into mappings, lists and tuples, in order.
    """
    return next(_first_dimensions(batch), None)


def _first_dimensions(batch: Any) -> Iterator[int]:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        if len(shape):
            yield int(shape[0])
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _first_dimensions(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _first_dimensions(value)
