"""Plugins about plugins, and what changed since the checkpoint.

To influence the loop no hook is needed: at any hook, ``trainer.control`` takes ``skip_batch()``, ``stop_epoch()``,
``stop()``, ``evaluate()`` and ``save()``, each with a reason, and ``trainer.should_stop = True`` is Lightning's word
for stop.
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import Checkpoint, LightningModule, Trainer
from hookbus.markers import hookspec


@hookspec(historic=True, native_only=True)
def on_plugin_registered(plugin: object, name: str) -> None:
    """A plugin joined the bus.

    Called when its registration is complete. Historic: a plugin that comes later hears of all earlier ones when it is
    registered itself.

    Args:
        plugin: the object that was registered.
        name: its name on the bus, the one that ``hookbus plugins`` prints and ``-p no:NAME`` takes.
    """


@hookspec(historic=True, native_only=True)
def on_plugin_error(plugin: object, name: str, hook: str | None, exception: BaseException) -> None:
    """A plugin failed and the run goes on without its contribution.

    Called where an error is kept from the run: a plugin that could not be loaded, or a monitor that raised. Historic:
    a plugin that comes later hears of earlier failures. Good for alarms in a fleet.

    Args:
        plugin: the object that failed, None where it could not even be loaded.
        name: its name.
        hook: the hook in which it failed, None for loading and registration.
        exception: what it raised.
    """


@hookspec(native_only=True)
def on_resume(trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint, changes: Any) -> None:
    """A run continues from a checkpoint, perhaps with other plugins, versions or settings.

    Called when the saved run has been compared with this one. Good for refusing to go on (raise) or for noting the
    difference beside the results.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        checkpoint: the whole dictionary that was loaded.
        changes: what differs between the saved run and this one: plugins, versions, configuration.
    """
