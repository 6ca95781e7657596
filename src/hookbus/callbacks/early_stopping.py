"""``EarlyStopping``: ends the training when a monitored value stops improving.

One check is made for each new value: at the end of each training epoch, after the module's hook, if there is one
validation per epoch or none; otherwise at the end of each validation. ``patience`` counts checks.

The stop is asked for when the trainer would grant it, and not before: while ``min_epochs`` or ``min_steps`` hold it
back, every check decides anew, so a value that recovers in time lets the training go on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from hookbus.callback import Callback
from hookbus.callbacks.checkpoint_table import worst_score
from hookbus.callbacks.monitored import MonitoredValue, absence, keep_decisions, kept_decisions
from hookbus.callbacks.save_moments import at_train_epoch_end, can_validate
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_PATIENCE: Final = 3


class EarlyStoppingReason(Enum):
    """Why a training was stopped."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class _Verdict(NamedTuple):
    """The decision to stop."""

    reason: EarlyStoppingReason
    message: str


#: What lets a stopped run go on.
_CHANGES = {
    EarlyStoppingReason.PATIENCE_EXHAUSTED: "Raise patience",
    EarlyStoppingReason.STOPPING_THRESHOLD: "Leave out stopping_threshold",
    EarlyStoppingReason.DIVERGENCE_THRESHOLD: "Leave out divergence_threshold",
    EarlyStoppingReason.NON_FINITE_METRIC: "Pass check_finite=False",
}


