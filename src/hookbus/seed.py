"""Seeding all random streams of a process, and keeping them apart from what must not disturb them."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Generator
from typing import Final

import torch

#: Lightning's environment variables: the seed, and whether data workers are seeded.
SEED_VARIABLE: Final = "PL_GLOBAL_SEED"
WORKERS_VARIABLE: Final = "PL_SEED_WORKERS"


def seed_everything(seed: int | None = None, workers: bool = False, verbose: bool = True) -> int:
    """Seed Python's, NumPy's (if installed) and torch's random streams.

    Args:
        seed: from 0 to 2**32 - 1; None takes that of the environment variable ``PL_GLOBAL_SEED``, else 0.
        workers: also note that data workers are to be seeded (``PL_SEED_WORKERS``).
        verbose: print the seed.

    Returns:
        The seed that was set.

    Raises:
        ValueError: the seed is out of range or not a number.
    """
    if seed is None:
        text = os.environ.get(SEED_VARIABLE, "0")
        try:
            seed = int(text)
        except ValueError:
            raise ValueError(f"{SEED_VARIABLE} must be an integer, got {text!r}") from None
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= 2**32 - 1:
        raise ValueError(f"seed must be an int from 0 to {2**32 - 1}, got {seed!r}")
    if verbose:
        print(f"seed set to {seed}", file=sys.stderr)
    os.environ[SEED_VARIABLE] = str(seed)
    os.environ[WORKERS_VARIABLE] = str(int(workers))
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    return seed


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
