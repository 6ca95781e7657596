"""What holds for each of the built-in callbacks: accumulation, several loaders, resuming, exceptions, trial runs, roles."""

from __future__ import annotations

import ast
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.batch_a import HOOKBUS
from tests.callbacks.data.scenarios_batch_a import plain
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookbus.callbacks as built_in
from hookbus import Callback, hookimpl


class Finetune(built_in.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.01)


class Writer(built_in.BasePredictionWriter):
    def write_on_batch_end(self, *args: Any) -> None:
        pass


class DotsBar(built_in.ProgressBar):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        print(f"{batch_idx + 1}/{self.total_train_batches}", self.get_metrics(trainer, pl_module))


#: Each public callback, or one derived from it where it is a base class, as a function of a folder it may write to.
MAKERS: dict[str, Callable[[Path], Any]] = {
    "BackboneFinetuning": lambda folder: built_in.BackboneFinetuning(1, lambda_func=lambda epoch: 1.5),
    "BaseFinetuning": lambda folder: Finetune(),
    "BasePredictionWriter": lambda folder: Writer("batch"),
    "BatchSizeFinder": lambda folder: built_in.BatchSizeFinder(steps_per_trial=1, max_trials=2),
    "DeviceStatsMonitor": lambda folder: built_in.DeviceStatsMonitor(),
    "EMAWeightAveraging": lambda folder: built_in.EMAWeightAveraging(decay=0.8, update_starting_at_step=1),
    "EarlyStopping": lambda folder: built_in.EarlyStopping("val_loss/dataloader_idx_1", patience=50),
    "GradientAccumulationScheduler": lambda folder: built_in.GradientAccumulationScheduler({0: 2, 1: 3, 2: 1}),
    "LambdaCallback": lambda folder: built_in.LambdaCallback(on_train_epoch_end=lambda *args: None),
    "LearningRateFinder": lambda folder: built_in.LearningRateFinder(num_training_steps=25),
    "LearningRateMonitor": lambda folder: built_in.LearningRateMonitor(log_momentum=True),
    "ModelCheckpoint": lambda folder: built_in.ModelCheckpoint(
        folder, monitor="val_loss/dataloader_idx_0", save_last=True
    ),
    "ModelPruning": lambda folder: built_in.ModelPruning("l1_unstructured", amount=0.2),
    "ModelSummary": lambda folder: built_in.ModelSummary(),
    "OnExceptionCheckpoint": lambda folder: built_in.OnExceptionCheckpoint(folder),
    "PlainProgress": lambda folder: built_in.PlainProgress(every_seconds=0.0),
    "ProgressBar": lambda folder: DotsBar(),
    "RichModelSummary": lambda folder: built_in.RichModelSummary(),
    "RichProgressBar": lambda folder: built_in.RichProgressBar(console_kwargs={"file": io.StringIO()}),
    "SpikeDetection": lambda folder: built_in.SpikeDetection(rtol=1e6, exclude_batches_path=folder),
    "StochasticWeightAveraging": lambda folder: built_in.StochasticWeightAveraging(0.02, swa_epoch_start=2),
    "TQDMProgressBar": lambda folder: built_in.TQDMProgressBar(),
    "ThroughputMonitor": lambda folder: built_in.ThroughputMonitor(lambda batch: len(batch[0])),
    "Timer": lambda folder: built_in.Timer("00:01:00:00"),
    "WeightAveraging": lambda folder: built_in.WeightAveraging(),
}
#: Those after which the weights are others than without.
TRAINING_CHANGES = {
    "BackboneFinetuning", "BaseFinetuning", "EMAWeightAveraging", "GradientAccumulationScheduler",
    "LearningRateFinder", "ModelPruning", "StochasticWeightAveraging", "WeightAveraging",
}  # fmt: skip
#: Those that bring their own number of batches per step.
ACCUMULATING = {"GradientAccumulationScheduler"}

each_callback = pytest.mark.parametrize("name", sorted(MAKERS))


