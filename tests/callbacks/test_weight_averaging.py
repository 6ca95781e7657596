from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_b import HOOKBUS, RECORDED, agree, observed, resumed_and_not, run, same_weights
from tests.callbacks.data.scenarios_batch_b import data, net, weights
from torch import nn
from torch.utils.data import DataLoader

from hookbus.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, ModelPruning, WeightAveraging
from hookbus.errors import MisconfigurationException

#: In these cases Lightning's first validations see the weights from before training: it swaps in an average that was
#: never updated. So many of them are compared with what is right instead.
FAULTY = {"by epoch": 4, "from an epoch on": 2}


def loader() -> Any:
    return DataLoader(data(8), batch_size=4)


class ByEpoch(WeightAveraging):
    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return epoch_idx is not None and epoch_idx >= 1


def test_weights_and_what_validations_see_are_lightnings(tmp_path: Path) -> None:
    found, expected = observed("weight_averaging", tmp_path), RECORDED["weight_averaging"]
    for case, faulty in FAULTY.items():
        right, wrong = found[case]["seen"][:faulty], expected[case]["seen"][:faulty]
        assert wrong == [wrong[0]] * faulty
        assert wrong[0] not in right
        found[case]["seen"][:faulty] = wrong
    agree(found, expected)


def test_before_the_first_update_validations_see_the_trained_weights(tmp_path: Path) -> None:
    late, plain = net(HOOKBUS), net(HOOKBUS)
    options = {"folder": tmp_path, "max_epochs": 2, "val_check_interval": 1, "num_sanity_val_steps": 1}
    run(late, EMAWeightAveraging(update_starting_at_step=100), val=loader(), **options)
    run(plain, val=loader(), **options)
    assert late.seen == plain.seen
    assert same_weights(late, plain)


def test_after_each_validation_training_goes_on_with_the_trained_weights(tmp_path: Path) -> None:
    def last_step(callback: Callback | None) -> Any:
        model, seen = net(HOOKBUS), []

        class Seen(Callback):
            def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
                seen.append(weights(pl_module))

        callbacks = [Seen()] if callback is None else [callback, Seen()]
        run(model, *callbacks, folder=tmp_path, max_epochs=3, val=[loader(), loader()])
        return seen

    assert last_step(EMAWeightAveraging(decay=0.5)) == last_step(None)


def test_the_modules_own_hook_still_sees_the_average(tmp_path: Path) -> None:
    def ends(self: Any) -> None:
        self.at_end = self.head.weight.abs().sum().item()

    model = net(HOOKBUS, on_validation_epoch_end=ends)
    run(model, EMAWeightAveraging(decay=0.9), folder=tmp_path, max_epochs=2, val=loader())
    assert model.at_end == model.seen[-1]


def test_an_average_takes_one_update_for_each_optimizer_step(tmp_path: Path) -> None:
    steps: list[int] = []

    class Counting(WeightAveraging):
        def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
            steps.extend([] if step_idx is None else [step_idx])
            return super().should_update(step_idx, epoch_idx)

    model = net(HOOKBUS)
    model.samples = 28
    run(model, Counting(), folder=tmp_path, accumulate_grad_batches=3)
    assert steps == [0, 1, 2]


def test_without_averaged_buffers_the_statistics_are_computed_anew(tmp_path: Path) -> None:
    model = net(HOOKBUS, batch_norm=True)
    run(model, WeightAveraging(use_buffers=False), folder=tmp_path, max_epochs=2)
    ours = [model.backbone[1].running_mean.clone(), model.backbone[1].running_var.clone()]
    torch.optim.swa_utils.update_bn(model.train_dataloader(), model)
    torch.testing.assert_close(ours, [model.backbone[1].running_mean, model.backbone[1].running_var])


@pytest.mark.parametrize(("make", "cut"), [(lambda: EMAWeightAveraging(decay=0.7), 1), (ByEpoch, 0), (ByEpoch, 1)])
def test_a_resumed_run_ends_with_the_same_weights(make: Any, cut: int, tmp_path: Path) -> None:
    whole, resumed = resumed_and_not(tmp_path, lambda: net(HOOKBUS, batch_norm=True), make, epochs=4, cut=cut)
    assert same_weights(whole, resumed)


