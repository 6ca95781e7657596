from __future__ import annotations

import pytest

from hookbus.dialects.logger import implementations


class Logger:
    """What every logger has."""

    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step): ...

    def log_hyperparams(self, params): ...

    def finalize(self, status): ...

    def save(self): ...


class ManyImages(Logger):
    def log_image(self, key, images, step=None, **kwargs):
        self.calls.append((key, images, step))


class OneImage(Logger):
    def log_image(self, key, image, step=None):
        self.calls.append((key, image, step))

    def log_figure(self, key, image, step=None):
        self.calls.append((key, image, step))


def named(logger):
    return {made.hook: made.function for made in implementations(logger)}


@pytest.mark.parametrize(("kind", "given"), [(ManyImages, ["picture"]), (OneImage, "picture")])
def test_loggers_get_one_image_or_a_list_as_they_take_it(kind, given):
    logger = kind()
    named(logger)["log_image"]("key", "picture", 3)
    assert logger.calls == [("key", given, 3)]


def test_figures_go_to_loggers_that_take_them():
    logger = OneImage()
    named(logger)["log_figure"]("key", "figure", None)
    assert logger.calls == [("key", "figure", None)]
    assert not {"log_image", "log_figure"} & named(Logger()).keys()