class EarlyStopping(Callback):
    """Ends the training when a monitored value stops improving.

    Arguments, attributes and state are those of Lightning 2.6. A run that is resumed from a checkpoint made after the
    stop stays stopped, unless ``patience`` was raised since, or the threshold left out that ended it; a further ``fit``
    of the same callback goes on.

    Args:
        monitor: the logged name.
        min_delta: a value counts as better if it is so by more than this, 0 or more.
        patience: how many checks in a row without a better value end the training.
        verbose: print each decision.
        mode: whether a better value is a smaller (``"min"``) or a greater one (``"max"``).
        strict: raise if ``monitor`` is missing although a validation is over; False skips the check.
        check_finite: end the training if the value is NaN or infinite.
        stopping_threshold: end the training once the value is better than this.
        divergence_threshold: end the training once the value is worse than this.
        check_on_train_epoch_end: check at the end of the training epoch (True) or of the validation (False).
        log_rank_zero_only: print on the first process only.

    Attributes:
        wait_count: checks since the last better value.
        best_score: the best value so far, a 0-dim tensor.
        stopped_epoch: the epoch in which the training was stopped; 0 if it was not.
        stopping_reason, stopping_reason_message: why it was.
        monitor_op: ``torch.lt`` or ``torch.gt``; tells whether its first argument is better.
        twin: how many callbacks with otherwise the same ``state_key`` stand before this one in the trainer's list; to
            be set by the trainer.

    Raises:
        MisconfigurationException: an argument is out of range.
        RuntimeError: during fit, if ``monitor`` is missing.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.callbacks import EarlyStopping
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         loss = (self.layer(batch) - 2).square().mean()
        ...         self.log("loss", loss)
        ...         return loss
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 0.1)
        >>> stopping = EarlyStopping("loss", stopping_threshold=0.01)
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
        >>> trainer = hookbus.Trainer(max_epochs=100, accelerator="cpu", callbacks=[stopping], **quiet)
        >>> trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(8, 1)))
        >>> stopping.stopping_reason.name, stopping.stopped_epoch < 10
        ('STOPPING_THRESHOLD', True)
    """

    role: ClassVar[str] = "mutator"

    mode_dict: ClassVar[dict[str, Callable[..., Tensor]]] = {"min": torch.lt, "max": torch.gt}
    order_dict: ClassVar[dict[str, str]] = {"min": "<", "max": ">"}

    twin = 0

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = _PATIENCE,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__()
        _check(monitor, min_delta, patience, mode, stopping_threshold, divergence_threshold)
        self.monitor = monitor
        self.mode = mode
        self.min_delta = min_delta * (1 if mode == "max" else -1)
        self.patience = patience
        self.verbose = verbose
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self.log_rank_zero_only = log_rank_zero_only
        self._checked = False
        self._loaded = False
        self._value = MonitoredValue()
        self._forget()

    def _forget(self) -> None:
        """Begin with no value seen."""
        self.wait_count = 0
        self.best_score = worst_score(self.mode)
        self._go_on()

    def _go_on(self) -> None:
        """There is no reason to stop."""
        self.stopped_epoch = 0
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None
        self._held_back: _Verdict | None = None

    @property
    def state_key(self) -> str:
        """Lightning's key; from the second callback with the same one on with a number."""
        key = self._generate_state_key(monitor=self.monitor, mode=self.mode)
        return f"{key}#{self.twin + 1}" if self.twin else key

    @property
    def monitor_op(self) -> Callable[..., Tensor]:
        """Tells whether its first argument is better than its second."""
        return self.mode_dict[self.mode]

    # -- moments -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """A training that starts anew, at step 0, starts with no value seen."""
        if stage == "fit" and trainer.global_step == 0 and self._checked:
            self._forget()
            self._checked = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Derive the decision anew that stood when the checkpoint was made from which this run is resumed."""
        self._value.begin(trainer, self.monitor)
        loaded, self._loaded = self._loaded, False
        verdict, epoch = self._standing_verdict(), self.stopped_epoch
        had_stopped = self.stopping_reason is not EarlyStoppingReason.NOT_STOPPED
        self._go_on()
        if not loaded or self._checked or verdict is None:
            return
        self._held_back = verdict
        if self._may_stop(trainer, epoch_is_over=False):
            self._stop(trainer, verdict)
            self.stopped_epoch = epoch if had_stopped else self.stopped_epoch
            change = _CHANGES.get(verdict.reason)
            text = f"EarlyStopping had ended the run of this checkpoint, so it stays ended. {verdict.message}"
            self._log_info(trainer, f"{text} {change} to go on." if change else text, self.log_rank_zero_only)

    def _standing_verdict(self) -> _Verdict | None:
        """The decision to stop that was made before this run was resumed, if it would be made now, too."""
        given = self._held_back
        if self.stopping_reason is not EarlyStoppingReason.NOT_STOPPED:
            given = _Verdict(self.stopping_reason, self.stopping_reason_message or "")
        reason = given.reason if given is not None else EarlyStoppingReason.PATIENCE_EXHAUSTED
        stands = {
            EarlyStoppingReason.NOT_STOPPED: True,  # another process asked for it
            EarlyStoppingReason.PATIENCE_EXHAUSTED: self.wait_count >= max(self.patience, 1),
            EarlyStoppingReason.STOPPING_THRESHOLD: self.stopping_threshold is not None,
            EarlyStoppingReason.DIVERGENCE_THRESHOLD: self.divergence_threshold is not None,
            EarlyStoppingReason.NON_FINITE_METRIC: self.check_finite,
        }
        return (given or _Verdict(reason, self._exhaustion_message())) if stands[reason] else None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check, if checks are made here."""
        if self._should_skip_check(trainer):
            return
        self._value.validated = True
        if not self._checks_at_epoch_end(trainer):
            self._run_early_stopping_check(trainer, epoch_is_over=trainer.is_last_batch)

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check, if checks are made here; after the module, which may log something."""
        if self._should_skip_check(trainer):
            return
        if self._checks_at_epoch_end(trainer):
            self._run_early_stopping_check(trainer)
        elif self._held_back is not None and self._may_stop(trainer, epoch_is_over=True):
            self._stop(trainer, self._held_back)

    def _should_skip_check(self, trainer: pl.Trainer) -> bool:
        return bool(trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run)

    def _checks_at_epoch_end(self, trainer: pl.Trainer) -> bool:
        given = self._check_on_train_epoch_end
        return at_train_epoch_end(trainer) if given is None else given

    # -- the check ---------------------------------------------------------------------------------------------------

    def _run_early_stopping_check(self, trainer: pl.Trainer, epoch_is_over: bool = True) -> None:
        """Judge the monitored value if it is a new one, and stop the training if need be."""
        value = self._value.look(trainer, self.monitor)
        if value is None:
            self._require_monitor(trainer)
        new = self._value.unused
        verdict, message = self._held_back, None  # it stands until there is a new value
        if new:
            self._value.use()
            self._checked = True
            verdict, message = self._judge(torch.as_tensor(value).detach().squeeze())
        # The value may differ between processes if it was not reduced: all stop if one does.
        if not trainer.strategy.reduce_boolean_decision(verdict is not None, all=False):
            if new:
                self._go_on()
        else:
            verdict = verdict or _Verdict(EarlyStoppingReason.NOT_STOPPED, "Another process asked to stop.")
            if self._may_stop(trainer, epoch_is_over=epoch_is_over):
                self._stop(trainer, verdict)
            else:
                self._held_back = verdict
        if message and self.verbose:
            self._log_info(trainer, message, self.log_rank_zero_only)

    def _judge(self, value: Tensor) -> tuple[_Verdict | None, str | None]:
        """The verdict, None to go on, and what to tell of it. That the training has stopped is not noted yet."""
        should_stop, message = self._evaluate_stopping_criteria(value)
        reason, self.stopping_reason = self.stopping_reason, EarlyStoppingReason.NOT_STOPPED
        return (_Verdict(reason, message or "") if should_stop else None), message

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        """Judge one value, and count it.

        Args:
            current: a 0-dim tensor.

        Returns:
            Whether to stop, and a sentence about why, or about an improvement; None if there is nothing to tell.
        """
        name, sign = self.monitor, self.order_dict[self.mode]
        if self.check_finite and not torch.isfinite(current):
            self.stopping_reason = EarlyStoppingReason.NON_FINITE_METRIC
            return True, f"{name} is {float(current)}; the best was {float(self.best_score):.5f}."
        if self.stopping_threshold is not None and self.monitor_op(current, self.stopping_threshold):
            self.stopping_reason = EarlyStoppingReason.STOPPING_THRESHOLD
            return True, f"{name} reached the stopping threshold: {float(current)} {sign} {self.stopping_threshold}."
        if self.divergence_threshold is not None and self.monitor_op(-current, -self.divergence_threshold):
            self.stopping_reason = EarlyStoppingReason.DIVERGENCE_THRESHOLD
            return True, f"{name} is past the divergence threshold {self.divergence_threshold}: {float(current)}."
        if self.monitor_op(current - self.min_delta, self.best_score.to(current.device)):
            message = self._improvement_message(current)
            self.best_score = current
            self.wait_count = 0
            return False, message
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        self.stopping_reason = EarlyStoppingReason.PATIENCE_EXHAUSTED
        return True, self._exhaustion_message()

    def _improvement_message(self, current: Tensor) -> str:
        if not torch.isfinite(self.best_score):
            return f"{self.monitor} is {float(current):.5f}, the first value."
        return f"{self.monitor} improved by {abs(float(self.best_score - current)):.5f} to {float(current):.5f}."

    def _exhaustion_message(self) -> str:
        return f"{self.monitor} did not improve in {self.wait_count} checks; the best was {float(self.best_score):.5f}."

    def _may_stop(self, trainer: pl.Trainer, *, epoch_is_over: bool) -> bool:
        """Whether the trainer would grant a stop: whether the minimum numbers of epochs and steps are reached."""
        epochs = trainer.current_epoch + bool(epoch_is_over)
        return bool(epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0))

    def _stop(self, trainer: pl.Trainer, verdict: _Verdict) -> None:
        self.stopped_epoch = trainer.current_epoch
        self.stopping_reason, self.stopping_reason_message = verdict.reason, verdict.message
        self._held_back = None
        trainer.control.stop(verdict.message, for_good=False)  # a resumed run is asked anew, in on_train_start

    def _require_monitor(self, trainer: pl.Trainer) -> None:
        """Complain of a name that was never logged, but wait silently for the first validation.

        Raises:
            RuntimeError: it was never logged, and a validation is over, or there are none.
        """
        if (not self._value.validated and can_validate(trainer)) or torch.isfinite(self.best_score):
            return
        text = absence(self, self.monitor, trainer)
        if self.strict:
            raise RuntimeError(f"{text}; or pass strict=False to skip checks without a value")
        if self.verbose and trainer.is_global_zero:
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    @staticmethod
    def _log_info(trainer: pl.Trainer, message: str, log_rank_zero_only: bool) -> None:
        if trainer.world_size == 1 or trainer.global_rank == 0:
            trainer.print(message)
        elif not log_rank_zero_only:
            print(f"[rank {trainer.global_rank}] {message}")

    # -- state -------------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note what is known of the monitored value, and a decision that waits for the minimum of epochs or steps."""
        if trainer.state.fn == "fit":
            value, verdict = self._value.state(trainer, self.monitor), self._held_back
            held_back = None if verdict is None else [verdict.reason.value, verdict.message]
            keep_decisions(checkpoint, self.state_key, {"value": value, "held_back": held_back})

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with it."""
        if trainer.state.fn == "fit":
            kept = kept_decisions(checkpoint, self.state_key)
            self._value.load(kept.get("value"))
            held_back = kept.get("held_back")
            self._held_back = held_back and _Verdict(EarlyStoppingReason(held_back[0]), held_back[1])

    def state_dict(self) -> dict[str, Any]:
        """The counts and the best value; why the training was stopped, if it was."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "patience": self.patience,
            "stopping_reason": self.stopping_reason.value,
            "stopping_reason_message": self.stopping_reason_message,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with these counts. ``patience`` is taken over, too, unless another than the default was asked for."""
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = torch.as_tensor(state_dict["best_score"])
        self.stopping_reason = EarlyStoppingReason(state_dict.get("stopping_reason", 0))
        self.stopping_reason_message = state_dict.get("stopping_reason_message")
        self._loaded = True
        saved = state_dict["patience"]
        if self.patience in (saved, _PATIENCE):
            self.patience = saved
        else:
            warnings.warn(
                f"EarlyStopping({self.monitor!r}) goes on with patience={self.patience}; the run before had {saved}",
                UserWarning,
                stacklevel=2,
            )


def _check(
    monitor: Any, min_delta: Any, patience: Any, mode: Any, stopping: float | None, divergence: float | None
) -> None:
    """Refuse what cannot work.

    Raises:
        MisconfigurationException: says what, and what is possible.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"mode must be 'min' or 'max', got {mode!r}")
    if not isinstance(monitor, str) or not monitor:
        raise MisconfigurationException(f"monitor must be a logged name, got {monitor!r}")
    if not isinstance(patience, int) or isinstance(patience, bool) or patience < 0:
        raise MisconfigurationException(f"patience must be a number of checks, 0 or more, got {patience!r}")
    numbers = {"min_delta": min_delta, "stopping_threshold": stopping, "divergence_threshold": divergence}
    for name, number in numbers.items():
        wrong = isinstance(number, bool) or not isinstance(number, (int, float)) or math.isnan(number)
        if wrong and not (number is None and name != "min_delta"):
            raise MisconfigurationException(f"{name} must be a number, got {number!r}")
    if min_delta < 0:
        raise MisconfigurationException(
            f"min_delta is by how much a value must be better to count, in either mode: 0 or more, got {min_delta}"
        )
    if stopping is not None and divergence is not None:
        swapped = stopping > divergence if mode == "min" else stopping < divergence
        if swapped:
            raise MisconfigurationException(
                f"with mode={mode!r} every value is past stopping_threshold={stopping} or "
                f"divergence_threshold={divergence}, so training would stop at the first check; swap them?"
            )
