"""Several callbacks at work on the same weights lead to what they lead to in Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.callbacks.batch_b import RECORDED, agree, observed, recorded_cases


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return observed("combined", tmp_path_factory.mktemp("combined"))


@recorded_cases("combined")
def test_does_as_lightning(case: str, found: dict[str, Any], tmp_path: Path) -> None:
    agree(found[case], RECORDED["combined"][case])
