"""One of two processes that train a tapped network together; prints what its taps have heard, as JSON.

    python -m tests.taps.two_ranks RANK FILE

``FILE`` is where the processes find each other. The gradients are known: the network is a chain of two weights of one,
rank ``r`` is given ``r + 1``, and the loss is the sum of the outputs.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import tapping
from hookbus.taps import installed_hooks


def network() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Identity(), nn.Linear(2, 2, bias=False))
    for parameter in net.parameters():
        nn.init.ones_(parameter)
    return net


def ours(model: nn.Module) -> int:
    """How many hooks of hookbus are on the network."""
    return sum(hook.taps for hook in installed_hooks(model))


def trained(model: nn.Module, x: torch.Tensor, passes: int = 2) -> dict[str, object]:
    """What is heard in some passes, and the gradients that an optimizer would use."""
    heard: list[list[object]] = []

    def hear(event):
        value = event.output if event.kind == "forward" else event.grad
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        heard.append([event.kind, event.name, type(value).__name__, whole.sum().item(), event.step])

    with tapping(model) as taps:
        taps.tap(["0", "2"], hear, kinds=["forward", "grad_output", "parameter_grad"])
        for _ in range(passes):
            model.zero_grad()
            model(x).sum().backward()
        during = ours(model)
    grads = [parameter.grad for parameter in model.parameters()]
    grads = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads]
    return {"heard": heard, "grads": [grad.sum().item() for grad in grads], "hooks": [during, ours(model)]}


def main(rank: int, file: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.full((1, 2), float(rank + 1))
    found = {"ddp": trained(nn.parallel.DistributedDataParallel(network()), x)}
    mesh = init_device_mesh("cpu", (2,))
    whole, nested = network(), network()
    fully_shard(nested[0], mesh=mesh)
    fully_shard(nested[2], mesh=mesh)
    found["fsdp"] = trained(fully_shard(whole, mesh=mesh), x)
    found["fsdp, nested"] = trained(fully_shard(nested, mesh=mesh), x)
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
