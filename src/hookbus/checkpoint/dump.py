"""From a running trainer to the dictionary that is saved; the keys are explained in :mod:`hookbus.checkpoint.format`."""

from __future__ import annotations

import functools
import types
from typing import Any, Final

import torch

from hookbus.bus.dispatch import running_hook
from hookbus.checkpoint import lightning
from hookbus.checkpoint.changes import plugins_of, settings_of, versions
from hookbus.checkpoint.format import FORMAT_VERSION, HYPER_PARAMETERS, LIGHTNING_VERSION
from hookbus.checkpoint.plain import unfit, unpicklable
from hookbus.dialects.base import overridden

#: What is saved by its name only; to allow these kinds would allow any function.
_FUNCTIONS: Final = frozenset(
    {type, *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)}
)


def dump(trainer: Any, *, weights_only: bool = False) -> dict[str, Any]:
    """The checkpoint of ``trainer`` as it stands, after all who may add to it have done so.

    Args:
        trainer: a trainer to which a module is attached.
        weights_only: leave out what only resuming needs: optimisers, schedulers, states of plugins, random streams.

    Returns:
        A dictionary of tensors, numbers, strings, and containers of them, but for what users put in.

    Raises:
        TypeError: the state of a plugin holds something that could not be read back, or a hook added what cannot be pickled.
    """
    module, progress = trainer.lightning_module, trainer.progress
    _say_if_inside_a_batch(trainer)
    checkpoint: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": module.state_dict(),
        "loops": lightning.loops(
            progress,
            accumulate=trainer.accumulate_grad_batches,
            automatic=module.automatic_optimization,
            val_batches=_finite(trainer.fit_loop.val_loop.num_batches),
        ),
    }
    own: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "versions": versions(),
        "progress": progress.state_dict(),
        "plugins": plugins_of(trainer.bus),
        "settings": settings_of(trainer),
    }
    if not weights_only:
        checkpoint["callbacks"] = _plugin_states(trainer)
        checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in trainer.optimizers]
        checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
        precision = trainer._precision.state_dict()
        if precision:
            checkpoint[type(trainer._precision).__qualname__] = precision
        own |= {
            "optimizers": [type(optimizer).__qualname__ for optimizer in trainer.optimizers],
            "filters": trainer.bus.filter_state(),
            "control": trainer.control.state_dict(),
            "ranks": _of_all_ranks(trainer, trainer.fit_loop.place.state_dict()),
        }
    checkpoint["hookbus"] = own
    _add_hyper_parameters(trainer, checkpoint, module, "")
    datamodule = trainer.datamodule
    if datamodule is not None:
        _add_hyper_parameters(trainer, checkpoint, datamodule, "datamodule_")
        if not weights_only and overridden(datamodule, "state_dict"):
            checkpoint[type(datamodule).__qualname__] = datamodule.state_dict()
    if not weights_only:
        trainer.bus.fire.on_save_checkpoint(trainer, module, checkpoint)
    else:
        trainer.bus.fire.on_save_weights(trainer, module, checkpoint)
        if overridden(module, "on_save_checkpoint"):
            module.on_save_checkpoint(checkpoint)
    _say_what_is_unfit(trainer, checkpoint)
    return checkpoint


def _of_all_ranks(trainer: Any, state: dict[str, Any]) -> list[dict[str, Any]]:
    if trainer.world_size == 1:
        return [state]
    states: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(states, state)
    return states


def _plugin_states(trainer: Any) -> dict[str, Any]:
    """The state of each stateful plugin under its ``state_key``; also those of plugins that are absent this time.

    Raises:
        TypeError: a state holds something that could not be read back; what a monitor holds is left out instead.
    """
    states = dict(trainer._unclaimed_states)
    for name, key, plugin in stateful_plugins(trainer.bus):
        monitor = trainer.bus.registration(name).role == "monitor"
        try:
            state = plugin.state_dict()
            _check_state(name, key, state)
        except Exception as error:
            if not monitor:
                raise
            trainer._warn_once(f"the state of monitor {name!r} is not saved: {type(error).__name__}: {error}")
        else:
            states[key] = state
    return states