def test_checkpoints_hold_both_and_evaluations_take_the_average(tmp_path: Path) -> None:
    path = tmp_path / "between.ckpt"

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if trainer.global_step == 4:
                trainer.save_checkpoint(path)
                self.trained = weights(pl_module)

    model, average, save = net(HOOKBUS), EMAWeightAveraging(decay=0.5), Save()
    run(model, average, save, folder=tmp_path, max_epochs=1)
    checkpoint = torch.load(path, weights_only=True)
    assert {key: value.flatten().tolist() for key, value in checkpoint["current_model_state"].items()} == save.trained
    assert {key: value.flatten().tolist() for key, value in checkpoint["state_dict"].items()} == weights(model)
    assert int(checkpoint["averaging_state"]["n_averaged"]) == 4
    other = net(HOOKBUS)
    HOOKBUS.trainer(tmp_path, callbacks=[EMAWeightAveraging()]).validate(other, loader(), ckpt_path=path)
    assert same_weights(other, model)


def test_a_checkpoint_that_is_saved_within_a_validation_is_not_mixed_up(tmp_path: Path) -> None:
    class Save(Callback):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "within.ckpt")
            self.average = weights(pl_module)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self.trained = weights(pl_module)

    save = Save()
    run(net(HOOKBUS), EMAWeightAveraging(decay=0.5), save, folder=tmp_path, val=loader())
    checkpoint = torch.load(tmp_path / "within.ckpt", weights_only=True)
    assert {key: value.flatten().tolist() for key, value in checkpoint["state_dict"].items()} == save.average
    assert {key: value.flatten().tolist() for key, value in checkpoint["current_model_state"].items()} == save.trained


def test_a_checkpoint_from_before_the_first_update_is_a_plain_one(tmp_path: Path) -> None:
    trainer = run(net(HOOKBUS), EMAWeightAveraging(update_starting_at_step=100), folder=tmp_path)
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    assert "current_model_state" not in torch.load(tmp_path / "plain.ckpt", weights_only=True)


def test_an_exception_within_a_validation_brings_the_trained_weights_back(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            self.trained = weights(pl_module)

        def on_validation_batch_end(self, *args: Any) -> None:
            raise ZeroDivisionError

    model, fail = net(HOOKBUS), Fail()
    with pytest.raises(ZeroDivisionError):
        run(model, EMAWeightAveraging(decay=0.5), fail, folder=tmp_path, val=loader())
    assert weights(model) == fail.trained


def test_a_trial_run_works(tmp_path: Path) -> None:
    trainer = run(net(HOOKBUS), WeightAveraging(), folder=tmp_path, fast_dev_run=True, val=loader())
    assert trainer.global_step == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: WeightAveraging(decay=0.9), "takes avg_fn and multi_avg_fn, got decay"),
        (lambda: WeightAveraging(avg_fn=3), "avg_fn must be a function"),
        (lambda: WeightAveraging(avg_fn=max, multi_avg_fn=max), "two forms of one thing"),
        (lambda: WeightAveraging(device="moon"), "is no device"),
        (lambda: EMAWeightAveraging(decay=1.5), "decay must be"),
        (lambda: EMAWeightAveraging(update_every_n_steps=-1), "update_every_n_steps must be"),
        (lambda: EMAWeightAveraging(update_starting_at_step=2.5), "update_starting_at_step must be"),
        (lambda: EMAWeightAveraging(update_starting_at_epoch=True), "update_starting_at_epoch must be"),
        (lambda: EMAWeightAveraging(avg_fn=max), "does not take avg_fn"),
    ],
)
def test_bad_arguments_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(MisconfigurationException, match=reason):
        make()


# --- modules that are not copied, and others that change ----------------------------------------------------------------


