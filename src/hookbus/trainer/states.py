"""Which entry point runs, which stage it is in, and how it ended. Strings, so that they print and compare as words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)

    __hash__ = str.__hash__  # Enum hashes the name; what equals "fit" must be found in a dictionary under "fit"


class TrainerStatus(_Word):
    """How far the last entry point got."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class TrainerFn(_Word):
    """The entry point that was called; its value is the ``stage`` that ``setup`` and ``teardown`` get."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(_Word):
    """The loop that is running."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """Whether this is validation or test."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str | None:
        """The word in ``{prefix}_dataloader``; None outside of the four loops."""
        return {"sanity_check": "val", "validate": "val"}.get(self.value, self.value)


@dataclass
class TrainerState:
    """Status, entry point and stage of a trainer.

    Attributes:
        status: how far the last entry point got.
        fn: the entry point, None before the first one.
        stage: the loop that is running, None between loops.
    """

    status: TrainerStatus = TrainerStatus.INITIALIZING
    fn: TrainerFn | None = None
    stage: RunningStage | None = None

    @property
    def finished(self) -> bool:
        """Whether the last entry point came to its end."""
        return self.status is TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """Whether no entry point is running."""
        return self.status in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)
