"""``DeadNeurons``: which units of ReLU-like layers have not been active once in a whole window of steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookbus.markers import hookimpl
from hookbus.taps import leaves
from hookbus.taps.event import Moment, TapEvent
from hookbus.taps.monitors.monitor import Monitor, checked_choice
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


class DeadNeurons(Monitor):
    """Finds units that were never active in a window of steps, for whatever sample and place.

    A unit is a channel of the output of a ReLU-like layer; it is active where the output's absolute value exceeds
    ``threshold``. Layers of other kinds do not count, however small what they give. At the end of a window shares are
    logged as ``dead_neurons/share/<layer>``, and of all units together as ``dead_neurons/share``. A checkpoint holds the
    window that is under way.

    Args:
        modules: which modules; by default all of ``types``.
        types: kinds of layers.
        of: whether the units are channels of the ``output`` or the ``input``. Where a ReLU is a function and no layer, it is
            the input of the layer behind it: ``DeadNeurons("layers.*.linear2", types=nn.Linear, of="input")``.
        window: over how many steps, of those that are looked at.
        every, phases, **selection: see :class:`hookbus.taps.monitors.Monitor`.
        threshold: up to which absolute value an output counts as inactive: 0 for ReLU; more for layers such as GELU that
            come close to zero only.
        channel_dim: which dimension of the output counts the units; by default the second one, but the last one of
            outputs with three, taken to be (batch, tokens, channels).
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
        self.window = window
        self.of = of
        self.threshold = threshold
        self.channel_dim = channel_dim
        self.reset()

    def reset(self) -> None:
        """Forget the window that is under way, and the last one."""
        self._active: dict[tuple[str, int], Tensor] = {}
        self._steps = 0
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
            if self._steps >= self.window:
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

    def _end_period(self, phase: str) -> dict[str, float]:
        if self._steps < self.window or self._moment is None or self._moment.phase != phase:
            return {}
        rows = self._close_window()
        units, dead = sum(row.units for row in rows), sum(row.dead for row in rows)
        return {f"{self.prefix}/share": dead / units} | {
            f"{self.prefix}/share/{row.name or 'network'}": row.share for row in rows
        }

    def _close_window(self) -> Table[DeadRow]:
        self._last = rows = self._rows()
        self._active, self._steps, self._moment = {}, 0, None
        return rows

    def table(self) -> Table[DeadRow]:
        """The window that ended last; the one under way if none has ended yet."""
        return self._last if self._last is not None else self._rows()

    def _rows(self) -> Table[DeadRow]:
        masks = _fetched(list(self._active.values()))
        several = {name for name, index in self._active if index}
        rows = [
            DeadRow(f"{name}#{index}" if name in several else name, len(mask), tuple(_dead(mask)), self._steps)
            for (name, index), mask in zip(self._active, masks, strict=True)
        ]
        return Table(rows, _COLUMNS)

    def state_dict(self) -> dict[str, Any]:
        """The window that is under way."""
        masks = _fetched(list(self._active.values()))
        active = [[name, index, mask] for (name, index), mask in zip(self._active, masks, strict=True)]
        return {"steps": self._steps, "active": active}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with it."""
        self.reset()
        self._steps = int(state_dict["steps"])
        self._active = {(name, int(index)): mask for name, index, mask in state_dict["active"]}


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
