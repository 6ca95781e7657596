"""From a running trainer to the dictionary that is saved: Lightning's keys, and hookbus's own under ``hookbus``."""

from __future__ import annotations

from typing import Any, Final

from hookbus.dialects.base import overridden

FORMAT_VERSION: Final = 1
#: The Lightning release whose checkpoint keys are written.
LIGHTNING_VERSION: Final = "2.6.6"


def dump(trainer: Any, *, weights_only: bool = False) -> dict[str, Any]:
    """The checkpoint of ``trainer`` as it stands, after all who may add to it have done so.

    Args:
        trainer: a trainer to which a module is attached.
        weights_only: leave out what only resuming needs: optimisers, schedulers, states of callbacks and loops.

    Returns:
        A dictionary of tensors, numbers, strings, and containers of them, but for what users put in.
    """
    module = trainer.lightning_module
    checkpoint: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": module.state_dict(),
    }
    if not weights_only:
        checkpoint["callbacks"] = _plugin_states(trainer)
        checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in trainer.optimizers]
        checkpoint["lr_schedulers"] = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
        precision = trainer._precision.state_dict()
        if precision:
            checkpoint[type(trainer._precision).__qualname__] = precision
    checkpoint["hookbus"] = {
        "format_version": FORMAT_VERSION,
        "progress": trainer.progress.state_dict(),
        "plugins": _plugins(trainer.bus),
        "filters": trainer.bus.filter_state(),
    }
    if getattr(module, "hparams", None):
        name = getattr(module, "_hparams_name", None)
        if name:
            checkpoint["hparams_name"] = name
        checkpoint["hyper_parameters"] = dict(module.hparams)
    datamodule = trainer.datamodule
    if datamodule is not None:
        if getattr(datamodule, "hparams", None):
            name = getattr(datamodule, "_hparams_name", None)
            if name:
                checkpoint["datamodule_hparams_name"] = name
            checkpoint["datamodule_hyper_parameters"] = dict(datamodule.hparams)
        if not weights_only and overridden(datamodule, "state_dict"):
            checkpoint[type(datamodule).__qualname__] = datamodule.state_dict()
    if not weights_only:
        trainer.bus.fire.on_save_checkpoint(trainer, module, checkpoint)
    return checkpoint


def _plugin_states(trainer: Any) -> dict[str, Any]:
    """The state of each stateful plugin under its ``state_key``; also those of plugins that are absent this time."""
    states = dict(trainer._unclaimed_states)
    for plugin in stateful_plugins(trainer.bus):
        states[plugin.state_key] = plugin.state_dict()
    return states


def stateful_plugins(bus: Any) -> list[Any]:
    """The registered plugins that define ``state_dict``, in order; modules and data modules have places of their own."""
    found = []
    for name in bus.names():
        registration = bus.registration(name)
        plugin = registration.plugin
        if registration.owner in ("module", "datamodule") or not isinstance(getattr(plugin, "state_key", None), str):
            continue
        if overridden(plugin, "state_dict") is not None:
            found.append((registration.position, plugin))
    return [plugin for _, plugin in sorted(found, key=lambda pair: pair[0])]


def _plugins(bus: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "owner": (r := bus.registration(name)).owner, "source": r.source, "role": r.role}
        for name in bus.names()
    ]
