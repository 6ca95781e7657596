"""Whether a validation follows a batch is foretold rightly, since a save waits for it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from hookbus.callbacks.save_moments import validation_follows


class Unsized(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.ones(8, 2))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"check_val_every_n_epoch": 2},
        {"val_check_interval": 2},
        {"val_check_interval": 3},
        {"val_check_interval": 0.5},
        {"val_check_interval": 0.75},
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
        {"val_check_interval": 6, "check_val_every_n_epoch": None},
        {"val_check_interval": 2, "check_val_every_n_epoch": 3},
        {"val_check_interval": "00:00:00:00"},
        {"val_check_interval": {"seconds": 0}, "check_val_every_n_epoch": 2},
        {"limit_val_batches": 0},
        {"limit_train_batches": 3},
        {"accumulate_grad_batches": 3, "val_check_interval": 2},
        {"max_epochs": -1, "max_steps": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("sized", [True, False])
def test_validation_follows(lib: ModuleType, recorder: ModuleType, options: dict[str, Any], sized: bool) -> None:
    if not sized and isinstance(options.get("val_check_interval"), float):
        pytest.skip("a share of an unknown number is refused by the trainer")
    foretold, came = [], []

    class Listener(lib.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = trainer.progress.total_batches == 9
            if validation_follows(trainer):
                foretold.append(trainer.progress.total_batches)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                came.append(trainer.progress.total_batches)

    module = recorder.module_of(lib, [])
    if not sized:
        module.train_dataloader = lambda: DataLoader(Unsized(), batch_size=2)
    trainer = recorder.trainer_of(lib, Listener(), **{"max_epochs": 4, **options})
    trainer.fit(module)
    assert foretold == came
    assert came or options.get("limit_val_batches") == 0
