"""The dialect of Lightning's callbacks: overridden methods, called by position, whose return values do not count."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from hookbus.callback import CALLBACK_HOOKS
from hookbus.dialects.base import derives_from, inherited_options, is_marked, overridden
from hookbus.dialects.implementation import Implementation
from hookbus.dialects.signature import SignatureMismatchError, positional_arguments
from hookbus.hookspecs import nearest


class HookNameWarning(UserWarning):
    """A method looks like a hook, but no hook has its name, so it will never be called."""


def is_callback(obj: object) -> bool:
    """Whether ``obj`` is a callback of hookbus or Lightning."""
    return derives_from(obj, "Callback")


def implementations(callback: object, arguments: Mapping[str, Sequence[str]]) -> list[Implementation]:
    """One record for each hook method that ``callback`` overrides or has been assigned.

    Args:
        callback: an instance of ``Callback``.
        arguments: the names of each hook's arguments.

    Raises:
        SignatureMismatchError: for a method that cannot take its hook's arguments; all such methods are named.
    """
    found, problems = [], []
    for hook in CALLBACK_HOOKS:
        method = overridden(callback, hook)
        if method is None or hook not in arguments or is_marked(callback, hook):
            continue  # marked methods are native implementations
        try:
            args = positional_arguments(method, arguments[hook])
        except SignatureMismatchError as error:
            problems.append(f"{type(callback).__name__}.{hook} {error}")
            continue
        made = Implementation(hook, method, args, options=inherited_options(callback, hook))
        found.append(replace(made, silent=not made.wrapper))
    if problems:
        raise SignatureMismatchError("; ".join(problems))
    return found


def snapshot(callback: object) -> tuple[object, ...]:
    """The methods as they are now, to be compared with a later snapshot. Costs a few microseconds."""
    return tuple(map(getattr, repeat(callback), CALLBACK_HOOKS, repeat(None)))


def warn_of_misspelt(callback: object, known: Sequence[str]) -> None:
    """Warn of each ``on_…`` method that is no hook, with the nearest name of one."""
    for name in dir(type(callback)):
        if not name.startswith("on_") or name in CALLBACK_HOOKS or not callable(getattr(type(callback), name, None)):
            continue
        if overridden(callback, name) is None or is_marked(callback, name):
            continue
        if name in known:
            hint = "Lightning has no such callback hook: mark it with @hookbus.hookimpl to implement hookbus's own"
        else:
            guess = nearest(name, known)
            hint = f"did you mean {guess!r}?" if guess else "rename it if it is a helper"
        warnings.warn(
            f"{type(callback).__name__}.{name} is not a callback hook and will not be called; {hint}",
            HookNameWarning,
            stacklevel=4,
        )
