"""Logging: numbers, hyperparameters and pictures on their way to every logger.

Each logger is one implementation; the trainer does not know how many there are. The values are final: reduced over
batches and across processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.hookspecs.types import Trainer
from hookbus.markers import hookspec


@hookspec(native_only=True)
def log_metrics(trainer: Trainer, metrics: Mapping[str, float], step: int | None) -> None:
    """Write metrics.

    Called every ``log_every_n_steps`` training steps after ``on_train_batch_end``, and at the end of training and
    evaluation epochs.

    Args:
        trainer: the trainer that runs.
        metrics: numbers by name, already reduced across processes.
        step: position on the horizontal axis: the optimizer step that the numbers belong to, from 0.
    """


@hookspec(native_only=True)
def log_hyperparams(trainer: Trainer, params: Any) -> None:
    """Write the hyperparameters of the run.

    Called once per entry point, before its first loop, with those of the module and the data module together.

    Args:
        trainer: the trainer that runs.
        params: mapping of names to values, possibly nested; a logger shows what it can and turns the rest to text.
    """


@hookspec(native_only=True)
def log_image(trainer: Trainer, key: str, image: Any, step: int | None) -> None:
    """Show an image: a Grad-CAM map, a sample, a reconstruction.

    Called by whoever has one to show; loggers that can, show it, the others do not implement the hook.

    Args:
        trainer: the trainer that runs.
        key: the name under which it appears.
        image: tensor or array of shape (H, W), (H, W, C) or (C, H, W), with C 1, 3 or 4; floats from 0 to 1 or bytes
            from 0 to 255.
        step: the optimizer step it belongs to, from 0.
    """


@hookspec(native_only=True)
def log_figure(trainer: Trainer, key: str, image: Any, step: int | None) -> None:
    """Show a drawn figure: a curve, a confusion matrix.

    Called by whoever has one to show; loggers that can, show it, the others do not implement the hook.

    Args:
        trainer: the trainer that runs.
        key: the name under which it appears.
        image: the figure, usually a ``matplotlib.figure.Figure``; it stays its maker's to close.
        step: the optimizer step it belongs to, from 0.
    """


@hookspec(native_only=True)
def finalize(trainer: Trainer, status: str) -> None:
    """Write what is still in memory and close.

    Called once at the end of an entry point, after ``teardown`` or ``on_exception``.

    Args:
        trainer: the trainer that runs.
        status: ``"success"`` or ``"failed"``.
    """
