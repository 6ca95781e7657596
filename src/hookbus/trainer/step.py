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
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from hookbus.engine.precision import Precision
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.trainer.settings import Settings
    from hookbus.trainer.trainer import Trainer

#: What a step gives: see :func:`shown`.
Outputs: TypeAlias = "Tensor | dict[str, Any]"

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
        self._shortcuts = trainer._shortcuts
        precision = trainer._precision
        self._precision: Precision = precision
        self._forward = precision.forward_context if precision.wraps_steps else None
        # Whether the gradients are those of a window that goes on; else they are cleared first.
        self._within = trainer.progress.batch > trainer.progress.batch_stepped
        self._plain: Any = None  # the optimiser that was found to need no more than to be told to step

    def __call__(self, batch: Any, batch_idx: int, stepping: bool) -> Outputs:
        """Train on ``batch``.

        Args:
            batch: on the right device.
            batch_idx: its index in the epoch.
            stepping: whether it ends a window, so that the optimiser steps.

        Returns:
            What :func:`shown` turns into the ``outputs`` of ``on_train_batch_end``: the loss, divided by the window, or a
            dictionary with it under ``loss`` and whatever else the step returned; empty if it returned None.

        Raises:
            MisconfigurationException: the step returned something else, or ``optimizer_step`` never ran the closure.
        """
        trainer = self._trainer
        within, self._within = self._within, not stepping
        if not stepping:
            return self._differentiate(batch, batch_idx, within)[1]
        wrapped = trainer._wrapped_optimizers[0]
        if not self._shortcuts.step or wrapped.replaced or not (wrapped is self._plain or self._is_plain(wrapped)):
            return self._step_through_hook(batch, batch_idx, within, wrapped)

        # The plain way with all calls of defaults left out; both give the same (tests/trainer/test_shortcuts.py).
        fire, module, settings, optimizer = self._fire, self._module, trainer.settings, wrapped._optimizer
        answer = (
            self._answer(batch, batch_idx) if self._forward else fire.training_step(trainer, module, batch, batch_idx)
        )
        loss: Tensor | None
        outputs: Outputs
        if type(answer) is Tensor and answer.numel() == 1 and settings.accumulate_grad_batches == 1:
            loss = outputs = answer
        else:
            loss, outputs = _read(answer, settings.accumulate_grad_batches, trainer)
        if not within:
            fire.on_before_zero_grad(trainer, module, optimizer)
            optimizer.zero_grad()
        if loss is not None:
            fire.on_before_backward(trainer, module, loss)
            loss.backward()  # type: ignore[no-untyped-call]
            fire.on_after_backward(trainer, module)
        fire.on_before_optimizer_step(trainer, module, optimizer)
        if settings.gradient_clip_val is not None or not self._shortcuts.clip:
            clip(trainer, optimizer)
        optimizer.step()
        trainer.progress.global_step += 1
        return outputs

    def _step_through_hook(self, batch: Any, batch_idx: int, within: bool, wrapped: Any) -> Outputs:
        """The plain way: ``optimizer_step`` runs the optimiser, which runs the closure, however often it likes."""
        trainer = self._trainer
        outputs: Outputs | None = None

        def closure() -> Tensor | None:
            nonlocal outputs
            loss, outputs = self._differentiate(batch, batch_idx, within)
            return loss

        self._fire.optimizer_step(trainer, self._module, trainer.current_epoch, batch_idx, wrapped, closure)
        trainer.progress.global_step += 1
        if outputs is None:
            raise MisconfigurationException(
                "optimizer_step was called but the closure never ran, so there is no loss and no gradient; call "
                "optimizer.step(closure=optimizer_closure) in it, or optimizer_closure() yourself"
            )
        return outputs

    def _is_plain(self, wrapped: Any) -> bool:
        """Whether stepping ``wrapped`` with a closure is: the closure, the hooks after it, ``optimizer.step()``."""
        if not self._precision.steps_plainly(wrapped.optimizer):
            return False
        self._plain = wrapped
        return True

    def _differentiate(self, batch: Any, batch_idx: int, within: bool) -> tuple[Tensor | None, Outputs]:
        """Compute the loss and its gradients; with ``within`` they are added to those that there are.

        Returns:
            The loss that was differentiated, None for none, and what ``__call__`` returns.
        """
        trainer, fire, module = self._trainer, self._fire, self._module
        loss, outputs = _read(self._answer(batch, batch_idx), trainer.settings.accumulate_grad_batches, trainer)
        if not within:
            optimizer = trainer.optimizers[0]
            fire.on_before_zero_grad(trainer, module, optimizer)
            fire.optimizer_zero_grad(trainer, module, trainer.current_epoch, batch_idx, optimizer)
        if loss is not None:
            loss = self._precision.scale(loss)
            fire.on_before_backward(trainer, module, loss)
            fire.backward(trainer, module, loss)
            fire.on_after_backward(trainer, module)
        return loss, outputs

    def _answer(self, batch: Any, batch_idx: int) -> Any:
        """What ``training_step`` returns."""
        if self._forward is None:
            return self._fire.training_step(self._trainer, self._module, batch, batch_idx)
        with self._forward():
            return self._fire.training_step(self._trainer, self._module, batch, batch_idx)


def shown(outputs: Outputs) -> dict[str, Any]:
    """What ``on_train_batch_end`` gets as ``outputs``, made only if there is somebody to get it."""
    return {"loss": outputs.detach()} if isinstance(outputs, Tensor) else outputs


def _read(answer: Any, accumulate: int, trainer: Trainer) -> tuple[Tensor | None, dict[str, Any]]:
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
            f"training_step returned None: no update for this batch; ignore this if it was on purpose{_wrapped_by(trainer)}",
            stacklevel=2,
        )
        return None, {}
    else:
        raise MisconfigurationException(
            f"training_step must return {_ANSWERS}; got {type(answer).__name__}: {answer!r}"
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{type(loss).__name__}: {loss!r}"
        )
        raise MisconfigurationException(
            f"the loss must be a tensor with one element (reduce it, e.g. by .mean()); got {what}"
        )
    if accumulate > 1:
        loss = loss / accumulate
    return loss, {"loss": loss.detach(), **extra}


def _wrapped_by(trainer: Trainer) -> str:
    """Who may have lost the loss on its way: a wrapper that returns nothing gives None in its place."""
    names = [repr(row.plugin) for row in trainer.bus.order("training_step") if "wrapper" in row.flags]
    if not names:
        return ""
    return f". If the step did return a loss, a wrapper lost it: that of {', '.join(names)} must return what its yield gives"


def clip(trainer: Trainer, optimizer: Any) -> None:
    """Let the hook clip the gradients by the bound that the trainer was given."""
    settings = trainer.settings
    trainer.bus.fire.configure_gradient_clipping(
        trainer, trainer.lightning_module, optimizer, settings.gradient_clip_val, settings.gradient_clip_algorithm
    )


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

    def __call__(self, batch: Any, batch_idx: int, stepping: bool) -> Outputs:
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
        # Without a bound the default has nothing to do; asking it costs as much as all other hooks of a step.
        if trainer.settings.gradient_clip_val is not None or not trainer._shortcuts.clip:
            clip(trainer, optimizer)


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
