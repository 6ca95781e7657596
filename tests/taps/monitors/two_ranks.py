"""One of two processes whose monitors watch what they train together; prints what they have found, as JSON.

    python -m tests.taps.monitors.two_ranks RANK FILE

``FILE`` is where the processes find each other. Whoever waits for the other in vain fails after a minute.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from tests.taps.monitors.test_activation_stats import Log
from tests.taps.networks import trainer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import hookbus
from hookbus import tapping
from hookbus.taps.monitors import ActivationStats, DeadNeurons, GradientStats, LayerTimer, NaNGuard, NonFiniteError
from hookbus.taps.monitors.processes import gathered

BINS = (-2.0, 2.0, 4)


def network() -> nn.Sequential:
    """The same in both processes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))


def data(rank: int, batches: int = 4) -> torch.Tensor:
    """(batches, 5, 3); that of rank 1 is elsewhere, and has a NaN."""
    x = torch.randn(batches, 5, 3, generator=torch.Generator().manual_seed(rank)) + 3 * rank
    x[-1, 0, 0] = float("nan") if rank else 0.0
    return x


class Forked(nn.Module):
    """Takes its second branch for inputs that are positive on the whole."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def forward(self, x):
        return (self.two if x.nansum() > 0 else self.one)(x)


class Watched(hookbus.LightningModule):
    """Looks at its batches, and learns nothing."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net
        self.weight = nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        self.net(batch)
        return self.weight * 0

    def validation_step(self, batch, batch_idx):
        self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], lr=0.0)


def rows(monitor) -> dict[str, list]:
    """A monitor's table."""
    if isinstance(monitor, DeadNeurons):
        return {row.name: [row.units, list(row.indices), row.steps] for row in monitor.table()}
    return {
        row.name: [row.calls, row.count, row.mean, row.std, row.absmax, row.zeros, row.nonfinite, row.histogram]
        for row in monitor.table()
    }


def steps(stats: GradientStats) -> list[list]:
    """All rows."""
    return [
        [row.name, row.numel, row.nonfinite, row.norm, row.weight_norm, row.update_norm] for row in stats.table(None)
    ]


