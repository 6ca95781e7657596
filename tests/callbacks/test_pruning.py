from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, SaveAt, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader

from hookbus.callbacks import Callback, ModelCheckpoint, ModelPruning
from hookbus.errors import MisconfigurationException

PLAIN: dict[str, Any] = {"amount": 0.4, "use_lottery_ticket_hypothesis": False}


class AtEpochEnd(Callback):
    """Notes the weights and masks after each epoch's pruning."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.masks: list[Any] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.rows.append({name: part.weight.detach().clone() for name, part in parts(pl_module).items()})
        self.masks.append({name: part.weight_mask.clone() for name, part in parts(pl_module).items()})


def parts(model: Any) -> dict[str, nn.Module]:
    return {"backbone": model.backbone[0], "head": model.head}


def test_weights_masks_and_names_are_lightnings(tmp_path: Path) -> None:
    agree(observed("pruning", tmp_path), RECORDED["pruning"])


def test_a_lottery_ticket_has_the_values_from_before_training_at_every_epoch(tmp_path: Path) -> None:
    model, seen = net(HOOKBUS), AtEpochEnd()
    before = {name: part.weight.detach().clone() for name, part in parts(model).items()}
    run(model, ModelPruning("l1_unstructured", amount=0.3), seen, folder=tmp_path, max_epochs=3)
    for row, masks in zip(seen.rows, seen.masks, strict=True):
        for name, values in row.items():
            assert torch.equal(values, before[name] * masks[name])
    zeros = [sum(int((mask == 0).sum()) for mask in masks.values()) for masks in seen.masks]
    assert zeros == sorted(set(zeros))


def test_resampled_weights_are_new_ones_under_the_mask(tmp_path: Path) -> None:
    model, seen = net(HOOKBUS), AtEpochEnd()
    before = model.head.weight.detach().clone()
    run(model, ModelPruning("l1_unstructured", resample_parameters=True), seen, folder=tmp_path)
    left = seen.masks[0]["head"] == 1
    assert left.any()
    assert not torch.isin(seen.rows[0]["head"][left], before).any()


def test_saving_leaves_the_masks_of_the_live_module_alone(tmp_path: Path) -> None:
    class Watch(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            hooks = len(pl_module.head._forward_pre_hooks)
            trainer.save_checkpoint(tmp_path / "between.ckpt")
            assert prune.is_pruned(pl_module)
            assert len(pl_module.head._forward_pre_hooks) == hooks
            checkpoint = torch.load(tmp_path / "between.ckpt", weights_only=True)
            assert torch.equal(
                checkpoint["state_dict"]["head.weight"], pl_module.head.weight_orig * pl_module.head.weight_mask
            )

    model = net(HOOKBUS)
    run(model, ModelPruning("l1_unstructured", **PLAIN), Watch(), folder=tmp_path, max_epochs=2)
    assert not prune.is_pruned(model)
    assert int((model.head.weight == 0).sum()) > 0


@pytest.mark.parametrize(
    "arguments",
    [
        PLAIN,
        {"amount": 0.3},
        {**PLAIN, "make_pruning_permanent": False},
        {**PLAIN, "use_global_unstructured": False, "parameter_names": ["weight"]},
        {
            "pruning_fn": "ln_structured",
            "amount": 0.5,
            "pruning_dim": 0,
            "pruning_norm": 2,
            "use_global_unstructured": False,
            "parameter_names": ["weight"],
        },
    ],
)
@pytest.mark.parametrize("cut", [0, 2])
def test_a_resumed_run_ends_with_the_same_weights(cut: int, arguments: dict[str, Any], tmp_path: Path) -> None:
    whole, resumed = resumed_and_not(
        tmp_path,
        lambda: net(HOOKBUS, configure_optimizers=lambda self: torch.optim.Adam(self.parameters(), lr=0.02)),
        lambda: ModelPruning(**{"pruning_fn": "l1_unstructured", **arguments}),
        epochs=4,
        cut=cut,
    )
    for name, part in parts(whole).items():
        assert torch.equal(part.weight, parts(resumed)[name].weight)
        assert torch.equal(part.bias, parts(resumed)[name].bias)


def test_a_checkpoint_with_masks_can_be_tested(tmp_path: Path) -> None:
    path, model = tmp_path / "masks.ckpt", net(HOOKBUS)
    pruning = ModelPruning("l1_unstructured", **PLAIN, make_pruning_permanent=False)
    run(model, pruning, SaveAt(1, path), folder=tmp_path, max_epochs=2)
    assert "head.weight_mask" in torch.load(path, weights_only=True)["state_dict"]
    other = net(HOOKBUS)
    trainer = HOOKBUS.trainer(tmp_path, callbacks=[ModelPruning("l1_unstructured")])
    trainer.validate(other, DataLoader(data(8), batch_size=4), ckpt_path=path)
    assert torch.equal(other.head.weight, model.head.weight)


def test_pruning_waits_for_the_validation_if_told_so(tmp_path: Path) -> None:
    pruning = ModelPruning("l1_unstructured", **PLAIN, prune_on_train_epoch_end=False)
    loaders, model = [DataLoader(data(8), batch_size=4)] * 2, net(HOOKBUS)
    run(model, pruning, folder=tmp_path, num_sanity_val_steps=2, accumulate_grad_batches=2, val=loaders)
    assert int((model.head.weight == 0).sum()) + int((model.backbone[0].weight == 0).sum()) > 0
    before = weights(model)
    HOOKBUS.trainer(tmp_path, callbacks=[pruning]).validate(model, loaders)
    assert weights(model) == before


def test_own_methods_and_chosen_parameters(tmp_path: Path) -> None:
    class Largest(prune.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
            mask = default_mask.clone()
            mask[t.abs().argmax()] = 0
            return mask

    class HeadOnly(ModelPruning):
        def filter_parameters_to_prune(self, parameters_to_prune: Any = ()) -> Any:
            return [pair for pair in parameters_to_prune if pair[0].out_features == 1]

    model = net(HOOKBUS)
    run(model, HeadOnly(Largest, parameter_names=["weight"]), folder=tmp_path)
    assert int((model.head.weight == 0).sum()) == 1
    assert int((model.backbone[0].weight == 0).sum()) == 0
    model = net(HOOKBUS)
    run(model, ModelPruning("random_unstructured", [(model.head, "weight")], amount=3), folder=tmp_path)
    assert int((model.head.weight == 0).sum()) == 3


def test_sparsity_is_printed_if_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pruning = ModelPruning("l1_unstructured", parameter_names=["weight"], amount=10, verbose=2)
    run(net(HOOKBUS), pruning, folder=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pruned with l1_unstructured, all: 0/40 (0.00%) -> 10/40 (25.00%)"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "pruned with l1_unstructured, backbone.0.weight",
        "pruned with l1_unstructured, head.weight",
    ]


def test_a_trial_run_and_a_second_fit(tmp_path: Path) -> None:
    pruning, model = ModelPruning("l1_unstructured", **PLAIN), net(HOOKBUS)
    run(model, pruning, folder=tmp_path, fast_dev_run=True)
    run(model, pruning, folder=tmp_path)
    assert not prune.is_pruned(model)


def test_an_exception_leaves_a_module_that_can_be_trained_on(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                raise ZeroDivisionError

    model = net(HOOKBUS)
    with pytest.raises(ZeroDivisionError):
        run(model, ModelPruning("l1_unstructured"), Fail(), folder=tmp_path, max_epochs=3)
    run(model, ModelPruning("l1_unstructured"), folder=tmp_path)
    assert not prune.is_pruned(model)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"pruning_fn": "l3"}, "pruning_fn must be one of ln_structured"),
        ({"pruning_fn": print}, "pruning_fn must be one of"),
        ({"pruning_fn": prune.L1Unstructured(0.5)}, "the class, not an instance"),
        ({"pruning_fn": prune.L1Unstructured, "use_global_unstructured": False}, "use_global_unstructured=True only"),
        ({"pruning_fn": "ln_structured", "pruning_norm": 1}, "give pruning_dim"),
        ({"pruning_fn": "ln_structured", "pruning_dim": 0}, "give pruning_norm"),
        ({"pruning_fn": "random_structured", "pruning_dim": 0}, "cannot be compared across parameters"),
        ({"parameter_names": ["gamma"]}, "may be 'weight' and 'bias', got 'gamma'"),
        ({"parameters_to_prune": ["weight"]}, "pairs of a module and a parameter's name"),
        ({"amount": 1.5}, "amount must be"),
        ({"amount": -1}, "amount must be"),
        ({"amount": "half"}, "amount must be"),
        ({"verbose": 3}, "verbose must be"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        ModelPruning(**{"pruning_fn": "l1_unstructured", **arguments})


def test_parameters_of_another_module_are_refused(tmp_path: Path) -> None:
    pruning = ModelPruning("l1_unstructured", [(nn.Linear(1, 1), "weight")])
    with pytest.raises(
        MisconfigurationException, match="parameters_to_prune has what Net does not have: 'weight' of Linear"
    ):
        run(net(HOOKBUS), pruning, folder=tmp_path)
    model = net(HOOKBUS)
    with pytest.raises(MisconfigurationException, match="'gamma' of Linear"):
        run(model, ModelPruning("l1_unstructured", [(model.head, "gamma")]), folder=tmp_path)


def test_a_file_of_weights_alone_has_no_masks(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path / "files", save_weights_only=True, every_n_train_steps=6)
    run(net(HOOKBUS), ModelPruning("l1_unstructured", amount=0.3), saver, folder=tmp_path, max_epochs=2,
        enable_checkpointing=True)  # fmt: skip
    weights = torch.load(saver.best_model_path, weights_only=True)["state_dict"]
    assert sorted(weights) == ["backbone.0.bias", "backbone.0.weight", "head.bias", "head.weight"]
    assert sum(int((value == 0).sum()) for value in weights.values()) == 15  # 0.3 of 49


def test_two_of_them_prune_what_each_was_given_also_after_a_resume(tmp_path: Path) -> None:
    def both(model: Any) -> list[ModelPruning]:
        parts = [(model.head, "weight"), (model.backbone[0], "weight")]
        return [ModelPruning("l1_unstructured", [part], amount=0.25) for part in parts]

    whole, path = net(HOOKBUS), tmp_path / "cut.ckpt"
    run(whole, *both(whole), SaveAt(0, path), folder=tmp_path, max_epochs=3)
    resumed = net(HOOKBUS)
    run(resumed, *both(resumed), folder=tmp_path, max_epochs=3, ckpt_path=path)
    assert same_weights(whole, resumed)
    assert int((resumed.head.weight == 0).sum()) > 0


def test_parameters_to_prune_are_sanitized_as_in_lightning() -> None:
    model = net(HOOKBUS)
    found = ModelPruning.sanitize_parameters_to_prune(model, (), ["weight"])
    assert [(type(part).__name__, name) for part, name in found] == [("Linear", "weight")] * 2
    with pytest.raises(MisconfigurationException, match="does not have: 'weight' of Linear"):
        ModelPruning.sanitize_parameters_to_prune(model, [(torch.nn.Linear(1, 1), "weight")])
    with pytest.raises(MisconfigurationException, match="must be pairs of a module"):
        ModelPruning.sanitize_parameters_to_prune(model, ["head"])
