"""Keeping a monitor from changing the run: its errors, random draws and grad mode stay its own.

A plugin that declares ``role = "monitor"`` promises to observe only. The bus holds it to that: around each of its
calls the random streams of Python, NumPy and torch (where imported) and torch's grad mode are put back as they were,
and an exception is reported with the plugin's name instead of ending the run. Nothing here imports torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from hookbus.dialects import Implementation


def role_of(plugin: object) -> str:
    """``monitor`` or ``mutator`` as the plugin declares it; ``unspecified`` if it says nothing.

    Raises:
        ValueError: for any other word.
    """
    role = getattr(plugin, "role", None)
    if role is None or not isinstance(role, str):
        return "unspecified"
    if role not in ("monitor", "mutator"):
        raise ValueError(f"role must be 'monitor' or 'mutator', got {role!r}")
    return role


@contextmanager
def undisturbed() -> Generator[None, None, None]:
    """Put back the random streams and the grad mode of this process afterwards."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch is not None else None
    grad = torch.is_grad_enabled() if torch is not None else True
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
            torch.set_grad_enabled(grad)


def guarded(implementation: Implementation, on_error: Callable[[str, Exception], None]) -> Implementation:
    """A monitor's implementation that can neither disturb nor end the run.

    Args:
        implementation: of a plugin whose role is monitor.
        on_error: told of the hook and of what was raised.

    Raises:
        ValueError: for a wrapper; what stands around a step can always change it.
    """
    if implementation.wrapper:
        raise ValueError(
            f"a monitor cannot wrap {implementation.hook!r} ({implementation.location}): a wrapper can change what it "
            "wraps; declare role = 'mutator', or use the hooks before and after it"
        )
    function, hook = implementation.function, implementation.hook

    def watched(*args: Any, **kwargs: Any) -> None:
        with undisturbed():
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - reported by name: a monitor must not end a run
                on_error(hook, error)

    return implementation.calling(watched)
