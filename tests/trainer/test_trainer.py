"""The entry points: what they return, log and leave behind."""

from __future__ import annotations

import csv
import sys

import pytest
import torch
from torch.utils.data import DataLoader

import hookbus
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl


class Module(hookbus.LightningModule):
    """Logs in every step; its loss is the mean of the batch times one weight, so that values can be told in the head."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch).mean()
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val", batch.mean())

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("test", batch.mean())

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch * 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def numbers(*values, size=1):
    return DataLoader(torch.tensor(values, dtype=torch.float32), batch_size=size)


def trainer(tmp_path, **options):
    options = {
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "default_root_dir": tmp_path,
        **options,
    }
    return hookbus.Trainer(**options)


def test_fit_leaves_its_values_in_callback_metrics(tmp_path):
    run = trainer(tmp_path)
    run.fit(Module(), numbers(1, 2, 3), numbers(4, 6))
    metrics = {name: value.item() for name, value in run.callback_metrics.items()}
    assert metrics == {"loss": 2, "loss_epoch": 2, "loss_step": 3, "val": 5}
    assert all(isinstance(value, torch.Tensor) for value in run.callback_metrics.values())
    assert run.progress_bar_metrics == {"loss_step": 3, "loss_epoch": 2}


def test_means_are_weighted_by_batch_size(tmp_path):
    run = trainer(tmp_path)
    run.fit(Module(), numbers(1, 2, 6, size=2))
    assert run.callback_metrics["loss_epoch"].item() == 3


def test_the_csv_logger_is_the_default_and_its_file_holds_the_values(tmp_path):
    run = trainer(tmp_path, log_every_n_steps=1)
    run.fit(Module(), numbers(1, 2), numbers(4))
    with open(f"{run.log_dir}/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [(row["step"], row["loss_step"]) for row in rows if row["loss_step"]]
    assert [(int(step), float(value)) for step, value in steps] == [(0, 1), (1, 2)]
    assert [float(row["loss_epoch"]) for row in rows if row["loss_epoch"]] == [1.5]
    assert [float(row["val"]) for row in rows if row["val"]] == [4]


def test_validate_and_test_return_what_was_logged(tmp_path, capsys):
    run, module = trainer(tmp_path), Module()
    assert run.validate(module, numbers(1, 3), verbose=False) == [{"val": 2}]
    assert capsys.readouterr().out == ""
    assert run.test(module, numbers(5)) == [{"test": 5}]
    assert "test  5" in capsys.readouterr().out


def test_several_loaders_have_results_of_their_own(tmp_path):
    results = trainer(tmp_path).test(Module(), [numbers(1), numbers(2, 4)], verbose=False)
    assert results == [{"test/dataloader_idx_0": 1}, {"test/dataloader_idx_1": 3}]


def test_predict_returns_what_each_batch_gave(tmp_path):
    run, module = trainer(tmp_path), Module()
    assert [p.tolist() for p in run.predict(module, numbers(1, 2))] == [[2], [4]]
    per_loader = run.predict(module, [numbers(1), numbers(2)])
    assert [[p.tolist() for p in predictions] for predictions in per_loader] == [[[2]], [[4]]]
    assert run.predict(module, numbers(1), return_predictions=False) is None


def test_a_data_module_gives_all_loaders(tmp_path):
    class Data(hookbus.LightningDataModule):
        def setup(self, stage):
            self.stages = [*getattr(self, "stages", []), stage]

        def train_dataloader(self):
            return numbers(1)

        def val_dataloader(self):
            return numbers(2)

        test_dataloader = predict_dataloader = val_dataloader

    data, module, run = Data(), Module(), trainer(tmp_path)
    run.fit(module, datamodule=data)
    assert run.validate(module, data, verbose=False) == [{"val": 2}]
    assert run.test(module, datamodule=data, verbose=False) == [{"test": 2}]
    assert [p.tolist() for p in run.predict(module, data)] == [[4]]
    assert data.stages == ["fit", "validate", "test", "predict"]
    assert data.trainer is run


def test_loaders_and_a_data_module_exclude_each_other(tmp_path):
    with pytest.raises(MisconfigurationException, match=r"train_dataloaders.*or a datamodule, not both"):
        trainer(tmp_path).fit(Module(), numbers(1), datamodule=hookbus.LightningDataModule())


def test_evaluation_leaves_modes_and_gradients_alone(tmp_path):
    class Mixed(Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.free = torch.nn.Dropout(), torch.nn.Dropout()
            self.frozen.eval()

        def validation_step(self, batch, batch_idx):
            assert not self.free.training
            assert not torch.is_grad_enabled()

    module = Mixed()
    trainer(tmp_path).validate(module, numbers(1), verbose=False)
    assert module.free.training
    assert not module.frozen.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(("limit", "expected"), [(2, [0, 1]), (0.5, [0, 1]), (0, []), (1.0, [0, 1, 2, 3])])
def test_batches_are_limited_by_number_or_share(tmp_path, limit, expected):
    seen = []

    class Look(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(batch_idx)

    trainer(tmp_path, limit_train_batches=limit, callbacks=[Look()]).fit(Module(), numbers(1, 2, 3, 4))
    assert seen == expected


def test_outputs_hold_the_loss_divided_by_the_window(tmp_path):
    losses = []

    class Look(hookbus.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            losses.append(outputs["loss"].item())

    run = trainer(tmp_path, accumulate_grad_batches=2, callbacks=[Look()])
    run.fit(Module(), numbers(2, 4, 6))
    assert losses == [1, 2, 3]
    assert run.global_step == 2


def test_the_batch_is_the_object_that_the_loader_made(tmp_path):
    given, seen = [[torch.ones(1)]], []

    class Loader:
        def __len__(self):
            return 1

        def __iter__(self):
            return iter(given)

    class Listed(Module):
        def training_step(self, batch, batch_idx):
            seen.append(batch)
            return (self.weight * batch[0]).mean()

    trainer(tmp_path).fit(Listed(), Loader())
    assert seen[0] is given[0]


def test_a_native_plugin_and_its_order_are_visible(tmp_path):
    class Plugin:
        @hookimpl(tryfirst=True)
        def on_train_start(self, pl_module):
            self.module = pl_module

    class Listed(hookbus.Callback):
        def on_train_start(self, trainer, pl_module):
            pass

    plugin, module = Plugin(), Module()
    module.on_train_start = lambda: None
    run = trainer(tmp_path, plugins=[plugin], callbacks=[Listed()])
    run.fit(module, numbers(1))
    assert plugin.module is module
    assert [(row.plugin, row.flags) for row in run.bus.order("on_train_start")] == [
        ("Plugin", ("tryfirst",)),
        ("Listed", ()),
        ("module", ()),
    ]


def test_an_installed_plugin_takes_part_and_is_announced(tmp_path, make_distribution, capsys):
    make_distribution(
        "hookbus-counter",
        "1.2",
        {"hookbus": {"counter": "counterplugin"}},
        {
            "counterplugin": "import hookbus\nbatches = 0\n@hookbus.hookimpl\ndef on_train_batch_end(batch_idx):\n"
            "    global batches\n    batches += 1\n"
        },
    )
    run = trainer(tmp_path)
    run.fit(Module(), numbers(1, 2))
    assert sys.modules["counterplugin"].batches == 2
    assert "plugins: counter-1.2" in capsys.readouterr().err
    blocked = trainer(tmp_path, plugins=["no:counter"])
    blocked.fit(Module(), numbers(1))
    assert sys.modules["counterplugin"].batches == 2


def test_an_installed_factory_fills_the_list_of_callbacks(tmp_path, make_distribution):
    source = (
        "import hookbus\nclass Mine(hookbus.Callback):\n    def on_train_start(self, trainer, pl_module):\n"
        "        trainer.seen = True\ndef make():\n    return (Mine() for _ in range(1))\n"
    )
    make_distribution(
        "any", "1", {"lightning.pytorch.callbacks_factory": {"mine": "minefactory:make"}}, {"minefactory": source}
    )
    run = trainer(tmp_path)
    assert [type(callback).__name__ for callback in run.callbacks] == ["Mine"]
    run.fit(Module(), numbers(1))
    assert run.seen
    run.callbacks.clear()
    del run.seen
    run.fit_loop.max_epochs = 2
    run.fit(run.lightning_module, numbers(1))
    assert not hasattr(run, "seen")


def test_a_broken_plugin_does_not_break_a_run_unless_strict(tmp_path, make_distribution):
    make_distribution(
        "any", "3", {"hookbus": {"bad": "badplugin"}}, {"badplugin": "raise ImportError('no such thing')"}
    )
    with pytest.warns(UserWarning, match="bad.*any 3.*no such thing"):
        trainer(tmp_path).fit(Module(), numbers(1))
    with pytest.raises(RuntimeError, match="bad"):
        trainer(tmp_path, strict=True)


def test_fast_dev_run_touches_one_batch_and_writes_nothing(tmp_path):
    run = trainer(tmp_path, fast_dev_run=True, max_epochs=5)
    run.fit(Module(), numbers(1, 2, 3), numbers(1, 2))
    assert (run.global_step, run.current_epoch, run.num_training_batches, run.num_val_batches) == (1, 1, 1, [1])
    assert list(tmp_path.iterdir()) == []


def test_estimated_stepping_batches(tmp_path):
    class Asks(Module):
        def configure_optimizers(self):
            self.steps = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    module = Asks()
    trainer(tmp_path, max_epochs=3, accumulate_grad_batches=2).fit(module, numbers(1, 2, 3, 4, 5))
    assert module.steps == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fsdp"}, "strategy='fsdp' is not supported yet"),
        ({"num_nodes": 2}, "num_nodes=2 is not supported yet"),
        ({"devices": 2}, "trains on one"),
        ({"precision": "8-bit"}, "precision must be one of"),
        ({"accelerator": "tpu"}, "accelerator must be"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, options, message):
    with pytest.raises(MisconfigurationException, match=message):
        trainer(tmp_path, **options)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "64-true", "32"])
def test_every_precision_trains(tmp_path, precision):
    class Learns(Module):
        def training_step(self, batch, batch_idx):
            self.seen = (self.weight.dtype, batch.dtype)
            return ((self.weight * batch).mean() - 1) ** 2

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Learns()
    trainer(tmp_path, precision=precision, max_epochs=5).fit(module, numbers(2, 2))
    assert module.weight.item() < 1
    expected = {"bf16-true": torch.bfloat16, "64-true": torch.float64}.get(precision, torch.float32)
    assert module.seen == (expected, expected)


def test_a_nested_fit_in_a_callback_leaves_the_outer_one_alone(tmp_path):
    class Nested(hookbus.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            inner = globals()["trainer"](tmp_path, logger=False)
            inner.fit(Module(), numbers(1, 2, 3))

    run = trainer(tmp_path, callbacks=[Nested()], max_epochs=2)
    run.fit(Module(), numbers(1, 2))
    assert (run.global_step, run.current_epoch) == (4, 2)


def test_a_plugin_changes_the_arguments_before_anything_is_made_of_them(tmp_path):
    class Names:
        @hookimpl
        def modify_config(self, config):
            config["default_root_dir"] = tmp_path / "named"
            config["max_epochs"] = config["max_epochs"] + 1

    run = trainer(tmp_path, plugins=[Names()])
    run.fit(Module(), numbers(1))
    assert run.current_epoch == 2
    assert run.log_dir.startswith(str(tmp_path / "named"))


def test_a_plugin_cannot_invent_arguments(tmp_path):
    class Invents:
        @hookimpl
        def modify_config(self, config):
            config["max_epoch"] = 3

    with pytest.raises(MisconfigurationException, match=r"'max_epoch', which is no argument.*'max_epochs'"):
        trainer(tmp_path, plugins=[Invents()])
