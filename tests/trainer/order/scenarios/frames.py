"""The frames: fit, validate, test and predict from end to end; data modules; several runs of one trainer."""

from __future__ import annotations

from typing import Any

import torch
from tests.trainer.order.bench import Bench, loader
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

scenario.fit("fit", {"num_sanity_val_steps": 2})
scenario.fit("fit_plain", {"num_sanity_val_steps": 2}, plain=True)
scenario.fit("fit_without_callbacks", {"callbacks": [], "num_sanity_val_steps": 1})
scenario.fit("fit_sanity_of_one_of_two", {"num_sanity_val_steps": 1, "max_epochs": 1})
scenario.fit("fit_sanity_of_all", {"num_sanity_val_steps": -1, "max_epochs": 1}, val=(3, 1))
scenario.fit("fit_without_validation_loader", {"num_sanity_val_steps": 2}, val=None)
scenario.fit("fit_without_validation_step", {"num_sanity_val_steps": 2}, validation_step=None)
scenario.fit("fit_without_validation_step_plain", {"num_sanity_val_steps": 2}, validation_step=None, plain=True)
scenario.fit("fit_limit_val_batches_zero", {"limit_val_batches": 0, "num_sanity_val_steps": 2})
scenario.fit("fit_validation_loader_empty", {"num_sanity_val_steps": 2}, val=0)
scenario.fit("fit_one_of_two_validation_loaders_empty", {"num_sanity_val_steps": 2, "max_epochs": 1}, val=(0, 2))
scenario.fit("fit_training_loader_empty", {"num_sanity_val_steps": 2}, train=0)
scenario.fit("fit_fast_dev_run", {"fast_dev_run": True, "max_epochs": 5})
scenario.fit("fit_fast_dev_run_of_two", {"fast_dev_run": 2, "max_epochs": 5, "val_check_interval": 3})
scenario.fit("fit_barebones", {"barebones": True, "max_epochs": 1}, plain=True, step=lambda m, batch, i: m.loss(batch))
scenario.fit("fit_without_inference_mode", {"inference_mode": False, "max_epochs": 1})
scenario.fit("fit_detect_anomaly", {"detect_anomaly": True, "max_epochs": 1}, plain=True)
scenario.fit(
    "fit_reload_each_epoch", {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3, "num_sanity_val_steps": 1}
)
scenario.fit("fit_reload_every_second_epoch", {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 5}, train=1, val=1)
scenario.fit(
    "fit_reload_with_rare_validation",
    {"reload_dataloaders_every_n_epochs": 1, "check_val_every_n_epoch": 2, "max_epochs": 4},
    train=1,
    val=1,
)


