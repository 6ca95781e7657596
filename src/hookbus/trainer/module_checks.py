"""Whether a module has what an entry point needs of it, and what is said if it lacks something or has too much."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from hookbus.bus import Bus
from hookbus.dialects import module as module_dialect
from hookbus.dialects.base import overridden
from hookbus.dialects.signature import parameters_of
from hookbus.errors import MisconfigurationException, PossibleUserWarning
from hookbus.trainer.states import TrainerFn

_STEPS = {
    TrainerFn.FITTING: "training_step",
    TrainerFn.VALIDATING: "validation_step",
    TrainerFn.TESTING: "test_step",
    TrainerFn.PREDICTING: "predict_step",
}


#: Hooks of Lightning 1, by the entry points that called them.
_REMOVED = {
    TrainerFn.FITTING: ("training_epoch_end", "validation_epoch_end"),
    TrainerFn.VALIDATING: ("validation_epoch_end",),
    TrainerFn.TESTING: ("test_epoch_end",),
}


def check_steps(model: Any, fn: TrainerFn, bus: Bus) -> None:
    """The module must have the step of the entry point, and for fit an optimiser, unless a plugin brings them.

    Raises:
        MisconfigurationException: there is none, or it wants the loader's iterator.
    """
    step, name = _STEPS[fn], type(model).__name__

    def missing(hook: str) -> bool:
        return overridden(model, hook, through_wrappers=True) is None and not bus.order(hook)

    _refuse_removed(model, fn)
    if step == "predict_step" and missing(step) and not _has_forward(model):
        raise MisconfigurationException(
            f"Trainer.predict() calls predict_step(), by default forward(), and {name} defines neither; define one of them, or "
            "let a plugin implement predict_step"
        )
    if step != "predict_step" and missing(step):
        raise MisconfigurationException(
            f"Trainer.{fn.value}() calls {step}(), which {name} does not define; define it in the module "
            f"(def {step}(self, batch, batch_idx)), or let a plugin implement it"
        )
    for hook in (step, "validation_step") if fn is TrainerFn.FITTING else (step,):
        method = overridden(model, hook)
        if method is not None and any(p.name == "dataloader_iter" for p in parameters_of(method) or ()):
            raise MisconfigurationException(
                f"{name}.{hook}() takes dataloader_iter, the iterator of the loader, which hookbus does not pass: each step "
                f"gets one batch; define it as {hook}(self, batch, batch_idx)"
            )
    if fn is TrainerFn.FITTING and missing("configure_optimizers"):
        raise MisconfigurationException(
            f"Trainer.fit() needs an optimizer: {name} does not define configure_optimizers(); return one there, such as "
            "torch.optim.AdamW(self.parameters())"
        )


def _has_forward(model: Any) -> bool:
    """Whether the default of ``predict_step`` can do its work."""
    forward = getattr(model, "forward", None)
    own = getattr(forward, "__func__", forward) is not torch.nn.Module.forward
    return model.predict_step is not None and forward is not None and own


def _refuse_removed(model: Any, fn: TrainerFn) -> None:
    """Hooks that Lightning 1 called would be left out without a word.

    Raises:
        NotImplementedError: the module defines one of them.
    """
    for name in _REMOVED.get(fn, ()):
        if callable(getattr(model, name, None)):
            raise NotImplementedError(
                f"{type(model).__name__}.{name}() is a hook of Lightning 1, which nothing calls any more: define on_"
                f"{name.replace('training', 'train')}(self), and keep in a list what the steps give, to be used there"
            )


def warn_of_half_a_validation(bus: Bus, model: Any, limit: int | float) -> None:
    """A validation takes a step and data: with one of them alone, somebody may have forgotten the other."""
    step, data = bus.implemented("validation_step"), bus.implemented("val_dataloader")
    name = type(model).__name__
    if data and not step:
        warnings.warn(
            f"there is a val_dataloader, but {name} has no validation_step: nothing is validated", stacklevel=2
        )
    elif step and not data and limit:
        warnings.warn(
            f"{name} has a validation_step, but there is no val_dataloader: nothing is validated",
            PossibleUserWarning,
            stacklevel=2,
        )


def warn_of_claims(module: Any, datamodule: Any) -> None:
    """Of a hook of batch transfer that both have, only the data module's is called."""
    for hook in module_dialect.claimed_transfers(datamodule):
        if overridden(module, hook, through_wrappers=True) is not None:
            warnings.warn(
                f"both {type(module).__name__} and {type(datamodule).__name__} define {hook}(): the data module's is called, "
                "the module's is not",
                stacklevel=2,
            )
