"""Two ways to search for the largest size that fits: doubling, and doubling followed by bisection."""

from __future__ import annotations

from collections.abc import Callable


def largest_by_doubling(
    fits: Callable[[int], bool], start: int, trials: int, limit: int, enough: int | None
) -> int | None:
    """Double a size as long as it fits; if not even the first one does, halve it until one does.

    Args:
        fits: tries a size.
        start: the first size to try.
        trials: how many sizes to try at most.
        limit: no greater size is tried.
        enough: no size greater than one of at least this is tried; None for no such size.

    Returns:
        The largest size that was tried and fitted; None if none did.

    Example:
        >>> largest_by_doubling(lambda size: size <= 100, start=2, trials=25, limit=8192, enough=None)
        64
    """
    found, _ = _double(fits, start, trials, limit, enough)
    return found


def largest_by_bisection(
    fits: Callable[[int], bool], start: int, trials: int, limit: int, enough: int | None
) -> int | None:
    """Double a size until it does not fit, then bisect; arguments and result as of :func:`largest_by_doubling`.

    Trials count as in Lightning: those that fitted.

    Example:
        >>> largest_by_bisection(lambda size: size <= 100, start=2, trials=25, limit=8192, enough=None)
        100
    """
    counted = 0

    def count(size: int) -> bool:
        nonlocal counted
        fitted = fits(size)
        counted += fitted
        return fitted

    found, failed = _double(count, start, trials, limit, enough)
    while found is not None and failed is not None and failed - found > 1 and counted < trials:
        size = (found + failed) // 2
        if count(size):
            found = size
        else:
            failed = size
    return found


def _double(
    fits: Callable[[int], bool], start: int, trials: int, limit: int, enough: int | None
) -> tuple[int | None, int | None]:
    """The largest size that fitted, and the least one that did not."""
    found = failed = None
    size = min(start, limit)
    for _ in range(trials):
        if fits(size):
            found = size
            if failed is not None or size >= limit or (enough is not None and size >= enough):
                break
            size = min(2 * size, limit)
        else:
            failed = size
            if found is not None or size == 1:
                break
            size //= 2
    return found, failed
