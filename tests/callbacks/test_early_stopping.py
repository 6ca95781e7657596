"""EarlyStopping: when it stops, as recorded from Lightning; then where it does better on purpose."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hookbus.callbacks import EarlyStopping, ModelCheckpoint
from hookbus.callbacks.early_stopping import EarlyStoppingReason
from hookbus.errors import MisconfigurationException

DATA = Path(__file__).parent / "data" / "lightning.json"
SCENARIOS = sorted(json.loads(DATA.read_text(encoding="utf-8"))["stoppings"])


@pytest.fixture
def fit(lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> Any:
    """Train with one EarlyStopping, and a ModelCheckpoint that always saves; gives callback and trainer."""

    def run(
        values: list[float],
        *,
        stopping: dict[str, Any] | None = None,
        callback: EarlyStopping | None = None,
        module: Any = None,
        ckpt_path: str | None = None,
        **options: Any,
    ) -> tuple[EarlyStopping, Any]:
        callback = callback or EarlyStopping(**{"monitor": "m", **(stopping or {})})
        trainer = recorder.trainer_of(lib, callback, enable_checkpointing=True, **options)
        trainer.callbacks.append(ModelCheckpoint(dirpath=tmp_path, filename="x", save_top_k=1))
        trainer.fit(module or recorder.module_of(lib, values), ckpt_path=ckpt_path)
        return callback, trainer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*earlier run")
        yield run


@pytest.mark.parametrize("name", SCENARIOS)
def test_does_as_lightning(name: str, lib: ModuleType, recorder: ModuleType, recorded: dict[str, Any]) -> None:
    assert recorder.stopping_facts(lib, recorder.STOPPINGS[name]) == recorded["stoppings"][name]


def test_says_why(fit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    callback, _ = fit([5.0, 4.5, 6.0], stopping={"patience": 1, "verbose": True})
    assert callback.stopping_reason_message == "m did not improve in 1 checks; the best was 4.50000."
    assert capsys.readouterr().out.splitlines() == [
        "m is 5.00000, the first value.",
        "m improved by 0.50000 to 4.50000.",
        "m did not improve in 1 checks; the best was 4.50000.",
    ]


def test_end_hooks_run(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    module = recorder.module_of(lib, [1.0, 2.0])
    ended = []
    module.on_train_end = lambda: ended.append("train")
    module.on_fit_end = lambda: ended.append("fit")
    module.teardown = lambda stage: ended.append("teardown")
    fit([], module=module, stopping={"patience": 1})
    assert ended == ["train", "fit", "teardown"]


# --- minimum numbers of epochs and steps ------------------------------------------------------------------------------

RECOVERS = [5.0, 6.0, 7.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]


def test_a_value_that_recovers_before_min_epochs_does_not_stop(fit: Any) -> None:
    callback, trainer = fit(RECOVERS, stopping={"patience": 1}, min_epochs=5)
    assert trainer.current_epoch == 10
    assert callback.stopping_reason is EarlyStoppingReason.NOT_STOPPED
    assert callback.stopped_epoch == 0
    assert not trainer.should_stop


def test_nor_with_a_resume_in_between(fit: Any, tmp_path: Path) -> None:
    fit(RECOVERS[:2], stopping={"patience": 1}, min_epochs=5, max_epochs=2)
    _, trainer = fit(RECOVERS[2:], stopping={"patience": 1}, min_epochs=5, ckpt_path=str(tmp_path / "x.ckpt"))
    assert trainer.current_epoch == 10


def test_a_decision_that_was_held_back_survives_a_resume(fit: Any, tmp_path: Path) -> None:
    fit([5.0, 6.0], stopping={"patience": 1}, min_epochs=4, max_epochs=2)
    callback, trainer = fit([7.0, 8.0, 9.0], stopping={"patience": 1}, min_epochs=4, ckpt_path=str(tmp_path / "x.ckpt"))
    assert (trainer.current_epoch, callback.stopped_epoch, callback.wait_count) == (4, 3, 3)


def test_epochs_are_whole_until_min_epochs(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    _, trainer = fit([1.0, 2.0, 3.0, 4.0, 5.0], stopping={"patience": 1}, min_epochs=5)
    assert (trainer.current_epoch, trainer.global_step) == (5, 20)


def test_a_stop_held_back_by_min_epochs_needs_no_further_validation(fit: Any) -> None:
    _, trainer = fit([1.0, 2.0, 3.0, 4.0], stopping={"patience": 1}, min_epochs=5, check_val_every_n_epoch=2)
    assert trainer.current_epoch == 5


def test_min_steps(fit: Any) -> None:
    _, trainer = fit([1.0, 2.0, 3.0, 4.0], stopping={"patience": 1}, min_steps=10)
    assert trainer.global_step == 12


# --- one check for each new value -------------------------------------------------------------------------------------


def test_patience_counts_validations(fit: Any) -> None:
    _, trainer = fit([1.0, 2.0, 3.0], stopping={"patience": 2}, check_val_every_n_epoch=3, max_epochs=20)
    assert trainer.current_epoch == 9


def test_an_epoch_without_a_value_is_no_check(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    module = recorder.module_of(lib)

    def on_validation_epoch_end() -> None:
        if module.current_epoch % 2 == 0:
            module.log("m", 10.0 - module.current_epoch)

    module.on_validation_epoch_end = on_validation_epoch_end
    callback, trainer = fit([], module=module, stopping={"patience": 1}, max_epochs=6)
    assert trainer.current_epoch == 6
    assert float(callback.best_score) == 6.0


def test_without_validations_the_epochs_are_checked(fit: Any) -> None:
    _, trainer = fit(
        [], stopping={"monitor": "at_end", "mode": "max", "patience": 2}, limit_val_batches=0, check_val_every_n_epoch=2
    )
    assert trainer.current_epoch == 3


def test_a_missing_monitor_is_an_error_that_names_what_there_is(fit: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"EarlyStopping monitors 'x', which was not logged; there is: 'at_end', 'm'"
    ):
        fit([1.0], stopping={"monitor": "x"})


def test_but_not_before_the_first_validation(fit: Any) -> None:
    callback, trainer = fit(
        [1.0, 0.5],
        stopping={"check_on_train_epoch_end": True},
        check_val_every_n_epoch=2,
        max_epochs=4,
        num_sanity_val_steps=0,
    )
    assert trainer.current_epoch == 4
    assert float(callback.best_score) == 0.5


def test_nor_if_not_strict(fit: Any) -> None:
    _, trainer = fit([1.0], stopping={"monitor": "x", "strict": False}, max_epochs=2)
    assert trainer.current_epoch == 2
    with pytest.warns(RuntimeWarning, match="monitors 'x'"):
        fit([1.0], stopping={"monitor": "x", "strict": False, "verbose": True}, max_epochs=1)


# --- resuming, and fitting again ------------------------------------------------------------------------------------


def test_state_in_a_checkpoint(fit: Any, tmp_path: Path) -> None:
    callback, _ = fit([2.0, 3.0, 4.0], stopping={"patience": 5}, max_epochs=3)
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)["callbacks"][callback.state_key]
    assert saved == callback.state_dict()
    fresh = EarlyStopping("m")
    fresh.load_state_dict(saved)
    assert fresh.state_dict() == saved


def test_a_run_that_was_stopped_stays_stopped(fit: Any, tmp_path: Path) -> None:
    _, first = fit([1.0, 2.0, 3.0], stopping={"patience": 1})
    callback, trainer = fit([0.5], stopping={"patience": 1}, ckpt_path=str(tmp_path / "x.ckpt"))
    assert (trainer.current_epoch, trainer.global_step) == (first.current_epoch, first.global_step) == (2, 8)
    assert callback.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED


def test_unless_patience_was_raised(fit: Any, tmp_path: Path) -> None:
    fit([1.0, 2.0], stopping={"patience": 1})
    with pytest.warns(UserWarning, match="patience=4; the run before had 1"):
        _, trainer = fit([3.0, 4.0, 5.0, 6.0], stopping={"patience": 4}, ckpt_path=str(tmp_path / "x.ckpt"))
    assert trainer.current_epoch == 5, "the waiting goes on where it was"


def test_a_further_fit_of_the_same_trainer_goes_on(lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> None:
    callback = EarlyStopping("m", patience=1)
    trainer = recorder.trainer_of(lib, callback, max_epochs=5)
    module = recorder.module_of(lib, [5.0, 6.0, 4.0, 3.0, 2.0, 1.0])
    trainer.fit(module)
    assert trainer.current_epoch == 2
    trainer.save_checkpoint(tmp_path / "y.ckpt")
    trainer.fit_loop.max_epochs = 6
    trainer.fit(module, ckpt_path=tmp_path / "y.ckpt")
    assert trainer.current_epoch == 6


def test_a_new_training_with_the_same_callback_starts_anew(fit: Any) -> None:
    callback, _ = fit([1.0, 2.0, 3.0], stopping={"patience": 2})
    _, trainer = fit([9.0, 8.0, 7.0], callback=callback, max_epochs=3)
    assert trainer.current_epoch == 3
    assert float(callback.best_score) == 7.0


def test_several(lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> None:
    first, second = EarlyStopping("m", patience=9), EarlyStopping("at_end", patience=2, mode="max")
    assert first.state_key == "EarlyStopping{'monitor': 'm', 'mode': 'min'}"
    trainer = recorder.trainer_of(lib, first)
    trainer.callbacks.append(second)
    trainer.fit(recorder.module_of(lib, [1.0] * 9))
    assert trainer.current_epoch == 3
    assert (first.wait_count, second.wait_count) == (2, 2)
    assert trainer.early_stopping_callbacks == [first, second]


def test_keys_of_twins_differ() -> None:
    first, second = EarlyStopping("m", patience=1), EarlyStopping("m", patience=2)
    second.twin = 1
    assert second.state_key == first.state_key + "#2"


def test_subclasses_judge_by_overriding(fit: Any) -> None:
    class Even(EarlyStopping):
        def _evaluate_stopping_criteria(self, current: torch.Tensor) -> tuple[bool, str | None]:
            return bool(current % 2 == 0), "even"

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)

    callback, trainer = fit([1.0, 3.0, 4.0, 5.0], callback=Even("m"))
    assert (trainer.current_epoch, callback.stopping_reason_message) == (3, "even")


def test_monitor_op() -> None:
    assert EarlyStopping("m").monitor_op is torch.lt
    assert EarlyStopping("m", mode="max").monitor_op is torch.gt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "auto"}, "mode must be 'min' or 'max', got 'auto'"),
        ({"monitor": None}, "monitor must be a logged name"),
        ({"patience": -1}, "patience must be"),
        ({"patience": 2.0}, "patience must be"),
        ({"min_delta": -0.1}, "0 or more"),
        ({"min_delta": math.nan}, "min_delta must be a number"),
        ({"stopping_threshold": "low"}, "stopping_threshold must be a number"),
        ({"divergence_threshold": math.nan}, "divergence_threshold must be a number"),
        ({"stopping_threshold": 2.0, "divergence_threshold": 1.0}, "at the first check"),
        ({"stopping_threshold": 1.0, "divergence_threshold": 2.0, "mode": "max"}, "at the first check"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        EarlyStopping(**{"monitor": "m", **arguments})
