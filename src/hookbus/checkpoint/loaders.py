"""What is known of any loader: the loaders in it, its sampler, and the random generators that it and its parts hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from hookbus.checkpoint import rng
from hookbus.engine.nested import map_leaves


def is_stateful(value: Any) -> bool:
    """Whether something tells its state and takes it back."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def leaves_of(loader: Any) -> list[Any]:
    """The loaders in a CombinedLoader; in any other the loader itself."""
    return inner_loaders(loader) or [loader]


def inner_loaders(loader: Any) -> list[Any]:
    """The loaders in a CombinedLoader; none in any other."""
    if not hasattr(loader, "iterables") or not hasattr(loader, "mode"):
        return []
    found: list[Any] = []
    map_leaves(loader.iterables, found.append, is_loader)
    return found


def is_loader(part: Any) -> bool:
    """Whether a part of a CombinedLoader's collection is a loader, and no collection itself."""
    return not isinstance(part, (dict, list, tuple))


def sampler_of(loader: Any) -> Any:
    """What gives the indices of single samples; None if there is nothing of the kind."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", None)
    return getattr(loader, "sampler", None) if sampler is None else sampler


def is_warm(loader: Any) -> bool:
    """Whether persistent workers are waiting, so that beginning an iteration draws no seed for them."""
    return (
        isinstance(loader, DataLoader) and loader.persistent_workers and getattr(loader, "_iterator", None) is not None
    )


def warm_up(loader: Any) -> None:
    """Start persistent workers, drawing nothing."""
    if isinstance(loader, DataLoader) and loader.persistent_workers and not is_warm(loader) and not is_stateful(loader):
        now = streams(loader)
        with rng.isolated():
            iter(loader)
        set_streams(loader, now)


def streams(loader: Any) -> dict[str, Any]:
    """The states of the generators that a loader, its samplers and its dataset hold, by where they are."""
    return {name: rng.stream_state(stream) for name, stream in _streams(loader).items()}


@contextlib.contextmanager
def streams_of_then(loader: Any, ahead: dict[str, Any] | None, own: dict[str, Any]) -> Iterator[None]:
    """Within the block all random streams, and those of the loader's own, stand as they did; None: as they do."""
    if ahead is None:
        yield
        return
    now = streams(loader)
    try:
        with rng.isolated(ahead):
            set_streams(loader, own)
            yield
    finally:
        set_streams(loader, now)


def set_streams(loader: Any, state: dict[str, Any]) -> None:
    """Set the generators of a loader to a state of :func:`streams`; those that are gone do not matter."""
    found = _streams(loader)
    for name, one in state.items():
        if name in found:
            rng.set_stream_state(found[name], one)


def _streams(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, leaf in enumerate(inner_loaders(loader)):
        found |= {f"{number}/{name}": stream for name, stream in _streams(leaf).items()}
    owners = {
        "loader": loader,
        "dataset": getattr(loader, "dataset", None),
        "batch_sampler": getattr(loader, "batch_sampler", None),
        "sampler": sampler_of(loader),
        "collate_fn": getattr(loader, "collate_fn", None),
    }
    for place, owner in owners.items():
        held = rng.streams_in(owner, deep=place != "loader")
        found |= {f"{place}.{name}": stream for name, stream in held.items()}
    return found
