"""Hyper-parameters made fit for writing down, as loggers of other packages ask Lightning's helpers to."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def flatten_dict(params: Mapping[Any, Any], delimiter: str = "/", parent_key: str = "") -> dict[str, Any]:
    """Nested mappings, namespaces and dataclasses as one dictionary: ``{"a": {"b": 1}}`` gives ``{"a/b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{parent_key}{delimiter}{key}" if parent_key else str(key)
        if isinstance(value, Namespace):
            value = vars(value)
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        if isinstance(value, Mapping):
            flat.update(flatten_dict(value, delimiter, name))
        else:
            flat[name] = value
    return flat


def sanitize_callable_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """With classes and functions as their names; a function without arguments that answers is replaced by its answer."""
    return {name: _answer(value) if callable(value) else value for name, value in params.items()}


def _answer(value: Any) -> Any:
    if isinstance(value, type):
        return value.__name__
    try:
        found = value()
    except Exception:  # noqa: BLE001 - it wants arguments, or raises whatever it likes: then its name must do
        return getattr(value, "__name__", str(value))
    return getattr(found, "__name__", str(found)) if callable(found) else found
