"""``Monitor``: what the monitors have in common: selection, schedule, when a period of measuring ends, and logging."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookbus.callback import NumberedCallback
from hookbus.markers import PHASES
from hookbus.taps.errors import TapWarning
from hookbus.taps.event import Moment
from hookbus.taps.monitors import processes
from hookbus.taps.selection import Selection, Which, schedule

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class Monitor(NumberedCallback):
    """Base of the monitors. It is a callback and a plugin: for ``Trainer(callbacks=…)``, ``plugins=…`` or ``tapping(…)``.

    In training a period ends with the batch that ends an accumulation window, in an evaluation with the evaluation; outside
    of any trainer with :meth:`flush`.

    Where several processes train together, a monitor with ``sync_dist`` merges what they have measured at the end of each
    period in which a step was due. Steps are due by their numbers, which are the same everywhere, so all processes take
    part: also those that ``ranks`` leaves out, those that have seen none of the modules, and those in which measuring has
    failed. Every process must have the monitor.

    Args:
        modules: which modules; see :class:`hookbus.taps.Selection`.
        every: at every N-th step; None for as often as the trainer logs (``log_every_n_steps``), and at every forward
            pass outside of any trainer.
        phases: in which phases; None for all, but for the sanity check where something is measured.
        prefix: the first part of the names under which it logs.
        **selection: ``types``, ``where``, ``at``, ``once``, ``ranks``, ``micro``, ``recompute`` and ``on_missing`` of
            :class:`hookbus.taps.Selection`.

    Attributes:
        tap_selection: all of this.

    Raises:
        TypeError: an argument that there is not.
        ValueError: an argument is out of range.
    """

    role: str = "monitor"
    disturbs_nothing = True
    #: Whether what several processes have measured is merged.
    sync_dist = False

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        every: int | None = None,
        phases: str | Collection[str] | None = None,
        prefix: str,
        **selection: Any,
    ) -> None:
        known = {"types", "where", "at", "once", "ranks", "micro", "recompute", "on_missing"}
        unknown = sorted(selection.keys() - known)
        if unknown:
            reason = " (a monitor does not edit)" if {"edits", "allow_shape_change"} & set(unknown) else ""
            raise TypeError(
                f"{type(self).__name__} has no argument {', '.join(unknown)}{reason}; of a selection it takes modules, every, "
                f"phases, {', '.join(sorted(known))}"
            )
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ValueError(
                f"every must be a number of steps of at least 1, or None for log_every_n_steps; got {every!r}"
            )
        if not isinstance(prefix, str) or not prefix.strip("/"):
            raise ValueError(f"prefix must be a word to put before the names of what is logged, got {prefix!r}")
        where = selection.get("where")
        if where is not None and not callable(where):
            raise ValueError(f"where must be a function of name and module, got {where!r}")
        self.tap_selection: Selection = schedule(modules=modules, every=every, phases=phases, **selection)
        self.prefix = prefix.rstrip("/")
        self._every = every
        self._in_trainer = False
        self._one_of_several = False  # whether the trainer's processes train together
        self._spent: set[str] = set()  # phases whose only step has been merged, with once=True

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Measure as often as this trainer logs, unless said otherwise; a fit begins anew."""
        if self._every is None:
            every = trainer.log_every_n_steps or sys.maxsize
            self.tap_selection = dataclasses.replace(self.tap_selection, every=every)
        self._in_trainer = True
        self._one_of_several = trainer.world_size > 1 and processes.number_of_processes() > 1
        if stage == "fit":
            self._spent = set()
            self.reset()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Say so if no step of the training was due."""
        self._in_trainer = False
        every, steps = self.tap_selection.every, trainer.progress.logging_step
        phases = self.tap_selection.phases
        if (
            stage != "fit"
            or not every
            or every == sys.maxsize
            or every <= steps
            or not (phases is None or "train" in phases)
        ):
            return
        given = "every" if self._every is not None else "log_every_n_steps of the Trainer, which every follows,"
        who = type(self).__name__
        warnings.warn(
            f"{who} has looked at no training step: {given} is {every}, and there were {steps}; say {who}(every=1)",
            TapWarning,
            stacklevel=2,
        )

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The trainer is left."""
        self._in_trainer = False

    def reset(self) -> None:
        """Forget what has been measured."""
        raise NotImplementedError

    def flush(self, phase: str = "train") -> dict[str, float]:
        """End a period outside of any trainer, and begin a new one. The table then holds the one that has ended.

        If torch's default process group has several processes and the monitor has ``sync_dist``, what they have measured is
        merged: all of them must call this, equally often.

        Args:
            phase: of which phase; in a loop by hand that is ``train`` or ``val``, as ``model.training`` says.

        Returns:
            What a trainer would log; empty if nothing was measured.

        Raises:
            RuntimeError: measuring has failed in another process.
            ValueError: there is no such phase.
        """
        checked_choice("phase", phase, PHASES)
        return dict(self._end_period(phase, merge=self.sync_dist and processes.number_of_processes() > 1))

    def _end_period(self, phase: str, *, merge: bool = False) -> Mapping[str, float]:
        """A period of this phase is over; what is to be logged of it.

        Args:
            phase: which.
            merge: whether all processes are here, to merge what they have measured.
        """
        raise NotImplementedError

    def _log(self, trainer: Any, phase: str) -> None:
        merge = self.sync_dist and self._one_of_several and self._looked_at(trainer, phase)
        metrics = self._end_period(phase, merge=merge)
        if metrics and trainer.bus.implemented("log_metrics"):
            trainer.bus.fire.log_metrics(trainer, dict(metrics), trainer.progress.logging_step)

    def _looked_at(self, trainer: Any, phase: str) -> bool:
        """Whether the period that ends may have been looked at, in whatever process: the same answer in all of them.

        Steps that the schedule rules out cost no collective. Evaluations may have more batches in one process than in
        another, so they count as looked at if their phase is.
        """
        selection = self.tap_selection
        if phase in self._spent or not (selection.phases is None or phase in selection.phases):
            return False
        if phase == "train":
            everywhere = dataclasses.replace(selection, ranks=None, micro="all")
            if not everywhere.due(Moment(number=trainer.progress.logging_step + 1, phase=phase)):
                return False
        if selection.once:
            self._spent.add(phase)
        return True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if the batch ends an accumulation window."""
        if not trainer.fit_loop._should_accumulate():
            self._log(trainer, "train")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured in the validation."""
        if not trainer.sanity_checking:
            self._log(trainer, "val")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured in the test."""
        self._log(trainer, "test")

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured in the prediction."""
        self._log(trainer, "predict")


