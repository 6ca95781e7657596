"""Taps: PyTorch's own module, tensor and optimizer hooks, delivered on the bus.

Nothing is installed on the model while nobody subscribes. ``@hookimpl(modules="encoder.layers.*.mlp", every=100)``
says where in the network and how often; :mod:`hookbus.taps` has the rest. Each tap gets one ``event`` that says what
happened where:

    name, aliases, module, kind     which module, under which names
    args, kwargs, output            what went in and came out of a forward pass
    grad, path                      a gradient, and where in a nested output or input it belongs
    grad_kind                       of a parameter's gradient: local, accumulated or reduced
    parameter, exception            of the taps of parameters and of errors
    call_index                      number of this call of the module within one forward pass, from 0
    step, micro_step, epoch, phase  when: optimizer step, batch in the window, epoch, train/val/sanity/predict
    grad_enabled, inference         the autograd mode
    recompute                       whether activation checkpointing runs this forward again
    rank, device, dtype, amp_scale  where, in which type, and the loss scale of mixed precision

Tensors in an event share memory with the network's: an in-place operation that follows changes them, so clone what is kept.
They are detached, and implementations return None; those marked ``edits=True`` get them in the autograd graph, and answer.
"""

from __future__ import annotations

from typing import Any

from hookbus.hookspecs.types import LightningModule, Optimizer, TapEvent, Trainer
from hookbus.markers import hookspec


@hookspec(native_only=True, tap=True)
def on_module_forward_pre(event: TapEvent) -> Any:
    """A module inside the network is about to be called.

    Called before the module's ``forward``.

    Args:
        event: ``args`` and ``kwargs`` are what the module is called with.

    Returns:
        None to leave the arguments as they are. An implementation with ``edits=True`` may return a tuple of positional
        arguments, or ``hookbus.taps.Replace(args=…, kwargs=…)``.
    """


@hookspec(native_only=True, tap=True)
def on_module_forward(event: TapEvent) -> Any:
    """A module inside the network has been called: the place for activations.

    Called after the module's ``forward`` returned.

    Args:
        event: ``output`` is what the module returned, in whatever structure; ``args`` and ``kwargs`` what it was given.

    Returns:
        None to leave the output as it is. An implementation with ``edits=True`` may return another one, of the same
        structure, shapes, dtypes and devices.
    """


@hookspec(native_only=True, tap=True)
def on_module_forward_error(event: TapEvent) -> None:
    """A module inside the network raised.

    Called instead of ``on_module_forward``, while the exception leaves: for the innermost module first. Good for naming
    the layer and the shapes that led to an error.

    Args:
        event: as for ``on_module_forward``, with ``exception`` and without an output.
    """


@hookspec(native_only=True, tap=True)
def on_module_grad_output(event: TapEvent) -> Any:
    """The gradient of the loss with respect to a tensor that a module returned is known.

    Called during the backward pass, once for each output tensor that takes part in it. Under mixed precision with a
    gradient scaler the gradient is scaled (``event.amp_scale``).

    Args:
        event: ``grad`` has the shape of the tensor, None for an unused output of an operation with several;
            ``path`` says where the tensor stands in the output.

    Returns:
        None to leave it as it is. An implementation with ``edits=True`` may return the gradient to go on with, of the
        same shape.
    """


@hookspec(native_only=True, tap=True)
def on_module_grad_input(event: TapEvent) -> Any:
    """The gradient of the loss with respect to a tensor that a module was given is known.

    Called during the backward pass, once for each input tensor that requires a gradient; never for a module whose
    inputs need none, such as the first layer. It is the gradient of the tensor, with what all of its users contribute;
    an implementation with ``edits=True`` gets and edits the contribution of this module alone.

    Args:
        event: ``grad`` has the shape of the tensor; ``path`` says where it stands among the arguments.

    Returns:
        None to leave it as it is. An implementation with ``edits=True`` may return the gradient to go on with, of the
        same shape.
    """


@hookspec(native_only=True, tap=True)
def on_parameter_grad(event: TapEvent) -> None:
    """A gradient has been added to a parameter's ``.grad``.

    Called during the backward pass, as soon as that parameter is done.

    Pitfall: the value may be scaled, local to this process and part of an unfinished accumulation window. For gradient
    statistics use ``on_before_optimizer_step``.

    Args:
        event: ``parameter`` and ``grad`` are the parameter's, ``name`` is its name, ``module`` the module that owns it.
            ``grad_kind`` is ``local`` for what one backward pass has brought in this process, ``accumulated`` if it has
            been added to earlier ones, and ``reduced`` if it is the mean over all processes already (FSDP2).
    """


@hookspec(native_only=True)
def on_optimizer_step_skipped(trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
    """The gradient scaler found gradients that are not finite and left the optimizer's step out.

    Called under mixed precision with a gradient scaler, in place of the step. Now and then it is normal, while the
    scale is sought; many in a row mean that training has gone wrong.

    Args:
        trainer: the trainer that runs.
        pl_module: the user's module.
        optimizer: the optimizer that did not step.
    """
