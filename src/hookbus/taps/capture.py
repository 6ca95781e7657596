"""``Capture``: keeps what modules give or take, and the gradients of it, so that nothing that follows can change it.

A captured tensor is detached and, unless it was copied on the way anyway, cloned: a ReLU that works in place would
otherwise overwrite it, on a CPU even after ``.cpu()``.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookbus.engine.nested import map_leaves
from hookbus.hookspecs import nearest
from hookbus.taps import leaves
from hookbus.taps.errors import CaptureFullError, StaleCaptureError
from hookbus.taps.event import Replace, TapEvent
from hookbus.taps.selection import Which
from hookbus.taps.tap import Tap

if TYPE_CHECKING:
    from typing_extensions import Self

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Record:
    """One call of one module.

    Attributes:
        name: the module's dotted name.
        call_index: number of the call within its forward pass, from 0.
        moment: step, epoch, phase and so on.
        grads: gradients of the value's tensors, by path, once the backward pass has come by.
        nbytes: of all that is kept.
    """

    __slots__ = ("_value", "_versions", "call_index", "grads", "moment", "name", "nbytes")

    def __init__(self, event: TapEvent, value: Any, versions: dict[leaves.Path, int] | None) -> None:
        self.name, self.call_index, self.moment = event.name, event.call_index, event.moment
        self._value, self._versions = value, versions
        self.grads: dict[leaves.Path, Tensor | None] = {}
        self.nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in leaves.tensors(value))

    @property
    def value(self) -> Any:
        """What was captured, in the structure in which the module gave it.

        Raises:
            StaleCaptureError: it was not cloned, and has been overwritten since.
        """
        if self._versions is not None:
            for path, tensor in leaves.tensors(self._value):
                if tensor._version != self._versions[path]:
                    raise StaleCaptureError(
                        f"what was captured of {self.name!r}{leaves.spelled(path)} has been overwritten by an in-place "
                        'operation since; capture with clone="auto"'
                    )
        return self._value

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the value, or of its first tensor that has one; None if none has come."""
        return next((grad for grad in self.grads.values() if grad is not None), None)

    def __repr__(self) -> str:
        return f"<Record of {self.name!r}, call {self.call_index}, {self.moment.phase} step {self.moment.step}>"


