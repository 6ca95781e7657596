"""The filters of ``@hookimpl`` (``every``, ``at``, ``once``, ``when``, ``rank_zero``), composed around a function.

A filtered implementation is a function like any other, so neither call path knows of filters, and one without a filter
pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import Any

from hookbus.dialects import Implementation
from hookbus.dialects.native import argument_names
from hookbus.markers import HookimplOptions

#: The options that make a filter.
FILTERS = ("every", "at", "once", "when", "rank_zero")


class Filter:
    """Decides call by call whether one implementation is due, and counts the calls of its hook.

    Attributes:
        calls: how many calls of the hook it has seen.
        done: whether a ``once`` implementation has run.
    """

    def __init__(self, options: HookimplOptions, rank: Callable[[], int]) -> None:
        self.calls = 0
        self.done = False
        self._every = options.get("every")
        self._at = options.get("at")
        self._once = options.get("once", False)
        self._rank = rank if options.get("rank_zero") else None

    def due(self, when: Callable[[], object] | None) -> bool:
        """Count one call and say whether the implementation runs in it."""
        self.calls += 1
        if self._every is not None and self.calls % self._every:
            return False
        if self._at is not None and self.calls not in self._at:
            return False
        if self.done or (self._rank is not None and self._rank() != 0):
            return False
        if when is not None and not when():
            return False
        self.done = self._once
        return True

    def state_dict(self) -> dict[str, Any]:
        """The counters, so that a resumed run goes on in the same rhythm."""
        return {"calls": self.calls, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over counters saved by :meth:`state_dict`."""
        self.calls, self.done = int(state["calls"]), bool(state["done"])


def filtered(
    implementation: Implementation, rank: Callable[[], int], heeded: Collection[str] = FILTERS
) -> tuple[Implementation, Filter | None]:
    """``implementation`` with its filters around it, and the filter; unchanged, with None, if it has none.

    Args:
        implementation: with its options.
        rank: gives the global rank of this process.
        heeded: the filters that count here; the others are left to whoever calls.
    """
    options = implementation.options
    if not options:
        return implementation, None
    asked = HookimplOptions(**{key: value for key, value in options.items() if key in heeded})  # type: ignore[typeddict-item]
    if not any(asked.values()):
        return implementation, None
    gate = Filter(asked, rank)
    function, count = implementation.function, len(implementation.args)
    predicate, args = options.get("when"), implementation.args
    if predicate is None:
        places: list[int] = []
    else:  # the predicate names arguments of its own; those that the function does not take are asked for as well
        wanted = argument_names(predicate)[0]
        args += tuple(name for name in wanted if name not in args)
        places = [args.index(name) for name in wanted]

    def due(values: tuple[Any, ...]) -> bool:
        return gate.due(None if predicate is None else lambda: predicate(*[values[i] for i in places]))

    if options.get("wrapper"):

        def gated_wrapper(*values: Any, **optional: Any) -> Generator[None, Any, Any]:
            if due(values):
                return (yield from function(*values[:count], **optional))
            return (yield)

        return implementation.calling(gated_wrapper, args), gate
    if options.get("hookwrapper"):

        def gated_old_wrapper(*values: Any, **optional: Any) -> Generator[None, Any, None]:
            if due(values):
                yield from function(*values[:count], **optional)
            else:
                yield

        return implementation.calling(gated_old_wrapper, args), gate

    def gated(*values: Any, **optional: Any) -> Any:
        return function(*values[:count], **optional) if due(values) else None

    return implementation.calling(gated, args), gate
