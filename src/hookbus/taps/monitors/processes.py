"""This process among those that train together, by torch's default process group, and what all of them have measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


def number_of_processes() -> int:
    """How many there are; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int | None:
    """The global rank of this process; None if it is the only one."""
    return dist.get_rank() if number_of_processes() > 1 else None


def title(*, merged: bool) -> str | None:
    """Whose figures a table shows; None if there is one process only."""
    several = number_of_processes()
    if several == 1:
        return None
    return f"all {several} ranks" if merged else f"rank {rank()} of {several}"


def gathered(measured: Callable[[], T], who: str) -> list[T]:
    """What ``measured()`` gives in each process, in the order of ranks; one collective, which all must take part in.

    Args:
        measured: gives plain values or tensors on the CPU, which are pickled.
        who: the monitor, for messages.

    Raises:
        Exception: what ``measured()`` has raised in this process, after it has told the others.
        RuntimeError: it has raised in another process. So an error in one is an error in all, and nobody waits for a
            process that does not come.
    """
    error: Exception | None = None
    mine: tuple[bool, Any]
    try:
        mine = (True, measured())
    except Exception as caught:  # noqa: BLE001 - the others wait for this process
        error, mine = caught, (False, f"{type(caught).__name__}: {caught}")
    found: list[Any] = [mine]
    if number_of_processes() > 1:
        found = [None] * number_of_processes()
        dist.all_gather_object(found, mine)
    if error is not None:
        raise error
    failed = [f"rank {number} failed with {what}" for number, (well, what) in enumerate(found) if not well]
    if failed:
        raise RuntimeError(f"{who} cannot merge what the processes have measured: {'; '.join(failed)}")
    return [what for _, what in found]
