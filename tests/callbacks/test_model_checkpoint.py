"""ModelCheckpoint: what it saves and keeps, as recorded from Lightning; then where it does better on purpose."""

from __future__ import annotations

import json
import os
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hookbus.callbacks import Checkpoint, ModelCheckpoint
from hookbus.errors import MisconfigurationException

DATA = Path(__file__).parent / "data" / "lightning.json"
SCENARIOS = sorted(json.loads(DATA.read_text(encoding="utf-8"))["checkpoints"])


@pytest.fixture
def fit(lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> Any:
    """Train with one checkpoint callback; gives callback, trainer and module."""

    def run(
        values: list[float] | None = None,
        *,
        module: Any = None,
        trainer: Any = None,
        ckpt_path: str | None = None,
        callback: ModelCheckpoint | None = None,
        folder: str = "files",
        **options: Any,
    ) -> tuple[ModelCheckpoint, Any, Any]:
        arguments = options.pop("checkpoint", {})
        callback = callback or ModelCheckpoint(**{"dirpath": tmp_path / folder, **arguments})
        trainer = trainer or recorder.trainer_of(lib, callback, enable_checkpointing=True, **options)
        module = module or recorder.module_of(lib, values)
        trainer.fit(module, ckpt_path=ckpt_path)
        return callback, trainer, module

    return run


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def read(path: str | Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def state_in(path: str | Path) -> dict[str, Any]:
    """ModelCheckpoint's state in a file."""
    states = read(path)["callbacks"]
    (key,) = [key for key in states if key.startswith("ModelCheckpoint")]
    return states[key]


@pytest.mark.parametrize("name", SCENARIOS)
def test_does_as_lightning(
    name: str, lib: ModuleType, recorder: ModuleType, recorded: dict[str, Any], tmp_path: Path
) -> None:
    facts = recorder.checkpoint_facts(lib, recorder.CHECKPOINTS[name], tmp_path)
    assert facts == recorded["checkpoints"][name]


# --- file names -------------------------------------------------------------------------------------------------------


def test_names() -> None:
    def name(template: str | None, metrics: dict[str, Any], **options: Any) -> str:
        return ModelCheckpoint(filename=template, **options).format_checkpoint_name(metrics)

    assert name(None, {"epoch": 3, "step": 12}) == "epoch=3-step=12.ckpt"
    assert name("{epoch:03d}", {"epoch": torch.tensor(5)}) == "epoch=005.ckpt"
    assert name("x-{epoch}-{val_loss:.2f}", {"epoch": 2, "val_loss": 0.123}) == "x-epoch=2-val_loss=0.12.ckpt"
    assert name("{epoch}-{epoch_m:.1f}", {"epoch": 3, "epoch_m": 0.5}) == "epoch=3-epoch_m=0.5.ckpt"
    assert name("l={val/l:.1f}", {"val/l": 0.5}, auto_insert_metric_name=False) == "l=0.5.ckpt"
    assert name("{a.b:.1f}", {"a.b": 0.5}) == "a.b=0.5.ckpt"
    assert name("{missing:d}", {}) == "missing=0.ckpt"
    callback = ModelCheckpoint(dirpath="/there", filename="{step}")
    assert (
        callback.format_checkpoint_name({"step": 1}, ver=2, prefix="p")
        == os.path.realpath("/there") + "/p-step=1-v2.ckpt"
    )


def test_a_format_that_does_not_suit_the_value_is_named() -> None:
    with pytest.raises(ValueError, match=r"'acc' in the format 'd'"):
        ModelCheckpoint(filename="{acc:d}").format_checkpoint_name({"acc": torch.tensor(0.5)})


def test_characters_and_names_of_instances(fit: Any, tmp_path: Path) -> None:
    callback = ModelCheckpoint(dirpath=tmp_path / "files", save_last=True)
    callback.CHECKPOINT_EQUALS_CHAR = "_"
    callback.CHECKPOINT_NAME_LAST = "{epoch}-newest"
    fit(callback=callback, max_epochs=2)
    assert names(tmp_path / "files") == ["epoch_1-newest.ckpt", "epoch_1-step_8.ckpt"]


def test_a_taken_name_gets_a_version(fit: Any, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "model.ckpt").write_text("somebody's")
    with pytest.warns(UserWarning, match="earlier run"):
        callback, _, _ = fit(checkpoint={"filename": "model"}, max_epochs=2)
    assert names(tmp_path / "files") == ["model-v1.ckpt", "model.ckpt"]
    assert (tmp_path / "files" / "model.ckpt").read_text() == "somebody's"
    assert callback.best_model_path.endswith("model-v1.ckpt")


def test_without_versions_a_taken_name_is_overwritten(fit: Any, tmp_path: Path) -> None:
    fit(checkpoint={"filename": "model", "save_top_k": -1, "enable_version_counter": False}, max_epochs=3)
    assert names(tmp_path / "files") == ["model.ckpt"]
    assert read(tmp_path / "files" / "model.ckpt")["epoch"] == 2


def test_all_files_are_kept_even_if_the_name_is_always_the_same(fit: Any, tmp_path: Path) -> None:
    fit(checkpoint={"filename": "model", "save_top_k": -1}, max_epochs=3)
    assert names(tmp_path / "files") == ["model-v1.ckpt", "model-v2.ckpt", "model.ckpt"]


def test_default_folder(lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> None:
    callback = ModelCheckpoint()
    trainer = recorder.trainer_of(lib, callback, default_root_dir=tmp_path, max_epochs=1)
    trainer.fit(recorder.module_of(lib))
    assert callback.best_model_path == str(tmp_path / "checkpoints" / "epoch=0-step=4.ckpt")

    for version in (0, 1):  # a second run finds its own folder, even with the same callback
        trainer = recorder.trainer_of(lib, callback, default_root_dir=tmp_path, max_epochs=1, logger=True)
        trainer.fit(recorder.module_of(lib))
        assert callback.best_model_path == os.path.join(
            tmp_path, "lightning_logs", f"version_{version}", "checkpoints", "epoch=0-step=4.ckpt"
        )


@pytest.mark.parametrize("dirpath", ["", None])
def test_no_folder_means_the_default_one(dirpath: str | None) -> None:
    assert ModelCheckpoint(dirpath, "{epoch}").format_checkpoint_name({"epoch": 3}) == "epoch=3.ckpt"


# --- a monitored value is of this step, this validation or this epoch -----------------------------------------------


class StepMetric:
    """Makes the validation log its step as "m", and the training log its step as "t"."""

    @staticmethod
    def of(lib: ModuleType, recorder: ModuleType, only: Any = None) -> Any:
        module = recorder.module_of(lib)

        def validated() -> None:
            if not module.trainer.sanity_checking and (only is None or only(module)):
                module.log("m", float(module.trainer.global_step))

        def trained(batch: Any, batch_idx: int) -> torch.Tensor:
            module.log("t", float(module.trainer.global_step + 1))
            return module.layer(batch).pow(2).mean()

        module.on_validation_epoch_end = validated
        module.training_step = trained
        return module


def scores(callback: ModelCheckpoint) -> dict[int, float]:
    """The score of each kept file, by the step in its content."""
    return {read(path)["global_step"]: float(score) for path, score in callback.best_k_models.items()}


@pytest.mark.parametrize("limit", [{"max_epochs": 2}, {"max_epochs": 1, "check_val_every_n_epoch": None}])
def test_validation_comes_before_the_save_at_the_same_step(
    fit: Any, lib: ModuleType, recorder: ModuleType, limit: dict[str, Any]
) -> None:
    checkpoint = {"monitor": "m", "every_n_train_steps": 2, "save_top_k": -1, "save_last": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback, _, _ = fit(
            module=StepMetric.of(lib, recorder),
            checkpoint=checkpoint,
            val_check_interval=2,
            num_sanity_val_steps=0,
            **limit,
        )
    assert scores(callback) == {step: float(step) for step in range(2, 4 * limit["max_epochs"] + 1, 2)}
    assert state_in(callback.last_model_path)["best_model_path"] == callback.best_model_path


def test_validation_by_a_share_of_the_epoch(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    checkpoint = {"monitor": "m", "every_n_train_steps": 2, "save_top_k": -1}
    callback, _, _ = fit(
        module=StepMetric.of(lib, recorder), checkpoint=checkpoint, val_check_interval=0.5, max_epochs=1
    )
    assert scores(callback) == {2: 2.0, 4: 4.0}


def test_an_old_value_is_refused_by_name_and_the_save_waits_for_a_new_one(
    fit: Any, lib: ModuleType, recorder: ModuleType
) -> None:
    checkpoint = {"monitor": "m", "every_n_train_steps": 3, "save_top_k": -1}
    with pytest.warns(UserWarning, match=r"'m'.* from step 2 .*step 3") as caught:
        callback, _, _ = fit(
            module=StepMetric.of(lib, recorder), checkpoint=checkpoint, val_check_interval=2, max_epochs=3
        )
    assert len([w for w in caught if "monitors" in str(w.message)]) == 1, "one warning tells it all"
    assert scores(callback) == {4: 4.0, 6: 6.0, 10: 10.0, 12: 12.0}


def test_the_last_file_does_not_wait_for_the_monitor(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    steps = []
    checkpoint = {"monitor": "m", "every_n_train_steps": 3, "save_last": True}
    module = StepMetric.of(lib, recorder)
    module.on_save_checkpoint = lambda checkpoint: steps.append(module.trainer.global_step)
    with pytest.warns(UserWarning, match="says nothing of step 6"):
        fit(module=module, checkpoint=checkpoint, max_epochs=2)
    assert steps == [3, 4, 4, 6, 8], "3 and 6: last only; 4: best and last; 8: last only, since 8 is worse than 4"


def test_a_value_of_the_training_step_is_used_at_once(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    checkpoint = {"monitor": "t", "every_n_train_steps": 2, "save_top_k": -1}
    callback, _, _ = fit(module=StepMetric.of(lib, recorder), checkpoint=checkpoint, max_epochs=2)
    assert scores(callback) == {2: 2.0, 4: 4.0, 6: 6.0, 8: 8.0}


def test_a_training_value_that_is_logged_now_and_then_is_refused_in_between(
    fit: Any, lib: ModuleType, recorder: ModuleType
) -> None:
    module = recorder.module_of(lib)

    def training_step(batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx != 2:
            module.log("t", float(module.trainer.global_step + 1))
        return module.layer(batch).pow(2).mean()

    module.training_step = training_step
    checkpoint = {"monitor": "t", "every_n_train_steps": 1, "save_top_k": -1}
    with pytest.warns(UserWarning, match=r"'t'.* from step 2 .*step 3"):
        callback, _, _ = fit(module=module, checkpoint=checkpoint, max_epochs=1, limit_val_batches=0)
    assert scores(callback) == {1: 1.0, 2: 2.0, 4: 4.0}


def test_a_metric_that_some_epochs_lack(fit: Any, lib: ModuleType, recorder: ModuleType) -> None:
    module = StepMetric.of(lib, recorder, only=lambda module: module.current_epoch % 2 == 0)
    with pytest.warns(UserWarning, match=r"'m'.* from step 4 .*step 8"):
        callback, trainer, _ = fit(module=module, checkpoint={"monitor": "m", "save_top_k": -1}, max_epochs=4)
    assert trainer.current_epoch == 4
    assert scores(callback) == {4: 4.0, 12: 12.0}


def test_a_metric_of_the_epoch_is_not_used_in_the_next_one(fit: Any) -> None:
    checkpoint = {"monitor": "at_end", "every_n_train_steps": 3, "save_top_k": -1}
    with pytest.warns(UserWarning, match="says nothing of step 6"):
        callback, _, _ = fit(checkpoint=checkpoint, max_epochs=2, limit_val_batches=0)
    assert scores(callback) == {4: 10.0, 8: 9.0}, "saved when the value came, at the end of each epoch"


@pytest.mark.parametrize(
    ("arguments", "scores"),
    [
        ({"monitor": "epoch"}, [1, 2]),
        ({"monitor": "step"}, [8, 12]),
        ({"monitor": "step", "every_n_train_steps": 5}, [5, 10]),
    ],
)
def test_counters_rank_files_too(arguments: dict[str, Any], scores: list[int], fit: Any) -> None:
    callback, _, _ = fit(checkpoint={"mode": "max", "save_top_k": 2, **arguments}, max_epochs=3)
    assert sorted(callback.best_k_models.values()) == scores


def test_what_is_logged_under_the_name_of_a_counter_is_what_ranks(fit: Any, lib: Any, recorder: Any) -> None:
    module = recorder.module_of(lib)
    module.on_train_epoch_end = lambda: module.log("step", 20.0 - module.current_epoch)
    callback, _, _ = fit(module=module, checkpoint={"monitor": "step", "save_top_k": -1}, max_epochs=3)
    assert sorted(callback.best_k_models.values()) == [18, 19, 20]


def test_a_monitor_that_is_never_logged_is_an_error_after_the_first_validation(fit: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"monitors 'val_los'.*there is: 'at_end', 'm'"):
        fit([1.0], checkpoint={"monitor": "val_los"}, max_epochs=2)


def test_before_the_first_validation_a_missing_monitor_is_no_error(fit: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback, trainer, _ = fit(
            [1.0],
            checkpoint={"monitor": "m", "every_n_train_steps": 1},
            max_epochs=-1,
            max_steps=2,
            num_sanity_val_steps=0,
        )
    assert trainer.global_step == 2
    assert callback.best_model_path == ""


def test_without_validations_a_missing_monitor_is_a_warning(fit: Any) -> None:
    with pytest.warns(UserWarning, match="monitors 'm', which was not logged"):
        fit(checkpoint={"monitor": "m"}, max_epochs=2, limit_val_batches=0)


def test_resuming_in_the_middle_of_an_epoch_does_not_miss_the_monitor(
    fit: Any, lib: ModuleType, recorder: ModuleType
) -> None:
    options = {"checkpoint": {"monitor": "m", "every_n_train_steps": 1, "save_last": True}, "max_epochs": -1}
    callback, _, _ = fit(module=StepMetric.of(lib, recorder), max_steps=2, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again, trainer, _ = fit(
            module=StepMetric.of(lib, recorder), max_steps=4, ckpt_path=callback.last_model_path, **options
        )
    assert trainer.global_step == 4
    assert scores(again) == {4: 4.0}


def test_an_epoch_without_validation_still_saves_without_monitor(fit: Any, tmp_path: Path) -> None:
    fit(checkpoint={"save_top_k": -1}, max_epochs=2, limit_val_batches=0, check_val_every_n_epoch=2)
    assert names(tmp_path / "files") == ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"]


# --- the last file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_last", [True, "link"])
def test_the_last_file_is_the_newest_not_the_best(fit: Any, save_last: Any) -> None:
    callback, _, _ = fit([1.0, 2.0, 3.0], checkpoint={"monitor": "m", "save_last": save_last}, max_epochs=3)
    assert read(callback.best_model_path)["epoch"] == 0
    assert read(callback.last_model_path)["epoch"] == 2


def test_the_last_file_as_a_link(fit: Any, tmp_path: Path) -> None:
    fit([3.0, 4.0, 2.0], checkpoint={"monitor": "m", "save_last": "link"}, max_epochs=3)
    last = tmp_path / "files" / "last.ckpt"
    assert os.readlink(last) == "epoch=2-step=12.ckpt"
    assert names(tmp_path / "files") == ["epoch=2-step=12.ckpt", "last.ckpt"]


def test_a_link_never_dangles(fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookbus.callbacks import checkpoint_files

    last = tmp_path / "files" / "last.ckpt"
    removed = []

    def remove(path: str) -> None:
        os.remove(path)
        removed.append(path)
        assert last.exists()

    monkeypatch.setattr(checkpoint_files, "remove", remove)
    fit(checkpoint={"save_last": "link"}, max_epochs=3)
    assert len(removed) == 2


def test_files_of_one_moment_hold_the_same_state(fit: Any) -> None:
    callback, _, _ = fit([2.0, 1.0], checkpoint={"monitor": "m", "save_last": True, "save_top_k": 2}, max_epochs=2)
    best, last = state_in(callback.best_model_path), state_in(callback.last_model_path)
    assert best == last
    assert best["best_model_path"] == callback.best_model_path
    assert best["last_model_path"] == callback.last_model_path
    assert sorted(best["best_k_models"].values()) == [1.0, 2.0]


def test_training_that_ends_between_two_saves_ends_with_a_last_file(fit: Any) -> None:
    checkpoint = {"monitor": "m", "save_last": True}
    callback, trainer, _ = fit(
        [1.0, 2.0], checkpoint=checkpoint, max_epochs=-1, max_steps=3, val_check_interval=2, num_sanity_val_steps=0
    )
    assert read(callback.last_model_path)["global_step"] == trainer.global_step == 3


def test_the_last_file_needs_no_others(fit: Any, tmp_path: Path) -> None:
    callback, _, _ = fit(checkpoint={"save_top_k": 0, "save_last": True}, max_epochs=2)
    assert names(tmp_path / "files") == ["last.ckpt"]
    assert read(callback.last_model_path)["epoch"] == 1
    assert callback.best_model_path == ""


def test_last_files_are_found_on_the_disk(fit: Any, tmp_path: Path, lib: ModuleType, recorder: ModuleType) -> None:
    callback, _, _ = fit(checkpoint={"save_last": True}, max_epochs=1)
    (tmp_path / "files" / "lastly.ckpt").touch()
    fresh = ModelCheckpoint(dirpath=tmp_path / "files")
    trainer = recorder.trainer_of(lib, fresh)
    assert fresh.find_last_checkpoints(trainer) == [callback.last_model_path]


# --- files are whole, and only own files go ---------------------------------------------------------------------------


def test_a_file_counts_once_it_is_in_place(fit: Any, lib: ModuleType, recorder: ModuleType, tmp_path: Path) -> None:
    module = recorder.module_of(lib, [3.0, 2.0])
    seen = []

    def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
        callback = module.trainer.checkpoint_callback
        seen.append((callback.best_model_path, callback.last_model_path))
        if len(seen) == 3:
            raise OSError("no space left")

    module.on_save_checkpoint = on_save_checkpoint
    callback = ModelCheckpoint(dirpath=tmp_path / "files", monitor="m", save_last=True)
    with pytest.raises(OSError, match="no space left"):
        fit(callback=callback, module=module, max_epochs=2)
    first, last = (str(tmp_path / "files" / name) for name in ("epoch=0-step=4.ckpt", "last.ckpt"))
    assert seen == [("", ""), (first, ""), (first, last)]
    assert callback.best_model_path == first
    assert callback.best_k_models == {first: 3.0}
    assert callback.state_dict()["best_model_path"] == first
    assert read(first)["epoch"] == read(last)["epoch"] == 0


def test_resuming_keeps_to_the_number_of_files(fit: Any, tmp_path: Path) -> None:
    checkpoint = {"monitor": "m", "save_top_k": 2, "save_last": True}
    callback, _, _ = fit([6.0, 5.0, 4.0], checkpoint=checkpoint, max_epochs=3)
    fit([3.0, 2.0, 1.0], checkpoint=checkpoint, max_epochs=6, ckpt_path=callback.last_model_path)
    assert names(tmp_path / "files") == ["epoch=4-step=20.ckpt", "epoch=5-step=24.ckpt", "last.ckpt"]


def test_the_file_resumed_from_stays(fit: Any, tmp_path: Path) -> None:
    callback, _, _ = fit(max_epochs=1)
    fit(max_epochs=3, ckpt_path=callback.best_model_path)
    assert names(tmp_path / "files") == ["epoch=0-step=4.ckpt", "epoch=2-step=12.ckpt"]


def test_resuming_into_another_folder_leaves_the_old_one_alone(fit: Any, tmp_path: Path) -> None:
    checkpoint = {"monitor": "m", "save_top_k": 1, "save_last": True}
    callback, _, _ = fit([6.0, 5.0], checkpoint=checkpoint, max_epochs=2)
    before = names(tmp_path / "files")
    with pytest.warns(UserWarning, match="those files are left alone"):
        fit([3.0, 2.0], checkpoint=checkpoint, folder="more", max_epochs=4, ckpt_path=callback.last_model_path)
    assert names(tmp_path / "files") == before
    assert names(tmp_path / "more") == ["epoch=3-step=16.ckpt", "last.ckpt"]


def test_a_file_that_cannot_be_removed_is_a_warning(fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(f"not yours: {path}")

    monkeypatch.setattr(os, "remove", refuse)
    with pytest.warns(RuntimeWarning, match=r"epoch=0-step=4\.ckpt' could not be removed: not yours"):
        callback, _, _ = fit(max_epochs=2)
    assert callback.best_model_path.endswith("epoch=1-step=8.ckpt")


def test_a_new_training_with_the_same_callback_starts_with_nothing_kept(fit: Any, lib: Any, recorder: Any) -> None:
    callback, _, _ = fit([1.0], checkpoint={"monitor": "m"}, max_epochs=1)
    first = callback.best_model_path
    second = recorder.trainer_of(lib, callback, max_epochs=1)
    with pytest.warns(UserWarning, match="earlier run"):
        fit([5.0], callback=callback, trainer=second)
    assert float(callback.best_model_score) == 5.0
    assert callback.best_model_path != first
    assert os.path.exists(first)


def test_testing_an_older_file_does_not_make_the_callback_forget(
    fit: Any, lib: ModuleType, recorder: ModuleType
) -> None:
    callback, trainer, module = fit([3.0, 2.0, 1.0], checkpoint={"monitor": "m", "save_top_k": 3}, max_epochs=3)
    best, kept = callback.best_model_path, dict(callback.best_k_models)
    trainer.validate(module, ckpt_path=min(kept), verbose=False)
    assert (callback.best_model_path, callback.best_k_models) == (best, kept)


def test_what_was_kept_is_restored_in_a_new_process(fit: Any) -> None:
    checkpoint = {"monitor": "m", "save_top_k": 2, "save_last": True}
    callback, _, _ = fit([2.0, 1.0, 3.0], checkpoint=checkpoint, max_epochs=3)
    again, _, _ = fit([], checkpoint=checkpoint, max_epochs=3, ckpt_path=callback.last_model_path)
    assert again.state_dict() == callback.state_dict()
    assert [float(v) for v in again.best_k_models.values()] == [2.0, 1.0]


# --- exceptions, loggers, moments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_saving_on_an_exception(fit: Any, lib: Any, recorder: Any, tmp_path: Path, error: BaseException) -> None:
    module = recorder.module_of(lib)
    step = module.training_step

    def training_step(batch: Any, batch_idx: int) -> torch.Tensor:
        if module.trainer.global_step == 6:
            raise error
        return step(batch, batch_idx)

    module.training_step = training_step
    checkpoint = {"save_on_exception": True, "filename": "model", "save_last": True}
    with pytest.raises(type(error)):
        fit(module=module, checkpoint=checkpoint, max_epochs=2)
    files = {name: read(tmp_path / "files" / name)["global_step"] for name in names(tmp_path / "files")}
    assert files == {"model.ckpt": 4, "model-v1.ckpt": 6, "last.ckpt": 6}, "the file of before is not overwritten"


def test_an_exception_before_any_step_saves_nothing(fit: Any, lib: Any, recorder: Any, tmp_path: Path) -> None:
    module = recorder.module_of(lib)

    def on_fit_start() -> None:
        raise ValueError("boom")

    module.on_fit_start = on_fit_start
    with pytest.raises(ValueError, match="boom"):
        fit(module=module, checkpoint={"save_on_exception": True}, max_epochs=2)
    assert not (tmp_path / "files").exists()


def test_loggers_are_told_when_the_file_counts(fit: Any, lib: ModuleType, tmp_path: Path) -> None:
    from hookbus.loggers import DummyLogger

    told = []

    class Listener(DummyLogger):
        def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
            told.append(checkpoint_callback.best_model_path)

    fit(max_epochs=2, logger=Listener())
    assert [os.path.basename(path) for path in told] == ["epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt"]


def test_steps_that_several_optimisers_take_at_once_skip_no_save(
    fit: Any, lib: Any, recorder: Any, tmp_path: Path
) -> None:
    module = recorder.module_of(lib)
    module.automatic_optimization = False
    module.configure_optimizers = lambda: [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2)]

    def training_step(batch: Any, batch_idx: int) -> None:
        for optimizer in module.optimizers():
            optimizer.zero_grad()
            module.manual_backward(module.layer(batch).pow(2).mean())
            optimizer.step()

    module.training_step = training_step
    fit(module=module, checkpoint={"every_n_train_steps": 3, "save_top_k": -1}, max_epochs=1)
    assert [read(tmp_path / "files" / name)["global_step"] for name in names(tmp_path / "files")] == [4, 6]


def test_a_module_that_steps_its_own_optimiser_is_saved(fit: Any, lib: Any, recorder: Any, tmp_path: Path) -> None:
    module = recorder.module_of(lib)
    module.automatic_optimization = False
    module.configure_optimizers = lambda: None
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def training_step(batch: Any, batch_idx: int) -> None:
        optimizer.zero_grad()
        module.layer(batch).pow(2).mean().backward()
        optimizer.step()

    module.training_step = training_step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(module=module, checkpoint={"save_top_k": -1, "save_last": True}, max_epochs=2)
    assert names(tmp_path / "files") == ["epoch=0-step=0.ckpt", "epoch=1-step=0.ckpt", "last.ckpt"]


def test_time_between_saves(fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    clock = iter(range(0, 1000, 10))  # each batch takes ten seconds
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    fit(checkpoint={"train_time_interval": timedelta(seconds=20), "save_top_k": -1}, max_epochs=1)
    assert names(tmp_path / "files") == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]


def test_scores_as_yaml(fit: Any, tmp_path: Path) -> None:
    callback, _, _ = fit([2.0, 1.0], checkpoint={"monitor": "m", "save_top_k": 2}, max_epochs=2)
    callback.to_yaml()
    lines = (tmp_path / "files" / "best_k_models.yaml").read_text().splitlines()
    assert lines == [f'"{path}": {float(score)}' for path, score in callback.best_k_models.items()]


def test_subclasses_decide_by_overriding(fit: Any, tmp_path: Path) -> None:
    class Picky(ModelCheckpoint):
        def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Any]) -> None:
            if monitor_candidates["epoch"] == 1:
                super()._save_topk_checkpoint(trainer, monitor_candidates)

        def _save_last_checkpoint(self, trainer: Any, monitor_candidates: dict[str, Any]) -> None:
            pass

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)

    fit(callback=Picky(dirpath=tmp_path / "files", save_top_k=-1, save_last=True), max_epochs=3)
    assert names(tmp_path / "files") == ["epoch=1-step=8.ckpt"]


def test_subclasses_name_files_by_overriding(fit: Any, tmp_path: Path) -> None:
    class Dotted(ModelCheckpoint):
        def _format_checkpoint_name(self, *args: Any, **options: Any) -> str:
            return super()._format_checkpoint_name(*args, **options).replace("=", ".")

    fit(callback=Dotted(dirpath=tmp_path / "files", save_last=True), max_epochs=1)
    assert names(tmp_path / "files") == ["epoch.0-step.4.ckpt", "last.ckpt"]


def test_rhythm_and_moment_may_be_set_later(fit: Any, tmp_path: Path) -> None:
    callback = ModelCheckpoint(dirpath=tmp_path / "files", save_top_k=-1, every_n_train_steps=100)
    callback._every_n_train_steps = 3
    fit(callback=callback, max_epochs=2)
    assert names(tmp_path / "files") == ["epoch=0-step=3.ckpt", "epoch=1-step=6.ckpt"]


def test_the_trainer_puts_checkpoints_last(lib: ModuleType) -> None:
    class Own(Checkpoint):
        pass

    first, second, other = ModelCheckpoint(), Own(), lib.Callback()
    trainer = lib.Trainer(callbacks=[first, other, second], logger=False, enable_progress_bar=False)
    assert [c for c in trainer.callbacks if c in (first, second, other)] == [other, first, second]
    assert trainer.checkpoint_callback is first


# --- bad arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "best"}, "mode must be 'min' or 'max', got 'best'"),
        ({"monitor": ""}, "monitor must be"),
        ({"monitor": 3}, "monitor must be"),
        ({"save_top_k": -2}, "save_top_k must be"),
        ({"save_top_k": 1.5}, "save_top_k must be"),
        ({"save_top_k": 2}, "needs a monitor"),
        ({"save_last": "copy"}, "save_last must be"),
        ({"every_n_epochs": -1}, "every_n_epochs must be"),
        ({"every_n_train_steps": 0.5}, "every_n_train_steps must be"),
        ({"train_time_interval": 30}, r"train_time_interval must be a datetime\.timedelta"),
        ({"train_time_interval": timedelta(-1)}, "must not be negative"),
        ({"every_n_epochs": 1, "every_n_train_steps": 1}, "exclude each other"),
        ({"every_n_epochs": 1, "train_time_interval": timedelta(1)}, "exclude each other"),
        ({"filename": "{epoch"}, "a brace that does not belong"),
        ({"filename": "{}"}, "a field without a name"),
        ({"filename": "{epoch:zz}"}, "'zz' is no format for a number"),
        ({"filename": 5}, "filename must be"),
        ({"dirpath": "s3://bucket/runs"}, "remote"),
        ({"dirpath": 5}, "dirpath must be a path"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        ModelCheckpoint(**arguments)
