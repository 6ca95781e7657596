"""Several loaders as one: shapes, lengths and modes."""

from __future__ import annotations

import copy
from collections import namedtuple

import pytest

from hookbus.trainer.combined import CombinedLoader, leaves


class _Loader:
    """A loader that is no list."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class _Stream(_Loader):
    def __len__(self):
        raise TypeError("unknown")


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("min_size", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ("max_size_cycle", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "x"}]),
        ("max_size", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": None}]),
        ("sequential", [1, 2, 3, "x", "y"]),
    ],
)
def test_each_mode_gives_its_batches_and_knows_their_number(mode, wanted):
    loader = CombinedLoader({"a": _Loader([1, 2, 3]), "b": _Loader(["x", "y"])}, mode)
    assert list(loader.batches()) == wanted
    assert len(loader) == len(wanted)
    assert list(loader.batches()) == wanted  # and again, from the start


def test_batches_have_the_shape_of_the_collection():
    Pair = namedtuple("Pair", "left right")
    one, two = _Loader([1, 2]), _Loader([3, 4])
    assert list(CombinedLoader([one, two]).batches()) == [[1, 3], [2, 4]]
    assert list(CombinedLoader((one, two)).batches()) == [(1, 3), (2, 4)]
    assert list(CombinedLoader(Pair(one, two)).batches()) == [Pair(1, 3), Pair(2, 4)]
    assert list(CombinedLoader({"a": one, "b": [two, (one,)]}).batches()) == [
        {"a": 1, "b": [3, (1,)]},
        {"a": 2, "b": [4, (2,)]},
    ]
    assert list(CombinedLoader(one).batches()) == [1, 2]


def test_a_cycled_loader_starts_over_as_often_as_needed():
    loader = CombinedLoader([_Loader([1]), _Loader([10, 20, 30])], "max_size_cycle")
    assert list(loader.batches()) == [[1, 10], [1, 20], [1, 30]]


def test_an_empty_loader_cannot_be_cycled():
    loader = CombinedLoader([_Loader([1]), _Loader([])], "max_size_cycle")
    with pytest.raises(ValueError, match="loader 1 is empty"):
        list(loader.batches())


def test_the_length_is_unknown_if_that_of_a_loader_is():
    with pytest.raises(TypeError, match="unknown"):
        len(CombinedLoader([_Loader([1]), _Stream([1])]))
    cycled = CombinedLoader([_Loader([1]), _Stream([1, 2])], "max_size_cycle")
    assert list(cycled.batches()) == [[1, 1], [1, 2]]


def test_iterated_over_it_gives_the_indices_of_batch_and_loader_as_well():
    together = CombinedLoader({"a": _Loader([1, 2]), "b": _Loader([3, 4])})
    assert list(together) == [({"a": 1, "b": 3}, 0, 0), ({"a": 2, "b": 4}, 1, 0)]
    assert next(iter(together)) == next(together.__iter__()) == ({"a": 1, "b": 3}, 0, 0)
    one_by_one = CombinedLoader([_Loader([1, 2]), _Loader([3])], "sequential")
    assert list(one_by_one) == [(1, 0, 0), (2, 1, 0), (3, 0, 1)]
    with pytest.raises(TypeError, match=r"iterate over a CombinedLoader with iter\(loader\)"):
        next(CombinedLoader([_Loader([1])]))


def test_a_copy_made_on_the_way_begins_anew():
    loader = CombinedLoader([_Loader([1, 2])])
    next(iter(loader))
    assert list(copy.deepcopy(loader)) == [([1], 0, 0), ([2], 1, 0)]
    assert next(loader) == ([2], 1, 0)


@pytest.mark.parametrize(("limits", "wanted"), [(None, [1, 2, 3, 4, 5]), (1, [1, 4]), ([2, 0], [1, 2])])
def test_limits_of_loaders_one_after_the_other(limits, wanted):
    loader = CombinedLoader([_Loader([1, 2, 3]), _Loader([4, 5])], "sequential")
    loader.limits = limits
    assert list(loader.batches()) == wanted
    assert len(loader) == len(wanted)


def test_the_loaders_can_be_exchanged():
    loader = CombinedLoader({"a": _Loader([1]), "b": [_Loader([2])]})
    loader.flattened = [_Loader([10 * batch for batch in part.batches]) for part in loader.flattened]
    assert list(loader.batches()) == [{"a": 10, "b": [20]}]
    with pytest.raises(ValueError, match="as many loaders as there are, 2, got 1"):
        loader.flattened = [_Loader([1])]


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match="mode must be one of min_size, max_size_cycle, max_size, sequential, got 'all'"
    ):
        CombinedLoader([], "all")


def test_leaves_come_in_order():
    assert list(leaves({"a": 1, "b": [2, (3, {"c": 4})]})) == [1, 2, 3, 4]
    assert list(leaves(5)) == [5]
