"""Record what Lightning's ModelCheckpoint and EarlyStopping do, as numbers that the tests here compare with.

Run it with an environment that has Lightning 2.6 (hookbus itself needs none)::

    python tests/callbacks/data/record_lightning.py lightning.pytorch tests/callbacks/data/lightning.json

The tests run the same scenarios with hookbus, through :func:`checkpoint_facts` and :func:`stopping_facts`.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

#: ModelCheckpoint's arguments, the Trainer's, and the values of "m" that the validations log, one after another.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "default": {"trainer": {"max_epochs": 3}},
    "all": {"checkpoint": {"save_top_k": -1}, "trainer": {"max_epochs": 3}},
    "every_2_epochs": {"checkpoint": {"save_top_k": -1, "every_n_epochs": 2}, "trainer": {"max_epochs": 5}},
    "every_3_steps": {"checkpoint": {"save_top_k": -1, "every_n_train_steps": 3}, "trainer": {"max_epochs": 3}},
    "every_6_steps_of_4": {"checkpoint": {"save_top_k": -1, "every_n_train_steps": 6}, "trainer": {"max_epochs": 5}},
    "every_2_steps_accumulating_3": {
        "checkpoint": {"save_top_k": -1, "every_n_train_steps": 2},
        "trainer": {"max_epochs": 4, "accumulate_grad_batches": 3},
    },
    "every_batch_by_time": {
        "checkpoint": {"save_top_k": -1, "train_time_interval": timedelta(0)},
        "trainer": {"max_epochs": 1},
    },
    "best": {"checkpoint": {"monitor": "m"}, "trainer": {"max_epochs": 4}, "values": [3.0, 1.0, 2.0, 0.5]},
    "best_max": {
        "checkpoint": {"monitor": "m", "mode": "max"},
        "trainer": {"max_epochs": 4},
        "values": [1.0, 3.0, 2.0, 3.0],
    },
    "best_two_named": {
        "checkpoint": {"monitor": "m", "save_top_k": 2, "filename": "{epoch:02d}-{m:.1f}"},
        "trainer": {"max_epochs": 5},
        "values": [3.0, 1.0, 2.0, 0.5, 4.0],
    },
    "best_two_equal": {
        "checkpoint": {"monitor": "m", "save_top_k": 2},
        "trainer": {"max_epochs": 4},
        "values": [1.0, 1.0, 1.0, 0.5],
    },
    "best_with_nan": {
        "checkpoint": {"monitor": "m", "save_top_k": 2},
        "trainer": {"max_epochs": 4},
        "values": [math.nan, 2.0, math.nan, 1.0],
    },
    "all_of_one_name": {
        "checkpoint": {"monitor": "m", "save_top_k": -1, "filename": "model"},
        "trainer": {"max_epochs": 3},
        "values": [1.0, 2.0, 3.0],
    },
    "best_of_one_name": {
        "checkpoint": {"monitor": "m", "filename": "best"},
        "trainer": {"max_epochs": 3},
        "values": [2.0, 1.0, 3.0],
    },
    "improving_with_last": {
        "checkpoint": {"monitor": "m", "save_last": True},
        "trainer": {"max_epochs": 3},
        "values": [3.0, 2.0, 1.0],
    },
    "named_last": {
        "checkpoint": {"save_last": True, "filename": "a{epoch}b", "auto_insert_metric_name": False},
        "trainer": {"max_epochs": 2},
    },
    "no_names_in_names": {"checkpoint": {"auto_insert_metric_name": False}, "trainer": {"max_epochs": 1}},
    "missing_in_name": {"checkpoint": {"filename": "{nothing:.1f}-{step}"}, "trainer": {"max_epochs": 1}},
    "folder_in_name": {"checkpoint": {"filename": "{val/m:.1f}"}, "trainer": {"max_epochs": 1}},
    "validating_twice": {
        "checkpoint": {"monitor": "m", "save_top_k": -1},
        "trainer": {"max_epochs": 2, "val_check_interval": 2},
        "values": [4.0, 3.0, 2.0, 1.0],
    },
    "validating_every_2_epochs": {
        "checkpoint": {"monitor": "m", "save_top_k": -1},
        "trainer": {"max_epochs": 5, "check_val_every_n_epoch": 2},
        "values": [4.0, 3.0],
    },
    "validating_every_2_and_saving_every_3": {
        "checkpoint": {"save_top_k": -1, "every_n_epochs": 3, "save_on_train_epoch_end": False},
        "trainer": {"max_epochs": 12, "check_val_every_n_epoch": 2},
    },
    "never_validating": {"checkpoint": {"save_top_k": -1}, "trainer": {"max_epochs": 2, "limit_val_batches": 0}},
    "training_metric": {
        "checkpoint": {"monitor": "at_end", "save_top_k": -1},
        "trainer": {"max_epochs": 2},
    },
    "max_steps": {"trainer": {"max_epochs": -1, "max_steps": 6}},
    "fast_dev_run": {"trainer": {"fast_dev_run": True}},
    "weights_only": {"checkpoint": {"save_weights_only": True}, "trainer": {"max_epochs": 1}},
}

#: EarlyStopping's arguments, the Trainer's, and the values of "m".
STOPPINGS: dict[str, dict[str, Any]] = {
    "patience_3": {"values": [5.0, 4.0, 4.0, 4.0, 4.0, 4.0]},
    "patience_0": {"stopping": {"patience": 0}, "values": [5.0, 4.0, 4.0]},
    "patience_1": {"stopping": {"patience": 1}, "values": [5.0, 4.0, 4.0]},
    "min_delta_not_reached": {"stopping": {"patience": 1, "min_delta": 1.0}, "values": [5.0, 4.0, 3.0]},
    "min_delta_reached": {"stopping": {"patience": 1, "min_delta": 0.9}, "values": [5.0, 4.0, 3.0, 3.0]},
    "max": {"stopping": {"patience": 2, "mode": "max", "min_delta": 0.5}, "values": [1.0, 2.0, 2.4, 2.5, 3.0]},
    "nan": {"values": [5.0, math.nan, 3.0]},
    "nan_tolerated": {"stopping": {"check_finite": False}, "values": [5.0, math.nan, 3.0, 3.0, 3.0, 3.0]},
    "infinite": {"stopping": {"mode": "max"}, "values": [5.0, math.inf, 3.0]},
    "good_enough": {"stopping": {"stopping_threshold": 3.5}, "values": [5.0, 4.0, 3.0, 2.0]},
    "good_enough_max": {"stopping": {"stopping_threshold": 3.5, "mode": "max"}, "values": [3.0, 3.5, 4.0]},
    "diverged": {"stopping": {"divergence_threshold": 8.0}, "values": [5.0, 8.0, 9.0, 2.0]},
    "diverged_max": {"stopping": {"divergence_threshold": 2.0, "mode": "max"}, "values": [5.0, 2.0, 1.0]},
    "never": {"trainer": {"max_epochs": 4}, "values": [4.0, 3.0, 2.0, 1.0]},
    "min_epochs": {"stopping": {"patience": 1}, "trainer": {"min_epochs": 5}, "values": [5.0, 6.0, 7.0, 8.0, 9.0]},
    "every_3_epochs": {
        "stopping": {"patience": 2},
        "trainer": {"check_val_every_n_epoch": 3, "max_epochs": 20},
        "values": [5.0, 6.0, 7.0, 8.0],
    },
    "twice_an_epoch": {"stopping": {"patience": 2}, "trainer": {"val_check_interval": 2}, "values": [5.0, 6.0, 7.0]},
    "at_validation": {
        "stopping": {"patience": 1, "check_on_train_epoch_end": False},
        "values": [5.0, 6.0, 7.0],
    },
    "training_metric": {"stopping": {"monitor": "at_end", "patience": 1, "mode": "max"}},
    "fast_dev_run": {"trainer": {"fast_dev_run": True}, "values": [math.nan]},
}


def module_of(lib: Any, values: list[float] | None = None) -> Any:
    """A small module: 4 batches an epoch, one validation batch, "m" logged by each validation."""

    class Module(lib.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.values = list(values or [])

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.layer(batch).pow(2).mean()

        def on_train_epoch_end(self) -> None:
            self.log("at_end", 10.0 - self.current_epoch)

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            pass

        def on_validation_epoch_end(self) -> None:
            if self.values and not self.trainer.sanity_checking:
                self.log("m", self.values.pop(0))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            return DataLoader(torch.ones(8, 2), batch_size=2)

        def val_dataloader(self) -> Any:
            return DataLoader(torch.ones(1, 2))

    return Module()


def trainer_of(lib: Any, callback: Any, **options: Any) -> Any:
    """A trainer with nothing around it but ``callback``."""
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 10,
    }
    return lib.Trainer(**{**quiet, **options}, callbacks=[callback])


def checkpoint_facts(lib: Any, scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one scenario of :data:`CHECKPOINTS`; what stands in the folder and in the callback's attributes."""
    callback = lib.callbacks.ModelCheckpoint(dirpath=folder, **scenario.get("checkpoint", {}))
    trainer = trainer_of(lib, callback, enable_checkpointing=True, **scenario["trainer"])
    trainer.fit(module_of(lib, scenario.get("values")))
    files = {}
    for path in sorted(folder.rglob("*.ckpt")):
        content = torch.load(path, weights_only=True)
        files[path.relative_to(folder).as_posix()] = [content["epoch"], content["global_step"]]

    def name(path: str) -> str:
        return Path(path).relative_to(folder.resolve()).as_posix() if path else ""

    return {
        "files": files,
        "best_model_path": name(callback.best_model_path),
        "best_model_score": number(callback.best_model_score),
        "best_k_models": {name(path): number(score) for path, score in callback.best_k_models.items()},
        "kth_best_model_path": name(callback.kth_best_model_path),
        "kth_value": number(callback.kth_value),
        "current_score": number(callback.current_score),
        "last_model_path": name(callback.last_model_path),
        "state_key": callback.state_key,
        "state": sorted(callback.state_dict()),
    }


