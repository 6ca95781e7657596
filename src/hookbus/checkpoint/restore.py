"""From a checkpoint back to a running trainer."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from hookbus.checkpoint.dump import FORMAT_VERSION, stateful_plugins
from hookbus.dialects.base import overridden
from hookbus.errors import MisconfigurationException


def load_file(trainer: Any, path: str | os.PathLike[str], weights_only: bool | None = None) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        trainer: to whose device the tensors go.
        path: the file.
        weights_only: unpickle tensors and plain data only, as is safe for any file; None means True.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no checkpoint, or one of a newer version.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"no checkpoint at {path!r}: give the path of a file that Trainer.save_checkpoint wrote"
        )
    safe = True if weights_only is None else weights_only
    checkpoint = torch.load(path, map_location=trainer.strategy.root_device, weights_only=safe)
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        what = (
            f"the keys {sorted(map(str, checkpoint))[:8]}"
            if isinstance(checkpoint, dict)
            else type(checkpoint).__name__
        )
        raise ValueError(f"{path!r} is no checkpoint: expected a dictionary with 'state_dict', got {what}")
    version = checkpoint.get("hookbus", {}).get("format_version", 0)
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path!r} has format version {version}, this hookbus reads up to {FORMAT_VERSION}; update hookbus to load it"
        )
    return checkpoint


def before_setup(trainer: Any, checkpoint: dict[str, Any], *, fitting: bool) -> None:
    """Restore data module, module and plugins: before the optimisers exist, as Lightning does."""
    module, datamodule = trainer.lightning_module, trainer.datamodule
    if datamodule is not None and type(datamodule).__qualname__ in checkpoint:
        datamodule.load_state_dict(checkpoint[type(datamodule).__qualname__])
    trainer.bus.fire.on_load_checkpoint(trainer, module, checkpoint)
    module.load_state_dict(checkpoint["state_dict"], strict=module.strict_loading)
    _restore_plugins(trainer, checkpoint, fitting=fitting)


def _restore_plugins(trainer: Any, checkpoint: dict[str, Any], *, fitting: bool) -> None:
    states = dict(checkpoint.get("callbacks") or {})
    for plugin in stateful_plugins(trainer.bus):
        key = plugin.state_key
        if key in states and overridden(plugin, "load_state_dict") is not None:
            plugin.load_state_dict(states.pop(key))
        else:
            states.pop(key, None)
    if states and fitting:
        warnings.warn(
            "the checkpoint holds states of plugins that are not present: "
            + ", ".join(map(repr, states))
            + "; they are kept for the next checkpoint",
            stacklevel=2,
        )
    trainer._unclaimed_states = states


def training_state(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Restore progress, optimisers, schedulers, precision and filter counters, once the optimisers exist.

    Raises:
        MisconfigurationException: the checkpoint was saved with ``weights_only``, or has other optimisers.
    """
    if "optimizer_states" not in checkpoint:
        raise MisconfigurationException(
            "this checkpoint holds weights only, so training cannot resume from it; load it with "
            "Module.load_from_checkpoint and start anew, or save with weights_only=False"
        )
    own = checkpoint.get("hookbus", {})
    if "progress" in own:
        trainer.progress.load_state_dict(own["progress"])
    else:
        _progress_from_lightning(trainer, checkpoint)
    states = checkpoint["optimizer_states"]
    if len(states) != len(trainer.optimizers):
        raise MisconfigurationException(
            f"the checkpoint has {len(states)} optimizer(s), configure_optimizers returned {len(trainer.optimizers)}"
        )
    for optimizer, state in zip(trainer.optimizers, states, strict=True):
        optimizer.load_state_dict(state)
    for config, state in zip(trainer.lr_scheduler_configs, checkpoint.get("lr_schedulers", ()), strict=False):
        config.scheduler.load_state_dict(state)
    precision = checkpoint.get(type(trainer._precision).__qualname__)
    if precision:
        trainer._precision.load_state_dict(precision)
    trainer.bus.load_filter_state(own.get("filters", {}))


def _progress_from_lightning(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Counters from a checkpoint that Lightning wrote: its loops hold them in several places."""
    progress = trainer.progress
    progress.global_step = checkpoint.get("global_step", 0)
    fit = (checkpoint.get("loops") or {}).get("fit_loop") or {}
    epochs = (fit.get("epoch_progress") or {}).get("current") or {}
    progress.epochs_trained = epochs.get("processed", checkpoint.get("epoch", -1) + 1)
    progress.epoch = epochs.get("completed", progress.epochs_trained)
    progress.logging_step = (fit.get("epoch_loop.state_dict") or {}).get("_batches_that_stepped", progress.global_step)
