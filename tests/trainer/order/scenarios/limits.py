"""Limits: epochs, steps, and numbers of batches."""

from __future__ import annotations

from tests.trainer.order.bench import Bench, loader
from tests.trainer.order.scenarios import Register

SCENARIOS = scenario = Register()

for _steps in (0, 1, 3, 4, 6):
    scenario.fit(f"max_steps_{_steps}", {"max_steps": _steps}, val=1)
scenario.fit("max_steps_plain", {"max_steps": 4}, val=1, plain=True)
scenario.fit("max_steps_with_step_scheduler", {"max_steps": 4}, val=1, optimizer="both")
scenario.fit("max_steps_beyond_max_epochs", {"max_steps": 9, "max_epochs": 2}, val=1)
scenario.fit("max_steps_before_max_epochs", {"max_steps": 2, "max_epochs": 2}, val=1)
scenario.fit("max_steps_with_interval", {"max_steps": 4, "val_check_interval": 2}, val=1)
scenario.fit("max_steps_with_interval_due_at_the_end", {"max_steps": 2, "val_check_interval": 2}, train=4, val=1)
scenario.fit("max_steps_with_plateau", {"max_steps": 4}, val=1, optimizer="plateau")
scenario.fit("max_epochs_zero", {"max_epochs": 0, "num_sanity_val_steps": 1}, val=1)
scenario.fit("max_epochs_zero_with_min_epochs", {"max_epochs": 0, "min_epochs": 1}, val=1)
scenario.fit("min_epochs_beyond_max_epochs", {"max_epochs": 1, "min_epochs": 3}, val=1)
scenario.fit("min_steps_beyond_max_epochs", {"max_epochs": 1, "min_steps": 5}, val=1)
scenario.fit("limit_train_batches_2", {"limit_train_batches": 2}, train=5, val=1)
scenario.fit("limit_train_batches_beyond", {"limit_train_batches": 9}, train=2, val=1)
scenario.fit("limit_train_batches_half", {"limit_train_batches": 0.5}, train=5, val=1)
scenario.fit("limit_train_batches_too_small_a_share", {"limit_train_batches": 0.1}, train=5, val=1)
scenario.fit("limit_train_batches_zero", {"limit_train_batches": 0, "num_sanity_val_steps": 1}, val=1)
scenario.fit("limit_train_batches_one_is_all", {"limit_train_batches": 1.0}, train=3, val=1)
scenario.fit("limit_val_batches_1", {"limit_val_batches": 1, "num_sanity_val_steps": 2}, val=(3, 2))
scenario.fit("limit_val_batches_half", {"limit_val_batches": 0.5, "max_epochs": 1}, val=(4, 2))
scenario.fit("limit_val_batches_too_small_a_share", {"limit_val_batches": 0.1}, val=2)
scenario.fit("overfit_one_batch", {"overfit_batches": 1}, train=4, val=3)
scenario.fit("overfit_half", {"overfit_batches": 0.5, "num_sanity_val_steps": 1}, train=4, val=4)
scenario.fit("overfit_shuffled", {"overfit_batches": 2}, train=lambda: loader(4, shuffle=True), val=1)
scenario.fit("overfit_plain", {"overfit_batches": 2}, train=4, val=3, plain=True)


@scenario
def overfit_without_validation_loader(bench: Bench) -> None:
    bench.trainer(overfit_batches=1)
    bench.fit(bench.module(val=None))
