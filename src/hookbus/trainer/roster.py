"""Who stands in ``trainer.callbacks``: the user's callbacks, discovered ones, defaults, and those a module brings.

Everything here works on the plain, live list that users see; the bus follows it (:meth:`Bus.sync`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from hookbus.callbacks import Checkpoint, ModelCheckpoint, ModelSummary, Timer
from hookbus.callbacks.model_summary import default_model_summary
from hookbus.callbacks.progress import ProgressBar, RichProgressBar, default_progress_bar
from hookbus.dialects.callback import is_callback
from hookbus.errors import MisconfigurationException


def ordered(callbacks: Iterable[Any]) -> list[Any]:
    """In the given order, but those that must come first (tuners) first, and those that save (checkpoints) last."""
    callbacks = list(callbacks)
    return [
        *(c for c in callbacks if placement(c) == "first"),
        *(c for c in callbacks if placement(c) not in ("first", "last")),
        *(c for c in callbacks if placement(c) == "last"),
    ]


def placement(callback: Any) -> str | None:
    """``first``, ``last`` or None, as the callback's class declares; a foreign ``Checkpoint`` counts as last."""
    declared = getattr(type(callback), "placement", None)
    if isinstance(declared, str):
        return declared
    return "last" if any(cls.__name__ == "Checkpoint" for cls in type(callback).__mro__) else None


def given(callbacks: Any) -> list[Any]:
    """The user's callbacks as a list of the trainer's own; his list is never touched.

    Raises:
        TypeError: something in it is no callback.
    """
    if callbacks is None:
        return []
    listed = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    for callback in listed:
        if not is_callback(callback):
            hint = " (pass an instance, not the class)" if isinstance(callback, type) else ""
            raise TypeError(
                f"callbacks must be hookbus.Callback objects, got {type(callback).__name__}: {callback!r}{hint}; plugins with "
                "@hookimpl functions go to Trainer(plugins=[…])"
            )
    return listed


def assembled(
    callbacks: Any,
    discovered: Sequence[Any],
    *,
    bar: bool | None,
    checkpointing: bool | None = False,
    summary: bool | None = False,
    max_time: timedelta | None = None,
    barebones: bool,
) -> list[Any]:
    """``trainer.callbacks`` as it begins.

    Args:
        callbacks: what the user passed.
        discovered: callbacks of installed plugins; a progress bar among them gives way to the user's.
        bar: ``enable_progress_bar``.
        checkpointing: ``enable_checkpointing``.
        summary: ``enable_model_summary``.
        max_time: the Trainer's argument.
        barebones: whether everything optional is off.

    Raises:
        MisconfigurationException: the user passed two progress bars, or callbacks of a kind that is switched off.
    """
    own = given(callbacks)
    bars = [c for c in own if isinstance(c, ProgressBar)]
    listed = without_surplus_bars([*own, *discovered], bars) if len(bars) < 2 else [*own, *discovered]
    listed = with_timer(listed, max_time)
    listed = with_progress_bar(listed, bar, own, barebones=barebones)
    listed = with_model_summary(listed, summary, barebones=barebones)
    return ordered(with_checkpoint(listed, checkpointing, barebones=barebones))


def with_progress_bar(
    callbacks: list[Any], enabled: bool | None, own: Sequence[Any] = (), *, barebones: bool
) -> list[Any]:
    """With one progress bar, or none.

    Args:
        callbacks: as far as known.
        enabled: what the user said; None and True add one where there is none, False leaves out what was discovered.
        own: those that the user passed.
        barebones: whether None means False.

    Raises:
        MisconfigurationException: two progress bars were passed, or one together with ``enabled=False``.
    """
    bars = [c for c in callbacks if isinstance(c, ProgressBar)]
    if len(bars) > 1:
        names = ", ".join(type(bar).__name__ for bar in bars)
        raise MisconfigurationException(f"there can be one progress bar, got {len(bars)}: {names}; drop all but one")
    if enabled is None:
        enabled = not barebones
    if not enabled:
        if any(bar is callback for bar in bars for callback in own):
            raise MisconfigurationException(
                f"enable_progress_bar=False says that there is to be no progress bar, but callbacks=[…] has a "
                f"{type(bars[0]).__name__}: drop one of the two"
            )
        return [c for c in callbacks if c not in bars]
    return callbacks if bars else [*callbacks, default_progress_bar()]


