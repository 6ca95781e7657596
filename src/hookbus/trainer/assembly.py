"""From the trainer's arguments to its parts: loggers, device, and the refusal of what is not there yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from hookbus.engine.device import select_device
from hookbus.errors import MisconfigurationException
from hookbus.hookspecs import nearest
from hookbus.loggers import CSVLogger, DummyLogger
from hookbus.trainer.settings import Settings


def make_loggers(logger: Any, settings: Settings) -> list[Any]:
    """The loggers that the argument means.

    Args:
        logger: a logger, several, False for none; None and True for a CSVLogger.
        settings: in a trial run, loggers write nothing.

    Raises:
        MisconfigurationException: something in it is no logger.
    """
    _check_loggers(logger)
    if logger is False or (settings.barebones and logger is None):
        return []
    if settings.fast_dev_run:
        return [DummyLogger()]
    if logger is None or logger is True:
        return [CSVLogger(settings.default_root_dir)]
    return list(logger) if isinstance(logger, Iterable) else [logger]


def _check_loggers(logger: Any) -> None:
    several = isinstance(logger, Iterable) and not isinstance(logger, (str, bytes, type))
    for given in logger if several else [logger]:
        if isinstance(given, type) or not (
            given is None or isinstance(given, bool) or callable(getattr(given, "log_metrics", None))
        ):
            hint = "; pass an instance, not the class" if isinstance(given, type) else ""
            raise MisconfigurationException(
                "logger must be a logger such as hookbus.loggers.CSVLogger(save_dir), a list of them, True (a CSVLogger) or "
                f"False (none); got {type(given).__name__}: {given!r}{hint}"
            )


def one_device(accelerator: str, devices: Any) -> torch.device:
    """The device to train on.

    Raises:
        MisconfigurationException: the arguments mean several, or one that is not here.
    """
    found = select_device(accelerator, devices)
    if len(found) > 1:
        raise MisconfigurationException(
            f"devices={devices!r} means {len(found)} devices; this version of hookbus trains on one: use devices=1"
        )
    return found[0]


def refuse_unknown(config: dict[str, Any], arguments: Iterable[str]) -> None:
    """A plugin's ``modify_config`` may change the arguments of the trainer, not invent some.

    Raises:
        MisconfigurationException: it did.
    """
    known = tuple(arguments)
    unknown = [name for name in config if name not in known]
    if unknown:
        hints = "".join(f"; did you mean {guess!r}?" for guess in [nearest(unknown[0], known)] if guess)
        raise MisconfigurationException(
            f"modify_config set {', '.join(map(repr, unknown))}, which is no argument of the Trainer{hints}"
        )


def refuse_unsupported(strategy: Any, num_nodes: int, sync_batchnorm: bool) -> None:
    """Arguments that have a meaning in Lightning but none here yet are refused, never ignored.

    Raises:
        MisconfigurationException: one of them was given.
    """
    if strategy not in ("auto", "single_device"):
        raise MisconfigurationException(f"strategy={strategy!r} is not supported yet: use 'auto' (one device)")
    if num_nodes != 1:
        raise MisconfigurationException(f"num_nodes={num_nodes} is not supported yet: training runs on one device")
    if sync_batchnorm:
        raise MisconfigurationException(
            "sync_batchnorm has no meaning on one device; convert the module by hand if needed"
        )


def configure_torch(deterministic: bool | str | None, benchmark: bool | None) -> None:
    """Set torch's process-wide switches that two of the arguments are about; None leaves them alone."""
    if deterministic is not None:
        torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if benchmark is not None:
        torch.backends.cudnn.benchmark = benchmark
    elif deterministic:
        torch.backends.cudnn.benchmark = False