class Holder(nn.Module):
    """A layer that holds what cannot be copied, and has a state beside its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.layer, self.note = threading.Lock(), nn.Linear(4, 8), "new"

    def get_extra_state(self) -> dict[str, str]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.note = state["note"]

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def holding() -> Any:
    model = net(HOOKBUS)
    model.backbone = nn.Sequential(Holder(), nn.Tanh())
    model.backbone[0].note = "trained"
    return model


def test_a_module_that_holds_what_cannot_be_copied_is_averaged_saved_and_resumed(tmp_path: Path) -> None:
    whole, resumed = resumed_and_not(tmp_path, holding, lambda: EMAWeightAveraging(decay=0.5), epochs=3, cut=1)
    for (name, one), other in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert resumed.backbone[0].note == "trained"


def test_an_average_can_be_made_in_a_second_fit_of_a_module_that_keeps_its_losses(tmp_path: Path) -> None:
    kept: list[Any] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.kept = kept
        kept.append(loss)
        return loss

    model = net(HOOKBUS, training_step=training_step)
    run(model, WeightAveraging(), folder=tmp_path)
    trainer = run(model, WeightAveraging(), folder=tmp_path)
    assert (len(kept), trainer.global_step) == (8, 4)


def test_parameters_that_pruning_replaces_while_training_are_averaged_on(tmp_path: Path) -> None:
    model = net(HOOKBUS)
    ema = EMAWeightAveraging(decay=0.5, use_buffers=False)
    pruning = ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=False)
    val = DataLoader(data(8), batch_size=4)
    run(model, pruning, ema, folder=tmp_path, max_epochs=3, val=val, val_check_interval=2)
    weights = model.state_dict()
    assert sorted(weights) == ["backbone.0.bias", "backbone.0.weight", "head.bias", "head.weight"]
    assert ema._average_model is not None
    assert int(ema._average_model.n_averaged) == 12
    assert torch.equal(ema._average_model.module.state_dict()["head.weight"], weights["head.weight"])


@pytest.mark.parametrize("pruning_first", [False, True])
def test_an_average_of_pruned_weights_is_saved_without_masks_and_resumed(pruning_first: bool, tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        both = [EMAWeightAveraging(decay=0.5), ModelPruning("l1_unstructured", amount=0.3)]
        return both[::-1] if pruning_first else both

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 6:  # in the middle of the second epoch
                trainer.save_checkpoint(path)

    path = tmp_path / "cut.ckpt"
    run(net(HOOKBUS), *callbacks(), Save(), folder=tmp_path, max_epochs=2)
    plain = ["backbone.0.bias", "backbone.0.weight", "head.bias", "head.weight"]
    saved = torch.load(path, weights_only=True)
    assert sorted(saved["state_dict"]) == sorted(saved["current_model_state"]) == plain
    model, ema = net(HOOKBUS), callbacks()
    trainer = run(model, *ema, folder=tmp_path, max_epochs=3, ckpt_path=path)
    assert trainer.global_step == 12
    assert sorted(model.state_dict()) == plain
    assert [int(one._average_model.n_averaged) for one in ema if isinstance(one, EMAWeightAveraging)] == [12]


@pytest.mark.parametrize("weights_only", [False, True])
def test_the_best_file_holds_the_weights_that_earned_its_score(weights_only: bool, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path / "best", monitor="val_loss", save_weights_only=weights_only)
    val = DataLoader(data(8), batch_size=4)
    model = net(HOOKBUS)
    trainer = run(
        model, EMAWeightAveraging(decay=0.9), saver, folder=tmp_path, max_epochs=2, val=val, enable_checkpointing=True
    )
    (metrics,) = trainer.validate(model, val, ckpt_path="best", verbose=False)
    assert metrics["val_loss"] == pytest.approx(float(saver.best_model_score))


def test_two_averages_in_one_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="WeightAveraging and EMAWeightAveraging each put an average"):
        run(net(HOOKBUS), WeightAveraging(), EMAWeightAveraging(), folder=tmp_path)


def test_an_average_that_is_updated_at_even_steps_is_updated_with_two_optimizers(tmp_path: Path) -> None:
    """They take two steps in each batch, so that the count of steps is even after every batch."""

    def configure_optimizers(self: Any) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.backbone, self.head)]

    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        nn.functional.mse_loss(self(batch[0]), batch[1]).backward()
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    model = net(HOOKBUS, training_step=training_step, configure_optimizers=configure_optimizers)
    model.automatic_optimization = False
    ema = EMAWeightAveraging(decay=0.5, update_every_n_steps=2)
    trainer = run(model, ema, folder=tmp_path)
    assert trainer.global_step == 8
    assert ema._average_model is not None
    assert int(ema._average_model.n_averaged) == 4
