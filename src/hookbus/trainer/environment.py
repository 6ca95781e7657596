"""Arguments of the trainer from the environment: ``PL_TRAINER_MAX_EPOCHS=3``, as in Lightning."""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, TypeVar

_Init = TypeVar("_Init", bound=Callable[..., None])


def defaults_from_environment(init: _Init) -> _Init:
    """Let variables of the environment fill in arguments of a constructor that are not given.

    The variable of an argument is ``PL_``, the name of the class and that of the argument, in capitals. Its value is read as
    Python writes it (``False``, ``0.5``, ``[0, 1]``) where that is possible, else as a string.
    """
    names = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def filled(self: Any, *args: Any, **kwargs: Any) -> None:
        prefix = f"PL_{type(self).__name__.upper()}_"
        found = {name: value for name in names if (value := os.environ.get(prefix + name.upper()))}
        init(self, *args, **{**{name: _read(value) for name, value in found.items()}, **kwargs})

    return filled  # type: ignore[return-value]


def _read(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
