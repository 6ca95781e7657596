"""What a progress bar costs a training whose steps take a millisecond: hookbus's bars, and Lightning's where installed.

    python benchmarks/progress_bars.py [--json FILE] [--steps N] [--repeats N]

Each step sleeps for a millisecond, and what is counted is the processor time of the process, its threads included: that of
the loop and of the bar. The bars draw as in a terminal, into nowhere, and show two values that are logged at each step.
Each figure is the median over repeats of the time per step with the bar minus that without, beside a millisecond; the
candidates take turns. Limit: 2 %.
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
from torch.utils.data import DataLoader

STEP = 1e-3
LIMIT = 0.02


class Terminal:
    """A terminal that nobody looks at."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process is

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nowhere, name)


def trainings(root: Any) -> Callable[[Any, int], float]:
    """A function that trains for some steps with a bar, or None, of a library, and gives the seconds of processor time."""

    class Model(root.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss, prog_bar=True)
            self.log("index", float(batch_idx), prog_bar=True)
            time.sleep(STEP)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Clock(root.Callback):
        def on_train_epoch_start(self, *args: Any) -> None:
            self.start = time.process_time()

        def on_train_epoch_end(self, *args: Any) -> None:
            self.seconds = time.process_time() - self.start

    def run(bar: Any, steps: int) -> float:
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(Terminal()):  # type: ignore[type-var]
            trainer = root.Trainer(
                max_epochs=1,
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=bar is not None,
                default_root_dir=folder,
                callbacks=[clock, *([bar()] if bar is not None else [])],
            )
            trainer.fit(Model(), DataLoader(torch.ones(steps, 1)))
        return clock.seconds

    return run


def candidates() -> list[tuple[str, str, Callable[[Any, int], float], Callable[[], Any]]]:
    """Library, bar, its training, and how to make the bar."""
    found = []
    for library, name in (("hookbus", "hookbus"), ("Lightning", "lightning.pytorch")):
        with contextlib.suppress(ImportError):
            run = trainings(importlib.import_module(name))
            callbacks = importlib.import_module(f"{name}.callbacks")
            terminal = {"file": Terminal(), "force_terminal": True}
            found.append(
                (library, "RichProgressBar", run, lambda c=callbacks, t=terminal: c.RichProgressBar(console_kwargs=t))
            )
            if importlib.util.find_spec("tqdm"):
                found.append((library, "TQDMProgressBar", run, lambda c=callbacks: c.TQDMProgressBar()))
            if library == "hookbus":
                found.append((library, "PlainProgress", run, lambda c=callbacks: c.PlainProgress()))
    return found


def measure(steps: int, repeats: int) -> list[dict[str, Any]]:
    rows = candidates()
    without: dict[str, list[float]] = {}
    extra: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        for library, name, run, make in rows:
            bare = run(None, steps)  # beside each candidate, so that a busy moment meets both
            without.setdefault(library, []).append(bare / steps)
            extra.setdefault((library, name), []).append((run(make, steps) - bare) / steps)
    return [
        {
            "library": library,
            "bar": name,
            "loop_us": 1e6 * statistics.median(without[library]),
            "extra_us": 1e6 * statistics.median(values),
            "share": statistics.median(values) / STEP,
        }
        for (library, name), values in extra.items()
    ]


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
    table = measure(arguments.steps, arguments.repeats)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, {arguments.steps} steps"
    )
    print(f"{'':12}{'':18}{'the loop':>10}{'the bar':>10}   {'share of':<10}limit")
    print(f"{'':12}{'':18}{'us/step':>10}{'us/step':>10}   1 ms")
    for row in table:
        share, limit = f"{row['share']:.2%}", f"{LIMIT:.0%}" if row["library"] == "hookbus" else ""
        print(f"{row['library']:12}{row['bar']:18}{row['loop_us']:>10.1f}{row['extra_us']:>10.1f}   {share:<10}{limit}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"python": sys.version, "torch": torch.__version__, "rows": table}, indent=1)
        )


if __name__ == "__main__":
    main()
