"""The catalogue: every lifecycle point, its arguments, what an answer means, and its documentation.

A hookspec is a plain function that nobody calls. Its parameters are the arguments that implementations may name, in the
order in which ``bus.fire`` takes them; its docstring is what ``hookbus hooks NAME`` prints. One module per stage.
Importing the catalogue never imports torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any, Final

from hookbus.hookspecs import batch, checkpoint, control, evaluate, fit, logging, setup, taps
from hookbus.markers import PROJECT

#: The modules of the catalogue, in the order in which a run meets them.
SPEC_MODULES: Final[tuple[ModuleType, ...]] = (setup, fit, evaluate, batch, checkpoint, logging, control, taps)

__all__ = ["SPEC_MODULES", "names", "nearest", "spec", "stage_of"]


@cache
def _catalogue() -> dict[str, tuple[str, Callable[..., Any]]]:
    """Stage and specification by hook name, in the order of the source."""
    found: dict[str, tuple[str, Callable[..., Any]]] = {}
    for module in SPEC_MODULES:
        stage = module.__name__.rpartition(".")[2]
        for name, function in vars(module).items():
            if hasattr(function, f"{PROJECT}_spec"):
                found[name] = (stage, function)
    return found


def names() -> tuple[str, ...]:
    """The names of all hooks, in lifecycle order."""
    return tuple(_catalogue())


def spec(name: str) -> Callable[..., Any]:
    """The function that specifies the hook ``name``.

    Raises:
        LookupError: there is no such hook; the message suggests the nearest name.
    """
    return _entry(name)[1]


def stage_of(name: str) -> str:
    """The stage of the hook ``name``: the last part of its module's name, such as ``"fit"``.

    Raises:
        LookupError: there is no such hook; the message suggests the nearest name.
    """
    return _entry(name)[0]


def nearest(name: str, candidates: Iterable[str] | None = None) -> str | None:
    """The one of ``candidates`` (by default all hooks) that ``name`` was most likely meant to be, or None."""
    matches = difflib.get_close_matches(name, names() if candidates is None else tuple(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _entry(name: str) -> tuple[str, Callable[..., Any]]:
    try:
        return _catalogue()[name]
    except KeyError:
        suggestion = nearest(name)
        hint = f"did you mean {suggestion!r}?" if suggestion else "`hookbus hooks` lists all of them"
        raise LookupError(f"there is no hook named {name!r}; {hint}") from None
