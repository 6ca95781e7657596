"""``should_stop``, set in each hook, with and without a minimum of epochs or steps."""

from __future__ import annotations

from typing import Any

from tests.trainer.order.bench import Bench
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

#: Hooks, and the batch index at which the stop is asked for, where they have one.
_HOOKS = {
    "setup": None,
    "on_fit_start": None,
    "on_sanity_check_end": None,
    "on_train_start": None,
    "on_train_epoch_start": None,
    "on_train_batch_start": 1,
    "on_before_zero_grad": None,
    "on_before_backward": None,
    "on_after_backward": None,
    "on_before_optimizer_step": None,
    "on_train_batch_end": 1,
    "on_validation_start": None,
    "on_validation_batch_end": 0,
    "on_validation_epoch_end": None,
    "on_validation_end": None,
    "on_train_epoch_end": None,
}
_VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "_min_epochs": {"min_epochs": 2},
    "_min_steps": {"min_steps": 5},
}


def _stop_at(index: int | None) -> Any:
    def stop(this: Any, trainer: Any, module: Any = None, *args: Any, **kwargs: Any) -> None:
        if index is None or index in [a for a in args if isinstance(a, int)][:1]:
            trainer.should_stop = True

    return stop


#: Where the minima are tried, too.
_WITH_MINIMA = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
)

for _hook, _index in _HOOKS.items():
    for _variant, _options in _VARIANTS.items():
        if _variant and _hook not in _WITH_MINIMA:
            continue

        def _play(bench: Bench, hook: str = _hook, index: int | None = _index, options: Any = _options) -> None:
            sanity = 1 if "sanity" in hook else 0
            callbacks = [bench.callback(**{hook: _stop_at(index)})]
            bench.trainer(callbacks=callbacks, max_epochs=3, num_sanity_val_steps=sanity, **options)
            bench.fit(bench.module(train=3, val=1, plain=bool(options)))

        _play.__name__ = f"stop_in_{_hook.removeprefix('on_')}{_variant}"
        scenario(_play)


def _stops(self: Any, *args: Any) -> None:
    self.trainer.should_stop = True


scenario.fit("stop_by_module_in_fit_start", on_fit_start=_stops)
scenario.fit("stop_by_module_in_train_epoch_start", on_train_epoch_start=_stops)
scenario.fit("stop_by_module_in_train_batch_start", on_train_batch_start=_stops)
scenario.fit("stop_by_module_in_train_batch_end", {"val_check_interval": 2}, on_train_batch_end=_stops)
scenario.fit("stop_by_module_in_train_epoch_end", on_train_epoch_end=_stops, optimizer="plateau")
scenario.fit("stop_without_validation", {"limit_val_batches": 0}, on_train_batch_start=_stops)
scenario.fit("stop_with_rare_validation", {"check_val_every_n_epoch": 2}, on_train_batch_start=_stops)
scenario.fit("stop_without_limit", {"max_epochs": -1}, on_train_epoch_end=_stops)


def _stop_in_step(index: int) -> Any:
    def step(module: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == index:
            module.trainer.should_stop = True
        return module.loss(batch)

    return step


scenario.fit("stop_in_training_step", step=_stop_in_step(1))
scenario.fit(
    "stop_in_training_step_accumulating", {"accumulate_grad_batches": 2}, train=5, val=1, step=_stop_in_step(2)
)
scenario.fit("stop_in_training_step_last_batch", step=_stop_in_step(2), optimizer="both")
scenario.fit("stop_with_min_steps_in_an_epoch", {"min_steps": 2}, train=4, val=1, step=_stop_in_step(0))
scenario.fit(
    "stop_with_min_epochs_and_interval",
    {"min_epochs": 1, "val_check_interval": 2},
    train=5,
    val=1,
    step=_stop_in_step(0),
)
scenario.fit(
    "stop_with_both_minima", {"min_steps": 2, "min_epochs": 1, "max_epochs": 3}, train=4, val=1, step=_stop_in_step(0)
)


@scenario
def stop_with_logger(bench: Bench) -> None:
    """Whoever stops between two log steps still gets the last values logged."""
    callbacks = [bench.callback(on_train_batch_end=_stop_at(1))]
    bench.trainer(callbacks=callbacks, logger=bench.logger(), log_every_n_steps=50, max_epochs=1)
    bench.fit(bench.module(train=4, val=1))


@scenario
def stop_taken_back(bench: Bench) -> None:
    def forget(this: Any, trainer: Any, module: Any) -> None:
        trainer.should_stop = False

    watcher = bench.callback(
        on_train_batch_start=_stop_at(1),
        on_before_backward=lambda this, trainer, module, loss: forget(this, trainer, module),
    )
    bench.trainer(callbacks=[watcher], max_epochs=1)
    bench.fit(bench.module(train=3, val=1))


@scenario
def stop_in_manual_optimization(bench: Bench) -> None:
    def step(module: Any, batch: Any, batch_idx: int) -> None:
        optimizer = module.optimizers()
        optimizer.zero_grad()
        module.manual_backward(module.loss(batch))
        optimizer.step()
        if batch_idx == 1:
            module.trainer.should_stop = True

    bench.trainer()
    bench.fit(bench.module(manual=True, step=step, train=4, val=1))
