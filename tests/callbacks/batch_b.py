"""What the tests of this folder share that compare with ``data/batch_b.json``: running a scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.callbacks.batch_a import HOOKBUS, agree
from tests.callbacks.data.scenarios_batch_b import SCENARIOS

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "batch_b.json").read_text(encoding="utf-8"))

__all__ = ["HOOKBUS", "RECORDED", "agree", "observed", "recorded_cases"]


def observed(name: str, folder: Path) -> dict[str, Any]:
    """What the scenario shows under hookbus, as JSON holds it."""
    found: dict[str, Any] = json.loads(json.dumps(SCENARIOS[name](HOOKBUS, folder)))
    return found


def recorded_cases(name: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a scenario."""
    return pytest.mark.parametrize("case", sorted(RECORDED[name]))
