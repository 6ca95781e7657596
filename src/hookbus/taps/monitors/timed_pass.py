"""Times of one pass, call by call, and the rows that come of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from hookbus.taps.event import Moment


@dataclass(frozen=True)
class LayerRow:
    """One module, over all calls that were measured. Times are sums, in seconds.

    Attributes:
        name: the module's dotted name, ``""`` for the network itself.
        calls: how often it was called.
        forward: time of its forward passes.
        forward_self: the same without the modules that it calls.
        backward: time of its backward passes; None if there was none, or its end could not be seen.
        backward_self: the same without the modules that it calls.
        backward_calls: how many of the calls had one.
    """

    name: str
    calls: int = 0
    forward: float = 0.0
    forward_self: float = 0.0
    backward: float | None = None
    backward_self: float | None = None
    backward_calls: int = 0

    @property
    def total(self) -> float:
        """Forward and backward together."""
        return self.forward + (self.backward or 0.0)

    @property
    def total_self(self) -> float:
        """Forward and backward together, without the modules that it calls."""
        return self.forward_self + (self.backward_self or 0.0)

    @property
    def forward_ms(self) -> float:
        """Milliseconds per call."""
        return 1000 * self.forward / self.calls

    @property
    def forward_self_ms(self) -> float:
        """Milliseconds per call."""
        return 1000 * self.forward_self / self.calls

    @property
    def backward_ms(self) -> float | None:
        """Milliseconds per call."""
        return None if self.backward is None else 1000 * self.backward / self.backward_calls

    @property
    def backward_self_ms(self) -> float | None:
        """Milliseconds per call."""
        return None if self.backward_self is None else 1000 * self.backward_self / self.backward_calls

    def merge(self, other: LayerRow) -> LayerRow:
        """The calls of both."""
        return replace(
            self,
            calls=self.calls + other.calls,
            forward=self.forward + other.forward,
            forward_self=self.forward_self + other.forward_self,
            backward=_plus(self.backward, other.backward),
            backward_self=_plus(self.backward_self, other.backward_self),
            backward_calls=self.backward_calls + other.backward_calls,
        )


class Mark(NamedTuple):
    """A point in time.

    Attributes:
        seconds: of the host's clock.
        event: in the stream of a device, which gets there later; None on a CPU.
    """

    seconds: float
    event: torch.cuda.Event | None = None


class TimedCall:
    """One call of a module, and when what happened."""

    __slots__ = (
        "backward_pass", "backward_start", "end", "entered", "input_known", "left", "name", "parameters_known", "parent",
        "start",
    )  # fmt: skip

    def __init__(self, name: str, parent: TimedCall | None, entered: float) -> None:
        self.name, self.parent, self.entered = name, parent, entered
        self.left = entered
        self.start = Mark(entered)
        self.end: Mark | None = None
        self.backward_start: Mark | None = None
        self.backward_pass = -1
        self.input_known: Mark | None = None
        self.parameters_known: Mark | None = None

    @property
    def finished_parent(self) -> TimedCall | None:
        """The innermost of those around it that was not left by an exception."""
        parent = self.parent
        while parent is not None and parent.end is None:
            parent = parent.parent
        return parent


class TimedPass:
    """One forward pass and the backward pass that belongs to it."""

    def __init__(self, moment: Moment, *, on_device: bool) -> None:
        self.moment = moment
        self.on_device = on_device
        self.calls: dict[tuple[str, int], TimedCall] = {}
        self.of_module: dict[str, list[TimedCall]] = {}
        self.stack: list[TimedCall] = []

    def mark(self) -> Mark:
        """Now."""
        if not self.on_device:
            return Mark(time.perf_counter())
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return Mark(time.perf_counter(), event)


class _Times:
    """Of one call: what is added up from the inside out."""

    __slots__ = ("backward_end", "forward_inside", "measuring", "spans_inside")

    def __init__(self) -> None:
        self.forward_inside = 0.0  # of the calls inside
        self.measuring = 0.0  # what the monitor has taken inside
        self.spans_inside: list[float] = []  # backward passes of the calls inside
        self.backward_end: Mark | None = None  # the last end inside


def rows_of(calls: Sequence[TimedCall]) -> list[LayerRow]:
    """A row for each call, in order; calls inside others come after them."""
    times = {call: _Times() for call in calls}
    rows: list[LayerRow] = []
    for call in reversed(calls):  # from the inside out
        own, outer = times[call], times.get(call.finished_parent) if call.finished_parent is not None else None
        assert call.end is not None
        gross = _between(call.start, call.end)
        forward = max(0.0, gross - own.measuring)
        end = call.parameters_known if own.backward_end is None else _later(own.backward_end, call.parameters_known)
        if end is None:
            end = call.input_known
        backward = backward_self = None
        if call.backward_start is not None and end is not None:
            backward = max(0.0, _between(call.backward_start, end))
            backward_self = max(0.0, backward - sum(own.spans_inside))
        forward_self = max(0.0, forward - own.forward_inside)
        row = LayerRow(call.name, 1, forward, forward_self, backward, backward_self, int(backward is not None))
        rows.append(row)
        if outer is not None:
            outer.forward_inside += forward
            if call.start.event is None:
                outer.measuring += own.measuring + (call.left - call.entered - gross)
            if backward is not None:
                outer.spans_inside.append(backward)
            if end is not None:
                outer.backward_end = end if outer.backward_end is None else _later(outer.backward_end, end)
    return rows[::-1]


def _between(start: Mark, end: Mark) -> float:
    """Seconds from one mark to another."""
    if start.event is None or end.event is None:
        return end.seconds - start.seconds
    return float(start.event.elapsed_time(end.event)) / 1000


def _later(one: Mark, other: Mark | None) -> Mark:
    """The one that was made later, and so is reached later by the device."""
    return one if other is None or one.seconds >= other.seconds else other


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
