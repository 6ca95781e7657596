"""Several loaders walked over as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookbus.engine.nested import map_leaves

_MODES = ("min_size", "max_size_cycle", "max_size", "sequential")


class CombinedLoader:
    """A collection of loaders whose batches come together, in the collection's own shape.

    Args:
        iterables: lists, tuples and dictionaries of loaders, nested at will, or one loader.
        mode: ``min_size`` ends with the shortest; ``max_size_cycle`` with the longest, the others starting over;
            ``max_size`` with the longest, None standing for those that have ended; ``sequential`` takes one loader after
            the other, and gives single batches.

    Raises:
        ValueError: for another mode.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
        self.iterables = iterables
        self.mode = mode

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: if a loader on which it depends has no length.
        """
        lengths = [len(leaf) for leaf in leaves(self.iterables)]
        if self.mode == "sequential":
            return sum(lengths)
        return min(lengths) if self.mode == "min_size" else max(lengths, default=0)

    def __iter__(self) -> Iterator[Any]:
        if self.mode == "sequential":
            for leaf in leaves(self.iterables):
                yield from leaf
            return
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
