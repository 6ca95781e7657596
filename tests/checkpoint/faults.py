"""Trainings that are killed at a random place by SIGKILL and taken up again: what must come out is known.

One process imports torch once and then forks a child for each training, so that a trial costs the training and little
more. A child counts the calls of Python functions and built-ins, in all threads, and kills itself at a given one: any
place between two of them can be reached. They are counted in several regions, some of them small, such as the moments
around the renaming of a file that was written.

::

    python -m tests.checkpoint.faults --trials 300 --seed 1        # make soak
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.checkpoint.world import Plan, difference, train

from hookbus import Callback
from hookbus.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from hookbus.checkpoint import store
from hookbus.loggers import CSVLogger
from hookbus.markers import hookimpl
from hookbus.trainer.evaluate import EvaluationLoop

#: Where a child may be killed: anywhere; while a checkpoint is written; right before or after its content, or its new
#: name, is brought to the disk; during a validation; inside a window of accumulation; from ``on_before_optimizer_step``
#: to ``on_train_batch_end``.
REGIONS = ("anywhere", "writing", "fsync", "rename", "validating", "accumulating", "stepping")


@dataclass(frozen=True)
class Scheme:
    """A training and how it is saved.

    Attributes:
        plan: the training.
        saving: arguments of ModelCheckpoint.
        background: whether checkpoints are written in the background.
        average: makes callbacks that average weights.
    """

    name: str
    plan: Plan
    saving: dict[str, Any] = field(default_factory=dict)
    background: bool = False
    average: Callable[[], Sequence[Callback]] = tuple


SCHEMES = [
    Scheme("every step", Plan(epochs=2, batches=4), {"every_n_train_steps": 1, "save_top_k": -1}),
    Scheme(
        "windows",
        Plan(epochs=2, accumulate=3, val_interval=2, scheduler="plateau by step"),
        {"every_n_train_steps": 2, "save_last": True},
        average=lambda: [EMAWeightAveraging(decay=0.8)],
    ),
    Scheme(
        "validations",
        Plan(epochs=3, accumulate=2, val_interval=0.5, scheduler="plateau", val_loaders=2),
        {"monitor": "val/dataloader_idx_0", "save_last": True},
    ),
    Scheme(
        "background",
        Plan(epochs=2, batches=5, precision="bf16-mixed"),
        {"every_n_train_steps": 2, "save_top_k": -1},
        True,
    ),
    Scheme(
        "half", Plan(epochs=2, precision="16-mixed", scheduler="step"), {"every_n_train_steps": 3, "save_last": "link"}
    ),
    Scheme("workers", Plan(epochs=2, batches=4, workers=2), {"every_n_train_steps": 2, "save_top_k": 1}),
    Scheme(
        "by hand",
        Plan(epochs=2, manual=True, accumulate=4, val_interval=3, optimizers=2),
        {"every_n_train_steps": 1, "save_last": True},
    ),
    Scheme(
        "epochs",
        Plan(epochs=4, batches=3, accumulate=2, scheduler="epoch"),
        {"monitor": "val", "save_top_k": 2, "save_last": True},
        average=lambda: [StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=2)],
    ),
    Scheme(
        "steps", Plan(max_steps=9, batches=4, val_every_epochs=None, val_interval=3), {"every_n_train_steps": 2}, True
    ),
]


@dataclass(frozen=True)
class Kill:
    """Where a child dies: at the ``at``-th call of a region."""

    at: int
    region: str


@dataclass(frozen=True)
class Outcome:
    """What became of a child.

    Attributes:
        killed: whether it was killed; of the rest nothing is known then.
        calls: how many calls it made in each region.
        saved: whether it saved something.
        result: at what the training arrived.
    """

    killed: bool
    calls: dict[str, int] = field(default_factory=dict)
    saved: bool = False
    result: dict[str, Any] = field(default_factory=dict)


class Regions(Callback):
    """Counts the calls of a training by region, and dies at the one that ``kill`` says; with one, counts in its region.

    Attributes:
        calls: the counts.
        saved: whether a checkpoint was put in place.
    """

    placement = "first"

    def __init__(self, kill: Kill | None) -> None:
        self.calls = dict.fromkeys(REGIONS, 0)
        self.saved = False
        self._at, wanted = (-1, REGIONS) if kill is None else (kill.at, (kill.region,))
        self._anywhere, self._inner = "anywhere" in wanted, [region for region in REGIONS[1:] if region in wanted]
        self._process = os.getpid()
        self._depth = {region: threading.local() for region in ("writing", "validating")}
        self._window = {"accumulating": False, "stepping": False}

    def on_before_zero_grad(self, *args: Any) -> None:
        self._window["accumulating"] = True

    def on_before_optimizer_step(self, *args: Any) -> None:
        self._window.update(accumulating=False, stepping=True)

    def on_train_batch_end(self, *args: Any) -> None:
        self._window["stepping"] = False

    @hookimpl(specname="on_checkpoint_saved")
    def _note(self) -> None:
        self.saved = True

    def watch(self) -> None:
        """Count from now on, in all threads."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: Any, kind: str, function: Any) -> None:
        if kind == "call" or kind == "c_call":
            if self._anywhere:
                self._count("anywhere")
            for region in self._inner:
                if self._window.get(region) or (region in self._depth and getattr(self._depth[region], "now", 0)):
                    self._count(region)
        if kind == "call" or kind == "return":
            if frame.f_code in _ENTERED:
                place = self._depth[_ENTERED[frame.f_code]]
                place.now = getattr(place, "now", 0) + (1 if kind == "call" else -1)
        elif self._inner and (function is os.fsync or function is os.replace):
            region = "fsync" if function is os.fsync else "rename"
            if region in self._inner:
                self._count(region)

    def _count(self, region: str) -> None:
        self.calls[region] += 1
        # Workers of a loader are children that count on.
        if self.calls[region] == self._at and os.getpid() == self._process:
            os.kill(self._process, signal.SIGKILL)


