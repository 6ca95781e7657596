"""Making a module or data module again from a checkpoint: reading the file, and choosing the constructor's arguments."""

from __future__ import annotations

import ast
import csv
import functools
import inspect
import os
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

import torch

from hookbus.checkpoint.reading import check_version, content_of
from hookbus.hparams import AttributeDict

if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):
        """A classmethod that refuses to be called on an instance, where its result would be mistaken for a change of it."""

        def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
            method = super().__get__(instance, owner)
            if instance is None:
                return method

            @functools.wraps(method)
            def refuse(*_: Any, **__: Any) -> Any:
                name = f"{type(instance).__name__}.{method.__name__}"
                raise TypeError(f"{name}(…) makes a new object: call it on the class, and use what it returns")

            return refuse


def read_checkpoint(source: str | os.PathLike[str] | IO[bytes], map_location: Any, weights_only: bool | None) -> Any:
    """The dictionary in a checkpoint file.

    Args:
        source: a path, or a file that is open for reading bytes.
        map_location: as in ``torch.load``; None puts tensors where they were, or on the CPU where that is missing here.
        weights_only: refuse to unpickle anything but tensors and plain data; None means True.

    Raises:
        FileNotFoundError: there is no such file.
        pickle.UnpicklingError: it holds more than ``weights_only`` lets through.
        ValueError: it is no checkpoint.
    """
    location = _where_possible if map_location is None else map_location
    if isinstance(source, (str, os.PathLike)):
        checkpoint = content_of(source, weights_only=weights_only, map_location=location, hyper_parameters=True)
    else:
        checkpoint = _read_stream(source, location, weights_only is not False)
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{source!r} is no checkpoint: expected a dictionary, got {type(checkpoint).__name__}")
    check_version(checkpoint, str(source))
    return checkpoint


def _read_stream(source: IO[bytes], location: Any, safe: bool) -> Any:
    try:
        return torch.load(source, map_location=location, weights_only=safe)
    except pickle.UnpicklingError as error:
        if not safe:
            raise
        raise pickle.UnpicklingError(
            f"{source!r} holds objects other than tensors and plain data. If you trust where it comes from, pass "
            f"weights_only=False; unpickling can run any code. torch says: {error}"
        ) from error


def constructor_arguments(
    cls: type, saved: Mapping[str, Any], name: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments with which ``cls`` is made again.

    Args:
        cls: the class; it gets only arguments that its ``__init__`` takes.
        saved: the hyper-parameters in the checkpoint.
        name: the name of the argument that took them all as one object; ``kwargs`` or None for one argument each.
        given: what the caller passed: wins over saved ones. What ``__init__`` does not take goes into that object.
    """
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if name is not None and name in parameters and parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
        own = {key: value for key, value in given.items() if key in parameters}
        rest = {key: value for key, value in given.items() if key not in parameters}
        return {name: AttributeDict({**saved, **rest}), **own}
    values = {**saved, **given}
    if takes_any:
        return values
    unknown = [key for key in given if key not in parameters]
    if unknown:
        warnings.warn(
            f"load_from_checkpoint: {cls.__name__}.__init__ takes no {', '.join(map(repr, unknown))}; it is passed over",
            stacklevel=3,
        )
    return {key: value for key, value in values.items() if key in parameters}


def hparams_from_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Hyper-parameters from a ``.yaml`` file, or from a ``.csv`` file with the columns ``key`` and ``value``.

    Raises:
        ValueError: it is another kind of file, or holds no mapping.
        ModuleNotFoundError: for YAML, if PyYAML is not installed.
    """
    path = os.fspath(path)
    extension = os.path.splitext(path)[1].lower()
    if extension == ".csv":
        with open(path, newline="", encoding="utf-8") as file:
            return {row["key"]: _literal(row["value"]) for row in csv.DictReader(file)}
    if extension not in (".yaml", ".yml"):
        raise ValueError(f"hparams_file must end in .yaml, .yml or .csv, got {path!r}")
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading {path!r} needs PyYAML: pip install pyyaml") from error
    with open(path, encoding="utf-8") as file:
        values = yaml.safe_load(file) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{path!r} must hold a mapping of names to values, got {type(values).__name__}")
    return values


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _where_possible(storage: Any, location: str) -> Any:
    """For ``torch.load``: None leaves a tensor to where it was saved, the storage itself keeps it on the CPU."""
    device = torch.device(location)
    if device.type == "cuda":
        return None if (device.index or 0) < torch.cuda.device_count() else storage
    if device.type == "mps":
        return None if torch.backends.mps.is_available() else storage
    return None if device.type in ("cpu", "meta") else storage
