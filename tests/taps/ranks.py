"""Two processes on one machine that meet in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def printed_by_both(module: str, folder: Path) -> list[Any]:
    """What each of two ranks prints last, which is JSON.

    Args:
        module: is run in each, with its rank and the file where they meet.
        folder: for that file.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(folder / "meeting")],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=150) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], printed
    return [json.loads(out.splitlines()[-1]) for out, _ in printed]
