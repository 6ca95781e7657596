"""The native dialect: functions marked with ``@hookimpl`` on a module, a class or an instance, as pluggy reads them."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

from hookbus.dialects.base import is_base, is_marked
from hookbus.dialects.implementation import Implementation
from hookbus.markers import HookimplOptions


def implementations(
    plugin: object, parse: Callable[[object, str], Mapping[str, Any] | None], mark: str | None = None
) -> list[Implementation]:
    """One record for each marked function of ``plugin``.

    Args:
        plugin: a module, a class or an instance.
        parse: gives the options of a marked attribute, None for any other (``PluginManager.parse_hookimpl_opts``).
        mark: the attribute that ``parse`` looks for, where it looks for nothing else; then it need not be asked for
            every one of the hundreds of attributes of a LightningModule.
    """
    found = []
    for name in dir(plugin) if mark is None else _perhaps_marked(plugin, mark):
        options = parse(plugin, name)
        if options is None:
            continue
        function = getattr(plugin, name)
        hook = options.get("specname") or name
        args, optional = argument_names(function)
        found.append(Implementation(hook, function, args, optional, HookimplOptions(**options)))  # type: ignore[typeddict-item]
    return found


def _perhaps_marked(plugin: object, mark: str) -> list[str]:
    """The names of those attributes that may be marked functions, in the order of ``dir``."""
    kind = type(plugin)
    if isinstance(plugin, (type, types.ModuleType)) or not _is_plain_dir(kind):
        return dir(plugin)
    found = {name for name, value in getattr(plugin, "__dict__", {}).items() if _has(value, mark)}
    for cls in kind.__mro__:
        if cls is not object and not is_base(cls) and not _is_torch(cls):
            slot = types.MemberDescriptorType  # what stands in it is the instance's
            found.update(name for name, value in vars(cls).items() if _has(value, mark) or isinstance(value, slot))
    return sorted(found)


def _has(value: object, mark: str) -> bool:
    if type(value) is types.FunctionType:
        return mark in value.__dict__
    if isinstance(value, (staticmethod, classmethod, types.MethodType)) and hasattr(value.__func__, mark):
        return True
    return isinstance(value, (types.FunctionType, staticmethod, classmethod)) and mark in value.__dict__


def _is_plain_dir(kind: type) -> bool:
    """Whether ``dir`` of an instance shows what stands in it and in its classes, and functions nowhere else."""
    owner = next(cls for cls in kind.__mro__ if "__dir__" in vars(cls))
    return owner is object or _is_torch(owner)


def _is_torch(cls: type) -> bool:
    return cls.__module__.startswith("torch.nn.modules.")


class UnmarkedHookWarning(UserWarning):
    """A method has the name of a hook, but no mark, so it will never be called."""


def warn_of_unmarked(plugin: object, name: str, known: Iterable[str]) -> None:
    """Warn of each method with a hook's name that lacks ``@hookimpl``.

    Only names with ``on_`` count: ``setup``, ``backward`` and the like are names of ordinary functions, too.
    """
    for hook in sorted({name for name in known if name.startswith("on_")}.intersection(dir(plugin))):
        if callable(inspect.getattr_static(plugin, hook)) and not is_marked(plugin, hook):
            warnings.warn(
                f"plugin {name!r}: {hook} has the name of a hook, but is not marked, so it will not be called; "
                "mark it with @hookbus.hookimpl, or rename it",
                UnmarkedHookWarning,
                stacklevel=4,
            )


def argument_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the positional parameters without and with a default, as pluggy finds them."""
    options: pluggy.HookimplOpts = {
        "wrapper": False,
        "hookwrapper": False,
        "optionalhook": False,
        "tryfirst": False,
        "trylast": False,
        "specname": None,
    }
    probe = pluggy.HookImpl(None, "", function, options)
    return probe.argnames, probe.kwargnames
