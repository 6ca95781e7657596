"""The loop calls its hooks in Lightning's order, with Lightning's counters, metrics and weights: word for word."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.order.compare import differences, edited, edits
from tests.trainer.order.intended import REASONS
from tests.trainer.order.recorder import Library, fold, run, unfold
from tests.trainer.order.scenarios import FAMILIES, Scenario, scenarios

DATA = Path(__file__).parent / "data"
#: Where hookbus differs on purpose: the reason, and what is other.
INTENDED: dict[str, Any] = json.loads((DATA / "intended.json").read_text())
#: Where hookbus differs and should not; each comes off this list when it is mended.
PENDING: dict[str, str] = {}


def _cases() -> Iterator[Any]:
    for family in FAMILIES:
        for name, scenario in scenarios(family).items():
            marks = [pytest.mark.xfail(reason=PENDING[name], strict=True)] if name in PENDING else []
            yield pytest.param(family, name, scenario, id=f"{family}-{name}", marks=marks)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library("hookbus")


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    return {family: json.loads((DATA / f"{family}.json").read_text())["scenarios"] for family in FAMILIES}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, no discovered plugins, and the signal handlers as they were."""
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(("family", "name", "scenario"), list(_cases()))
def test_order(
    family: str, name: str, scenario: Scenario, library: Library, recorded: dict[str, Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(library, scenario, str(tmp_path))
    wanted = recorded[family][name]
    if name in INTENDED:
        wanted = edited(wanted, INTENDED[name])
    found = differences(wanted, {"order": fold(result["words"]), "final": result["final"]})
    assert not found, "\n".join(found)


def test_every_recording_has_its_scenario(recorded: dict[str, Any]) -> None:
    for family in FAMILIES:
        assert recorded[family].keys() == scenarios(family).keys()
    names = [name for family in FAMILIES for name in recorded[family]]
    assert len(names) == len(set(names))
    assert {*INTENDED, *PENDING} <= set(names)


def test_intended_differences_are_those_that_have_a_reason() -> None:
    assert {name: changes["reason"] for name, changes in INTENDED.items()} == REASONS


def test_folding_loses_nothing() -> None:
    words = [">fit", "@train/0/0", "callback.setup[fit]", "module.setup[fit]", "a.on_train_start"]
    words += ["callback.on_train_start", "module.on_before_batch_transfer", "module.transfer_batch_to_device"]
    words += ["module.on_after_batch_transfer", "callback.on_train_batch_start[0]", "callback.on_train_batch_start[0]"]
    words += ["logger.log_metrics[a,b|3]", "<ValueError"]
    assert unfold(fold(words)) == words


def test_edits_lead_from_one_recording_to_the_other() -> None:
    one = {"order": fold([">fit", "a.x", "a.y", "a.z"]), "final": {"epoch": 1, "lr": [0.5]}}
    other = {"order": fold([">fit", "a.y", "a.q", "a.z", "<ValueError"]), "final": {"epoch": 2}}
    assert edited(one, edits(one, other)) == other
    assert differences(one, one) == []
    assert differences(one, other)[0].startswith("word 1: a.y, wanted a.x")