def on_host(tensor: Tensor) -> bool:
    """Whether a value computed from it can be read without waiting for a device."""
    return tensor.device.type == "cpu"


def is_batched(tensor: Tensor) -> bool:
    """Whether it is one of those within ``torch.vmap``, whose values cannot be read there."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def innermost(_: str, module: nn.Module) -> bool:
    """Whether a module is one of the layers that compute: it holds no others, or computes with them itself."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    return not module._modules and type(module).__name__ != "NonDynamicallyQuantizableLinear"


def checked_choice(name: str, given: object, words: Collection[str]) -> None:
    """Refuse a word that is none of ``words``.

    Raises:
        ValueError: says what is possible.
    """
    if given not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}; got {given!r}")


def checked_switch(name: str, given: object) -> bool:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: says so.
    """
    if not isinstance(given, bool):
        raise TypeError(f"{name} must be True or False, got {given!r}")
    return given


def chosen_words(name: str, given: str | Collection[str], words: Collection[str]) -> tuple[str, ...]:
    """One word or several, all of them known.

    Raises:
        ValueError: says which is not, and what is possible.
    """
    chosen = (given,) if isinstance(given, str) else tuple(given)
    unknown = [word for word in chosen if word not in words]
    if unknown:
        raise ValueError(f"{name} must be some of {', '.join(words)}; got {', '.join(map(repr, unknown))}")
    return chosen
