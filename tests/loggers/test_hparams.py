"""``hparams.yaml``: plain values come back as they were, whichever YAML reader is used."""

from __future__ import annotations

import enum
from collections import OrderedDict
from pathlib import Path

import pytest

from hookbus.loggers.hparams import to_yaml


class Colour(enum.Enum):
    RED = "red"


PARAMS = {
    "lr": 1e-05,
    "big": 1e30,
    "steps": 10,
    "flag": True,
    "none": None,
    "text": "yes",
    "number as text": "1.0",
    "tricky": "a: b # c\n\"quoted\" 'x' ä \U0001f600 \u2028 \U000e0001 \x7f",
    "list": [1, 2.5, "x", [True]],
    "empty": {},
    "nested": {"a": {"b": [{"c": 1}]}, "on": 1, "y": 2},
    "inf": float("inf"),
    "minus": float("-inf"),
}


def test_text() -> None:
    params = OrderedDict(lr=1e-05, path=Path("a/b"), size=(1, 2), colour=Colour.RED, kind=int, chosen={3, 1})
    assert to_yaml(params) == (
        'lr: 1.0e-05\npath: "a/b"\nsize: [1, 2]\ncolour: "red"\nkind: "<class \'int\'>"\nchosen: [1, 3]\n'
    )
    assert to_yaml({"a": {"b": {"c": float("nan")}}}) == "a:\n  b:\n    c: .nan\n"
    assert to_yaml({}) == "{}\n"


def test_yaml_reads_it_back() -> None:
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(to_yaml(PARAMS)) == PARAMS
