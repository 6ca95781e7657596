"""One process writes: decorators for what only the process of global rank 0 does.

The rank is the attribute ``rank_zero_only.rank``, as in Lightning, so code that sets or reads it there works here. It
is taken from the launcher's environment when this module is imported, and set by whoever starts processes later on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def rank_from_environment() -> int:
    """The global rank that torchrun, SLURM or a node's launcher announced; 0 without one."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


class _RankZeroOnly:
    """The decorator and its ``rank``; one object, :data:`rank_zero_only`."""

    def __init__(self) -> None:
        self.rank = rank_from_environment()

    def __call__(self, fn: Callable[P, T], default: T | None = None) -> Callable[P, T | None]:
        """Make ``fn`` run on the process of rank 0 only; on others it returns ``default``."""

        @wraps(fn)
        def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return fn(*args, **kwargs) if self.rank == 0 else default

        return on_rank_zero


rank_zero_only = _RankZeroOnly()


class DummyExperiment:
    """Stands for a logger's ``experiment`` where nothing is written: every method exists and does nothing."""

    def nop(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__") and name.endswith("__"):  # copy and pickle ask for these
            raise AttributeError(name)
        return self.nop

    def __getitem__(self, index: int) -> DummyExperiment:
        return self

    def __setitem__(self, *args: Any) -> None:
        pass


def rank_zero_experiment(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a logger's ``experiment`` the real thing on rank 0 and a :class:`DummyExperiment` on the others.

    To be written below ``@property``.
    """

    @wraps(fn)
    def experiment(self: Any) -> Any:
        return fn(self) if rank_zero_only.rank == 0 else DummyExperiment()

    return experiment
