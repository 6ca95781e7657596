"""``Trainer(profiler=…)``: where the time of an entry point goes, with what Python, torch and the bus have for that."""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from hookbus.bus import Bus
from hookbus.errors import MisconfigurationException

#: Lines of the tables of the two larger profilers.
ROWS: Final = 30


def make_profiler(profiler: Any, bus: Bus, print_: Callable[[str], None]) -> Callable[[], AbstractContextManager[Any]]:
    """What stands around each entry point.

    Args:
        profiler: None; ``simple`` (time per hook and plugin), ``advanced`` (Python's ``cProfile``), ``pytorch``
            (``torch.profiler``, CPU and, where there is one, CUDA); or a context manager, such as a
            ``torch.profiler.profile`` with a schedule of your own.
        bus: whose implementations ``simple`` times.
        print_: takes the report, once the entry point has ended.

    Raises:
        MisconfigurationException: for anything else.
    """
    if profiler is None:
        return contextlib.nullcontext
    if profiler == "simple":
        return lambda: _simple(bus, print_)
    if profiler == "advanced":
        return lambda: _advanced(print_)
    if profiler == "pytorch":
        return lambda: _pytorch(print_)
    if not isinstance(profiler, str) and hasattr(profiler, "__enter__") and hasattr(profiler, "__exit__"):
        return lambda: profiler
    raise MisconfigurationException(
        f"profiler must be 'simple', 'advanced', 'pytorch' or a context manager (torch.profiler.profile(…)), got {profiler!r}"
    )


@contextlib.contextmanager
def _simple(bus: Bus, print_: Callable[[str], None]) -> Generator[None, None, None]:
    with bus.timed() as timing:
        yield
    print_(timing.report())


@contextlib.contextmanager
def _advanced(print_: Callable[[str], None]) -> Generator[None, None, None]:
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(ROWS)
    print_(text.getvalue())


@contextlib.contextmanager
def _pytorch(print_: Callable[[str], None]) -> Generator[None, None, None]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield
    print_(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS))
