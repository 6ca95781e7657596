"""Exceptions in every phase, Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from tests.trainer.order.bench import Bench, loader
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()


def _raises(error: type[BaseException] = ValueError, *, at: int | None = None, number: int = 0) -> Any:
    """A method that raises; at batch ``at`` only, or at its call ``number``."""
    calls = [0]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        index = next((a for a in [*args, *kwargs.values()] if isinstance(a, int)), None)
        calls[0] += 1
        if (at is None or index == at) and calls[0] > number:
            raise error("on purpose")

    return method


def _step_raises(error: type[BaseException], at: int) -> Any:
    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == at:
            raise error("on purpose")
        return module.loss(batch)

    return step


# -- the module --------------------------------------------------------------------------------------------------------

scenario.fit("error_in_training_step", step=_step_raises(ValueError, 1))
scenario.fit("error_in_training_step_plain", step=_step_raises(ValueError, 1), plain=True)
scenario.fit("error_in_training_step_accumulating", {"accumulate_grad_batches": 2}, step=_step_raises(ValueError, 0))
scenario.fit("stop_iteration_in_training_step", step=_step_raises(StopIteration, 1))
scenario.fit("keyboard_interrupt_in_training_step", step=_step_raises(KeyboardInterrupt, 1))
scenario.fit("system_exit_in_training_step", step=_step_raises(SystemExit, 1))
_BY_MODULE = (
    "prepare_data",
    "setup",
    "configure_callbacks",
    "configure_model",
    "configure_optimizers",
    "on_fit_start",
    "train_dataloader",
    "val_dataloader",
    "on_train_epoch_start",
    "transfer_batch_to_device",
    "on_before_zero_grad",
    "backward",
    "optimizer_step",
    "lr_scheduler_step",
    "on_train_batch_end",
    "validation_step",
    "on_validation_end",
    "on_train_epoch_end",
    "on_fit_end",
    "teardown",
)
for _hook in _BY_MODULE:

    def _by_module(bench: Bench, hook: str = _hook) -> None:
        def optimizer_step(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
            raise ValueError("on purpose")

        method = optimizer_step if hook == "optimizer_step" else _raises()
        bench.trainer(max_epochs=1)
        bench.fit(bench.module(train=2, val=1, **{hook: method}))

    _by_module.__name__ = f"error_in_{_hook.removeprefix('on_')}_of_module"
    scenario(_by_module)

scenario.fit("error_in_sanity_check", {"num_sanity_val_steps": 1}, validation_step=_raises())
scenario.fit("error_in_sanity_check_plain", {"num_sanity_val_steps": 1}, validation_step=_raises(), plain=True)
scenario.fit("error_in_second_validation", validation_step=_raises(at=1, number=2), val=2)
scenario.fit("error_in_validation_plain", {"val_check_interval": 1}, validation_step=_raises(number=1), plain=True)
scenario.fit("keyboard_interrupt_in_validation", {"val_check_interval": 1}, validation_step=_raises(KeyboardInterrupt))
scenario.fit(
    "keyboard_interrupt_in_sanity_check", {"num_sanity_val_steps": 1}, validation_step=_raises(KeyboardInterrupt)
)
scenario.fit("stop_iteration_in_validation_step", {"max_epochs": 1}, validation_step=_raises(StopIteration))

for _entry, _step in (("validate", "validation_step"), ("test", "test_step"), ("predict", "predict_step")):
    for _error in (ValueError, KeyboardInterrupt, StopIteration):

        def _by_entry(
            bench: Bench, entry: str = _entry, step: str = _step, error: type[BaseException] = _error
        ) -> None:
            bench.trainer(logger=bench.logger())
            getattr(bench, entry)(bench.module(**{step: _raises(error, at=1)}))

        _word = {ValueError: "error", KeyboardInterrupt: "keyboard_interrupt", StopIteration: "stop_iteration"}[_error]
        _by_entry.__name__ = f"{_word}_in_{_step}_of_{_entry}"
        scenario(_by_entry)

# -- callbacks ---------------------------------------------------------------------------------------------------------

_BY_CALLBACK = (
    "setup",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_validation_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "teardown",
)
for _hook in _BY_CALLBACK:

    def _by_callback(bench: Bench, hook: str = _hook) -> None:
        callbacks = [bench.callback(**{hook: _raises()}), bench.callback("second")]
        bench.trainer(callbacks=callbacks, max_epochs=1, num_sanity_val_steps=1 if "sanity" in hook else 0)
        bench.fit(bench.module(train=2, val=1, plain=True))

    _by_callback.__name__ = f"error_in_{_hook.removeprefix('on_')}_of_callback"
    scenario(_by_callback)


@scenario
def error_in_second_callback(bench: Bench) -> None:
    callbacks = [bench.callback(), bench.callback("second", on_train_batch_end=_raises(at=1))]
    bench.trainer(callbacks=callbacks)
    bench.fit(bench.module())


@scenario
def error_in_on_exception(bench: Bench) -> None:
    callbacks = [bench.callback(on_exception=_raises(RuntimeError)), bench.callback("second")]
    bench.trainer(callbacks=callbacks, logger=bench.logger())
    bench.fit(bench.module(step=_step_raises(ValueError, 1)))


@scenario
def error_in_on_exception_of_interrupt(bench: Bench) -> None:
    callbacks = [bench.callback(on_exception=_raises(RuntimeError)), bench.callback("second")]
    bench.trainer(callbacks=callbacks)
    bench.fit(bench.module(step=_step_raises(KeyboardInterrupt, 1)))


@scenario
def stop_iteration_in_callback(bench: Bench) -> None:
    bench.trainer(callbacks=[bench.callback(on_train_batch_end=_raises(StopIteration, at=1))])
    bench.fit(bench.module())


@scenario
def keyboard_interrupt_in_callback(bench: Bench) -> None:
    callbacks = [bench.callback(on_train_batch_end=_raises(KeyboardInterrupt, at=1)), bench.callback("second")]
    bench.trainer(callbacks=callbacks, logger=bench.logger())
    bench.fit(bench.module(), datamodule=bench.datamodule())


@scenario
def error_in_saving(bench: Bench) -> None:
    def save(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        trainer.save_checkpoint(os.path.join(bench.folder, "x.ckpt"))

    bench.trainer(callbacks=[bench.callback(on_train_epoch_end=save)])
    bench.fit(bench.module(on_save_checkpoint=_raises()))


# -- data modules and loggers ------------------------------------------------------------------------------------------


@scenario
def error_with_datamodule_and_logger(bench: Bench) -> None:
    bench.trainer(logger=bench.logger())
    bench.fit(bench.module(step=_step_raises(ValueError, 1)), datamodule=bench.datamodule())


@scenario
def error_in_on_exception_of_datamodule(bench: Bench) -> None:
    bench.trainer(logger=bench.logger())
    data = bench.datamodule(on_exception=_raises(RuntimeError))
    bench.fit(bench.module(step=_step_raises(ValueError, 1)), datamodule=data)


for _hook in ("prepare_data", "setup", "train_dataloader", "val_dataloader", "on_after_batch_transfer", "teardown"):

    def _by_datamodule(bench: Bench, hook: str = _hook) -> None:
        bench.trainer(max_epochs=1)
        bench.fit(bench.module(plain=True), datamodule=bench.datamodule(**{hook: _raises()}))

    _by_datamodule.__name__ = f"error_in_{_hook.removeprefix('on_')}_of_datamodule"
    scenario(_by_datamodule)

for _hook in ("log_metrics", "finalize", "save"):

    def _by_logger(bench: Bench, hook: str = _hook) -> None:
        bench.trainer(max_epochs=1, logger=bench.logger(**{hook: _raises()}), log_every_n_steps=1)
        bench.fit(bench.module(train=2, val=1))

    _by_logger.__name__ = f"error_in_{_hook}_of_logger"
    scenario(_by_logger)


class _Breaks:
    """A loader that raises at its second batch."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return _BreakingIterator(self._error)


