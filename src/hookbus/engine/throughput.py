"""How fast work is done: rates over a sliding window of batches, and counting the operations of a network.

The names of classes, functions and metrics are Lightning's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class _Reading:
    """The counters after one batch."""

    time: float
    batches: int
    samples: int
    lengths: int | None


class Throughput:
    """Turns counters into rates.

    Args:
        available_flops: floating-point operations per second that one device can do at most; None if unknown.
        world_size: number of devices; with more than one there are rates over all of them, too.
        window_size: rates are those over the last so many updates, at least 2; until there are as many, there are none.
        separator: between ``device`` and the name of a rate.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> throughput = Throughput(window_size=2)
        >>> throughput.update(time=1.0, batches=1, samples=8)
        >>> throughput.update(time=1.5, batches=2, samples=16)
        >>> throughput.compute()["device/samples_per_sec"]
        16.0
    """

    def __init__(
        self, available_flops: float | None = None, world_size: int = 1, window_size: int = 100, separator: str = "/"
    ) -> None:
        for name, value, least in (("world_size", world_size, 1), ("window_size", window_size, 2)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of {least} or more, got {value!r}")
        self.available_flops = available_flops
        self.world_size = world_size
        self.window_size = window_size
        self.separator = separator
        self._readings: deque[_Reading] = deque(maxlen=window_size)
        self._flops: deque[float] = deque(maxlen=window_size)

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Take in the counters after a batch, each counted from the start and on this device.

        Args:
            time: seconds.
            batches: batches.
            samples: samples, at least as many as batches.
            lengths: items (tokens, say), at least as many as samples; None if they are not counted.
            flops: floating-point operations of this batch alone; None if they are not counted.

        Raises:
            ValueError: a counter does not grow, or is smaller than it can be.
        """
        if samples < batches:
            raise ValueError(f"there are fewer samples ({samples}) than batches ({batches}): is the batch size right?")
        if lengths is not None and lengths < samples:
            raise ValueError(f"there are fewer items ({lengths}) than samples ({samples}): is the length right?")
        reading = _Reading(time, batches, samples, lengths)
        if self._readings:
            last = vars(self._readings[-1])
            for name, value in vars(reading).items():
                if (value is None) is not (last[name] is None):
                    raise ValueError(f"{name} must be given at every update or at none")
                if value is not None and value <= last[name]:
                    raise ValueError(f"{name} must grow from update to update, got {value} after {last[name]}")
        self._readings.append(reading)
        if flops is not None:
            self._flops.append(flops * self.world_size)

    def compute(self) -> dict[str, float]:
        """The counters and the rates, by name.

        ``time``, ``batches``, ``samples`` and ``lengths`` are the counters; ``device/batches_per_sec``,
        ``device/samples_per_sec``, ``device/items_per_sec`` and ``device/flops_per_sec`` the rates of one device, and the
        same names without ``device/`` those of all; ``device/mfu`` is the share of the device's peak that is used.

        Raises:
            ValueError: there was no update.
        """
        if not self._readings:
            raise ValueError("there is nothing to compute before the first update")
        last, first = self._readings[-1], self._readings[0]
        metrics: dict[str, float] = {"time": last.time, "batches": last.batches, "samples": last.samples}
        if last.lengths is not None:
            metrics["lengths"] = last.lengths
        seconds = last.time - first.time
        if len(self._readings) == self.window_size:
            self._add_rate(metrics, "batches_per_sec", (last.batches - first.batches) / seconds)
            self._add_rate(metrics, "samples_per_sec", (last.samples - first.samples) / seconds)
            if last.lengths is not None and first.lengths is not None:
                self._add_rate(metrics, "items_per_sec", (last.lengths - first.lengths) / seconds)
        if len(self._flops) == self.window_size:
            rate = (sum(self._flops) - self._flops[0]) / seconds / self.world_size
            self._add_rate(metrics, "flops_per_sec", rate)
            if self.available_flops:
                metrics[f"device{self.separator}mfu"] = rate / self.available_flops
        return metrics

    def _add_rate(self, metrics: dict[str, float], name: str, of_one_device: float) -> None:
        metrics[f"device{self.separator}{name}"] = of_one_device
        if self.world_size > 1:
            metrics[name] = of_one_device * self.world_size

    @property
    def elapsed(self) -> float:
        """``time`` of the last update; 0 before the first."""
        return self._readings[-1].time if self._readings else 0.0

    def reset(self) -> None:
        """Forget all updates."""
        self._readings.clear()
        self._flops.clear()


def measure_flops(
    model: torch.nn.Module,  # noqa: ARG001 - see below
    forward_fn: Callable[[], Tensor],
    loss_fn: Callable[[Tensor], Tensor] | None = None,
) -> int:
    """Floating-point operations of one forward pass, as ``torch.utils.flop_counter`` counts them.

    On the meta device (``with torch.device("meta"): model = …``) nothing is computed and the answer is the same.

    Args:
        model: the network; here for Lightning's sake, as ``forward_fn`` knows what it calls.
        forward_fn: runs the network.
        loss_fn: makes a loss of its output; the backward pass is then counted, too.

    Example:
        >>> net = torch.nn.Linear(32, 2)
        >>> measure_flops(net, lambda: net(torch.zeros(4, 32)))
        512
    """
    counter = FlopCounterMode(display=False)
    with counter:
        output = forward_fn()
        if loss_fn is not None:
            loss_fn(output).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
