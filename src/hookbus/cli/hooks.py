"""``hookbus hooks`` and ``hookbus order``: the lifecycle points, and who answers them in which order."""

from __future__ import annotations

import fnmatch
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hookbus.bus import Bus, Position, UnknownHookError
from hookbus.cli import output
from hookbus.cli.parser import UsageError, listing_parser, plugin_words
from hookbus.cli.session import loaded_bus
from hookbus.hookspecs import names

_HOOKS = """\
List the lifecycle points, or describe those that match.

  hookbus hooks                     all of them, by stage
  hookbus hooks on_train_start      its arguments, its documentation and its call order
  hookbus hooks 'on_*_batch_end'    those that match, in short"""

_ORDER = "Print in which order a hook calls its implementations, as a run here would."


def hooks(arguments: Sequence[str], early: Sequence[str]) -> int:
    """Carry out ``hookbus hooks``."""
    parser = listing_parser("hooks", _HOOKS)
    parser.add_argument("pattern", nargs="?", help="the name of a hook, or a pattern with *, ? or [...]")
    options = parser.parse_args(arguments)
    bus, _ = loaded_bus(plugin_words(early, options))
    found = _matching(bus, options.pattern)
    if options.json:
        output.say_json([_as_json(bus, name) for name in found])
    elif options.pattern is None:
        _print_by_stage(bus, found)
    else:
        for name in found:
            _print_hook(bus, name, whole=name == options.pattern)
    return 0


def order(arguments: Sequence[str], early: Sequence[str]) -> int:
    """Carry out ``hookbus order``."""
    parser = listing_parser("order", _ORDER)
    parser.add_argument("hook", help="the name of a hook")
    options = parser.parse_args(arguments)
    bus, _ = loaded_bus(plugin_words(early, options))
    positions = bus.order(options.hook)
    if options.json:
        output.say_json([_position_as_json(position) for position in positions])
    elif positions:
        _print_positions(positions)
    else:
        output.say(f"{options.hook} has no implementation")
    return 0


def _matching(bus: Bus, pattern: str | None) -> list[str]:
    """The hooks that match, in lifecycle order, those that plugins have added at the end."""
    present = [name for name, hook in vars(bus.hook).items() if hook.has_spec()]
    known = [name for name in names() if name in present]
    known += [name for name in present if name not in known]
    if pattern is None:
        return known
    if not any(sign in pattern for sign in "*?["):
        if pattern not in known:
            bus.order(pattern)  # raises, with the nearest name
            raise UnknownHookError(f"no hook is named {pattern!r}")
        return [pattern]
    found = fnmatch.filter(known, pattern)
    if not found:
        raise UsageError(f"no hook matches {pattern!r}; `hookbus hooks` lists all of them")
    return found


def _print_by_stage(bus: Bus, found: Sequence[str]) -> None:
    stage = None
    rows: list[list[str]] = []
    for name in [*found, None]:
        following = _stage(bus, name) if name is not None else None
        if rows and following != stage:
            output.heading(str(stage))
            output.table(rows, indent=2)
            rows = []
        if name is not None:
            stage = following
            count = len(bus.order(name))
            rows.append([name, _result(bus, name), f"{count} active" if count else "", _summary(bus, name)])


def _print_hook(bus: Bus, name: str, *, whole: bool) -> None:
    output.heading(f"{_signature(bus, name)}  [{_result(bus, name)}]")
    text = _documentation(bus, name) if whole else _summary(bus, name)
    for line in text.splitlines():
        output.say(f"  {line}".rstrip())
    positions = bus.order(name)
    if positions:
        count = len(positions)
        output.say(f"  {count} implementation{'s, called in this order' if count > 1 else ''}:")
        _print_positions(positions, indent=4)
    else:
        output.say("  no implementation")
    output.say()


def _print_positions(positions: Sequence[Position], indent: int = 0) -> None:
    rows = [
        [str(p.index), " ".join(p.flags), p.plugin, f"({', '.join(p.args)})", _short(p.location)] for p in positions
    ]
    output.table(rows, indent=indent)


def _as_json(bus: Bus, name: str) -> dict[str, object]:
    return {
        "name": name,
        "stage": _stage(bus, name),
        "signature": _signature(bus, name),
        "result": _result(bus, name),
        "doc": _documentation(bus, name),
        "order": [_position_as_json(position) for position in bus.order(name)],
    }


def _position_as_json(position: Position) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(position).items()}


def _function(bus: Bus, name: str) -> Any:
    return getattr(bus.hook, name).spec.function


def _options(bus: Bus, name: str) -> Mapping[str, Any]:
    options: Mapping[str, Any] = getattr(bus.hook, name).spec.opts
    return options


def _stage(bus: Bus, name: str) -> str:
    return str(_function(bus, name).__module__).rpartition(".")[2]


def _signature(bus: Bus, name: str) -> str:
    spec = getattr(bus.hook, name).spec
    return f"{name}({', '.join([*spec.argnames, *spec.kwargnames])})"


def _documentation(bus: Bus, name: str) -> str:
    return inspect.getdoc(_function(bus, name)) or ""


def _summary(bus: Bus, name: str) -> str:
    return _documentation(bus, name).partition("\n")[0]


def _result(bus: Bus, name: str) -> str:
    """What a call of the hook returns, in two words."""
    options = _options(bus, name)
    if options.get("firstresult"):
        return "first result"
    if options.get("fold"):
        return f"fold of {options['fold']}"
    if options.get("historic"):
        return "historic"
    return "list"


def _short(location: str) -> str:
    """The location below the directory on ``sys.path`` that holds it."""
    roots = [os.path.join(os.path.abspath(entry), "") for entry in sys.path if isinstance(entry, str)]
    within = [root for root in roots if location.startswith(root)]
    return location[len(max(within, key=len)) :] if within else location