_ENTERED = {store.write.__code__: "writing", EvaluationLoop.run.__code__: "validating"}


def run(scheme: Scheme, folder: Path, kill: Kill | None = None, *, count: bool = False) -> Outcome:
    """Train in a forked child, from the newest whole checkpoint in ``folder`` if there is one.

    Args:
        scheme: what to train.
        folder: for the files.
        kill: where the child dies.
        count: count calls by region.
    """
    report = folder / "report.json"
    child = os.fork()
    if child == 0:
        try:
            _child(scheme, folder, kill, count, report)
        except BaseException as error:
            report.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL or kill is None:
            raise RuntimeError(f"{scheme.name}: the training died of signal {os.WTERMSIG(status)}")
        return Outcome(True)
    found = json.loads(report.read_text())
    if "error" in found:
        raise RuntimeError(f"{scheme.name}, {kill}: {found['error']}")
    return Outcome(False, **found)


def _child(scheme: Scheme, folder: Path, kill: Kill | None, count: bool, report: Path) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of a short life
    saver = ModelCheckpoint(dirpath=folder / "checkpoints", **scheme.saving)
    stopper = EarlyStopping(saver.monitor or "val", patience=99)
    regions = Regions(kill)
    if kill is not None or count:
        regions.watch()
    done = train(
        scheme.plan,
        regions,
        stopper,
        *scheme.average(),
        saver,
        ckpt_path="last" if list(folder.glob("checkpoints/*.ckpt")) else None,
        folder=folder,
        loggers=[CSVLogger(folder, name=None, version="log", flush_logs_every_n_steps=1000)],
        async_checkpoints=scheme.background,
        num_sanity_val_steps=0,
    )
    sys.setprofile(None)
    # The names of files, with versions because of those that a killed run left behind, are not those of the other run.
    kept = {name: value for name, value in saver.state_dict().items() if "path" not in name and name != "best_k_models"}
    kept["scores"] = list(saver.best_k_models.values())
    states = {**done.result["states"], saver.state_key: repr(kept).replace(str(folder), "…")}
    result = {**done.result, "states": states}
    report.write_text(json.dumps({"calls": regions.calls, "saved": regions.saved, "result": result}))


