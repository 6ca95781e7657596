"""What a training step costs beyond a hand-written loop: hookbus, Lightning and Ignite in one process, taking turns.

    python benchmarks/step_overhead.py [--json FILE] [--steps N] [--repeats N]

The model is tiny (two linear layers), so that the loops' own cost shows. Each figure is the median over repeats of the
microseconds per step between the first and the last batch of an epoch, minus those of a raw loop right before and right
after it: machines change their pace within seconds. For the same reason the epochs are short and many, but for the row with
the defaults on, whose cost at the end of an epoch is to be spread over ``--steps``. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

#: name of the row -> (callbacks of 4 hooks each, logged values per step, bar + CSV logger + checkpoint + summary on)
ROWS = {
    "no callbacks": (0, 0, False),
    "10 no-op callbacks of 4 hooks": (10, 0, False),
    "5 x self.log(on_step, on_epoch)": (0, 5, False),
    "defaults on, 5 logs": (0, 5, True),
}


class Rows(Dataset):
    def __init__(self, steps: int) -> None:
        self.rows = torch.randn(steps, 4, 8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def raw(loader: DataLoader, _: Any) -> float:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net.train()
    start = time.perf_counter()
    for batch in loader:
        loss = net(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def lightning_shaped(root: Any) -> Callable[[DataLoader, Any], float]:
    """A function that trains one epoch with a library that has Lightning's names, and gives the seconds."""

    class Model(root.LightningModule):
        def __init__(self, logs: int) -> None:
            super().__init__()
            self.net, self.names = network(), [f"metric_{i}" for i in range(logs)]

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.net(batch).pow(2).mean()
            for name in self.names:
                self.log(name, loss, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Noop(root.Callback):
        def on_train_batch_start(self, *args: Any) -> None: ...

        def on_train_batch_end(self, *args: Any) -> None: ...

        def on_before_backward(self, *args: Any) -> None: ...

        def on_after_backward(self, *args: Any) -> None: ...

    class Clock(root.Callback):
        def on_train_epoch_start(self, *args: Any) -> None:
            self.start = time.perf_counter()

        def on_train_epoch_end(self, *args: Any) -> None:
            self.seconds = time.perf_counter() - self.start

    def run(loader: DataLoader, row: tuple[int, int, bool]) -> float:
        callbacks, logs, defaults = row
        clock = Clock()
        switches = {} if defaults else dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "logger"), False)
        with tempfile.TemporaryDirectory() as folder:
            trainer = root.Trainer(
                max_epochs=1,
                accelerator="cpu",
                devices=1,
                enable_model_summary=defaults,
                default_root_dir=folder,
                callbacks=[clock, *(type("Noop", (Noop,), {})() for _ in range(callbacks))],
                **switches,
            )
            trainer.fit(Model(logs), loader)
        return clock.seconds

    return run


def ignite(loader: DataLoader, row: tuple[int, int, bool]) -> float:
    from ignite.engine import Engine, Events

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def update(engine: Any, batch: torch.Tensor) -> torch.Tensor:
        loss = net(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    engine = Engine(update)
    twice = 2 * (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED)
    for _ in range(row[0]):  # Ignite has no events around backward: two handlers at each end of an iteration
        for event in twice:
            engine.add_event_handler(event, lambda _: None)
    times: list[float] = []
    engine.add_event_handler(Events.EPOCH_STARTED, lambda _: times.append(time.perf_counter()))
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda _: times.append(time.perf_counter()))
    engine.run(loader, max_epochs=1)
    return times[1] - times[0]


def candidates() -> dict[str, Callable[[DataLoader, Any], float]]:
    import hookbus

    found: dict[str, Callable[[DataLoader, Any], float]] = {"hookbus": lightning_shaped(hookbus)}
    with contextlib.suppress(ImportError):
        found["lightning"] = lightning_shaped(importlib.import_module("lightning.pytorch"))
    with contextlib.suppress(ImportError):
        importlib.import_module("ignite.engine")
        found["ignite"] = ignite
    return found


def measure(steps: int, repeats: int) -> list[dict[str, Any]]:
    runs, table = candidates(), []
    for name, row in ROWS.items():
        length, times = (steps, repeats) if row[2] else (max(1, steps // 5), repeats * 4)
        loader = DataLoader(Rows(length), batch_size=None)
        over: dict[str, list[float]] = {key: [] for key in runs}
        ratio: dict[str, list[float]] = {key: [] for key in runs}
        raws = []
        for repeat in range(times):
            for key, run in runs.items():
                if key == "ignite" and (row[1] or row[2]):
                    continue  # it has no counterpart of self.log
                if key == "lightning" and repeat % 4 and not row[2]:
                    continue  # so much slower that a quarter of the repeats takes as long
                before = raw(loader, row)
                with (
                    open(os.devnull, "w") as nowhere,
                    contextlib.redirect_stdout(nowhere),
                    contextlib.redirect_stderr(nowhere),
                ):
                    seconds = run(loader, row)
                base = (before + raw(loader, row)) / 2
                raws.append(base / length * 1e6)
                over[key].append((seconds - base) / length * 1e6)
                ratio[key].append(seconds / base)
        entry: dict[str, Any] = {"row": name, "raw_us": statistics.median(raws)}
        for key in runs:
            if over[key]:
                entry[f"{key}_over_us"] = statistics.median(over[key])
                entry[f"{key}_times_raw"] = statistics.median(ratio[key])
        if over.get("lightning"):
            entry["share_of_lightning"] = entry["hookbus_over_us"] / entry["lightning_over_us"]
        table.append(entry)
    return table


def show(table: list[dict[str, Any]]) -> None:
    print(f"{'':34}{'raw':>8}{'hookbus':>10}{'Lightning':>11}{'Ignite':>9}   hookbus/Lightning   hookbus")
    print(f"{'':34}{'us/step':>8}{'over raw':>10}{'over raw':>11}{'over raw':>9}   of the overhead     x raw")
    for entry in table:
        cells = [f"{entry.get(f'{key}_over_us', float('nan')):.1f}" for key in ("hookbus", "lightning", "ignite")]
        share = entry.get("share_of_lightning")
        print(
            f"{entry['row']:34}{entry['raw_us']:>8.1f}{cells[0]:>10}{cells[1]:>11}{cells[2]:>9}   "
            f"{'1/' + format(1 / share, '.1f') if share and share > 0 else '-':<19} {entry['hookbus_times_raw']:.2f}"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = measure(arguments.steps, arguments.repeats)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, {arguments.steps} steps"
    )
    show(table)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"python": sys.version, "torch": torch.__version__, "rows": table}, indent=1)
        )


if __name__ == "__main__":
    main()
