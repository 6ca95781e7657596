"""Callbacks and loggers: their order, what they may log, and what loggers are told."""

from __future__ import annotations

from typing import Any

import torch
from tests.trainer.order.bench import Bench
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()


def _logs_both(module: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
    loss = module.loss(batch)
    module.log("train_loss", loss, on_step=True, on_epoch=True)
    return loss


# -- order -------------------------------------------------------------------------------------------------------------


@scenario
def two_callbacks(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback("a"), bench.callback("b")], num_sanity_val_steps=1, max_epochs=1)
    bench.fit(bench.module(train=2, val=1))


@scenario
def callbacks_of_the_module(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback("a"), bench.callback("b")], max_epochs=1)
    brought = bench.callback("brought", base=_other(bench))
    bench.fit(bench.module(train=2, val=1, configure_callbacks=lambda self: [brought]))


@scenario
def callback_of_the_module_alone(bench: Bench) -> None:
    bench.trainer(callbacks=[], max_epochs=1)
    brought = bench.callback("brought")
    bench.fit(bench.module(train=2, val=1, configure_callbacks=lambda self: brought))


@scenario
def callbacks_of_the_module_in_each_run(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback("a")], max_epochs=1)
    brought = type(bench.callback("brought"))
    module = bench.module(train=1, val=1, configure_callbacks=lambda self: [brought()])
    bench.fit(module)
    bench.validate(module)


@scenario
def callbacks_of_the_module_replace_their_type(bench: Bench) -> None:
    """Of two callbacks of one type in the trainer both go; the one of another type stays."""
    hooks = {"on_train_epoch_start", "on_train_end", "setup"}
    base = bench.peer.Callback

    def kind(name: str) -> type:
        return type(name, (base,), {"state_key": property(lambda this: this.owner), "state_dict": lambda this: {}})

    first, second = (bench.recording.recorded(kind(name), name, hooks) for name in ("first", "second"))

    def make(cls: type, owner: str) -> Any:
        made = cls()
        made.owner = owner
        return made

    bench.trainer(callbacks=[make(first, "x"), make(second, "y"), make(first, "z")], max_epochs=1)
    bench.fit(bench.module(train=1, val=1, configure_callbacks=lambda self: [make(first, "brought")]))
    bench.answers.append([c.owner for c in bench.recording.trainer.callbacks])


def _other(bench: Bench) -> type:
    return type("Other", (bench.peer.Callback,), {})


@scenario
def callback_added_in_setup(bench: Bench) -> None:
    late = bench.callback("late")

    def setup(this: Any, trainer: Any, module: Any, stage: str) -> None:
        if late not in trainer.callbacks:
            trainer.callbacks.append(late)

    bench.trainer(callbacks=[bench.callback("a", setup=setup), bench.callback("b")], max_epochs=1)
    bench.fit(bench.module(train=2, val=1))


@scenario
def callback_removed_between_runs(bench: Bench) -> None:
    first = bench.callback("a")
    trainer = bench.trainer(callbacks=[first, bench.callback("b")], max_epochs=1)
    module = bench.module(train=1, val=1, plain=True)
    bench.fit(module)
    trainer.callbacks.remove(first)
    bench.validate(module)


@scenario
def early_stopping_and_checkpoint(bench: Bench) -> None:
    """Both come after the module in on_train_epoch_end; the checkpoint stands last in the list."""
    callbacks = [
        bench.checkpoint(monitor="train_loss_epoch"),
        bench.callback("a"),
        bench.early_stopping(monitor="train_loss_epoch", patience=9),
        bench.callback("b"),
    ]
    bench.trainer(callbacks=callbacks, enable_checkpointing=True)
    brought = bench.callback("brought", base=_other(bench))
    bench.fit(bench.module(train=2, val=1, step=_logs_both, configure_callbacks=lambda self: [brought]))


@scenario
def early_stopping_on_validation(bench: Bench) -> None:
    stop = bench.early_stopping(monitor="val_loss", patience=1, mode="max", min_delta=100.0)
    bench.trainer(callbacks=[bench.callback(), stop], max_epochs=9, num_sanity_val_steps=1)
    bench.fit(bench.module(train=2, val=1))


