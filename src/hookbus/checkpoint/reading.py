"""Reading a checkpoint without trusting it: whole, of this format, and without running anybody's code.

With ``weights_only`` (the default) torch's restricted reader makes tensors and plain data, and refuses a file that
names any class besides. Then the file is read once more with inert stand-ins for those classes: hyper-parameters may
hold whatever a user passed to his module, and resuming needs none of them; anywhere else the classes are named in the
error, with the line that allows them.
"""

from __future__ import annotations

import collections
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from hookbus.checkpoint import archive, outline, refusal, store
from hookbus.checkpoint.errors import CheckpointError, UnsafeCheckpointError
from hookbus.checkpoint.format import FORMAT_VERSION, HYPER_PARAMETERS
from hookbus.checkpoint.plain import allowing, forged, safe_globals


def read(
    path: str | os.PathLike[str],
    *,
    weights_only: bool | None = None,
    map_location: Any = "cpu",
    storage_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Read a checkpoint of hookbus or Lightning.

    Args:
        path: the file, or a URL for fsspec.
        weights_only: make tensors and plain data only, which is safe with any file; None means True. False runs whatever
            the file asks for: only for files whose origin you know.
        map_location: where tensors go, as in ``torch.load``.
        storage_options: for fsspec.

    Returns:
        The dictionary. Hyper-parameters of other classes than plain ones are :class:`~hookbus.checkpoint.outline.Named`.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedCheckpointError: it is not whole.
        UnsafeCheckpointError: it needs classes that are not plain data.
        CheckpointError: it is no checkpoint, or one of a newer format.
    """
    name = os.fspath(path)
    content = content_of(path, weights_only=weights_only, map_location=map_location, storage_options=storage_options)
    if not isinstance(content, dict) or "state_dict" not in content:
        what = (
            f"the keys {sorted(map(str, content))[:8]}" if isinstance(content, dict) else f"a {type(content).__name__}"
        )
        raise CheckpointError(
            f"{name!r} is no checkpoint: expected a dictionary with the key 'state_dict', it holds {what}"
        )
    check_version(content, name)
    return content


def check_version(content: dict[str, Any], name: str) -> None:
    """See to it that a dictionary is of a format that is understood here.

    Raises:
        CheckpointError: it is of a newer one.
    """
    own = content.get("hookbus", {})
    if not isinstance(own, dict):
        raise CheckpointError(f"{name!r} is no checkpoint of hookbus: its key 'hookbus' holds a {type(own).__name__}")
    version = own.get("format_version", 0)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise CheckpointError(
            f"{name!r} has the format version {version!r}, and this hookbus reads up to {FORMAT_VERSION}: update hookbus to "
            "load it"
        )


def content_of(
    path: str | os.PathLike[str],
    *,
    weights_only: bool | None = None,
    map_location: Any = "cpu",
    storage_options: dict[str, Any] | None = None,
    hyper_parameters: bool = False,
) -> Any:
    """What a file holds, be it a checkpoint or not; arguments and errors as of :func:`read`.

    Args:
        hyper_parameters: whether those must be there as they were saved, and not as stand-ins.
    """
    name = os.fspath(path)
    with store.local(name, storage_options) as file:
        try:
            archive.check(file)
            return _load(file, weights_only is not False, map_location, () if hyper_parameters else _HYPER_PLACES)
        except CheckpointError as error:
            if file != name:
                raise type(error)(str(error).replace(repr(file), repr(name))) from None
            raise


def _load(path: str, weights_only: bool, map_location: Any, optional: tuple[str, ...]) -> Any:
    if not weights_only:
        return torch.load(path, map_location=map_location, weights_only=False)
    try:
        with allowing(safe_globals()):
            content = torch.load(path, map_location=map_location, weights_only=True)
        place = forged(content)
        if place is not None:
            raise UnsafeCheckpointError(
                f"{path!r} holds an array whose dtype was forged, at checkpoint{place}: whoever made it means to read or write "
                "memory; do not use the file"
            )
        return content
    except UnsafeCheckpointError:
        raise
    except pickle.UnpicklingError as error:
        reason = _reason(error)
    except _UNREADABLE as error:
        raise CheckpointError(f"{path!r} cannot be read: {error or type(error).__name__}") from error
    if outline.is_bare_pickle(path):
        raise UnsafeCheckpointError(f"{path!r} is a bare pickle that weights_only=True does not let pass: {reason}")
    try:
        content = torch.load(path, map_location=map_location, weights_only=False, pickle_module=_CarefulPickle)
    except (pickle.UnpicklingError, *_UNREADABLE) as error:
        raise UnsafeCheckpointError(f"{path!r} cannot be read with weights_only=True: {reason} ({error})") from error
    found = list(_stand_ins(content))
    if not found:
        raise UnsafeCheckpointError(f"{path!r} cannot be read with weights_only=True: {reason}")
    harmful = sorted(
        {value.name for _, value in found if isinstance(value, outline.Named) and refusal.runs_code(value)}
    )
    if harmful:
        raise UnsafeCheckpointError(
            f"{path!r} wants to call {', '.join(harmful)}, which no checkpoint needs: whoever made it means to run code on the "
            "machine that loads it. Nothing was run; do not use the file"
        )
    needed = [(place, value) for place, value in found if not (optional and place.startswith(optional))]
    if needed:
        raise UnsafeCheckpointError(refusal.of_objects(path, needed))
    return content


#: What torch may raise for a file that is not of its making.
_UNREADABLE: Final = (
    *(
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        EOFError,
        AssertionError,
        OverflowError,
    ),
)
#: Where objects that cannot be made do not matter.
_HYPER_PLACES: Final = tuple(f"[{key!r}]" for key in HYPER_PARAMETERS)


def _reason(error: Exception) -> str:
    """What torch objects to, out of its long explanation."""
    text = str(error)
    text = (text.partition("WeightsUnpickler error:")[2] or text).strip()
    return (text or type(error).__name__).splitlines()[0].partition(" Please use")[0]


def _stand_ins(content: Any) -> Iterator[tuple[str, outline.Named | type[outline.Named]]]:
    """Where stand-ins are: objects that would have been made, and classes that are only mentioned."""
    stack, seen = [("", content)], set()
    while stack:
        place, value = stack.pop()
        if isinstance(value, (dict, list, tuple, set, outline.Named)):
            if id(value) in seen:
                continue
            seen.add(id(value))
        if isinstance(value, outline.Named):
            yield place, value
            stack += [(f"{place}(…)", value.arguments), (f"{place}.state", value.state)]
        elif isinstance(value, type) and issubclass(value, outline.Named):
            yield place, value
        elif isinstance(value, (dict, list, tuple, set)):
            items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
            stack += [(f"{place}[{key!r}]", item) for key, item in reversed(items)]
            if isinstance(value, dict):
                stack += [(f"{place} (a key)", key) for key in value if isinstance(key, (outline.Named, tuple))]


# -- the second look -----------------------------------------------------------------------------------------------------


def _encode(text: Any, encoding: str = "latin1") -> bytes:
    """How pickles of protocol 2 hold bytes."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"_codecs.encode is for bytes, got the encoding {encoding!r:.40}")
    return text.encode("latin1")


class _Call:
    """A function that may be called and, unlike a bare function, not be changed by the pickle that names it."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise pickle.UnpicklingError("a pickle tried to change a function")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a pickle tried to change a function")


class _Bytes:
    """What ``torch.load`` asks of ``torch.UntypedStorage``, and no class that a pickle could change."""

    __slots__ = ()
    dtype = torch.uint8


_FUNCTIONS: Final = ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_sparse_tensor")
_KNOWN: Final[dict[str, Any]] = {
    **{
        f"torch._utils.{name}": _Call(getattr(torch._utils, name)) for name in _FUNCTIONS if hasattr(torch._utils, name)
    },
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    "torch.storage.UntypedStorage": _Bytes(),
    "torch.Size": _Call(torch.Size),
    "torch.device": _Call(torch.device),
    "collections.OrderedDict": _Call(collections.OrderedDict),
    "collections.Counter": _Call(collections.Counter),
    "_codecs.encode": _Call(_encode),
    **{
        f"{module}.{kind.__name__}": _Call(kind)
        for module in ("builtins", "__builtin__")
        for kind in (set, complex, bytearray)
    },
}


class _CarefulPickle:
    """What ``torch.load`` takes for the module ``pickle``: its reader makes tensors, plain data and stand-ins."""

    load = staticmethod(pickle.load)

    class Unpickler(pickle.Unpickler):
        """Names nothing but what is known to be harmless."""

        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            return _KNOWN[full] if full in _KNOWN else outline.stand_in(full)
