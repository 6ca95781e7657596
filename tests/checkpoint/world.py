"""A small training of which everything that could differ is looked at: what the checkpoint tests run, save and resume."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import hookbus
from hookbus import Callback, LightningModule, Trainer
from hookbus.loggers.logger import Logger
from hookbus.markers import hookimpl


@dataclass(frozen=True)
class Plan:
    """How a training is set up."""

    epochs: int = 3
    batches: int = 6
    accumulate: int = 1
    val_batches: int = 2
    val_interval: int | float = 1.0
    val_every_epochs: int | None = 1
    scheduler: str = ""
    precision: str = "32-true"
    dropout: float = 0.3
    shuffle: bool = True
    workers: int = 0
    manual: bool = False
    optimizers: int = 1
    val_loaders: int = 1
    noise: bool = False
    hooks: bool = True
    seed: int = 1
    max_steps: int = -1
    options: dict[str, Any] = field(default_factory=dict)


class Numbers(Dataset):  # type: ignore[type-arg]
    """Vectors that know their index; with ``noise``, each access draws from the random streams."""

    def __init__(self, count: int, *, noise: bool = False) -> None:
        self.rows = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
        self.rows[:, 0] = torch.arange(count)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index]
        return torch.cat([row[:1], row[1:] + torch.rand(3)]) if self.noise else row


class Net(LightningModule):
    """A linear model with dropout that logs in all ways, and learns what its own hooks tell it to.

    Attributes:
        seen: the indices of each batch that it was trained on.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        torch.manual_seed(7)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(plan.dropout), torch.nn.Linear(4, 1)
        )
        self.automatic_optimization = not plan.manual
        self.seen: list[list[int]] = []
        self.register_buffer("target", torch.ones(()))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.net(torch.cat([batch[:, :1] / 20, batch[:, 1:]], 1)) - self.target).pow(2).mean()

    def on_train_batch_end(self, outputs: Any, batch: torch.Tensor, batch_idx: int) -> None:
        if self.plan.hooks:
            self.target.mul_(0.9).add_(self.net[0].bias.detach().mean(), alpha=0.1)

    def on_validation_end(self) -> None:
        if self.plan.hooks and not self.trainer.sanity_checking:
            self.target.add_(0.01)

    def on_train_epoch_end(self) -> None:
        self.target.sub_(0.01 * self.plan.hooks)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        self.seen.append([int(i) for i in batch[:, 0]])
        loss = self.loss(batch)
        self.log("both", loss, on_step=True, on_epoch=True)
        self.log("sum", float(batch_idx), reduce_fx="sum", on_step=False, on_epoch=True)
        self.log("largest", loss, reduce_fx="max", on_step=False, on_epoch=True, prog_bar=True)
        if not self.plan.manual:
            return loss
        self.manual_backward(loss / self.plan.accumulate)
        if (batch_idx + 1) % self.plan.accumulate == 0:
            optimizers = self.optimizers()
            for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
                optimizer.step()
                optimizer.zero_grad()
        return None

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val", self.loss(batch))
        self.log("val_step", self.loss(batch), on_step=True)

    def configure_optimizers(self) -> Any:
        if self.plan.optimizers == 2:
            first, *_, last = self.net
            return torch.optim.Adam(first.parameters(), lr=0.05), torch.optim.SGD(last.parameters(), 0.1, momentum=0.9)
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        kind = self.plan.scheduler
        if not kind:
            return optimizer
        if kind == "step":
            scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
        if kind == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=9.0)
        how = {"scheduler": scheduler, "monitor": "val", "strict": False}
        return [optimizer], [{**how, "interval": "step" if kind == "plateau by step" else "epoch"}]


