"""In which order the implementations of one hook are called.

Wrappers stand outermost, then ``tryfirst``, the others, ``trylast``. Within each of these groups a list-ordered bus
follows the kinds of owners as the hook declares them, and within one kind the order of registration (for callbacks:
of ``trainer.callbacks``). ``before``/``after`` move an implementation only as far as they must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from hookbus.bus.errors import OrderCycleError
from hookbus.dialects import Implementation


@dataclass(frozen=True)
class Ranked:
    """One implementation with what its place depends on.

    Attributes:
        implementation: what is called.
        plugin: the object, for errors.
        name: the plugin's name, to which ``before`` and ``after`` refer.
        rank: its place among its equals; lower comes first.
    """

    implementation: Implementation
    plugin: object
    name: str
    rank: tuple[int, ...]


@dataclass(frozen=True)
class Position:
    """One row of the call order of a hook, as ``hookbus order`` prints it."""

    index: int
    plugin: str
    flags: tuple[str, ...]
    args: tuple[str, ...]
    location: str


def arrange(hook: str, entries: Sequence[Ranked]) -> list[Ranked]:
    """The entries in call order.

    Raises:
        OrderCycleError: if ``before`` and ``after`` contradict each other.
    """

    def group(entry: Ranked) -> tuple[bool, int]:
        options = entry.implementation.options
        return (not entry.implementation.wrapper, 1 if options.get("trylast") else -bool(options.get("tryfirst")))

    return constrain(hook, sorted(entries, key=lambda entry: (*group(entry), entry.rank)))


def constrain(hook: str, ordered: list[Ranked]) -> list[Ranked]:
    """Keep ``ordered`` as it is, wrappers first, but for what ``before`` and ``after`` demand.

    Raises:
        OrderCycleError: as :func:`arrange`.
    """
    if not any(e.implementation.options.get("before") or e.implementation.options.get("after") for e in ordered):
        return ordered
    wrappers = [e for e in ordered if e.implementation.wrapper]
    others = [e for e in ordered if not e.implementation.wrapper]
    return _constrain(hook, wrappers) + _constrain(hook, others)


def _constrain(hook: str, ordered: list[Ranked]) -> list[Ranked]:
    """One of the two groups of :func:`constrain`."""
    places: dict[str, list[int]] = {}
    for i, entry in enumerate(ordered):
        places.setdefault(entry.name, []).append(i)
    graph: dict[int, set[int]] = {i: set() for i in range(len(ordered))}
    for i, entry in enumerate(ordered):
        for name in entry.implementation.options.get("before", ()):
            for j in places.get(name, ()):
                graph[j].add(i)
        for name in entry.implementation.options.get("after", ()):
            graph[i].update(places.get(name, ()))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = [ordered[i] for i in error.args[1]]
        names = " -> ".join(entry.name for entry in circle)
        raise OrderCycleError(
            circle[0].plugin,
            f"hook {hook!r}: before/after form a cycle: {names} (each before the next); drop one of these options: "
            + ", ".join(f"{entry.name} ({entry.implementation.location})" for entry in circle[:-1]),
        ) from None
    result: list[Ranked] = []
    waiting = list(range(len(ordered)))
    placed: set[int] = set()
    while waiting:  # always the first that nothing holds back: whoever is not concerned keeps his place
        i = next(i for i in waiting if graph[i] <= placed)
        waiting.remove(i)
        placed.add(i)
        result.append(ordered[i])
    return result


def flags(implementation: Implementation) -> tuple[str, ...]:
    """The options that decide order and occasion, spelled as in ``@hookimpl``."""
    options = implementation.options
    words = [name for name in ("wrapper", "hookwrapper", "tryfirst", "trylast", "once", "rank_zero") if options.get(name)]
    words += [f"{side}={name}" for side in ("before", "after") for name in options.get(side, ())]
    if options.get("every"):
        words.append(f"every={options['every']}")
    if options.get("at"):
        words.append("at=" + ",".join(map(str, sorted(options["at"] or ()))))
    if options.get("when"):
        words.append(f"when={_name(options['when'])}")
    return tuple(words)


def _name(function: Callable[..., object] | None) -> str:
    return getattr(function, "__name__", type(function).__name__)
