"""Sample indices travel with the batches, whatever the loader, and the loader is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from hookbus.trainer.samples import SampleIndices, with_last_batch


class Numbers(Dataset[int]):
    """Each sample is its index."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: Any) -> Any:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def walk(loader: Any) -> list[tuple[Any, list[Any]]]:
    samples = SampleIndices(loader)
    return [
        (batch.tolist() if isinstance(batch, torch.Tensor) else batch, samples.of_next_batch())
        for batch in samples.loader
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": 2, "shuffle": True},
        {"batch_sampler": BatchSampler(RandomSampler(range(7), replacement=True), 2, drop_last=False)},
        {"batch_sampler": [[6, 0], [1, 1, 1]]},
        {"batch_size": 2, "shuffle": True, "num_workers": 2, "prefetch_factor": 3},
        {"batch_size": 2, "num_workers": 1, "persistent_workers": True},
    ],
)
def test_indices_belong_to_their_batch(options: dict[str, Any]) -> None:
    found = walk(DataLoader(Numbers(), **options))
    assert found
    assert all(batch == indices for batch, indices in found)


def test_without_batches_each_sample_has_its_index() -> None:
    assert walk(DataLoader(Numbers(), batch_size=None)) == [(i, [i]) for i in range(7)]


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=2), [[1, 2], [3]]])
def test_unknown_indices_are_an_empty_list(loader: Any) -> None:
    assert [indices for _, indices in walk(loader)] == [[], []]


def test_batches_that_come_out_of_order_have_none() -> None:
    try:
        loader = DataLoader(Numbers(), batch_size=2, num_workers=1, in_order=False)
    except TypeError:
        pytest.skip("this torch delivers in order always")
    assert [indices for _, indices in walk(loader)] == [[]] * 4


def test_the_loader_is_left_as_it_was() -> None:
    loader = DataLoader(Numbers(), batch_size=2)
    sampler = loader.batch_sampler
    walk(loader)
    walk(loader)
    assert loader.batch_sampler is sampler


def test_a_subclass_stays_one() -> None:
    class Named(DataLoader[int]):
        name = "mine"

    samples = SampleIndices(Named(Numbers(), batch_size=2))
    assert isinstance(samples.loader, Named)
    assert samples.loader.batch_sampler.batch_size == 2
    assert len(samples.loader) == 4


def test_the_last_batch_is_not_dropped() -> None:
    loader = DataLoader(Numbers(), batch_size=3, drop_last=True)
    whole = with_last_batch(loader)
    assert [batch for batch, _ in walk(whole)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(loader) == 2


@pytest.mark.parametrize(
    "loader",
    [DataLoader(Numbers(), batch_size=3), DataLoader(Numbers(), sampler=SequentialSampler(range(7))), [[1]]],
)
def test_other_loaders_are_taken_as_they_are(loader: Any) -> None:
    assert with_last_batch(loader) is loader
