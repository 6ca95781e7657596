"""Where batches come from: asking for the dataloaders, counting and limiting their batches, walking over them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from hookbus.dialects import Implementation
from hookbus.engine.nested import map_leaves
from hookbus.errors import MisconfigurationException, PossibleUserWarning
from hookbus.trainer.combined import CombinedLoader, is_loader, leaves
from hookbus.trainer.samples import twin

#: The words of Lightning's arguments and hooks for each loop.
PREFIXES = ("train", "val", "test", "predict")


@dataclass(eq=False)  # a plugin: itself and no other, and hashable
class PassedLoaders:
    """Loaders that were passed to an entry point; they take the place of the data module's.

    Attributes:
        loaders: what was passed, by the prefix of its hook (``train``, ``val``, ``test``, ``predict``).
    """

    loaders: dict[str, Any] = field(default_factory=dict)

    def implementations(self) -> list[Implementation]:
        """One record for each ``{prefix}_dataloader`` hook that is answered."""
        return [
            Implementation(f"{prefix}_dataloader", partial(_same, loader), ())
            for prefix, loader in self.loaders.items()
            if loader is not None
        ]


def _same(loader: Any) -> Any:
    return loader


@dataclass
class Loaders:
    """The loaders of one loop and how many batches of each are used.

    Attributes:
        loaders: one for training, any number for evaluation and prediction.
        num_batches: batches to use of each; ``inf`` where the length is unknown.
        given: what the hook returned, as Lightning's ``trainer.train_dataloader`` shows it.
    """

    loaders: list[Any]
    num_batches: list[int | float]
    given: Any


def training_loader(answer: Any, limit: int | float, *, overfit: bool) -> Loaders:
    """The loader of the training loop; a collection of loaders is combined, the longest one giving the length.

    Args:
        answer: what ``train_dataloader`` returned.
        limit: number (int) or share (float) of batches.
        overfit: take the same batches in every epoch, in order.
    """
    given = answer = _in_order(answer, "train_dataloader") if overfit else answer
    if isinstance(answer, (list, tuple, dict)) and not isinstance(answer, str):
        answer = CombinedLoader(answer, "max_size_cycle")
    _check_iterable("train_dataloader", answer)
    return Loaders([answer], [_count("train_dataloader", answer, limit)], given)


def evaluation_loaders(prefix: str, answer: Any, limit: int | float, *, overfit: bool = False) -> Loaders:
    """The loaders of an evaluation or prediction loop, to be walked over one after the other.

    Args:
        prefix: ``val``, ``test`` or ``predict``.
        answer: what the hook returned: one loader, or nested lists, tuples or dictionaries of loaders.
        limit: number (int) or share (float) of batches of each.
        overfit: take the same batches each time, in order.
    """
    if overfit:
        answer = _in_order(answer, f"{prefix}_dataloader")
    if isinstance(answer, CombinedLoader) and answer.mode != "sequential":
        flat: list[Any] = [answer]
    else:
        flat = list(leaves(answer.iterables if isinstance(answer, CombinedLoader) else answer))
    for loader in flat:
        _check_iterable(f"{prefix}_dataloader", loader)
        _warn_of_shuffling(f"{prefix}_dataloader", loader)
    return Loaders(flat, [_count(f"{prefix}_dataloader", loader, limit) for loader in flat], answer)


def batches(
    loader: Any, num_batches: int | float, *, iterator: Iterator[Any] | None = None, start: int = 0
) -> Iterator[tuple[Any, bool]]:
    """Walk over ``loader``: each batch, and whether it is the last one.

    A loader of unknown length is read one batch ahead, which is the only way to know.

    Args:
        loader: the loader.
        num_batches: how many batches to use of it.
        iterator: gives the batches, if they do not start at the beginning.
        start: how many of them were used already.
    """
    if num_batches <= start:
        return iter(())
    if iterator is None:
        iterator = loader.batches() if isinstance(loader, CombinedLoader) else iter(loader)
    if not math.isinf(num_batches) and length(loader) is not None:
        # As iterators of Python's own, which cost next to nothing per batch.
        rest = int(num_batches) - start
        lasts = chain(repeat(False, rest - 1), (True,))
        return chain(zip(islice(iterator, rest), lasts, strict=False), _missing(loader, num_batches, lasts))
    return _read_ahead(iterator, num_batches, start)


def _missing(loader: Any, promised: int | float, lasts: Iterator[bool]) -> Iterator[tuple[Any, bool]]:
    """Nothing, but for a warning if the loader has ended before ``lasts`` did."""
    missing = sum(1 for _ in lasts)
    if missing:
        warnings.warn(
            f"{type(loader).__name__} promised {promised} batches and ended after {int(promised) - missing}; check its "
            "__len__ (and that nothing inside it raises StopIteration)",
            stacklevel=2,
        )
    yield from ()


def _read_ahead(iterator: Iterator[Any], num_batches: int | float, start: int) -> Iterator[tuple[Any, bool]]:
    """The batches of a loader of unknown length."""
    ahead, count, nothing = next(iterator, _NOTHING), start, _NOTHING
    while ahead is not nothing:
        count += 1
        batch = ahead
        ahead = next(iterator, nothing) if count < num_batches else nothing
        yield batch, ahead is nothing


_NOTHING: Any = object()


def length(loader: Any) -> int | None:
    """The number of batches of ``loader``, None if it does not know."""
    if (
        isinstance(loader, DataLoader)
        and isinstance(loader.dataset, IterableDataset)
        and not isinstance(loader.dataset, Sized)
    ):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the samplers of ``loader`` which epoch begins, so that distributed ones shuffle anew."""
    loaders = leaves(loader.iterables) if isinstance(loader, CombinedLoader) else [loader]
    for leaf in loaders:
        own = getattr(leaf, "sampler", None)
        inner = getattr(getattr(leaf, "batch_sampler", None), "sampler", None)
        for sampler in (own,) if inner is own else (own, inner):
            tell = getattr(sampler, "set_epoch", None)
            if callable(tell):
                tell(epoch)


