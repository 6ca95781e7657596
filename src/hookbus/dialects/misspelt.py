"""Methods of a module that look like hooks with a slip of the pen, and so would never be called."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterator
from typing import Any, Final

from hookbus.dialects.base import is_marked, options_in, overridden, own_namespaces
from hookbus.dialects.callback import HookNameWarning
from hookbus.dialects.module import MODULE_HOOKS

_LIBRARIES: Final = frozenset({"hookbus", "lightning", "pytorch_lightning", "lightning_fabric", "torch", "builtins"})
_POINTS: Final = tuple(hook for hook in MODULE_HOOKS if hook.startswith("on_"))
_STEPS: Final = tuple(hook for hook in MODULE_HOOKS if hook.endswith("_step") and hook != "optimizer_step")


def warn_of_misspelt_methods(module: object, known: Collection[str] = ()) -> None:
    """Warn of methods that look like implementations, and are none: for a slip of the pen, or a mark that was left out.

    A module has methods of its own, so nothing else is said of: of ``on_…`` methods only those near a hook, of others only
    those near a step that take an argument.

    Args:
        module: a LightningModule.
        known: names of hooks that others than modules have.
    """
    for name, function in _own_methods(type(module)):
        if name in MODULE_HOOKS or is_marked(module, name):
            continue
        if name in known:
            if options_in(own_namespaces(module), name):
                _warn(
                    module,
                    name,
                    function,
                    "overrides a method that is marked, and has no mark itself: it will not be called; mark it with "
                    "@hookbus.hookimpl, with the options that it is to have",
                )
            continue
        candidates = _POINTS if name.startswith("on_") else _STEPS if _takes_something(function) else ()
        guess = next((hook for hook in candidates if slipped(name, hook) and overridden(module, hook) is None), None)
        if guess is not None:
            _warn(
                module,
                name,
                function,
                f"is not a hook and will not be called by the Trainer; did you mean {guess!r}?",
            )


def _warn(module: object, name: str, function: Any, problem: str) -> None:
    """Warn at the place of the method."""
    code = function.__code__
    warnings.warn_explicit(
        f"{type(module).__name__}.{name} {problem}",
        HookNameWarning,
        code.co_filename,
        code.co_firstlineno,
        function.__module__,
        function.__globals__.setdefault("__warningregistry__", {}),
    )


def slipped(name: str, hook: str) -> bool:
    """Whether ``name`` is ``hook`` with one or two letters left out, added, changed, or in each other's place.

    Of a short name that is a word for something else soon, so there only one counts, and none that is changed: ``text_step`` is
    not ``test_step``.
    """
    if name == hook or abs(len(name) - len(hook)) > 2:
        return False
    if len(hook) < 12:
        same_letters = sorted(name) == sorted(hook)
        return distance(name, hook) == 1 and (same_letters or len(name) != len(hook))
    return distance(name, hook) <= 2


def distance(first: str, second: str) -> int:
    """The least number of letters to insert, delete, change, or swap with their neighbour; no letter twice.

    The restricted edit distance of F. J. Damerau, A technique for computer detection and correction of spelling errors (1964).
    """
    before: list[int] = []
    last = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            best = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, last = last, row
    return last[-1]


def _own_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions that the classes of users define, each name once."""
    seen: set[str] = set()
    for cls in kind.__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, value in vars(cls).items():
            if name not in seen and inspect.isfunction(value) and not name.startswith("_"):
                seen.add(name)
                yield name, value


def _takes_something(function: Any) -> bool:
    """Whether it must be given an argument, as a step is."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return any(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
