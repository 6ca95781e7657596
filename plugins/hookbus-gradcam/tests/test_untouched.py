"""A map that is computed in the middle of something leaves everything as it was, bit by bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from hookbus_gradcam import gradcam, last_convolution
from hookbus_gradcam.untouched import untouched


class Busy(nn.Module):
    """Has whatever a forward pass may change: statistics, dropout, buffers, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(3), persistent=False)
        self.count = 0

    def forward(self, x):
        self.calls += 1
        self.replaced = self.replaced + 1
        self.count += 1
        self.last = x
        random.random()
        np.random.rand()
        x.mul_(2)  # even what it is given
        return self.head(self.drop(self.act(self.norm(self.conv(x))).mean(dim=(2, 3)))) + torch.rand(3)


def state(network):
    tensors = [*network.named_parameters(), *network.named_buffers()]
    random_states = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes())
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors},
        "objects": {name: (id(tensor), tensor._version) for name, tensor in tensors},
        "grads": {name: None if p.grad is None else p.grad.clone() for name, p in network.named_parameters()},
        "modes": [module.training for module in network.modules()],
        "requires": [p.requires_grad for p in network.parameters()],
        "random": random_states,
        "attributes": {name: vars(module).keys() for name, module in network.named_modules()},
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules()],
        "count": network.count,
    }


def same(before, after):
    for part in before:
        if part in ("values", "grads"):
            assert before[part].keys() == after[part].keys()
            for name, value in before[part].items():
                assert value is after[part][name] or torch.equal(value, after[part][name]), name
        else:
            assert before[part] == after[part], part


@pytest.mark.parametrize("evaluating", [True, False])
@pytest.mark.parametrize("layer", ["conv", "act"])
def test_between_forward_and_backward_of_a_training_step(evaluating, layer):
    torch.manual_seed(0)
    network = Busy()
    network.drop.eval()  # one module apart from the others
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.rand(5, 1, 6, 6)
    network(x.clone()).square().sum().backward()  # there are gradients already
    loss = network(x.clone()).square().sum()
    before, given = state(network), x.clone()
    gradcam(network, x, layer, targets=1, evaluating=evaluating)
    same(before, state(network))
    assert torch.equal(x, given)
    loss.backward()  # refuses if a buffer was written to
    optimizer.step()


def test_a_training_goes_the_same_way_with_and_without():
    def weights(look):
        torch.manual_seed(0)
        network = Busy()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            x = torch.rand(5, 1, 6, 6)
            loss = network(x.clone()).square().sum()
            if look:
                gradcam(network, x, "act")
                last_convolution(network, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return network.state_dict()

    with_it, without = weights(True), weights(False)
    assert all(torch.equal(with_it[name], without[name]) for name in without)


def test_after_an_error_everything_is_put_back():
    network = Busy()
    good, bad = torch.rand(2, 1, 6, 6), torch.rand(2, 3, 6, 6)
    network(good.clone())
    before = state(network)
    with pytest.raises(RuntimeError):
        gradcam(network, bad, "conv")
    with pytest.raises(ValueError, match="no class"):
        gradcam(network, good, "conv", targets=9)
    same(before, state(network))


def test_shared_buffers_are_shared_within():
    network = nn.Module()
    network.a, network.b = nn.Module(), nn.Module()
    buffer = torch.zeros(2)
    network.a.register_buffer("x", buffer)
    network.b.register_buffer("x", buffer)
    with untouched(network):
        network.a.x += 1
        assert network.b.x.tolist() == [1, 1]
    assert network.a.x is network.b.x is buffer
    assert buffer.tolist() == [0, 0]


def test_a_backward_pass_that_needs_a_buffer_is_still_possible():
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 2, 3), nn.Flatten())
    network[0].eval()  # its running statistics are saved for the backward pass
    x = torch.rand(2, 1, 5, 5)
    loss = network(x).sum()
    network[0].train()
    gradcam(network, x, "1", targets=0, evaluating=False)
    loss.backward()


def test_lazy_networks_are_refused():
    with pytest.raises(ValueError, match="lazy modules without a shape; call it once before"):
        gradcam(nn.Sequential(nn.LazyConv2d(2, 1)), torch.rand(1, 1, 3, 3), "0")
