"""What can go wrong at registration and dispatch, and how several errors are brought home in one."""

from __future__ import annotations

import pluggy


class RegistrationError(pluggy.PluginValidationError, ValueError):
    """A plugin cannot take part as it is; the message lists every problem with plugin, hook, file and line."""


class DuplicateStateKeyError(RegistrationError, RuntimeError):
    """Two stateful plugins would be saved under one key, so one state would be lost."""


class OrderCycleError(RegistrationError):
    """``before``/``after`` ask for an order that does not exist; the message prints the cycle."""


class UnknownHookError(AttributeError):
    """No hook has this name."""


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, on Python 3.10 too (where only those who read ``__notes__`` see it)."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), note]


def raise_first(errors: list[BaseException]) -> None:
    """Raise the first of several errors, the others attached as its notes; nothing if there is none."""
    if not errors:
        return
    first, *others = errors
    for other in others:
        if other is not first:
            add_note(first, f"then, while that was handled: {type(other).__name__}: {other}")
    raise first
