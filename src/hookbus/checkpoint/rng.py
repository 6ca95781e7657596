"""The random streams of a process: taken down, set again, kept apart.

Python's, torch's (CPU, and CUDA if it is in use) and NumPy's global one (if NumPy is imported); and those that objects
such as samplers hold in an attribute.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

#: Marks what stands for an array of NumPy; the value is its dtype.
_ARRAY: Final = "numpy dtype"


def capture(*, cuda: bool = True, plain: bool = True) -> dict[str, Any]:
    """The states of all streams, as plain data.

    Args:
        cuda: those of CUDA devices too, if CUDA is in use.
        plain: False leaves the states as Python and NumPy give them, which is quicker; :func:`as_plain` mends that.
    """
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return as_plain(state) if plain else state


def restore(state: dict[str, Any]) -> None:
    """Set all streams that are in ``state``; NumPy is imported if its stream is, CUDA devices that are gone are left out."""
    random.setstate(_python(state["python"]))
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state:
        try:
            import numpy
        except ImportError:
            pass
        else:
            numpy.random.set_state(_with_arrays(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one.cpu(), device)


@contextlib.contextmanager
def isolated(state: dict[str, Any] | None = None) -> Iterator[None]:
    """Put all streams back afterwards as they were before.

    Args:
        state: what they are set to within the block; None leaves them as they are.
    """
    before = capture(plain=False)
    try:
        if state is not None:
            restore(state)
        yield
    finally:
        restore(before)


# -- streams of objects --------------------------------------------------------------------------------------------------


def streams_in(owner: Any, *, deep: bool = True) -> dict[str, Any]:
    """The generators that ``owner`` holds, by where they are: torch's, Python's and NumPy's.

    Args:
        owner: a sampler, a dataset, …; generators stand in its attributes, or in what stands there: the dataset that a
            subset is of, the transforms in a list.
        deep: False looks at the attributes only.
    """
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    found: dict[str, Any] = {}
    seen, waiting = {id(owner)}, deque([("", owner)])
    while waiting and len(seen) < _MOST_PARTS:
        place, holder = waiting.popleft()
        for name, value in _parts(holder):
            if type(value) in _NO_STREAMS or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, kinds):
                found[f"{place}{name}"] = value
            elif deep:
                waiting.append((f"{place}{name}.", value))
    return found


#: Most attributes are of these, and need not be looked into.
_NO_STREAMS: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, torch.Tensor, torch.dtype, torch.device, types.ModuleType}
    | {types.FunctionType, types.BuiltinFunctionType}
)
#: Collections of more are data, and so is what has more parts.
_MOST_ITEMS: Final = 64
_MOST_PARTS: Final = 500


def _parts(holder: Any) -> Iterable[tuple[str, Any]]:
    """What stands in an object, by name."""
    if isinstance(holder, dict):
        return ((str(key), value) for key, value in holder.items()) if len(holder) <= _MOST_ITEMS else ()
    if isinstance(holder, (list, tuple)):
        return ((str(index), value) for index, value in enumerate(holder)) if len(holder) <= _MOST_ITEMS else ()
    if isinstance(holder, functools.partial):
        return (("func", holder.func), ("args", holder.args), ("keywords", holder.keywords))
    if isinstance(holder, types.MethodType):
        return (("self", holder.__self__),)
    attributes = None if isinstance(holder, type) else getattr(holder, "__dict__", None)
    return list(attributes.items()) if isinstance(attributes, dict) else ()


def stream_state(stream: Any) -> Any:
    """The state of a generator, as plain data."""
    if isinstance(stream, torch.Generator):
        return stream.get_state()
    if isinstance(stream, random.Random):
        return as_plain(stream.getstate())
    if hasattr(stream, "bit_generator"):
        return as_plain(stream.bit_generator.state)
    return as_plain(stream.get_state(legacy=False))


def set_stream_state(stream: Any, state: Any) -> None:
    """Set a generator to a state of :func:`stream_state`."""
    if isinstance(stream, torch.Generator):
        stream.set_state(state.cpu())
    elif isinstance(stream, random.Random):
        stream.setstate(_python(state))
    elif hasattr(stream, "bit_generator"):
        stream.bit_generator.state = _with_arrays(state)
    else:
        stream.set_state(_with_arrays(state))


def as_plain(state: Any) -> Any:
    """A state with tensors in place of NumPy's arrays and Python's long tuples: small, and readable without NumPy."""
    if isinstance(state, dict):
        return {key: as_plain(value) for key, value in state.items()}
    if isinstance(state, tuple) and len(state) == 3 and isinstance(state[1], tuple):
        version, numbers, gauss = state
        # By way of an array: ten times as fast as torch.tensor.
        return {"version": version, "numbers": torch.frombuffer(array("q", numbers), dtype=torch.int64), "gauss": gauss}
    if type(state).__name__ == "ndarray":
        return {_ARRAY: str(state.dtype), "bytes": torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8)}
    return state


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        if _ARRAY in state:
            return state["bytes"].cpu().numpy().view(state[_ARRAY])
        return {key: _with_arrays(value) for key, value in state.items()}
    return state


def _python(state: Any) -> Any:
    """What Python's generator takes."""
    if isinstance(state, dict):
        return state["version"], tuple(state["numbers"].tolist()), state["gauss"]
    return state
