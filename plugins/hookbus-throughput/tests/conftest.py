"""The tests see the sources beside them, also where the plugin is not installed, and no settings of hookbus."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SOURCES = str(Path(__file__).parents[1] / "src")

if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)


@pytest.fixture(autouse=True)
def _no_plugin_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOOKBUS_")]:
        monkeypatch.delenv(name)