def with_timer(callbacks: list[Any], max_time: timedelta | None) -> list[Any]:
    """With a Timer that ends the training after ``max_time``; one that was passed is taken in its place."""
    if max_time is None:
        return callbacks
    if any(isinstance(c, Timer) for c in callbacks):
        warnings.warn("max_time is ignored, as there is a Timer among the callbacks", UserWarning, stacklevel=4)
        return callbacks
    return [*callbacks, Timer(max_time)]


def with_model_summary(callbacks: list[Any], enabled: bool | None, *, barebones: bool) -> list[Any]:
    """With a model summary, unless there is one, or none is wanted; one that was passed stays in any case."""
    if enabled is False or (barebones and enabled is None) or any(isinstance(c, ModelSummary) for c in callbacks):
        return callbacks
    return [*callbacks, default_model_summary(drawn=any(isinstance(c, RichProgressBar) for c in callbacks))]


def with_checkpoint(callbacks: list[Any], enabled: bool | None, *, barebones: bool) -> list[Any]:
    """With a ModelCheckpoint, unless there is a callback that saves checkpoints, or none is wanted.

    Raises:
        MisconfigurationException: checkpointing is switched off, and a ModelCheckpoint was passed.
    """
    savers = [c for c in callbacks if isinstance(c, Checkpoint)]
    if enabled is False and savers:
        raise MisconfigurationException(
            f"enable_checkpointing=False, but {type(savers[0]).__name__} is among the callbacks: drop one of the two"
        )
    if savers or enabled is False or (barebones and enabled is None):
        return callbacks
    return [*callbacks, ModelCheckpoint()]


def number_twins(callbacks: Iterable[Any]) -> None:
    """Tell callbacks of one ``state_key`` apart, where their class provides for it with an attribute ``twin``."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        if isinstance(getattr(type(callback), "twin", None), int):
            callback.twin = 0
            key = callback.state_key
            callback.twin = seen.get(key, 0)
            seen[key] = callback.twin + 1


def without_surplus_bars(callbacks: Sequence[Any], favoured: Sequence[Any]) -> list[Any]:
    """At most one progress bar, whoever brought it: the first in ``favoured``, else the first in the list."""
    bars = [c for c in callbacks if isinstance(c, ProgressBar)]
    if len(bars) < 2:
        return list(callbacks)
    kept = next((bar for bar in bars if any(bar is f for f in favoured)), bars[0])
    return [c for c in callbacks if c is kept or not isinstance(c, ProgressBar)]


def with_model_callbacks(callbacks: Sequence[Any], answers: Iterable[Any]) -> list[Any]:
    """With those that ``configure_callbacks`` gave; one of them takes the place of all of exactly its type.

    Args:
        callbacks: ``trainer.callbacks``.
        answers: what each implementation of the hook returned: a callback or a sequence of them.
    """
    brought: list[Any] = []
    for answer in answers:
        brought += given(answer)
    if any(isinstance(c, ModelSummary) for c in brought):
        callbacks = [c for c in callbacks if not (isinstance(c, ModelSummary) and c.standby)]
    types = {type(c) for c in brought}
    replaced = [c for c in callbacks if type(c) in types and not any(c is b for b in brought)]
    if replaced:
        warnings.warn(
            "configure_callbacks() replaces these callbacks of the Trainer, which have the same type: "
            + ", ".join(sorted({type(c).__name__ for c in replaced})),
            UserWarning,
            stacklevel=3,
        )
    kept = [c for c in callbacks if type(c) not in types]
    default_bars = [c for c in brought if isinstance(c, ProgressBar)]
    return ordered(without_surplus_bars([*kept, *brought], default_bars))
