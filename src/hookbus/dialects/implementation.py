"""What every dialect produces: one record for each hook that an object implements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hookbus.markers import HookimplOptions


@dataclass(frozen=True, eq=False)
class Implementation:
    """One function that answers one hook.

    Attributes:
        hook: the hook's name.
        function: what is called, bound; it is given ``args`` by position and ``optional`` by keyword.
        args: names of the hook's arguments, in the order in which ``function`` takes them.
        optional: names of parameters with a default of their own; passed by keyword where the hook has them.
        options: as given to ``@hookimpl``; empty for functions that carry no mark.
        silent: its return value does not count (Lightning drops those of callbacks).
        origin: the function as its author wrote it, before any wrapping, for messages and source locations.
    """

    hook: str
    function: Callable[..., Any]
    args: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: HookimplOptions = field(default_factory=HookimplOptions)
    silent: bool = False
    origin: Callable[..., Any] | None = None

    @property
    def wrapper(self) -> bool:
        """Whether this runs around the others, in either of pluggy's forms."""
        return bool(self.options.get("wrapper") or self.options.get("hookwrapper"))

    @property
    def location(self) -> str:
        """``file:line`` of the function as written, or its type where there is no source."""
        return source_location(self.origin or self.function)

    def calling(self, function: Callable[..., Any], args: tuple[str, ...] | None = None) -> Implementation:
        """The same implementation, carried out by another function."""
        return replace(
            self, function=function, args=self.args if args is None else args, origin=self.origin or self.function
        )


def source_location(function: object) -> str:
    """``file:line`` where ``function`` is defined; the name of its type if it has no code (a Mock, a builtin).

    A method of an object with the attribute ``hookbus_handler`` does no more than to call that one, which is meant.
    """
    handler = getattr(getattr(function, "__self__", None), "hookbus_handler", None)
    if callable(handler):
        return source_location(handler)
    if isinstance(function, functools.partial):
        return source_location(function.func)
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return f"<{type(function).__name__}>"
    return f"{code.co_filename}:{code.co_firstlineno}"