class Net(HOOKBUS.LightningModule):  # type: ignore[misc,name-defined]
    """A module with all that a resumed run may get wrong: shuffling, dropout, momentum, a scheduler, a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 0.02, 4
        self.backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(6, 1)
        self.fails: tuple[int, BaseException] | None = None

    def data(self) -> TensorDataset:
        x = torch.randn(20, 4, generator=torch.Generator().manual_seed(5))
        return TensorDataset(x, x.square().sum(1, keepdim=True))

    def train_dataloader(self) -> Any:
        return DataLoader(self.data(), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.data(), batch_size=10), DataLoader(self.data(), batch_size=20)]

    predict_dataloader = test_dataloader = val_dataloader

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.fails is not None and self.global_step >= self.fails[0]:
            raise self.fails[1]
        loss = nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.head(self.backbone(batch[0])), batch[1]))

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.head(self.backbone(batch[0]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def model() -> Net:
    HOOKBUS.seed_everything(3)
    return Net()


def trainer_of(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    saves = any(isinstance(callback, built_in.Checkpoint) for callback in callbacks)
    options = {"max_epochs": 3, "enable_checkpointing": saves, "logger": HOOKBUS.logger(), **arguments}
    options["enable_progress_bar"] = any(isinstance(callback, built_in.ProgressBar) for callback in callbacks)
    return HOOKBUS.trainer(folder, callbacks=list(callbacks), **options)


def fit(folder: Path, *callbacks: Any, module: Any = None, ckpt_path: Any = None, **arguments: Any) -> Any:
    trainer = trainer_of(folder, *callbacks, **arguments)
    trainer.fit(module or model(), ckpt_path=ckpt_path)
    return trainer


def differing(first: nn.Module, second: nn.Module) -> list[str]:
    one, other = first.state_dict(), second.state_dict()
    return [key for key in one.keys() | other.keys() if key not in other or not torch.equal(one[key], other[key])]


def test_none_is_left_out() -> None:
    assert sorted(MAKERS) == sorted(set(built_in.__all__) - {"Callback", "Checkpoint", "TimedProgressBar"})


# --- what it declares -------------------------------------------------------------------------------------------------


@each_callback
def test_says_what_it_is_and_shows_how_it_is_used(name: str, tmp_path: Path) -> None:
    kind = getattr(built_in, name)
    assert kind.role in ("monitor", "mutator")
    assert (kind.role == "mutator") or name not in TRAINING_CHANGES
    assert ">>> " in (kind.__doc__ or "")


def test_the_loops_know_no_callback_by_name() -> None:
    folder = Path(built_in.__file__).parents[1] / "trainer"
    for loop in ("fit", "step", "evaluate", "predict", "run"):
        text = (folder / f"{loop}.py").read_text(encoding="utf-8")
        assert [name for name in MAKERS if f"{name}(" in text or f"import {name}" in text] == []
        assert "hookbus.callbacks" not in text


def test_who_decides_by_what_a_module_logs_at_the_end_of_an_epoch_comes_after_it(tmp_path: Path) -> None:
    seen: list[str] = []

    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.extend(row.plugin for row in trainer.bus.order("on_train_epoch_end"))

    class Logging(Net):
        def on_train_epoch_end(self) -> None:
            self.log("at_end", 1.0)

    torch.manual_seed(3)
    names = ["RichProgressBar", "EarlyStopping", "ModelCheckpoint"]
    fit(tmp_path, *(MAKERS[name](tmp_path) for name in names), Look(), module=Logging())
    assert [name for name in seen if name in (*names, "module")] == ["module", *names]


# --- how it runs ------------------------------------------------------------------------------------------------------


@each_callback
def test_accumulation_and_several_validation_loaders(name: str, tmp_path: Path) -> None:
    options = {} if name in ACCUMULATING else {"accumulate_grad_batches": 2}
    bare = fit(tmp_path / "bare", accumulate_grad_batches=2)
    trainer = fit(tmp_path, MAKERS[name](tmp_path), **options)
    assert trainer.state.finished
    assert trainer.progress.total_batches == 15
    assert trainer.global_step == (3 + 2 + 5 if name in ACCUMULATING else 9)
    assert bool(differing(bare.lightning_module, trainer.lightning_module)) == (name in TRAINING_CHANGES)


@each_callback
def test_a_trial_run(name: str, tmp_path: Path) -> None:
    trainer = fit(tmp_path, MAKERS[name](tmp_path), fast_dev_run=True)
    assert trainer.state.finished
    assert trainer.global_step == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@each_callback
def test_evaluations_and_predictions_of_several_loaders(name: str, tmp_path: Path) -> None:
    trainer, module = trainer_of(tmp_path, MAKERS[name](tmp_path)), model()
    if name == "BatchSizeFinder":
        module.val_dataloader = module.test_dataloader = module.predict_dataloader = module.train_dataloader
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer.validate(module, verbose=False)
    trainer.test(module, verbose=False)
    predictions = trainer.predict(module)
    assert sum(len(batch) for batches in predictions for batch in ([batches] if torch.is_tensor(batches) else batches))
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


# --- resuming ---------------------------------------------------------------------------------------------------------


class SaveAndFail(Callback):
    """Saves after a step, at the very end of its batch or of the epoch that ends with it; then ends the run."""

    placement = "last"

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise KeyboardInterrupt

    @hookimpl(trylast=True)
    def on_train_batch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.step and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path)

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def state_of(callback: Any, folder: Path) -> Any:
    """Its state but for times, with tensors as lists and paths as within ``folder``."""
    state = plain({key: value for key, value in callback.state_dict().items() if key != "time_elapsed"})
    return ast.literal_eval(repr(state).replace(str(folder), "").replace("inf", "1e999").replace("nan", "None"))


def logged(trainer: Any, name: str) -> list[Any]:
    """What loggers were given; of the callbacks that measure time and load, the names only."""
    rows = trainer.loggers[0].rows
    measured = name in ("DeviceStatsMonitor", "ThroughputMonitor")
    return [(step, sorted(row) if measured else row) for step, row in rows]


@pytest.mark.parametrize("step", [5, 7])
@each_callback
def test_a_resumed_run_is_the_uninterrupted_one(name: str, step: int, tmp_path: Path) -> None:
    """Cut off at the end of an epoch or in its middle: weights, callback, log and files agree to the bit."""
    one, other, path = tmp_path / "one", tmp_path / "other", tmp_path / "cut.ckpt"
    whole = MAKERS[name](one)
    first = fit(tmp_path, whole)
    interrupted = MAKERS[name](other)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, interrupted, SaveAndFail(step, path))
    assert not getattr(interrupted, "_shown", False)  # no bar is left on display
    torch.manual_seed(99)  # a new process has other streams, and other weights
    resumed, callback = Net(), MAKERS[name](other)
    second = fit(tmp_path, callback, module=resumed, ckpt_path=path)
    assert differing(first.lightning_module, resumed) == []
    assert second.progress == first.progress
    assert state_of(callback, other) == state_of(whole, one)
    rows, tail = logged(first, name), logged(second, name)
    assert tail == rows[len(rows) - len(tail) :]
    if name != "OnExceptionCheckpoint":
        assert sorted(map(str, (p.relative_to(other) for p in other.rglob("*")))) == sorted(
            map(str, (p.relative_to(one) for p in one.rglob("*")))
        )


@pytest.mark.parametrize(
    "names",
    [
        ("BackboneFinetuning", "ModelPruning"),
        ("ModelPruning", "StochasticWeightAveraging"),
        ("StochasticWeightAveraging", "ModelPruning"),
        ("StochasticWeightAveraging", "BackboneFinetuning"),
        ("EMAWeightAveraging", "BaseFinetuning"),
    ],
)
def test_pairs_that_change_the_same_weights_are_resumed_too(names: tuple[str, str], tmp_path: Path) -> None:
    first, second = ([MAKERS[name](tmp_path) for name in names] for _ in range(2))
    path = tmp_path / "cut.ckpt"
    saver = SaveAndFail(7, path)
    saver.on_train_batch_start = lambda *args: None  # type: ignore[method-assign]
    whole = fit(tmp_path, *first, saver).lightning_module
    torch.manual_seed(99)
    resumed = Net()
    fit(tmp_path, *second, module=resumed, ckpt_path=path)
    assert differing(whole, resumed) == []


@pytest.mark.parametrize(
    "name",
    [
        *("BatchSizeFinder", "EarlyStopping", "LearningRateFinder", "ModelCheckpoint", "ModelPruning"),
        *("SpikeDetection", "ThroughputMonitor", "Timer"),
    ],
)
def test_two_of_a_kind_keep_a_state_each(name: str, tmp_path: Path) -> None:
    first, second, path = MAKERS[name](tmp_path / "a"), MAKERS[name](tmp_path / "b"), tmp_path / "cut.ckpt"
    fit(tmp_path, first, second, max_epochs=1).save_checkpoint(path)
    states = torch.load(path, weights_only=True)["callbacks"]
    assert first.state_key != second.state_key
    assert {first.state_key, second.state_key} <= set(states)
    trainer = fit(tmp_path, MAKERS[name](tmp_path / "a"), MAKERS[name](tmp_path / "b"), max_epochs=2, ckpt_path=path)
    assert trainer.state.finished


# --- exceptions -------------------------------------------------------------------------------------------------------


@each_callback
def test_an_exception_is_the_callers_and_leaves_everything_usable(name: str, tmp_path: Path) -> None:
    callback, module = MAKERS[name](tmp_path), model()
    module.fails = (7, ZeroDivisionError("as planned"))
    trainer = trainer_of(tmp_path, callback)
    with pytest.raises(ZeroDivisionError, match="as planned"):
        trainer.fit(module)
    assert trainer.accumulate_grad_batches == 1
    assert not any(parameter.isnan().any() for parameter in module.parameters())
    if isinstance(callback, built_in.TimedProgressBar):
        assert not callback._shown
    module.fails = None
    trainer.fit(module)  # the same trainer goes on
    assert trainer.state.finished
    fresh = fit(
        tmp_path, MAKERS[name](tmp_path / "fresh"), module=module
    )  # and so does a new one, with the same module
    assert fresh.state.finished


@pytest.mark.parametrize("name", ["EarlyStopping", "ModelCheckpoint", "OnExceptionCheckpoint", "Timer"])
def test_a_copy_through_pickle_has_the_same_attributes(name: str, tmp_path: Path) -> None:
    callback = MAKERS[name](tmp_path)
    copied = vars(pickle.loads(pickle.dumps(callback)))
    assert copied.keys() == vars(callback).keys()
    assert [key for key, value in vars(callback).items() if copied[key] != value] == []
