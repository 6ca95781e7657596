"""One of two processes that train a tapped network together; prints what its taps have heard, as JSON.

    python -m tests.taps.two_ranks RANK FILE

``FILE`` is where the processes find each other. The gradients are known: the network is a chain of two weights of one,
rank ``r`` is given ``r + 1``, and the loss is the sum of the outputs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import tapping
from hookbus.taps import FeatureTap, installed_hooks


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


def chosen_rank(model: nn.Module, x: torch.Tensor) -> list[int]:
    """The ranks of the events that a tap with ``ranks={1}`` hears of."""
    heard: list[int] = []
    with tapping(model) as taps:
        taps.tap("0", lambda event: heard.append(event.rank), ranks={1})
        model(x)
    return heard


def kinds_of_gradients(model: nn.Module, x: torch.Tensor, passes: Sequence[str]) -> list[list[object]]:
    """Of each parameter's gradient in each pass: what it is said to be, and its sum.

    Passes are ``sync`` or ``no sync``, the latter for DistributedDataParallel; ``zero`` forgets the gradients in between.
    """
    heard: list[list[object]] = []

    def hear(event):
        whole = event.grad.full_tensor() if hasattr(event.grad, "full_tensor") else event.grad
        heard.append([event.name, event.grad_kind, whole.sum().item()])

    with tapping(model) as taps:
        taps.tap("*", hear, kinds="parameter_grad")
        for word in passes:
            if word == "zero":
                model.zero_grad()
            else:
                with model.no_sync() if word == "no sync" else nullcontext():
                    model(x).sum().backward()
    return [row for row in heard if row[0] == "0.weight"]


def features_and_a_step(model: nn.Module, x: torch.Tensor) -> dict[str, object]:
    """What layers give, the gradient that comes of it, and the gradients of a whole pass after that."""
    found = FeatureTap(model, ["0", "1"])(x)
    whole = {name: value.sum().item() for name, value in found.items()}
    found["1"].sum().backward()
    first = next(model.parameters()).grad
    through = first.full_tensor() if hasattr(first, "full_tensor") else first
    later: list[str] = []
    handle = list(model.modules())[-1].register_forward_pre_hook(lambda *_: later.append("ran"))
    with torch.no_grad():
        whole["alone"] = FeatureTap(model, "0")(x).sum().item()
    handle.remove()
    model.zero_grad()
    grads = trained(model, x, passes=1)["grads"]
    return {"features": whole, "through": through.sum().item(), "grads": grads, "hooks": ours(model), "later": later}


def sharded() -> nn.Module:
    """The network, whole and each of its weights by itself."""
    mesh = init_device_mesh("cpu", (2,))
    net = network()
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    return net


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
    found["kinds, ddp"] = kinds_of_gradients(
        nn.parallel.DistributedDataParallel(network()), x, ["no sync", "sync", "sync", "zero", "sync"]
    )
    found["kinds, ddp with views"] = kinds_of_gradients(
        nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=True),
        x,
        ["sync", "zero", "no sync", "sync"],
    )
    found["kinds, fsdp"] = kinds_of_gradients(fully_shard(network(), mesh=mesh), x, ["sync", "sync", "zero", "sync"])
    found["kinds, fsdp, nested"] = kinds_of_gradients(sharded(), x, ["sync", "sync"])
    found["features, ddp"] = features_and_a_step(nn.parallel.DistributedDataParallel(network()), x)
    found["features, fsdp"] = features_and_a_step(fully_shard(network(), mesh=mesh), x)
    found["features, fsdp, nested"] = features_and_a_step(sharded(), x)
    found["rank"] = chosen_rank(nn.parallel.DistributedDataParallel(network()), x)
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
