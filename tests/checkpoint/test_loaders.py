"""The generators of loaders are found wherever they stand, and can be set again."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from hookbus.checkpoint.loaders import leaves_of, set_streams, streams
from hookbus.trainer.combined import CombinedLoader


def drawing() -> tuple[Any, torch.Generator]:
    """A combined loader, and the generator that a dataset within a subset within it holds."""
    data = TensorDataset(torch.arange(6))
    generator = data.generator = torch.Generator().manual_seed(1)  # type: ignore[attr-defined]
    sampler = RandomSampler(range(4), generator=torch.Generator().manual_seed(2))
    loaders = {"a": DataLoader(Subset(data, range(4)), sampler=sampler), "b": [DataLoader(data)]}
    return CombinedLoader(loaders, "max_size_cycle"), generator


def test_the_loaders_of_a_collection() -> None:
    combined, _ = drawing()
    assert leaves_of(combined) == [combined.iterables["a"], combined.iterables["b"][0]]
    assert leaves_of(combined.iterables["a"]) == [combined.iterables["a"]]


def test_generators_go_back_to_where_they_were() -> None:
    combined, generator = drawing()
    state = streams(combined)
    assert set(state) >= {"0/dataset.dataset.generator", "0/sampler.generator", "1/dataset.generator"}
    drawn, order = torch.rand(3, generator=generator), list(combined.iterables["a"].sampler)
    set_streams(combined, {**state, "gone": torch.zeros(1)})
    assert torch.equal(torch.rand(3, generator=generator), drawn)
    assert list(combined.iterables["a"].sampler) == order
