"""One training batch: the step, its gradients, and the optimiser; automatic, or in the hands of the module.

Automatic optimisation runs, for the batch that ends an accumulation window::

    optimizer_step(closure)                    # the hook; the module's default calls optimizer.step(closure)
        closure:
            loss = training_step(batch)
            on_before_zero_grad, optimizer_zero_grad     # first batch of a window only
            on_before_backward, backward, on_after_backward
        on_before_optimizer_step, configure_gradient_clipping
        the optimiser's own update

and the closure alone for the other batches of the window.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookbus.dialects.base import overridden
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.trainer.settings import Settings
    from hookbus.trainer.trainer import Trainer

_ANSWERS = 'a scalar tensor (the loss), a dictionary with the loss under "loss", or None to skip the update'


class AutomaticStep:
    """Trains on one batch after the other with the module's only optimiser.

    Args:
        trainer: whose bus, module, optimiser and precision are used; looked up once, here.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._fire = trainer.bus.fire
        self._module = trainer.lightning_module
        self._forward = trainer._precision.forward_context if trainer._precision.wraps_steps else None
        self._scale = trainer._precision.scale
        # Whether the gradients are those of a window that goes on; else they are cleared first.
        self._within = trainer.progress.batch > trainer.progress.batch_stepped

    def __call__(self, batch: Any, batch_idx: int, stepping: bool) -> dict[str, Any]:
        """Train on ``batch``.

        Args:
            batch: on the right device.
            batch_idx: its index in the epoch.
            stepping: whether it ends a window, so that the optimiser steps.

        Returns:
            What ``on_train_batch_end`` gets as ``outputs``: the detached loss, divided by the window, under ``loss``,
            and whatever else the step returned; empty if it returned None.

        Raises:
            MisconfigurationException: the step returned something else, or ``optimizer_step`` never ran the closure.
        """
        trainer, fire, module = self._trainer, self._fire, self._module
        optimizer, accumulate = trainer.optimizers[0], trainer.settings.accumulate_grad_batches
        outputs: dict[str, Any] | None = None
        within, self._within = self._within, not stepping

        def closure() -> Tensor | None:
            nonlocal outputs
            if self._forward is None:
                answer = fire.training_step(trainer, module, batch, batch_idx)
            else:
                with self._forward():
                    answer = fire.training_step(trainer, module, batch, batch_idx)
            loss, outputs = self._read(answer, accumulate)
            if not within:
                fire.on_before_zero_grad(trainer, module, optimizer)
                fire.optimizer_zero_grad(trainer, module, trainer.current_epoch, batch_idx, optimizer)
            if loss is not None:
                loss = self._scale(loss)
                fire.on_before_backward(trainer, module, loss)
                fire.backward(trainer, module, loss)
                fire.on_after_backward(trainer, module)
            return loss

        if not stepping:
            closure()
        else:
            epoch = trainer.current_epoch
            fire.optimizer_step(trainer, module, epoch, batch_idx, trainer._wrapped_optimizers[0], closure)
            trainer.progress.global_step += 1
            if outputs is None:
                raise MisconfigurationException(
                    "optimizer_step was called but the closure never ran, so there is no loss and no gradient; call "
                    "optimizer.step(closure=optimizer_closure) in it, or optimizer_closure() yourself"
                )
        return outputs or {}

    def _read(self, answer: Any, accumulate: int) -> tuple[Tensor | None, dict[str, Any]]:
        """The loss to differentiate, and the outputs for ``on_train_batch_end``."""
        extra: dict[str, Any] = {}
        if isinstance(answer, Tensor):
            loss = answer
        elif isinstance(answer, Mapping):
            if answer.get("loss") is None:
                raise MisconfigurationException(
                    f"training_step returned a dictionary without a loss: expected {_ANSWERS}, got the keys {list(answer)}"
                )
            loss = answer["loss"]
            extra = {key: value for key, value in answer.items() if key != "loss"}
        elif answer is None:
            warnings.warn(
                "training_step returned None: no update for this batch; ignore this if it was on purpose", stacklevel=2
            )
            return None, {}
        else:
            raise MisconfigurationException(
                f"training_step must return {_ANSWERS}; got {type(answer).__name__}: {answer!r}"
            )
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, Tensor)
                else f"{type(loss).__name__}: {loss!r}"
            )
            raise MisconfigurationException(
                f"the loss must be a tensor with one element (reduce it, e.g. by .mean()); got {what}"
            )
        if accumulate > 1:
            loss = loss / accumulate
        return loss, {"loss": loss.detach(), **extra}


