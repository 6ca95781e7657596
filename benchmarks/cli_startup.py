"""How long the listing commands take, against ``pytest --version``, and what a scan of 1,000 distributions costs.

Prints medians of wall times of whole processes, and ratios. Run it with the Python of an environment that has hookbus
and pytest::

    python benchmarks/cli_startup.py --repeats 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
BARE_SCAN = "import importlib_metadata; list(importlib_metadata.entry_points())"
LIMITS = {"hookbus --version": 1.5, "hookbus plugins": 1.5, "hookbus hooks": 1.5, "hookbus plugins, 1,000": 2.0}


def made_up_distributions(root: Path, count: int) -> None:
    """Write ``count`` distributions, every third with entry points of some other group, one with ours."""
    for i in range(count):
        info = root / f"made_up_{i}-1.{i}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: made-up-{i}\nVersion: 1.{i}\n" + "x" * 4000)
        if i % 3 == 0:
            (info / "entry_points.txt").write_text(f"[console_scripts]\ncommand{i} = made_up_{i}:main\n")
    (info / "entry_points.txt").write_text("[hookbus]\nlast = made_up\n")


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """The wall time of one process."""
    start = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    plain = {**os.environ, "PYTHONPATH": str(SOURCE)}
    hookbus, python = [sys.executable, "-m", "hookbus"], sys.executable
    with tempfile.TemporaryDirectory() as folder:
        made_up_distributions(Path(folder), 1000)
        crowded = {**plain, "PYTHONPATH": os.pathsep.join([str(SOURCE), folder])}
        commands = {
            "python -c pass": ([python, "-c", "pass"], plain),
            "pytest --version": ([python, "-m", "pytest", "--version"], plain),
            "hookbus --version": ([*hookbus, "--version"], plain),
            "hookbus plugins": ([*hookbus, "plugins"], plain),
            "hookbus hooks": ([*hookbus, "hooks"], plain),
            "bare scan, 1,000": ([python, "-c", BARE_SCAN], crowded),
            "hookbus plugins, 1,000": ([*hookbus, "plugins"], crowded),
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repeats):  # interleaved, so that a busy moment meets all of them
            for name, (arguments, environment) in commands.items():
                times[name].append(seconds(arguments, environment))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        base = "bare scan, 1,000" if name.endswith("1,000") else "pytest --version"
        limit = f"   (limit {LIMITS[name]})" if name in LIMITS else ""
        print(f"{name:24} {1000 * median:6.0f} ms   {median / medians[base]:4.2f} x {base}{limit}")


if __name__ == "__main__":
    main()
