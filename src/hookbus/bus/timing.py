"""How long each implementation takes: compiled into the calls while somebody asks, absent otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Spent:
    """Time spent in one implementation.

    Attributes:
        calls: number of calls.
        seconds: their total wall time in seconds.
    """

    calls: int = 0
    seconds: float = 0.0


class Timing:
    """Wall time per (hook, plugin), in the order of first call.

    Wrappers are not timed: theirs is that of what they wrap.
    """

    def __init__(self) -> None:
        self.spent: dict[tuple[str, str], Spent] = {}

    def timed(self, hook: str, plugin: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with a clock around it."""
        record = self.spent.setdefault((hook, plugin), Spent())
        clock = time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                record.seconds += clock() - start
                record.calls += 1

        return timed

    def report(self) -> str:
        """A table, the most expensive first: seconds, calls, microseconds per call, hook, plugin."""
        rows = sorted(self.spent.items(), key=lambda item: -item[1].seconds)
        lines = [f"{'seconds':>10} {'calls':>8} {'us/call':>9}  hook"]
        for (hook, plugin), spent in rows:
            if spent.calls:
                each = spent.seconds / spent.calls * 1e6
                lines.append(f"{spent.seconds:>10.4f} {spent.calls:>8} {each:>9.2f}  {hook} ({plugin})")
        return "\n".join(lines)
