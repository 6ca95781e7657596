"""What stands in a checkpoint, without loading it: names, shapes, sizes and numbers.

The pickle in the archive is read with every class and function that it names replaced by an inert stand-in, so that
nothing of it can run, whatever it names; tensors are described, their data stay on the disk. Nothing here needs torch.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from dataclasses import dataclass
from typing import Any, Final

from hookbus.checkpoint import archive
from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError

#: The bytes of one number; 1 for those that are not listed.
_SIZES: Final = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    "complex128": 16,
}
_DTYPES: Final = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """Where the numbers of tensors stand.

    Attributes:
        key: the record of the archive.
        dtype: of its numbers.
        elements: how many there are.
    """

    key: str
    dtype: str
    elements: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.elements * _SIZES.get(self.dtype, 1)


@dataclass(frozen=True)
class TensorOutline:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: str
    storage: Storage

    @property
    def bytes(self) -> int:
        """The size of its numbers; several tensors may share them."""
        return math.prod(self.shape) * _SIZES.get(self.dtype, 1)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Named:
    """Stands for whatever a pickle names, and for what it makes of it; does nothing.

    Attributes:
        name: the module and name of the class or function.
        arguments: with what it would have been called.
        state: what its ``__setstate__`` would have got.
    """

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments

    def __call__(self, *arguments: Any) -> Named:
        """Stand for what a call of it gives."""
        return stand_in(self.name)(self.arguments, arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None:
        """Take no notice."""

    def extend(self, values: Any) -> None:
        """Take no notice."""

    def add(self, value: Any) -> None:
        """Take no notice."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The checkpoint with :class:`TensorOutline` in place of tensors and :class:`Named` in place of other objects.

    Args:
        path: a local file.

    Raises:
        DamagedCheckpointError: the file is cut off, or its pickle is damaged.
        CheckpointError: it is no checkpoint.
    """
    path = os.fspath(path)
    archive.check(path, contents=False)
    if is_bare_pickle(path):
        raise CheckpointError(f"{path!r} has torch's format from before version 1.6; save it anew to look into it")
    data = archive.read_record(path, "data.pkl")
    try:
        content = _Reader(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 - a damaged pickle can fail in any way
        raise DamagedCheckpointError(f"{path!r} is damaged: its pickle cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path!r} is no checkpoint: expected a dictionary, it holds {_said(content)}")
    return content


def named_in(path: str | os.PathLike[str]) -> list[str]:
    """All classes and functions that the pickle of an archive names, sorted."""
    reader = _Reader(io.BytesIO(archive.read_record(path, "data.pkl")))
    reader.load()
    return sorted(reader.names)


def is_bare_pickle(path: str) -> bool:
    """Whether a file is a pickle outside of an archive, as torch wrote before 1.6."""
    with open(path, "rb") as file:
        return archive.is_bare_pickle(file.read(2))


def _said(value: Any) -> str:
    return repr(value) if isinstance(value, (Named, TensorOutline)) else f"a {type(value).__name__}"


class _Reader(pickle.Unpickler):
    """Makes dictionaries, lists, numbers and strings, and stand-ins for everything else."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="utf-8")
        self.names: set[str] = set()
        self._classes: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._classes:
            self.names.add(full)
            self._classes[full] = self._stand_in(full)
        return self._classes[full]

    def _stand_in(self, full: str) -> Any:
        known = {
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_tensor_v3": _tensor,
            "torch._utils._rebuild_parameter": lambda data, *_: data,
            "torch.Size": lambda values=(): tuple(values),
            "collections.OrderedDict": Mapping,
            "collections.Counter": Mapping,
            "_codecs.encode": lambda text, _="latin1": str(text).encode("latin1", "replace"),
        }
        if full in known:
            return known[full]
        if full in ("builtins.set", "__builtin__.set"):
            return lambda values=(): set(values)
        return stand_in(full)

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise pickle.UnpicklingError(f"unknown reference {pid!r:.80}")
        kind = str(getattr(pid[1], "name", pid[1])).rpartition(".")[2]
        return Storage(str(pid[2]), _DTYPES.get(kind, kind), int(pid[4]))


class Mapping(dict):  # type: ignore[type-arg]
    """A dictionary that a pickle may give attributes, as torch does with the state of a module."""


def stand_in(full: str) -> type[Named]:
    """The class that takes the place of what a pickle calls ``full``."""
    return type(full.rpartition(".")[2] or "Named", (Named,), {"name": full})


def _tensor(storage: Any, _offset: Any, size: Any, *rest: Any) -> TensorOutline:
    if not isinstance(storage, Storage) or not isinstance(size, tuple):
        raise pickle.UnpicklingError("a tensor without a storage")
    dtype = storage.dtype if len(rest) < 4 else str(getattr(rest[3], "name", rest[3])).rpartition(".")[2]
    return TensorOutline(tuple(int(length) for length in size), dtype, storage)
