"""What ``self.log`` may do in which hook: the table of hooks, the defaults, and the meaning of its options.

The table equals that of Lightning 2.6 for Lightning's hooks (``tests/trainer/data/metrics.json`` holds the record);
hooks that run in the middle of a training step and exist in hookbus only follow the rule of ``on_after_backward``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from hookbus.errors import MisconfigurationException


@dataclass(frozen=True)
class HookRule:
    """How values logged in a hook are kept unless the call of ``self.log`` says otherwise.

    Attributes:
        on_step: keep the value of each call.
        on_epoch: reduce the values of the epoch.
        per_batch: the hook runs once per batch, so both may be chosen freely; otherwise only ``on_epoch`` is possible.
    """

    on_step: bool
    on_epoch: bool
    per_batch: bool


_TRAINING_BATCH = HookRule(on_step=True, on_epoch=False, per_batch=True)
_EVALUATION_BATCH = HookRule(on_step=False, on_epoch=True, per_batch=True)
_EPOCH = HookRule(on_step=False, on_epoch=True, per_batch=False)

#: The hooks in which ``self.log`` works.
LOGGING_HOOKS: Final[dict[str, HookRule]] = {
    **dict.fromkeys(
        (
            "training_step",
            "on_train_batch_start",
            "on_train_batch_end",
            "on_before_zero_grad",
            "optimizer_zero_grad",
            "on_before_backward",
            "backward",
            "on_after_backward",
            "on_before_optimizer_step",
            "configure_gradient_clipping",
            "clip_gradients",
            "optimizer_step",
            "on_optimizer_step_skipped",
            "on_module_forward_pre",
            "on_module_forward",
            "on_module_grad_output",
            "on_module_grad_input",
            "on_parameter_grad",
        ),
        _TRAINING_BATCH,
    ),
    **{
        hook: _EVALUATION_BATCH
        for stage in ("validation", "test")
        for hook in (f"{stage}_step", f"on_{stage}_batch_start", f"on_{stage}_batch_end")
    },
    **{
        f"on_{stage}_{moment}": _EPOCH
        for stage in ("train", "validation", "test")
        for moment in ("start", "epoch_start", "epoch_end")
    },
}

Reduction = str | Callable[..., Any]

_REDUCTIONS: Final[dict[Any, str]] = {
    "mean": "mean",
    "avg": "mean",
    "sum": "sum",
    "max": "max",
    "min": "min",
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
    builtins.sum: "sum",
    builtins.max: "max",
    builtins.min: "min",
}


@dataclass(frozen=True)
class LogOptions:
    """The options of one logged name, with every default filled in. ``reduction``: mean, sum, max or min."""

    prog_bar: bool
    logger: bool
    on_step: bool
    on_epoch: bool
    reduction: str
    sync_dist: bool
    add_dataloader_idx: bool
    rank_zero_only: bool
    metric_attribute: str | None

    @property
    def forked(self) -> bool:
        """Whether the name splits in ``name_step`` and ``name_epoch``."""
        return self.on_step and self.on_epoch


def rule_of(hook: str, name: str) -> HookRule:
    """The rule of ``hook``.

    Raises:
        MisconfigurationException: nothing can be logged there.
    """
    rule = LOGGING_HOOKS.get(hook)
    if rule is None:
        raise MisconfigurationException(
            f"self.log({name!r}, ...) is not possible inside `{hook}`: no value of an epoch is collected there. It is "
            f"allowed in {', '.join(sorted(LOGGING_HOOKS))}. To write a single value at any time, call "
            "self.logger.log_metrics({...})."
        )
    return rule


def resolve_options(
    name: str,
    hook: str,
    *,
    prog_bar: bool,
    logger: bool | None,
    on_step: bool | None,
    on_epoch: bool | None,
    reduce_fx: Reduction,
    sync_dist: bool,
    add_dataloader_idx: bool,
    rank_zero_only: bool,
    metric_attribute: str | None,
) -> LogOptions:
    """Fill in the defaults of ``hook`` and check that the combination is possible.

    Raises:
        MisconfigurationException: the hook does not allow the options, or they contradict each other.
    """
    rule = rule_of(hook, name)
    step = rule.on_step if on_step is None else bool(on_step)
    epoch = rule.on_epoch if on_epoch is None else bool(on_epoch)
    if not rule.per_batch and (step or not epoch):
        asked = f"on_step={step}, on_epoch={epoch}"
        raise MisconfigurationException(
            f"self.log({name!r}, {asked}) inside `{hook}`: that hook runs once per epoch, so only on_step=False, "
            "on_epoch=True is allowed there."
        )
    if not step and not epoch:
        raise MisconfigurationException(
            f"self.log({name!r}, on_step=False, on_epoch=False) inside `{hook}` would keep nothing: set one of them."
        )
    if add_dataloader_idx and "/dataloader_idx_" in name:
        raise MisconfigurationException(
            f"self.log({name!r}, ...): the part /dataloader_idx_N is added by the trainer. Log the bare name, or set "
            "add_dataloader_idx=False and choose names of your own."
        )
    return LogOptions(
        prog_bar=bool(prog_bar),
        logger=True if logger is None else bool(logger),
        on_step=step,
        on_epoch=epoch,
        reduction=_reduction(name, reduce_fx),
        sync_dist=bool(sync_dist),
        add_dataloader_idx=bool(add_dataloader_idx),
        rank_zero_only=bool(rank_zero_only),
        metric_attribute=metric_attribute,
    )


def _reduction(name: str, reduce_fx: Reduction) -> str:
    wanted = reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx
    try:
        return _REDUCTIONS[wanted]
    except (KeyError, TypeError):  # TypeError: a callable that cannot be hashed
        raise MisconfigurationException(
            f"self.log({name!r}, reduce_fx={reduce_fx!r}): the reduction must be 'mean', 'sum', 'max' or 'min' (or "
            "torch's function of that name). For any other, log a metric object with update(), compute() and reset()."
        ) from None
