"""Batches: accumulation, skipping, what a step may return, and the kinds of loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tests.trainer.order.bench import Bench, loader, stream
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

# -- accumulation ------------------------------------------------------------------------------------------------------

scenario.fit(
    "accumulate_2_of_5", {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, train=5, optimizer="by step"
)
scenario.fit("accumulate_3_of_7", {"accumulate_grad_batches": 3}, train=7, val=1, optimizer="both")
scenario.fit("accumulate_more_than_there_are", {"accumulate_grad_batches": 9}, train=3, val=1)
scenario.fit("accumulate_3_of_7_plain", {"accumulate_grad_batches": 3, "val_check_interval": 2}, train=7, plain=True)
scenario.fit(
    "accumulate_with_validation_inside_a_window",
    {"accumulate_grad_batches": 2, "val_check_interval": 3, "max_epochs": 1},
    train=7,
    val=1,
)
scenario.fit("accumulate_with_validation_across_epochs", {
    "accumulate_grad_batches": 2, "val_check_interval": 4, "check_val_every_n_epoch": None,
}, train=3, val=1)  # fmt: skip
for _steps in (2, 3, 4, 5):
    scenario.fit(f"accumulate_max_steps_{_steps}", {"accumulate_grad_batches": 3, "max_steps": _steps}, train=7, val=1)
scenario.fit("accumulate_stream", {"accumulate_grad_batches": 2}, train=lambda: stream(5), val=1)
scenario.fit("accumulate_limited", {"accumulate_grad_batches": 2, "limit_train_batches": 3}, train=5, val=1)
scenario.fit(
    "accumulate_lbfgs",
    {"precision": "64-true", "accumulate_grad_batches": 2, "max_epochs": 1},
    train=3,
    val=1,
    optimizer="lbfgs",
)
scenario.fit(
    "accumulate_frequent_schedulers", {"accumulate_grad_batches": 2}, train=9, val=None, optimizer="every second"
)


@scenario
def accumulate_changed_by_callback_between_epochs(bench: Bench) -> None:
    def change(this: Any, trainer: Any, module: Any) -> None:
        trainer.accumulate_grad_batches = (1, 2, 3)[trainer.current_epoch]

    bench.trainer(callbacks=[bench.callback(on_train_epoch_start=change)], max_epochs=3)
    bench.fit(bench.module(train=4, val=None))


@scenario
def accumulate_changed_by_callback_in_an_epoch(bench: Bench) -> None:
    def change(this: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            trainer.accumulate_grad_batches = 3

    bench.trainer(callbacks=[bench.callback(on_train_batch_start=change)], max_epochs=1)
    bench.fit(bench.module(train=7, val=None))


# -- skipping ----------------------------------------------------------------------------------------------------------


def _skip_at(*indices: int, epoch: int | None = None) -> Any:
    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx in indices and epoch in (None, self.trainer.current_epoch) else None

    return on_train_batch_start


scenario.fit("skip_epoch_by_module", on_train_batch_start=_skip_at(1))
scenario.fit("skip_epoch_by_module_at_first_batch", on_train_batch_start=_skip_at(0))
scenario.fit("skip_epoch_by_module_at_last_batch", on_train_batch_start=_skip_at(2))
scenario.fit("skip_epoch_by_module_in_second_epoch", {"max_epochs": 3}, on_train_batch_start=_skip_at(1, epoch=1))
scenario.fit("skip_epoch_plain", on_train_batch_start=_skip_at(1), plain=True)
scenario.fit("skip_epoch_with_step_schedulers", on_train_batch_start=_skip_at(1), optimizer="both")
scenario.fit(
    "skip_epoch_inside_a_window", {"accumulate_grad_batches": 2}, on_train_batch_start=_skip_at(1), optimizer="both"
)
scenario.fit("skip_epoch_with_plateau", on_train_batch_start=_skip_at(1, epoch=1), optimizer="plateau")
scenario.fit(
    "skip_epoch_with_frequent_validation",
    {"val_check_interval": 1},
    on_train_batch_start=_skip_at(2),
    val=1,
)


@scenario
def skip_epoch_by_callback_is_ignored(bench: Bench) -> None:
    def skip(this: Any, trainer: Any, module: Any, batch: Any, batch_idx: int) -> int:
        return -1

    bench.trainer(callbacks=[bench.callback(on_train_batch_start=skip)], max_epochs=1)
    bench.fit(bench.module())


@scenario
def skip_epoch_with_logger(bench: Bench) -> None:
    bench.trainer(logger=bench.logger(), log_every_n_steps=1)
    bench.fit(bench.module(on_train_batch_start=_skip_at(1), val=1))


# -- what a step returns -----------------------------------------------------------------------------------------------


def _none_at(*indices: int) -> Any:
    return lambda module, batch, batch_idx: None if batch_idx in indices else module.loss(batch)


scenario.fit("step_returns_none", {"gradient_clip_val": 0.5, "max_epochs": 1}, optimizer="by step", step=_none_at(1))
scenario.fit("step_returns_none_always", {"max_epochs": 1}, step=_none_at(0, 1, 2), val=1)
scenario.fit(
    "step_returns_none_accumulating_first",
    {"accumulate_grad_batches": 2, "max_epochs": 1},
    train=4,
    step=_none_at(0, 2),
)
scenario.fit(
    "step_returns_none_accumulating_last", {"accumulate_grad_batches": 2, "max_epochs": 1}, train=5, step=_none_at(1, 4)
)
scenario.fit(
    "step_returns_none_lbfgs", {"precision": "64-true", "max_epochs": 1}, optimizer="lbfgs", step=_none_at(1), train=2
)
scenario.fit(
    "step_returns_dictionary", {"max_epochs": 1}, step=lambda m, batch, i: {"loss": m.loss(batch), "number": i}
)
scenario.fit("step_returns_one_element", {"max_epochs": 1}, step=lambda m, batch, i: m.loss(batch).reshape(1))
scenario.fit("step_returns_one_by_one", {"max_epochs": 1}, step=lambda m, batch, i: m.loss(batch).reshape(1, 1))
scenario.fit("step_returns_vector", {"max_epochs": 1}, step=lambda m, batch, i: m(batch).flatten())
scenario.fit("step_returns_number", {"max_epochs": 1}, step=lambda m, batch, i: 0.5)
scenario.fit("step_returns_dictionary_without_loss", {"max_epochs": 1}, step=lambda m, batch, i: {"los": m.loss(batch)})
scenario.fit("step_returns_loss_none_in_dictionary", {"max_epochs": 1}, step=lambda m, batch, i: {"loss": None})
scenario.fit("step_returns_loss_without_gradient", {"max_epochs": 1}, step=lambda m, batch, i: m.loss(batch).detach())
scenario.fit(
    "validation_step_returns_things",
    {"max_epochs": 1},
    validation_step=lambda self, batch, batch_idx: (None, {"any": "thing"})[batch_idx],
)


@scenario
def outputs_of_batches(bench: Bench) -> None:
    """``outputs`` of on_train_batch_end: the divided loss, and whatever else the step returned."""
    seen: list[Any] = []

    def look(this: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        kinds = {
            k: str(v) if not isinstance(v, torch.Tensor) else round(float(v), 5) for k, v in (outputs or {}).items()
        }
        seen.append([type(outputs).__name__, kinds, bool(getattr((outputs or {}).get("loss"), "requires_grad", False))])

    def step(module: Any, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = module.loss(batch)
        return (loss, {"loss": loss, "number": batch_idx, "extra": batch.sum()}, None)[batch_idx % 3]

    bench.trainer(callbacks=[bench.callback(on_train_batch_end=look)], accumulate_grad_batches=2, max_epochs=1)
    bench.fit(bench.module(train=6, step=step, plain=True))
    bench.answers.append(seen)


@scenario
def losses_before_backward(bench: Bench) -> None:
    seen: list[Any] = []

    def look(this: Any, trainer: Any, module: Any, loss: torch.Tensor) -> None:
        seen.append([round(float(loss), 5), list(loss.shape)])

    bench.trainer(callbacks=[bench.callback(on_before_backward=look)], accumulate_grad_batches=2, max_epochs=1)
    bench.fit(bench.module(train=5, step=lambda m, batch, i: m.loss(batch).reshape((1,) * (i % 3)), plain=True))
    bench.answers.append(seen)


# -- loaders -----------------------------------------------------------------------------------------------------------


def _of_dictionary(module: Any, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
    return module.loss(batch["a"]) + module.loss(batch["b"][0])


scenario.fit("stream", {"num_sanity_val_steps": 1}, train=lambda: stream(3), val=lambda: stream(2))
scenario.fit(
    "stream_limited", {"limit_train_batches": 2, "limit_val_batches": 1}, train=lambda: stream(4), val=lambda: stream(2)
)
scenario.fit("stream_limited_beyond_its_end", {"limit_train_batches": 9}, train=lambda: stream(3), val=1)
scenario.fit("stream_limited_by_share", {"limit_train_batches": 0.5}, train=lambda: stream(4), val=1)
scenario.fit("stream_with_interval", {"val_check_interval": 2, "max_epochs": 1}, train=lambda: stream(5), val=1)
scenario.fit("stream_with_share_interval", {"val_check_interval": 0.5}, train=lambda: stream(5), val=1)
scenario.fit("stream_empty", {"max_epochs": 2}, train=lambda: stream(0), val=1)
scenario.fit("stream_max_steps", {"max_steps": 4}, train=lambda: stream(3), val=1)
scenario.fit("loader_that_is_no_dataloader", {}, train=lambda: no_dataloader(3), val=lambda: loader(1))
scenario.fit("dictionary_of_loaders", {}, train=lambda: {"a": loader(2), "b": [loader(3)]}, val=1, step=_of_dictionary)
scenario.fit(
    "list_of_loaders", {}, train=lambda: [loader(3), loader(2)], val=1, step=lambda m, b, i: m.loss(b[0]) + m.loss(b[1])
)
scenario.fit(
    "list_of_loaders_one_a_stream",
    {},
    train=lambda: [loader(3), stream(2)],
    val=1,
    step=lambda m, b, i: m.loss(b[0]) + m.loss(b[1]),
)
scenario.fit(
    "list_of_loaders_limited",
    {"limit_train_batches": 2, "max_epochs": 1},
    train=lambda: [loader(4), loader(3)],
    val=1,
    step=lambda m, b, i: m.loss(b[0]) + m.loss(b[1]),
)


class _Batches:
    """A loader that is no DataLoader."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def no_dataloader(batches: int) -> _Batches:
    return _Batches(list(loader(batches)))


def _with_gap() -> _Batches:
    return _Batches([*loader(1), None, *loader(1)])


class _Short(_Batches):
    """Promises more batches than it has."""

    def __len__(self) -> int:
        return len(self._batches) + 2


scenario.fit("batch_of_none", {}, train=_with_gap, val=1, optimizer="both")
scenario.fit("batch_of_none_accumulating", {"accumulate_grad_batches": 2, "max_epochs": 1}, train=_with_gap, val=None)
scenario.fit(
    "validation_batch_of_none", {"max_epochs": 1}, val=_with_gap, validation_step=lambda self, batch, batch_idx: None
)
scenario.fit("loader_promises_too_much", {}, train=lambda: _Short(list(loader(2))), val=1, optimizer="both")
scenario.fit("validation_loader_promises_too_much", {"max_epochs": 1}, val=lambda: _Short(list(loader(2))))