def _noisy(module: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
    return module.loss(batch + 0.1 * torch.randn_like(batch))


def _shuffled() -> Any:
    return loader(4, shuffle=True)


scenario.fit("fit_random_draws", {"num_sanity_val_steps": 2}, train=_shuffled, dropout=0.4, step=_noisy, plain=True)
scenario.fit(
    "fit_random_draws_of_a_validation_that_draws",
    {"num_sanity_val_steps": 2, "val_check_interval": 2, "max_epochs": 3},
    train=_shuffled,
    val=_shuffled,
    step=_noisy,
    validation_step=lambda self, batch, batch_idx: self.log("val_loss", self.loss(torch.randn_like(batch))),
    plain=True,
)


@scenario
def fit_loaders_passed(bench: Bench) -> None:
    bench.trainer(num_sanity_val_steps=1)
    bench.fit(bench.module(train=None, val=None), loader(2), [loader(1)])


@scenario
def fit_datamodule(bench: Bench) -> None:
    bench.trainer(num_sanity_val_steps=1)
    bench.fit(bench.module(), datamodule=bench.datamodule())


@scenario
def all_with_datamodule(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    module, data = bench.module(), bench.datamodule()
    bench.fit(module, datamodule=data)
    bench.validate(module, datamodule=data)
    bench.test(module, datamodule=data)
    bench.predict(module, datamodule=data)


@scenario
def datamodule_that_changes_batches(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    double = {
        "on_before_batch_transfer": lambda this, batch, dataloader_idx: batch * 2,
        "on_after_batch_transfer": lambda this, batch, dataloader_idx: batch + 1,
    }
    bench.fit(bench.module(), datamodule=bench.datamodule(**double))


@scenario
def all_of_one_trainer(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    module = bench.module()
    bench.fit(module)
    bench.validate(module)
    bench.test(module)
    bench.predict(module)


@scenario
def validate_then_fit(bench: Bench) -> None:
    bench.trainer(max_epochs=1, num_sanity_val_steps=1)
    module = bench.module()
    bench.validate(module)
    bench.fit(module)
    bench.validate(module)


@scenario
def fit_twice(bench: Bench) -> None:
    bench.trainer(num_sanity_val_steps=1)
    module = bench.module()
    bench.fit(module)
    bench.fit(module)


@scenario
def fit_twice_with_more_epochs(bench: Bench) -> None:
    trainer = bench.trainer(max_epochs=1, num_sanity_val_steps=1)
    module = bench.module()
    bench.fit(module)
    trainer.fit_loop.max_epochs = 3
    bench.fit(module)


@scenario
def fit_twice_after_a_stop(bench: Bench) -> None:
    def stop(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.should_stop = True

    bench.trainer(callbacks=[bench.callback(on_train_epoch_end=stop)])
    module = bench.module()
    bench.fit(module)
    bench.fit(module)


def _fails_once(error: type[BaseException], at: int) -> Any:
    failed: list[int] = []

    def step(module: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if module.trainer.current_epoch == 1 and batch_idx == at and not failed:
            failed.append(at)
            raise error("on purpose")
        return module.loss(batch)

    return step


for _error in (ValueError, KeyboardInterrupt):
    for _at in (0, 1):

        def _again(bench: Bench, error: type[BaseException] = _error, at: int = _at) -> None:
            bench.trainer(num_sanity_val_steps=1)
            module = bench.module(step=_fails_once(error, at))
            bench.fit(module)
            bench.fit(module)

        _again.__name__ = f"fit_again_after_{_error.__name__}_at_batch_{_at}"
        scenario(_again)


@scenario
def fit_again_after_error_in_validation(bench: Bench) -> None:
    failed: list[int] = []

    def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        if self.trainer.global_step == 4 and not failed:
            failed.append(0)
            raise ValueError("on purpose")

    bench.trainer(val_check_interval=2)
    module = bench.module(train=4, validation_step=validation_step)
    bench.fit(module)
    bench.fit(module)


@scenario
def fit_another_module(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    bench.fit(bench.module())
    bench.fit(bench.module())


@scenario
def fit_twice_after_max_steps(bench: Bench) -> None:
    trainer = bench.trainer(max_steps=4)
    module = bench.module()
    bench.fit(module)
    getattr(trainer.fit_loop, "epoch_loop", trainer.fit_loop).max_steps = 8
    bench.fit(module)


for _entry in ("validate", "test", "predict"):
    for _kind, _options in {
        "": {},
        "_plain": {"plain": True},
        "_two_loaders": {"val": (1, 2), "test": (1, 2), "predict": (1, 2)},
        "_empty": {"val": 0, "test": 0, "predict": 0},
        "_without_data": {"val": None, "test": None, "predict": None},
        "_without_step": {"validation_step": None, "test_step": None, "predict_step": None},
    }.items():

        def _play(bench: Bench, entry: str = _entry, options: dict[str, Any] = _options) -> None:
            bench.trainer()
            getattr(bench, entry)(bench.module(**options))

        _play.__name__ = f"{_entry}{_kind}"
        scenario(_play)


@scenario
def validate_dictionary_of_loaders(bench: Bench) -> None:
    bench.trainer()
    module = bench.module(val=(1, 1))
    bench.validate(module, {"a": loader(1), "b": [loader(2), loader(1)]})


@scenario
def test_limited(bench: Bench) -> None:
    bench.trainer(limit_test_batches=0.5, logger=bench.logger())
    bench.test(bench.module(test=(4, 2)))


@scenario
def predict_limited(bench: Bench) -> None:
    bench.trainer(limit_predict_batches=1)
    bench.predict(bench.module(predict=(2, 2)))


@scenario
def predict_without_answers(bench: Bench) -> None:
    bench.trainer()
    bench.predict(bench.module(), return_predictions=False)


@scenario
def evaluation_restores_modes(bench: Bench) -> None:
    """A frozen part stays in eval mode after a validation, where nobody overrides on_validation_model_train."""
    seen: list[Any] = []

    def look(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        seen.append([module.training, module.net.training, module.drop.training])

    def freeze(this: Any, trainer: Any, module: Any) -> None:
        module.drop.eval()

    watcher = bench.callback(
        on_train_start=freeze, on_train_epoch_end=look, on_validation_start=look, on_validation_end=look
    )
    bench.trainer(callbacks=[watcher], num_sanity_val_steps=1)
    bench.fit(bench.module(plain=True))
    bench.answers.append(seen)
