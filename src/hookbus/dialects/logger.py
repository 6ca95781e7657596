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

    def log_metrics(metrics: Mapping[str, Any], step: int | None) -> None:
        logger.log_metrics(metrics=metrics, step=step)
        logger.save()

    def log_hyperparams(params: Mapping[str, Any]) -> None:
        logger.log_hyperparams(params)

    def finalize(status: str) -> None:
        logger.finalize(status)

    found = [
        Implementation("log_metrics", log_metrics, ("metrics", "step")),
        Implementation("log_hyperparams", log_hyperparams, ("params",)),
        Implementation("finalize", finalize, ("status",)),
    ]
    if callable(getattr(logger, "log_image", None)):

        def log_image(key: str, image: Any, step: int | None) -> None:
            if _takes_one_image(logger.log_image):
                logger.log_image(key=key, image=image, step=step)
            else:
                logger.log_image(key=key, images=[image], step=step)

        found.append(Implementation("log_image", log_image, ("key", "image", "step")))
    if callable(getattr(logger, "log_figure", None)):

        def log_figure(key: str, image: Any, step: int | None) -> None:
            logger.log_figure(key, image, step)

        found.append(Implementation("log_figure", log_figure, ("key", "image", "step")))
    return found


def _takes_one_image(method: Any) -> bool:
    parameters = inspect.signature(method).parameters
    return "image" in parameters and "images" not in parameters