def stopping_facts(lib: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """Run one scenario of :data:`STOPPINGS`; where it ended, and the callback's attributes."""
    callback = lib.callbacks.EarlyStopping(**{"monitor": "m", **scenario.get("stopping", {})})
    trainer = trainer_of(lib, callback, enable_checkpointing=False, **scenario.get("trainer", {}))
    trainer.fit(module_of(lib, scenario.get("values")))
    return {
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "wait_count": callback.wait_count,
        "stopped_epoch": callback.stopped_epoch,
        "best_score": number(callback.best_score),
        "stopping_reason": callback.stopping_reason.name,
        "min_delta": callback.min_delta,
        "state_key": callback.state_key,
        "state": sorted(callback.state_dict()),
    }


def number(value: Any) -> float | str | None:
    """As JSON can hold it."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)


def main(library: str, target: str) -> None:
    """Run all scenarios and write the file."""
    lib = importlib.import_module(library)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"library": f"{library} {lib.__version__}", "checkpoints": {}, "stoppings": {}}
    for name, scenario in CHECKPOINTS.items():
        with tempfile.TemporaryDirectory() as folder:
            record["checkpoints"][name] = checkpoint_facts(lib, scenario, Path(folder))
    for name, scenario in STOPPINGS.items():
        record["stoppings"][name] = stopping_facts(lib, scenario)
    Path(target).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
