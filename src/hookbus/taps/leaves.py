"""The tensors in what a module takes and gives, each with its path: lists, tuples, mappings and dataclasses, nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor

#: Keys that lead from a structure to a tensor in it: ``()`` for a bare tensor, ``(0, "hidden")`` for ``x[0]["hidden"]``.
Path: TypeAlias = tuple[Any, ...]


def tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors in ``value`` with their paths, in order; a dataclass's field and a named tuple's go by name."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or range(len(value))
        for name, item in zip(names, value, strict=True):
            yield from tensors(item, (*path, name))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None), (*path, field.name))


def first(value: Any) -> Tensor | None:
    """The first tensor in ``value``, None if there is none."""
    if isinstance(value, Tensor):
        return value
    return next((tensor for _, tensor in tensors(value)), None)


def spelled(path: Path) -> str:
    """A path as one would write it behind a variable: ``[0]['hidden']``; empty for a bare tensor."""
    return "".join(f"[{key!r}]" for key in path)


def suffixed(name: str, path: Path) -> str:
    """A name for one tensor of a module's output: the module's own, and the path if it is not a bare tensor."""
    return ".".join([name, *map(str, path)]) if path else name
