"""The methods of modules, data modules and callbacks that answer hooks: one way to read them, and what it found last.

Every fit reads a module's methods anew, since they may have been assigned or patched since. What they come to depends on
the class's functions alone, as long as the object has none of its own; so it is kept by class, with those functions, and
looking whether they are still the same takes a tenth of the time of reading them.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from hookbus.dialects.base import is_marked, options_in, overridden, own_namespaces
from hookbus.dialects.implementation import Implementation
from hookbus.dialects.signature import SignatureMismatchError, named_arguments, positional_arguments

#: Arguments that Lightning passes by keyword.
_BY_NAME = frozenset({"stage", "gradient_clip_val", "gradient_clip_algorithm"})
#: Hooks that Lightning tells of the loader even where there is only one.
_TRANSFER = frozenset({"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"})


@dataclass(frozen=True)
class Manner:
    """How the methods of one kind of object are read.

    Attributes:
        hooks: the names that count.
        always: those whose base method takes part as well, as it does something.
        hidden: arguments of hooks that methods do not get.
        silent: whether return values do not count.
        decisive: those whose mere presence decides what is done; a base method with a wrapper around it is none.
    """

    hooks: tuple[str, ...]
    always: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    silent: bool = False
    decisive: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Method:
    """One method as it was found: the hook's arguments, and those that it takes (None if it does not count)."""

    hook: str
    offered: Sequence[str] | None
    args: tuple[str, ...] | None = None
    by_name: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Read:
    """What a class came to, and from which functions; they are held weakly, as most know their class."""

    functions: tuple[Callable[[], Any], ...]
    methods: tuple[_Method, ...]
    absent: tuple[str, ...]

    def holds(
        self, obj: object, manner: Manner, functions: Iterable[Any], arguments: Mapping[str, Sequence[str]]
    ) -> bool:
        """Whether reading again would give the same."""
        if not all(map(operator.is_, [reference() for reference in self.functions], functions)):
            return False
        if not vars(obj).keys().isdisjoint(manner.hooks) or any(hasattr(obj, hook) for hook in self.absent):
            return False
        return all(arguments.get(method.hook) == method.offered for method in self.methods)


_known: weakref.WeakKeyDictionary[type, dict[tuple[Manner, bool], _Read]] = weakref.WeakKeyDictionary()


def implementations(
    obj: object,
    manner: Manner,
    arguments: Mapping[str, Sequence[str]],
    *,
    spare: Sequence[str] = (),
) -> list[Implementation]:
    """One record for each hook that ``obj`` answers with a method.

    Marked methods are left out: they are native implementations.

    Args:
        obj: a module, a data module or a callback.
        manner: how it is read.
        arguments: the names of each hook's arguments.
        spare: arguments that methods get only if they demand them.

    Raises:
        SignatureMismatchError: for methods that cannot take their hook's arguments; all of them are named.
    """
    functions = tuple(map(getattr, repeat(type(obj)), manner.hooks, repeat(None)))
    reads = _known.setdefault(type(obj), {})
    known = reads.get((manner, bool(spare)))
    if known is not None and known.holds(obj, manner, functions, arguments):
        methods = known.methods
    else:
        methods = _read(obj, manner, arguments, spare)
        if plain(obj, manner.hooks, functions):
            absent = tuple(hook for hook, function in zip(manner.hooks, functions, strict=True) if function is None)
            reads[manner, bool(spare)] = _Read(tuple(map(_reference, functions)), methods, absent)
    namespaces, found = own_namespaces(obj), []
    for method in methods:
        if method.args is not None:
            options = options_in(namespaces, method.hook)
            silent = manner.silent and not (options.get("wrapper") or options.get("hookwrapper"))
            function = getattr(obj, method.hook)
            found.append(
                Implementation(method.hook, function, method.args, method.by_name, options=options, silent=silent)
            )
    return found


def _reference(function: Any) -> Callable[[], Any]:
    return type(None) if function is None else weakref.ref(function)


def plain(obj: object, hooks: Sequence[str], functions: Sequence[Any]) -> bool:
    """Whether all that ``obj`` answers ``hooks`` with are ``functions`` of its class, as Python writes them."""
    cls, own = type(obj), getattr(obj, "__dict__", None)
    if own is None or cls.__getattribute__ is not object.__getattribute__ or not own.keys().isdisjoint(hooks):
        return False
    for hook, function in zip(hooks, functions, strict=True):
        if type(function) is not types.FunctionType and (
            function is not None or getattr(obj, hook, None) is not None  # as __getattr__ may give one
        ):
            return False
    return True


def _read(
    obj: object, manner: Manner, arguments: Mapping[str, Sequence[str]], spare: Sequence[str]
) -> tuple[_Method, ...]:
    found, problems = [], []
    for hook in manner.hooks:
        method = getattr(obj, hook, None)
        if hook not in manner.always:
            method = overridden(obj, hook, through_wrappers=hook in manner.decisive)
        if method is None or is_marked(obj, hook):
            continue
        if hook not in arguments:
            found.append(_Method(hook, None))
            continue
        offered = [name for name in arguments[hook] if name not in manner.hidden]
        try:
            args, by_name = _taken(method, offered, () if hook in _TRANSFER else spare)
        except SignatureMismatchError as error:
            problems.append(f"{type(obj).__name__}.{hook} {error}")
            continue
        found.append(_Method(hook, arguments[hook], args, by_name))
    if problems:
        raise SignatureMismatchError("; ".join(problems))
    return tuple(found)


def _taken(
    method: Callable[..., Any], offered: Sequence[str], spare: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which of the ``offered`` arguments ``method`` gets by position, and which by keyword."""
    by_name = named_arguments(method, [name for name in offered if name in _BY_NAME])
    if by_name:
        rest = [name for name in offered if name not in by_name]
        try:
            return positional_arguments(method, rest, spare=spare, by_name=by_name), by_name
        except SignatureMismatchError:
            pass  # it has another name for it
    return positional_arguments(method, offered, spare=spare), ()