class Counter(Callback):
    """Counts the calls of every hook, and keeps an average of the weights."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.average: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"calls": dict(self.calls), "average": copy.deepcopy(self.average)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls, self.average = dict(state_dict["calls"]), copy.deepcopy(state_dict["average"])

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.count("on_train_batch_end")
        for name, weight in module.state_dict().items():
            if weight.is_floating_point():
                known = self.average.setdefault(name, weight.detach().clone())
                known.mul_(0.9).add_(weight.detach(), alpha=0.1)

    def count(self, hook: str) -> None:
        self.calls[hook] = self.calls.get(hook, 0) + 1


def _counted(hook: str) -> Any:
    def method(self: Counter, trainer: Any, *args: Any) -> None:
        if not trainer.sanity_checking:
            self.count(hook)

    return method


for _hook in (
    *("on_train_epoch_start", "on_train_epoch_end", "on_train_batch_start", "on_before_optimizer_step"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_validation_epoch_end", "on_validation_end", "on_before_zero_grad", "on_after_backward", "on_before_backward"),
):
    setattr(Counter, _hook, _counted(_hook))


class Rows(Logger):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    name = "rows"
    version = "0"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...


class Saver(Callback):
    """Saves in the ``nth`` call of one hook, and notes what had been seen and logged by then; and the run's folder."""

    placement = "last"

    def __init__(self, path: Path, moment: str, nth: int) -> None:
        self.path, self.moment, self.nth = path, moment, nth
        self.folder = path.with_suffix("")
        self.calls = 0
        self.seen = self.rows = 0

    def save(self, trainer: Trainer, module: Any) -> None:
        self.calls += 1
        if self.calls == self.nth + 1:
            self.seen, self.rows = len(module.seen), len(trainer.logger.rows)
            trainer.save_checkpoint(self.path)
            if Path(trainer.default_root_dir).exists():
                shutil.copytree(trainer.default_root_dir, self.folder)


def saver(path: Path, moment: str, nth: int) -> Saver:
    """A :class:`Saver` that has no other hook than ``moment``."""

    def method(self: Saver, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.save(trainer, pl_module)

    # Last of all: what others do in this hook is in the file, and is not done again.
    made: Saver = type("SaverOnce", (Saver,), {moment: hookimpl(trylast=True)(method)})(path, moment, nth)
    return made


@dataclass
class Run:
    """A training that was run: its parts, and at what it arrived."""

    trainer: Trainer
    module: Net
    logger: Rows
    counter: Counter

    @property
    def result(self) -> dict[str, Any]:
        """Everything that must be the same in the end."""
        trainer = self.trainer
        return {
            "weights": fingerprint(self.module.state_dict()),
            "optimizers": fingerprint([o.state_dict() for o in trainer.optimizers]),
            "schedulers": fingerprint([c.scheduler.state_dict() for c in trainer.lr_scheduler_configs]),
            "precision": fingerprint(trainer._precision.state_dict()),
            "calls": self.counter.calls,
            "average": fingerprint(self.counter.average),
            "states": states(self.trainer),
            "callback_metrics": numbers(trainer.callback_metrics),
            "logged_metrics": numbers(trainer.logged_metrics),
            "progress_bar_metrics": numbers(trainer.progress_bar_metrics),
            "progress": trainer.progress.state_dict(),
            "random": fingerprint(torch.get_rng_state()),
        }


def states(trainer: Trainer) -> dict[str, str]:
    """The states of hookbus's own callbacks, but for clocks."""
    return {
        str(callback.state_key): fingerprint(callback.state_dict())
        for callback in trainer.callbacks
        if type(callback).__module__.startswith("hookbus.") and not isinstance(callback, hookbus.callbacks.Timer)
    }


def train(
    plan: Plan,
    *callbacks: Callback,
    ckpt_path: Any = None,
    folder: Path | None = None,
    loggers: Sequence[Logger] = (),
    **options: Any,
) -> Run:
    """Train, from the beginning or from a checkpoint."""
    rows, counter, module = Rows(), Counter(), Net(plan)
    trainer = Trainer(
        **{
            "max_epochs": plan.epochs if plan.max_steps == -1 else -1,
            "max_steps": plan.max_steps,
            "accelerator": "cpu",
            "accumulate_grad_batches": 1 if plan.manual else plan.accumulate,
            "val_check_interval": plan.val_interval,
            "check_val_every_n_epoch": plan.val_every_epochs,
            "precision": plan.precision,
            "logger": [rows, *loggers],
            "log_every_n_steps": 1,
            "callbacks": [counter, *callbacks],
            "enable_checkpointing": bool(any(isinstance(c, hookbus.callbacks.Checkpoint) for c in callbacks)),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
            **plan.options,
            **options,
        }
    )
    torch.manual_seed(plan.seed if ckpt_path is None else 999)  # a new process does not stand where the old one stood
    train_data, val_data = loaders(plan)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*enough bins|.*num_workers|.*lr_scheduler.step|.*is saved in the middle"
        )
        trainer.fit(module, train_data, val_data, ckpt_path=ckpt_path)
    return Run(trainer, module, rows, counter)


