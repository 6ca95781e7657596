from __future__ import annotations

import collections
import dataclasses
from types import MappingProxyType
from typing import Any

import pytest
import torch

from hookbus.engine.nested import map_leaves, tensors_in

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str = "n"


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


CONTAINERS: list[Any] = [
    [torch.ones(2), "a"],
    (torch.ones(2), 1),
    Pair(torch.ones(2), None),
    {"x": torch.ones(2), "n": 3},
    collections.OrderedDict(x=torch.ones(2)),
    collections.UserDict(x=torch.ones(2)),
    MappingProxyType({"x": torch.ones(2)}),
    Sample(torch.ones(2)),
    [{"x": (torch.ones(2), [b"raw"])}],
]


@pytest.mark.parametrize("data", CONTAINERS, ids=lambda data: type(data).__name__)
def test_containers_keep_their_type_and_what_is_no_leaf(data: Any) -> None:
    changed = map_leaves(data, double)
    assert type(changed) is type(data)
    assert [t.tolist() for t in tensors_in(changed)] == [[2.0, 2.0]]
    assert [t.tolist() for t in tensors_in(data)] == [[1.0, 1.0]]  # what was given is not written to


@pytest.mark.parametrize("data", [*CONTAINERS, "text", 3, None, range(2), object()], ids=lambda d: type(d).__name__)
def test_the_same_object_comes_back_where_nothing_changes(data: Any) -> None:
    assert map_leaves(data, lambda tensor: tensor) is data


def test_a_default_factory_survives() -> None:
    data = collections.defaultdict(list, x=torch.ones(1))
    changed = map_leaves(data, double)
    assert changed["new"] == []
    assert changed["x"].item() == 2


def test_only_the_changed_branch_is_rebuilt() -> None:
    untouched = [torch.zeros(1)]
    data = [torch.ones(1), untouched]
    changed = map_leaves(data, lambda t: t + 1 if t.item() else t)
    assert changed[1] is untouched


def test_leaves_may_be_something_else_than_tensors() -> None:
    assert map_leaves([1, (2, "a")], lambda n: n + 1, lambda value: isinstance(value, int)) == [2, (3, "a")]
