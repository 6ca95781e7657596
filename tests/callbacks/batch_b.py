"""What the tests of finders, averages, finetuning and pruning share: scenarios, and runs that are resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, agree
from tests.callbacks.data.scenarios_batch_b import SCENARIOS

from hookbus import Callback, hookimpl

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "batch_b.json").read_text(encoding="utf-8"))

__all__ = [
    "HOOKBUS", "RECORDED", "SaveAt", "agree", "observed", "recorded_cases", "resumed_and_not", "run", "same_weights",
]  # fmt: skip


def observed(name: str, folder: Path) -> dict[str, Any]:
    """What the scenario shows under hookbus, as JSON holds it."""
    found: dict[str, Any] = json.loads(json.dumps(SCENARIOS[name](HOOKBUS, folder)))
    return found


def recorded_cases(name: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a scenario."""
    return pytest.mark.parametrize("case", sorted(RECORDED[name]))


class SaveAt(Callback):
    """Saves at the end of an epoch.

    Args:
        epoch: which one.
        path: the file.
    """

    def __init__(self, epoch: int, path: Path) -> None:
        self.epoch, self.path = epoch, path

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


def run(model: Any, *callbacks: Any, folder: Path, ckpt_path: Any = None, val: Any = None, **arguments: Any) -> Any:
    """Train with hookbus; the trainer comes back."""
    trainer = HOOKBUS.trainer(folder, callbacks=list(callbacks), **{"max_epochs": 1, **arguments})
    trainer.fit(model, val_dataloaders=val, ckpt_path=ckpt_path)
    return trainer


def resumed_and_not(
    folder: Path, make_model: Callable[[], Any], make: Callable[[], Any], *, epochs: int, cut: int, **arguments: Any
) -> tuple[Any, Any]:
    """The module of a run without a break, and that of one resumed from the end of an epoch.

    Args:
        folder: where to write.
        make_model: makes the module.
        make: makes the callback.
        epochs: of the whole run.
        cut: after this epoch the second one is resumed.
        **arguments: for the Trainer.
    """
    whole, path = make_model(), folder / "cut.ckpt"
    run(whole, make(), SaveAt(cut, path), folder=folder, max_epochs=epochs, **arguments)
    torch.manual_seed(99)  # a new process has other streams
    model = make_model()
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    run(model, make(), folder=folder, max_epochs=epochs, ckpt_path=path, **arguments)
    return whole, model


def same_weights(first: Any, second: Any) -> bool:
    """Whether all weights and statistics are bit-equal."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
