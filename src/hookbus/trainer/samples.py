"""Which samples of its dataset each batch of a loader is made of.

The sampler itself is listened to, in the order in which it hands out batches, which is the order in which a
``DataLoader`` delivers them. So the indices are right with workers, too, which read the sampler ahead of the batches.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset


class SampleIndices:
    """Follows one walk over a loader.

    Args:
        loader: any loader; the indices are known for a ``DataLoader`` over a map-style dataset.

    Attributes:
        loader: what to walk over in its place; the loader itself is left as it is.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._heard: _Listener | None = None
        known = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        if known and getattr(loader, "in_order", True):
            batched = loader.batch_sampler is not None
            self._heard = _Listener(loader.batch_sampler if batched else loader.sampler)
            self.loader = twin(loader, **{"batch_sampler" if batched else "sampler": self._heard})

    def of_next_batch(self) -> list[Any]:
        """The indices of the batch that was delivered, to be asked once for each; empty where they are not known."""
        if self._heard is None or not self._heard.given:
            return []
        indices = self._heard.given.popleft()
        return list(indices) if isinstance(indices, (list, tuple)) else [indices]


class _Listener:
    """A sampler or batch sampler that keeps what it has given out."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.given: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.given.clear()
        for item in self._sampler:
            self.given.append(item)
            yield item

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle ask for these
            raise AttributeError(name)
        return getattr(self._sampler, name)


def with_last_batch(loader: Any) -> Any:
    """``loader``, or a twin of it that does not drop the last, smaller batch: every sample is to be predicted."""
    if not isinstance(loader, DataLoader) or type(loader.batch_sampler) is not BatchSampler:
        return loader
    if not loader.batch_sampler.drop_last:
        return loader
    sampler = BatchSampler(loader.batch_sampler.sampler, loader.batch_sampler.batch_size, drop_last=False)
    return twin(loader, batch_sampler=sampler, drop_last=False)


def twin(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """A copy of a loader, of any subclass, with other parts; its workers are its own."""
    twin = copy.copy(loader)
    vars(twin).update(changed, _iterator=None)  # past __setattr__, which forbids changing a loader that is in use
    return twin
