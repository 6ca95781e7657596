"""How many of a hook's arguments a function can take, and by which names, for dialects that call by position."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class SignatureMismatchError(TypeError):
    """A method cannot be called with the arguments of the hook that it implements."""


def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    """The parameters that a call of ``function`` has to fill; None if there is no telling.

    Kept for methods of classes: every run reads the module's again.
    """
    owner = getattr(function, "__func__", None)
    if type(function) is not types.MethodType or type(owner) is not types.FunctionType:
        return _read(function)
    if owner not in _known:
        _known[owner] = _read(function)
    return _known[owner]


_known: weakref.WeakKeyDictionary[types.FunctionType, tuple[inspect.Parameter, ...] | None] = (
    weakref.WeakKeyDictionary()
)


def _read(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def named_arguments(function: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    """Those of ``names`` by which ``function`` can be given an argument: as a parameter, or through ``**kwargs``."""
    parameters = parameters_of(function) or ()
    own = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return tuple(name for name in names if takes_any or name in own)


def positional_arguments(
    function: Callable[..., Any], offered: Sequence[str], *, spare: Sequence[str] = (), by_name: Sequence[str] = ()
) -> tuple[str, ...]:
    """Which of the ``offered`` arguments to pass to ``function``, in the order in which it takes them.

    A function that has room for all of them gets all, by position, whatever it calls them (as Lightning does). One
    that has room for fewer gets those that it names.

    Args:
        function: a bound method or anything else that can be called.
        offered: the hook's argument names in order.
        spare: those among ``offered`` that only a function gets which demands them.
        by_name: what the function is given by keyword besides.

    Raises:
        SignatureMismatchError: if a parameter without a default can get no value.
    """
    parameters = parameters_of(function)
    if parameters is None:  # builtins and some C functions have no signature: pass everything
        return tuple(offered)
    parameters = tuple(p for p in parameters if p.name not in by_name)
    places = [p for p in parameters if p.kind in _POSITIONAL]
    required = [p.name for p in places if p.default is p.empty]
    needed = [name for name in offered if name not in spare or name in required]
    if len(required) <= len(needed):
        offered = needed
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        names = ", ".join(keyword_only)
        raise SignatureMismatchError(f"takes the keyword-only argument(s) {names}, which no hook passes")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return tuple(offered)
    if len(places) >= len(offered) and len(required) <= len(offered):
        return tuple(offered)
    named_args = tuple(p.name for p in places if p.name in offered)
    missing = [name for name in required if name not in offered]
    if not missing:
        return named_args
    if len(required) <= len(offered) and len(required) == len(places) and _prefix(required, offered):
        return tuple(offered[: len(required)])
    taken = ", ".join(p.name for p in places)
    raise SignatureMismatchError(f"takes ({taken}), but the hook has ({', '.join(offered)})")


def _prefix(required: Sequence[str], offered: Sequence[str]) -> bool:
    """Whether the parameters are the hook's first arguments under names of the author's own.

    A name that is that of another of the hook's arguments speaks against it: passing by position would swap the two.
    """
    return all(ours == theirs or ours not in offered for ours, theirs in zip(required, offered, strict=False))
