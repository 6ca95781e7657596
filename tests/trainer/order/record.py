"""Record the scenarios of this folder, under Lightning to have something to compare with, or under hookbus to look at.

::

    python tests/trainer/order/record.py --lib pytorch_lightning            # data/<family>.json, anew
    python tests/trainer/order/record.py --lib hookbus --compare            # what differs
    python tests/trainer/order/record.py --lib hookbus --show fit_twice     # one recording, to read
    python tests/trainer/order/record.py --lib hookbus --intended           # data/intended.json, anew

The first needs an environment that has Lightning 2.6.6; hookbus needs none. The last stores how hookbus differs where
``intended.py`` says that it may; look at what changed before it is committed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
sys.path.insert(0, str(Path(__file__).parents[3]))

import torch  # noqa: E402
from tests.trainer.order.compare import differences, edited, edits  # noqa: E402
from tests.trainer.order.intended import REASONS  # noqa: E402
from tests.trainer.order.recorder import Library, fold, run  # noqa: E402
from tests.trainer.order.scenarios import FAMILIES, Scenario, scenarios  # noqa: E402


def main() -> int:
    """Do what was asked for; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default="pytorch_lightning", help="import name of the library to run")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one (repeatable)")
    parser.add_argument("--compare", action="store_true", help="compare with the data instead of writing them")
    parser.add_argument("--intended", action="store_true", help="store the intended differences")
    parser.add_argument("--show", metavar="NAME", help="print one recording instead")
    options = parser.parse_args()
    os.environ["HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    torch.set_num_threads(1)
    library = Library(options.lib)
    for name in list(logging.root.manager.loggerDict):
        if "lightning" in name:
            logging.getLogger(name).setLevel(logging.ERROR)
    if options.show:
        scenario = next(s[options.show] for f in FAMILIES if options.show in (s := scenarios(f)))
        print(_pretty({options.show: record(library, scenario)}))
        return 0
    if options.intended:
        return write_intended(library)
    families = options.family or FAMILIES
    return compare(library, families) if options.compare else write(library, families)


def record(library: Library, scenario: Scenario) -> dict[str, Any]:
    """One scenario in the form in which it is stored: lines of words, and the state at the end."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(library, scenario, folder)
    return {"order": fold(result["words"]), "final": result["final"]}


def write(library: Library, families: Sequence[str]) -> int:
    """Record families anew."""
    for family in families:
        started = time.perf_counter()
        found = {name: record(library, scenario) for name, scenario in scenarios(family).items()}
        head = json.dumps({"recorded": f"{library.name} {library.version}, torch {torch.__version__}"})
        (DATA / f"{family}.json").write_text(f'{head[:-1]}, "scenarios": {_pretty(found)}}}\n')
        print(f"{family}: {len(found)} scenarios in {time.perf_counter() - started:.1f} s")
    return 0


def compare(library: Library, families: Sequence[str]) -> int:
    """Print what differs from the data, intended differences taken into account."""
    intended = json.loads((DATA / "intended.json").read_text())
    found = 0
    for family in families:
        stored = json.loads((DATA / f"{family}.json").read_text())["scenarios"]
        for name, scenario in scenarios(family).items():
            wanted = edited(stored[name], intended[name]) if name in intended else stored[name]
            for line in differences(wanted, record(library, scenario)):
                print(f"{name:50} {line}")
                found += 1
    return min(found, 1)


def write_intended(library: Library) -> int:
    """Store how the library differs in the scenarios for which there is a reason."""
    found = {}
    for family in FAMILIES:
        stored = json.loads((DATA / f"{family}.json").read_text())["scenarios"]
        for name, scenario in scenarios(family).items():
            if name in REASONS:
                found[name] = {"reason": REASONS[name], **edits(stored[name], record(library, scenario))}
    (DATA / "intended.json").write_text(json.dumps(found, indent=1) + "\n")
    idle = [name for name, changes in found.items() if not (changes["words"] or changes["final"] or changes["gone"])]
    print("no difference any more:", ", ".join(idle) or "none")
    return 0


def _pretty(found: dict[str, Any]) -> str:
    """JSON with one line for each line of a recording."""
    parts = []
    for name, result in found.items():
        lines = ",\n    ".join(json.dumps(line) for line in result["order"])
        parts.append(f'"{name}": {{"order": [\n    {lines}\n  ],\n  "final": {json.dumps(result["final"])}}}')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
