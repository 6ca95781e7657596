"""``Trainer(profiler=…)``."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.errors import MisconfigurationException


class Module(hookbus.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Slow(hookbus.Callback):
    def on_train_batch_end(self, *args):
        pass


def fit(profiler, tmp_path):
    trainer = hookbus.Trainer(
        max_epochs=1,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[Slow()],
        profiler=profiler,
    )
    trainer.fit(Module(), DataLoader(torch.ones(6, 2), batch_size=2))
    return trainer


@pytest.mark.parametrize(
    ("profiler", "said"),
    [("simple", "on_train_batch_end (Slow)"), ("advanced", "function calls"), ("pytorch", "aten::addmm")],
)
def test_the_report_is_printed_at_the_end(profiler, said, tmp_path, capsys):
    fit(profiler, tmp_path)
    assert said in capsys.readouterr().out


def test_simple_counts_the_calls_and_is_off_afterwards(tmp_path, capsys):
    trainer = fit("simple", tmp_path)
    row = next(line for line in capsys.readouterr().out.splitlines() if "on_train_batch_end (Slow)" in line)
    assert row.split()[1] == "3"
    assert trainer.bus.timing is None


def test_a_profiler_of_the_users_own_stands_around_the_run(tmp_path):
    entered = []

    class Mine:
        def __enter__(self):
            entered.append("in")

        def __exit__(self, *error):
            entered.append("out")

    fit(Mine(), tmp_path)
    assert entered == ["in", "out"]


@pytest.mark.parametrize("junk", ["fast", 3])
def test_anything_else_is_refused(junk, tmp_path):
    with pytest.raises(MisconfigurationException, match="profiler must be 'simple', 'advanced', 'pytorch'"):
        fit(junk, tmp_path)
