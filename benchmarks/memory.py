"""How much memory a loop takes beyond a raw one, and whether it grows with the steps: each run in a process of its own.

    python benchmarks/memory.py [--json FILE] [--steps N]

The figure is the peak resident set of the process in MB. ``--steps`` is the long run (100,000 by default, with five logged
metrics per step, which takes minutes); the short one takes a hundredth of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

RUN = """
import logging, os, resource, sys, tempfile, warnings
sys.path.insert(0, {folder!r})
os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
from step_overhead import Rows, lightning_shaped, raw
which, steps = sys.argv[1], int(sys.argv[2])
class Few(Rows):
    def __init__(self): super().__init__(64)
    def __len__(self): return steps
    def __getitem__(self, index): return self.rows[index % 64]
loader = DataLoader(Few(), batch_size=None)
if which == "raw":
    raw(loader, None)
else:
    import importlib
    lightning_shaped(importlib.import_module(which))(loader, (0, 5, False))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
LOOPS = {"raw": "raw", "hookbus": "hookbus", "Lightning": "lightning.pytorch"}


def peak(loop: str, steps: int) -> float | None:
    """MB; None if the library is not installed."""
    code = RUN.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code, loop, str(steps)], capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout.split()[-1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args(argv)
    short = max(1, arguments.steps // 100)
    print(f"Python {platform.python_version()}, {platform.machine()}; peak resident set in MB")
    print(f"{'':12}{f'{short} steps':>16}{f'{arguments.steps} steps':>16}{'over raw':>10}")
    table, base = [], 0.0
    for name, loop in LOOPS.items():
        few = peak(loop, short)
        if few is None:
            continue
        # Lightning at this number of steps takes most of an hour on a slow machine: its growth is left out.
        many = peak(loop, arguments.steps) if name != "Lightning" else None
        base = base or few
        table.append({"loop": name, "short_mb": few, "long_mb": many, "over_raw_mb": few - base})
        print(f"{name:12}{few:>16.1f}{f'{many:.1f}' if many else '-':>16}{few - base:>10.1f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"python": sys.version, "steps": arguments.steps, "rows": table}, indent=1)
        )


if __name__ == "__main__":
    main()
