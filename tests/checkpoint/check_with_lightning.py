"""Whether Lightning takes up what hookbus saved, run where both are installed.

    PYTHONPATH=.:src python tests/checkpoint/check_with_lightning.py

Prints one line per check and exits with 1 if one fails. ``test_lightning.py`` calls it where Lightning is installed.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as lightning
import torch
from tests.checkpoint.both import BATCHES, EPOCHS, classes, fit, outcome

import hookbus

RECORDED = json.loads((Path(__file__).parent / "data" / "lightning.json").read_text())


def checks(folder: Path) -> Iterator[tuple[str, bool]]:
    """What was checked, and whether it held."""
    straight = outcome(fit(lightning, folder / "lightning"))
    fit(hookbus, folder / "epochs")
    fit(hookbus, folder / "steps", every=4)
    fit(lightning, folder / "theirs", every=4)
    epoch, step = folder / "epochs" / "epoch=1-step=10.ckpt", folder / "steps" / "epoch=1-step=8.ckpt"

    net, data, _ = classes(lightning)
    made = net.load_from_checkpoint(epoch, weights_only=True)
    saved = torch.load(epoch, weights_only=True)["state_dict"]
    same = all(torch.equal(value, saved[name]) for name, value in made.state_dict().items())
    yield (
        "LightningModule.load_from_checkpoint(weights_only=True): weights and hyper-parameters",
        same and made.hparams.width == 3,
    )
    yield "LightningDataModule.load_from_checkpoint", data.load_from_checkpoint(epoch).hparams.seed == 3

    for weights_only in (None, True):
        found = outcome(fit(lightning, folder / f"a{weights_only}", ckpt_path=epoch, weights_only=weights_only))
        wanted = {**straight, "asked": 2, "restored": 2 * BATCHES, "got": [1, "a"]}
        yield (
            f"fit(ckpt_path=between epochs, weights_only={weights_only}) ends as if nothing had happened",
            found == wanted,
        )

    theirs = outcome(fit(lightning, folder / "b", ckpt_path=folder / "theirs" / "epoch=1-step=8.ckpt"))
    ours = outcome(fit(lightning, folder / "c", ckpt_path=step))
    yield "fit(ckpt_path=inside an epoch) ends as from Lightning's own file", ours == theirs

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    metrics = trainer.validate(net(), data(), ckpt_path=epoch, verbose=False)
    yield "validate(ckpt_path=…)", metrics[0]["val_loss"] > 0

    fit(hookbus, folder / "over", epochs=2).save_checkpoint(folder / "over.ckpt")
    over = outcome(fit(lightning, folder / "e", ckpt_path=folder / "over.ckpt"))
    yield "fit(ckpt_path=after a fit) with more epochs goes on", over == wanted

    back = outcome(fit(hookbus, folder / "d", ckpt_path=next((folder / "c").glob("epoch=2-*")), epochs=EPOCHS))
    yield (
        "and back: hookbus goes on from a file of Lightning that went on from one of hookbus",
        back["global_step"] == 20,
    )


def main() -> int:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for what, holds in checks(Path(name)):
            print("ok    " if holds else "FAILED", what)
            failed += not holds
    print(f"Lightning {lightning.__version__}, torch {torch.__version__}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
