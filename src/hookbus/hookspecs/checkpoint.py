"""Checkpoints: what goes into the file, what comes out of it, and what follows a save.

State that belongs to one plugin needs no hook: a plugin with ``state_dict()`` and ``load_state_dict(state)`` has its
state kept in the checkpoint's ``"callbacks"`` under its ``state_key`` and gets it back when the run resumes. Two
plugins with one key are an error at registration. The hooks here see the whole dictionary.
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import Checkpoint, LightningModule, Trainer
from hookbus.markers import hookspec

# The model gets its own before anyone looks at it.
_MODULE_FIRST = ("module", "datamodule", "callback", "plugin", "default")


@hookspec
def on_save_checkpoint(trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint) -> None:
    """Add to a checkpoint before it is written.

    Called whenever a checkpoint is made, when weights, optimizers, counters and the plugins' ``state_dict`` are already
    in it: callbacks and plugins first, then the module.

    Pitfall: what is added must be loadable with ``weights_only=True``: tensors, numbers, strings and collections of
    them.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        checkpoint: the whole dictionary; change it in place.
    """


@hookspec(native_only=True)
def on_save_weights(trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint) -> None:
    """Put other weights in the place of those in a checkpoint of weights alone: an average of them, or pruned ones.

    Called in place of ``on_save_checkpoint`` when only weights are saved (``save_weights_only=True``), before the
    module's own ``on_save_checkpoint``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        checkpoint: the whole dictionary; change its ``"state_dict"``, and what belongs to that, in place.
    """


@hookspec(owners=_MODULE_FIRST)
def on_load_checkpoint(trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint) -> None:
    """Read from a checkpoint, or mend it, before it is used.

    Called after ``configure_model``, before weights are loaded and before ``configure_optimizers``: the module first,
    then callbacks and plugins; each plugin's ``load_state_dict`` follows.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module, with the weights it had before.
        checkpoint: the whole dictionary as loaded; change it in place to rename or drop weights.
    """


@hookspec(native_only=True)
def on_checkpoint_saved(trainer: Trainer, pl_module: LightningModule, path: Any, checkpoint: Checkpoint) -> None:
    """A checkpoint is safely in place.

    Called after the file has got its final name. Good for uploading, pruning, announcing.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        path: where the checkpoint is.
        checkpoint: the dictionary that was written; look, do not touch.
    """
