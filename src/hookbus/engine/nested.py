"""Walking over a batch: tensors in lists, tuples, mappings and dataclasses, nested as they may be."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

_PLAIN = (str, bytes, bytearray, range, int, float, type(None))


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor, of whatever subclass."""
    return isinstance(value, Tensor)


def map_leaves(data: Any, function: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = is_tensor) -> Any:
    """``data`` with every leaf replaced by what ``function`` makes of it.

    Containers are rebuilt only around leaves that changed, in their own type; where nothing changes, the very object
    comes back. Nothing is written into the containers that were given.

    Args:
        data: anything.
        function: from leaf to leaf.
        is_leaf: what counts as a leaf; asked before looking into containers. Everything else is left as it is.
    """
    if is_leaf(data):
        return function(data)
    if isinstance(data, _PLAIN):
        return data
    if isinstance(data, Mapping):
        values = {key: map_leaves(value, function, is_leaf) for key, value in data.items()}
        changed = {key: value for key, value in values.items() if value is not data[key]}
        return _mapping_like(data, values, changed) if changed else data
    if isinstance(data, Sequence):
        items = [map_leaves(item, function, is_leaf) for item in data]
        if all(new is old for new, old in zip(items, data, strict=True)):
            return data
        return _sequence_like(data, items)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        old = _fields(data)
        changed = {name: new for name in old if (new := map_leaves(old[name], function, is_leaf)) is not old[name]}
        if not changed:
            return data
        result = copy.copy(data)
        for name, new in changed.items():
            object.__setattr__(result, name, new)  # a frozen one as well: it is a copy
        return result
    return data


def tensors_in(data: Any) -> Iterator[Tensor]:
    """The tensors in ``data``, in order."""
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, _PLAIN):
        return
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from tensors_in(value)
    elif isinstance(data, Sequence):
        for value in data:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        for value in _fields(data).values():
            yield from tensors_in(value)


def _fields(data: Any) -> dict[str, Any]:
    return {field.name: getattr(data, field.name) for field in dataclasses.fields(data) if hasattr(data, field.name)}


def _mapping_like(original: Mapping[Any, Any], values: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """``values`` in a mapping of the original's kind, with whatever else it carries (a default factory, say)."""
    if type(original) is dict:
        return values
    if not hasattr(original, "__setitem__"):
        return type(original)(values)  # type: ignore[call-arg]
    result: Any = copy.copy(original)
    for key, value in changed.items():
        result[key] = value
    return result


def _sequence_like(original: Sequence[Any], items: list[Any]) -> Any:
    if type(original) is list:
        return items
    if hasattr(original, "_fields"):  # a named tuple
        return type(original)(*items)
    return type(original)(items)  # type: ignore[call-arg]
