"""``ActivationStats``: moments, extremes, zeros and non-finite values of what layers give."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookbus.markers import PHASES, hookimpl
from hookbus.taps import leaves
from hookbus.taps.event import TapEvent
from hookbus.taps.monitors import processes
from hookbus.taps.monitors.activation_row import ActivationRow
from hookbus.taps.monitors.monitor import (
    Monitor,
    checked_choice,
    checked_switch,
    chosen_words,
    innermost,
    is_batched,
    on_host,
)
from hookbus.taps.monitors.table import Table
from hookbus.taps.selection import Which

_LOGGED = ("mean", "std", "rms", "absmax", "zero_share", "nonfinite")
_COLUMNS = {"layer": "name", "phase": "phase", "calls": "calls", "values": "count"} | {word: word for word in _LOGGED}

#: So many calls may wait on a device until they are fetched.
_MOST_PENDING = 4096


class ActivationStats(Monitor):
    """Measures what layers give, at every N-th step, and logs it.

    Computed in float32, float64 for float64 activations. On an accelerator nothing is waited for until the figures are
    fetched, all at once, at the end of the step (of an evaluation: at its end). Names are
    ``activations/<phase>/<statistic>/<layer>``. Outside of any trainer figures gather until :meth:`flush` or :meth:`reset`.

    Args:
        modules: which modules; by default the layers that compute: those that hold no others.
        every, phases, **selection: see :class:`hookbus.taps.monitors.Monitor`.
        histogram: ``(low, high, bins)`` for a histogram with equal bins, whose counts begin with the values below ``low``
            and end with those above ``high``. It costs several times as much as everything else.
        sync_dist: whether to merge what several processes have measured, with one collective at the end of each period
            that was looked at: the table and the log of each are then of all. Else each has its own.
        log: which statistics to log: some of ``mean``, ``std``, ``rms``, ``absmax``, ``zero_share`` and ``nonfinite``.
        prefix: the first part of the names.

    Raises:
        TypeError, ValueError: an argument is not known, or out of range.

    Example:
        >>> import torch
        >>> from hookbus import tapping
        >>> from hookbus.taps.monitors import ActivationStats
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> stats = ActivationStats()
        >>> with tapping(model, stats):
        ...     _ = model(torch.ones(3, 4))
        >>> [(row.name, row.count, row.nonfinite) for row in stats.table()]
        [('0', 24, 0), ('1', 24, 0)]
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        every: int | None = None,
        phases: str | Collection[str] | None = None,
        histogram: tuple[float, float, int] | None = None,
        sync_dist: bool = True,
        log: str | Collection[str] = _LOGGED,
        prefix: str = "activations",
        **selection: Any,
    ) -> None:
        if modules is None and not {"types", "where"} & selection.keys():
            selection["where"] = innermost
        super().__init__(modules, every=every, phases=phases, prefix=prefix, **selection)
        self._bins = None if histogram is None else _checked_bins(histogram)
        self.sync_dist = checked_switch("sync_dist", sync_dist)
        self._logged = chosen_words("log", log, _LOGGED)
        self.reset()

    def reset(self) -> None:
        """Forget what has been measured."""
        self._now: dict[str, dict[str, ActivationRow]] = {}
        self._last: dict[str, dict[str, ActivationRow]] = {}
        self._merged: set[str] = set()  # phases whose last period is that of all processes
        self._pending: list[_OnDevice] = []

    @hookimpl
    def on_module_forward(self, event: TapEvent) -> None:
        """Measure the tensors of the output."""
        output = event.output
        if event.phase == "sanity":
            return
        if isinstance(output, Tensor):
            self._measure(event.phase, event.name, output)
            return
        for path, tensor in leaves.tensors(output):
            self._measure(event.phase, leaves.suffixed(event.name, path), tensor)

    def _measure(self, phase: str, name: str, tensor: Tensor) -> None:
        if not tensor.is_floating_point() or tensor.is_nested or tensor.layout is not torch.strided:
            return
        if not tensor.numel() or is_batched(tensor):
            return
        row = ActivationRow(name, phase, calls=1)
        values = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
        if on_host(values):
            self._add(_measured(row, values, self._bins))
            return
        self._pending.append(_OnDevice(row, values, self._bins))
        if len(self._pending) >= _MOST_PENDING:
            self._fetch()

    def _add(self, row: ActivationRow) -> None:
        rows = self._now.setdefault(row.phase, {})
        before = rows.get(row.name)
        rows[row.name] = row if before is None else before.merge(row)

    def _fetch(self) -> None:
        pending, self._pending = self._pending, []
        for row in _fetched(pending):
            self._add(row)

    def _end_period(self, phase: str, *, merge: bool = False) -> dict[str, float]:
        rows: dict[str, ActivationRow] = {}
        for some in (
            processes.gathered(lambda: self._taken(phase), "ActivationStats") if merge else [self._taken(phase)]
        ):
            for row in some:
                rows[row.name] = rows[row.name].merge(row) if row.name in rows else row
        if not rows:
            return {}
        self._last[phase] = rows
        (self._merged.add if merge else self._merged.discard)(phase)
        return {
            f"{self.prefix}/{phase}/{word}/{row.name or 'network'}": getattr(row, word)
            for row in rows.values()
            for word in self._logged
        }

    def _taken(self, phase: str) -> list[ActivationRow]:
        """What this process has measured in the current period, which begins anew."""
        self._fetch()
        return list(self._now.pop(phase, {}).values())

    def table(self, phase: str | None = None) -> Table[ActivationRow]:
        """What has been measured: in the current period, or in the last one if nothing has yet.

        The last period is that of all processes if they merge what they measure, the current one that of this process;
        nothing is exchanged here.

        Args:
            phase: of this phase only.

        Returns:
            A row for each layer and phase, in the order of first calls. With histograms, ``edges`` of the monitor has
            their edges.

        Raises:
            ValueError: there is no such phase.
        """
        if phase is not None:
            checked_choice("phase", phase, PHASES)
        self._fetch()
        phases = dict.fromkeys([*self._last, *self._now]) if phase is None else [phase]
        found = [self._now.get(word) or self._last.get(word, {}) for word in phases]
        merged = all(word in self._merged and not self._now.get(word) for word in phases)
        return Table([row for rows in found for row in rows.values()], _COLUMNS, processes.title(merged=merged))

    @property
    def edges(self) -> tuple[float, ...] | None:
        """Edges of the histograms' bins, one more than there are bins; None without histograms."""
        if self._bins is None:
            return None
        low, high, bins = self._bins
        return tuple(low + (high - low) * i / bins for i in range(bins + 1))


