"""What a hook call costs: ``bus.fire``, ``bus.hook`` and pluggy, against an empty function and hand-written loops.

    python benchmarks/dispatch.py [--json FILE] [--repeats N]

Every number is the median of repeats in which all candidates take turns, so that a busy machine slows all of them down
alike; look at the ratios. Hooks have four arguments, every plugin has a function of its own (as in real life: one
function called twenty times would be faster), and implementations return nothing unless it says otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy.random
import pluggy
import torch

from hookbus.bus import Bus
from hookbus.bus.guard import guarded
from hookbus.dialects import Implementation
from hookbus.markers import hookimpl, hookspec

ARGUMENTS = "trainer, pl_module, batch, batch_idx"
VALUES = ("trainer", "module", "batch", 7)
Call = Callable[[], object]


class Specs:
    """The hooks that are measured."""

    @hookspec
    def notify(self, trainer, pl_module, batch, batch_idx):
        """All are called."""

    @hookspec(firstresult=True)
    def ask(self, trainer, pl_module, batch, batch_idx):
        """The first answer counts."""

    @hookspec(fold="batch")
    def hand_on(self, trainer, pl_module, batch, batch_idx):
        """Each gets what the one before returned."""

    @hookspec
    def rare(self, trainer, pl_module, batch, batch_idx):
        """A hook that the thousand implement."""


def plugin(number: int, hook: str = "notify", answer: str = "None", **options: Any) -> Any:
    """A plugin of a class and with a function of its own."""
    body = "return (yield)" if options.get("wrapper") else f"return {answer}"
    namespace: dict[str, Any] = {}
    exec(f"def {hook}(self, {ARGUMENTS}):\n    {body}\n", namespace)
    return type(f"Plugin{number}", (), {hook: hookimpl(**options)(namespace[hook])})()


def managers(plugins: list[Any]) -> tuple[Bus, pluggy.PluginManager]:
    """A bus and pluggy's manager with the same plugins."""
    bus, plain = Bus(list_order=True), pluggy.PluginManager("hookbus")
    for manager in (bus, plain):
        manager.add_hookspecs(Specs)
        for one in plugins:
            manager.register(one)
    return bus, plain


def bare_loop(functions: list[Callable[..., object]]) -> Callable[..., object]:
    """What one would write by hand to notify."""

    def loop(trainer, pl_module, batch, batch_idx):  # type: ignore[no-untyped-def]
        for function in functions:
            function(trainer, pl_module, batch, batch_idx)

    return loop


def collecting_loop(functions: list[Callable[..., object]]) -> Callable[..., object]:
    """What one would write by hand to collect answers, as the bus does."""

    def loop(trainer, pl_module, batch, batch_idx):  # type: ignore[no-untyped-def]
        results = []
        for function in functions:
            value = function(trainer, pl_module, batch, batch_idx)
            if value is not None:
                results.append(value)
        return results

    return loop


def empty(trainer, pl_module, batch, batch_idx):  # type: ignore[no-untyped-def]
    """The least that a call can cost."""


