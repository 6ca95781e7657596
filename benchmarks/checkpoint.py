"""What a checkpoint costs: hookbus, Lightning and plain torch.save in one process, taking turns.

    python benchmarks/checkpoint.py [--json FILE] [--megabytes 10 100 1000] [--saves N] [--repeats N]

A module and its Adam optimizer together hold so many megabytes. In the middle of a fit, after a batch, a checkpoint is
saved: *stall* is the time until the training goes on, *on disk* the time until the file is in place, *read* the time to
read the file into a dictionary on the host (``weights_only=True``; from the page cache), *file* its size beyond the tensors.
Only hookbus waits until the bytes are on the disk, and reads every byte for its checksum; ``torch.save + fsync`` is the
plain counterpart of the first. In the background the first save of a fit is slower, as it touches new memory. Figures
are medians over the repeats.
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

Figures = dict[str, float]
#: The share of the synchronous stall that saving in the background may take.
TARGET = 0.20


def parameters(megabytes: float) -> list[torch.nn.Parameter]:
    """16 matrices which, with two moments of Adam each, hold so many megabytes."""
    torch.manual_seed(0)
    numbers = int(megabytes * 1e6 / 4 / 3 / 16)
    return [torch.nn.Parameter(torch.randn(numbers)) for _ in range(16)]


def train_once(weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """An optimiser whose moments exist."""
    optimizer = torch.optim.Adam(weights, lr=1e-4)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def plain(sync: bool) -> Callable[[Path, float, int], list[Figures]]:
    """A hand-written save, with or without waiting for the disk."""

    def run(folder: Path, megabytes: float, saves: int) -> list[Figures]:
        weights = parameters(megabytes)
        optimizer, found = train_once(weights), []
        for index in range(saves):
            path, start = folder / f"{index}.ckpt", time.perf_counter()
            with open(path, "wb") as file:
                state = {f"weights.{i}": weight.detach() for i, weight in enumerate(weights)}
                torch.save({"state_dict": state, "optimizer_states": [optimizer.state_dict()]}, file)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            seconds = time.perf_counter() - start
            found.append({"stall": seconds, "on_disk": seconds})
        return found

    return run


def lightning_shaped(root: Any, *, background: bool) -> Callable[[Path, float, int], list[Figures]]:
    """Saves within a fit of a library that has Lightning's names."""

    class Model(root.LightningModule):
        def __init__(self, megabytes: float) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(parameters(megabytes))
            self.small = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.small(batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = train_once(list(self.weights))
            optimizer.add_param_group({"params": list(self.small.parameters())})
            return optimizer

    class Save(root.Callback):
        def __init__(self, folder: Path) -> None:
            self.folder, self.figures = folder, []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            path, start = self.folder / f"{batch_idx}.ckpt", time.perf_counter()
            trainer.save_checkpoint(path)
            stall = time.perf_counter() - start
            wait_for(trainer, path)
            self.figures.append({"stall": stall, "on_disk": time.perf_counter() - start})

    def wait_for(trainer: Any, path: Path) -> None:
        """Wait as a longer training would, without a word to the writer, so that nothing is torn down."""
        if not background:
            return
        if root.__name__ == "hookbus":
            while trainer._writer.is_writing(os.path.abspath(path)):
                time.sleep(0.002)
                trainer._writer.poll()
        else:
            executor = trainer.strategy.checkpoint_io._executor
            executor.submit(lambda: None).result()

    def run(folder: Path, megabytes: float, saves: int) -> list[Figures]:
        options: dict[str, Any] = {}
        if background and root.__name__ == "hookbus":
            options["async_checkpoints"] = True
        elif background:
            options["plugins"] = [importlib.import_module("lightning.pytorch.plugins.io").AsyncCheckpointIO()]
        save = Save(folder)
        trainer = root.Trainer(
            max_steps=saves, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[save], **options,
        )  # fmt: skip
        trainer.fit(Model(megabytes), DataLoader(torch.ones(saves, 4)))
        return save.figures

    return run


def torch_read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def hookbus_read(path: Path) -> Any:
    from hookbus.checkpoint.reading import read

    return read(path)


def candidates() -> dict[str, tuple[Callable[[Path, float, int], list[Figures]], Callable[[Path], Any]]]:
    """How each of them saves and reads."""
    import hookbus

    found = {
        "torch.save": (plain(False), torch_read),
        "torch.save + fsync": (plain(True), torch_read),
        "hookbus": (lightning_shaped(hookbus, background=False), hookbus_read),
        "hookbus, async": (lightning_shaped(hookbus, background=True), hookbus_read),
    }
    with contextlib.suppress(ImportError):
        root = importlib.import_module("lightning.pytorch")
        reader = importlib.import_module("lightning.fabric.utilities.cloud_io")._load
        lightning_read = lambda path: reader(path, map_location="cpu", weights_only=True)  # noqa: E731
        found["Lightning"] = lightning_shaped(root, background=False), lightning_read
        found["Lightning, AsyncCheckpointIO"] = lightning_shaped(root, background=True), lightning_read
    return found


def measure(megabytes: float, saves: int, repeats: int, scratch: str | None) -> dict[str, Figures]:
    """The medians of each candidate, in seconds and bytes."""
    samples: dict[str, list[Figures]] = {}
    for _ in range(repeats):
        for name, (run, read) in candidates().items():
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                with (
                    open(os.devnull, "w") as nowhere,
                    contextlib.redirect_stdout(nowhere),
                    contextlib.redirect_stderr(nowhere),
                ):
                    figures = run(Path(folder), megabytes, saves)
                path = Path(folder) / f"{saves - 1}.ckpt"
                start = time.perf_counter()
                content = read(path)
                seconds = time.perf_counter() - start
                tensors = sum(value.nbytes for value in tensors_in(content))
                samples.setdefault(name, []).append(
                    {
                        "first_stall": figures[0]["stall"],
                        "stall": statistics.median(entry["stall"] for entry in figures[1:]),
                        "on_disk": statistics.median(entry["on_disk"] for entry in figures[1:]),
                        "read": seconds,
                        "tensors": tensors,
                        "beyond": path.stat().st_size - tensors,
                    }
                )
                del content
    return {
        name: {key: statistics.median(entry[key] for entry in found) for key in found[0]}
        for name, found in samples.items()
    }


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def show(megabytes: float, rows: dict[str, Figures]) -> None:
    print(f"\n{megabytes:g} MB of tensors")
    print(f"{'':30}{'first stall':>12}{'stall':>9}{'on disk':>9}{'read':>9}{'file':>10}")
    print(f"{'':30}{'ms':>12}{'ms':>9}{'ms':>9}{'ms':>9}{'+ kB':>10}")
    for name, row in rows.items():
        times = [f"{row[key] * 1e3:.1f}" for key in ("first_stall", "stall", "on_disk", "read")]
        print(f"{name:30}{times[0]:>12}{times[1]:>9}{times[2]:>9}{times[3]:>9}{row['beyond'] / 1e3:>10.1f}")
    for key, what in (("stall", "later saves"), ("first_stall", "the first save")):
        share = rows["hookbus, async"][key] / rows["hookbus"]["stall"]
        print(
            f"stall in the background, {what}: {share:.0%} of the synchronous one (target at 1 GB: at most {TARGET:.0%})"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--saves", type=int, default=4, help="per fit, at least 2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to write; the folder for temporary files by default")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    )
    table = {}
    for megabytes in arguments.megabytes:
        table[str(megabytes)] = measure(megabytes, arguments.saves, arguments.repeats, arguments.folder)
        show(megabytes, table[str(megabytes)])
    if arguments.json:
        versions = {"python": sys.version, "torch": torch.__version__}
        arguments.json.write_text(json.dumps({**versions, "megabytes": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
