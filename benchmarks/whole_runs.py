"""What evaluation costs per batch, and fit before its first and after its last batch: hookbus and Lightning, taking turns.

    python benchmarks/whole_runs.py [--json FILE] [--batches N] [--repeats N]

Per batch: the median over repeats of the microseconds between the first and the last batch of an epoch, minus a raw loop
under ``torch.inference_mode()`` in the same repeat; predictions are kept, as by ``Trainer.predict()``. Start and end of
fit: milliseconds for making the trainer, from the call of ``fit`` to the first ``training_step``, and from the end of the
last batch to the return of ``fit``, of a second trainer in the same process, so that imports do not count; beside it what
any loop pays before its first step. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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
from step_overhead import Rows, network
from torch.utils.data import DataLoader

#: Trainer arguments of the two kinds of fit.
BARE = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "logger", "enable_model_summary"), False)
PEERS = {"hookbus": "hookbus", "lightning": "lightning.pytorch"}


def raw(loader: DataLoader, keep: bool) -> float:
    net, kept = network().eval(), []
    start = time.perf_counter()
    with torch.inference_mode():
        for batch in loader:
            answer = net(batch)
            if keep:
                kept.append(answer)
            else:
                answer.pow(2).mean()
    return time.perf_counter() - start


def raw_start(loader: DataLoader) -> float:
    """What every loop pays before its first step: the optimizer, the loader's iterator, the first batch."""
    net = network()
    start = time.perf_counter()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batch = next(iter(loader))
    seconds = time.perf_counter() - start
    assert optimizer is not None
    assert batch is not None
    return seconds


class Clock:
    """The moments of a run; becomes a callback of either library."""

    def on_validation_epoch_start(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def on_validation_epoch_end(self, *_: Any) -> None:
        self.seconds = time.perf_counter() - self.start

    on_predict_epoch_start, on_predict_epoch_end = on_validation_epoch_start, on_validation_epoch_end

    def on_train_batch_end(self, *_: Any) -> None:
        self.last = time.perf_counter()


def library(root: Any) -> dict[str, Callable[[DataLoader], Any]]:
    """The measured runs of a library that has Lightning's names."""

    class Model(root.LightningModule):
        def __init__(self, logs: bool = False) -> None:
            super().__init__()
            self.net, self.logs, self.first = network(), logs, None

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.first = self.first or time.perf_counter()
            return self.net(batch).pow(2).mean()

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            loss = self.net(batch).pow(2).mean()
            if self.logs:
                self.log("val_loss", loss)

        def predict_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.net(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    clock_class = type("Clock", (Clock, root.Callback), {})

    def trainer(**options: Any) -> tuple[Any, Any]:
        clock = clock_class()
        return clock, root.Trainer(accelerator="cpu", devices=1, callbacks=[clock], **options)

    def validate(loader: DataLoader, logs: bool = False) -> float:
        clock, made = trainer(**BARE)
        made.validate(Model(logs), loader, verbose=False)
        return clock.seconds

    def predict(loader: DataLoader) -> float:
        clock, made = trainer(**BARE)
        made.predict(Model(), loader)
        return clock.seconds

    def fit(loader: DataLoader, **options: Any) -> tuple[float, float, float]:
        with tempfile.TemporaryDirectory() as folder:
            model, called = Model(), time.perf_counter()
            clock, made = trainer(max_epochs=1, default_root_dir=folder, **options)
            begun = time.perf_counter()
            made.fit(model, loader)
            done = time.perf_counter()
        return begun - called, model.first - begun, done - clock.last

    return {
        "validate": validate,
        "validate, 1 x self.log": lambda loader: validate(loader, logs=True),
        "predict": predict,
        "fit, bare": lambda loader: fit(loader, **BARE),
        "fit, defaults on": fit,
    }


def measure(batches: int, repeats: int) -> list[dict[str, Any]]:
    runs = {}
    for name, module in PEERS.items():
        with contextlib.suppress(ImportError):
            runs[name] = library(importlib.import_module(module))
    loader, short, table = DataLoader(Rows(batches), batch_size=None), DataLoader(Rows(3), batch_size=None), []
    for row in ("validate", "validate, 1 x self.log", "predict"):
        over: dict[str, list[float]] = {name: [] for name in runs}
        base = []
        for _ in range(repeats):
            base.append(min(raw(loader, row == "predict") for _ in range(2)) / batches * 1e6)
            for name, functions in runs.items():
                over[name].append(quietly(functions[row], loader) / batches * 1e6 - base[-1])
        table.append({"row": f"{row}, us per batch over raw", "raw": statistics.median(base), **medians(over)})
    for row in ("fit, bare", "fit, defaults on"):
        times: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("raw", *runs)}
        for _ in range(2 * repeats + 1):
            gc.collect()  # else one pays for what the other left behind
            times["raw"].append((0.0, raw_start(short), 0.0))
            for name, functions in runs.items():
                gc.collect()
                times[name].append(quietly(functions[row], short))
        for index, what in enumerate(("Trainer(…)", "to the first step", "after the last batch")):
            each = {name: [pair[index] * 1e3 for pair in pairs[1:]] for name, pairs in times.items()}
            table.append({"row": f"{row}: {what}, ms", **medians(each)})
    return table


def medians(values: dict[str, list[float]]) -> dict[str, float]:
    found = {name: statistics.median(each) for name, each in values.items()}
    if "lightning" in found:
        # Of what ran one after the other, as the machine's pace changes.
        pairs = zip(values["hookbus"], values["lightning"], strict=True)
        found["share_of_lightning"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return found


def quietly(function: Callable[[DataLoader], Any], loader: DataLoader) -> Any:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return function(loader)


def show(table: list[dict[str, Any]]) -> None:
    print(f"{'':44}{'raw':>9}{'hookbus':>10}{'Lightning':>11}   hookbus/Lightning")
    for entry in table:
        cells = [f"{entry[name]:.1f}" if name in entry else "-" for name in ("raw", "hookbus", "lightning")]
        share = entry.get("share_of_lightning", 0)
        print(
            f"{entry['row']:44}{cells[0]:>9}{cells[1]:>10}{cells[2]:>11}   {f'1/{1 / share:.1f}' if share > 0 else '-'}"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = measure(arguments.batches, arguments.repeats)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}")
    show(table)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"python": sys.version, "torch": torch.__version__, "rows": table}, indent=1)
        )


if __name__ == "__main__":
    main()
