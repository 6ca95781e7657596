"""In which order the implementations of one hook are called.

Wrappers stand outermost, then ``tryfirst``, the others, ``trylast``. Within each of these groups a list-ordered bus
follows the kinds of owners as the hook declares them, and within one kind the order of registration (for callbacks:
of ``trainer.callbacks``). ``before``/``after`` move the implementation that carries them, only as far as they must.
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
    return constrain(hook, sorted(entries, key=place))


def place(entry: Ranked) -> tuple[bool, int, tuple[int, ...]]:
    """What decides the order where nobody asks for ``before`` or ``after``: lower comes first."""
    options = entry.implementation.options
    group = 1 if options.get("trylast") else -bool(options.get("tryfirst"))
    return (not entry.implementation.wrapper, group, entry.rank)


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
    """One of the two groups of :func:`constrain`: who asks is who moves.

    First, whoever asks to come ``after`` others waits for them; then, whoever asks to come ``before`` one that now
    stands earlier is called up, just ahead of it. The others keep their order among each other.
    """
    places: dict[str, list[int]] = {}
    for i, entry in enumerate(ordered):
        places.setdefault(entry.name, []).append(i)
    after = [_named(entry.implementation.options.get("after", ()), places) for entry in ordered]
    earlier = [set(names) for names in after]
    for i, entry in enumerate(ordered):
        for j in _named(entry.implementation.options.get("before", ()), places):
            earlier[j].add(i)
    _check_for_cycles(hook, ordered, earlier)

    waited: list[int] = []
    waiting = list(range(len(ordered)))
    while waiting:
        free = next(i for i in waiting if after[i].issubset(waited))
        waiting.remove(free)
        waited.append(free)

    result: list[int] = []

    def call_up(i: int) -> None:
        if i not in result:
            for j in sorted(earlier[i], key=waited.index):
                call_up(j)
            result.append(i)

    for i in waited:
        call_up(i)
    return [ordered[i] for i in result]


def _named(names: Sequence[str], places: dict[str, list[int]]) -> set[int]:
    """The places of the plugins with these names; absent ones do not matter."""
    return {i for name in names for i in places.get(name, ())}


def _check_for_cycles(hook: str, ordered: Sequence[Ranked], earlier: Sequence[set[int]]) -> None:
    try:
        TopologicalSorter(dict(enumerate(earlier))).prepare()
    except CycleError as error:
        circle = [ordered[i] for i in error.args[1]]
        names = " -> ".join(entry.name for entry in circle)
        raise OrderCycleError(
            circle[0].plugin,
            f"hook {hook!r}: before/after form a cycle: {names} (each before the next); drop one of these options: "
            + ", ".join(f"{entry.name} ({entry.implementation.location})" for entry in circle[:-1]),
        ) from None


def flags(implementation: Implementation) -> tuple[str, ...]:
    """The options that decide order and occasion, spelled as in ``@hookimpl``."""
    options = implementation.options
    names = ("wrapper", "hookwrapper", "tryfirst", "trylast", "once", "rank_zero")
    words = [name for name in names if options.get(name)]
    words += [f"before={name}" for name in options.get("before", ())]
    words += [f"after={name}" for name in options.get("after", ())]
    if options.get("every"):
        words.append(f"every={options['every']}")
    if options.get("at"):
        words.append("at=" + ",".join(map(str, sorted(options["at"] or ()))))
    if options.get("when"):
        words.append(f"when={flag_name(options['when'])}")
    if options.get("modules"):
        words.append("modules=" + ",".join(map(str, options["modules"] or ())))
    if options.get("types"):
        words.append("types=" + ",".join(kind.__name__ for kind in options["types"] or ()))
    if options.get("phases"):
        words.append("phases=" + ",".join(sorted(options["phases"] or ())))
    if options.get("edits"):
        words.append("edits")
    return tuple(words)


def flag_name(function: Callable[..., object] | None) -> str:
    """How a predicate is shown."""
    return getattr(function, "__name__", type(function).__name__)
