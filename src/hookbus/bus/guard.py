"""Keeping a monitor from changing the run: its errors, random draws and grad mode stay its own.

A plugin that declares ``role = "monitor"`` promises to observe only. The bus holds it to that: around each of its
calls the random streams of Python, NumPy and torch (where imported) and torch's grad mode are put back as they were,
and an exception is reported with the plugin's name instead of ending the run. Nothing here imports torch.

One kind of exception is let through: a ``MisconfigurationException`` raised before the first batch. It says that what
the user has written cannot work ("this needs a logger"); he should learn of it at once, and no work is lost yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from hookbus.bus.streams import Snapshot
from hookbus.dialects import Implementation
from hookbus.errors import MisconfigurationException

ROLES = ("monitor", "mutator")

#: Hooks that are called before the first batch.
_BEFORE_WORK = frozenset({"setup", "on_fit_start", "on_train_start"})


def role_of(plugin: object) -> str:
    """``monitor`` or ``mutator`` as the plugin declares it; ``unspecified`` if it says nothing.

    Raises:
        ValueError: for any other word.
    """
    role = getattr(plugin, "role", None)
    if not isinstance(role, str):
        return "unspecified"
    if role not in ROLES:
        raise ValueError(f"role must be 'monitor' or 'mutator', got {role!r}")
    return role


@contextmanager
def undisturbed() -> Generator[None, None, None]:
    """Put back the random streams and the grad mode of this process afterwards."""
    snapshot = Snapshot()
    try:
        yield
    finally:
        snapshot.restore()


def guarded(
    implementation: Implementation, on_error: Callable[[str, Exception], None], *, disturbs: bool = True
) -> Implementation:
    """A monitor's implementation that can neither disturb nor end the run.

    Args:
        implementation: of a plugin whose role is monitor; no wrapper (see :func:`refusal`).
        on_error: told of the hook and of what was raised.
        disturbs: whether it may draw random numbers or switch the grad mode. A monitor that declares
            ``disturbs_nothing = True`` is spared the microseconds that keeping them costs; called for every module of a
            network, they count.
    """
    function, hook = implementation.function, implementation.hook

    def watched(*args: Any, **kwargs: Any) -> None:
        snapshot = Snapshot() if disturbs else None
        try:
            function(*args, **kwargs)
        except MisconfigurationException as error:
            if hook in _BEFORE_WORK:
                raise
            on_error(hook, error)
        except Exception as error:  # noqa: BLE001 - reported by name: a monitor must not end a run
            on_error(hook, error)
        finally:
            if snapshot is not None:
                snapshot.restore()

    return implementation.calling(watched)


def refusal(implementation: Implementation) -> str | None:
    """Why a monitor may not have this implementation; None if it may."""
    if implementation.options.get("edits"):
        return (
            f"a monitor cannot edit what passes {implementation.hook!r} ({implementation.location}); declare "
            "role = 'mutator', or drop edits=True"
        )
    if not implementation.wrapper:
        return None
    return (
        f"a monitor cannot wrap {implementation.hook!r} ({implementation.location}): a wrapper can change what it "
        "wraps; declare role = 'mutator', or use the hooks before and after it"
    )
