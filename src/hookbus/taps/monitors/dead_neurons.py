"""``DeadNeurons``: which units of ReLU-like layers have not been active once in a whole window of steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookbus.markers import PHASES, hookimpl
from hookbus.taps import leaves
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.monitors import processes
from hookbus.taps.monitors.monitor import Monitor, checked_choice, checked_switch
from hookbus.taps.monitors.table import Table
from hookbus.taps.selection import Which

#: Layers that give exactly zero for whatever they cut off.
RELU_LIKE = (nn.ReLU, nn.ReLU6, nn.Threshold, nn.Hardshrink, nn.Softshrink)

_NEVER_NEGATIVE = (nn.ReLU, nn.ReLU6)
_COLUMNS = {"layer": "name", "units": "units", "dead": "dead", "share": "share", "steps": "steps"}


@dataclass(frozen=True)
class DeadRow:
    """One layer, or one call of a layer that is called several times in a forward pass (``relu#1`` is its second).

    Attributes:
        name: the layer's dotted name.
        units: number of its channels.
        indices: those that were never active.
        steps: number of steps that were looked at.
    """

    name: str
    units: int
    indices: tuple[int, ...]
    steps: int

    @property
    def dead(self) -> int:
        """Number of channels that were never active."""
        return len(self.indices)

    @property
    def share(self) -> float:
        """Share of channels that were never active."""
        return self.dead / self.units


@dataclass(frozen=True)
class _Window:
    """What was seen in a window.

    Attributes:
        steps: number of steps that were looked at.
        active: by a layer's name and the number of its call, which units were active.
    """

    steps: int
    active: dict[tuple[str, int], Tensor]

    def merge(self, other: _Window) -> _Window:
        """The same window in two processes: what was active in one was active."""
        active = dict(self.active)
        for key, mask in other.active.items():
            before = active.get(key)
            if before is not None and before.shape != mask.shape:
                raise ValueError(
                    f"the output of {key[0]!r} has {len(before)} units in one process and {len(mask)} in another, so they "
                    "cannot be merged: say which dimension counts them with DeadNeurons(channel_dim=…), or that each process "
                    "counts its own with sync_dist=False"
                )
            active[key] = mask if before is None else before | mask
        return _Window(max(self.steps, other.steps), active)


class DeadNeurons(Monitor):
    """Finds units that were never active in a window of steps, for whatever sample and place.

    A unit is a channel of the output of a ReLU-like layer; it is active where the output's absolute value exceeds
    ``threshold``. Layers of other kinds do not count, however small what they give. A window is over after ``window`` steps,
    in an evaluation at the end of the first one that has come so far. Then shares are
    logged as ``dead_neurons/share/<layer>``, and of all units together as ``dead_neurons/share``. A checkpoint holds the
    window that is under way, unless several processes train together.

    Args:
        modules: which modules; by default all of ``types``.
        types: kinds of layers.
        of: whether the units are channels of the ``output`` or the ``input``. Where a ReLU is a function and no layer, it is
            the input of the layer behind it: ``DeadNeurons("layers.*.linear2", types=nn.Linear, of="input")``.
        window: over how many steps at least, of those that are looked at.
        every, phases, **selection: see :class:`hookbus.taps.monitors.Monitor`.
        threshold: up to which absolute value an output counts as inactive: 0 for ReLU; more for layers such as GELU that
            come close to zero only.
        channel_dim: which dimension of the output counts the units; by default the second one, but the last one of
            outputs with three, taken to be (batch, tokens, channels).
        sync_dist: whether a unit counts as active if it was in any of several processes: their windows end together, in an
            evaluation at its end, and are merged with one collective. Else each process finds what is dead in its own data.
        prefix: the first part of the names.

    Raises:
        TypeError, ValueError: an argument is not known, or out of range.

    Example:
        >>> import torch
        >>> from hookbus import tapping
        >>> from hookbus.taps.monitors import DeadNeurons
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU())
        >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0], [0.0]])), model[0].bias.data.fill_(-1)
        >>> dead = DeadNeurons()
        >>> with tapping(model, dead):
        ...     _ = model(torch.tensor([[0.5], [2.0]]))
        >>> dead.table()["1"].indices
        (1,)
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        types: type | Collection[type] = RELU_LIKE,
        window: int = 20,
        every: int | None = None,
        phases: str | Collection[str] | None = "train",
        of: Literal["output", "input"] = "output",
        threshold: float = 0.0,
        channel_dim: int | None = None,
        sync_dist: bool = True,
        prefix: str = "dead_neurons",
        **selection: Any,
    ) -> None:
        super().__init__(modules, types=types, every=every, phases=phases, prefix=prefix, **selection)
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ValueError(f"window must be a number of steps of at least 1, got {window!r}")
        if not isinstance(threshold, (int, float)) or not threshold >= 0:
            raise ValueError(f"threshold must be a number of at least 0, got {threshold!r}")
        if channel_dim is not None and (not isinstance(channel_dim, int) or channel_dim == 0):
            raise ValueError(
                f"channel_dim must be a dimension other than 0, which counts the samples, or None; got {channel_dim!r}"
            )
        checked_choice("of", of, ("output", "input"))
        self.sync_dist = checked_switch("sync_dist", sync_dist)
        self.window = window
        self.of = of
        self.threshold = threshold
        self.channel_dim = channel_dim
        self.reset()

    def reset(self) -> None:
        """Forget the window that is under way, and the last one."""
        self._active: dict[tuple[str, int], Tensor] = {}
        self._steps = 0
        self._due_steps = 0  # those at which any process could have seen something; counted if they merge
        self._moment: Moment | None = None
        self._last: Table[DeadRow] | None = None

    @hookimpl
    def on_module_forward(self, event: TapEvent) -> None:
        """Mark the units that are active."""
        output = leaves.first(event.output if self.of == "output" else [list(event.args), dict(event.kwargs)])
        if output is None or not output.is_floating_point() or not output.numel() or not output.dim():
            return
        moment = event.moment
        if self._moment is None or (moment.number, moment.phase) != (self._moment.number, self._moment.phase):
            if self._steps >= self.window and not self._in_trainer:
                self._close_window()
            self._steps += 1
        self._moment = moment
        never_negative = self.of == "output" and isinstance(event.module, _NEVER_NEGATIVE)
        active = self._greatest(output, never_negative=never_negative) > self.threshold
        key = (event.name, event.call_index)
        before = self._active.get(key)
        if before is None:
            self._active[key] = active
        elif before.shape != active.shape:
            raise ValueError(
                f"the output of {event.name!r} had {len(before)} units and now has {len(active)}, so its dimension "
                f"{self._dimension(output)} does not count units; say which one does: DeadNeurons(channel_dim=…)"
            )
        else:
            self._active[key] = before.to(active.device).logical_or_(active)

    def _dimension(self, output: Tensor) -> int:
        if self.channel_dim is not None:
            return self.channel_dim
        return -1 if output.dim() in (1, 3) else 1

    def _greatest(self, output: Tensor, *, never_negative: bool) -> Tensor:
        """The greatest absolute value of each unit."""
        dimension = self._dimension(output) % output.dim()
        others = [d for d in range(output.dim()) if d != dimension]
        values = output if never_negative else output.abs()
        return values.amax(dim=others) if others else values

    def flush(self, phase: str = "train") -> dict[str, float]:
        """End the window that is under way, however short it is; else as :meth:`Monitor.flush`."""
        checked_choice("phase", phase, PHASES)
        if self.sync_dist and processes.number_of_processes() > 1:
            return self._figures(self._close_together(phase, at_least=1))
        return self._figures(self._close_window() if self._in(phase) else None)

    def _end_period(self, phase: str, *, merge: bool = False) -> dict[str, float]:
        if not merge:
            return self._figures(self._close_window() if self._steps >= self.window and self._in(phase) else None)
        self._due_steps += 1
        if phase == "train" and self._due_steps < self.window:
            return {}
        return self._figures(self._close_together(phase, at_least=self.window))

    def _in(self, phase: str) -> bool:
        return self._moment is not None and self._moment.phase == phase

    def _close_together(self, phase: str, *, at_least: int) -> Table[DeadRow] | None:
        """End the window in all processes if one of them has seen enough steps of the phase; they all come to one answer."""
        found = processes.gathered(lambda: self._window() if self._in(phase) else _Window(0, {}), "DeadNeurons")
        whole = _Window(0, {})
        for window in found:
            whole = whole.merge(window)
        return self._close_window(whole) if whole.steps >= at_least else None

    def _figures(self, rows: Table[DeadRow] | None) -> dict[str, float]:
        if not rows:
            return {}
        units, dead = sum(row.units for row in rows), sum(row.dead for row in rows)
        return {f"{self.prefix}/share": dead / units} | {
            f"{self.prefix}/share/{row.name or 'network'}": row.share for row in rows
        }

    def _close_window(self, whole: _Window | None = None) -> Table[DeadRow]:
        self._last = rows = self._rows(whole)
        self._active, self._steps, self._due_steps, self._moment = {}, 0, 0, None
        return rows

    def _window(self) -> _Window:
        """What this process has seen in the window that is under way."""
        return _Window(self._steps, dict(zip(self._active, _fetched(list(self._active.values())), strict=True)))

    def table(self) -> Table[DeadRow]:
        """The window that ended last; the one under way, of this process, if none has ended yet."""
        return self._last if self._last is not None else self._rows()

    def _rows(self, whole: _Window | None = None) -> Table[DeadRow]:
        window = self._window() if whole is None else whole
        several = {name for name, index in window.active if index}
        rows = [
            DeadRow(f"{name}#{index}" if name in several else name, len(mask), tuple(_dead(mask)), window.steps)
            for (name, index), mask in window.active.items()
        ]
        return Table(rows, _COLUMNS, processes.title(merged=whole is not None))

    def state_dict(self) -> dict[str, Any]:
        """The window that is under way; nothing if it is a part of one that several processes share."""
        if self.sync_dist and self._one_of_several:
            return {}  # a checkpoint has one state for all of them, and this process knows its own only
        window = self._window()
        return {"steps": window.steps, "active": [[name, index, mask] for (name, index), mask in window.active.items()]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with it."""
        self.reset()
        self._steps = self._due_steps = int(state_dict.get("steps", 0))
        self._active = {(name, int(index)): mask for name, index, mask in state_dict.get("active", ())}


def _fetched(masks: list[Tensor]) -> list[Tensor]:
    """The masks on the CPU; each device is waited for once."""
    by_device: dict[torch.device, list[int]] = {}
    for index, mask in enumerate(masks):
        by_device.setdefault(mask.device, []).append(index)
    fetched = list(masks)
    for indices in by_device.values():
        whole = torch.cat([masks[index] for index in indices]).cpu()
        parts = torch.split(whole, [len(masks[index]) for index in indices])
        for index, part in zip(indices, parts, strict=True):
            fetched[index] = part.clone()
    return fetched


def _dead(mask: Tensor) -> list[int]:
    indices: list[int] = mask.logical_not().nonzero().flatten().tolist()
    return indices
