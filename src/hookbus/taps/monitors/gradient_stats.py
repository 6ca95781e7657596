"""``GradientStats``: norms of gradients as the optimiser gets them, and how far its step moves the weights."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from hookbus.taps.event import Moment
from hookbus.taps.monitors import processes
from hookbus.taps.monitors.gradient_step import GradientRow, Level, MeasuredStep, is_spread, rows_of
from hookbus.taps.monitors.monitor import Monitor, checked_choice
from hookbus.taps.monitors.table import Table
from hookbus.taps.plan import names_of_parameters
from hookbus.taps.select import places, select
from hookbus.taps.selection import Which

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from hookbus.hookspecs import types as pl

_LEVELS = ("parameter", "group", "total")
_COLUMNS = {
    "name": "name",
    "values": "numel",
    "norm": "norm",
    "rms": "rms",
    "nonfinite": "nonfinite",
    "weight norm": "weight_norm",
    "update norm": "update_norm",
    "update/weight": "update_ratio",
}


class GradientStats(Monitor):
    """Measures gradients right before the optimiser steps, and logs norms and the update-to-weight ratio.

    The gradients are unscaled, whole (of all batches of an accumulation window) and not yet clipped. Names are
    ``gradients/norm`` and ``gradients/update_ratio``, with ``/<group>`` or ``/<parameter>`` behind them for parts, and
    ``gradients/nonfinite``. On an accelerator the figures are fetched all at once at the end of the batch. On steps that
    are due the weights are copied until the optimiser has stepped, unless ``updates=False``.

    Where several processes train together, the figures are the same in all, and nothing is merged: DistributedDataParallel
    has averaged the gradients by then. Of gradients that are spread over processes, as under FSDP2 (``fully_shard``), the
    norms are those of the whole, found with four collectives per step, however many parameters there are; processes that
    ``ranks`` leaves out take part in them.

    Outside of any trainer: ``with stats.watch(model, optimizer): …``.

    Args:
        modules: whose own parameters to measure, by default those of all modules; see :class:`hookbus.taps.Selection`.
        every: at every N-th optimiser step; None for as often as the trainer logs, and always outside of any trainer.
        updates: whether to measure updates, too.
        log: how much to log: the ``total`` only, each parameter ``group`` as well if there are several, or each
            ``parameter``. The table has it all.
        prefix: the first part of the names.
        **selection: ``types``, ``where``, ``at``, ``ranks`` and ``on_missing`` of :class:`hookbus.taps.Selection`.

    Raises:
        TypeError, ValueError: an argument is not known, or out of range.

    Example:
        >>> import torch
        >>> from hookbus.taps.monitors import GradientStats
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> stats = GradientStats()
        >>> with stats.watch(model, optimizer):
        ...     model(torch.tensor([[3.0, 4.0]])).sum().backward()
        ...     optimizer.step()
        >>> row = stats.table()["weight"]
        >>> row.norm, round(row.update_norm, 6)
        (5.0, 0.5)
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        every: int | None = None,
        updates: bool = True,
        log: Level = "group",
        prefix: str = "gradients",
        **selection: Any,
    ) -> None:
        senseless = sorted({"phases", "once", "micro", "recompute"} & selection.keys())
        if senseless:
            raise TypeError(
                f"GradientStats has no argument {', '.join(senseless)}: it measures once per optimizer step, in training"
            )
        super().__init__(modules, every=every, phases="train", prefix=prefix, **selection)
        checked_choice("log", log, _LEVELS)
        self.updates = updates
        self.log_level: Level = log
        self._steps: list[MeasuredStep] = []
        self.reset()

    def reset(self) -> None:
        """Forget what has been measured."""
        self._drop()
        self._rows: list[GradientRow] = []
        self._selected = False  # so that what is missing is said once

    def _drop(self) -> None:
        for step in self._steps:
            step.close()
        self._steps = []

    # -- in a trainer ------------------------------------------------------------------------------------------------

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Measure the gradients and, if updates are wanted, remember the weights."""
        moment = Moment(trainer.global_step, number=trainer.progress.logging_step + 1, rank=trainer.global_rank)
        if self._due(moment, optimizer):
            open_steps = [step for step in self._steps if step.optimizer is optimizer]
            if any(not step.stepped for step in open_steps):
                return  # its closure is evaluated again
            for step in open_steps:
                step.close()
                self._steps.remove(step)
            step = self._before(pl_module, optimizer)
            step.measure_gradients()
            step.listen()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Let the optimisers go."""
        super().on_exception(trainer, pl_module, exception)
        self._drop()

    def _end_period(self, phase: str, *, merge: bool = False) -> dict[str, float]:
        if not self._steps:
            return {}
        self._rows = rows_of(self._steps)
        self._drop()
        shown = _LEVELS[_LEVELS.index(self.log_level) :]
        metrics: dict[str, float] = {}
        for row in self._rows:
            if row.level in shown:
                behind = "" if row.level == "total" else f"/{row.name}"
                metrics[f"{self.prefix}/norm{behind}"] = row.norm
                if row.update_ratio is not None:
                    metrics[f"{self.prefix}/update_ratio{behind}"] = row.update_ratio
                if row.level == "total":
                    metrics[f"{self.prefix}/nonfinite"] = row.nonfinite
        return metrics

    # -- outside of any trainer --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watch(self, model: nn.Module, *optimizers: Optimizer) -> Iterator[GradientStats]:
        """Measure the steps of optimisers in a hand-written loop; with a ``GradScaler`` as well.

        The gradients are those that ``optimizer.step()`` has used: after clipping, if the loop clips.

        Args:
            model: gives the parameters their names.
            *optimizers: torch's own; their hooks are gone when the block ends.
        """
        handles: list[RemovableHandle] = []
        begun: Counter[int] = Counter()
        measured: dict[int, MeasuredStep] = {}
        depth: Counter[int] = Counter()  # more than 1 within an optimiser whose step calls that of its base

        def before(optimizer: Optimizer, *_: Any) -> None:
            depth[id(optimizer)] += 1
            if depth[id(optimizer)] > 1:
                return
            begun[id(optimizer)] += 1
            number = begun[id(optimizer)]
            if self._due(Moment(number - 1, number=number, rank=processes.rank() or 0), optimizer):
                if any(step.optimizer is optimizer for step in self._steps):
                    self._end_period("train")  # in a loop that is when the next one begins
                measured[id(optimizer)] = self._before(model, optimizer)

        def after(optimizer: Optimizer, *_: Any) -> None:
            depth[id(optimizer)] -= 1
            step = None if depth[id(optimizer)] else measured.pop(id(optimizer), None)
            if step is not None:
                step.measure_gradients()
                step.measure_updates()
                step.close()

        try:
            for optimizer in optimizers:
                handles.append(optimizer.register_step_pre_hook(before))
                handles.append(optimizer.register_step_post_hook(after))
            yield self
        finally:
            for handle in handles:
                handle.remove()
            self._end_period("train")

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _due(self, moment: Moment, optimizer: Optimizer) -> bool:
        selection = self.tap_selection
        if selection.ranks is not None and any(
            is_spread(p) for group in optimizer.param_groups for p in group["params"]
        ):
            selection = dataclasses.replace(selection, ranks=None)  # the others have parts of the gradients
        return selection.due(moment)

    def _before(self, model: nn.Module, optimizer: Optimizer) -> MeasuredStep:
        step = MeasuredStep(optimizer, self._named(model), updates=self.updates)
        self._steps.append(step)
        return step

    def _named(self, model: nn.Module) -> dict[int, str]:
        """The names of the selected parameters by identity."""
        found = places(model)
        chosen = select(found, self.tap_selection, called=False, who="GradientStats", complain=not self._selected)
        self._selected = True
        own = {id(p) for place in chosen for p in place.module._parameters.values() if p is not None}
        return {key: names[0] for key, names in names_of_parameters(found).items() if key in own}

    def table(self, level: Level | None = "parameter") -> Table[GradientRow]:
        """What was measured at the last step that was due.

        Args:
            level: rows of parameters, of ``group``s, or the ``total``; None for all of them.
        """
        if level is not None:
            checked_choice("level", level, _LEVELS)
        if self._steps and all(step.stepped for step in self._steps):
            self._end_period("train")
        return Table([row for row in self._rows if level in (None, row.level)], _COLUMNS)
