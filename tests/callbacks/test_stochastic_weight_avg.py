from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch.utils.data import DataLoader

from hookbus.callbacks import Callback, ModelPruning, StochasticWeightAveraging
from hookbus.errors import MisconfigurationException


class Weights(Callback):
    """Notes the weights with which each epoch begins."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.rows.append(weights(pl_module))


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: torch.tensor([row[key] for row in rows]).mean(0).tolist() for key in rows[0]}


def onecycle(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=40)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_weights_statistics_and_rates_are_lightnings(tmp_path: Path) -> None:
    agree(observed("stochastic_weight_averaging", tmp_path), RECORDED["stochastic_weight_averaging"])


def test_batch_norm_statistics_are_those_of_the_average(tmp_path: Path) -> None:
    model = net(HOOKBUS, batch_norm=True)
    trainer = run(model, StochasticWeightAveraging(0.01, 2), folder=tmp_path, max_epochs=4)
    assert (trainer.current_epoch, trainer.max_epochs, trainer.global_step) == (4, 4, 16)
    ours = [model.backbone[1].running_mean.clone(), model.backbone[1].running_var.clone()]
    torch.optim.swa_utils.update_bn(model.train_dataloader(), model)
    torch.testing.assert_close(ours, [model.backbone[1].running_mean, model.backbone[1].running_var])


def test_batch_norm_and_no_limit_of_epochs(tmp_path: Path) -> None:
    model = net(HOOKBUS, batch_norm=True)
    trainer = run(model, swa := StochasticWeightAveraging(0.01, 2), folder=tmp_path, max_epochs=-1, max_steps=10)
    assert (trainer.global_step, swa.n_averaged) == (10, 2)


def test_a_share_of_the_epochs_that_max_steps_takes(tmp_path: Path) -> None:
    swa, seen = StochasticWeightAveraging(0.01, 0.5), Weights()
    model = net(HOOKBUS)
    run(model, swa, seen, folder=tmp_path, max_epochs=-1, max_steps=12, accumulate_grad_batches=2)
    assert (swa.swa_start, swa.swa_end) == (2, None)
    assert len(seen.rows) == 6
    assert swa.n_averaged == 4
    agree(weights(model), mean(seen.rows[2:]))


def test_the_whole_entry_of_the_scheduler_is_replaced(tmp_path: Path) -> None:
    model = net(HOOKBUS, configure_optimizers=onecycle)
    trainer = run(model, StochasticWeightAveraging(0.004, 3, annealing_epochs=2), folder=tmp_path, max_epochs=6)
    (config,) = trainer.lr_scheduler_configs
    assert (type(config.scheduler).__name__, config.interval, config.frequency) == ("SWALR", "epoch", 1)
    assert config.scheduler.last_epoch == 4
    assert model.rates[-1] == [0.004]


def test_the_start_was_never_reached_so_the_trained_weights_stay(tmp_path: Path) -> None:
    averaged, plain = net(HOOKBUS), net(HOOKBUS)
    run(averaged, StochasticWeightAveraging(0.5, 9), folder=tmp_path, max_epochs=2)
    run(plain, folder=tmp_path, max_epochs=2)
    assert same_weights(averaged, plain)


def test_the_average_counts_also_if_training_stops_early(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 3

    model, seen = net(HOOKBUS), Weights()
    run(model, StochasticWeightAveraging(0.01, 2), seen, Stop(), folder=tmp_path, max_epochs=10)
    assert len(seen.rows) == 4
    agree(weights(model), mean(seen.rows[1:]))


@pytest.mark.parametrize("cut", [0, 2, 3])
def test_a_resumed_run_ends_with_the_same_weights(cut: int, tmp_path: Path) -> None:
    whole, resumed = resumed_and_not(
        tmp_path,
        lambda: net(HOOKBUS, batch_norm=True, configure_optimizers=onecycle),
        lambda: StochasticWeightAveraging(0.004, 3, annealing_epochs=3),
        epochs=6,
        cut=cut,
    )
    assert same_weights(whole, resumed)
    assert resumed.rates == whole.rates[cut + 1 :]


def test_trial_runs_and_validations_change_nothing(tmp_path: Path) -> None:
    loaders = [DataLoader(data(8), batch_size=4)] * 2
    run(net(HOOKBUS), StochasticWeightAveraging(0.01), folder=tmp_path, fast_dev_run=True, val=loaders)
    model, swa = net(HOOKBUS), StochasticWeightAveraging(0.01)
    before = weights(model)
    HOOKBUS.trainer(tmp_path, callbacks=[swa]).validate(model, loaders)
    assert weights(model) == before
    assert swa.n_averaged == 0


def test_an_exception_leaves_the_trained_weights(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 3:
                raise ZeroDivisionError

    averaged, plain = net(HOOKBUS), net(HOOKBUS)
    with pytest.raises(ZeroDivisionError):
        run(averaged, StochasticWeightAveraging(0.01, 2), Fail(), folder=tmp_path, max_epochs=5)
    run(plain, StochasticWeightAveraging(0.01, 2), seen := Weights(), folder=tmp_path, max_epochs=5)
    assert weights(averaged) == seen.rows[4]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"swa_lrs": 0.0}, "swa_lrs must be"),
        ({"swa_lrs": []}, "swa_lrs must be"),
        ({"swa_lrs": [0.1, -0.1]}, "swa_lrs must be"),
        ({"swa_epoch_start": 0}, "swa_epoch_start must be"),
        ({"swa_epoch_start": 1.5}, "swa_epoch_start must be"),
        ({"swa_epoch_start": True}, "swa_epoch_start must be"),
        ({"annealing_epochs": -1}, "annealing_epochs must be"),
        ({"annealing_strategy": "exp"}, "annealing_strategy must be"),
        ({"avg_fn": 3}, "avg_fn must be"),
        ({"device": 0.5}, "device must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        StochasticWeightAveraging(**{"swa_lrs": 0.1, **arguments})


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    def two(self: Any) -> Any:
        return [torch.optim.SGD(self.backbone.parameters(), lr=0.1), torch.optim.SGD(self.head.parameters(), lr=0.1)]

    model = net(HOOKBUS, configure_optimizers=two, automatic_optimization=False)
    with pytest.raises(MisconfigurationException, match="one optimizer, configure_optimizers gave 2"):
        run(model, StochasticWeightAveraging(0.1), folder=tmp_path)
    with pytest.raises(MisconfigurationException, match="whose number is not known with max_epochs=-1"):
        run(net(HOOKBUS), StochasticWeightAveraging(0.1), folder=tmp_path, max_epochs=-1)
    with pytest.raises(MisconfigurationException, match=r"each of the optimizer's 1 parameter group"):
        run(net(HOOKBUS), StochasticWeightAveraging([0.1, 0.2], 1), folder=tmp_path)


def test_a_module_that_keeps_losses_and_locks_is_averaged(tmp_path: Path) -> None:
    kept: list[Any] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.kept, self.lock = kept, threading.Lock()
        kept.append(torch.nn.functional.mse_loss(self(batch[0]), batch[1]))
        return kept[-1]

    swa = StochasticWeightAveraging(0.05, swa_epoch_start=2)
    run(net(HOOKBUS, training_step=training_step), swa, folder=tmp_path, max_epochs=3)
    assert (len(kept), swa.n_averaged) == (12, 2)


def test_parameters_that_pruning_replaces_while_training_are_averaged_by_name(tmp_path: Path) -> None:
    """Pruning weights alone moves them behind the biases."""
    start, swa = Weights(), StochasticWeightAveraging(0.05, swa_epoch_start=2)
    pruning = ModelPruning(
        "l1_unstructured", parameter_names=["weight"], amount=0.3, use_lottery_ticket_hypothesis=False
    )
    model = net(HOOKBUS)
    run(model, start, pruning, swa, folder=tmp_path, max_epochs=4)
    names = {"backbone.0.weight": "backbone.0.weight_orig", "head.weight": "head.weight_orig"}
    for name, values in weights(model).items():
        rows = torch.tensor([row[names.get(name, name)] for row in start.rows[1:]])
        assert torch.allclose(torch.tensor(values), rows.mean(0), atol=1e-6), name