class _BreakingIterator:
    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._batches = iter(loader(1))

    def __iter__(self) -> _BreakingIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise self._error("on purpose") from None


scenario.fit("error_in_training_loader", train=lambda: _Breaks(ValueError))
scenario.fit("error_in_validation_loader", val=lambda: _Breaks(ValueError))

# -- SIGTERM -----------------------------------------------------------------------------------------------------------


def _terminate(at: int | None = None, *, epoch: int = 0) -> Any:
    def method(self: Any, *args: Any) -> None:
        trainer = getattr(self, "trainer", None) or args[0]
        index = next((a for a in args if isinstance(a, int)), None)
        if index == at and trainer.current_epoch == epoch:
            os.kill(os.getpid(), signal.SIGTERM)

    return method


def _step_terminates(at: int, epoch: int = 0) -> Any:
    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == at and module.trainer.current_epoch == epoch:
            os.kill(os.getpid(), signal.SIGTERM)
        return module.loss(batch)

    return step


scenario.fit("sigterm_in_training_step", step=_step_terminates(1))
scenario.fit("sigterm_in_last_batch", step=_step_terminates(2))
scenario.fit("sigterm_in_last_batch_of_all", step=_step_terminates(2, epoch=1), optimizer="plateau")
scenario.fit("sigterm_accumulating", {"accumulate_grad_batches": 2}, train=5, step=_step_terminates(0))
scenario.fit("sigterm_in_validation", {"val_check_interval": 2}, train=4, validation_step=_terminate(0))
scenario.fit("sigterm_in_validation_at_the_end", validation_step=_terminate(0))
scenario.fit("sigterm_in_train_epoch_end", on_train_epoch_end=_terminate())
scenario.fit("sigterm_in_train_epoch_start", on_train_epoch_start=_terminate(epoch=1))
scenario.fit("sigterm_in_sanity_check", {"num_sanity_val_steps": 1}, validation_step=_terminate(0))
scenario.fit("sigterm_in_train_end", {"max_epochs": 1}, on_train_end=_terminate(epoch=1))
scenario.fit("sigterm_at_max_steps", {"max_steps": 2}, step=_step_terminates(1))


@scenario
def sigterm_with_datamodule_and_logger(bench: Bench) -> None:
    bench.trainer(logger=bench.logger())
    bench.fit(bench.module(step=_step_terminates(0)), datamodule=bench.datamodule())


for _entry, _step in (("validate", "validation_step"), ("test", "test_step"), ("predict", "predict_step")):

    def _by_signal(bench: Bench, entry: str = _entry, step: str = _step) -> None:
        bench.trainer()
        getattr(bench, entry)(bench.module(**{step: _terminate(0)}))

    _by_signal.__name__ = f"sigterm_in_{_entry}"
    scenario(_by_signal)
