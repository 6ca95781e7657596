"""From a checkpoint back to a running trainer, in Lightning's order: module, data module, plugins; later the training.

A run that goes on is the same run: what differs from the one that was saved is found and told (``on_resume``).
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

import torch

from hookbus.checkpoint import lightning
from hookbus.checkpoint.changes import compare
from hookbus.checkpoint.dump import stateful_plugins
from hookbus.checkpoint.errors import CheckpointError
from hookbus.checkpoint.reading import read
from hookbus.dialects import Implementation
from hookbus.dialects.base import overridden
from hookbus.errors import MisconfigurationException

#: What a process needs of the file to go on exactly; see ``hookbus.trainer.place``.
_PLACE: Final = ("rng", "val_batches_seen", "data", "metrics", "metric_objects", "gradients")


class MismatchError(CheckpointError, RuntimeError):
    """The weights in a checkpoint are not those of the module."""


def load_file(path: str | os.PathLike[str], weights_only: bool | None = None) -> dict[str, Any]:
    """Read a checkpoint; tensors come to the host. See :func:`hookbus.checkpoint.reading.read`."""
    return read(path, weights_only=weights_only)


def before_setup(trainer: Any, checkpoint: dict[str, Any], *, fitting: bool) -> None:
    """Restore module, data module and plugins, before the optimisers exist."""
    module, datamodule, bus = trainer.lightning_module, trainer.datamodule, trainer.bus

    def load(checkpoint: dict[str, Any]) -> None:
        trainer._precision.convert_module(module)  # weights in 64 bits must not pass through 32
        load_weights(module, checkpoint, str(trainer.ckpt_path))
        if datamodule is not None and type(datamodule).__qualname__ in checkpoint:
            datamodule.load_state_dict(checkpoint[type(datamodule).__qualname__])

    # The module may mend the dictionary first; callbacks see the weights loaded.
    made = [Implementation("on_load_checkpoint", load, ("checkpoint",))]
    bus.register(load, "weights", owner="datamodule", source="checkpoint", implementations=made)
    try:
        bus.fire.on_load_checkpoint(trainer, module, checkpoint)
    finally:
        bus.unregister(name="weights")
    _restore_plugins(trainer, checkpoint, fitting=fitting)


def load_weights(module: Any, checkpoint: dict[str, Any], path: str, strict: bool | None = None) -> None:
    """Give a module its weights, or leave it as it is.

    Args:
        module: the module.
        checkpoint: the dictionary.
        path: the file, for messages.
        strict: whether all keys must match; None: as the module's ``strict_loading`` says.

    Raises:
        MismatchError: names each weight that is missing, superfluous or of another shape.
        CheckpointError: there are no weights in it.
    """
    if not isinstance(checkpoint.get("state_dict"), dict):
        raise CheckpointError(f"{path!r} is no checkpoint of a module: it lacks the key 'state_dict' with its weights")
    strict = module.strict_loading if strict is None else strict
    saved, own = checkpoint["state_dict"], module.state_dict()
    problems = _mismatches(saved, own)
    before = {key: value.clone() for key, value in own.items() if isinstance(value, torch.Tensor)} if problems else {}
    try:
        module.load_state_dict(saved, strict=strict)
    except RuntimeError as error:
        if not problems:
            raise MismatchError(f"{path!r} cannot be loaded into {type(module).__name__}: {error}") from error
        module.load_state_dict(before, strict=False)  # torch has copied what fits before it objected
        raise MismatchError(
            f"{path!r} does not fit {type(module).__name__}, which is left as it was: {'; '.join(problems)}. Is it of another "
            "model, or of one with other hyper-parameters? Module.strict_loading = False passes over missing and superfluous "
            "keys, and on_load_checkpoint may rename or drop them"
        ) from None
    if problems and not strict:
        warnings.warn(f"{path!r} was loaded although not all weights match: {'; '.join(problems)}", stacklevel=3)


def _mismatches(saved: dict[str, Any], own: dict[str, Any]) -> list[str]:
    shapes = [
        f"{key} is {tuple(saved[key].shape)} in the file and {tuple(own[key].shape)} in the module"
        for key in own
        if key in saved and getattr(saved[key], "shape", None) != getattr(own[key], "shape", None)
    ]
    found = [f"shapes differ: {_some(shapes)}"] if shapes else []
    for keys, what in (
        (own.keys() - saved.keys(), "missing in the file"),
        (saved.keys() - own.keys(), "not in the module"),
    ):
        if keys:
            found.append(f"{what}: {_some(sorted(map(str, keys)))}")
    return found


def _some(texts: list[str], number: int = 6) -> str:
    more = f" and {len(texts) - number} more" if len(texts) > number else ""
    return ", ".join(texts[:number]) + more


def _restore_plugins(trainer: Any, checkpoint: dict[str, Any], *, fitting: bool) -> None:
    states = {str(key): state for key, state in (checkpoint.get("callbacks") or {}).items()}
    known = {entry["name"]: entry for entry in (checkpoint.get("hookbus") or {}).get("plugins") or ()}
    plugins = stateful_plugins(trainer.bus)
    claimed = {key for _, key, _ in plugins}
    for name, key, plugin in plugins:
        entry = known.get(name, {})
        former = entry.get("state_key")
        if key not in states and former in states and former not in claimed and entry.get("class") == _class_of(plugin):
            key = former  # the same plugin, whose key depends on what it was told
        if key not in states:
            continue
        state = states.pop(key)
        if overridden(plugin, "load_state_dict") is not None:
            plugin.load_state_dict(state)
    if states and fitting:
        warnings.warn(
            "the checkpoint holds states of plugins that are not present: "
            + ", ".join(map(repr, states))
            + "; they are kept for the next checkpoint",
            stacklevel=2,
        )
    trainer._unclaimed_states = states


def _class_of(plugin: Any) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def training_state(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Restore progress, optimisers, schedulers, precision and filter counters, once the optimisers exist.

    The rest (random streams, the place in the data, logged values, open gradients) is handed to the fit loop, which takes
    it up when everybody has been called who may draw or log before the training goes on.

    Raises:
        MisconfigurationException: the checkpoint was saved with ``weights_only``, in an epoch after ``max_epochs``, or has
            other optimisers.
    """
    if "optimizer_states" not in checkpoint:
        raise MisconfigurationException(
            f"{trainer.ckpt_path!r} holds weights only, so training cannot resume from it; load it with "
            "Module.load_from_checkpoint and start anew, or save with weights_only=False"
        )
    own = checkpoint.get("hookbus") or {}
    if "progress" in own:
        trainer.progress.load_state_dict(own["progress"])
    else:
        counters = lightning.progress_of(checkpoint, accumulate=trainer.accumulate_grad_batches)
        trainer.progress.load_state_dict(counters)
    if -1 < trainer.settings.max_epochs < trainer.current_epoch:
        raise MisconfigurationException(
            f"{trainer.ckpt_path!r} was saved in epoch {trainer.current_epoch} (counted from 0), and max_epochs="
            f"{trainer.settings.max_epochs} ends before: raise max_epochs, which counts from the start of the first run"
        )
    _restore_optimizers(trainer, checkpoint)
    precision = checkpoint.get(type(trainer._precision).__qualname__)
    if precision:
        trainer._precision.load_state_dict(precision)
    trainer.bus.load_filter_state(own.get("filters", {}))
    if "control" in own:
        trainer.control.load_state_dict(
            own["control"], lift_stop=_goes_further(trainer.settings, own.get("settings") or {})
        )
    ranks = own.get("ranks") or []
    place = ranks[trainer.global_rank] if trainer.global_rank < len(ranks) else {}
    missing = sorted({*_PLACE} - {*place}) if place else []
    if missing:
        raise CheckpointError(
            f"{trainer.ckpt_path!r} lacks {', '.join(missing)} under hookbus/ranks, so no run can go on from it"
        )
    trainer.fit_loop.place.load_state_dict(place)
    _tell_changes(trainer, checkpoint, own)


