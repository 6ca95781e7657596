"""From what an entry point points at to the plugins in it: modules, classes, instances, and factories of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

from hookbus.dialects import callback
from hookbus.dialects.base import is_base
from hookbus.errors import MisconfigurationException

#: Tells the options of a marked attribute, None for any other: ``PluginManager.parse_hookimpl_opts``.
Parse = Callable[[object, str], Mapping[str, Any] | None]

EXPECTED: Final = "a Callback, or a module or object with @hookimpl functions"


class NotAPluginError(MisconfigurationException, TypeError):
    """Something was offered as a plugin that is none: what came, and what was expected."""


def plugins_in(offered: object, parse: Parse, hooks: Collection[str]) -> list[object]:
    """The plugins that ``offered`` is or makes; factories and classes are called anew each time.

    Args:
        offered: a module or an instance that is a plugin; a class, which is called without arguments; or a factory
            without parameters that returns a plugin, several in any iterable, or None.
        parse: gives the options of a marked attribute.
        hooks: the names of all hooks, to tell what was probably forgotten.

    Raises:
        NotAPluginError: for anything else.
    """
    if not inspect.isclass(offered) and is_plugin(offered, parse):
        return [offered]
    if not callable(offered):
        raise NotAPluginError(f"is {_described(offered)}; expected {EXPECTED}, or a factory{_hint(offered, hooks)}")
    if isinstance(getattr(offered, "hookbus_impl", None), dict):
        raise NotAPluginError("is a single @hookimpl function; let the entry point name its module or class")
    made = offered()
    if made is None:
        return []
    if _is_or_makes_plugin(made, parse):
        return [_instance(made)]
    verb = "makes" if inspect.isclass(offered) else "returned"
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise NotAPluginError(
            f"{verb} {_described(made)}; expected {EXPECTED}, a list of these, or None{_hint(made, hooks)}"
        )
    found = []
    for place, item in enumerate(made):
        if not _is_or_makes_plugin(item, parse):
            raise NotAPluginError(
                f"{verb} {_described(item)} at position {place}; expected {EXPECTED}{_hint(item, hooks)}"
            )
        found.append(_instance(item))
    return found


def refuse_useless(obj: object, parse: Parse, hooks: Collection[str]) -> None:
    """An object that was passed as a plugin must implement something, or it would do nothing and nobody would know.

    Raises:
        NotAPluginError: it implements no hook.
    """
    if obj is not None and not is_plugin(obj, parse):
        instance = "; pass an instance, not the class" if _is_or_makes_plugin(obj, parse) else ""
        raise NotAPluginError(
            f"plugins=[…] has {_described(obj)}, which implements no hook; expected {EXPECTED}, or a string as -p takes it"
            f"{_hint(obj, hooks)}{instance}"
        )


def is_plugin(obj: object, parse: Parse) -> bool:
    """Whether ``obj`` is a callback or carries ``@hookimpl`` functions."""
    return callback.is_callback(obj) or any(parse(obj, name) is not None for name in dir(obj))


def object_name(plugin: object) -> str:
    """What one of several plugins of an entry point is called: its class, or its module."""
    if isinstance(plugin, ModuleType):
        return plugin.__name__.rpartition(".")[2]
    return type(plugin).__name__


def _is_or_makes_plugin(obj: object, parse: Parse) -> bool:
    if inspect.isclass(obj) and any(is_base(cls) and cls.__name__ == "Callback" for cls in obj.__mro__):
        return True
    return is_plugin(obj, parse)


def _instance(obj: Any) -> object:
    return obj() if inspect.isclass(obj) else obj


def _described(obj: object) -> str:
    if obj is None:
        return "None"
    if isinstance(obj, ModuleType):
        return f"the module {obj.__name__}"
    if inspect.isclass(obj):
        return f"the class {obj.__qualname__}"
    if isinstance(obj, int | float | str | bytes):
        text = repr(obj)
        return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(obj).__name__})"
    return f"an instance of {type(obj).__name__}"


def _hint(obj: object, hooks: Collection[str]) -> str:
    """What was probably forgotten."""
    unmarked = [name for name in dir(obj) if name in hooks]
    return f"; mark {', '.join(unmarked)} with @hookbus.hookimpl" if unmarked else ""