class ManualStep:
    """Calls ``training_step`` of a module that drives its optimisers itself.

    Args:
        trainer: whose bus and module are used.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._fire = trainer.bus.fire
        self._module = trainer.lightning_module
        self._forward = trainer._precision.forward_context

    def __call__(self, batch: Any, batch_idx: int, stepping: bool) -> dict[str, Any]:
        """Run the step; ``stepping`` does not matter here.

        Raises:
            MisconfigurationException: the step returned something that is no tensor, dictionary or None.
        """
        with self._forward():
            answer = self._fire.training_step(self._trainer, self._module, batch, batch_idx)
        if isinstance(answer, Mapping):
            return {key: value.detach() if isinstance(value, Tensor) else value for key, value in answer.items()}
        if isinstance(answer, Tensor):
            return {"loss": answer.detach()}
        if answer is None:
            return {}
        raise MisconfigurationException(
            f"in manual optimization training_step must return a tensor, a dictionary or None; got {type(answer).__name__}"
        )


def refuse_unheeded(module: Any, settings: Settings) -> None:
    """A module that drives its optimisers itself cannot leave clipping and accumulation to the trainer.

    Raises:
        MisconfigurationException: the trainer was asked for one of them.
    """
    if module.automatic_optimization:
        return
    for argument, asked, instead in (
        ("gradient_clip_val", settings.gradient_clip_val, "call self.clip_gradients(optimizer, …)"),
        ("accumulate_grad_batches", settings.accumulate_grad_batches > 1, "step the optimizer at every n-th batch"),
    ):
        if asked:
            raise MisconfigurationException(
                f"Trainer({argument}={getattr(settings, argument)}) has no effect in manual optimization: {instead} in "
                f"training_step, or let {type(module).__name__}.automatic_optimization be True"
            )


class OptimizerStep:
    """What ``step(closure)`` of a wrapped optimiser does: update, with the hooks before it.

    Args:
        trainer: the running trainer; looked up once are its bus, module and precision.
        optimizer: torch's own optimiser.
    """

    def __init__(self, trainer: Trainer, optimizer: Any) -> None:
        self._trainer = trainer
        self._optimizer = optimizer
        self._fire = trainer.bus.fire
        self._module = module = trainer.lightning_module
        self._automatic = module.automatic_optimization
        self._run = trainer._precision.run_optimizer_step
        self._clipping: Any = trainer.bus.hook.configure_gradient_clipping
        self._module_clips = any(overridden(module, name) for name in ("configure_gradient_clipping", "clip_gradients"))

    def __call__(self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update.

        Args:
            optimizer: the one that was given at construction.
            closure: computes the loss and its gradients; None in manual optimisation.
            **kwargs: passed on to the optimiser's ``step``.
        """
        trainer = self._trainer
        watched = trainer.scaler if trainer.bus.implemented("on_optimizer_step_skipped") else None
        scale = watched.get_scale() if watched is not None else 0.0
        result = self._run(optimizer, closure or _nothing, self._after_closure, automatic=self._automatic, **kwargs)
        if watched is not None and watched.get_scale() < scale:  # which is how a scaler shows that it left a step out
            self._fire.on_optimizer_step_skipped(trainer, self._module, self._optimizer)
        if not self._automatic:
            trainer.progress.global_step += 1
        return result

    def _after_closure(self) -> None:
        trainer, module, optimizer = self._trainer, self._module, self._optimizer
        self._fire.on_before_optimizer_step(trainer, module, optimizer)
        if not self._automatic:
            return
        settings = trainer.settings
        # Without a bound the module's default has nothing to do; asking it costs as much as all other hooks of a step.
        if settings.gradient_clip_val is not None or self._module_clips or len(self._clipping) > 1:
            self._fire.configure_gradient_clipping(
                trainer, module, optimizer, settings.gradient_clip_val, settings.gradient_clip_algorithm
            )


def _nothing() -> None:
    """The closure of an optimiser that was given none."""


def run_manual_backward(trainer: Trainer, loss: Tensor, *args: Any, **kwargs: Any) -> None:
    """What ``self.manual_backward(loss)`` does; further arguments go to ``loss.backward``."""
    module, fire = trainer.lightning_module, trainer.bus.fire
    loss = trainer._precision.scale(loss)
    fire.on_before_backward(trainer, module, loss)
    if args or kwargs:
        module.backward(loss, *args, **kwargs)
    else:
        fire.backward(trainer, module, loss)
    fire.on_after_backward(trainer, module)
