"""Built-in callbacks, one file each; loaded at their first use, as some of them need torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: Where each public name lives.
_HOMES = {
    "Callback": "hookbus.callback",
    "Checkpoint": "hookbus.callbacks.checkpoint",
    "EarlyStopping": "hookbus.callbacks.early_stopping",
    "ModelCheckpoint": "hookbus.callbacks.model_checkpoint",
    "PlainProgress": "hookbus.callbacks.progress",
    "ProgressBar": "hookbus.callbacks.progress",
    "RichProgressBar": "hookbus.callbacks.progress",
    "TimedProgressBar": "hookbus.callbacks.progress",
}
_SUBMODULES = ("checkpoint", "early_stopping", "model_checkpoint", "progress")

if TYPE_CHECKING:
    from hookbus.callback import Callback
    from hookbus.callbacks.checkpoint import Checkpoint
    from hookbus.callbacks.early_stopping import EarlyStopping
    from hookbus.callbacks.model_checkpoint import ModelCheckpoint
    from hookbus.callbacks.progress import PlainProgress, ProgressBar, RichProgressBar, TimedProgressBar

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "ModelCheckpoint",
    "PlainProgress",
    "ProgressBar",
    "RichProgressBar",
    "TimedProgressBar",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return import_module(f"hookbus.callbacks.{name}")
    raise AttributeError(f"module 'hookbus.callbacks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_SUBMODULES})
