"""A hook in the middle of which a checkpoint was saved: what the module still had to do in it is done after resuming.

A ModelCheckpoint saves in ``on_train_batch_end`` or ``on_validation_end``, before the module's own method of that name is
called (Lightning's order). A run that resumes from the file begins after that hook; without this it would lack whatever the
method does: a moving target, a counter, a value that is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from hookbus.bus.dispatch import running_call
from hookbus.checkpoint.plain import unfit
from hookbus.engine.device import move_to
from hookbus.engine.nested import map_leaves
from hookbus.trainer.states import RunningStage

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer

#: The hooks after which a resumed run begins although they are not over.
_HOOKS: Final = ("on_train_batch_end", "on_validation_end")


def unfinished_hook(trainer: Trainer) -> dict[str, Any] | None:
    """The hook that is running, who is still to be called, and with what; None if nobody is.

    Only the module and the data module count: callbacks keep what they owe in their state. Arguments that could not be
    read back from a file are not kept, and then nothing is.
    """
    call = running_call()
    if call is None or call.hook not in _HOOKS or trainer.sanity_checking or trainer.state.fn != "fit":
        return None
    names = [row.plugin for row in trainer.bus.order(call.hook)]
    after = names[names.index(call.plugin) + 1 :] if call.plugin in names else []
    left = [name for name in after if trainer.bus.registration(name).owner in ("module", "datamodule")]
    given = {name: value for name, value in call.arguments.items() if name not in ("trainer", "pl_module")}
    given = map_leaves(given, lambda tensor: tensor.detach())
    if not left or any(unfit(given)):
        return None
    return {"hook": call.hook, "left": left, "given": given}


def finish_hook(trainer: Trainer, unfinished: dict[str, Any]) -> None:
    """Call those who were still to be called, in the state of the trainer in which they would have been."""
    module, hook = trainer.lightning_module, unfinished["hook"]
    given = move_to(unfinished["given"], trainer.strategy.root_device)
    call = trainer.bus.part(hook, unfinished["left"])
    if hook == "on_train_batch_end":
        trainer._batch, trainer._known_batch_size = given["batch"], None
        call(trainer, module, **given)
        return
    modes = {submodule: submodule.training for submodule in module.modules()}
    trainer.state.stage = RunningStage.VALIDATING
    module.eval()
    with torch.no_grad():
        call(trainer, module, **given)
    for submodule, training in modes.items():
        submodule.training = training
    trainer.state.stage = RunningStage.TRAINING
