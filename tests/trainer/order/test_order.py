"""The loop calls its hooks in Lightning's order, with Lightning's counters, metrics and weights; event for event."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.order.compare import differences
from tests.trainer.order.recorder import Library, fold, run, unfold
from tests.trainer.order.scenarios import FAMILIES, Scenario, scenarios

DATA = Path(__file__).parent / "data"
#: Where hookbus differs on purpose: reason, the number of words that are equal, what comes then, and the state at the end.
INTENDED: dict[str, Any] = json.loads((DATA / "intended.json").read_text())


def _cases() -> Iterator[Any]:
    for family in FAMILIES:
        for name, scenario in scenarios(family).items():
            yield pytest.param(family, name, scenario, id=f"{family}-{name}")


@pytest.fixture(scope="module")
def library() -> Library:
    return Library("hookbus")


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    return {family: json.loads((DATA / f"{family}.json").read_text())["scenarios"] for family in FAMILIES}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, no plugins of the developer's, and the signal handlers as they were."""
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(("family", "name", "scenario"), _cases())
def test_order(
    family: str, name: str, scenario: Scenario, library: Library, recorded: dict[str, Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(library, scenario, str(tmp_path))
    wanted = recorded[family][name]
    if name in INTENDED:
        wanted = _with_intended(wanted, INTENDED[name])
    found = differences(wanted, {"order": fold(result["words"]), "final": result["final"]})
    assert not found, "\n".join(found)


def _with_intended(wanted: dict[str, Any], intended: dict[str, Any]) -> dict[str, Any]:
    words = unfold(wanted["order"])[: intended["equal_words"]] + unfold(intended["then"])
    return {"order": fold(words), "final": {**wanted["final"], **intended["final"]}}


def test_every_recording_has_its_scenario(recorded: dict[str, Any]) -> None:
    for family in FAMILIES:
        assert recorded[family].keys() == scenarios(family).keys()
    assert INTENDED.keys() <= {name for family in FAMILIES for name in recorded[family]}


def test_intended_differences_say_why() -> None:
    for name, intended in INTENDED.items():
        assert len(intended["reason"].split()) > 3, name


def test_folding_loses_nothing() -> None:
    words = [">fit", "@train/0/0", "callback.setup[fit]", "module.setup[fit]", "a.on_train_start", "callback.on_train_start"]
    words += ["module.on_before_batch_transfer", "module.transfer_batch_to_device", "module.on_after_batch_transfer"]
    words += ["callback.on_train_batch_start[0]", "callback.on_train_batch_start[0]", "logger.log_metrics[a,b|3]", "<ValueError"]
    assert unfold(fold(words)) == words
