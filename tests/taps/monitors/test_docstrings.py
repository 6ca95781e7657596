"""The examples in the docstrings of the monitors run, and every monitor has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from hookbus.taps import monitors

MODULES = [info.name for info in pkgutil.iter_modules(monitors.__path__, "hookbus.taps.monitors.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", ["ActivationStats", "DeadNeurons", "GradientStats", "LayerTimer", "NaNGuard"])
def test_monitors_show_how_they_are_used(name):
    assert ">>> " in getattr(monitors, name).__doc__
