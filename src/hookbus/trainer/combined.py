"""Several loaders walked over as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MODES = ("min_size", "max_size_cycle", "max_size", "sequential")


class CombinedLoader:
    """A collection of loaders whose batches come together, in the collection's own shape.

    Args:
        iterables: a list, tuple or dictionary of loaders, or one loader.
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

    @property
    def _leaves(self) -> list[Any]:
        if isinstance(self.iterables, dict):
            return list(self.iterables.values())
        return list(self.iterables) if isinstance(self.iterables, (list, tuple)) else [self.iterables]

    def _like(self, values: list[Any]) -> Any:
        """``values`` in the shape of the collection."""
        if isinstance(self.iterables, dict):
            return dict(zip(self.iterables, values, strict=True))
        if isinstance(self.iterables, (list, tuple)):
            return type(self.iterables)(values)
        return values[0]

    def __len__(self) -> int:
        """The number of batches.

        Raises:
            TypeError: if a loader on which it depends has no length.
        """
        lengths = [len(leaf) for leaf in self._leaves]
        if self.mode == "sequential":
            return sum(lengths)
        return min(lengths) if self.mode == "min_size" else max(lengths, default=0)

    def __iter__(self) -> Iterator[Any]:
        if self.mode == "sequential":
            for leaf in self._leaves:
                yield from leaf
            return
        leaves = self._leaves
        iterators = [iter(leaf) for leaf in leaves]
        ended = [False] * len(leaves)
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
                iterators[i] = iter(leaves[i])
                try:
                    values.append(next(iterators[i]))
                except StopIteration:
                    raise ValueError(
                        f"loader {i} is empty, so it cannot be cycled to the length of the others"
                    ) from None
            yield self._like(values)
