from __future__ import annotations

import torch

from hookbus.engine.strategy import SingleDeviceStrategy


def test_one_process_is_all_there_is() -> None:
    strategy = SingleDeviceStrategy(torch.device("cpu"))
    tensor, obj = torch.ones(2), object()
    assert (strategy.global_rank, strategy.local_rank, strategy.world_size, strategy.is_global_zero) == (0, 0, 1, True)
    assert strategy.strategy_name == "single_device"
    assert strategy.reduce(tensor, reduce_op="sum") is strategy.all_gather(tensor) is tensor
    assert strategy.broadcast(obj) is obj
    assert strategy.reduce_boolean_decision(False) is False
    strategy.barrier("somewhere")
    with strategy.block_backward_sync():
        pass


def test_module_and_batch_go_to_the_root_device() -> None:
    strategy = SingleDeviceStrategy(torch.device("meta"))
    assert strategy.setup_module(torch.nn.Linear(1, 1)).weight.device.type == "meta"
    assert strategy.batch_to_device([torch.ones(1)])[0].device.type == "meta"
    assert strategy.batch_to_device(torch.ones(1), torch.device("cpu")).device.type == "cpu"


def test_the_model_is_the_module_unless_something_wraps_it() -> None:
    strategy = SingleDeviceStrategy(torch.device("cpu"))
    strategy.lightning_module = module = torch.nn.Linear(1, 1)
    assert strategy.model is module
    strategy.model = wrapper = torch.nn.Sequential(module)
    assert strategy.model is wrapper
