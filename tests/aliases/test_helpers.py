"""The helpers that packages import from ``lightning.pytorch.utilities``."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch

import hookbus
from hookbus.aliases import boring, cloud_io, grads, inspection, params, rank_zero, saved, summary
from hookbus.loggers.rank_zero import rank_zero_only


class Module(hookbus.LightningModule):
    def __init__(self, width=3, *, depth=1, **more):
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)
        self.seen = inspection.get_init_args(inspect.currentframe())

    def training_step(self, batch, batch_idx):
        return None


def test_is_overridden():
    module = Module()
    assert inspection.is_overridden("training_step", module)
    assert not inspection.is_overridden("validation_step", module)
    module.validation_step = lambda batch, batch_idx: None
    assert inspection.is_overridden("validation_step", module)
    assert not inspection.is_overridden("training_step", None)
    assert not inspection.is_overridden("no_such_method", module)
    assert inspection.is_overridden("__init__", module, parent=torch.nn.Module)
    with pytest.raises(ValueError, match="pass parent="):
        inspection.is_overridden("training_step", object())


def test_get_init_args():
    assert Module(5, extra=7).seen == {"width": 5, "depth": 1, "extra": 7}


def test_attributes_are_found_in_the_hyper_parameters():
    module = Module()
    module.hparams["lr"] = 0.1
    assert inspection.lightning_hasattr(module, "lr")
    assert not inspection.lightning_hasattr(module, "rate")
    inspection.lightning_setattr(module, "lr", 0.2)
    assert inspection.lightning_getattr(module, "lr") == module.hparams.lr == 0.2
    with pytest.raises(AttributeError, match="rate"):
        inspection.lightning_getattr(module, "rate")


def test_grad_norm():
    layer = torch.nn.Linear(2, 1)
    assert grads.grad_norm(layer, 2) == {}
    layer.weight.grad, layer.bias.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])
    norms = grads.grad_norm(layer, 2)
    assert {name: float(value) for name, value in norms.items()} == {
        "grad_2.0_norm/weight": 5.0,
        "grad_2.0_norm/bias": 12.0,
        "grad_2.0_norm_total": 13.0,
    }
    assert float(grads.grad_norm(layer, "inf")["grad_inf_norm_total"]) == 12.0
    with pytest.raises(ValueError, match="norm_type"):
        grads.grad_norm(layer, 0)


@pytest.mark.filterwarnings("error")
def test_only_the_first_process_speaks(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "lightning.pytorch")
    rank_zero.rank_zero_info("once %s", "more")
    with pytest.warns(UserWarning, match="careful") as said:
        rank_zero.rank_zero_warn("careful")
    assert said[0].filename == __file__
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    rank_zero.rank_zero_info("never")
    rank_zero.rank_zero_warn("an error if it were a warning")
    assert [record.getMessage() for record in caplog.records] == ["once more"]


@pytest.mark.filterwarnings("error")
def test_a_warning_cache_says_each_message_once():
    cache = rank_zero.WarningCache()
    with pytest.warns(UserWarning, match="twice"):
        cache.warn("said twice")
    cache.warn("said twice")  # an error if it were a warning
    assert cache == {"said twice"}


def test_rank(monkeypatch):
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert rank_zero.rank() is None
    monkeypatch.setenv("RANK", "3")
    assert rank_zero.rank() == 3


def test_the_summary_is_made_by_its_constructor():
    made = summary.ModelSummary(boring.BoringModel(), max_depth=1)
    assert made.total_parameters == 66
    assert (made.layer_names, made.layer_types, made.param_nums) == (["layer"], ["Linear"], [66])
    assert made.training_modes == [True]
    assert "Linear" in str(made)


def test_saved_checkpoints(tmp_path):
    import os

    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    for time, path in enumerate((old, new), start=1):
        path.write_bytes(b"x")
        os.utime(path, (time, time))

    class Callback:
        last_model_path, current_score = str(new), 0.5
        best_model_path, best_model_score = str(tmp_path / "gone.ckpt"), 0.1
        best_k_models = {str(old): 0.4}

    both = [(1.0, str(old), 0.4, "best_k"), (2.0, str(new), 0.5, "latest")]
    assert saved.scan_checkpoints(Callback(), {}) == both
    assert saved.scan_checkpoints(Callback(), {str(old): 1.0, str(new): 1.0}) == both[1:]


def test_get_filesystem(tmp_path):
    pytest.importorskip("fsspec")
    assert cloud_io.get_filesystem(tmp_path).exists(str(tmp_path))


@pytest.mark.parametrize("model", [boring.BoringModel, boring.ManualOptimBoringModel])
def test_the_boring_models_train(model, tmp_path):
    trainer = hookbus.Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model(), datamodule=boring.BoringDataModule())
    assert trainer.global_step == 2
    assert len(trainer.predict(model(), datamodule=boring.BoringDataModule())) == 64


def test_parameters_for_loggers():
    nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert params.flatten_dict(nested) == {"a/b": 1, "a/c/d": 2, "e": 3}

    def needs(one):
        return one

    made = params.sanitize_callable_params({"f": needs, "g": lambda: 5, "k": torch.nn.Linear, "n": 1})
    assert made == {"f": "needs", "g": 5, "k": "Linear", "n": 1}
