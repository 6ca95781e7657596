"""The native dialect: functions marked with ``@hookimpl`` on a module, a class or an instance, as pluggy reads them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

from hookbus.dialects.base import is_marked
from hookbus.dialects.implementation import Implementation
from hookbus.markers import HookimplOptions


def implementations(plugin: object, parse: Callable[[object, str], Mapping[str, Any] | None]) -> list[Implementation]:
    """One record for each marked function of ``plugin``.

    Args:
        plugin: a module, a class or an instance.
        parse: gives the options of a marked attribute, None for any other (``PluginManager.parse_hookimpl_opts``).
    """
    found = []
    for name in dir(plugin):
        options = parse(plugin, name)
        if options is None:
            continue
        function = getattr(plugin, name)
        hook = options.get("specname") or name
        args, optional = argument_names(function)
        found.append(Implementation(hook, function, args, optional, HookimplOptions(**options)))  # type: ignore[typeddict-item]
    return found


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
