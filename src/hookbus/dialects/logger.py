"""The dialect of loggers: an object with Lightning's ``Logger`` interface answers the logging hooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hookbus.dialects.implementation import Implementation


def implementations(logger: Any) -> list[Implementation]:
    """Records for ``log_metrics`` (followed by ``save``), ``log_hyperparams``, ``finalize``, and pictures if it can.

    Loggers of Lightning's take a list of pictures, ``log_image(key, images, step)``; those of hookbus a single one.

    Args:
        logger: whose methods are looked up at each call, so that methods assigned later count.
    """

    calls = _Calls(logger)
    found = [
        Implementation("log_metrics", calls.log_metrics, ("metrics", "step")),
        Implementation("log_hyperparams", calls.log_hyperparams, ("params",)),
        Implementation("finalize", calls.finalize, ("status",)),
    ]
    if callable(getattr(logger, "log_image", None)):
        found.append(Implementation("log_image", calls.log_image, ("key", "image", "step")))
    if callable(getattr(logger, "log_figure", None)):
        found.append(Implementation("log_figure", calls.log_figure, ("key", "image", "step")))
    return found


class _Calls:
    """The calls of one logger. A class, and no functions within a function, so that a trainer can be pickled."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        self.logger.log_metrics(metrics=metrics, step=step)
        self.logger.save()

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.logger.log_hyperparams(params)

    def finalize(self, status: str) -> None:
        self.logger.finalize(status)

    def log_image(self, key: str, image: Any, step: int | None) -> None:
        if _takes_one_image(self.logger.log_image):
            self.logger.log_image(key=key, image=image, step=step)
        else:
            self.logger.log_image(key=key, images=[image], step=step)

    def log_figure(self, key: str, image: Any, step: int | None) -> None:
        self.logger.log_figure(key, image, step)


def _takes_one_image(method: Any) -> bool:
    parameters = inspect.signature(method).parameters
    return "image" in parameters and "images" not in parameters
