"""The least that can be trained, on data that are numbers, with a trainer that is silent."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import hookbus


class Module(hookbus.LightningModule):
    """One weight, which stays as it is."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def numbers(*values):
    return DataLoader(torch.tensor(values, dtype=torch.float32))


def trainer(tmp_path, **options):
    quiet = dict.fromkeys(("enable_progress_bar", "enable_checkpointing", "enable_model_summary", "logger"), False)
    return hookbus.Trainer(**{"max_epochs": 1, "accelerator": "cpu", "default_root_dir": tmp_path, **quiet, **options})