def loaders(plan: Plan) -> tuple[Any, Any]:
    """The training and the validation data."""
    train_data = DataLoader(
        Numbers(3 * plan.batches, noise=plan.noise), batch_size=3, shuffle=plan.shuffle, num_workers=plan.workers
    )
    if not plan.val_batches:
        return train_data, None
    val_data = [DataLoader(Numbers(3 * plan.val_batches + 1 + i), batch_size=3) for i in range(plan.val_loaders)]
    return train_data, val_data[0] if plan.val_loaders == 1 else val_data


def fingerprint(value: Any) -> str:
    """A digest of all numbers in a value, to the last bit."""
    digest = hashlib.sha256()
    _feed(value, digest)
    return digest.hexdigest()[:16]


def _feed(value: Any, digest: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(bytes(value.reshape(-1).view(torch.uint8).tolist()) if value.numel() else b"")
    elif isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _feed(value[key], digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _feed(item, digest)
    else:
        digest.update(repr(value).encode())


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def resumed_equals_straight(
    plan: Plan, moment: str, nth: int, folder: Path, callbacks: Callable[[], Sequence[Callback]] = tuple, **options: Any
) -> Run | None:
    """Assert that a run which is saved at some moment, and taken up from there, arrives where it arrives anyway.

    Args:
        plan: the training.
        moment: the hook in which it is saved.
        nth: in which of its calls, from 0.
        folder: for files.
        callbacks: makes those of each of the two runs; their files belong into ``folder / "run"``.
        options: of the second Trainer.

    Returns:
        The run that was taken up; None if the moment never came.
    """
    return next(all_resumed_equal_straight(plan, [(moment, nth)], folder, callbacks, **options), None)


def all_resumed_equal_straight(
    plan: Plan,
    moments: Sequence[tuple[str, int]],
    folder: Path,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
    **options: Any,
) -> Iterator[Run]:
    """Do as :func:`resumed_equals_straight` with several moments of one run; give those runs whose moment came."""
    files = folder / "run"
    files.mkdir(exist_ok=True)
    savers = [saver(folder / f"{moment}-{nth}.ckpt", moment, nth) for moment, nth in moments]
    straight = train(plan, *callbacks(), *savers, folder=files)
    all_seen, all_rows, result = straight.module.seen, straight.logger.rows, straight.result
    kept = sorted(file.name for file in files.rglob("*"))
    del straight
    gc.collect()  # workers of two loaders at once would wait for each other in the end
    for save in savers:
        if not save.path.exists():
            continue
        shutil.rmtree(files)
        save.folder.rename(files)
        resumed = train(plan, *callbacks(), ckpt_path=save.path, folder=files, **options)
        where = f"{save.moment}, {save.nth}"
        assert resumed.module.seen == all_seen[save.seen :], f"{where}: other data"
        found = difference(resumed.result, result)
        logged, wanted = resumed.logger.rows, all_rows[save.rows :]
        if save.moment in BEGUN_AGAIN:  # the first hooks of the validation were called twice
            found.pop("calls", None)
            logged = logged[len(logged) - len(wanted) :]
        assert logged == wanted, f"{where}: other values were logged"
        assert not found, f"{where}: {found}"
        assert sorted(file.name for file in files.rglob("*")) == kept, f"{where}: other files were kept"
        yield resumed


#: Saved in one of these, a run begins the validation anew.
BEGUN_AGAIN = (
    *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"),
    "on_validation_epoch_end",
)


def difference(got: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The entries that differ, as (got, wanted)."""
    return {key: (got.get(key), wanted.get(key)) for key in got | wanted if got.get(key) != wanted.get(key)}


def saved_bytes(checkpoint: dict[str, Any]) -> bytes:
    """A checkpoint as torch writes it."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    return file.getvalue()
