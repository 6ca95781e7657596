"""The random streams of this process: holding their state, and putting it back if it has moved.

Asking for a state is slow where it is handed out as a Python object: Python's own takes about 10 microseconds, NumPy's
about 60, and a run with five monitors asks dozens of times per step. So a stream's memory is looked at first (a copy of
2.5 kB, well under a microsecond): while it is as it was when the state was last asked for, that state still holds, and
where it is the same before and after a call, there is nothing to put back. Memory is only read, never written, and only
where a trial on a stream of our own has shown that every kind of draw can be seen in it; elsewhere the states
themselves are compared. torch hands out its states fast enough as they are. Nothing here imports NumPy or torch.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeAlias

#: Something that changes whenever the stream does, and the stream's state.
Held: TypeAlias = tuple[Any, Any]

_WORDS = 624  # of a Mersenne twister, 4 bytes each, kept with one int that says how many of them are used up
_TWISTER_BYTES = 4 * _WORDS + 4


class Stream:
    """One random stream.

    Args:
        peek: cheap; gives something that changes whenever the stream does.
        save: gives the stream's state.
        load: takes such a state back.
    """

    def __init__(self, peek: Callable[[], Any], save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        self._peek, self._save, self._load = peek, save, load
        self._last: Held = (None, None)

    def hold(self) -> Held:
        """The state as it is now."""
        seen = self._peek()
        held = self._last
        if held[0] != seen:
            held = self._last = (seen, self._save())
        return held

    def put_back(self, held: Held) -> None:
        """Make the state what it was when it was held."""
        if self._peek() != held[0]:
            self._load(held[1])


class Snapshot:
    """The streams of Python, NumPy and torch (CPU and the current CUDA device) and torch's grad mode, as they are now.

    What is not imported, or not initialised, is left alone.
    """

    __slots__ = ("_cuda", "_grad", "_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python = _python_stream().hold()
        self._numpy = _numpy_stream().hold() if "numpy.random" in sys.modules else None
        self._torch = self._cuda = None
        torch = sys.modules.get("torch")
        if torch is not None:
            self._torch, self._grad = torch.get_rng_state(), torch.is_grad_enabled()
            if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
                device = torch.cuda.current_device()
                self._cuda = (device, torch.cuda.get_rng_state(device))

    def restore(self) -> None:
        """Put back what has moved since."""
        _python_stream().put_back(self._python)
        if self._numpy is not None:
            _numpy_stream().put_back(self._numpy)
        if self._torch is not None:
            torch = sys.modules["torch"]
            torch.set_rng_state(self._torch)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda[1], self._cuda[0])
            if torch.is_grad_enabled() != self._grad:
                torch.set_grad_enabled(self._grad)


@cache
def _python_stream() -> Stream:
    # The functions of ``random`` are the methods of one instance.
    source: random.Random = random.getstate.__self__  # type: ignore[attr-defined]
    trial = random.Random(0)
    if _shows(_python_peek(trial), [trial.random] * 2 + [lambda: trial.gauss(0, 1)] * 2):
        return Stream(_python_peek(source), random.getstate, random.setstate)
    return Stream(random.getstate, random.getstate, random.setstate)


def _python_peek(source: random.Random) -> Callable[[], Any]:
    twister = _memory(id(source) + object.__basicsize__, _TWISTER_BYTES)
    # ``gauss`` makes two numbers at a time and keeps one.
    return lambda: (twister.raw, source.gauss_next)  # type: ignore[attr-defined]


@cache
def _numpy_stream() -> Stream:
    numpy: Any = sys.modules["numpy.random"]
    source, trial = numpy.get_state.__self__, numpy.RandomState(0)

    def save() -> Any:
        return numpy.get_state(legacy=False)

    if _shows(_numpy_peek(trial), [trial.random_sample] * 2 + [trial.standard_normal] * 2):
        return Stream(_numpy_peek(source), save, numpy.set_state)
    return Stream(lambda: pickle.dumps(save()), save, numpy.set_state)


def _numpy_peek(source: Any) -> Callable[[], Any]:
    """The memory of a ``RandomState``'s bit generator, and its own, where it keeps every second normal number."""
    own = _memory(id(source) + object.__basicsize__, type(source).__basicsize__ - object.__basicsize__)
    bits, twister = None, own

    def peek() -> Any:
        nonlocal bits, twister
        if source._bit_generator is not bits:  # at first, and after numpy.random.set_bit_generator
            bits = source._bit_generator
            twister = _memory(bits.ctypes.state_address, _TWISTER_BYTES)
        if type(bits).__name__ != "MT19937":
            return pickle.dumps(source.get_state(legacy=False))
        return twister.raw, own.raw

    return peek


def _memory(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * size).from_address(address)


def _shows(peek: Callable[[], Any], draws: Iterable[Callable[[], object]]) -> bool:
    """Whether ``peek`` tells each draw from the one before, on an interpreter whose objects stand still in memory."""
    if sys.implementation.name != "cpython":
        return False
    seen = peek()
    if seen != peek():
        return False
    for draw in draws:
        draw()
        before, seen = seen, peek()
        if before == seen:
            return False
    return True
