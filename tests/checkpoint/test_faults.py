"""Trainings that are killed by SIGKILL, anywhere, and taken up again: see ``faults.py``, of which this is a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.checkpoint.faults import REGIONS, SCHEMES

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forked")
def test_killed_anywhere_and_taken_up_ends_the_same() -> None:
    """In a process of its own: one that has threads must not fork."""
    command = [sys.executable, "-m", "tests.checkpoint.faults", "--trials", "24", "--json"]
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert [trial for trial in trials if trial["differences"]] == [], done.stderr
    assert done.returncode == 0, done.stderr
    assert {trial["scheme"] for trial in trials} == {scheme.name for scheme in SCHEMES}
    kills = Counter(kill["region"] for trial in trials for kill in trial["kills"])
    assert kills.total() >= 30
    assert kills.keys() == set(REGIONS)
