"""The dialect of LightningModule and LightningDataModule: methods that get the hook's arguments without the first two.

A module's methods are called by position, without ``trainer`` and ``pl_module``. Those whose base method does
something (``backward``, ``optimizer_step``, …) always take part; empty ones only where they are overridden.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hookbus.dialects import methods
from hookbus.dialects.base import derives_from, overridden
from hookbus.dialects.implementation import Implementation

#: Base methods with a default action: the last resort of their hook.
DEFAULT_ACTIONS: Final = frozenset(
    {
        "predict_step",
        "backward",
        "optimizer_step",
        "optimizer_zero_grad",
        "configure_gradient_clipping",
        "lr_scheduler_step",
        "transfer_batch_to_device",
        "on_validation_model_zero_grad",
        "on_validation_model_eval",
        "on_test_model_eval",
        "on_predict_model_eval",
    }
)
_TRANSFER: Final = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_LOADERS: Final = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
#: What a LightningModule may define; any other method of a module is its own affair, whatever its name.
MODULE_HOOKS: Final = (
    *("configure_callbacks", "prepare_data", "setup", "teardown", "configure_model", "configure_sharded_model"),
    *("configure_optimizers", "configure_gradient_clipping", "on_fit_start", "on_fit_end"),
    *("training_step", "validation_step", "test_step", "predict_step"),
    *("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
    *("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    *(
        f"on_{stage}_{point}"
        for stage in ("train", "validation", "test", "predict")
        for point in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
    ),
    *("on_validation_model_zero_grad", "on_validation_model_eval", "on_validation_model_train"),
    *("on_test_model_eval", "on_test_model_train", "on_predict_model_eval"),
    *("on_save_checkpoint", "on_load_checkpoint"),
    *_LOADERS,
    *_TRANSFER,
)
#: Whether a module has one of these decides what is done.
_DECISIVE: Final = frozenset(
    {
        *("prepare_data", "configure_model", "configure_sharded_model", "configure_optimizers"),
        *("training_step", "validation_step", "test_step"),
        *("on_validation_model_train", "on_test_model_train"),
        *_LOADERS,
    }
)
_NOT_POSITIONAL: Final = frozenset({"trainer", "pl_module"})
DATA_HOOKS: Final = (
    "prepare_data",
    "setup",
    "teardown",
    *_LOADERS,
    *_TRANSFER,
    "on_exception",
)
_DATAMODULE: Final = methods.Manner(
    DATA_HOOKS, hidden=_NOT_POSITIONAL, decisive=frozenset({"prepare_data", *_LOADERS, *_TRANSFER})
)


def is_module(obj: object) -> bool:
    """Whether ``obj`` is a LightningModule of hookbus or Lightning."""
    return derives_from(obj, "LightningModule")


def is_datamodule(obj: object) -> bool:
    """Whether ``obj`` is a LightningDataModule of hookbus or Lightning."""
    return derives_from(obj, "LightningDataModule")


def implementations(
    module: object,
    arguments: Mapping[str, Sequence[str]],
    *,
    without: Iterable[str] = (),
    several_loaders: bool = False,
) -> list[Implementation]:
    """One record for each hook that a module answers.

    Args:
        module: a LightningModule.
        arguments: the names of each hook's arguments.
        without: hooks that the module leaves to somebody else (a data module that has them).
        several_loaders: whether methods get ``dataloader_idx`` that do not demand it; Lightning passes it only then.

    Raises:
        SignatureMismatchError: for methods that cannot take their hook's arguments; all of them are named.
    """
    spare = () if several_loaders else ("dataloader_idx",)
    return methods.implementations(module, _manner(tuple(without)), arguments, spare=spare)


@functools.lru_cache
def _manner(without: tuple[str, ...]) -> methods.Manner:
    hooks = tuple(hook for hook in MODULE_HOOKS if hook not in without)
    return methods.Manner(hooks, DEFAULT_ACTIONS, _NOT_POSITIONAL, decisive=_DECISIVE)


def data_implementations(datamodule: object, arguments: Mapping[str, Sequence[str]]) -> list[Implementation]:
    """One record for each hook that a data module overrides."""
    return methods.implementations(datamodule, _DATAMODULE, arguments)


def claimed_transfers(datamodule: object) -> tuple[str, ...]:
    """The batch transfer hooks that the data module overrides and so takes over from the module."""
    return tuple(hook for hook in _TRANSFER if overridden(datamodule, hook, through_wrappers=True) is not None)
