"""When callbacks that log by themselves do so: as often as the trainer does, by ``log_every_n_steps``."""

from __future__ import annotations

from typing import Any


class LogMoments:
    """Tells whether something is to be logged now.

    In training every n-th step counts; asked at the start and at the end of a batch the answer is the same, and it is
    the same for all batches of an accumulation window. In an evaluation every n-th batch counts, over all its loaders.

    Attributes:
        evaluated: batches begun in the current evaluation.
    """

    def __init__(self) -> None:
        self.evaluated = 0

    def begin_evaluation(self) -> None:
        """A validation, test or prediction begins."""
        self.evaluated = 0

    def begin_batch(self) -> None:
        """One of its batches begins."""
        self.evaluated += 1

    def due(self, trainer: Any) -> bool:
        """Whether to log now."""
        every = trainer.log_every_n_steps
        if every == 0:
            return False
        count = trainer.progress.logging_step + 1 if trainer.training else self.evaluated
        return bool(count % every == 0 or trainer.should_stop)


def has_outlet(trainer: Any) -> bool:
    """Whether anybody takes what is logged: a logger, or a plugin that implements ``log_metrics``."""
    return bool(trainer.loggers) or bool(trainer.bus.implemented("log_metrics"))


def log(trainer: Any, metrics: dict[str, float], step: int | None = None) -> None:
    """Send ``metrics`` to all loggers and other implementations of ``log_metrics``.

    Args:
        trainer: whose bus.
        metrics: numbers by name.
        step: the step they belong to; None for that of the current training batch.
    """
    trainer.bus.fire.log_metrics(trainer, metrics, trainer.progress.logging_step if step is None else step)