def candidates() -> dict[str, dict[str, tuple[Callable[..., object], bool]]]:
    """Rows of callables: name of the case, then who; True if called with keywords."""
    cases: dict[str, dict[str, tuple[Callable[..., object], bool]]] = {"empty function": {"loop": (empty, False)}}

    def add(name: str, plugins: list[Any], hook: str = "notify", *, plain: bool = True, loops: bool = True) -> None:
        bus, manager = managers(plugins)
        functions = [getattr(one, hook) for one in plugins if hasattr(one, hook)]
        row = cases[name] = {"fire": (getattr(bus.fire, hook), False), "hook": (getattr(bus.hook, hook), True)}
        if loops:
            row["loop"] = (bare_loop(functions), False)
            row["collecting loop"] = (collecting_loop(functions), False)
        if plain:
            row["pluggy"] = (getattr(manager.hook, hook), True)

    for count in (0, 1, 5, 20):
        add(f"{count} implementation{'s' * (count != 1)}", [plugin(i) for i in range(count)])
    add("5 that answer", [plugin(i, answer="batch") for i in range(5)])
    add("5 and a wrapper", [plugin(i) for i in range(5)] + [plugin(5, wrapper=True)], loops=False)
    add(
        "firstresult, 5, the last answers",
        [plugin(i, "ask", "batch" if i == 4 else "None") for i in range(5)],
        "ask",
        loops=False,
    )
    add("fold, 5 that change", [plugin(i, "hand_on", "batch") for i in range(5)], "hand_on", plain=False, loops=False)
    add("1,000 plugins that implement another hook", [plugin(i, "rare") for i in range(1000)])
    watch = guarded(Implementation("notify", plugin(0).notify, tuple(ARGUMENTS.split(", "))), print)
    cases["1 guarded monitor, NumPy and torch imported"] = {"fire": (watch.function, False)}
    return cases


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Medians in nanoseconds, by case and who."""
    timers: dict[tuple[str, str], tuple[timeit.Timer, int]] = {}
    keywords = dict(zip(ARGUMENTS.split(", "), VALUES, strict=True))
    for case, row in candidates().items():
        for who, (function, by_keyword) in row.items():
            given = (
                ", ".join(f"{key}={value!r}" for key, value in keywords.items()) if by_keyword else repr(VALUES)[1:-1]
            )
            timer = timeit.Timer(f"function({given})", globals={"function": function})
            timer.timeit(10)  # compile, and let the interpreter warm up
            timers[case, who] = (timer, max(100, int(0.002 / (timer.timeit(200) / 200))))
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in timers}
    for _ in range(repeats):
        for key, (timer, number) in timers.items():
            samples[key].append(timer.timeit(number) / number * 1e9)
    result: dict[str, dict[str, float]] = {}
    for (case, who), values in samples.items():
        result.setdefault(case, {})[who] = round(statistics.median(values), 1)
    return result


def checks(times: dict[str, dict[str, float]]) -> dict[str, tuple[float, str, bool]]:
    """The promises: value, bound in words, whether it holds."""
    none, five = times["0 implementations"], times["5 implementations"]
    extra = none["fire"] - times["empty function"]["loop"]
    thousand = times["1,000 plugins that implement another hook"]["fire"] - none["fire"]
    against_loop, against_pluggy = five["fire"] / five["loop"], five["pluggy"] / five["fire"]
    return {
        "0 implementations, ns over an empty function": (extra, "at most 50", extra <= 50),
        "5 implementations, times the hand-written loop": (against_loop, "at most 1.2", against_loop <= 1.2),
        "5 implementations, times faster than pluggy": (against_pluggy, "at least 10", against_pluggy >= 10),
        "1,000 that do not implement it, ns over none": (thousand, "at most 20", thousand <= 20),
    }


def table(times: dict[str, dict[str, float]]) -> str:
    """The medians as text, with ratios of fire to the others."""
    columns = ["fire", "hook", "loop", "collecting loop", "pluggy"]
    head = (
        f"{'ns per call':<42}"
        + "".join(f"{column:>17}" for column in columns)
        + f"{'pluggy/fire':>13}{'fire/loop':>11}"
    )
    lines = [head]
    for case, row in times.items():
        cells = "".join(f"{row[column]:>17,.0f}" if column in row else f"{'':>17}" for column in columns)
        faster = f"{row['pluggy'] / row['fire']:>13.1f}" if {"pluggy", "fire"} <= row.keys() else f"{'':>13}"
        loop = f"{row['fire'] / row['loop']:>11.2f}" if {"fire", "loop"} <= row.keys() else f"{'':>11}"
        lines.append(f"{case:<42}{cells}{faster}{loop}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description="What a hook call costs.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--repeats", type=int, default=31, help="interleaved repetitions (default 31)")
    options = parser.parse_args()
    times = measure(options.repeats)
    print(table(times))
    print()
    promises = checks(times)
    for name, (value, bound, holds) in promises.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}: {value:.2f} ({bound})")
    if options.json:
        about = {"python": platform.python_version(), "repeats": options.repeats}
        about |= {name: version(name) for name in ("pluggy", numpy.__name__, torch.__name__)}
        kept = {
            name: {"value": value, "bound": bound, "holds": holds} for name, (value, bound, holds) in promises.items()
        }
        options.json.write_text(json.dumps({"about": about, "ns_per_call": times, "promises": kept}, indent=2) + "\n")


if __name__ == "__main__":
    main()
