"""The native dialect: functions marked with ``@hookimpl`` on a module, a class or an instance, as pluggy reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pluggy

from hookbus.dialects.implementation import Implementation
from hookbus.markers import HookimplOptions


def implementations(
    plugin: object, parse: Callable[[object, str], Mapping[str, Any] | None]
) -> list[Implementation]:
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
