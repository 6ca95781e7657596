"""Several loaders walked over as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from hookbus.engine.nested import map_leaves

_MODES = ("min_size", "max_size_cycle", "max_size", "sequential")


class CombinedLoader:
    """A collection of loaders whose batches come together, in the collection's own shape.

    Iterated over, it gives ``(batch, batch_idx, dataloader_idx)``, as Lightning's does; the index of the loader is 0 but for
    ``sequential``. Steps get the batch alone.

    Args:
        iterables: lists, tuples and dictionaries of loaders, nested at will, or one loader.
        mode: ``min_size`` ends with the shortest; ``max_size_cycle`` with the longest, the others starting over;
            ``max_size`` with the longest, None standing for those that have ended; ``sequential`` takes one loader after
            the other, and gives single batches.

    Attributes:
        limits: the most batches of each loader in ``sequential``, one number for all or a list; None for no limit.

    Raises:
        ValueError: for another mode.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
        self.iterables = iterables
        self.mode = mode
        self.limits: int | float | Sequence[int | float] | None = None
        self._going: Iterator[tuple[Any, int, int]] | None = None

    @property
    def flattened(self) -> list[Any]:
        """The loaders, in order; may be set, to as many others."""
        return list(leaves(self.iterables))

    @flattened.setter
    def flattened(self, loaders: Sequence[Any]) -> None:
        there = len(self.flattened)
        if len(loaders) != there:
            raise ValueError(f"flattened must be set to as many loaders as there are, {there}, got {len(loaders)}")
        self.iterables = _in_shape(self.iterables, list(loaders))

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: if a loader on which it depends has no length.
        """
        lengths = [int(min(len(loader), limit)) for loader, limit in self._limited()]
        if self.mode == "sequential":
            return sum(lengths)
        return min(lengths) if self.mode == "min_size" else max(lengths, default=0)

    def __iter__(self) -> CombinedLoader:
        self._going = self._with_indices()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        if self._going is None:
            raise TypeError("iterate over a CombinedLoader with iter(loader), or in a for loop, before next(loader)")
        return next(self._going)

    def __getstate__(self) -> dict[str, Any]:
        """Copies begin anew."""
        return {**vars(self), "_going": None}

    def batches(self) -> Iterator[Any]:
        """The batches alone, from the start."""
        return (batch for batch, _, _ in self._with_indices())

    def _limited(self) -> Iterator[tuple[Any, int | float]]:
        loaders = self.flattened
        limits = self.limits if isinstance(self.limits, Sequence) else [self.limits] * len(loaders)
        return ((loader, math.inf if limit is None else limit) for loader, limit in zip(loaders, limits, strict=True))

    def _with_indices(self) -> Iterator[tuple[Any, int, int]]:
        if self.mode != "sequential":
            for batch_idx, batch in enumerate(self._together()):
                yield batch, batch_idx, 0
            return
        for dataloader_idx, (loader, limit) in enumerate(self._limited()):
            within = loader if math.isinf(limit) else islice(loader, int(limit))
            for batch_idx, batch in enumerate(within):
                yield batch, batch_idx, dataloader_idx

    def _together(self) -> Iterator[Any]:
        loaders = list(leaves(self.iterables))
        iterators = [iter(loader) for loader in loaders]
        ended = [False] * len(loaders)
        while iterators:
            values: list[Any] = []
            for i, iterator in enumerate(iterators):
                try:
                    values.append(next(iterator))
                    continue
                except StopIteration:
                    ended[i] = True
                if self.mode == "min_size" or all(ended):
                    return
                if self.mode == "max_size":
                    values.append(None)
                    continue
                iterators[i] = iter(loaders[i])
                try:
                    values.append(next(iterators[i]))
                except StopIteration:
                    raise ValueError(
                        f"loader {i} is empty, so it cannot be cycled to the length of the others"
                    ) from None
            yield _in_shape(self.iterables, values)


def leaves(collection: Any) -> Iterator[Any]:
    """The loaders in nested lists, tuples and dictionaries, in order."""
    if is_loader(collection):
        yield collection
        return
    for part in collection.values() if isinstance(collection, dict) else collection:
        yield from leaves(part)


def is_loader(part: Any) -> bool:
    """Whether a part of a collection is a loader, and not a collection itself."""
    return not isinstance(part, (dict, list, tuple))


def _in_shape(collection: Any, values: list[Any]) -> Any:
    """``values`` in the places of the loaders in ``collection``."""
    given = iter(values)
    return map_leaves(collection, lambda _: next(given), is_loader)
