"""Rates from counters, and the operations of a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus.engine.throughput import Throughput, measure_flops


def test_rates_wait_for_a_full_window() -> None:
    throughput = Throughput(window_size=3)
    found = []
    for i in range(1, 6):
        throughput.update(time=i * 0.5, batches=i, samples=4 * i, lengths=40 * i)
        found.append(throughput.compute())
    assert found[1] == {"time": 1.0, "batches": 2, "samples": 8, "lengths": 80}
    assert found[4] == {
        "time": 2.5,
        "batches": 5,
        "samples": 20,
        "lengths": 200,
        "device/batches_per_sec": 2.0,
        "device/samples_per_sec": 8.0,
        "device/items_per_sec": 80.0,
    }


def test_rates_of_all_devices() -> None:
    throughput = Throughput(available_flops=1e6, world_size=4, window_size=2, separator=".")
    throughput.update(time=1.0, batches=1, samples=2, flops=1000)
    throughput.update(time=1.5, batches=2, samples=4, flops=1000)
    found = throughput.compute()
    assert found["device.batches_per_sec"] == 2.0
    assert found["batches_per_sec"] == 8.0
    assert found["samples_per_sec"] == 16.0
    assert found["device.flops_per_sec"] == 2000.0
    assert found["flops_per_sec"] == 8000.0
    assert found["device.mfu"] == pytest.approx(0.002)


def test_reset_forgets() -> None:
    throughput = Throughput()
    throughput.update(time=5.0, batches=5, samples=5)
    assert throughput.elapsed == 5.0
    throughput.reset()
    assert throughput.elapsed == 0.0
    throughput.update(time=1.0, batches=1, samples=1)
    assert throughput.compute()["batches"] == 1


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"time": 1.0, "batches": 2, "samples": 2}, "time must grow"),
        ({"time": 2.0, "batches": 1, "samples": 2}, "batches must grow"),
        ({"time": 2.0, "batches": 2, "samples": 1}, "fewer samples"),
        ({"time": 2.0, "batches": 2, "samples": 2, "lengths": 1}, "fewer items"),
        ({"time": 2.0, "batches": 2, "samples": 2, "lengths": 2}, "at every update or at none"),
    ],
)
def test_counters_that_cannot_be_are_refused(update: dict[str, Any], message: str) -> None:
    throughput = Throughput()
    throughput.update(time=1.0, batches=1, samples=1)
    with pytest.raises(ValueError, match=message):
        throughput.update(**update)


def test_nothing_can_be_computed_of_nothing() -> None:
    with pytest.raises(ValueError, match="before the first update"):
        Throughput().compute()


@pytest.mark.parametrize("arguments", [{"window_size": 1}, {"window_size": 2.5}, {"world_size": 0}])
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        Throughput(**arguments)


def test_flops_of_forward_and_backward() -> None:
    with torch.device("meta"):
        net, x = torch.nn.Linear(32, 2), torch.randn(4, 32)
    forward = measure_flops(net, lambda: net(x))
    assert forward == 2 * 4 * 32 * 2
    assert measure_flops(net, lambda: net(x), torch.Tensor.sum) == 2 * forward  # and the gradient of the weights
