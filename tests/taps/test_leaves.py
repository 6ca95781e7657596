"""Tensors are found in whatever a module gives, with paths that lead to them."""

from collections import OrderedDict
from functools import reduce

import pytest
import torch
from tests.taps.networks import Outcome, Pair

from hookbus.taps import leaves

X = torch.zeros(2)


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (X, [()]),
        ((X, [X, None, 3]), [(0,), (1, 0)]),
        (OrderedDict(a=X, b={"c": X}), [("a",), ("b", "c")]),
        (Pair(X, X), [("left",), ("right",)]),
        (Outcome(X, [X]), [("logits",), ("hidden", 0)]),
        (torch.max(torch.zeros(2, 2), dim=1), [(0,), (1,)]),
        ("text", []),
        (None, []),
        (Outcome, []),
    ],
    ids=str,
)
def test_paths(value, paths):
    assert [path for path, _ in leaves.tensors(value)] == paths


def test_paths_lead_to_their_tensors():
    value = {"a": [torch.tensor(1), (torch.tensor(2),)]}
    for path, tensor in leaves.tensors(value):
        assert reduce(lambda inner, key: inner[key], path, value) is tensor


def test_lstm_output():
    output = torch.nn.LSTM(2, 3)(torch.zeros(1, 1, 2))
    assert [path for path, _ in leaves.tensors(output)] == [(0,), (1, 0), (1, 1)]


def test_spelling():
    assert leaves.spelled((0, "hidden")) == "[0]['hidden']"
    assert leaves.spelled(()) == ""
    assert leaves.suffixed("layer", ()) == "layer"
    assert leaves.suffixed("layer", (1, "h")) == "layer.1.h"
    assert leaves.first([None, {"a": X}]) is X
    assert leaves.first("nothing") is None
