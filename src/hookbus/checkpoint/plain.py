"""Plain data: what may stand in a checkpoint so that it can be read again without running anybody's code."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import pathlib
import pickle
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

_CONTAINERS: Final = (list, tuple, set)
_LEAVES: Final = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.device})
#: Harmless values of the standard library that torch refuses by default.
_STANDARD: Final = (
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    argparse.Namespace,
)

#: Modules that have had other names: files of then know their classes by those.
_MOVED: Final = (
    ("pathlib", "pathlib._local"),
    ("numpy._core.multiarray", "numpy.core.multiarray"),
)
_CAN_RENAME: Final = hasattr(torch.serialization, "set_crc32_options")  # torch 2.6
_OPEN_KINDS: Final = ("O", "V")  # NumPy's objects and records


def unfit(value: Any, where: str = "") -> Iterator[tuple[str, type]]:
    """The objects within ``value`` that a reader with ``weights_only=True`` would refuse.

    Args:
        value: what is to be saved.
        where: how to reach it, for the messages.

    Yields:
        How to reach each such object (``['window'][3]``), and its class.
    """
    allowed = {cls for cls in _allowed_by_user() if isinstance(cls, type)} | _safe_kinds("numpy" in sys.modules)
    yield from _unfit(value, where, allowed, set())


@functools.cache
def _safe_kinds(numpy: bool) -> frozenset[type]:
    return frozenset(cls for cls in _safe_globals(numpy) if isinstance(cls, type))


def _unfit(value: Any, where: str, allowed: set[type], seen: set[int]) -> Iterator[tuple[str, type]]:
    kind = type(value)
    if kind in _LEAVES or isinstance(value, torch.dtype):
        return
    if isinstance(value, Tensor):
        if kind.__module__.partition(".")[0] != "torch" and kind not in allowed:
            yield where, kind
        return
    if kind in _CONTAINERS or kind in (dict, OrderedDict, Counter):
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, dict):
            for key, item in value.items():
                yield from _unfit(key, f"{where} (the key {key!r})", allowed, seen)
                yield from _unfit(item, f"{where}[{key!r}]", allowed, seen)
        else:
            for index, item in enumerate(value):
                yield from _unfit(item, f"{where}[{index}]", allowed, seen)
    elif kind not in allowed:
        yield where, kind
    elif getattr(getattr(value, "dtype", None), "kind", "") in _OPEN_KINDS and type(value.dtype) not in allowed:
        yield where, type(value.dtype)


def unpicklable(value: Any, where: str = "") -> tuple[str, type, Exception] | None:
    """The innermost object within ``value`` that cannot be pickled: how to reach it, its class, and why; None if all can.

    Numbers of tensors are not looked at, so it costs no more than the rest is large.
    """
    return _unpicklable(value, where, set())


def _unpicklable(value: Any, where: str, seen: set[int]) -> tuple[str, type, Exception] | None:
    if type(value) in _LEAVES or id(value) in seen:
        return None
    error = _pickling_error(value)
    if error is None:
        return None
    seen.add(id(value))
    if isinstance(value, (dict, *_CONTAINERS)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found = _unpicklable(item, f"{where}[{key!r}]", seen)
            if found is not None:
                return found
    return where, type(value), error


class _Nowhere:
    """A file for bytes that nobody needs."""

    def write(self, data: Any) -> int:
        """Take no notice."""
        return len(data)


class _Trial(pickle.Pickler):
    """Pickles as ``torch.save`` does, which writes the numbers of tensors beside the pickle."""

    def persistent_id(self, obj: Any) -> Any:
        """Leave numbers out."""
        return "numbers" if isinstance(obj, torch.storage.TypedStorage) or torch.is_storage(obj) else None


def _pickling_error(value: Any) -> Exception | None:
    try:
        _Trial(_Nowhere(), protocol=torch.serialization.DEFAULT_PROTOCOL).dump(value)
    except Exception as error:  # noqa: BLE001 - the classes of users may raise anything here; it is the answer
        return error
    return None


def alike(a: Any, b: Any) -> bool:
    """Whether two checkpoints are the same. Tensors that are the same memory are, so :func:`versions` must be, too."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _same_tensor(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float) and a != a:
        return bool(b != b)
    same = a == b
    return same if isinstance(same, bool) else False


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if a.layout is not torch.strided or a.is_quantized:
        return False
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride():
        return True
    return torch.equal(a, b)


def versions(value: Any) -> list[int]:
    """How often torch has written into each tensor of a checkpoint: the same list later, and nothing has changed."""
    if isinstance(value, Tensor):
        return [] if value.is_inference() else [value._version]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [version for item in value for version in versions(item)]


def safe_globals() -> list[Any]:
    """What hookbus's reader allows besides torch's own list: dates, paths, namespaces, and NumPy's numbers and arrays.

    Not arrays of objects or of records: a file could let the bytes in them pass for pointers.
    """
    return list(_safe_globals("numpy" in sys.modules))


@functools.cache
def _safe_globals(with_numpy: bool) -> tuple[Any, ...]:
    found: list[Any] = list(_STANDARD)
    if with_numpy:
        numpy: Any = sys.modules["numpy"]
        core = getattr(numpy, "_core", None) or numpy.core
        found += [core.multiarray.scalar, core.multiarray._reconstruct, numpy.ndarray, numpy.dtype]
        dtypes = [numpy.dtype(code) for code in numpy.typecodes["All"] if code not in _OPEN_KINDS]
        found += [type(dtype) for dtype in dtypes]
        found += [dtype.type for dtype in dtypes]
    moved = [
        (value, f"{module}.{value.__name__}")
        for value in found
        for modules in _MOVED
        if value.__module__ in modules and _CAN_RENAME
        for module in modules
    ]
    return (*found, *moved)


def forged(content: Any) -> str | None:
    """Where a NumPy array is whose dtype only a manipulated file can have: numbers that are said to hold objects."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    stack, seen = [("", content)], set()
    while stack:
        place, value = stack.pop()
        if isinstance(value, (dict, list, tuple, set)):
            if id(value) not in seen:
                seen.add(id(value))
                items = value.items() if isinstance(value, dict) else enumerate(value)
                stack += [(f"{place}[{key!r}]", item) for key, item in items]
        elif isinstance(value, (numpy.ndarray, numpy.generic, numpy.dtype)):
            dtype = value if isinstance(value, numpy.dtype) else value.dtype
            odd = dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None
            if odd and dtype.kind not in _OPEN_KINDS:
                return place
    return None


@contextlib.contextmanager
def allowing(classes: list[Any]) -> Iterator[None]:
    """Within the block ``torch.load(weights_only=True)`` also makes objects of these classes."""
    before = _allowed_by_user()
    torch.serialization.add_safe_globals(classes)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _allowed_by_user() -> list[Any]:
    return list(torch.serialization.get_safe_globals())
