"""Where a run stands in its training data, and how an iteration is taken up there.

An iteration over a loader is determined by the random streams at the moment it began. A cursor notes them, and counts.
To go on, it begins the iteration again with the same streams and drops what was seen:

==================================  ==========================================================================
the loader                          what was seen
==================================  ==========================================================================
has ``state_dict`` of its own       is left to the loader (torchdata's StatefulDataLoader)
DataLoader over indexed data        is skipped: indices are drawn, nothing is loaded
list or tuple                       is skipped
IterableDataset with a state        is left to the dataset, if no workers hold copies of it
other iterables                     is loaded again and dropped, or the run refuses to go on
CombinedLoader                      each of its loaders by itself
==================================  ==========================================================================

Building an iterator draws from the random streams (a DataLoader draws a seed for its workers, shuffling another). A
resumed run must not draw those twice, so all of this happens with the streams set aside.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset

from hookbus.checkpoint import rng
from hookbus.checkpoint.loaders import (
    inner_loaders,
    is_loader,
    is_stateful,
    is_warm,
    sampler_of,
    set_streams,
    streams,
    streams_of_then,
)
from hookbus.engine.nested import map_leaves
from hookbus.errors import MisconfigurationException

#: What is done with batches that were seen already: skipped without loading where that is possible; loaded again in
#: every case; or, where they would have to be loaded again, the run refuses.
Policy = Literal["skip", "replay", "refuse"]
POLICIES: Final = ("skip", "replay", "refuse")


class Cursor:
    """The place in one iteration over a loader.

    Args:
        loader: any iterable of batches.
        ahead: whether the caller reads one batch ahead of the one that he works on.
        alone: whether the first batch is fetched as soon as the iteration has begun.
    """

    def __init__(self, loader: Any, *, ahead: bool = False, alone: bool = True) -> None:
        self._loader = loader
        self._alone = alone
        self._ahead = ahead
        self._leaves = [Cursor(leaf, alone=False) for leaf in inner_loaders(loader)]
        self._start: dict[str, Any] | None = None
        self._position = 0
        self._before: dict[str, Any] | None = None

    def begin(self) -> Iterator[Any]:
        """Iterate from the beginning."""
        self._start = self._beginning()
        self._position = 0
        return self._counted(_batches(_with_leaves(self._loader, [leaf.begin for leaf in self._leaves])))

    def resume(self, state: dict[str, Any], policy: Policy = "skip") -> Iterator[Any]:
        """Iterate from where :meth:`state_dict` was taken. The random streams are left as they are.

        Args:
            state: the place.
            policy: what to do with batches that were seen already.

        Raises:
            MisconfigurationException: ``policy`` forbids what is needed.
        """
        self._start, self._position = state.get("start"), state["position"]
        if state["kind"] not in (self.kind, "unknown"):
            warnings.warn(
                f"the checkpoint was saved inside an epoch over {_WORDS[state['kind']]}, and the training data now is "
                f"{_WORDS[self.kind]} ({type(self._loader).__name__}): {self._position} batches are left out, maybe others "
                "than those that were seen",
                stacklevel=2,
            )
            state = {"kind": "unknown", "position": self._position}
        return self._counted(self._opened(state, policy), state.get("ahead"), state.get("ahead_streams", {}))

    @property
    def kind(self) -> str:
        """How an iteration over this loader is taken up: a key of ``_WORDS``."""
        return _kind(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that the caller works on, as plain data."""
        return _plain(self._state() if self._before is None else self._before)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _beginning(self) -> dict[str, Any] | None:
        """What determines the iteration that is about to begin; the random streams as they are, for most are never saved."""
        if self.kind not in ("indexed", "replayed"):
            return None
        sampler, now = sampler_of(self._loader), rng.capture(cuda=False, plain=False)
        own = sampler.state_dict() if is_stateful(sampler) else None
        start = {"rng": now, "streams": streams(self._loader), "sampler": own}
        if is_warm(self._loader):
            start["first"] = now
        return start

    def _state(self) -> dict[str, Any]:
        kind = self.kind
        state: dict[str, Any] = {"kind": kind, "position": self._position, "start": self._start}
        if kind == "stateful":
            with rng.isolated():  # torchdata makes an iterator to ask it
                state["loader"] = self._loader.state_dict()
        elif kind == "stateful dataset":
            state["dataset"] = self._loader.dataset.state_dict()
        elif kind == "combined":
            state["leaves"] = [leaf._state() if leaf._position else None for leaf in self._leaves]
        return state

    def _counted(
        self, iterator: Iterator[Any], ahead: dict[str, Any] | None = None, own: dict[str, Any] | None = None
    ) -> Iterator[Any]:
        """Count what ``iterator`` gives.

        Args:
            iterator: of batches.
            ahead: the random streams with which the first batch was fetched, if that was before the run came to it.
            own: those of the loader's own.
        """
        start = self._start
        if start is not None and "first" not in start and not getattr(self._loader, "num_workers", 0):
            # Building the iterator drew a seed; other loaders may have drawn since; now samplers and datasets begin.
            start["first"] = _after_beginning(self._loader, start["rng"] if self._alone else None)
        if not self._ahead:
            for batch in iterator:
                self._position += 1
                yield batch
            return
        nothing = object()
        while True:
            # The batch that is fetched now is the one after that which the caller works on: a checkpoint that is saved
            # before he comes to it must fetch it again, with the same draws.
            state = self._state()
            if not getattr(self._loader, "num_workers", 0):
                state["ahead"] = rng.capture(cuda=False, plain=False) if ahead is None else ahead
                state["ahead_streams"] = streams(self._loader) if ahead is None else own
            with streams_of_then(self._loader, ahead, own or {}):
                batch = next(iterator, nothing)
            ahead = None
            if self._position:
                self._before = state
            if batch is nothing:
                return
            self._position += 1
            yield batch

    def _opened(self, state: dict[str, Any], policy: Policy) -> Iterator[Any]:
        """An iterator that stands behind the batches that were seen."""
        position, kind, loader = state["position"], self.kind, self._loader
        if kind == "combined":
            states = state.get("leaves") or [{"kind": "unknown", "position": position}] * len(self._leaves)
            openers = [_resumed(leaf, one, policy) for leaf, one in zip(self._leaves, states, strict=True)]
            return _batches(_with_leaves(loader, openers))
        if kind == "sequence":
            return itertools.islice(iter(loader), position, None)
        start, now = state.get("start") or {}, streams(loader)
        iterator: Iterator[Any]
        with rng.isolated(start.get("rng")):
            if kind == "stateful" and "loader" in state:
                loader.load_state_dict(state["loader"])
                iterator = iter(loader)
            elif kind == "stateful dataset" and "dataset" in state:
                loader.dataset.load_state_dict(state["dataset"])
                iterator = iter(loader)
            else:
                iterator = self._drawn_again(start, position, policy)
        set_streams(loader, now)
        return iterator

    def _drawn_again(self, start: dict[str, Any], position: int, policy: Policy) -> Iterator[Any]:
        """The iterator that began with ``start``, behind its first batches."""
        loader = self._loader
        set_streams(loader, start.get("streams", {}))
        if start.get("sampler") is not None:
            sampler_of(loader).load_state_dict(start["sampler"])
        if getattr(loader, "_iterator", None) is not None:
            loader._iterator = None  # persistent workers of an earlier fit hold samplers and streams of then
        if self.kind == "indexed" and policy != "replay":
            return _skipping(loader, position, start.get("first"))
        return self._replayed(position, policy, start.get("first"))

    def _replayed(self, position: int, policy: Policy, first: dict[str, Any] | None) -> Iterator[Any]:
        loader = self._loader
        if policy == "refuse":
            raise MisconfigurationException(
                f"resume_data='refuse': the checkpoint was saved after {position} batches of an epoch, and the training data "
                f"({_WORDS['replayed']}, {type(loader).__name__}) can get there only by loading them again; use 'replay', "
                "give the data a state_dict, or resume from the end of an epoch"
            )
        if self.kind != "indexed":
            warnings.warn(
                f"the training data ({type(loader).__name__}) has no state and no index: the {position} batches of this "
                "epoch that were seen already are loaded again and dropped (resume_data='refuse' refuses instead)",
                stacklevel=2,
            )
        iterator: Iterator[Any] = iter(loader)
        if first is not None and not getattr(loader, "num_workers", 0):
            rng.restore(first)
        for _ in range(position):
            next(iterator, None)
        return iterator