class Capture(Tap):
    """A tap that keeps what it sees.

    Made by :meth:`hookbus.taps.Taps.capture`, which registers it. ``capture["layer3"]`` is the value of the latest call,
    ``capture.records("layer3")`` are all that are kept.

    Args:
        modules: which modules; see :class:`hookbus.taps.Selection`.
        what: their ``output``, or their ``input``: the positional arguments, followed by the keyword arguments if there
            are any; of a single argument, that one.
        grads: keep the gradients of what is captured as well.
        keep: how many records of each call of each module to keep: the ``last``, ``all``, or a number. A module that is
            called twice per forward pass has two calls.
        max_bytes: an upper bound for all that is kept: a number, or words such as ``"256MB"``.
        on_full: what gives way then: ``drop_oldest`` records, ``stop`` taking more, or ``raise``.
        clone: ``auto``: never share memory with the network. ``never``: share it, and raise at reading what has been
            overwritten since.
        device: where to keep it, None for where it is.
        dtype: as what to keep floating-point tensors, None for as they are.
        sample: makes of each tensor what is kept of it: ``lambda x: x[:4]``.
        attached: keep tensors in the autograd graph: ``torch.autograd.grad(score, capture["layer3"])`` then gives the
            gradient at this very value and touches nobody's ``.grad``. The network goes on with a clone, and where
            nothing requires a gradient the value becomes a leaf that does.
        **selection: see :meth:`hookbus.taps.Taps.tap`.

    Attributes:
        nbytes: of all that is kept.
        dropped: records and gradients that were dropped, or not taken, for want of room.

    Raises:
        TypeError: an argument that there is not.
        ValueError: arguments that have no meaning, or exclude each other.
    """

    def __init__(
        self,
        modules: Which | Collection[Which] | None = None,
        *,
        what: Literal["output", "input"] = "output",
        grads: bool = False,
        keep: int | Literal["last", "all"] = "last",
        max_bytes: int | str | None = None,
        on_full: Literal["drop_oldest", "stop", "raise"] = "drop_oldest",
        clone: Literal["auto", "never"] = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        sample: Callable[[Tensor], Tensor] | None = None,
        attached: bool = False,
        **selection: Any,
    ) -> None:
        _check(what=(what, ("output", "input")), on_full=(on_full, ("drop_oldest", "stop", "raise")))
        _check(clone=(clone, ("auto", "never")))
        if keep not in ("last", "all") and not (isinstance(keep, int) and keep > 0):
            raise ValueError(f"keep must be 'last', 'all' or a number of at least 1, got {keep!r}")
        if "kinds" in selection:
            raise TypeError("a capture has no kinds: what='output' or 'input', and grads=True, say what it keeps")
        if attached and (device is not None or dtype is not None or sample is not None or clone == "never"):
            raise ValueError("an attached capture keeps tensors as they are: drop device, dtype, sample and clone")
        if selection.get("edits"):
            raise ValueError("a capture does not edit; use attached=True, or a tap")
        kinds = ["forward" if what == "output" else "forward_pre"]
        if grads:
            kinds.append("grad_output" if what == "output" else "grad_input")
        super().__init__(modules, self._take, kinds=kinds, **{**selection, "edits": attached})
        self.__name__ = "capture"
        self.nbytes = 0
        self.dropped = 0
        self._limit = None if keep == "all" else 1 if keep == "last" else int(keep)
        self._room = None if max_bytes is None else _bytes(max_bytes)
        self._on_full = on_full
        self._clone, self._device, self._dtype, self._sample = clone == "auto", device, dtype, sample
        self._attached = attached
        self._stopped = False
        self._records: deque[Record] = deque()
        self._count: Counter[tuple[str, int]] = Counter()

    # -- reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of the latest call of a module.

        Raises:
            KeyError: nothing of that name has been captured.
        """
        return self._latest(name).value

    def grad(self, name: str) -> Tensor | None:
        """The gradient of the latest call of a module, see :attr:`Record.grad`.

        Raises:
            KeyError: nothing of that name has been captured.
        """
        return self._latest(name).grad

    def records(self, name: str | None = None) -> list[Record]:
        """What is kept, of one module or of all, oldest first."""
        return [record for record in self._records if name in (None, record.name)]

    def names(self) -> list[str]:
        """The modules of which something is kept, in the order of their first calls."""
        return list(dict.fromkeys(record.name for record in self._records))

    def clear(self) -> None:
        """Forget all records."""
        self._records.clear()
        self._count.clear()
        self.nbytes = 0
        self._stopped = False

    def __contains__(self, name: object) -> bool:
        return any(record.name == name for record in self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records))

    def __len__(self) -> int:
        return len(self._records)

    def __enter__(self) -> Self:
        return self

    # -- taking ------------------------------------------------------------------------------------------------------

    def _take(self, event: TapEvent) -> Any:
        if event.kind in ("grad_output", "grad_input"):
            self._take_gradient(event)
            return None
        given = event.output if event.kind == "forward" else _arguments(event)
        if self._attached:
            kept, passed_on = _attach(given)
            self._keep(Record(event, kept, None))
            return _in_place_of(event, passed_on)
        value = map_leaves(given, self._taken)
        versions = None
        if not self._clone:
            versions = {path: tensor._version for path, tensor in leaves.tensors(value) if not tensor.is_inference()}
        self._keep(Record(event, value, versions))
        return None

    def _taken(self, tensor: Tensor) -> Tensor:
        """What is kept of one tensor."""
        kept = tensor.detach()
        if self._sample is not None:
            kept = self._sample(kept)
        dtype = self._dtype if kept.is_floating_point() else None
        if self._device is not None or dtype is not None:
            kept = kept.to(device=self._device, dtype=dtype)
        if kept.is_inference():  # as it is, it could neither be differentiated nor edited later
            with torch.inference_mode(False):
                return kept.clone()
        return kept.clone() if self._clone and _shares_memory(kept, tensor) else kept

    def _keep(self, record: Record) -> None:
        if self._stopped:
            self.dropped += 1
            return
        key = (record.name, record.call_index)
        if self._limit is not None and self._count[key] >= self._limit:
            self._drop(next(old for old in self._records if (old.name, old.call_index) == key))
        if not self._make_room(record.nbytes, record):
            self.dropped += 1
            return
        self._records.append(record)
        self._count[key] += 1
        self.nbytes += record.nbytes

    def _make_room(self, nbytes: int, record: Record) -> bool:
        """Whether there is room for so many more bytes, of this record, which itself stays."""
        room = self._room
        if room is None or self.nbytes + nbytes <= room:
            return True
        if self._on_full == "raise":
            raise CaptureFullError(
                f"{record!r} needs {nbytes:,} bytes, and {self.nbytes:,} of {room:,} are taken; raise max_bytes, keep "
                'less (sample, dtype), or choose on_full="drop_oldest"'
            )
        if self._on_full == "stop":
            self._stopped = True
            return False
        while self.nbytes + nbytes > room:
            oldest = next((old for old in self._records if old is not record), None)
            if oldest is None:
                return False
            self._drop(oldest)
            self.dropped += 1
        return True

    def _drop(self, record: Record) -> None:
        self._records.remove(record)
        self._count[record.name, record.call_index] -= 1
        self.nbytes -= record.nbytes

    def _take_gradient(self, event: TapEvent) -> None:
        path = event.path
        if event.kind == "grad_input":  # (0,) is the very value where there was a single argument
            path = path[1:] if path[:1] == (0,) else path
        for record in reversed(self._records):
            same = record.moment is event.moment and record.call_index == event.call_index
            if same and record.name == event.name:
                grad = None if event.grad is None else self._taken(event.grad)
                nbytes = 0 if grad is None else grad.numel() * grad.element_size()
                if not self._make_room(nbytes, record):
                    self.dropped += 1
                    return
                record.grads[path if path in dict(leaves.tensors(record._value)) else event.path] = grad
                record.nbytes += nbytes
                self.nbytes += nbytes
                return

    def _latest(self, name: str) -> Record:
        for record in reversed(self._records):
            if record.name == name:
                return record
        names = self.names()
        guess = nearest(name, names)
        hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names) or 'none yet'}"
        raise KeyError(f"nothing of a module {name!r} has been captured; {hint}")


def _attach(value: Any) -> tuple[Any, Any]:
    """The value as it stays in the graph, and what the network goes on with."""

    def leaf(tensor: Tensor) -> Tensor:
        if tensor.requires_grad or not tensor.is_floating_point() or not torch.is_grad_enabled():
            return tensor
        return tensor.detach().requires_grad_()

    kept = map_leaves(value, leaf)
    return kept, map_leaves(kept, lambda tensor: tensor.clone() if tensor.is_floating_point() else tensor)


def _arguments(event: TapEvent) -> Any:
    """What a module is called with, as one value."""
    if event.kwargs:
        return (*event.args, dict(event.kwargs))
    return event.args[0] if len(event.args) == 1 else event.args


def _in_place_of(event: TapEvent, value: Any) -> Any:
    if event.kind == "forward":
        return value
    if event.kwargs:
        return Replace(args=value[:-1], kwargs=value[-1])
    return (value,) if len(event.args) == 1 else value


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device:
        return False
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # no plain memory: sparse, distributed, nested
        return True


def _bytes(text: int | str) -> int:
    """A number of bytes, also from words: ``"256MB"``.

    Raises:
        ValueError: for words that are no number of bytes.
    """
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"max_bytes must be a number of bytes, such as 1000000 or '256MB', got {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _check(**given: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, words) in given.items():
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}")
