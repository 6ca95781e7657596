"""What can go wrong at registration and dispatch, and how several errors are brought home in one."""

from __future__ import annotations

import traceback

import pluggy


class RegistrationError(pluggy.PluginValidationError, ValueError):
    """A plugin cannot take part as it is; the message lists every problem with plugin, hook, file and line."""


class DuplicateStateKeyError(RegistrationError, RuntimeError):
    """Two stateful plugins would be saved under one key, so one state would be lost."""


class OrderCycleError(RegistrationError):
    """``before``/``after`` ask for an order that does not exist; the message prints the cycle."""


class UnknownHookError(AttributeError):
    """No hook has this name."""


class EarlierError(RuntimeError):
    """What is kept of an error that a plugin raised earlier: its text, without the frames that hold on to tensors.

    Attributes:
        traceback: the formatted traceback.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.traceback = "".join(traceback.format_exception(type(error), error, error.__traceback__))


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, on Python 3.10 too (where only those who read ``__notes__`` see it)."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        vars(error)["__notes__"] = [*getattr(error, "__notes__", []), note]


def raise_first(errors: list[BaseException]) -> None:
    """Raise the first of several errors, the others attached as its notes; nothing if there is none.

    The list is emptied: it belongs to a frame of the traceback, and would keep all of it alive.
    """
    if not errors:
        return
    first, *others = errors
    errors.clear()
    for other in others:
        if other is not first:
            add_note(first, f"then, while that was handled: {type(other).__name__}: {other}")
    try:
        raise first
    finally:
        del first, others