_WORDS: Final = {
    "combined": "several loaders",
    "stateful": "a loader with a state of its own",
    "stateful dataset": "a dataset with a state of its own",
    "indexed": "indexed data",
    "sequence": "a sequence of batches",
    "replayed": "an iterable without state",
}


def _kind(loader: Any) -> str:
    if inner_loaders(loader):
        return "combined"
    if is_stateful(loader):
        return "stateful"
    if isinstance(loader, DataLoader):
        if not isinstance(loader.dataset, IterableDataset):
            return "indexed"
        return "stateful dataset" if is_stateful(loader.dataset) and loader.num_workers == 0 else "replayed"
    return "sequence" if isinstance(loader, Sequence) else "replayed"


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A place with its random streams as plain data; the states of loaders, datasets and samplers are their own affair."""
    plain = dict(state)
    if plain.get("start") is not None:
        plain["start"] = {
            key: rng.as_plain(value) if key in ("rng", "first") else value for key, value in plain["start"].items()
        }
    if "ahead" in plain:
        plain["ahead"] = rng.as_plain(plain["ahead"])
    if "leaves" in plain:
        plain["leaves"] = [leaf and _plain(leaf) for leaf in plain["leaves"]]
    return plain


# -- collections of loaders ----------------------------------------------------------------------------------------------


def _batches(loader: Any) -> Iterator[Any]:
    """The batches of any loader; a CombinedLoader itself gives their indices as well."""
    combined = inner_loaders(loader) and callable(getattr(loader, "batches", None))
    iterator: Iterator[Any] = loader.batches() if combined else iter(loader)
    return iterator


def _with_leaves(loader: Any, openers: list[Callable[[], Iterator[Any]]]) -> Any:
    """A CombinedLoader like ``loader`` whose loaders are iterated over by ``openers``; other loaders as they are."""
    if not openers:
        return loader
    leaves = iter([_Leaf(opener) for opener in openers])
    return type(loader)(map_leaves(loader.iterables, lambda _: next(leaves), is_loader), loader.mode)


class _Leaf:
    """Stands for one loader in a CombinedLoader."""

    def __init__(self, opener: Callable[[], Iterator[Any]]) -> None:
        self._opener = opener

    def __iter__(self) -> Iterator[Any]:
        return self._opener()


def _resumed(leaf: Cursor, state: dict[str, Any] | None, policy: Policy) -> Callable[[], Iterator[Any]]:
    """Takes up an iteration the first time, and begins anew each further time: a short loader is cycled."""
    pending = [state] if state is not None else []

    def opener() -> Iterator[Any]:
        return leaf.resume(pending.pop(), policy) if pending else leaf.begin()

    return opener


# -- torch's DataLoader --------------------------------------------------------------------------------------------------


def _after_beginning(loader: Any, before: dict[str, Any] | None) -> dict[str, Any]:
    """The random streams, as they are, when an iteration over ``loader`` has just begun.

    torch's own classes have drawn from torch's stream alone; taking down NumPy's takes ten times as long.

    Args:
        loader: any.
        before: the streams just before that; None if something else may have drawn since.
    """
    if before is not None and type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset):
        indices = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        if type(indices).__module__ == "torch.utils.data.sampler":
            return {**before, "torch": torch.get_rng_state()}
    return rng.capture(cuda=False, plain=False)


def _skipping(loader: Any, count: int, first: dict[str, Any] | None) -> Iterator[Any]:
    """An iterator over a DataLoader of indexed data that does not load its first ``count`` batches.

    Args:
        loader: the DataLoader.
        count: how many.
        first: the random streams when its sampler was first asked; None if they are those after the loader's own draw.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    original = loader.__dict__[name]
    # Through the dictionary: the class forbids to set it, as workers may have been started with another one. Here none
    # have, and persistent ones go on with an object that skips once and then is like the original.
    skipping = loader.__dict__[name] = _SkipOnce(original, count, first)
    try:
        iterator: Iterator[Any] = iter(loader)
    finally:
        loader.__dict__[name] = original
    skipping.skip()
    return iterator


class _SkipOnce:
    """A sampler without the first elements of its next iteration.

    They are drawn when the first one is asked for, or by :meth:`skip`: the loader draws a seed of its own before that.
    """

    def __init__(self, sampler: Any, count: int, first: dict[str, Any] | None) -> None:
        self._sampler = sampler
        self._count = count
        self._first = first
        self._skipped = False
        self._iterator: Iterator[Any] = iter(())

    def skip(self) -> None:
        """Draw the elements that are to be left out, if they have not been, and one more, with which samplers begin."""
        if self._skipped:
            return
        self._skipped = True
        if self._first is not None:
            rng.restore(self._first)
        for _ in range(self._count):
            next(self._iterator, None)
        if self._count == 0:
            self._iterator = itertools.chain(list(itertools.islice(self._iterator, 1)), self._iterator)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._sampler)
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        self.skip()
        yield from self._iterator

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)
