"""From logged values to the loggers: when they are told, under which step, and what an evaluation returns.

The names of three methods are Lightning's: loggers in the wild look for them on the call stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookbus.loggers.scalars import to_numbers

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


def print_results(title: str, results: list[dict[str, float]]) -> None:
    """Print what an evaluation gave, one block per loader that has something."""
    for index, metrics in enumerate(results):
        if not metrics:
            continue
        print(f"{title}:" if len(results) == 1 else f"{title}, dataloader {index}:")
        width = max(map(len, metrics))
        for name, value in metrics.items():
            print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, float) else f"  {name:<{width}}  {value}")


class Outlets:
    """Sends the metrics of a trainer to everybody who implements ``log_metrics``.

    Args:
        trainer: whose metric store, bus and progress are used.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def update_train_step_metrics(self) -> None:
        """After a training batch that is due: the values of the step."""
        trainer = self._trainer
        if not trainer.bus.implemented("log_metrics"):
            return
        if not (trainer.fit_loop._should_accumulate() and trainer.lightning_module.automatic_optimization):
            self._send(trainer._metrics.step_metrics(), None)

    def update_train_epoch_metrics(self) -> None:
        """After ``on_train_epoch_end``: the values of the epoch, under the step of its last batch."""
        progress = self._trainer.progress
        progress.logging_step -= 1
        self._send(self._trainer._metrics.epoch_metrics(), None)
        progress.logging_step += 1

    def update_eval_step_metrics(self, seen: int) -> None:
        """After a batch of an evaluation: the values of the step, under the number of batches seen of this loader."""
        trainer = self._trainer
        if trainer.bus.implemented("log_metrics"):
            self._send(trainer._metrics.step_metrics(), seen)

    def log_eval_end_metrics(self, loaders: int) -> list[dict[str, float]]:
        """After an evaluation's epoch: tell the loggers.

        Args:
            loaders: how many loaders there were.

        Returns:
            For each loader what was logged for it, and what was logged for none in particular, as numbers.
        """
        metrics = self._trainer._metrics
        if self._trainer.sanity_checking:
            return []
        self._send(metrics.epoch_metrics(), None)
        if loaders == 1:
            return [to_numbers(metrics.epoch_metrics())]
        return [to_numbers(metrics.epoch_metrics(index)) for index in range(loaders)]

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Send ``metrics`` of the caller's own making."""
        self._send(metrics, step)

    def save(self) -> None:
        """Let the loggers write what they hold."""
        for logger in self._trainer.loggers:
            logger.save()

    def _send(self, metrics: dict[str, Any], step: int | None) -> None:
        trainer = self._trainer
        if not metrics or not trainer.bus.implemented("log_metrics"):
            return
        values: dict[str, Any] = dict(metrics)
        if step is None and "step" in values:  # a module may name the step itself
            step = int(values.pop("step"))
        elif step is None:
            values.setdefault("epoch", trainer.current_epoch)
            step = trainer.progress.logging_step
        trainer.bus.fire.log_metrics(trainer, to_numbers(values), step)
