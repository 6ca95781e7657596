"""Training: the hooks of ``Trainer.fit``, from ``on_fit_start`` to ``on_fit_end``, and the optimisation step.

One epoch, as pseudo-code; a window is ``accumulate_grad_batches`` batches::

    on_train_epoch_start
    for batch in train_dataloader:
        (transfer, see batch.py)
        on_train_batch_start
        optimizer_step:                      # only where a window ends; else its closure is run alone
            training_step
            on_before_zero_grad, optimizer_zero_grad          # on the first batch of a window
            on_before_backward, backward, on_after_backward
            on_before_optimizer_step, configure_gradient_clipping     # where a window ends
        lr_scheduler_step                    # where due
        on_train_batch_end
        (validation, see evaluate.py)        # where due
    on_train_epoch_end
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import STEP_OUTPUT, Closure, LightningModule, Optimizer, Scheduler, Tensor, Trainer
from hookbus.markers import hookspec


@hookspec
def on_fit_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """Fit begins.

    Called once, on every process, after ``configure_optimizers`` and before the sanity check: the model is where it
    trains and a resumed run has its state back. The first place where everything exists.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_sanity_check_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """The sanity check begins: a few validation batches before training, to find errors early.

    Called after ``on_fit_start``. The validation hooks follow, then ``on_sanity_check_end``. Not called where there is
    no validation, where ``num_sanity_val_steps=0``, or where training resumes in the middle of an epoch.

    Pitfall: the ``on_validation_…`` hooks run in between; ask ``trainer.sanity_checking`` to tell them from real ones.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_sanity_check_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """The sanity check is over.

    Called after the last hook of its validation and before ``train_dataloader`` is asked. Metrics of the check are not
    results: reset your own.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_train_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """Training begins, after the sanity check and before the first epoch.

    Called once per fit. Good for timers and for recording the initial state.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module, in the mode in which it will train.
    """


@hookspec
def on_train_epoch_start(trainer: Trainer, pl_module: LightningModule) -> None:
    """An epoch begins, before its first batch is fetched.

    Called once per epoch. Pitfall: an epoch that is resumed in its middle does not call it again.

    Args:
        trainer: the trainer that runs; ``trainer.current_epoch`` is the epoch that begins, counted from 0.
        pl_module: the user's module.
    """


