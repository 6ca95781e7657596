"""Optimisers: overridden steps, clipping, LBFGS, and manual optimisation."""

from __future__ import annotations

from typing import Any

import torch
from tests.trainer.order.bench import Bench
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

# -- automatic ---------------------------------------------------------------------------------------------------------

scenario.fit("clip_by_norm", {"gradient_clip_val": 0.1, "max_epochs": 1})
scenario.fit("clip_by_value", {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value", "max_epochs": 1})
scenario.fit("clip_to_zero", {"gradient_clip_val": 0, "max_epochs": 1})
# In double precision: LBFGS multiplies rounding errors, which differ between processors, by thousands.
scenario.fit("lbfgs", {"precision": "64-true", "max_epochs": 1}, train=2, val=1, optimizer="lbfgs")
scenario.fit("lbfgs_plain", {"precision": "64-true", "max_epochs": 2}, train=2, val=1, optimizer="lbfgs", plain=True)
scenario.fit(
    "lbfgs_clipped",
    {"precision": "64-true", "gradient_clip_val": 0.1, "max_epochs": 1},
    train=2,
    val=1,
    optimizer="lbfgs by step",
)
scenario.fit("lbfgs_max_steps", {"precision": "64-true", "max_steps": 3}, train=2, val=1, optimizer="lbfgs by step")
scenario.fit("no_optimizer", {"max_epochs": 1}, optimizer="none", step=lambda m, batch, i: m.loss(batch))
scenario.fit("no_optimizer_plain", {"max_epochs": 1}, optimizer="none", plain=True)
scenario.fit("optimizer_without_scheduler", {"max_epochs": 1}, optimizer="plain")
scenario.fit("two_optimizers_are_refused", {"max_epochs": 1}, optimizer="two")


def _skips_closure(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    return None


def _closure_without_step(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    if batch_idx % 2:
        optimizer.step(closure=optimizer_closure)
    else:
        optimizer_closure()


def _closure_twice(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
    optimizer_closure()
    optimizer.step(closure=optimizer_closure)


def _warm_up(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
    optimizer.step(closure=optimizer_closure)
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * (self.trainer.global_step + 1)


def _unwrapped_step(self: Any, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
    optimizer.optimizer.step(closure=optimizer_closure)


scenario.fit("step_override_skips_closure", {"max_epochs": 1}, optimizer_step=_skips_closure)
scenario.fit("step_override_without_step", {"max_epochs": 1}, optimizer_step=_closure_without_step, train=4, val=1)
scenario.fit("step_override_without_step_plain", {}, optimizer_step=_closure_without_step, train=4, val=1, plain=True)
scenario.fit("step_override_runs_closure_twice", {"max_epochs": 1}, optimizer_step=_closure_twice, train=2, val=1)
scenario.fit("step_override_warm_up", {}, optimizer_step=_warm_up, train=2, val=1, optimizer="plain", plain=True)
scenario.fit("step_override_of_torch_optimizer", {"max_epochs": 1}, optimizer_step=_unwrapped_step, train=2, val=1)
scenario.fit(
    "zero_grad_override",
    {"max_epochs": 1},
    optimizer_zero_grad=lambda self, epoch, batch_idx, optimizer: optimizer.zero_grad(set_to_none=False),
)
scenario.fit(
    "zero_grad_override_that_keeps", {}, optimizer_zero_grad=lambda self, epoch, batch_idx, optimizer: None, plain=True
)
scenario.fit(
    "backward_override",
    {"max_epochs": 1},
    backward=lambda self, loss, *args, **kwargs: (2 * loss).backward(),
    plain=True,
)


def _clips(self: Any, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None) -> None:
    self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="value")


scenario.fit("clipping_override", {"max_epochs": 1}, configure_gradient_clipping=_clips)
scenario.fit("clipping_override_plain", {"max_epochs": 1}, configure_gradient_clipping=_clips, plain=True)
scenario.fit(
    "clipping_override_against_the_trainer",
    {"gradient_clip_val": 0.5, "max_epochs": 1},
    configure_gradient_clipping=_clips,
)

# -- manual ------------------------------------------------------------------------------------------------------------


def _by_hand(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    optimizer = module.optimizers()
    optimizer.zero_grad()
    module.manual_backward(module.loss(batch))
    optimizer.step()


def _accumulating(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    optimizer = module.optimizers()
    module.manual_backward(module.loss(batch) / 2)
    if batch_idx % 2:
        optimizer.step()
        optimizer.zero_grad()


def _with_closure(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    optimizer = module.optimizers()

    def closure() -> torch.Tensor:
        loss = module.loss(batch)
        optimizer.zero_grad()
        module.manual_backward(loss)
        return loss

    optimizer.step(closure=closure)


def _pair(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    for net, optimizer in zip((module.net, module.net2), module.optimizers(), strict=True):
        module.toggle_optimizer(optimizer)
        loss = net(batch).pow(2).mean()
        optimizer.zero_grad()
        module.manual_backward(loss)
        module.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
        module.untoggle_optimizer(optimizer)
    for scheduler in module.lr_schedulers():
        scheduler.step()


def _rarely(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    """As in adversarial training: the second network steps with every second batch only."""
    first, second = module.optimizers()
    for net, optimizer in ((module.net, first), (module.net2, second)):
        if optimizer is second and batch_idx % 2:
            continue
        optimizer.zero_grad()
        module.manual_backward(net(batch).pow(2).mean())
        optimizer.step()


def _unwrapped(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    optimizer = module.optimizers(use_pl_optimizer=False)
    optimizer.zero_grad()
    module.manual_backward(module.loss(batch))
    optimizer.step()


def _returns_dictionary(module: Any, batch: torch.Tensor, batch_idx: int) -> dict[str, Any]:
    _by_hand(module, batch, batch_idx)
    return {"loss": module.loss(batch), "number": batch_idx}


def _steps_scheduler_by_epoch(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
    _by_hand(module, batch, batch_idx)
    if module.trainer.is_last_batch:
        module.lr_schedulers().step()


for _name, _step in {
    "one_optimizer": _by_hand,
    "accumulating": _accumulating,
    "closure": _with_closure,
    "unwrapped": _unwrapped,
    "returns_dictionary": _returns_dictionary,
    "scheduler": _steps_scheduler_by_epoch,
}.items():
    scenario.fit(f"manual_{_name}", {}, manual=True, step=_step, val=1)
scenario.fit("manual_two_optimizers", {}, manual=True, step=_pair, optimizer="two", val=1)
scenario.fit("manual_two_optimizers_plain", {}, manual=True, step=_pair, optimizer="two", val=1, plain=True)
scenario.fit("manual_two_optimizers_one_rare", {}, manual=True, step=_rarely, optimizer="two", val=1)
scenario.fit("manual_two_optimizers_max_steps", {"max_steps": 4}, manual=True, step=_pair, optimizer="two", val=1)
scenario.fit(
    "manual_closure_lbfgs",
    {"precision": "64-true", "max_epochs": 1},
    manual=True,
    step=_with_closure,
    optimizer="lbfgs",
    train=2,
    val=1,
)
scenario.fit("manual_max_steps", {"max_steps": 4}, manual=True, step=_by_hand, val=1)
scenario.fit("manual_interval", {"val_check_interval": 2, "max_epochs": 1}, manual=True, step=_by_hand, val=1)
scenario.fit("manual_with_plateau", {}, manual=True, step=_by_hand, optimizer="plateau", val=1)
scenario.fit("manual_with_clipping_is_refused", {"gradient_clip_val": 0.5}, manual=True, step=_by_hand, val=1)
scenario.fit("manual_with_accumulation_is_refused", {"accumulate_grad_batches": 2}, manual=True, step=_by_hand, val=1)
scenario.fit("manual_without_step", {"max_epochs": 1}, manual=True, step=lambda m, batch, i: None, val=1)
scenario.fit("manual_returns_number", {"max_epochs": 1}, manual=True, step=lambda m, batch, i: 0.5, val=1)


@scenario
def manual_with_logger(bench: Bench) -> None:
    def step(module: Any, batch: torch.Tensor, batch_idx: int) -> None:
        _pair(module, batch, batch_idx)
        module.log("train_loss", module.loss(batch), on_step=True, on_epoch=True)

    bench.trainer(logger=bench.logger(), log_every_n_steps=2)
    bench.fit(bench.module(manual=True, step=step, optimizer="two", train=5, val=1))
