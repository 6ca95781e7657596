"""When loggers are told what, and under which step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.errors import MisconfigurationException
from hookbus.loggers import Logger
from hookbus.markers import hookimpl
from hookbus.trainer.outlets import print_results


class Lines(Logger):
    name, version = "lines", 0

    def __init__(self):
        self.rows, self.calls = [], []

    def log_metrics(self, metrics, step=None):
        self.calls.append("log_metrics")
        self.rows.append((step, metrics))

    def log_hyperparams(self, params, *args, **kwargs):
        self.calls.append("log_hyperparams")
        self.params = params

    def save(self):
        self.calls.append("save")

    def finalize(self, status):
        self.calls.append(f"finalize {status}")


class Module(hookbus.LightningModule):
    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", batch.mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def run(tmp_path, logger, **options):
    trainer = hookbus.Trainer(
        logger=logger,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **{"max_epochs": 2, "log_every_n_steps": 2, **options},
    )
    trainer.fit(Module(), DataLoader(torch.arange(1.0, 4.0)), DataLoader(torch.ones(1)))
    return trainer


def test_steps_are_told_at_the_interval_epochs_under_the_step_of_their_last_batch(tmp_path):
    lines = Lines()
    run(tmp_path, lines)
    assert lines.rows == [
        (1, {"loss_step": 2, "epoch": 0}),
        (2, {"val": 1, "epoch": 0}),
        (2, {"loss_epoch": 2, "epoch": 0}),
        (3, {"loss_step": 1, "epoch": 1}),
        (5, {"loss_step": 3, "epoch": 1}),
        (5, {"val": 1, "epoch": 1}),
        (5, {"loss_epoch": 2, "epoch": 1}),
    ]
    steps = [step for step, _ in lines.rows]
    assert steps == sorted(steps)


def test_values_arrive_as_python_numbers(tmp_path):
    lines = Lines()
    run(tmp_path, lines)
    assert all(type(value) in (int, float) for _, row in lines.rows for value in row.values())


def test_hyperparameters_come_first_and_the_end_last(tmp_path):
    lines = Lines()
    run(tmp_path, lines)
    assert lines.params == {"width": 3}
    assert lines.calls[0] == "log_hyperparams"
    assert lines.calls[-1] == "finalize success"


def test_several_loggers_are_all_told(tmp_path):
    first, second = Lines(), Lines()
    trainer = run(tmp_path, [first, second], max_epochs=1)
    assert first.rows == second.rows
    assert trainer.loggers == [first, second]


@pytest.mark.parametrize("entry", ["fit", "validate"])
def test_what_a_logger_writes_with_is_there_in_setup(entry, tmp_path):
    class Opens(Lines):
        opened = False

        @property
        def experiment(self):
            self.opened = True
            return self

    class Looks(hookbus.Callback):
        def setup(self, trainer, pl_module, stage):
            self.found = trainer.logger.opened

    looks = Looks()
    options = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = hookbus.Trainer(logger=Opens(), callbacks=looks, fast_dev_run=False, max_epochs=1, **options)
    loader = DataLoader(torch.ones(2))
    getattr(trainer, entry)(Module(), loader)
    assert looks.found


def test_an_interval_of_zero_leaves_steps_out(tmp_path):
    lines = Lines()
    run(tmp_path, lines, log_every_n_steps=0)
    assert not any("loss_step" in row for _, row in lines.rows)


def test_a_module_may_name_the_step(tmp_path):
    class Named(Module):
        def on_train_epoch_end(self):
            self.log("step", 40.0)

    lines = Lines()
    hookbus.Trainer(
        logger=lines, max_epochs=1, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False
    ).fit(Named(), DataLoader(torch.ones(2)))
    assert lines.rows[-1] == (40, {"loss_epoch": 1})


def test_a_plugin_hears_what_the_loggers_hear(tmp_path):
    heard = []

    class Listens:
        @hookimpl
        def log_metrics(self, metrics, step):
            heard.append((step, dict(metrics)))

    lines = Lines()
    run(tmp_path, lines, plugins=[Listens()], max_epochs=1)
    assert heard == lines.rows


def test_results_are_printed_per_loader(capsys):
    print_results("test", [{"loss": 0.123456789, "n": 3}, {}, {"loss": 1.0}])
    assert capsys.readouterr().out.splitlines() == [
        "test, dataloader 0:",
        "  loss  0.123457",
        "  n     3",
        "test, dataloader 2:",
        "  loss  1",
    ]


def test_module_and_data_module_may_not_disagree_before_loggers(tmp_path):
    class Data(hookbus.LightningDataModule):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()

        def train_dataloader(self):
            return DataLoader(torch.ones(2))

    def fit(logger):
        hookbus.Trainer(
            max_epochs=1,
            logger=logger,
            enable_progress_bar=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
        ).fit(Module(3), Data(4))

    with pytest.raises(RuntimeError, match="'width' of module and data module"):
        fit(Lines())
    fit(False)


@pytest.mark.parametrize("junk", ["csv", 3, Lines, [Lines(), "csv"]], ids=["word", "number", "class", "list"])
def test_what_is_no_logger_is_refused(junk):
    with pytest.raises(MisconfigurationException, match="logger must be a logger such as"):
        hookbus.Trainer(logger=junk)


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_what_is_logged_outside_of_the_loaders_has_a_plain_name(stage):
    word = {"validate": "validation", "test": "test"}[stage]

    def log(name):
        return lambda self, *args: self.log(name, 1.0)

    hooks = {f"on_{word}_{moment}": log(moment) for moment in ("start", "epoch_start", "epoch_end")}
    told = type("Told", (hookbus.Callback,), {f"on_{word}_epoch_end": log("told")})()
    hooks[f"{word}_step"] = lambda self, batch, batch_idx, dataloader_idx=0: self.log("step", 1.0)
    module = type("Several", (hookbus.LightningModule,), hooks)()
    trainer = hookbus.Trainer(callbacks=[told], logger=False, enable_progress_bar=False)
    loaders = [DataLoader(torch.ones(2)), DataLoader(torch.ones(2))]
    getattr(trainer, stage)(module, loaders, verbose=False)
    plain = {"start", "epoch_start", "epoch_end", "told"}
    assert set(trainer.callback_metrics) == {*plain, "step/dataloader_idx_0", "step/dataloader_idx_1"}
