"""Learning-rate schedulers: by epoch, by step, on a plateau, several at once."""

from __future__ import annotations

from typing import Any

from tests.trainer.order.bench import OPTIMIZERS, Bench, sgd
from tests.trainer.order.scenarios import Register
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

SCENARIOS = scenario = Register()

scenario.fit("by_step", {}, optimizer="by step", val=1)
scenario.fit("by_epoch_and_step", {}, optimizer="both", val=1)
scenario.fit("every_second", {"max_epochs": 4}, optimizer="every second", val=None)
scenario.fit("every_second_with_stop_in_an_epoch", {"max_steps": 5}, optimizer="every second", val=None)
for _name in OPTIMIZERS:
    if _name.startswith("plateau"):
        scenario.fit(_name.replace(" ", "_"), {"max_epochs": 3}, optimizer=_name, train=2, val=1)
scenario.fit(
    "plateau_by_step_accumulating", {"accumulate_grad_batches": 2}, optimizer="plateau by step", train=5, val=1
)
scenario.fit(
    "plateau_by_step_of_validation_inside",
    {"val_check_interval": 2},
    optimizer="plateau by step of val",
    train=5,
    val=1,
)
scenario.fit(
    "plateau_with_rare_validation", {"check_val_every_n_epoch": 2, "max_epochs": 4}, optimizer="plateau", train=1, val=1
)
scenario.fit("plateau_with_sanity", {"num_sanity_val_steps": 1, "max_epochs": 1}, optimizer="plateau", train=1, val=1)
scenario.fit("plateau_after_stop", {}, optimizer="plateau", train=3, val=1,
             on_train_batch_end=lambda self, *args: setattr(self.trainer, "should_stop", True))  # fmt: skip
scenario.fit(
    "one_cycle",
    {},
    optimizer=lambda m: (
        [o := sgd(m)],
        [{"scheduler": OneCycleLR(o, max_lr=0.1, total_steps=6), "interval": "step", "name": "cycle"}],
    ),
    val=None,
    plain=True,
)
scenario.fit(
    "estimated_steps",
    {"accumulate_grad_batches": 2, "max_epochs": 2},
    optimizer=lambda m: (
        [o := sgd(m)],
        [{"scheduler": CosineAnnealingLR(o, int(m.trainer.estimated_stepping_batches)), "interval": "step"}],
    ),
    train=5,
    val=1,
)
scenario.fit(
    "two_dictionaries_are_refused",
    {},
    optimizer=lambda m: [{"optimizer": sgd(m)}, {"optimizer": sgd(m)}],
)
scenario.fit("list_of_one_dictionary", {"max_epochs": 1}, optimizer=lambda m: [{"optimizer": sgd(m)}])
scenario.fit("list_of_one", {"max_epochs": 1}, optimizer=lambda m: [sgd(m)])
scenario.fit("not_an_optimizer", {}, optimizer=lambda m: "sgd")
scenario.fit("plateau_without_monitor", {}, optimizer=lambda m: {**OPTIMIZERS["plateau"](m), "monitor": None})


def _by_hand(self: Any, scheduler: Any, metric: Any) -> None:
    scheduler.step()
    scheduler.step()


scenario.fit("scheduler_step_override", {}, optimizer="both", val=1, lr_scheduler_step=_by_hand)


@scenario
def scheduler_seen_by_callbacks(bench: Bench) -> None:
    """The learning rates that a callback finds in each hook."""
    seen: list[Any] = []

    def look(hook: str) -> Any:
        def method(this: Any, trainer: Any, module: Any, *args: Any) -> None:
            seen.append([hook, round(trainer.optimizers[0].param_groups[0]["lr"], 6)])

        return method

    hooks = ("on_train_batch_start", "on_train_batch_end", "on_validation_start", "on_train_epoch_end", "on_train_end")
    bench.trainer(callbacks=[bench.callback(**{hook: look(hook) for hook in hooks})])
    bench.fit(bench.module(optimizer="both", train=2, val=1, plain=True))
    bench.answers.append(seen)
