"""Taps: PyTorch's own module, tensor and parameter hooks, as implementations on the bus.

``select`` finds modules by name, ``trampoline`` and ``site`` are what is put on them, ``plan`` works out who hears of
which, and :class:`Taps` arms them for the steps that are due and takes them off again. :class:`Tap` and :class:`Capture`
are ready-made plugins; ``monitors`` holds those that watch a training. In a trainer: ``trainer.taps``; elsewhere:
``with tapping(model) as taps``. :class:`FeatureTap` makes a function of a part of a network.
"""

from importlib import import_module
from typing import Any

from hookbus.taps.capture import Capture, Record
from hookbus.taps.errors import (
    CaptureFullError,
    EditError,
    SelectionError,
    StaleCaptureError,
    TapError,
    TapWarning,
)
from hookbus.taps.event import Moment, Replace, TapEvent
from hookbus.taps.features import FeatureTap
from hookbus.taps.listing import InstalledHook, installed_hooks
from hookbus.taps.report import TapReport
from hookbus.taps.selection import Selection
from hookbus.taps.tap import Tap
from hookbus.taps.taps import Taps, tapping

__all__ = [
    "Capture",
    "CaptureFullError",
    "EditError",
    "FeatureTap",
    "InstalledHook",
    "Moment",
    "Record",
    "Replace",
    "Selection",
    "SelectionError",
    "StaleCaptureError",
    "Tap",
    "TapError",
    "TapEvent",
    "TapReport",
    "TapWarning",
    "Taps",
    "installed_hooks",
    "tapping",
]


def __getattr__(name: str) -> Any:
    if name == "monitors":  # loaded at its first use
        return import_module("hookbus.taps.monitors")
    raise AttributeError(f"module 'hookbus.taps' has no attribute {name!r}")
