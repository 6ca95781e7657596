"""Trainings that are killed at a random place by SIGKILL and taken up again: what must come out is known.

One process imports torch once and then forks a child for each training, so that a trial costs the training and little
more. A child counts the calls of Python functions and built-ins, in all threads, and kills itself at a given one: any
place between two of them can be reached, also within the writing of a checkpoint.

::

    python -m tests.checkpoint.faults --trials 300 --seed 1        # make soak
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.checkpoint.world import Plan, difference, train

from hookbus.callbacks import EarlyStopping, ModelCheckpoint
from hookbus.checkpoint import store


@dataclass(frozen=True)
class Scheme:
    """A training and how it is saved.

    Attributes:
        plan: the training.
        saving: arguments of ModelCheckpoint.
        background: whether checkpoints are written in the background.
    """

    name: str
    plan: Plan
    saving: dict[str, Any] = field(default_factory=dict)
    background: bool = False


SCHEMES = [
    Scheme("every step", Plan(epochs=2, batches=4), {"every_n_train_steps": 1, "save_top_k": -1}),
    Scheme(
        "windows",
        Plan(epochs=2, accumulate=3, val_interval=2, scheduler="plateau by step"),
        {"every_n_train_steps": 2, "save_last": True},
    ),
    Scheme(
        "validations",
        Plan(epochs=3, accumulate=2, val_interval=0.5, scheduler="plateau"),
        {"monitor": "val", "save_last": True},
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
        Plan(epochs=2, manual=True, accumulate=4, val_interval=3),
        {"every_n_train_steps": 1, "save_last": True},
    ),
    Scheme(
        "steps", Plan(max_steps=9, batches=4, val_every_epochs=None, val_interval=3), {"every_n_train_steps": 2}, True
    ),
]


@dataclass(frozen=True)
class Kill:
    """Where a child dies: at the ``at``-th call of all, or of those within the writing of a checkpoint."""

    at: int
    writing: bool


@dataclass(frozen=True)
class Outcome:
    """What became of a child.

    Attributes:
        killed: whether it was killed.
        calls, writing: how many calls it made, in all and while it wrote checkpoints; only if it came to its end.
        result: at what the training arrived.
    """

    killed: bool
    calls: int = 0
    writing: int = 0
    result: dict[str, Any] = field(default_factory=dict)


def run(scheme: Scheme, folder: Path, kill: Kill | None = None) -> Outcome:
    """Train in a forked child, from the newest whole checkpoint in ``folder`` if there is one."""
    report = folder / "report.json"
    child = os.fork()
    if child == 0:
        try:
            _child(scheme, folder, kill, report)
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


def _child(scheme: Scheme, folder: Path, kill: Kill | None, report: Path) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of a short life
    saver = ModelCheckpoint(dirpath=folder / "checkpoints", **scheme.saving)
    stopper = EarlyStopping("val", patience=99)
    counts = _count_calls(kill)
    done = train(
        scheme.plan,
        stopper,
        saver,
        ckpt_path="last" if list(folder.glob("checkpoints/*.ckpt")) else None,
        folder=folder,
        rows=folder / "rows.jsonl",
        async_checkpoints=scheme.background,
        num_sanity_val_steps=0,
    )
    sys.setprofile(None)
    states = {"stopper": stopper.state_dict(), "saver": saver.state_dict()}
    result = {**done.result, "states": repr(states).replace(str(folder), "…")}
    report.write_text(json.dumps({"calls": counts[0], "writing": counts[1], "result": result}))


def _count_calls(kill: Kill | None) -> list[int]:
    """Count from now on, all calls and those within ``store.write``, and die at the one that ``kill`` says."""
    counts, inside, process = [0, 0], threading.local(), os.getpid()
    write = store.write.__code__
    at = kill.at if kill is not None else -1
    index = 1 if kill is not None and kill.writing else 0

    def event(frame: Any, kind: str, _: Any) -> None:
        if frame.f_code is write:
            if kind == "call":
                inside.depth = getattr(inside, "depth", 0) + 1
            elif kind == "return":
                inside.depth -= 1
        if kind not in ("call", "c_call"):
            return
        counts[0] += 1
        counts[1] += getattr(inside, "depth", 0) > 0
        if counts[index] == at and os.getpid() == process:  # workers of a loader are children that count on
            os.kill(process, signal.SIGKILL)

    threading.setprofile(event)
    sys.setprofile(event)
    return counts


def rows(folder: Path) -> dict[str, str]:
    """What was logged, the last word for each step and set of names."""
    file = folder / "rows.jsonl"
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        step, metrics = json.loads(line)
        found[f"{step} {sorted(metrics)}"] = repr(metrics)
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
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            folder = Path(name)
            outcome = Outcome(True)
            while outcome.killed:
                kill = None
                if not self.kills or (len(self.kills) < 3 and chance.random() < 0.4):
                    writing = chance.random() < 0.4
                    kill = Kill(chance.randint(1, max(1, whole.writing if writing else whole.calls)), writing)
                    self.kills.append(kill)
                outcome = run(self.scheme, folder, kill)
            self.differences = difference(outcome.result, whole.result)
            logged = difference(rows(folder), expected)
            if logged:
                self.differences["rows"] = logged
            left = [file.name for file in (folder / "checkpoints").iterdir() if file.name.endswith(".tmp")]
            if left and outcome.writing:
                self.differences["temporary files"] = left


def play(trials: int, seed: int) -> list[Trial]:
    """Play ``trials`` trials, two at a time, in turn with all schemes."""
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:  # import all there is to import, before the first fork
        train(SCHEMES[1].plan, ModelCheckpoint(name), folder=Path(name), num_sanity_val_steps=0)
    wholes = {}
    for scheme in SCHEMES:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            wholes[scheme.name] = run(scheme, Path(name)), rows(Path(name))
    played = [Trial(SCHEMES[i % len(SCHEMES)], seed * 100_003 + i) for i in range(trials)]
    with ThreadPoolExecutor(2) as threads:
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
    kills = [kill for trial in played for kill in trial.kills]
    print(
        f"{len(played)} trainings killed {len(kills)} times, {sum(kill.writing for kill in kills)} of them while a checkpoint "
        f"was written, in {time.perf_counter() - begun:.0f} s: {len(bad)} ended differently",
        file=sys.stderr,
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
