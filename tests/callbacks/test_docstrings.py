"""The examples in the docstrings of the callbacks run, and every callback has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import hookbus.callbacks
import hookbus.engine.throughput
import hookbus.model_summary

MODULES = [
    *(info.name for info in pkgutil.walk_packages(hookbus.callbacks.__path__, "hookbus.callbacks.")),
    "hookbus.engine.throughput",
    "hookbus.model_summary",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    module: ModuleType = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize(
    "name",
    [
        "BasePredictionWriter",
        "DeviceStatsMonitor",
        "GradientAccumulationScheduler",
        "LambdaCallback",
        "LearningRateMonitor",
        "ModelSummary",
        "OnExceptionCheckpoint",
        "RichModelSummary",
        "SpikeDetection",
        "ThroughputMonitor",
        "Timer",
        "TQDMProgressBar",
    ],
)
def test_callbacks_show_how_they_are_used(name: str) -> None:
    assert ">>> " in (getattr(hookbus.callbacks, name).__doc__ or "")
