"""Checkpoints of Lightning 2.6.6 in hookbus, and of hookbus in Lightning; see ``check_with_lightning.py`` for the latter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.both import classes, fit, outcome

import hookbus

HERE = Path(__file__).parent / "data"
RECORDED = json.loads((HERE / "lightning.json").read_text())


def agrees(got: Any, wanted: Any) -> bool:
    """Whether two outcomes are the same but for rounding, which differs between processors."""
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(agrees(got[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(agrees, got, wanted))
    return bool(got == pytest.approx(wanted, rel=1e-4, abs=1e-6)) if isinstance(wanted, float) else bool(got == wanted)


def test_the_whole_training_is_the_same(tmp_path: Path) -> None:
    assert agrees(outcome(fit(hookbus, tmp_path)), RECORDED["straight"])


def test_a_checkpoint_between_epochs_goes_on_as_there(tmp_path: Path) -> None:
    assert agrees(outcome(fit(hookbus, tmp_path, ckpt_path=HERE / "lightning-epoch.ckpt")), RECORDED["epoch"])


def test_a_checkpoint_inside_an_epoch_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Lightning itself begins the data anew there; the run that was not interrupted is what counts."""
    found = outcome(fit(hookbus, tmp_path, ckpt_path=HERE / "lightning-step.ckpt"))
    assert agrees(found, {**RECORDED["straight"], "asked": 2, "restored": 8, "got": [1, "a"]})
    assert not agrees(RECORDED["step"]["weights"], RECORDED["straight"]["weights"])


def test_a_module_and_a_data_module_are_made_from_it() -> None:
    net, data, _ = classes(hookbus)
    made = net.load_from_checkpoint(HERE / "lightning-epoch.ckpt", rate=0.5)
    assert (made.hparams.width, made.hparams.rate, made.got) == (3, 0.5, [1, "a"])
    saved = torch.load(HERE / "lightning-epoch.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in made.state_dict().items())
    assert data.load_from_checkpoint(HERE / "lightning-epoch.ckpt").hparams.seed == 3


def test_the_keys_are_those_of_lightning(tmp_path: Path) -> None:
    """All that Lightning writes is there, nested keys included, with values of the same types."""
    fit(hookbus, tmp_path, epochs=2)
    ours = torch.load(tmp_path / "epoch=1-step=10.ckpt", weights_only=True)
    theirs = torch.load(HERE / "lightning-epoch.ckpt", weights_only=True)
    assert ours.keys() - theirs.keys() == {"hookbus"}
    assert list(differences(theirs, ours)) == []


def differences(theirs: Any, ours: Any, place: str = "") -> Any:
    """What a reader of Lightning's would miss; its counts of scheduler steps are read by nobody."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if key not in ours:
                yield f"{place}/{key} is missing"
            else:
                yield from differences(value, ours[key], f"{place}/{key}")
    elif type(theirs) is not type(ours) or (counts(place) and theirs != ours):
        yield f"{place} is {ours!r}, and {theirs!r} in Lightning"


def counts(place: str) -> bool:
    return place.startswith("/loops/") and "scheduler_progress" not in place


def test_lightning_takes_up_what_hookbus_saved() -> None:
    """Where Lightning is installed: in a process of its own, as it must not meet names that other tests put in place."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("Lightning is not installed; tests/checkpoint/check_with_lightning.py says how to run this by hand")
    root = Path(__file__).parents[2]
    command = [sys.executable, root / "tests" / "checkpoint" / "check_with_lightning.py"]
    paths = os.pathsep.join([str(root), str(Path(hookbus.__file__).parents[1])])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
