"""Whatever the schedule: a run that is saved somewhere and taken up again arrives where it arrives anyway."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.checkpoint.world import Plan, all_resumed_equal_straight

from hookbus.callbacks import ModelCheckpoint

MOMENTS = ("on_train_batch_end", "on_validation_batch_end", "on_validation_end", "on_train_epoch_end")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Trainings of a few batches."""
    batches = draw(st.integers(1, 5))
    limit: int | float = draw(st.sampled_from([1.0, 1.0, max(1, batches - 1), 0.5 if batches > 1 else 1.0]))
    used = limit if isinstance(limit, int) else max(1, int(batches * limit))
    across = draw(st.booleans())
    by_steps = draw(st.booleans())
    interval: Any = draw(st.one_of(st.integers(1, 2 * used if across else used), st.sampled_from([0.25, 0.5, 1.0])))
    manual = draw(st.booleans())
    schedulers = ["", "step", "epoch", "plateau by step"] + ([] if across else ["plateau"])
    return Plan(
        epochs=draw(st.integers(1, 3)),
        max_steps=draw(st.integers(1, 6)) if by_steps else -1,
        batches=batches,
        accumulate=draw(st.integers(1, 4)),
        val_batches=draw(st.integers(0, 2)),
        val_interval=interval if isinstance(interval, int) or not across else 1,
        val_every_epochs=None if across else draw(st.integers(1, 2)),
        scheduler="" if manual else draw(st.sampled_from(schedulers)),
        shuffle=draw(st.booleans()),
        manual=manual and not by_steps,  # a module that never steps would never come to its end
        noise=draw(st.booleans()),
        options={"limit_train_batches": limit},
    )


@given(plan=plans(), data=st.data())
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_saving_and_taking_up_changes_nothing(plan: Plan, data: st.DataObject) -> None:
    """The places where it is saved, and how often a callback saves besides, are drawn, too."""
    steps = plan.max_steps if plan.max_steps > 0 else plan.epochs * max(1, plan.batches - 1)
    moments = [("on_train_batch_end", data.draw(st.integers(0, max(0, steps - 1))))]
    moments += [(data.draw(st.sampled_from(MOMENTS[1:])), data.draw(st.integers(0, 2)))]
    every = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saving = {"every_n_train_steps": every, "save_top_k": -1, "save_last": True}
        runs = all_resumed_equal_straight(
            plan, moments, folder, lambda: [ModelCheckpoint(folder / "run" / "kept", **saving)]
        )
        event(f"{len(list(runs))} resumed")