@scenario
def early_stopping_inside_an_epoch(bench: Bench) -> None:
    stop = bench.early_stopping(monitor="val_loss", patience=1, mode="max", min_delta=100.0)
    bench.trainer(callbacks=[stop, bench.callback()], max_epochs=9, val_check_interval=2)
    bench.fit(bench.module(train=5, val=1))


@scenario
def early_stopping_at_the_end_of_training_epochs(bench: Bench) -> None:
    stop = bench.early_stopping(
        monitor="train_loss", patience=0, mode="max", min_delta=100.0, check_on_train_epoch_end=True
    )
    bench.trainer(callbacks=[stop, bench.callback()], max_epochs=9, min_epochs=3)
    bench.fit(bench.module(train=2, val=1))


@scenario
def early_stopping_without_value(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback(), bench.early_stopping(monitor="nobody")])
    bench.fit(bench.module(train=2, val=1))


@scenario
def checkpoint_of_everything(bench: Bench) -> None:
    """Sanity check, validation inside the epoch, accumulation, clipping, two schedulers, checkpoint and logger."""
    bench.trainer(
        callbacks=[bench.callback(), bench.checkpoint(monitor="val_loss", save_last=True)],
        enable_checkpointing=True,
        logger=bench.logger(),
        log_every_n_steps=1,
        num_sanity_val_steps=1,
        val_check_interval=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        max_epochs=1,
    )
    bench.fit(bench.module(train=4, val=1, optimizer="both"))


@scenario
def checkpoint_without_monitor(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.checkpoint(), bench.callback()], enable_checkpointing=True)
    bench.fit(bench.module(train=2, val=1))


@scenario
def checkpoint_without_validation(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.checkpoint(), bench.callback()], enable_checkpointing=True)
    bench.fit(bench.module(train=2, val=None))


@scenario
def checkpoint_every_step(bench: Bench) -> None:
    checkpoint = bench.checkpoint(every_n_train_steps=1, save_top_k=-1)
    bench.trainer(callbacks=[checkpoint, bench.callback()], enable_checkpointing=True, max_epochs=1)
    bench.fit(bench.module(train=3, val=1))


@scenario
def checkpoint_every_second_step_accumulating(bench: Bench) -> None:
    checkpoint = bench.checkpoint(every_n_train_steps=2, save_top_k=-1)
    bench.trainer(
        callbacks=[checkpoint, bench.callback()], enable_checkpointing=True, accumulate_grad_batches=2, max_epochs=1
    )
    bench.fit(bench.module(train=9, val=None))


@scenario
def checkpoint_every_second_epoch(bench: Bench) -> None:
    checkpoint = bench.checkpoint(every_n_epochs=2, save_top_k=-1)
    bench.trainer(callbacks=[checkpoint, bench.callback()], enable_checkpointing=True, max_epochs=4)
    bench.fit(bench.module(train=1, val=1))


@scenario
def checkpoint_at_the_end_of_training_epochs(bench: Bench) -> None:
    checkpoint = bench.checkpoint(monitor="val_loss", save_on_train_epoch_end=True, save_top_k=1)
    bench.trainer(callbacks=[checkpoint, bench.callback()], enable_checkpointing=True, logger=bench.logger())
    bench.fit(bench.module(train=2, val=1))


@scenario
def checkpoint_then_test_of_the_best(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback(), bench.checkpoint()], enable_checkpointing=True, max_epochs=1)
    module = bench.module()
    bench.fit(module)
    bench.test(module, ckpt_path="best")
    bench.validate(module, ckpt_path="best")
    bench.predict(module, ckpt_path="best")


@scenario
def checkpoint_on_exception(bench: Bench) -> None:
    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 1:
            raise ValueError("on purpose")
        return module.loss(batch)

    callbacks = [bench.callback(), bench.checkpoint(save_on_exception=True)]
    bench.trainer(callbacks=callbacks, enable_checkpointing=True, logger=bench.logger())
    bench.fit(bench.module(step=step), datamodule=bench.datamodule())


# -- logging -----------------------------------------------------------------------------------------------------------

_LOGGING_HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
)
_SILENT_HOOKS = ("setup", "on_fit_start", "on_sanity_check_start", "on_validation_end", "on_train_end", "teardown")


