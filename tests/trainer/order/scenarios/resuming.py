"""Saving and going on from what was saved."""

from __future__ import annotations

import os
from typing import Any

from tests.trainer.order.bench import Bench
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()


def _saves_in(bench: Bench, hook: str, *, at: int | None = None, epoch: int | None = None) -> Any:
    """A callback that saves in ``hook``, at batch ``at`` of epoch ``epoch``."""

    def method(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        index = next((a for a in args if isinstance(a, int)), None)
        if index == at and epoch in (None, trainer.current_epoch):
            trainer.save_checkpoint(os.path.join(bench.folder, "saved.ckpt"))

    return bench.callback(**{hook: method})


def _resume(bench: Bench, module: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> None:
    bench.trainer(**first)
    bench.fit(bench.module(**module))
    path = os.path.join(bench.folder, "saved.ckpt")
    if not os.path.exists(path):
        path = bench.save()
    bench.trainer(**second)
    bench.fit(bench.module(**module), ckpt_path=path)


@scenario
def resume_after_an_epoch(bench: Bench) -> None:
    _resume(bench, {}, {"max_epochs": 1, "num_sanity_val_steps": 2}, {"max_epochs": 2, "num_sanity_val_steps": 2})


@scenario
def resume_after_two_epochs_with_all_schedulers(bench: Bench) -> None:
    module = {"optimizer": "every second", "val": 1}
    _resume(bench, module, {"max_epochs": 3}, {"max_epochs": 6})


@scenario
def resume_with_plateau(bench: Bench) -> None:
    _resume(bench, {"optimizer": "plateau every second", "val": 1}, {"max_epochs": 2}, {"max_epochs": 5})


@scenario
def resume_plain(bench: Bench) -> None:
    _resume(bench, {"plain": True}, {"max_epochs": 1}, {"max_epochs": 3})


@scenario
def resume_when_nothing_is_left(bench: Bench) -> None:
    _resume(bench, {}, {"max_epochs": 1}, {"max_epochs": 1})


@scenario
def resume_saved_in_train_epoch_end(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_epoch_end")], "max_epochs": 1}
    _resume(bench, {}, first, {"num_sanity_val_steps": 1})


@scenario
def resume_saved_in_train_end(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_end")], "max_epochs": 1}
    _resume(bench, {}, first, {"max_epochs": 2})


@scenario
def resume_saved_in_validation_end(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_validation_end")], "max_epochs": 1}
    _resume(bench, {}, first, {"num_sanity_val_steps": 1})


@scenario
def resume_saved_in_validation_end_inside_an_epoch(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_validation_end", epoch=0)], "max_epochs": 1, "val_check_interval": 2}
    _resume(bench, {"train": 5, "val": 1}, first, {"val_check_interval": 2})


@scenario
def resume_saved_in_train_batch_end(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_batch_end", at=1, epoch=0)], "max_epochs": 1}
    _resume(bench, {"train": 4, "val": 1, "optimizer": "both"}, first, {"num_sanity_val_steps": 1})


@scenario
def resume_saved_in_train_batch_end_of_the_second_epoch(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_batch_end", at=1, epoch=1)]}
    _resume(bench, {"train": 4, "val": 1}, first, {"max_epochs": 3})


@scenario
def resume_saved_in_last_train_batch_end(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_batch_end", at=2, epoch=0)], "max_epochs": 1}
    _resume(bench, {"train": 3, "val": 1}, first, {})


@scenario
def resume_where_validation_was_due(bench: Bench) -> None:
    first = {
        "callbacks": [_saves_in(bench, "on_train_batch_end", at=1, epoch=0)],
        "max_epochs": 1,
        "val_check_interval": 2,
    }
    _resume(bench, {"train": 4, "val": 1}, first, {"val_check_interval": 2})


@scenario
def resume_inside_a_window(bench: Bench) -> None:
    first = {
        "callbacks": [_saves_in(bench, "on_train_batch_end", at=2, epoch=0)],
        "max_epochs": 1,
        "accumulate_grad_batches": 2,
    }
    _resume(bench, {"train": 6, "val": 1}, first, {"accumulate_grad_batches": 2})


@scenario
def resume_after_max_steps(bench: Bench) -> None:
    _resume(bench, {"train": 4, "val": 1}, {"max_steps": 5}, {"max_steps": 9})


@scenario
def resume_after_max_steps_at_the_end_of_an_epoch(bench: Bench) -> None:
    _resume(bench, {"train": 4, "val": 1}, {"max_steps": 4}, {"max_steps": 9})


@scenario
def resume_after_max_steps_accumulating(bench: Bench) -> None:
    options = {"accumulate_grad_batches": 2}
    _resume(bench, {"train": 5, "val": 1}, {"max_steps": 4, **options}, {"max_steps": 7, **options})


@scenario
def resume_steps_then_epochs(bench: Bench) -> None:
    _resume(bench, {"train": 4, "val": 1}, {"max_epochs": 1}, {"max_steps": 7})


@scenario
def resume_after_a_stop_inside_an_epoch(bench: Bench) -> None:
    def stop(this: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop = batch_idx == 1

    first = {"callbacks": [bench.callback(on_train_batch_end=stop)]}
    _resume(bench, {"train": 4, "val": 1}, first, {"max_epochs": 3})


@scenario
def resume_saved_in_validation_start(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_validation_start", epoch=0)], "max_epochs": 1, "val_check_interval": 2}
    _resume(bench, {"train": 4, "val": 1}, first, {"val_check_interval": 2})


@scenario
def resume_saved_in_train_batch_end_with_logger(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_batch_end", at=1, epoch=0)], "max_epochs": 1}
    second = {"logger": bench.logger(), "log_every_n_steps": 1}
    _resume(bench, {"train": 4, "val": 1}, first, second)


@scenario
def resume_saved_in_train_batch_end_plain(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_batch_end", at=1, epoch=0)], "max_epochs": 1}
    _resume(bench, {"train": 4, "val": 1, "plain": True}, first, {"num_sanity_val_steps": 2})


@scenario
def resume_saved_on_an_error(bench: Bench) -> None:
    """A callback saves when the training breaks off, as many do."""

    def save(this: Any, trainer: Any, module: Any, error: BaseException) -> None:
        trainer.save_checkpoint(os.path.join(bench.folder, "saved.ckpt"))

    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2 and module.trainer.max_epochs == 1:
            raise ValueError("on purpose")
        return module.loss(batch)

    first = {"callbacks": [bench.callback(on_exception=save)], "max_epochs": 1}
    _resume(bench, {"train": 4, "val": 1, "step": step}, first, {"max_epochs": 2})


@scenario
def resume_saved_in_train_epoch_end_by_steps(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_train_epoch_end")], "max_steps": 6}
    _resume(bench, {"train": 4, "val": 1}, first, {"max_steps": 11})


@scenario
def resume_saved_in_validation_end_with_logger(bench: Bench) -> None:
    first = {"callbacks": [_saves_in(bench, "on_validation_end", epoch=0)], "max_epochs": 1, "val_check_interval": 2}
    second = {"logger": bench.logger(), "log_every_n_steps": 1, "val_check_interval": 2}
    _resume(bench, {"train": 5, "val": 1}, first, second)


@scenario
def resume_after_max_steps_with_epochs(bench: Bench) -> None:
    _resume(bench, {"train": 4, "val": 1}, {"max_steps": 2}, {"max_epochs": 2})


@scenario
def resume_across_epochs(bench: Bench) -> None:
    options = {"check_val_every_n_epoch": None, "val_check_interval": 5}
    _resume(bench, {"train": 4, "val": 1}, {"max_epochs": 1, **options}, {"max_epochs": 4, **options})


@scenario
def resume_with_logger(bench: Bench) -> None:
    _resume(
        bench,
        {"train": 3, "val": 1},
        {"max_epochs": 1, "logger": bench.logger(), "log_every_n_steps": 2},
        {"max_epochs": 2, "logger": bench.logger(), "log_every_n_steps": 2},
    )


@scenario
def resume_with_datamodule(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    bench.fit(bench.module(), datamodule=bench.datamodule())
    path = bench.save()
    bench.trainer(max_epochs=2)
    bench.fit(bench.module(), datamodule=bench.datamodule(), ckpt_path=path)


@scenario
def resume_manual(bench: Bench) -> None:
    def step(module: Any, batch: Any, batch_idx: int) -> None:
        for net, optimizer in zip((module.net, module.net2), module.optimizers(), strict=True):
            optimizer.zero_grad()
            module.manual_backward(net(batch).pow(2).mean())
            optimizer.step()

    _resume(bench, {"manual": True, "optimizer": "two", "step": step, "val": 1}, {"max_epochs": 1}, {"max_epochs": 2})


@scenario
def resume_of_weights_only(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    bench.fit(bench.module(val=1))
    path = bench.save(weights_only=True)
    bench.trainer(max_epochs=2)
    bench.fit(bench.module(val=1), ckpt_path=path)


@scenario
def evaluate_from_a_checkpoint(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    bench.fit(bench.module(val=1))
    path = bench.save()
    bench.trainer()
    module = bench.module()
    bench.validate(module, ckpt_path=path)
    bench.test(module, ckpt_path=path)
    bench.predict(module, ckpt_path=path)


@scenario
def resume_from_nowhere(bench: Bench) -> None:
    bench.trainer(max_epochs=1)
    bench.fit(bench.module(), ckpt_path=os.path.join(bench.folder, "nothing.ckpt"))