def in_a_loop(rank: int) -> dict[str, object]:
    """Monitors without a trainer."""
    found: dict[str, object] = {}
    stats, alone, dead = ActivationStats(histogram=BINS), ActivationStats(sync_dist=False), DeadNeurons()
    model = nn.parallel.DistributedDataParallel(network())
    with tapping(model, stats, alone, dead):
        for _ in range(2):  # the first time is forgotten with the period
            for x in data(rank):
                model(x)
            before = stats.table().title
            logged = [stats.flush(), alone.flush(), dead.flush()]
        found["nothing more"] = stats.flush()
    found["logged"] = logged
    found["tables"] = {"stats": rows(stats), "alone": rows(alone), "dead": rows(dead)}
    found["titles"] = [before, stats.table().title, alone.table().title, dead.table().title]
    found["printed"] = str(stats.table()).splitlines()[0].strip()

    forked, stats, dead = Forked(), ActivationStats("*.1"), DeadNeurons()
    with tapping(forked, stats, dead):
        forked(torch.full((2, 3), 1.0 if rank else -1.0))
        stats.flush(), dead.flush()
        found["branches"] = [sorted(rows(stats)), sorted(rows(dead))]
        if rank:
            forked(torch.ones(2, 3))
        stats.flush(), dead.flush()
        found["one has seen nothing"] = [sorted(rows(stats)), sorted(rows(dead))]

    layers = nn.Sequential(nn.ReLU())
    with tapping(layers, dead):
        layers(torch.ones(2, 3 + rank))
        found["unlike"] = raised(dead.flush)
    found["failed"] = raised(lambda: gathered(lambda: 1 // rank, "Test"))
    return found


def raised(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def in_a_trainer(rank: int) -> dict[str, object]:
    """Monitors of a Trainer that says it is one of two."""
    meetings = 0
    gather = dist.all_gather_object

    def counted(*arguments):
        nonlocal meetings
        meetings += 1
        return gather(*arguments)

    dist.all_gather_object = counted

    def fitted(*monitors, net=None, **arguments):
        nonlocal meetings
        log, meetings = Log(), 0
        run = trainer(*monitors, log, num_sanity_val_steps=0, **arguments)
        run.strategy.world_size, run.strategy.global_rank = 2, rank
        x = data(rank)
        # In the validation one has fewer batches.
        run.fit(Watched(net or network()), loader(x), loader(data(rank, 2 + rank)))
        calls = [
            [step, {name: value for name, value in metrics.items() if "/net." in name}] for step, metrics in log.calls
        ]
        return {
            "logged": [call for call in calls if call[1]],
            "tables": [rows(m) for m in monitors],
            "meetings": meetings,
            "states": run,
        }

    def loader(x):
        return torch.utils.data.DataLoader(x, batch_size=None)

    found = {}
    found["every step"] = fitted(ActivationStats(every=1))
    found["second steps"] = fitted(ActivationStats(every=2, phases="train"))
    found["windows of two"] = fitted(ActivationStats(every=1, phases="train"), accumulate_grad_batches=2)
    found["rank 1 only"] = fitted(ActivationStats(every=1, ranks=1, phases="train"))
    found["once"] = fitted(ActivationStats(every=2, once=True, phases="train"))
    found["dead"] = fitted(DeadNeurons(every=1, window=2), net=Forked())
    found["dead, validation"] = fitted(DeadNeurons(every=1, window=2, phases="val"))
    found["apart"] = fitted(ActivationStats(every=1, sync_dist=False), DeadNeurons(every=1, sync_dist=False))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found["spoilt"] = fitted(DeadNeurons(every=1, window=4), net=Spoilt(rank))
    found["said"] = [str(one.message) for one in said if "does not count units" in str(one.message)]
    dist.all_gather_object = gather

    dead = DeadNeurons(every=1, window=9)
    run = fitted(dead)["states"]
    run.strategy.world_size, run.strategy.global_rank = 1, 0  # to be written without the other one
    with tempfile.TemporaryDirectory() as folder:
        run.save_checkpoint(Path(folder) / "x.ckpt")
        found["kept"] = torch.load(Path(folder) / "x.ckpt")["callbacks"]
    found["alone"] = [dead.state_dict(), DeadNeurons().state_dict()]
    for one in found.values():
        if isinstance(one, dict):
            one.pop("states", None)
    return found


class Spoilt(nn.Module):
    """Gives another number of units once in rank 1, so that a monitor fails there."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.calls, self.relu = rank, 0, nn.ReLU()

    def forward(self, x):
        self.calls += self.rank
        return self.relu(torch.ones(2, 7 if self.calls == 2 else 3))


def gradients(rank: int) -> dict[str, object]:
    """Of networks that are trained together, in two steps."""
    mesh = init_device_mesh("cpu", (2,))
    both = data(0, 2)[:, :4]

    def watched(model, **arguments):
        optimizer, stats = torch.optim.SGD(model.parameters(), lr=0.1), GradientStats(**arguments)
        with stats.watch(model, optimizer):
            for x in both[:, 2 * rank : 2 * rank + 2]:
                optimizer.zero_grad()
                model(x).mean().backward()
                with CommDebugMode() as collectives:
                    optimizer.step()
        return [steps(stats), collectives.get_total_counts()]

    nested = network()
    fully_shard(nested[0], mesh=mesh)
    return {
        "ddp": watched(nn.parallel.DistributedDataParallel(network())),
        "fsdp": watched(fully_shard(network(), mesh=mesh)),
        "fsdp, nested": watched(fully_shard(nested, mesh=mesh)),
        "fsdp, rank 0": watched(fully_shard(network(), mesh=mesh), ranks=0),
        "ddp, rank 0": watched(nn.parallel.DistributedDataParallel(network()), ranks=0),
    }


def of_one(rank: int) -> dict[str, object]:
    """What each process keeps to itself."""
    guard, timer, model = NaNGuard(), LayerTimer(), network()
    with tapping(model, guard, timer):
        try:
            model(data(1 - rank)[-1])  # bad in rank 0
            said = "nothing"
        except NonFiniteError as error:
            said = f"{error.finding} (found by {error.finding.rank})"
        timer.reset()
        model(torch.ones(1, 3))
    return {"guard": said, "timer": timer.table().title, "rows": timer.table()[:1].sorted_by("calls").title}


def main(rank: int, file: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    patience = datetime.timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=patience)
    parts = (in_a_loop, in_a_trainer, gradients, of_one)
    found = {part.__name__: part(rank) for part in parts}
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
