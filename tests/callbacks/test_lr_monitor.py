"""LearningRateMonitor: names, values and steps as recorded from Lightning, and what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS, RECORDED, agree, observed
from tests.callbacks.data.scenarios_batch_a import loader
from torch.optim.lr_scheduler import StepLR

from hookbus import hookimpl
from hookbus.callbacks import LearningRateMonitor
from hookbus.errors import MisconfigurationException


def by_step(module: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"}]


def test_does_as_lightning(tmp_path: Path) -> None:
    agree(observed("learning_rates", tmp_path), RECORDED["learning_rates"])


def test_logs_in_manual_optimization(tmp_path: Path) -> None:
    rows = observed("learning_rates", tmp_path)["manual"]["rows"]
    assert [metrics["lr-SGD"] for _, metrics in rows if "lr-SGD" in metrics] == [0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625]


def test_steps_of_all_sources_never_go_back_under_accumulation(tmp_path: Path) -> None:
    def step(module: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = module(batch).pow(2).mean()
        module.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    logger = HOOKBUS.logger()
    model = HOOKBUS.model(configure_optimizers=by_step, training_step=step)
    trainer = HOOKBUS.trainer(
        tmp_path, max_epochs=3, accumulate_grad_batches=3, logger=logger, callbacks=[LearningRateMonitor()]
    )
    trainer.fit(model, loader(14), [loader(4), loader(2)])
    steps = [step for step, _ in logger.rows]
    assert steps == sorted(steps)
    assert {name for _, metrics in logger.rows for name in metrics} >= {"lr-SGD", "loss_step", "loss_epoch"}


def test_needs_somebody_to_log_to(tmp_path: Path) -> None:
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[LearningRateMonitor()])
    with pytest.raises(MisconfigurationException, match="needs a logger"):
        trainer.fit(HOOKBUS.model(), loader(4))


def test_a_plugin_that_takes_metrics_is_enough(tmp_path: Path) -> None:
    class Sink:
        rows: list[dict[str, float]] = []

        @hookimpl
        def log_metrics(self, metrics: dict[str, float]) -> None:
            self.rows.append(metrics)

    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, callbacks=[LearningRateMonitor("epoch")], plugins=[Sink()])
    trainer.fit(HOOKBUS.model(), loader(4))
    assert {"lr-SGD": 0.1} in Sink.rows


def test_values_of_a_resumed_run_are_those_of_an_uninterrupted_one(tmp_path: Path) -> None:
    rows = {}
    path = tmp_path / "after_2.ckpt"
    for name, epochs, resume in (("whole", 4, None), ("first", 2, None), ("second", 4, path)):
        logger, model = HOOKBUS.logger(), HOOKBUS.model(configure_optimizers=by_step)
        trainer = HOOKBUS.trainer(tmp_path, max_epochs=epochs, logger=logger, callbacks=[LearningRateMonitor()])
        trainer.fit(model, loader(6), ckpt_path=resume)
        if name == "first":
            trainer.save_checkpoint(path)
        rows[name] = [row for row in logger.rows if "lr-SGD" in row[1]]
    assert rows["first"] + rows["second"] == rows["whole"]


def test_warns_where_there_is_no_momentum(tmp_path: Path) -> None:
    def rprop(module: Any) -> Any:
        return torch.optim.Rprop(module.parameters(), lr=0.1)

    monitor = LearningRateMonitor(log_momentum=True, log_weight_decay=True)
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=HOOKBUS.logger(), callbacks=[monitor])
    with pytest.warns(RuntimeWarning, match="momentum of 0"):
        trainer.fit(HOOKBUS.model(configure_optimizers=rprop), loader(4))
    assert monitor.last_momentum_values == {"lr-Rprop-momentum": 0}
    assert monitor.last_weight_decay_values == {"lr-Rprop-weight_decay": 0}


def test_an_optimizer_that_chooses_its_rate_by_itself_is_passed_over(tmp_path: Path) -> None:
    class Relative(torch.optim.SGD):
        """As Adafactor with ``relative_step``: the group's rate is None between two steps."""

        def step(self, closure: Any = None) -> Any:
            self.param_groups[0]["lr"] = 0.1
            answer = super().step(closure)
            self.param_groups[0]["lr"] = None
            return answer

    def configure_optimizers(module: Any) -> Any:
        optimizer = Relative(module.parameters(), lr=0.1)
        optimizer.param_groups[0]["lr"] = None
        return optimizer

    monitor = LearningRateMonitor("step")
    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=HOOKBUS.logger(), callbacks=[monitor])
    trainer.fit(HOOKBUS.model(configure_optimizers=configure_optimizers), loader(4))
    assert trainer.global_step == 2
    assert monitor.lrs == {"lr-Relative": []}


def test_rates_may_be_tensors(tmp_path: Path) -> None:
    def capturable(module: Any) -> Any:
        return torch.optim.Adam(module.parameters(), lr=torch.tensor(0.25), foreach=False)

    monitor = LearningRateMonitor()
    trainer = HOOKBUS.trainer(tmp_path, max_steps=1, logger=HOOKBUS.logger(), callbacks=[monitor])
    trainer.fit(HOOKBUS.model(configure_optimizers=capturable), loader(4))
    assert monitor.lrs == {"lr-Adam": [0.25, 0.25]}


def test_groups_of_one_name_are_refused_before_training(tmp_path: Path) -> None:
    def twice(module: Any) -> Any:
        groups = [{"params": [p], "name": "same"} for p in module.parameters()]
        return torch.optim.SGD(groups, lr=0.1)

    trainer = HOOKBUS.trainer(tmp_path, max_epochs=1, logger=HOOKBUS.logger(), callbacks=[LearningRateMonitor()])
    with pytest.raises(MisconfigurationException, match=r"share the name\(s\) same"):
        trainer.fit(HOOKBUS.model(configure_optimizers=twice), loader(4))
    assert trainer.global_step == 0


def test_a_trial_run(tmp_path: Path) -> None:
    monitor = LearningRateMonitor()
    trainer = HOOKBUS.trainer(tmp_path, fast_dev_run=True, logger=True, callbacks=[monitor])
    trainer.fit(HOOKBUS.model(), loader(4), loader(4))
    assert monitor.lrs == {"lr-SGD": [0.1, 0.1]}


@pytest.mark.parametrize("interval", ["batch", "", 1])
def test_another_interval_is_refused(interval: Any) -> None:
    with pytest.raises(MisconfigurationException, match="logging_interval must be 'step', 'epoch'"):
        LearningRateMonitor(logging_interval=interval)