def begin_in_vain(loader: Any) -> None:
    """Draw what the beginning of one more walk over ``loader`` draws from torch's random stream.

    Lightning begins twice after ``reload_dataloaders_every_n_epochs``; its order of shuffled data follows from that. Loaders
    with workers are left alone, as they would be started for nothing.
    """
    for leaf in leaves(loader.iterables) if isinstance(loader, CombinedLoader) else [loader]:
        if isinstance(leaf, DataLoader) and leaf.num_workers == 0:
            iter(leaf)


def end_workers(loaders: Iterable[Any]) -> None:
    """End the workers of these loaders that are waiting for a next iteration.

    The garbage collector would do so, too, at any time later; and if it finds them in a cycle it waits for seconds, as it
    has closed the queue already over which they are told.
    """
    for loader in loaders:
        for leaf in leaves(loader.iterables) if isinstance(loader, CombinedLoader) else [loader]:
            iterator = getattr(leaf, "_iterator", None) if isinstance(leaf, DataLoader) else None
            if iterator is not None and hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
                leaf._iterator = None


def _count(name: str, loader: Any, limit: int | float) -> int | float:
    """How many batches of ``loader`` to use under ``limit``."""
    total = length(loader)
    if total == 0:
        warnings.warn(
            f"{name} is empty: expected at least one batch, got a {type(loader).__name__} of length 0; nothing will run "
            "on it (is the dataset empty, or smaller than one batch with drop_last=True?)",
            stacklevel=2,
        )
        return 0
    if isinstance(limit, int) or limit == 0.0:
        return min(total, int(limit)) if total is not None else int(limit)
    if limit == 1.0:
        return total if total is not None else math.inf
    if total is None:
        raise MisconfigurationException(
            f"{name}: a limit of {limit} is a share of all batches, but this {type(loader).__name__} does not know its "
            "length; use a number of batches (int)"
        )
    used = int(total * limit)
    if used == 0:
        raise MisconfigurationException(
            f"{name}: {limit} of {total} batch(es) is less than one batch; use at least {1 / total:.3g}, or a number (int)"
        )
    return used


def _check_iterable(name: str, loader: Any) -> None:
    if not isinstance(loader, Iterable):
        raise TypeError(
            f"{name} must give an iterable of batches (such as torch.utils.data.DataLoader), got {type(loader).__name__}: "
            f"{loader!r}"
        )


def _warn_of_shuffling(name: str, loader: Any) -> None:
    for leaf in leaves(loader.iterables) if isinstance(loader, CombinedLoader) else [loader]:
        if isinstance(getattr(leaf, "sampler", None), RandomSampler):
            warnings.warn(
                f"{name} shuffles its samples, from which results follow that differ from run to run; leave shuffling to the "
                "training data",
                PossibleUserWarning,
                stacklevel=2,
            )


def _in_order(loader: Any, name: str) -> Any:
    """``loader`` with its samples in the order of the dataset, for ``overfit_batches``."""
    if isinstance(loader, CombinedLoader):
        return CombinedLoader(_in_order(loader.iterables, name), loader.mode)
    if not is_loader(loader):
        return map_leaves(loader, partial(_in_order, name=name), is_loader)
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    if isinstance(loader.sampler, SequentialSampler):
        return loader
    warnings.warn(
        f"overfit_batches takes the samples of {name} in order, to meet the same batches again; its "
        f"{type(loader.sampler).__name__} is not used",
        stacklevel=2,
    )
    sampler = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
    if loader.batch_sampler is None:
        return twin(loader, sampler=sampler)
    assert loader.batch_size is not None  # with a batch sampler of the user's own, torch makes an ordered sampler
    return twin(loader, sampler=sampler, batch_sampler=BatchSampler(sampler, loader.batch_size, loader.drop_last))
