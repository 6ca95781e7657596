"""Constructors, import names and state keys are those of Lightning 2.6.6, but for differences that are listed here."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.data.record_signatures import parameters_of, state_keys

import hookbus.callbacks
from hookbus.aliases.names import served

DATA: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "signatures.json").read_text(encoding="utf-8"))

#: What is different on purpose, and why. Arguments that Lightning does not have are keyword-only.
DIFFERENT = {
    "GradientAccumulationScheduler": "`by`: a schedule by optimiser steps, for trainings of one epoch",
    "LambdaCallback": "keyword-only: the hooks are listed in one place, in the order of a run, and nobody tells 37 functions "
    "apart by position",
    "LearningRateFinder": "`plot_path`: a PNG of the curve",
    "ThroughputMonitor": "`**kwargs` are spelled out: those that Throughput takes from a user",
    "Timer": "`per_run`: a limit for each call of fit",
}


@pytest.mark.parametrize("name", sorted(DATA["signatures"]))
def test_arguments_and_defaults_are_lightnings(name: str) -> None:
    theirs, ours = DATA["signatures"][name], parameters_of(getattr(hookbus.callbacks, name))
    assert (ours != theirs) == (name in DIFFERENT)
    if name in DIFFERENT:
        names = [parameter[0] for parameter in theirs if parameter[1] != "VAR_KEYWORD"]
        assert [p[0] for p in ours if p[0] in names] == names or name == "LambdaCallback"
        assert {p[0] for p in ours} >= set(names)
        assert all(kind == "KEYWORD_ONLY" for parameter, kind, _ in ours if parameter not in names)


@pytest.mark.parametrize("root", ["lightning.pytorch", "pytorch_lightning"])
def test_import_names_are_lightnings(root: str) -> None:
    def homes() -> Iterator[tuple[str, str]]:
        for name, module in DATA["modules"].items():
            yield name, f"{root}.callbacks"
            yield name, module.replace("lightning.pytorch", root)

    for name, module in homes():
        home, own_name = served()[module][name]
        assert getattr(importlib.import_module(home), own_name) is getattr(hookbus.callbacks, name)


def test_state_keys_are_lightnings(tmp_path: Path) -> None:
    assert state_keys(hookbus.callbacks, str(tmp_path)) == DATA["state_keys"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("lightning.pytorch.callbacks.finetuning", "multiplicative"),
        ("lightning.pytorch.callbacks.early_stopping", "EarlyStoppingReason"),
        ("lightning.pytorch.callbacks.prediction_writer", "WriteInterval"),
        ("lightning.pytorch.callbacks.progress.rich_progress", "RichProgressBarTheme"),
        ("lightning.pytorch.callbacks.progress.tqdm_progress", "Tqdm"),
        ("lightning.pytorch.callbacks.timer", "Interval"),
        ("lightning.fabric.utilities.spike", "TrainingSpikeException"),
    ],
)
def test_names_beside_the_callbacks_that_scripts_import_are_there(module: str, name: str) -> None:
    home, own_name = served()[module][name]
    assert callable(getattr(importlib.import_module(home), own_name))
