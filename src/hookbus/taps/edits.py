"""Edits: each editing tap gets what the one before made of it, and what it returns must fit in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hookbus.taps import leaves
from hookbus.taps.errors import EditError
from hookbus.taps.event import Replace, TapEvent
from hookbus.taps.subscriber import Subscriber


def edit_output(subscribers: Sequence[Subscriber], event: TapEvent) -> Any:
    """Hand a module's output through observers and editors, in order.

    Returns:
        The output to go on with.
    """
    for subscriber in subscribers:
        try:
            answer = _ask(subscriber, event)
            if isinstance(answer, Replace):
                answer = answer.output
            if answer is None:
                continue
            _check(subscriber, event, event._output, answer, "output")
        except Exception as error:
            subscriber.blame(error, event)
            raise
        event = event.copy()
        event._output = answer
    return event._output


def edit_arguments(subscribers: Sequence[Subscriber], event: TapEvent) -> TapEvent:
    """Hand the arguments of a call through observers and editors, in order.

    Returns:
        The event with the arguments to call the module with; the very one that was given if nobody has edited them.
    """
    for subscriber in subscribers:
        try:
            answer = _ask(subscriber, event)
            if answer is None:
                continue
            if isinstance(answer, tuple):
                answer = Replace(args=answer)
            if not isinstance(answer, Replace):
                raise EditError(
                    f"{subscriber.who} returned a {type(answer).__name__} for {event!r}; expected a tuple of positional "
                    "arguments, such as (x,), or hookbus.taps.Replace(args=…, kwargs=…)"
                )
            args = event._args if answer.args is None else answer.args
            kwargs = dict(event._kwargs) if answer.kwargs is None else answer.kwargs
            _check(subscriber, event, (event._args, dict(event._kwargs)), (args, kwargs), "arguments")
        except Exception as error:
            subscriber.blame(error, event)
            raise
        event = event.copy()
        event._args, event._kwargs = args, kwargs
    return event


def edit_gradient(subscribers: Sequence[Subscriber], event: TapEvent) -> Tensor | None:
    """Hand a gradient through observers and editors, in order.

    Returns:
        The gradient to go on with; None if it stays as it is.
    """
    original = event._grad
    for subscriber in subscribers:
        if not subscriber.open:
            continue
        try:
            answer = _ask(subscriber, event)
            if answer is None:
                continue
            if event.kind == "parameter_grad":
                raise EditError(
                    f"{subscriber.who} returned a {type(answer).__name__} for {event!r}, which cannot take the place of a "
                    "gradient that has been added already; change event.parameter.grad in place, or edit kind 'grad_output'"
                )
            if not isinstance(answer, Tensor) or event._grad is None:
                what = "there is no gradient to replace" if event._grad is None else "expected a tensor"
                raise EditError(f"{subscriber.who} returned a {type(answer).__name__} for {event!r}; {what}")
            _check(subscriber, event, event._grad, answer, "gradient")
        except Exception as error:
            subscriber.blame(error, event)
            raise
        event = event.copy()
        event._grad = answer
    return None if event._grad is original else event._grad


def _ask(subscriber: Subscriber, event: TapEvent) -> Any:
    """The answer of an editor, which gets tensors as they are in the graph; of an observer None."""
    if subscriber.selection.edits:
        return subscriber.function(event.copy(live=True))
    subscriber.observe(event)
    return None


def _check(subscriber: Subscriber, event: TapEvent, old: Any, new: Any, what: str) -> None:
    """Raise unless every tensor of ``new`` fits in the place of the one in ``old``."""
    if subscriber.selection.allow_shape_change:
        return
    before, after = dict(leaves.tensors(old)), dict(leaves.tensors(new))
    if before.keys() != after.keys() or (not before and type(old) is not type(new)):
        raise EditError(
            f"{subscriber.who} changed the structure of the {what} of {event!r}: expected {_structure(old)}, got "
            f"{_structure(new)}; return the same structure, or allow it with allow_shape_change=True"
        )
    for path, tensor in before.items():
        other = after[path]
        if (tensor.shape, tensor.dtype, tensor.device) != (other.shape, other.dtype, other.device):
            raise EditError(
                f"{subscriber.who} changed the {what}{leaves.spelled(path)} of {event!r}: expected {_described(tensor)}, "
                f"got {_described(other)}; return a tensor like the one that came, or allow it with allow_shape_change=True"
            )


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def _structure(value: Any) -> str:
    found = [leaves.spelled(path) or "itself" for path, _ in leaves.tensors(value)]
    return f"{type(value).__name__} with tensors at {', '.join(found) or 'no place'}"
