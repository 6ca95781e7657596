from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus.engine.device import batch_size_of, bring_to, move_to, select_device
from hookbus.errors import MisconfigurationException

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("devices", "count"), [("auto", 1), (1, 1), (2, 2), ("3", 3), (-1, 1), ([0, 1], 2), ("0,1", 2), ("0,", 1)]
)
def test_cpu_devices(devices: Any, count: int) -> None:
    assert select_device("cpu", devices) == [CPU] * count


@pytest.mark.parametrize("devices", [0, -2, "x", [], "0,0", True, None, [0, -1]])
def test_impossible_devices(devices: Any) -> None:
    with pytest.raises(MisconfigurationException, match="devices"):
        select_device("cpu", devices)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("devices", "indices"),
    [("auto", [0]), (1, [0]), (2, [0, 1]), (-1, [0, 1]), ([1], [1]), ("1,", [1]), ("-1", [0, 1])],
)
def test_gpus(devices: Any, indices: list[int]) -> None:
    for accelerator in ("auto", "gpu", "cuda"):
        assert select_device(accelerator, devices) == [torch.device("cuda", index) for index in indices]


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(MisconfigurationException, match="there is no 2 here: 2 device"):
        select_device("gpu", 3)


def test_accelerators_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert select_device("auto", "auto") == [CPU]
    with pytest.raises(MisconfigurationException, match="not available"):
        select_device("gpu", 1)
    with pytest.raises(MisconfigurationException, match="auto, cpu, gpu"):
        select_device("tpu", 1)


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        [torch.ones(2), torch.ones(1)],
        (torch.ones(2),),
        {"x": torch.ones(2)},
        ["a", {"x": torch.ones(1)}],
        "text",
        3,
        None,
    ],
)
def test_a_batch_that_is_there_already_stays_the_same_object(batch: Any) -> None:
    assert move_to(batch, CPU) is batch


def test_a_batch_without_tensors_stays_the_same_object() -> None:
    batch = [1, "a", {"k": [None]}]
    assert move_to(batch, META) is batch


def test_tensors_move_and_the_original_does_not() -> None:
    batch = [torch.ones(2), {"x": torch.ones(1), "name": "n"}]
    moved = move_to(batch, META)
    assert moved[0].device == moved[1]["x"].device == META
    assert moved[1]["name"] == "n"
    assert batch[0].device == CPU


def test_objects_move_themselves() -> None:
    class Returns:
        def to(self, device: torch.device) -> str:
            return f"on {device}"

    class InPlace:
        device = CPU

        def to(self, device: torch.device) -> None:
            self.device = device

    here = InPlace()
    assert move_to([Returns(), here], META) == ["on meta", here]
    assert here.device == META


def test_packed_sequences_move_as_a_whole() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert move_to({"x": packed}, META)["x"].data.device == META


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(3, 2), 3),
        (torch.zeros(()), 1),
        ([torch.zeros(3, 2), torch.zeros(3)], 3),
        ({"a": "text", "b": [torch.zeros(5)]}, 5),
        (["abcdef", torch.zeros(4)], 4),
        ([torch.zeros(4), "abcdef"], 4),
        ("abc", None),
        ([1, 2], None),
        ([], None),
        (None, None),
    ],
)
@pytest.mark.filterwarnings("error")
def test_batch_size(batch: Any, size: int | None) -> None:
    assert batch_size_of(batch) == size


def test_an_ambiguous_batch_size_is_that_of_the_first_tensor() -> None:
    with pytest.warns(UserWarning, match="ambiguous"):
        assert batch_size_of({"a": torch.zeros(5), "b": torch.zeros(4)}) == 5


def test_a_module_moves_with_parameters_buffers_and_parts() -> None:
    for lost in ("weight", "running_mean"):
        network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        bring_to(network, CPU)
        moved = getattr(network[1], lost).to(META)
        setattr(network[1], lost, torch.nn.Parameter(moved) if lost == "weight" else moved)
        bring_to(network, META)
        assert {tensor.device for tensor in network.state_dict().values()} == {META}


@pytest.mark.parametrize("name", ["to", "_apply"])
def test_a_module_with_a_way_of_its_own_to_move_is_always_asked(name: str) -> None:
    asked = []

    class Own(torch.nn.Linear):
        pass

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(self)
        return getattr(torch.nn.Module, name)(self, *args, **kwargs)

    setattr(Own, name, move)
    part = Own(1, 1)
    bring_to(part, CPU)
    bring_to(torch.nn.Sequential(part), CPU)
    assert asked == ([part, part] if name == "_apply" else [part])
