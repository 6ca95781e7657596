"""Seeding all random streams of a process, and keeping them apart from what must not disturb them."""

from __future__ import annotations

import contextlib
import operator
import os
import random
import sys
import warnings
from collections.abc import Generator
from typing import Any, Final

import torch

#: Lightning's environment variables: the seed, and whether data workers are seeded.
SEED_VARIABLE: Final = "PL_GLOBAL_SEED"
WORKERS_VARIABLE: Final = "PL_SEED_WORKERS"
_MAX: Final = 2**32 - 1


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, NumPy's (if installed) and torch's random streams, those of all devices included.

    Processes that this one starts find the seed in the environment variable ``PL_GLOBAL_SEED``.

    Args:
        seed: from 0 to 2**32 - 1; None takes that of ``PL_GLOBAL_SEED``, else 0.
        workers: also note, in ``PL_SEED_WORKERS``, that data workers are to be seeded from it.
        verbose: print the seed, to stderr.

    Returns:
        The seed that was set.

    Raises:
        ValueError: the seed is out of range or not a whole number.
    """
    if seed is None:
        text = os.environ.get(SEED_VARIABLE)
        if text is None:
            warnings.warn(f"no seed was given, nor is {SEED_VARIABLE} set: taking 0", stacklevel=2)
        number = _whole("0" if text is None else text, SEED_VARIABLE)
    else:
        number = _whole(seed, "seed")
    if verbose:
        print(f"seed set to {number}", file=sys.stderr)
    os.environ[SEED_VARIABLE] = str(number)
    os.environ[WORKERS_VARIABLE] = str(int(workers))
    random.seed(number)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(number)
    torch.manual_seed(number)
    return number


def _whole(value: Any, name: str) -> int:
    number = -1
    with contextlib.suppress(TypeError, ValueError):
        number = int(value) if isinstance(value, str) else operator.index(value)
    if isinstance(value, bool) or not 0 <= number <= _MAX:
        raise ValueError(f"{name} must be a whole number from 0 to {_MAX}, got {value!r}")
    return number


@contextlib.contextmanager
def isolate_rng(include_cuda: bool = True) -> Generator[None, None, None]:
    """Put all random streams back afterwards as they were before.

    Args:
        include_cuda: those of CUDA devices too, if CUDA is in use.
    """
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cuda = torch.cuda.get_rng_state_all() if include_cuda and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