def rows(folder: Path) -> dict[str, str]:
    """What ``metrics.csv`` says of each step, the last word for each set of names."""
    file, found = folder / "log" / "metrics.csv", {}
    if file.exists():
        with file.open(newline="") as text:
            for row in csv.DictReader(text):
                values = {name: value for name, value in row.items() if value and name != "step"}
                found[f"{row['step']} {sorted(values)}"] = repr(sorted(values.items()))
    return found


@dataclass
class Trial:
    """One training that is killed and taken up until it comes to its end."""

    scheme: Scheme
    seed: int
    kills: list[Kill] = field(default_factory=list)
    differences: dict[str, Any] = field(default_factory=dict)

    def play(self, whole: Outcome, expected: dict[str, str]) -> None:
        """Kill at random places, up to three times, and compare with the training that was left alone."""
        chance = random.Random(self.seed)
        regions = [region for region in REGIONS if whole.calls[region]]
        planned: list[Kill] = []
        while not planned or (len(planned) < 3 and chance.random() < 0.6):
            # Half of the kills anywhere; the first one of a trial goes through the other regions in turn.
            region = "anywhere" if chance.random() < 0.5 else chance.choice(regions)
            region = region if planned else regions[self.seed % len(regions)]
            planned.append(Kill(chance.randint(1, whole.calls[region]), region))
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            folder = Path(name)
            outcome = Outcome(True)
            while outcome.killed:
                kill = planned.pop(0) if planned else None
                outcome = run(self.scheme, folder, kill)
                if outcome.killed and kill is not None:
                    self.kills.append(kill)
            self.differences = difference(outcome.result, whole.result)
            logged = difference(rows(folder), expected)
            if logged:
                self.differences["rows"] = logged
            left = [file.name for file in (folder / "checkpoints").iterdir() if file.name.endswith(".tmp")]
            if left and outcome.saved:
                self.differences["temporary files"] = left


def play(trials: int, seed: int) -> list[Trial]:
    """Play ``trials`` trials, two at a time, in turn with all schemes."""
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:  # import all there is to import, before the first fork
        log = CSVLogger(name, version="log")
        train(SCHEMES[1].plan, ModelCheckpoint(name), folder=Path(name), loggers=[log], num_sanity_val_steps=0)
    played = [Trial(SCHEMES[i % len(SCHEMES)], seed * 100_003 + i) for i in range(trials)]

    def left_alone(scheme: Scheme) -> tuple[Outcome, dict[str, str]]:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            return run(scheme, Path(name), count=True), rows(Path(name))

    with ThreadPoolExecutor(2) as threads:
        wholes = dict(zip((scheme.name for scheme in SCHEMES), threads.map(left_alone, SCHEMES), strict=True))
        list(threads.map(lambda trial: trial.play(*wholes[trial.scheme.name]), played))
    return played


def main() -> int:
    """Play trials and print what differed; the exit status says whether anything did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each trial")
    options = parser.parse_args()
    begun = time.perf_counter()
    played = play(options.trials, options.seed)
    bad = [trial for trial in played if trial.differences]
    for trial in played if options.json else bad:
        kills = [asdict(kill) for kill in trial.kills]
        print(
            json.dumps(
                {"scheme": trial.scheme.name, "seed": trial.seed, "kills": kills, "differences": trial.differences}
            )
        )
    regions = Counter(kill.region for trial in played for kill in trial.kills)
    print(
        f"{len(played)} trainings killed {regions.total()} times ({', '.join(f'{n} {name}' for name, n in regions.items())}) "
        f"in {time.perf_counter() - begun:.0f} s: {len(bad)} ended differently",
        file=sys.stderr,
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