def _check_state(name: str, key: str, state: Any) -> None:
    for place, kind in unfit(state):
        full = f"{kind.__module__}.{kind.__qualname__}"
        allow = "" if kind in _FUNCTIONS else f", or allow the class: torch.serialization.add_safe_globals([{full}])"
        raise TypeError(
            f"the state of {name!r} (state_key {key!r}) holds a {full}{f' at state{place}' if place else ''}, which cannot be "
            "read back without trusting the file. Let state_dict() return tensors, numbers, strings, and lists, tuples, sets "
            f"and dictionaries of them{allow}"
        )


def stateful_plugins(bus: Any) -> list[tuple[str, str, Any]]:
    """Name, state key and object of the plugins that define ``state_dict``, in order.

    The key is that of the registration: one that depends on an attribute which changes later would not be found again.
    Modules and data modules have places of their own in a checkpoint.
    """
    found = []
    for name in bus.names():
        registration = bus.registration(name)
        plugin = registration.plugin
        key = registration.state_key or getattr(plugin, "state_key", None)
        if registration.owner in ("module", "datamodule") or not isinstance(key, str):
            continue
        if overridden(plugin, "state_dict") is not None:
            found.append((registration.position, (name, key, plugin)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _say_if_inside_a_batch(trainer: Any) -> None:
    progress, hook = trainer.progress, running_hook()
    if (
        trainer.training
        and progress.epoch_started
        and progress.batch > progress.batch_trained
        and hook != "on_exception"
    ):
        trainer._warn_once(
            f"a checkpoint is saved in the middle of a batch ({hook or 'outside of any hook'}): a run that resumes from it "
            "takes this batch again, and is not the same to the last bit; trainer.control.save() saves after the batch"
        )


def _add_hyper_parameters(trainer: Any, checkpoint: dict[str, Any], owner: Any, prefix: str) -> None:
    """Add those that can be written; no training ends because of one that cannot."""
    if getattr(owner, "hparams", None):
        name = getattr(owner, "_hparams_name", None)
        if name:
            checkpoint[f"{prefix}hparams_name"] = name
        kept = {}
        for key, value in owner.hparams.items():
            found = unpicklable(value)
            if found is None:
                kept[key] = value
                continue
            place, _, error = found
            trainer._warn_once(
                f"the hyper-parameter {key!r} of {type(owner).__name__} is not saved in checkpoints: it cannot be pickled"
                f"{f' because of {key}{place}' if place else ''} ({type(error).__name__}: {error}); pass it again to "
                f"load_from_checkpoint(…, {key}=…), or leave it out: save_hyperparameters(ignore=[{key!r}])"
            )
        checkpoint[f"{prefix}hyper_parameters"] = kept


def _say_what_is_unfit(trainer: Any, checkpoint: dict[str, Any]) -> None:
    """Tell of what users put in that will have to be allowed when the file is read; hyper-parameters need not be read."""
    checked = ("callbacks", "hookbus", "loops", *HYPER_PARAMETERS)
    found = [entry for key, value in checkpoint.items() if key not in checked for entry in unfit(value, f"[{key!r}]")]
    _refuse_unpicklable(checkpoint, *HYPER_PARAMETERS, *{key for key in checkpoint if found and key not in checked})
    if found:
        kinds = {kind for _, kind in found}
        names = sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        text = f"the checkpoint holds objects that are not plain data, at checkpoint{found[0][0]} for one; "
        if kinds.isdisjoint(_FUNCTIONS):
            text += f"whoever loads it must allow them: torch.serialization.add_safe_globals([{', '.join(names)}])"
        else:
            text += "functions and classes among them are better saved by name; whoever loads it must pass weights_only=False"
        trainer._warn_once(text)


def _refuse_unpicklable(checkpoint: dict[str, Any], *keys: str) -> None:
    """Say so now, in the words of the user, and not in those of the writer, who may be in the background.

    Raises:
        TypeError: something in these entries cannot be pickled.
    """
    for key in keys:
        if (found := unpicklable(checkpoint.get(key), f"[{key!r}]")) is not None:
            place, kind, error = found
            raise TypeError(
                f"checkpoint{place} is a {kind.__module__}.{kind.__qualname__} that cannot be pickled ({error}), so no "
                "checkpoint is written; what stood there before is untouched. Let on_save_checkpoint put tensors, numbers, "
                "strings and containers of them there, or what the object can be made from again"
            ) from error


def _finite(numbers: list[int | float]) -> int:
    return int(sum(number for number in numbers if number != float("inf")))