def _logs(name: str, **options: Any) -> Any:
    def method(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        module.log(name, torch.tensor(1.0 + trainer.global_step), **options)

    return method


@scenario
def callback_logs_in_each_hook(bench: Bench) -> None:
    callback = bench.callback(**{hook: _logs(hook.removeprefix("on_")) for hook in _LOGGING_HOOKS})
    bench.trainer(callbacks=[callback], logger=bench.logger(), log_every_n_steps=1, num_sanity_val_steps=1)
    bench.fit(bench.module(train=2, val=1))


for _hook in (*_SILENT_HOOKS, "on_validation_model_eval", "configure_optimizers"):

    def _forbidden(bench: Bench, hook: str = _hook) -> None:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.log("value", 1.0)

        bench.trainer(max_epochs=1, num_sanity_val_steps=1)
        if hook == "on_sanity_check_start":
            bench.trainer(callbacks=[bench.callback(**{hook: _logs("value")})], max_epochs=1, num_sanity_val_steps=1)
            bench.fit(bench.module(train=1, val=1))
        else:
            bench.fit(bench.module(train=1, val=1, **{hook: method}))

    _forbidden.__name__ = f"no_log_in_{_hook.removeprefix('on_')}"
    scenario(_forbidden)


@scenario
def callback_metrics_in_each_hook(bench: Bench) -> None:
    """What ``trainer.callback_metrics`` holds at each moment."""
    seen: list[Any] = []

    def look(hook: str) -> Any:
        def method(this: Any, trainer: Any, module: Any, *args: Any) -> None:
            seen.append([hook, {k: round(float(v), 5) for k, v in sorted(trainer.callback_metrics.items())}])

        return method

    hooks = [h for h in _LOGGING_HOOKS if "before" not in h] + ["on_validation_end", "on_train_end", "on_fit_end"]
    bench.trainer(callbacks=[bench.callback(**{hook: look(hook) for hook in hooks})], num_sanity_val_steps=1)
    bench.fit(bench.module(train=2, val=1, step=_logs_both, plain=True))
    bench.answers.append(seen)


@scenario
def logger_each_step(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=1)
    bench.fit(bench.module(train=2, val=1, step=_logs_both))


@scenario
def logger_every_second_step(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=2, max_epochs=3)
    bench.fit(bench.module(train=3, val=1, step=_logs_both, plain=True))


@scenario
def logger_accumulating(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=2, accumulate_grad_batches=2)
    bench.fit(bench.module(train=5, val=1, step=_logs_both))


@scenario
def logger_every_zero_steps(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=0)
    bench.fit(bench.module(train=2, val=1, step=_logs_both))


@scenario
def two_loggers(bench: Bench) -> None:
    bench.trainer(logger=[bench.logger("one"), bench.logger("two")], log_every_n_steps=1, max_epochs=1)
    bench.fit(bench.module(train=2, val=1))


@scenario
def logger_in_fast_dev_run(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), fast_dev_run=True)
    bench.fit(bench.module(train=2, val=1))


@scenario
def logger_of_each_entry_point(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=1, max_epochs=1)
    module = bench.module(train=1, val=1, test=(1, 2))
    bench.fit(module)
    bench.validate(module)
    bench.test(module)
    bench.predict(module)


@scenario
def logger_of_steps_of_a_validation(bench: Bench) -> None:
    def validation_step(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.loss(batch), on_step=True, on_epoch=True)

    bench.trainer(logger=bench.logger(), log_every_n_steps=1, num_sanity_val_steps=1)
    bench.fit(bench.module(train=1, val=(2, 1), validation_step=validation_step, plain=True))


@scenario
def logger_with_hyper_parameters(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), max_epochs=1)

    module = bench.module(train=1, val=1)
    module.save_hyperparameters({"width": 4})
    bench.fit(module)


@scenario
def logger_max_steps(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=2, max_steps=5)
    bench.fit(bench.module(train=3, val=1, step=_logs_both, plain=True))


@scenario
def logger_with_step_of_its_own(bench: Bench) -> None:
    def step(module: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        module.log("step", float(100 + batch_idx))
        return _logs_both(module, batch, batch_idx)

    bench.trainer(logger=bench.logger(), log_every_n_steps=1, max_epochs=1)
    bench.fit(bench.module(train=2, val=1, step=step))
