"""Plain data: what a checkpoint may hold, and whether two of them are the same."""

from __future__ import annotations

import argparse
import datetime
import enum
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import pytest
import torch

from hookbus.checkpoint.plain import alike, unfit, unpicklable, versions
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
        ([numpy.array([None])], "[0]", type(numpy.dtype("O"))),
        ({"table": numpy.zeros(1, [("a", "f4")])}, "['table']", type(numpy.dtype([("a", "f4")]))),
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


@pytest.mark.parametrize(
    ("value", "now", "then"),
    [
        (numpy.float64(1.5), "numpy._core.multiarray", "numpy.core.multiarray"),
        (numpy.ones(3), "numpy._core.multiarray", "numpy.core.multiarray"),
        (PurePosixPath("a/b"), "pathlib", "pathlib._local"),
    ],
    ids=["number", "array", "path"],
)
def test_files_of_other_versions_of_a_library(value: Any, now: str, then: str, tmp_path: Path) -> None:
    """NumPy and Python have moved classes to other modules, and a file holds the name of the module."""
    names = {now, then}
    module = next(name for name in (then, now) if f"c{name}\n".encode() in pickle.dumps(value, protocol=2))
    (other,) = names - {module}
    content = pickle.dumps({"value": value}, protocol=2).replace(f"c{module}\n".encode(), f"c{other}\n".encode())
    with zipfile.ZipFile(tmp_path / "x.ckpt", "w") as archive:
        for name, data in (("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", data)
    assert repr(content_of(tmp_path / "x.ckpt")["value"]) == repr(value)


def test_what_cannot_be_pickled_is_found_where_it_is() -> None:
    loop: list[object] = [torch.ones(2), {"a": 1}]
    loop.append(loop)
    assert unpicklable(loop) is None
    loop.append({"b": (0, lambda: 0)})
    found = unpicklable(loop, "[0]")
    assert found is not None
    assert found[0] == "[0][3]['b'][1]"
