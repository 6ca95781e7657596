"""Record what Lightning's callbacks do in the scenarios beside this file, as the measure for hookbus's own.

::

    python tests/callbacks/data/record_batch_b.py [SCENARIO ...]        # batch_b.json, anew or these only

It needs an environment with Lightning 2.6.6; hookbus need not be there.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

import torch  # noqa: E402
from tests.callbacks.data.scenarios_batch_a import Library  # noqa: E402
from tests.callbacks.data.scenarios_batch_b import SCENARIOS  # noqa: E402

FILE = HERE / "batch_b.json"


def main(names: list[str]) -> None:
    """Run the scenarios of these names, by default all, and write what they show."""
    torch.set_num_threads(1)
    library = Library("lightning.pytorch")
    for name in list(logging.root.manager.loggerDict):
        if "lightning" in name:
            logging.getLogger(name).setLevel(logging.ERROR)
    found = json.loads(FILE.read_text()) if names and FILE.exists() else {}
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = SCENARIOS[name](library, Path(folder))
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
