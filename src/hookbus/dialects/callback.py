"""The dialect of Lightning's callbacks: overridden methods, called by position, whose return values do not count."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Final

from hookbus.callback import CALLBACK_HOOKS
from hookbus.dialects import methods
from hookbus.dialects.base import derives_from, is_marked, overridden
from hookbus.dialects.implementation import Implementation
from hookbus.hookspecs import nearest

_CALLBACK: Final = methods.Manner(CALLBACK_HOOKS, silent=True)


class HookNameWarning(UserWarning):
    """A method looks like a hook, but no hook has its name, so it will never be called."""


def is_callback(obj: object) -> bool:
    """Whether ``obj`` is a callback of hookbus or Lightning."""
    return derives_from(obj, "Callback")


def implementations(
    callback: object, arguments: Mapping[str, Sequence[str]], *, several_loaders: bool = True
) -> list[Implementation]:
    """One record for each hook method that ``callback`` overrides or has been assigned.

    Args:
        callback: an instance of ``Callback``.
        arguments: the names of each hook's arguments.
        several_loaders: whether methods get ``dataloader_idx`` that do not demand it.

    Raises:
        SignatureMismatchError: for a method that cannot take its hook's arguments; all such methods are named.
    """
    spare = () if several_loaders else ("dataloader_idx",)
    return methods.implementations(callback, _CALLBACK, arguments, spare=spare)


class MethodSnapshot:
    """The methods of a callback as they are now, to be compared with those of later. Costs a few microseconds.

    Args:
        callback: is not kept.
    """

    __slots__ = ("_inherited", "_methods")

    def __init__(self, callback: object) -> None:
        self._inherited = tuple(map(getattr, repeat(type(callback)), CALLBACK_HOOKS, repeat(None)))
        self._methods = None if methods.plain(callback, CALLBACK_HOOKS, self._inherited) else _bound(callback)

    def differs(self, callback: object) -> bool:
        """Whether a method was assigned or patched since, on the object or on its class."""
        if self._methods is not None:
            return self._methods != _bound(callback)
        now = map(getattr, repeat(type(callback)), CALLBACK_HOOKS, repeat(None))
        return any(map(operator.is_not, self._inherited, now)) or not vars(callback).keys().isdisjoint(CALLBACK_HOOKS)


def _bound(callback: object) -> tuple[object, ...]:
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
