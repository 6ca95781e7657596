"""The trainer's arguments, checked: each wrong value and impossible combination is refused with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from hookbus.checkpoint.cursor import POLICIES, Policy
from hookbus.errors import MisconfigurationException

#: Lightning's defaults for arguments whose default is None.
DEFAULT_MAX_EPOCHS = 1000
DEFAULT_SANITY_STEPS = 2
DEFAULT_LOG_EVERY = 50


@dataclass
class Settings:
    """What ``Trainer(...)`` was told, with defaults filled in; the loop reads nothing else.

    Attributes:
        max_epochs: upper bound of epochs; -1 for none.
        min_epochs: epochs before which no early stop is honoured; 1 if only ``min_steps`` is given.
        max_steps: upper bound of optimiser steps; -1 for none.
        min_steps: steps before which no early stop is honoured.
        max_time: wall-time limit of a fit.
        limit_train_batches: number (int) or share (float) of training batches of an epoch; likewise the three below.
        val_check_interval: training batches (int), share of an epoch (float) or wall time between validations.
        check_val_every_n_epoch: epochs between validations; None counts ``val_check_interval`` across epochs.
        num_sanity_val_steps: validation batches before training; -1 for all.
        log_every_n_steps: steps between two calls of the loggers.
        accumulate_grad_batches: batches per optimiser step.
        reload_every: ``reload_dataloaders_every_n_epochs``.
        fast_dev_run: number of batches of a trial run, 0 for a real one.
        resume_data: how a run that resumes inside an epoch gets to its place in the training data.
        epochs_unsaid: whether ``max_epochs`` is the default because nobody said how long to train.
    """

    max_epochs: int
    min_epochs: int | None
    max_steps: int
    min_steps: int | None
    max_time: timedelta | None
    limit_train_batches: int | float
    limit_val_batches: int | float
    limit_test_batches: int | float
    limit_predict_batches: int | float
    overfit_batches: int | float
    val_check_interval: int | float | timedelta
    check_val_every_n_epoch: int | None
    num_sanity_val_steps: int | float
    log_every_n_steps: int
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str | None
    inference_mode: bool
    detect_anomaly: bool
    deterministic: bool | str | None
    benchmark: bool | None
    reload_every: int
    use_distributed_sampler: bool
    fast_dev_run: int
    barebones: bool
    default_root_dir: str
    resume_data: Policy = "skip"
    epochs_unsaid: bool = False


#: The arguments of the trainer from which :class:`Settings` is made, by their names there.
SETTINGS = (
    *("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "overfit_batches", "accumulate_grad_batches"),
    *("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches", "fast_dev_run"),
    *("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps"),
    *("gradient_clip_val", "gradient_clip_algorithm", "inference_mode", "detect_anomaly", "deterministic", "benchmark"),
    *("reload_dataloaders_every_n_epochs", "use_distributed_sampler", "barebones", "default_root_dir", "resume_data"),
)


def check(arguments: dict[str, Any]) -> Settings:
    """The settings that the constructor's arguments mean.

    Args:
        arguments: those of the arguments of ``Trainer`` that :class:`Settings` is made from, by their names there.

    Raises:
        MisconfigurationException: for a value out of range or a combination without a meaning.
        TypeError: for a value of the wrong type.
    """
    a = dict(arguments)
    fast = a["fast_dev_run"]
    if not isinstance(fast, (bool, int)) or fast < 0:
        raise MisconfigurationException(f"fast_dev_run must be a bool or a number of batches >= 0, got {fast!r}")
    fast = int(fast)
    max_epochs, max_steps = _limits(a, fast)
    if fast:
        a |= dict.fromkeys(
            ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches"), fast
        )
        a |= {
            "val_check_interval": 1.0,
            "check_val_every_n_epoch": 1,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
        }
    overfit = _share("overfit_batches", a["overfit_batches"], 0.0)
    if overfit:
        a |= {"limit_train_batches": overfit, "limit_val_batches": overfit}
    every = a["check_val_every_n_epoch"]
    if every is not None and (not isinstance(every, int) or every < 1):
        raise MisconfigurationException(
            f"check_val_every_n_epoch must be a number of epochs >= 1, or None to count val_check_interval across epochs, "
            f"got {every!r}"
        )
    interval = 1.0 if a["val_check_interval"] is None else a["val_check_interval"]
    if every is None and isinstance(a["val_check_interval"], float):
        raise MisconfigurationException(
            "with check_val_every_n_epoch=None, val_check_interval must be a number of batches (int) or a time, got "
            f"{interval!r}: a share of an epoch has no meaning across epochs"
        )
    if isinstance(interval, (str, dict, timedelta)):
        interval = _duration("val_check_interval", interval)
    else:
        interval = _share("val_check_interval", interval, 1.0)
        if isinstance(interval, int) and interval < 1:
            raise MisconfigurationException(f"val_check_interval must be >= 1 batch, got {interval}")
    log_every = 0 if a["barebones"] else DEFAULT_LOG_EVERY
    return Settings(
        max_epochs=max_epochs,
        min_epochs=_at_least("min_epochs", a["min_epochs"], 0, None if a["min_steps"] is None else 1),
        max_steps=max_steps,
        min_steps=_at_least("min_steps", a["min_steps"], 0),
        max_time=None if a["max_time"] is None else _duration("max_time", a["max_time"]),
        limit_train_batches=_share("limit_train_batches", a["limit_train_batches"], 1.0),
        limit_val_batches=_share("limit_val_batches", a["limit_val_batches"], 1.0),
        limit_test_batches=_share("limit_test_batches", a["limit_test_batches"], 1.0),
        limit_predict_batches=_share("limit_predict_batches", a["limit_predict_batches"], 1.0),
        overfit_batches=overfit,
        val_check_interval=interval,
        check_val_every_n_epoch=every,
        num_sanity_val_steps=_sanity_steps(a["num_sanity_val_steps"], a["barebones"]),
        log_every_n_steps=_at_least("log_every_n_steps", a["log_every_n_steps"], 0, log_every) or 0,
        accumulate_grad_batches=_accumulate(a["accumulate_grad_batches"]),
        gradient_clip_val=_clip_value(a["gradient_clip_val"]),
        gradient_clip_algorithm=_clip_algorithm(a["gradient_clip_algorithm"]),
        inference_mode=bool(a["inference_mode"]),
        detect_anomaly=bool(a["detect_anomaly"]),
        deterministic=_deterministic(a["deterministic"]),
        benchmark=a["benchmark"],
        reload_every=_reload(a["reload_dataloaders_every_n_epochs"]),
        use_distributed_sampler=bool(a["use_distributed_sampler"]),
        fast_dev_run=fast,
        barebones=bool(a["barebones"]),
        default_root_dir=os.fspath(a["default_root_dir"] or os.getcwd()),
        resume_data=_policy(a.get("resume_data", "skip")),
        epochs_unsaid=a["max_epochs"] is None and max_epochs == DEFAULT_MAX_EPOCHS,
    )


def _policy(value: Any) -> Policy:
    if value not in POLICIES:
        raise MisconfigurationException(f"resume_data must be one of {', '.join(POLICIES)}, got {value!r}")
    return cast(Policy, value)


def _limits(a: dict[str, Any], fast: int) -> tuple[int, int]:
    max_epochs, max_steps = a["max_epochs"], a["max_steps"]
    if max_epochs is not None and (isinstance(max_epochs, bool) or not isinstance(max_epochs, int) or max_epochs < -1):
        raise MisconfigurationException(f"max_epochs must be an int >= 0, or -1 for no limit, got {max_epochs!r}")
    if max_steps is None or isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < -1:
        raise MisconfigurationException(f"max_steps must be an int >= 0, or -1 for no limit, got {max_steps!r}")
    if fast:
        return 1, fast
    if max_epochs is None:
        unlimited = max_steps != -1 or a["max_time"] is not None
        max_epochs = -1 if unlimited else DEFAULT_MAX_EPOCHS
    return max_epochs, max_steps


def _share(name: str, value: int | float | None, default: float) -> int | float:
    """A number of batches (int >= 0) or a share of them (float from 0 to 1)."""
    if value is None:
        return default
    if isinstance(value, float) and value > 1.0 and value.is_integer():
        value = int(value)
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    part = isinstance(value, float) and 0.0 <= value <= 1.0
    if not (whole or part):
        raise MisconfigurationException(
            f"{name} must be a number of batches (int >= 0) or a share of them (float from 0.0 to 1.0), got {value!r}"
        )
    return value


def _at_least(name: str, value: int | None, least: int, default: int | None = None) -> int | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MisconfigurationException(f"{name} must be an int >= {least}, got {value!r}")
    return value


def _sanity_steps(value: int | None, barebones: bool) -> int | float:
    if value is None:
        return 0 if barebones else DEFAULT_SANITY_STEPS
    if isinstance(value, bool) or not isinstance(value, int) or value < -1:
        raise MisconfigurationException(
            f"num_sanity_val_steps must be an int >= 0, or -1 for all batches, got {value!r}"
        )
    return float("inf") if value == -1 else value


def _accumulate(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MisconfigurationException(f"accumulate_grad_batches must be an int >= 1, got {value!r}")
    return value


def _clip_value(value: float | None) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(f"gradient_clip_val must be a number or None, got {value!r}")
    return value


def _clip_algorithm(value: str | None) -> str | None:
    if value is not None and str(value).lower() not in ("norm", "value"):
        raise MisconfigurationException(f"gradient_clip_algorithm must be 'norm' or 'value', got {value!r}")
    return None if value is None else str(value).lower()


def _deterministic(value: bool | str | None) -> bool | str | None:
    if value not in (True, False, None, "warn"):
        raise MisconfigurationException(f"deterministic must be True, False, None or 'warn', got {value!r}")
    return value


def _reload(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MisconfigurationException(f"reload_dataloaders_every_n_epochs must be an int >= 0, got {value!r}")
    return value


def _duration(name: str, value: str | timedelta | dict[str, int]) -> timedelta:
    """A span of time: a timedelta, its keyword arguments, or ``DD:HH:MM:SS``."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, dict):
        return timedelta(**value)
    parts = str(value).strip().split(":")
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        raise MisconfigurationException(
            f"{name} must be a timedelta, a dict of its arguments or 'DD:HH:MM:SS', got {value!r}"
        )
    days, hours, minutes, seconds = map(int, parts)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
