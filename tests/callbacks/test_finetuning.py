from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, SaveAt, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch import nn
from torch.utils.data import DataLoader

from hookbus.callbacks import BackboneFinetuning, BaseFinetuning, Callback
from hookbus.errors import MisconfigurationException


def test_weights_and_rates_are_lightnings(tmp_path: Path) -> None:
    agree(observed("finetuning", tmp_path), RECORDED["finetuning"])


def test_the_backbone_is_frozen_at_the_first_batch_and_trained_from_its_epoch_on(tmp_path: Path) -> None:
    seen: list[tuple[int, bool, int]] = []

    def note(self: Any, batch: Any, batch_idx: int) -> None:
        groups = len(self.optimizers().param_groups)
        seen.append((self.current_epoch, self.backbone[0].weight.requires_grad, groups))

    model = net(HOOKBUS, on_train_batch_start=note)
    loaders = [DataLoader(data(8), batch_size=4)] * 2
    run(model, BackboneFinetuning(2), folder=tmp_path, max_epochs=3, accumulate_grad_batches=2, val=loaders)
    assert seen == [(0, False, 1)] * 4 + [(1, False, 1)] * 4 + [(2, True, 2)] * 4


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize("scheduler", [None, "StepLR", "LambdaLR"])
def test_a_resumed_run_ends_with_the_same_weights(cut: int, scheduler: str | None, tmp_path: Path) -> None:
    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.02)
        if scheduler is None:
            return optimizer
        argument = (2, 0.5) if scheduler == "StepLR" else (lambda epoch: 0.8**epoch,)
        return [optimizer], [getattr(torch.optim.lr_scheduler, scheduler)(optimizer, *argument)]

    start: dict[str, Any] = {}

    def on_train_start(self: Any) -> None:
        start.update(weights(self))

    whole, resumed = resumed_and_not(
        tmp_path,
        lambda: net(HOOKBUS, configure_optimizers=configure_optimizers, on_train_start=on_train_start, batch_norm=True),
        lambda: BackboneFinetuning(1, lambda_func=lambda epoch: 1.5),
        epochs=4,
        cut=cut,
    )
    assert same_weights(whole, resumed)
    assert all(parameter.requires_grad for parameter in resumed.backbone.parameters())
    assert resumed.backbone[0].weight.flatten().tolist() != start["backbone.0.weight"]
    assert resumed.rates == whole.rates[cut + 1 :]


def test_a_batch_norm_that_stays_frozen_is_frozen_after_resuming(tmp_path: Path) -> None:
    class FreezeAll(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone, train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone[0], optimizer, lr=0.01)

    whole, resumed = resumed_and_not(tmp_path, lambda: net(HOOKBUS, batch_norm=True), FreezeAll, epochs=4, cut=2)
    assert same_weights(whole, resumed)
    assert not resumed.backbone[1].track_running_stats
    assert not resumed.backbone[1].weight.requires_grad
    assert resumed.backbone[0].weight.requires_grad


def test_parameters_of_equal_values_are_different_parameters() -> None:
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([first], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BaseFinetuning.filter_on_optimizer(optimizer, [second])[0] is second
    with pytest.warns(UserWarning, match=r"1 parameter\(s\) to unfreeze are in the optimizer already"):
        assert BaseFinetuning.filter_on_optimizer(optimizer, [first]) == []


def test_modules_are_found_however_they_are_nested() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.zeros(1))
            self.inner = nn.Linear(1, 1)

    model = nn.ModuleDict({"a": Own(), "b": nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))})
    kinds = [type(module).__name__ for module in BaseFinetuning.flatten_modules(model)]
    assert kinds == ["Own", "Linear", "Linear", "BatchNorm1d"]
    assert len(BaseFinetuning.flatten_modules([model["a"], [model["b"]]])) == 4
    BaseFinetuning.freeze(model)
    assert [p.requires_grad for p in model.parameters()] == [False] * 5 + [True] * 2
    assert model["b"][1].track_running_stats
    assert len(list(BaseFinetuning.filter_params(model, train_bn=False, requires_grad=True))) == 0
    BaseFinetuning.freeze(model, train_bn=False)
    assert not model["b"][1].track_running_stats
    BaseFinetuning.make_trainable(model)
    assert all(p.requires_grad for p in model.parameters())


def test_other_entry_points_freeze_nothing(tmp_path: Path) -> None:
    model = net(HOOKBUS)
    HOOKBUS.trainer(tmp_path, callbacks=[BackboneFinetuning()]).validate(model, DataLoader(data(8), batch_size=4))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_trial_run_and_an_exception(tmp_path: Path) -> None:
    run(net(HOOKBUS), BackboneFinetuning(0), folder=tmp_path, fast_dev_run=True)

    class Fail(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(net(HOOKBUS), BackboneFinetuning(0), Fail(), folder=tmp_path)


def test_rates_are_printed_if_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(net(HOOKBUS), BackboneFinetuning(1, verbose=True, rounding=4), folder=tmp_path, max_epochs=3)
    assert capsys.readouterr().out.splitlines() == [
        "learning rate 0.01, of the backbone 0.001",
        "learning rate 0.01, of the backbone 0.002",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"unfreeze_backbone_at_epoch": -1}, "unfreeze_backbone_at_epoch must be"),
        ({"lambda_func": 2.0}, "lambda_func must be"),
        ({"backbone_initial_ratio_lr": 0}, "backbone_initial_ratio_lr must be"),
        ({"backbone_initial_lr": -0.1}, "backbone_initial_lr must be"),
        ({"initial_denom_lr": 0.0}, "initial_denom_lr must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        BackboneFinetuning(**arguments)


def test_a_module_without_backbone_is_refused(tmp_path: Path) -> None:
    model = HOOKBUS.model(train_dataloader=lambda self: DataLoader(torch.randn(4, 2)))
    with pytest.raises(MisconfigurationException, match="the submodule `backbone`, which Line does not have"):
        run(model, BackboneFinetuning(), folder=tmp_path)


def test_groups_that_another_callback_adds_are_resumed_too(tmp_path: Path) -> None:
    class Freeze(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone, train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            pass

    def callbacks() -> list[Any]:
        return [Freeze(), BackboneFinetuning(1)]

    whole, path = net(HOOKBUS), tmp_path / "cut.ckpt"
    run(whole, *callbacks(), SaveAt(1, path), folder=tmp_path, max_epochs=4)
    resumed = net(HOOKBUS)
    run(resumed, *callbacks(), folder=tmp_path, max_epochs=4, ckpt_path=path)
    assert same_weights(whole, resumed)
    assert [len(rates) for rates in whole.rates] == [1, 2, 2, 2]
    assert resumed.rates == whole.rates[2:]