def _measured(row: ActivationRow, values: Tensor, bins: tuple[float, float, int] | None) -> ActivationRow:
    """The row with the statistics of ``values``, on a CPU."""
    total = values.numel()
    low, high = (extreme.item() for extreme in torch.aminmax(values))
    if not (math.isfinite(low) and math.isfinite(high)):
        values = values[values.isfinite()]
        if not values.numel():
            empty = None if bins is None else (0,) * (bins[2] + 2)
            return replace(row, nonfinite=total, histogram=empty)
        low, high = (extreme.item() for extreme in torch.aminmax(values))
    count = values.numel()
    mean, m2 = _moments(values, count)
    return ActivationRow(
        row.name,
        row.phase,
        row.calls,
        count,
        mean,
        m2,
        max(abs(low), abs(high)),
        # Counting the nonzero among booleans is some ten times as fast as among floats.
        count - int(torch.count_nonzero(values.bool()).item()),
        total - count,
        None if bins is None else tuple(_histogram(values, bins).tolist()),
    )


def _moments(values: Tensor, count: int) -> tuple[float, float]:
    """Mean and sum of squared distances from it."""
    mean = values.sum().item() / count
    squares = torch.linalg.vector_norm(values).item() ** 2
    if not (math.isfinite(mean) and math.isfinite(squares)) and values.dtype is not torch.float64:
        return _moments(values.double(), count)  # too great for float32
    m2 = squares - count * mean * mean
    if m2 < 0.1 * squares:  # the difference has lost digits
        m2 = torch.linalg.vector_norm(values - mean).item() ** 2
    return float(mean), float(m2)


class _OnDevice:
    """Statistics of one call that have not left the device."""

    def __init__(self, row: ActivationRow, values: Tensor, bins: tuple[float, float, int] | None) -> None:
        self.row, self.total, self.device = row, values.numel(), values.device
        finite = values.isfinite()
        kept = torch.where(finite, values, 0)
        count = finite.sum()
        mean = kept.sum() / count.clamp(min=1)
        distances = torch.where(finite, values - mean, 0)
        low, high = torch.aminmax(kept)
        self.floats = [mean, distances.square().sum(), torch.maximum(high, -low)]
        self.counts = [count.view(1), torch.count_nonzero(kept).view(1)]
        if bins is not None:
            histogram = _histogram(kept, bins)
            # Those that are not finite were counted as zeros.
            where_zero = _histogram(kept.new_zeros(1), bins)
            self.counts.append(histogram - where_zero * (self.total - count))

    def read(self, floats: Iterable[float], counts: Sequence[float]) -> ActivationRow:
        """The row, from what was fetched."""
        mean, m2, absmax = floats
        count, nonzero, *histogram = map(round, counts)
        return replace(
            self.row,
            count=count,
            mean=mean,
            m2=m2,
            absmax=absmax,
            zeros=count - nonzero,
            nonfinite=self.total - count,
            histogram=tuple(histogram) or None,
        )


def _fetched(pending: Sequence[_OnDevice]) -> Iterable[ActivationRow]:
    """Rows of calls whose statistics are on devices; each device is waited for once."""
    by_device: dict[torch.device, list[_OnDevice]] = {}
    for one in pending:
        by_device.setdefault(one.device, []).append(one)
    for device, some in by_device.items():
        wide = torch.float32 if device.type == "mps" else torch.float64  # exact for counts up to 2^53
        floats = torch.stack([value for one in some for value in one.floats]).to(wide)
        counts = torch.cat([value for one in some for value in one.counts]).to(wide)
        values = torch.cat([floats, counts]).tolist()
        at, of_counts = 0, len(floats)
        for one in some:
            size = sum(len(value) for value in one.counts)
            yield one.read(values[at : at + 3], values[of_counts : of_counts + size])
            at, of_counts = at + 3, of_counts + size


def _histogram(values: Tensor, bins: tuple[float, float, int]) -> Tensor:
    """Counts below, in each bin and above; as elsewhere a bin has its left edge, the last one also its right one."""
    low, high, number = bins
    index = ((values - low) * (number / (high - low))).floor_().clamp_(-1, number - 1)
    index = torch.where(values > high, number, index).to(torch.int64).add_(1).flatten()
    return index.new_zeros(number + 2).scatter_add_(0, index, torch.ones_like(index))


def _checked_bins(given: Any) -> tuple[float, float, int]:
    try:
        low, high, bins = given
        low, high = float(low), float(high)
    except (TypeError, ValueError):
        raise ValueError(f"histogram must be (low, high, bins), such as (-3.0, 3.0, 30); got {given!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and isinstance(bins, int) and bins > 0):
        raise ValueError(f"histogram must be (low, high, bins) with low < high and at least one bin; got {given!r}")
    return low, high, bins
