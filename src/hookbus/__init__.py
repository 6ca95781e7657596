"""PyTorch training as an event bus: every lifecycle point is a pluggy hook, and plugins register by being installed.

Importing this package is cheap: each name is loaded at its first use (PEP 562), and torch only with one that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Where each public name lives.
_HOMES = {
    "Bus": "hookbus.bus",
    "Callback": "hookbus.callback",
    "DataModule": "hookbus.datamodule",
    "LightningDataModule": "hookbus.datamodule",
    "LightningModule": "hookbus.module",
    "MisconfigurationException": "hookbus.errors",
    "Module": "hookbus.module",
    "Trainer": "hookbus.trainer",
    "hookimpl": "hookbus.markers",
    "hookspec": "hookbus.markers",
    "install_aliases": "hookbus.aliases",
    "seed_everything": "hookbus.seed",
    "tapping": "hookbus.taps",
    "uninstall_aliases": "hookbus.aliases",
}
_SUBMODULES = ("bus", "callbacks", "checkpoint", "engine", "hookspecs", "loggers", "taps", "trainer")

if TYPE_CHECKING:
    from hookbus.aliases import install_aliases, uninstall_aliases
    from hookbus.bus import Bus
    from hookbus.callback import Callback
    from hookbus.datamodule import DataModule, LightningDataModule
    from hookbus.errors import MisconfigurationException
    from hookbus.markers import hookimpl, hookspec
    from hookbus.module import LightningModule, Module
    from hookbus.seed import seed_everything
    from hookbus.taps import tapping
    from hookbus.trainer import Trainer

__all__ = [
    "Bus",
    "Callback",
    "DataModule",
    "LightningDataModule",
    "LightningModule",
    "MisconfigurationException",
    "Module",
    "Trainer",
    "__version__",
    "hookimpl",
    "hookspec",
    "install_aliases",
    "seed_everything",
    "tapping",
    "uninstall_aliases",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"hookbus.{name}")
    raise AttributeError(f"module 'hookbus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_SUBMODULES})
