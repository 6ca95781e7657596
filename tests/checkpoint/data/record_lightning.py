"""Records checkpoints of Lightning, and what Lightning itself makes of them.

    PYTHONPATH=. python tests/checkpoint/data/record_lightning.py

It needs Lightning 2.6.6 and writes, beside itself, ``lightning-epoch.ckpt`` (after epoch 1), ``lightning-step.ckpt`` (inside
epoch 1) and ``lightning.json``: the outcomes of the whole training and of those that went on from the two files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import lightning.pytorch as lightning
import torch
from tests.checkpoint.both import fit, outcome

HERE = Path(__file__).parent


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {"straight": outcome(fit(lightning, folder / "epochs"))}
        fit(lightning, folder / "steps", every=4)
        for moment, path in {"epoch": "epochs/epoch=1-step=10.ckpt", "step": "steps/epoch=1-step=8.ckpt"}.items():
            file = HERE / f"lightning-{moment}.ckpt"
            shutil.copyfile(folder / path, file)
            found[moment] = outcome(fit(lightning, folder / moment, ckpt_path=file))
    found["versions"] = {"lightning": lightning.__version__, "torch": torch.__version__}
    (HERE / "lightning.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
