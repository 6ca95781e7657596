"""What the tests of this folder share that compare with ``data/batch_a.json``: running a scenario, and comparing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.data.scenarios_batch_a import SCENARIOS, Library

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "batch_a.json").read_text(encoding="utf-8"))
HOOKBUS = Library("hookbus")


def observed(name: str, folder: Path) -> Any:
    """What the scenario shows under hookbus, as JSON holds it."""
    return json.loads(json.dumps(SCENARIOS[name](HOOKBUS, folder)))


def agree(found: Any, expected: Any, where: str = "") -> None:
    """Both are the same, floats to 1e-6, of their size where that is greater than 1."""
    if isinstance(expected, dict):
        assert sorted(found) == sorted(expected), where
        for key, value in expected.items():
            agree(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), f"{where}: {found} instead of {expected}"
        for index, value in enumerate(expected):
            agree(found[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), where
    else:
        assert found == expected, where
