"""pluggy's own, plain way to run a call, and our implementations in its terms.

It carries what the compiled path does not: old-style wrappers, hookcall monitoring, historic calls, ``call_extra`` and
``subset_hook_caller``. What it does is the reference for :mod:`hookbus.bus.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pluggy

from hookbus.bus.dispatch import Shape
from hookbus.bus.errors import raise_first
from hookbus.dialects import Implementation


def hookimpl_of(plugin: object, name: str, implementation: Implementation) -> pluggy.HookImpl:
    """The implementation in pluggy's terms, for pluggy's own way to call it."""
    return _HookImpl(plugin, name, implementation)


class _HookImpl(pluggy.HookImpl):  # type: ignore[misc]  # final for others' eyes; nothing but its making is changed
    """pluggy's record, made from ours: pluggy would derive the names of arguments from the signature, and take its time."""

    __slots__ = ()

    def __init__(self, plugin: object, name: str, implementation: Implementation) -> None:
        options: Any = implementation.options
        slots: Any = self
        slots.plugin, slots.plugin_name, slots.opts = plugin, name, options
        slots.function = _silenced(implementation.function) if implementation.silent else implementation.function
        slots.argnames, slots.kwargnames = implementation.args, implementation.optional
        for flag in ("wrapper", "hookwrapper", "optionalhook", "tryfirst", "trylast"):
            setattr(slots, flag, options.get(flag, False))


def implementation_of(impl: pluggy.HookImpl) -> Implementation:
    """The record for an implementation that pluggy made itself (``call_extra``)."""
    return Implementation(impl.opts.get("specname") or "", impl.function, impl.argnames, impl.kwargnames)


def plain_implementation(function: Callable[[], Any]) -> pluggy.HookImpl:
    """An implementation without arguments that belongs to no plugin."""
    return hookimpl_of(None, "<hookbus>", Implementation("", function, ()))


def run_special(shape: Shape, impls: Sequence[pluggy.HookImpl], kwargs: Mapping[str, Any]) -> Any:
    """A fold, or a call that collects errors, the plain way; what the compiled code must equal.

    Args:
        shape: the hook's.
        impls: in pluggy's order, last one first.
        kwargs: the arguments of the call.
    """
    values, results, errors = dict(kwargs), [], []
    for impl in reversed(impls):
        try:
            optional = {name: values[name] for name in impl.kwargnames if name in values}
            result = impl.function(*[values[name] for name in impl.argnames], **optional)
        except BaseException as error:
            if not shape.collect_errors:
                raise
            errors.append(error)
            continue
        if result is None:
            continue
        if shape.fold:
            values[shape.fold] = result
        results.append(result)
        if shape.firstresult:
            break
    raise_first(errors)
    if shape.fold:
        return values[shape.fold]
    if shape.firstresult:
        return results[0] if results else None
    return results


def _silenced(function: Callable[..., Any]) -> Callable[..., None]:
    def silenced(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return silenced
