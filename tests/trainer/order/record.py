"""Record the scenarios of this folder, under Lightning to have something to compare with, or under hookbus to look at.

::

    python tests/trainer/order/record.py --lib pytorch_lightning                  # data/<family>.json, anew
    python tests/trainer/order/record.py --lib hookbus --compare                  # what differs
    python tests/trainer/order/record.py --lib hookbus --show fit_twice           # one recording, to read

The first needs an environment that has Lightning 2.6.6; hookbus needs none.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

import torch  # noqa: E402

from tests.trainer.order.recorder import Library, fold, run  # noqa: E402
from tests.trainer.order.scenarios import FAMILIES, Scenario, scenarios  # noqa: E402


def main() -> int:
    """Record, compare or show; the number of differences is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default="pytorch_lightning", help="import name of the library to run")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one (repeatable)")
    parser.add_argument("--compare", action="store_true", help="compare with the data instead of writing them")
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
    differences = 0
    for family in options.family or FAMILIES:
        started = time.perf_counter()
        found = {name: record(library, scenario) for name, scenario in scenarios(family).items()}
        file = HERE / "data" / f"{family}.json"
        print(f"{family}: {len(found)} scenarios in {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if options.compare:
            stored = json.loads(file.read_text())["scenarios"]
            for name, result in found.items():
                for line in compare(stored[name], result):
                    print(f"{name:50} {line}")
                    differences += 1
        else:
            head = {"recorded": f"{library.name} {library.version}, torch {torch.__version__}"}
            file.write_text(json.dumps(head)[:-1] + ', "scenarios": ' + _pretty(found) + "}\n")
    return min(differences, 1)


def record(library: Library, scenario: Scenario) -> dict[str, Any]:
    """One scenario in the form in which it is stored: lines of words, and the state at the end."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(library, scenario, folder)
    return {"order": fold(result["words"]), "final": result["final"]}


def compare(wanted: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """What differs, in words; nothing if nothing does."""
    from tests.trainer.order.compare import differences

    return differences(wanted, got)


def _pretty(found: dict[str, Any]) -> str:
    """JSON with one line for each line of a recording."""
    parts = []
    for name, result in found.items():
        lines = ",\n    ".join(json.dumps(line) for line in result["order"])
        parts.append(f'"{name}": {{"order": [\n    {lines}\n  ],\n  "final": {json.dumps(result["final"])}}}')
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
