"""Lightning's counters: written, so that a checkpoint resumes there, and read, so that one of Lightning's resumes here.

Lightning keeps its counters in the states of nested loops, each as four numbers (``ready``, ``started``, ``processed``,
``completed``) in total and for the current epoch.
"""

from __future__ import annotations

import math
from typing import Any


def loops(progress: Any, *, accumulate: int, automatic: bool, val_batches: int) -> dict[str, Any]:
    """What stands under ``loops`` in a checkpoint of Lightning 2.6.

    Args:
        progress: the trainer's counters.
        accumulate: batches per optimiser step.
        automatic: whether the loop drives the optimiser.
        val_batches: batches of a validation.
    """
    ended = progress.epochs_trained + progress.epoch_started
    done = progress.batch_trained
    before = progress.total_batches - progress.batch
    epochs = _four(ended, ended, progress.epochs_trained, progress.epoch)
    steps = progress.global_step
    now = min(steps, math.ceil(progress.batch / accumulate))
    automatic_steps, manual_steps = (steps, 0) if automatic else (0, steps)
    validated = val_batches if progress.validated else 0
    fit = {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": progress.logging_step},
        "epoch_loop.batch_progress": {
            "total": _four(progress.total_batches, progress.total_batches, before + done, before + done),
            "current": _four(progress.batch, progress.batch, done, done),
            "is_last_batch": progress.is_last_batch,
        },
        "epoch_loop.scheduler_progress": {"total": _two(0), "current": _two(0)},
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {
                "step": {"total": _two(automatic_steps), "current": _two(now if automatic else 0)},
                "zero_grad": {
                    "total": {**_two(automatic_steps), "started": automatic_steps},
                    "current": {**_two(now if automatic else 0), "started": now if automatic else 0},
                },
            }
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": {
            "total": _two(manual_steps),
            "current": _two(manual_steps),
        },
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {
            "total": _four(validated, validated, validated, validated),
            "current": _four(validated, validated, validated, validated),
            "is_last_batch": bool(validated),
        },
        "epoch_progress": {"total": dict(epochs), "current": dict(epochs)},
    }
    nothing = _four(0, 0, 0, 0)
    other = {"state_dict": {}, "batch_progress": {"total": nothing, "current": dict(nothing), "is_last_batch": False}}
    predict = {"state_dict": {}, "batch_progress": {"total": dict(nothing), "current": dict(nothing)}}
    return {"fit_loop": fit, "validate_loop": other, "test_loop": _copied(other), "predict_loop": predict}


def progress_of(checkpoint: dict[str, Any], *, accumulate: int) -> dict[str, Any]:
    """Our counters from a checkpoint that Lightning wrote.

    Args:
        checkpoint: the dictionary; also one of Lightning 1.x, or one saved with ``weights_only``, that lacks the loops.
        accumulate: batches per optimiser step.
    """
    fit = (checkpoint.get("loops") or {}).get("fit_loop") or {}
    epochs = (fit.get("epoch_progress") or {}).get("current") or {}
    trained = epochs.get("processed", checkpoint.get("epoch", -1) + 1)
    steps = checkpoint.get("global_step", 0)
    state = {
        "global_step": steps,
        "epochs_trained": trained,
        "epoch": epochs.get("completed", trained),
        "logging_step": (fit.get("epoch_loop.state_dict") or {}).get("_batches_that_stepped", steps),
    }
    batches = fit.get("epoch_loop.batch_progress") or {}
    current = batches.get("current") or {}
    if not current:
        return state
    begun, done = current.get("ready", 0), current.get("processed", 0)
    ended = current.get("completed", done)  # lags behind in a file that was saved in on_train_batch_end
    last = bool(batches.get("is_last_batch"))
    inside = epochs.get("ready", trained) > trained
    return {
        **state,
        "epoch_started": inside and done > 0,
        "batch": begun,
        "batch_trained": done,
        "batch_logged": ended,
        # What Lightning does after the batch is behind it only at the end of the epoch.
        "batch_done": done - 1 if inside and done else done,
        "batch_stepped": done if last else done - done % accumulate,
        "total_batches": (batches.get("total") or {}).get("ready", begun),
        "validated": ended == done,
        "is_last_batch": last,
    }


def _four(ready: int, started: int, processed: int, completed: int) -> dict[str, int]:
    return {"ready": ready, "completed": completed, "started": started, "processed": processed}


def _two(count: int) -> dict[str, int]:
    return {"ready": count, "completed": count}


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value
