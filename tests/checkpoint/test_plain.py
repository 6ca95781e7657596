"""Plain data: what a checkpoint may hold, and whether two of them are the same."""

from __future__ import annotations

import argparse
import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from hookbus.checkpoint.plain import alike, unfit, versions
from hookbus.checkpoint.reading import content_of


class Own:
    pass


class Word(str, enum.Enum):
    A = "a"


FIT = [
    *(None, True, 3, 2.5, 1j, "text", b"bytes", bytearray(b"more"), 2**100),
    *([1, (2, {3})], {"a": {1: "b"}}, OrderedDict(a=1), Counter("aab")),
    *(torch.ones(2), torch.nn.Parameter(torch.ones(1)), torch.Size([2]), torch.float16, torch.device("cpu")),
    *(numpy.float64(1.5), numpy.ones(3), Path("a") / "b", datetime.timedelta(1), datetime.datetime(2020, 1, 2)),
    argparse.Namespace(a=1),
]


@pytest.mark.parametrize("value", FIT, ids=lambda value: type(value).__name__)
def test_what_is_fit_can_be_read_back(value: Any, tmp_path: Path) -> None:
    assert list(unfit(value)) == []
    torch.save({"value": value}, tmp_path / "x.ckpt")
    found = content_of(tmp_path / "x.ckpt")["value"]
    assert type(found) is type(value)
    assert alike(found, value) or repr(found) == repr(value)


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ({"a": [1, Own()]}, "['a'][1]", Own),
        ({"window": deque([1])}, "['window']", deque),
        (defaultdict(list), "", defaultdict),
        ((1, Word.A), "[1]", Word),
        ({Word.A: 1}, " (the key <Word.A: 'a'>)", Word),
        (frozenset([1]), "", frozenset),
    ],
)
def test_what_is_unfit_is_found(value: Any, place: str, kind: type) -> None:
    assert list(unfit(value)) == [(place, kind)]


def test_what_the_user_allows_is_fit() -> None:
    with torch.serialization.safe_globals([Own]):
        assert list(unfit([Own()])) == []


def test_a_value_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert list(unfit(value)) == []


def test_alike() -> None:
    weight = torch.ones(3)
    a = {"w": weight, "l": [1, 2.5, float("nan")], "n": None}
    assert alike(a, {"w": weight.detach(), "l": [1, 2.5, float("nan")], "n": None})
    assert alike(a, {"w": weight.clone(), "l": [1, 2.5, float("nan")], "n": None})
    assert not alike(a, {**a, "w": weight + 1})
    assert not alike(a, {**a, "w": weight.double()})
    assert not alike(a, {**a, "l": [1, 2.5]})
    assert not alike(a, {**a, "n": 0})
    assert not alike([1], (1,))
    assert not alike([1], [True])
    assert not alike(Own(), Own())


def test_versions_tell_of_writes_into_tensors() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    checkpoint = {"w": weight.detach(), "l": [torch.ones(1)]}
    before = versions(checkpoint)
    with torch.no_grad():
        weight.add_(1)
    assert versions(checkpoint) != before
