"""``Timer``: how long training, validation and test took, and a limit for the training."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus.callback import NumberedCallback
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_STAGES = ("train", "sanity_check", "validate", "test", "predict")


class Interval(str, Enum):
    """Where a training may be ended: after a batch, or at the end of an epoch."""

    step = "step"
    epoch = "epoch"


class Timer(NumberedCallback):
    """Measures the stages, and ends the training when its time is up; ``Trainer(max_time=…)`` adds one.

    The time of training runs from ``on_train_start`` to ``on_train_end``, validations within it included. It is part of
    checkpoints: a resumed run goes on with what was used up before.

    Args:
        duration: the limit: ``"DD:HH:MM:SS"``, a ``datetime.timedelta``, or a dictionary of its arguments; None for
            none.
        interval: end after the batch (``"step"``) or the epoch (``"epoch"``) in which the time is up. ``min_epochs`` and
            ``min_steps`` of the Trainer hold.
        verbose: print a line when the time is up.
        per_run: the limit is one for each call of ``fit``, and what earlier ones used up does not count: for jobs that
            a scheduler ends after a fixed time.

    Raises:
        MisconfigurationException: an argument is none of these, or the limit is negative.

    Example:
        >>> from hookbus.callbacks import Timer
        >>> timer = Timer(duration="00:12:00:00", interval="epoch")
        >>> timer.time_elapsed("train"), timer.time_remaining()
        (0, 43200.0)
    """

    role: ClassVar[str] = "mutator"

    def __init__(
        self,
        duration: str | timedelta | dict[str, int] | None = None,
        interval: str = Interval.step,
        verbose: bool = True,
        *,
        per_run: bool = False,
    ) -> None:
        super().__init__()
        if interval not in list(Interval):
            raise MisconfigurationException(f"interval must be 'step' or 'epoch', got {interval!r}")
        limit = parse_duration(duration)
        self._duration = None if limit is None else limit.total_seconds()
        self._interval = Interval(interval)
        self._verbose = verbose
        self._per_run = per_run
        self._start_time: dict[str, float | None] = dict.fromkeys(_STAGES)
        self._end_time: dict[str, float | None] = dict.fromkeys(_STAGES)
        self._offset: float = 0

    # -- looking at the time -------------------------------------------------------------------------------------------

    def start_time(self, stage: str = "train") -> float | None:
        """When the stage last began, in seconds of ``time.monotonic``; None if it did not.

        Raises:
            ValueError: there is no such stage; there are train, sanity_check, validate, test and predict.
        """
        return self._start_time[_stage(stage)]

    def end_time(self, stage: str = "train") -> float | None:
        """When the stage last ended, in seconds of ``time.monotonic``; None if it did not, or runs."""
        return self._end_time[_stage(stage)]

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds that the stage took, or has taken so far; of training in all, of others in their last run."""
        start, end = self.start_time(stage), self.end_time(stage)
        before = self._offset if _stage(stage) == "train" else 0
        if start is None:
            return before
        return (time.monotonic() if end is None else end) - start + before

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds until the limit, negative beyond it; None if there is no limit."""
        return None if self._duration is None else self._duration - self.time_elapsed(stage)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Add up what earlier calls of ``fit`` took, unless training begins anew."""
        if stage == "fit":
            self._offset = 0 if self._per_run or trainer.global_step == 0 else self.time_elapsed()
            self._start_time["train"] = self._end_time["train"] = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A resumed run may have used its time up already."""
        self._check(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The training's time begins."""
        self._begin("train")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The training's time ends."""
        self._end("train")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A validation's time begins."""
        self._begin("validate")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A validation's time ends."""
        self._end("validate")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The test's time begins."""
        self._begin("test")

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The test's time ends."""
        self._end("test")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """What runs has ended."""
        for stage in _STAGES:
            if self._start_time[stage] is not None and self._end_time[stage] is None:
                self._end(stage)

    def _begin(self, stage: str) -> None:
        self._start_time[stage], self._end_time[stage] = time.monotonic(), None

    def _end(self, stage: str) -> None:
        self._end_time[stage] = time.monotonic()

    # -- the limit -----------------------------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the training if its time is up."""
        if self._duration is not None and self._interval is Interval.step:
            self._check(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the training if its time is up."""
        if self._interval is Interval.epoch:
            self._check(trainer)

    def _check(self, trainer: pl.Trainer) -> None:
        if self._duration is None:
            return
        elapsed = self.time_elapsed()
        # All processes stop together, by the clock of the first.
        over = trainer.strategy.broadcast(elapsed >= self._duration)
        if over and not trainer.should_stop:
            limit = timedelta(seconds=self._duration)
            message = f"time limit of {limit} reached after {timedelta(seconds=int(elapsed))}: training stops"
            trainer.control.stop(message, for_good=False)  # the time is counted on in a resumed run
            if self._verbose:
                trainer.print(message)

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The time of each stage."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in _STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the time that training took before, unless the limit is one for each run."""
        if not self._per_run:
            self._offset = state_dict.get("time_elapsed", {}).get("train", 0)


def parse_duration(duration: Any) -> timedelta | None:
    """The limit that the argument means.

    Raises:
        MisconfigurationException: it means none, or a negative one.
    """
    if duration is None:
        return None
    if isinstance(duration, str):
        match = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", duration.strip())
        if match is not None:
            days, hours, minutes, seconds = map(int, match.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    elif isinstance(duration, dict):
        try:
            duration = timedelta(**duration)
        except TypeError as error:
            raise MisconfigurationException(
                f"duration={duration!r} must hold arguments of datetime.timedelta, such as hours and minutes: {error}"
            ) from None
    if not isinstance(duration, timedelta):
        raise MisconfigurationException(
            "duration must be 'DD:HH:MM:SS', a datetime.timedelta, a dictionary of its arguments, or None; got "
            f"{duration!r}"
        )
    if duration < timedelta(0):
        raise MisconfigurationException(f"duration must not be negative, got {duration}")
    return duration


def _stage(stage: str) -> str:
    word = str(getattr(stage, "value", stage))
    if word not in _STAGES:
        raise ValueError(f"there is no stage {word!r}; there are {', '.join(_STAGES)}")
    return word
