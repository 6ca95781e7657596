"""``LayerTimer``: how long each layer takes, forwards and backwards, with and without the layers inside it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from rich import get_console

from hookbus.markers import PHASES, hookimpl
from hookbus.taps import leaves
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.monitors import processes
from hookbus.taps.monitors.monitor import Monitor, checked_choice, chosen_words, on_host
from hookbus.taps.monitors.table import Table
from hookbus.taps.monitors.timed_pass import LayerRow, TimedCall, TimedPass, rows_of
from hookbus.taps.selection import Which
from hookbus.taps.trampoline import current_backward

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_LOGGED = ("forward", "forward_self", "backward", "backward_self")
_COLUMNS = {
    "layer": "name",
    "calls": "calls",
    "forward ms": "forward_ms",
    "(self)": "forward_self_ms",
    "backward ms": "backward_ms",
    "(self) ": "backward_self_ms",
}

#: Passes whose backward pass may still come; an older one is closed.
_OPEN_PASSES = 4
#: Calls whose events may wait on a device until they are read.
_MOST_PENDING = 4096


class LayerTimer(Monitor):
    """Measures layers at every N-th step: on a CPU with the host's clock, on CUDA with events in its stream.

    Nothing is waited for until the figures are read: in a trainer at the end of the step (of an evaluation: at its end).
    Logged are milliseconds per call, as ``layer_time/<phase>/<forward or backward>/<layer>``, and at the end of an entry
    point the slowest layers are printed.

    A backward pass is measured from when the gradient of the output is known. For a layer with parameters it ends with
    their gradients; for one that holds others, with the last of those; else when the gradient of its input is known,
    which may be later than its own work if other layers use that input, too. Where activation checkpointing repeats a
    forward pass, that is part of the backward pass. Times contain a few microseconds per call for the measuring.

    Args:
        modules: which modules; by default all, so that what a module takes for itself can be told from what it calls.
        every, phases, **selection: see :class:`hookbus.taps.monitors.Monitor`.
        show: how many layers to print at the end of an entry point; 0 for none.
        log: what to log: some of ``forward``, ``forward_self``, ``backward`` and ``backward_self``.
        prefix: the first part of the names.

    Raises:
        TypeError, ValueError: an argument is not known, or out of range.

    Example:
        >>> import torch
        >>> from hookbus import tapping
        >>> from hookbus.taps.monitors import LayerTimer
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> timer = LayerTimer()
        >>> with tapping(model, timer):
        ...     model(torch.ones(3, 4)).sum().backward()
        >>> [(row.name, row.calls) for row in timer.table()]
        [('', 1), ('0', 1), ('1', 1)]
        >>> timer.table()[""].forward_self < timer.table()[""].forward
        True
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        every: int | None = None,
        phases: str | Collection[str] | None = None,
        show: int = 10,
        log: str | Collection[str] = ("forward", "backward"),
        prefix: str = "layer_time",
        **selection: Any,
    ) -> None:
        if "recompute" in selection:
            raise TypeError(
                "LayerTimer has no argument recompute: a repeated forward pass is part of the backward pass"
            )
        super().__init__(modules, every=every, phases=phases, prefix=prefix, **selection)
        if not isinstance(show, int) or isinstance(show, bool) or show < 0:
            raise ValueError(f"show must be a number of layers, 0 for none; got {show!r}")
        self.show = show
        self._logged = chosen_words("log", log, _LOGGED)
        self.reset()

    def reset(self) -> None:
        """Forget what has been measured."""
        self._rows: dict[str, dict[str, LayerRow]] = {}
        self._period: dict[str, dict[str, LayerRow]] = {}
        self._passes: list[TimedPass] = []
        self._pending: list[tuple[str, list[TimedCall]]] = []

    # -- measuring ---------------------------------------------------------------------------------------------------

    @hookimpl
    def on_module_forward_pre(self, event: TapEvent) -> None:
        """A call begins."""
        entered = time.perf_counter()
        if event.phase == "sanity":
            return
        key = (event.name, event.call_index)
        current = self._pass_of(event.moment)
        if current is None or (key in current.calls and not current.stack):  # or called apart from any pass, once more
            current = self._begin(event)
        call = current.calls[key] = TimedCall(event.name, current.stack[-1] if current.stack else None, entered)
        current.of_module.setdefault(event.name, []).append(call)
        current.stack.append(call)
        call.start = current.mark()

    @hookimpl
    def on_module_forward(self, event: TapEvent) -> None:
        """A call ends."""
        current = self._pass_of(event.moment)
        if current is None:
            return
        end = current.mark()
        call = current.calls.get((event.name, event.call_index))
        if call is None or call not in current.stack:
            return
        while current.stack.pop() is not call:
            pass  # calls that were left by an exception
        call.end = end
        call.left = time.perf_counter()

    @hookimpl
    def on_module_grad_output(self, event: TapEvent) -> None:
        """Its backward pass begins."""
        current = self._pass_of(event.moment)
        call = None if current is None else current.calls.get((event.name, event.call_index))
        if current is not None and call is not None and call.backward_start is None:
            call.backward_start = current.mark()
            call.backward_pass = current_backward()

    @hookimpl
    def on_module_grad_input(self, event: TapEvent) -> None:
        """Its backward pass is over, at the latest."""
        current = self._pass_of(event.moment)
        call = None if current is None else current.calls.get((event.name, event.call_index))
        if current is not None and call is not None:
            call.input_known = current.mark()

    @hookimpl
    def on_parameter_grad(self, event: TapEvent) -> None:
        """The gradient of one of its parameters is known."""
        current = self._pass_of(event.moment)
        if current is None:
            return
        calls = current.of_module.get(event.site.name)
        if calls:
            # All calls in this backward pass have contributed, and the first one contributes last. Calls in another one, as
            # where two losses share a network, have their gradients already, or not yet.
            here = current_backward()
            call = next(
                (one for one in calls if one.backward_start is not None and one.backward_pass == here), calls[0]
            )
            call.parameters_known = current.mark()

    def _pass_of(self, moment: Moment) -> TimedPass | None:
        for one in reversed(self._passes):
            if one.moment is moment:
                return one
        return None

    def _begin(self, event: TapEvent) -> TimedPass:
        first = leaves.first([list(event.args), dict(event.kwargs)])
        if first is None:
            first = next(event.module.parameters(), None)
        made = TimedPass(event.moment, on_device=first is not None and not on_host(first) and torch.cuda.is_available())
        self._passes.append(made)
        if len(self._passes) > _OPEN_PASSES:
            self._close(self._passes.pop(0))
        return made

    def _close(self, one: TimedPass) -> None:
        calls = [call for call in one.calls.values() if call.end is not None]
        if one.on_device:
            self._pending.append((one.moment.phase, calls))
            if sum(len(some) for _, some in self._pending) >= _MOST_PENDING:
                self._fetch()
        else:
            self._add(one.moment.phase, calls)

    def _read(self) -> None:
        """Close all passes, and wait for devices if need be."""
        passes, self._passes = self._passes, []
        for one in passes:
            self._close(one)
        self._fetch()

    def _fetch(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            torch.cuda.synchronize()
        for phase, calls in pending:
            self._add(phase, calls)

    def _add(self, phase: str, calls: Sequence[TimedCall]) -> None:
        for row in rows_of(calls):
            for rows in (self._rows.setdefault(phase, {}), self._period.setdefault(phase, {})):
                before = rows.get(row.name)
                rows[row.name] = row if before is None else before.merge(row)

    # -- reading -----------------------------------------------------------------------------------------------------

    def table(self, phase: str | None = None) -> Table[LayerRow]:
        """All that has been measured, in the order of definition or of first calls.

        Args:
            phase: in this phase only.

        Returns:
            A row for each module, of this process, whose rank is said above them if there are several.
            ``table().sorted_by("total_self")`` has the slowest first.

        Raises:
            ValueError: there is no such phase.
        """
        if phase is not None:
            checked_choice("phase", phase, PHASES)
        self._read()
        rows: dict[str, LayerRow] = {}
        for word, some in self._rows.items():
            for row in some.values() if phase in (None, word) else ():
                rows[row.name] = rows[row.name].merge(row) if row.name in rows else row
        return Table(rows.values(), _COLUMNS, processes.title(merged=False))

    def _end_period(self, phase: str, *, merge: bool = False) -> Mapping[str, float]:
        if self._passes or self._pending:
            self._read()
        metrics: dict[str, float] = {}
        for row in self._period.pop(phase, {}).values():
            for word in self._logged:
                value = getattr(row, f"{word}_ms")
                if value is not None:
                    metrics[f"{self.prefix}/{phase}/{word}/{row.name or 'network'}"] = value
        return metrics

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Print the slowest layers."""
        super().teardown(trainer, pl_module, stage)
        phase = {"fit": "train", "validate": "val"}.get(stage, stage)
        rows = self.table(phase).sorted_by("total_self")[: self.show]
        if rows and trainer.is_global_zero:
            get_console().print(rows)