@hookspec
def on_train_batch_start(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> int | None:
    """A training batch begins, before anything is computed from it.

    Called after the batch was transferred to the device and before ``training_step``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: the very object that ``training_step`` will get, on the device; a change in place is seen there.
        batch_idx: number of the batch in its epoch, from 0.

    Returns:
        -1, from the module or a native plugin, to skip this batch and the rest of the epoch: ``on_train_batch_end`` of
        this batch and the epoch's validation are left out, the epoch's schedulers still step and
        ``on_train_epoch_end`` is called. A ``Callback``'s -1 is ignored, as in Lightning. To skip one batch only, use
        ``trainer.control.skip_batch()``.
    """


@hookspec(firstresult=True, native_only=True)
def training_step(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> STEP_OUTPUT:
    """Compute the loss of one batch.

    Called once per batch (with an optimizer such as LBFGS once per evaluation of its closure), with autocast where the
    precision asks for it. The first answer that is not None counts; the module's own method answers last. Replace it to
    train differently, wrap it (``wrapper=True``) to time it or to change the loss.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        batch: what the dataloader made, on the device.
        batch_idx: number of the batch in its epoch, from 0.

    Returns:
        The loss as a scalar tensor, or a mapping that holds it as ``"loss"``. None: no backward pass for this batch;
        the optimizer steps nevertheless where it is due. With manual optimisation anything.
    """


@hookspec
def on_before_zero_grad(trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
    """The gradients are about to be cleared.

    Called after ``training_step`` and before ``optimizer_zero_grad``, on the first batch of an accumulation window.
    The gradients are still those of the step before, and the weights those that it made: a good place to look at both.
    Not called with manual optimisation.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        optimizer: the optimizer whose gradients will be cleared.
    """


@hookspec(firstresult=True, native_only=True)
def optimizer_zero_grad(
    trainer: Trainer, pl_module: LightningModule, epoch: int, batch_idx: int, optimizer: Optimizer
) -> Any:
    """Clear the gradients.

    Called after ``on_before_zero_grad`` and before the backward pass, on the first batch of an accumulation window.
    The module's own method answers last; by default it calls ``optimizer.zero_grad()``. Not called with manual
    optimisation.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        epoch: the current epoch, from 0.
        batch_idx: number of the batch in its epoch, from 0.
        optimizer: the optimizer whose parameters' gradients are cleared.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_before_backward(trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
    """The backward pass is about to begin.

    Called after the gradients were cleared and before ``backward``, also with manual optimisation.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        loss: scalar tensor with its graph, divided by ``accumulate_grad_batches`` and scaled under mixed precision with
            a gradient scaler: not the number that ``training_step`` returned.
    """


@hookspec(firstresult=True, native_only=True)
def backward(trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> Any:
    """Compute the gradients.

    Called between ``on_before_backward`` and ``on_after_backward``, also with manual optimisation. The module's own
    method answers last; by default it calls ``loss.backward()``. Wrap it (``wrapper=True``) to profile, to trace, or to
    catch an out-of-memory error.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        loss: the scalar of ``on_before_backward``.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_after_backward(trainer: Trainer, pl_module: LightningModule) -> None:
    """The gradients of this batch have been added to ``.grad``.

    Called after ``backward``, on every batch, also those that only accumulate.

    Pitfall: under mixed precision with a gradient scaler the gradients are still scaled; look at them in
    ``on_before_optimizer_step``.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_before_optimizer_step(trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
    """The optimizer is about to step: the place for gradient statistics.

    Called once the gradients of a window are complete, after ``on_after_backward`` and before
    ``configure_gradient_clipping``, inside ``optimizer_step``'s closure; also with manual optimisation. The gradients
    are accumulated and unscaled, and not clipped yet.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        optimizer: the optimizer that will step.
    """


@hookspec(firstresult=True, native_only=True)
def configure_gradient_clipping(
    trainer: Trainer,
    pl_module: LightningModule,
    optimizer: Optimizer,
    gradient_clip_val: int | float | None,
    gradient_clip_algorithm: str | None,
) -> Any:
    """Clip the gradients.

    Called right after ``on_before_optimizer_step``, even if nothing is to be clipped. The module's own method answers
    last; by default it calls ``clip_gradients`` with the two values. Not called with manual optimisation.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        optimizer: the optimizer whose parameters' gradients are clipped.
        gradient_clip_val: the bound the Trainer was given, None or 0 for no clipping.
        gradient_clip_algorithm: ``"norm"`` (total norm over all parameters) or ``"value"`` (each element); None where
            the Trainer was given none.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec(firstresult=True, native_only=True)
def optimizer_step(
    trainer: Trainer, pl_module: LightningModule, epoch: int, batch_idx: int, optimizer: Optimizer, closure: Closure
) -> Any:
    """Update the weights, computing loss and gradients on the way.

    Called where an accumulation window ends, after ``on_train_batch_start``. The module's own method answers last; by
    default it calls ``optimizer.step(closure)``. Good for warm-up of the learning rate and for steps that are skipped
    under a condition. Not called with manual optimisation.

    Pitfall: ``training_step``, the backward pass and clipping all happen *inside* ``closure``; whoever replaces the
    step must have it run, else it is an error.

    Args:
        trainer: the trainer that runs; ``trainer.global_step`` grows when the step is done.
        pl_module: the user's module.
        epoch: the current epoch, from 0.
        batch_idx: number of the batch in its epoch, from 0.
        optimizer: the optimizer that steps.
        closure: computes the loss, clears and fills the gradients, clips them, and returns the loss.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec(firstresult=True, native_only=True)
def lr_scheduler_step(trainer: Trainer, pl_module: LightningModule, scheduler: Scheduler, metric: Any) -> Any:
    """Advance a learning-rate scheduler.

    Called for each scheduler that is due: after the optimizer's step and before ``on_train_batch_end`` (those of
    interval ``"step"``, then on the last batch of the epoch those of ``"epoch"``); those that watch a metric per epoch
    come after ``on_train_epoch_end``. The module's own method answers last; by default it calls ``scheduler.step()``,
    with the metric where there is one. Not called with manual optimisation.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        scheduler: the scheduler that is due.
        metric: value of the metric that the scheduler monitors, None for schedulers that monitor nothing.

    Returns:
        A plugin that replaces the step returns something that is not None, say True: then nobody else is asked.
    """


@hookspec
def on_train_batch_end(
    trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
) -> None:
    """A training batch is done.

    Called after the optimizer and the schedulers stepped and before a validation that is due. ``trainer.global_step``
    already counts this batch's step.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        outputs: ``{"loss": tensor}`` or the mapping that ``training_step`` returned, tensors detached; ``"loss"`` is
            divided by ``accumulate_grad_batches``. None or empty where the step returned None.
        batch: the batch, on the device.
        batch_idx: number of the batch in its epoch, from 0.
    """


@hookspec
def on_train_epoch_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """An epoch is over, its validation included.

    Called at the very end of the epoch. Callbacks that act on metrics (early stopping, checkpoints) run after the
    module, so that they see what it logged here.

    Pitfall: ``trainer.current_epoch`` is still the epoch that ends.

    Args:
        trainer: the trainer that runs; ``trainer.callback_metrics`` holds training and validation metrics of the epoch.
        pl_module: the user's module.
    """


@hookspec
def on_train_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """Training is over, the loggers are still open.

    Called once, after the last epoch, also when it was stopped early; not after an exception.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """


@hookspec
def on_fit_end(trainer: Trainer, pl_module: LightningModule) -> None:
    """Fit is over.

    Called once, on every process, after ``on_train_end`` and before ``teardown``; not after an exception.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
    """
