"""When a validation is due."""

from __future__ import annotations

from typing import Any

from tests.trainer.order.bench import Bench, stream
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

scenario.fit("interval_2_of_5", {"val_check_interval": 2}, train=5, val=1)
scenario.fit("interval_of_all", {"val_check_interval": 3}, train=3, val=1)
scenario.fit("interval_of_more_than_all", {"val_check_interval": 4}, train=3, val=1)
scenario.fit("interval_1", {"val_check_interval": 1, "max_epochs": 1}, train=3, val=1)
for _share, _batches in ((0.25, 5), (0.5, 5), (0.3, 7), (0.1, 3), (1.0, 3)):
    _name = f"interval_of_{round(_share * 100)}_percent_of_{_batches}"
    scenario.fit(_name, {"val_check_interval": _share, "max_epochs": 1}, train=_batches, val=1)
scenario.fit("interval_of_limited", {"val_check_interval": 0.5, "limit_train_batches": 4}, train=9, val=1)
scenario.fit("interval_beyond_limited", {"val_check_interval": 5, "limit_train_batches": 4}, train=9, val=1)
scenario.fit("interval_plain", {"val_check_interval": 2}, train=5, val=1, plain=True)
scenario.fit("interval_two_loaders", {"val_check_interval": 2, "max_epochs": 1}, train=4, val=(1, 2))
scenario.fit("interval_with_plateau", {"val_check_interval": 2}, train=5, val=1, optimizer="plateau")
scenario.fit("every_2_epochs", {"check_val_every_n_epoch": 2, "max_epochs": 5}, train=1, val=1)
scenario.fit("every_2_epochs_with_sanity", {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 1}, train=1, val=1)
scenario.fit(
    "every_2_epochs_interval_2",
    {"check_val_every_n_epoch": 2, "val_check_interval": 2, "max_epochs": 4},
    train=3,
    val=1,
)
for _interval in (2, 3, 4, 7):
    scenario.fit(
        f"across_epochs_interval_{_interval}",
        {"check_val_every_n_epoch": None, "val_check_interval": _interval, "max_epochs": 3},
        train=3,
        val=1,
        plain=True,
    )
scenario.fit(
    "across_epochs_max_steps",
    {"check_val_every_n_epoch": None, "val_check_interval": 4, "max_steps": 9},
    train=3,
    val=1,
)
scenario.fit(
    "across_epochs_stream",
    {"check_val_every_n_epoch": None, "val_check_interval": 4, "max_epochs": 3},
    train=lambda: stream(3),
    val=1,
)
scenario.fit("across_epochs_without_interval", {"check_val_every_n_epoch": None}, train=3, val=1)
scenario.fit("limited_stream_validates", {"limit_train_batches": 2, "max_epochs": 2}, train=lambda: stream(2), val=1)
scenario.fit(
    "limited_endless_stream",
    {"limit_train_batches": 2, "max_epochs": 2, "val_check_interval": 1.0},
    train=lambda: stream(9),
    val=1,
)


@scenario
def gradients_at_validation(bench: Bench) -> None:
    """Inside of an accumulation window the gradients survive a validation; otherwise they are freed."""
    seen: list[Any] = []

    def look(this: Any, trainer: Any, module: Any) -> None:
        seen.append([trainer.global_step, module.net.weight.grad is not None])

    watcher = bench.callback(on_validation_start=look)
    bench.trainer(callbacks=[watcher], accumulate_grad_batches=2, val_check_interval=1, max_epochs=1)
    bench.fit(bench.module(train=3, val=1, plain=True))
    bench.answers.append(seen)


@scenario
def last_batch_flag(bench: Bench) -> None:
    """``trainer.is_last_batch`` and ``num_training_batches`` as a callback reads them."""
    seen: list[Any] = []

    def look(this: Any, trainer: Any, module: Any, *args: Any) -> None:
        seen.append([args[-1], trainer.is_last_batch, str(trainer.num_training_batches)])

    for data in (3, lambda: stream(3)):
        bench.trainer(callbacks=[bench.callback(on_train_batch_start=look, on_train_batch_end=look)], max_epochs=1)
        bench.fit(bench.module(train=data, val=1, plain=True))
    bench.answers.append(seen)
