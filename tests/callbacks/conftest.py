"""The scenarios that were recorded with Lightning, to be run with hookbus."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


def load_recorder() -> ModuleType:
    """The script ``data/record_lightning.py`` as a module."""
    spec = importlib.util.spec_from_file_location("record_lightning", DATA / "record_lightning.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recorder() -> ModuleType:
    return load_recorder()


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """What Lightning did."""
    return json.loads((DATA / "lightning.json").read_text(encoding="utf-8"))


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """hookbus, with what it writes by default in a temporary folder."""
    import hookbus

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    return hookbus
