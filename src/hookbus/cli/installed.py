"""Commands that other distributions bring, by entry points in the group ``hookbus.commands``: found in metadata alone.

An entry point names a function like those of :mod:`hookbus.cli.main`: ``(arguments, plugins) -> exit status``. It may
raise :class:`hookbus.cli.parser.UsageError` for what is the user's mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import importlib_metadata

from hookbus.cli.parser import UsageError

GROUP: Final = "hookbus.commands"


def installed() -> dict[str, list[Any]]:
    """The entry points of commands by name, sorted; several where distributions offer the same name."""
    found: dict[str, list[Any]] = {}
    for point in sorted(importlib_metadata.entry_points(group=GROUP), key=lambda point: (point.name, _brings(point))):
        found.setdefault(point.name, []).append(point)
    return found


def purposes() -> dict[str, str]:
    """What stands beside each command's name in a list: who brings it, and that distribution's own description."""
    return {
        name: ", ".join(f"{_brings(point)}: {_summary(point)}" for point in points)
        for name, points in installed().items()
    }


def load(name: str, points: Sequence[Any]) -> Callable[[Sequence[str], Sequence[str]], int]:
    """Import a command.

    Raises:
        UsageError: several distributions offer it, or it cannot be imported.
    """
    if len(points) > 1:
        raise UsageError(f"several distributions bring a command {name!r}: {', '.join(map(_brings, points))}; keep one")
    (point,) = points
    try:
        command: Callable[[Sequence[str], Sequence[str]], int] = point.load()
    except Exception as error:
        raise UsageError(
            f"the command {name!r} of {_brings(point)} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return command


def _brings(point: Any) -> str:
    return str(point.dist.name) if point.dist is not None else "?"


def _summary(point: Any) -> str:
    return str(point.dist.metadata.get("Summary") or "") if point.dist is not None else ""
