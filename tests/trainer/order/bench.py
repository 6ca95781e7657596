"""The small world of the order scenarios: data, a linear model, and recording callbacks, data modules and loggers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.trainer.order.recorder import HOOKS, Library, Recording
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

_QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "num_sanity_val_steps": 0,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def rows(number: int) -> torch.Tensor:
    """``number`` samples of four features, the same ones each time."""
    return torch.randn(number, 4, generator=torch.Generator().manual_seed(100 + number))


def loader(batches: int, *, shuffle: bool = False) -> DataLoader:
    """``batches`` batches of two samples."""
    return DataLoader(TensorDataset(rows(2 * batches)), batch_size=2, shuffle=shuffle, collate_fn=_stack)


def _stack(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples])


class Stream(IterableDataset):
    """Batches of unknown number."""

    def __init__(self, batches: int) -> None:
        self._rows = rows(2 * batches)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._rows)


def stream(batches: int) -> DataLoader:
    """As :func:`loader`, without a length."""
    return DataLoader(Stream(batches), batch_size=2)


def sgd(module: Any, lr: float = 0.05) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)


#: Ways to answer ``configure_optimizers``, by name.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "plain": sgd,
    "by epoch": lambda m: [[o := sgd(m)], [StepLR(o, 1, gamma=0.5)]],
    "by step": lambda m: {"optimizer": (o := sgd(m)), "lr_scheduler": _every("step", StepLR(o, 1, gamma=0.9))},
    "both": lambda m: (
        [o := sgd(m)],
        [_every("epoch", StepLR(o, 1, gamma=0.5)), _every("step", StepLR(o, 1, gamma=0.9))],
    ),
    "every second": lambda m: (
        [o := sgd(m)],
        [
            _every("step", StepLR(o, 1, gamma=0.9), frequency=2),
            _every("epoch", StepLR(o, 1, gamma=0.5), frequency=2),
            _every("step", StepLR(o, 2, gamma=0.8), frequency=3),
        ],
    ),
    "plateau": lambda m: {"optimizer": (o := sgd(m)), "lr_scheduler": ReduceLROnPlateau(o), "monitor": "val_loss"},
    "plateau by step": lambda m: {
        "optimizer": (o := sgd(m)),
        "lr_scheduler": _every("step", ReduceLROnPlateau(o, patience=0, threshold=9.0), monitor="train_loss"),
    },
    "plateau by step of val": lambda m: {
        "optimizer": (o := sgd(m)),
        "lr_scheduler": _every(
            "step", ReduceLROnPlateau(o, patience=0, threshold=9.0), monitor="val_loss", strict=False
        ),
    },
    "plateau every second": lambda m: {
        "optimizer": (o := sgd(m)),
        "lr_scheduler": _every(
            "epoch", ReduceLROnPlateau(o, patience=0, threshold=9.0), monitor="val_loss", frequency=2
        ),
    },
    "plateau lenient": lambda m: {
        "optimizer": (o := sgd(m)),
        "lr_scheduler": _every("epoch", ReduceLROnPlateau(o), monitor="nobody", strict=False),
    },
    "plateau strict": lambda m: {
        "optimizer": (o := sgd(m)),
        "lr_scheduler": _every("epoch", ReduceLROnPlateau(o), monitor="nobody"),
    },
    "plateau and epoch": lambda m: (
        [o := sgd(m)],
        [
            _every("epoch", ReduceLROnPlateau(o, patience=0, threshold=9.0), monitor="val_loss"),
            _every("epoch", StepLR(o, 1, gamma=0.5)),
        ],
    ),
    "lbfgs": lambda m: torch.optim.LBFGS(m.parameters(), lr=0.05, max_iter=3),
    "lbfgs by step": lambda m: (
        [o := torch.optim.LBFGS(m.parameters(), lr=0.05, max_iter=3)],
        [_every("step", StepLR(o, 1, gamma=0.9))],
    ),
    "two": lambda m: (
        [a := torch.optim.SGD(m.net.parameters(), lr=0.05), b := torch.optim.Adam(m.net2.parameters(), lr=0.01)],
        [StepLR(a, 1, gamma=0.5), StepLR(b, 1, gamma=0.5)],
    ),
    "none": lambda m: None,
}


def _every(interval: str, scheduler: Any, **options: Any) -> dict[str, Any]:
    return {"scheduler": scheduler, "interval": interval, **options}


class Bench:
    """Makes the parts of a scenario, and calls the trainer.

    Attributes:
        recording: what was written so far.
        answers: what validate, test and predict returned, as rounded numbers.
        last_module: whose weights are compared at the end.
        folder: where checkpoints go.
    """

    def __init__(self, library: Library, folder: str) -> None:
        self.peer = library
        self.folder = folder
        self.recording = Recording()
        self.answers: list[Any] = []
        self.last_module: Any = None

    # -- parts -------------------------------------------------------------------------------------------------------

    def trainer(self, **options: Any) -> Any:
        """A quiet trainer with one recording callback; options as of ``Trainer``."""
        options = {**_QUIET, "default_root_dir": self.folder, **options}
        if "callbacks" not in options:
            options["callbacks"] = [self.callback()]
        if "max_epochs" not in options:
            options["max_epochs"] = -1 if options.get("max_steps") is not None else 2
        try:
            self.recording.trainer = self.peer.Trainer(**options)
        except Exception as error:
            self.recording.trainer = None
            self.recording.words += [">Trainer", f"<{type(error).__name__}"]
        return self.recording.trainer

    def module(
        self,
        *,
        train: Any = 3,
        val: Any = 2,
        test: Any = 2,
        predict: Any = 2,
        optimizer: str | Callable[[Any], Any] = "by epoch",
        plain: bool = False,
        dropout: float = 0.0,
        manual: bool = False,
        step: Callable[[Any, Any, int], Any] | None = None,
        **methods: Callable[..., Any],
    ) -> Any:
        """A linear model.

        Args:
            train, val, test, predict: its loaders: a number of batches, a tuple of numbers for several loaders, a
                function without arguments that makes them, or None for a module without that loader.
            optimizer: one of ``OPTIMIZERS``, or a function like them.
            plain: record nothing of the module, so that no hook but the steps counts as overridden.
            dropout: of the only layer.
            manual: whether the module drives its optimisers itself.
            step: what ``training_step`` does: a function of module, batch and index.
            **methods: methods to define or replace; None takes one away.
        """
        lightning_module = self.peer.LightningModule

        class Model(lightning_module):
            def __init__(self) -> None:
                super().__init__()
                self.net = torch.nn.Linear(4, 1)
                self.drop = torch.nn.Dropout(dropout)
                if optimizer == "two":
                    self.net2 = torch.nn.Linear(4, 1)
                self.automatic_optimization = not manual

            def loss(self, batch: torch.Tensor) -> torch.Tensor:
                return (self.drop(self.net(batch)) - 1).pow(2).mean()

            def forward(self, batch: torch.Tensor) -> torch.Tensor:
                return self.net(batch)

            def configure_optimizers(self) -> Any:
                return OPTIMIZERS[optimizer](self) if isinstance(optimizer, str) else optimizer(self)

        def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
            if step is not None:
                return step(self, batch, batch_idx)
            loss = self.loss(batch)
            self.log("train_loss", loss)
            return loss

        body: dict[str, Any] = {"training_step": training_step}
        for prefix, word, data in (("val", "validation", val), ("test", "test", test), ("predict", "predict", predict)):
            body[f"{word}_step"] = _evaluation_step(prefix, several=isinstance(data, tuple))
        for prefix, data in (("train", train), ("val", val), ("test", test), ("predict", predict)):
            if data is not None:
                body[f"{prefix}_dataloader"] = _dataloader(data)
        for name, method in {**body, **methods}.items():
            if method is not None:
                setattr(Model, name, method)
        cls = Model if plain else self.recording.recorded(Model, "module", HOOKS["module"])
        self.last_module = cls()
        return self.last_module

    def datamodule(self, **methods: Callable[..., Any]) -> Any:
        """Two training batches, one of each other kind; with a state."""
        body = {
            "train_dataloader": lambda this: loader(2),
            "val_dataloader": lambda this: loader(1),
            "test_dataloader": lambda this: loader(1),
            "predict_dataloader": lambda this: loader(1),
            "state_dict": lambda this: {"seen": 1},
            "load_state_dict": lambda this, state_dict: None,
            **methods,
        }
        base = type("Data", (self.peer.LightningDataModule,), body)
        return self.recording.recorded(base, "datamodule", HOOKS["datamodule"])()

    def callback(self, owner: str = "callback", *, base: type | None = None, **methods: Callable[..., Any]) -> Any:
        """A callback with a state, whose ``methods`` are replaced."""
        body = {
            "state_key": property(lambda this: owner),
            "state_dict": lambda this: {"owner": owner},
            "load_state_dict": lambda this, state_dict: None,
            **methods,
        }
        made = type("Watcher", (base or self.peer.Callback,), body)
        return self.recording.recorded(made, owner, HOOKS["callback"])()

    def logger(self, owner: str = "logger", **methods: Callable[..., Any]) -> Any:
        """A logger that writes nothing anywhere."""
        body = {
            "name": owner,
            "version": "0",
            "log_hyperparams": lambda this, *args, **kwargs: None,
            "log_metrics": lambda this, metrics, step=None: None,
            "log_graph": lambda this, *args, **kwargs: None,
            **methods,
        }
        base = type("Lines", (self.peer.Logger,), body)
        return self.recording.recorded(base, owner, HOOKS["logger"])()

    def checkpoint(self, **options: Any) -> Any:
        """A recording ModelCheckpoint."""
        cls = self.recording.recorded(self.peer.ModelCheckpoint, "checkpoint", HOOKS["callback"])
        return cls(dirpath=self.folder, **options)

    def early_stopping(self, **options: Any) -> Any:
        """A recording EarlyStopping."""
        return self.recording.recorded(self.peer.EarlyStopping, "early_stopping", HOOKS["callback"])(**options)

    # -- calls -------------------------------------------------------------------------------------------------------

    def fit(self, module: Any, *args: Any, **options: Any) -> None:
        self._call("fit", module, *args, **options)

    def validate(self, module: Any, *args: Any, **options: Any) -> None:
        self._call("validate", module, *args, verbose=False, **options)

    def test(self, module: Any, *args: Any, **options: Any) -> None:
        self._call("test", module, *args, verbose=False, **options)

    def predict(self, module: Any, *args: Any, **options: Any) -> None:
        self._call("predict", module, *args, **options)

    def save(self, name: str = "saved.ckpt", **options: Any) -> str:
        """Save a checkpoint; its path."""
        path = os.path.join(self.folder, name)
        self._call("save_checkpoint", path, **options)
        return path

    def _call(self, entry: str, *args: Any, **options: Any) -> None:
        if self.recording.trainer is None:
            return
        self.recording.add(f">{entry}")
        try:
            answer = getattr(self.recording.trainer, entry)(*args, **options)
        except BaseException as error:
            self.recording.add(f"<{type(error).__name__}")
        else:
            if entry in ("validate", "test", "predict"):
                self.answers.append(_rounded(answer))


def _evaluation_step(prefix: str, *, several: bool) -> Callable[..., Any]:
    def work(self: Any, batch: Any) -> Any:
        if prefix == "predict":
            return self(batch)
        self.log(f"{prefix}_loss", self.loss(batch))
        return None

    if several:

        def step_of_several(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            return work(self, batch)

        return step_of_several

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        return work(self, batch)

    return step


def _dataloader(data: Any) -> Callable[[Any], Any]:
    def make(self: Any) -> Any:
        if callable(data):
            return data()
        return [loader(n) for n in data] if isinstance(data, tuple) else loader(data)

    return make


def _rounded(answer: Any) -> Any:
    if isinstance(answer, torch.Tensor):
        return [round(float(v), 6) for v in answer.flatten()]
    if isinstance(answer, dict):
        return {key: _rounded(value) for key, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [_rounded(value) for value in answer]
    return round(answer, 6) if isinstance(answer, float) else answer
