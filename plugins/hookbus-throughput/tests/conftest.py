"""The tests see the sources beside them, also where the plugin is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = str(Path(__file__).parents[1] / "src")

if SOURCES not in sys.path:
    sys.path.insert(0, SOURCES)