def _restore_optimizers(trainer: Any, checkpoint: dict[str, Any]) -> None:
    states, schedulers = checkpoint["optimizer_states"], checkpoint.get("lr_schedulers") or []
    if len(states) != len(trainer.optimizers):
        raise MisconfigurationException(
            f"{trainer.ckpt_path!r} has the states of {len(states)} optimizer(s), and configure_optimizers returned "
            f"{len(trainer.optimizers)}: let it return those of the saved run"
        )
    for index, (optimizer, state) in enumerate(zip(trainer.optimizers, states, strict=True)):
        known, is_now = _saved_by(checkpoint, index), type(optimizer).__qualname__
        where = f"{trainer.ckpt_path!r}: the state of optimizer {index}{f' (saved by {known})' if known else ''} does not fit "
        where += f"the {is_now} that configure_optimizers returned"
        try:
            optimizer.load_state_dict(state)
        except (ValueError, KeyError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise MisconfigurationException(f"{where}: {what}") from error
        # torch takes over groups of another class as they are, and fails in the first step.
        defaults = getattr(optimizer, "defaults", {}).keys()
        lacks = sorted({key for group in optimizer.param_groups for key in defaults - group.keys()})
        if lacks and known != is_now:
            has = sorted({key for group in state["param_groups"] for key in group if key != "params"})
            raise MisconfigurationException(
                f"{where}: it lacks {', '.join(map(repr, lacks))}, and has {', '.join(has)}. Return the optimizer of the saved "
                "run, or take over the weights only: Module.load_from_checkpoint(path), and fit without ckpt_path"
            )
    if len(schedulers) != len(trainer.lr_scheduler_configs):
        warnings.warn(
            f"{trainer.ckpt_path!r} has the states of {len(schedulers)} scheduler(s), and configure_optimizers returned "
            f"{len(trainer.lr_scheduler_configs)}: those without a counterpart start anew",
            stacklevel=2,
        )
    for config, state in zip(trainer.lr_scheduler_configs, schedulers, strict=False):
        config.scheduler.load_state_dict(state)


def _saved_by(checkpoint: dict[str, Any], index: int) -> str | None:
    """The class of the optimiser whose state it is; files of Lightning do not tell."""
    classes = (checkpoint.get("hookbus") or {}).get("optimizers")
    return str(classes[index]) if isinstance(classes, list) and index < len(classes) else None


def _goes_further(settings: Any, saved: dict[str, Any]) -> bool:
    """Whether the run now has a later end than the saved one: then somebody wants it to go on, although it was stopped."""

    def end(value: int) -> float:
        return float("inf") if value == -1 else value

    return any(
        name in saved and end(getattr(settings, name)) > end(saved[name]) for name in ("max_epochs", "max_steps")
    )


def _tell_changes(trainer: Any, checkpoint: dict[str, Any], own: dict[str, Any]) -> None:
    changes = compare(own, trainer) if own else []
    mutators = [str(change) for change in changes if change.mutates]
    if mutators:
        warnings.warn(
            f"{trainer.ckpt_path!r} was saved with other plugins that change the training: {'; '.join(mutators)}",
            stacklevel=2,
        )
    trainer.bus.fire.on_resume(trainer, trainer.lightning_module, checkpoint, changes)
