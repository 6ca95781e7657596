"""The frame around entry points: the sanity check, and where there is none."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus


class Module(hookbus.LightningModule):
    """Counts the sanity checks."""

    def __init__(self):
        super().__init__()
        self.weight, self.checks = torch.nn.Parameter(torch.ones(())), 0

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).mean()

    def validation_step(self, batch, batch_idx):
        self.checks += self.trainer.sanity_checking

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize(
    ("limits", "checks"),
    [({"max_epochs": 2}, 1), ({"max_epochs": -1, "max_steps": 4}, 0), ({"max_epochs": 2, "max_steps": 4}, 0)],
)
def test_a_run_that_counts_in_steps_is_resumed_without_a_sanity_check(tmp_path, limits, checks):
    def fit(limits, ckpt_path=None):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        run = hookbus.Trainer(
            accelerator="cpu",
            default_root_dir=tmp_path,
            num_sanity_val_steps=1,
            enable_checkpointing=False,
            **quiet,
            **limits,
        )
        module, data = Module(), DataLoader(torch.ones(2))
        run.fit(module, data, data, ckpt_path=ckpt_path)
        return run, module

    run, module = fit({"max_epochs": 1})
    assert module.checks == 1
    run.save_checkpoint(tmp_path / "one.ckpt")
    run, module = fit(limits, tmp_path / "one.ckpt")
    assert (run.global_step, module.checks) == (4, checks)
