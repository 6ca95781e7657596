"""The summary of a network: what is counted, what the table says, and that looking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.model_summary import human_readable, summarize


class Net(nn.Module):
    """Two linear layers, the second one tied to the first, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
        self.tied = self.body[0]
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
        self.example_input_array: Any = torch.ones(5, 4)

    def forward(self, x: torch.Tensor, twice: bool = False) -> Any:
        y = self.tied(self.body(x))
        return [y, {"y": y}] if twice else y


def test_counts() -> None:
    summary = summarize(Net())
    assert [(layer.name, layer.num_parameters, layer.flops) for layer in summary.layers] == [("body", 20, 160)]
    assert (summary.total_parameters, summary.trainable_parameters) == (23, 20)
    assert summary.model_size == pytest.approx(23 * 4e-6)
    assert summary.total_flops == 2 * 160 + 160 - 160  # each of two calls once
    assert summary.total_training_modes == {"train": 3, "eval": 0}
    assert "other params" in str(summary)


def test_a_number_has_no_size() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.L1Loss()
            self.example_input_array = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mean(x, x)

    (layer,) = summarize(Loss()).layers
    assert (layer.in_size, layer.out_size) == ([[3], [3]], "?")


def test_half_precision_takes_half_the_memory() -> None:
    net = Net().to(torch.bfloat16)
    assert summarize(net, measure=False).model_size == pytest.approx(23 * 2e-6)


@pytest.mark.parametrize(
    ("depth", "names"), [(0, []), (1, ["body"]), (2, ["body", "body.0", "body.1"]), (-1, ["body", "body.0", "body.1"])]
)
def test_depth(depth: int, names: list[str]) -> None:
    assert [layer.name for layer in summarize(Net(), depth).layers] == names


def test_sizes_of_several_inputs_and_outputs() -> None:
    class Outer(nn.Module):
        def __init__(self, example: Any) -> None:
            super().__init__()
            self.inner = Net()
            self.example_input_array = example

        def forward(self, x: torch.Tensor, twice: bool) -> Any:
            return self.inner(x, twice=twice)

    for example in ((torch.ones(2, 4), True), {"x": torch.ones(2, 4), "twice": True}):
        (layer,) = summarize(Outer(example)).layers
        assert layer.in_size == [[2, 4], "?"]
        assert layer.out_size == [[2, 4], "?"]


def test_looking_changes_nothing() -> None:
    net = Net()
    net.body[1].eval()
    before = torch.get_rng_state()
    summarize(net, -1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in net.modules()] == [True, True, True, False]
    assert all(not module._forward_hooks for module in net.modules())
    assert all(p.grad is None for p in net.parameters())


def test_not_even_if_the_network_fails() -> None:
    net = Net()
    net.example_input_array = torch.ones(5, 99)
    with pytest.raises(RuntimeError):
        summarize(net)
    assert net.training
    assert all(not module._forward_hooks for module in net.modules())
    assert "FLOPs" not in str(summarize(net, measure=False))


def test_parameters_without_a_shape_count_as_none() -> None:
    net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    assert summarize(net).total_parameters == 4


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 K"),
        (1234, "1.2 K"),
        (131584, "131 K"),
        (2_000_000, "2.0 M"),
        (4 * 10**14, "400 T"),
        (5 * 10**15, "5,000 T"),
    ],
)
def test_numbers_to_read(number: int, text: str) -> None:
    assert human_readable(number) == text


@pytest.mark.parametrize("depth", [-2, 1.5, "all", True])
def test_other_depths_are_refused(depth: Any) -> None:
    with pytest.raises(ValueError, match="max_depth must be -1 for all layers"):
        summarize(Net(), depth)
