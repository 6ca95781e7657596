"""``Monitor``: what the monitors have in common: selection, schedule, when a period of measuring ends, and logging."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookbus.callback import Callback
from hookbus.taps.selection import Selection, Which, schedule

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class Monitor(Callback):
    """Base of the monitors. It is a callback and a plugin: for ``Trainer(callbacks=…)``, ``plugins=…`` or ``tapping(…)``.

    In training a period ends with the batch that ends an accumulation window, in an evaluation with the evaluation.

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
    twin = 0

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

    @property
    def state_key(self) -> str:
        """The class's name; from the second monitor of the class on with a number."""
        return f"{super().state_key}#{self.twin + 1}" if self.twin else super().state_key

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Measure as often as this trainer logs, unless said otherwise; a fit begins anew."""
        if self._every is None:
            every = trainer.log_every_n_steps or sys.maxsize
            self.tap_selection = dataclasses.replace(self.tap_selection, every=every)
        if stage == "fit":
            self.reset()

    def reset(self) -> None:
        """Forget what has been measured."""
        raise NotImplementedError

    def _end_period(self, phase: str) -> Mapping[str, float]:
        """A period of this phase is over; what is to be logged of it."""
        raise NotImplementedError

    def _log(self, trainer: Any, phase: str) -> None:
        metrics = self._end_period(phase)
        if metrics and trainer.bus.implemented("log_metrics"):
            trainer.bus.fire.log_metrics(trainer, dict(metrics), trainer.progress.logging_step)

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
