"""Small seeded runs of callbacks, written so that Lightning and hookbus can run them, and what each shows of itself.

Each function takes a :class:`Library` and a folder to write to, and returns numbers and words that JSON can hold.
``record_batch_a.py`` runs them under Lightning; the tests run them under hookbus and compare.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Library:
    """The names that the scenarios need, from the library under test.

    Args:
        name: its import name: ``lightning.pytorch`` or ``hookbus``.
    """

    def __init__(self, name: str) -> None:
        root = importlib.import_module(name)
        self.Trainer = root.Trainer
        self.LightningModule = root.LightningModule
        self.callbacks = importlib.import_module(f"{name}.callbacks")
        self.Logger = importlib.import_module(f"{name}.loggers").Logger
        self.seed_everything = root.seed_everything

    def trainer(self, folder: Path, **arguments: Any) -> Any:
        """A trainer that says little and writes below ``folder`` only."""
        quiet = {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(folder),
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
        }
        with quietly():
            return self.Trainer(**{**quiet, **arguments})

    def logger(self) -> Any:
        """A logger that keeps ``(step, metrics)`` in ``rows``."""

        class RowLogger(self.Logger):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.rows: list[tuple[Any, dict[str, Any]]] = []

            name = "rows"
            version = 0

            def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
                self.rows.append((step, {key: plain(value) for key, value in metrics.items()}))

            def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
                pass

        return RowLogger()

    def model(self, **parts: Callable[..., Any]) -> Any:
        """A module with one linear layer, trained by SGD; ``parts`` are methods that replace its own."""

        class Line(self.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(2, 1)

            def forward(self, x: Tensor) -> Any:
                return self.layer(x)

            def training_step(self, batch: Tensor, batch_idx: int) -> Any:
                return self(batch).pow(2).mean()

            def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                return self(batch).mean()

            def test_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                return self(batch).mean()

            def predict_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
                return self(batch)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        self.seed_everything(1)
        return type("Line", (Line,), parts)()


def loader(samples: int, batch_size: int = 2) -> DataLoader[Any]:
    """A loader over fixed random pairs."""
    return DataLoader(torch.randn(samples, 2, generator=torch.Generator().manual_seed(3)), batch_size=batch_size)


def plain(value: Any) -> Any:
    """Tensors as numbers and lists, also inside of containers."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def ticking(clock: list[float]) -> Iterator[None]:
    """``time.monotonic`` and ``time.perf_counter`` give ``clock[0]``."""
    saved = time.monotonic, time.perf_counter
    time.monotonic = time.perf_counter = lambda: clock[0]  # type: ignore[assignment]
    try:
        yield
    finally:
        time.monotonic, time.perf_counter = saved


# -- LearningRateMonitor ---------------------------------------------------------------------------------------------


def learning_rates(library: Library, folder: Path) -> dict[str, Any]:
    """What is logged under which step, for the ways in which optimisers and schedulers can be set up."""
    step_lr = torch.optim.lr_scheduler.StepLR

    def by_epoch(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        return [optimizer], [step_lr(optimizer, 1, 0.5)]

    def by_step(module: Any) -> Any:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": step_lr(optimizer, 1, 0.5), "interval": "step"}]

    def groups(module: Any) -> Any:
        optimizer = torch.optim.SGD(
            [{"params": [module.layer.weight], "name": "weights"}, {"params": [module.layer.bias], "lr": 0.2}], lr=0.1
        )
        return [optimizer], [{"scheduler": step_lr(optimizer, 1, 0.5), "name": "rate"}]

    def one_named_group(module: Any) -> Any:
        return torch.optim.SGD([{"params": list(module.parameters()), "name": "all"}], lr=0.1)

    def several(module: Any) -> Any:
        first = torch.optim.SGD([module.layer.weight], lr=0.1)
        second = torch.optim.SGD([module.layer.bias], lr=0.2)
        third = torch.optim.Adam([module.layer.bias], lr=0.3)
        scheduler = step_lr(second, 1, 0.5)
        return [first, second, third], [{"scheduler": scheduler, "interval": "step"}]

    def manual_step(module: Any, batch: Tensor, batch_idx: int) -> None:
        for optimizer in module.optimizers():
            optimizer.zero_grad()
        module.manual_backward(module(batch).pow(2).mean())
        for optimizer in module.optimizers():
            optimizer.step()
        module.lr_schedulers().step()

    def more_groups_later(module: Any) -> None:
        if module.current_epoch == 1:
            module.optimizers(use_pl_optimizer=False).add_param_group({"params": [module.extra], "lr": 0.7})

    cases: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
        "epoch": ({"configure_optimizers": by_epoch}, {"log_momentum": True, "log_weight_decay": True}, {}),
        "step": ({"configure_optimizers": by_step}, {"log_momentum": True}, {}),
        "step_of_epoch": ({"configure_optimizers": by_epoch}, {"logging_interval": "step"}, {"log_every_n_steps": 2}),
        "epoch_of_step": ({"configure_optimizers": by_step}, {"logging_interval": "epoch"}, {}),
        "accumulated": ({"configure_optimizers": by_step}, {}, {"accumulate_grad_batches": 2}),
        "groups": ({"configure_optimizers": groups}, {"log_weight_decay": True}, {}),
        "named_group": ({"configure_optimizers": one_named_group}, {"log_momentum": True}, {}),
        "no_scheduler": ({}, {"logging_interval": "step"}, {}),
        "manual": (
            {"configure_optimizers": several, "training_step": manual_step, "automatic_optimization": False},
            {},
            {},
        ),
        "groups_added": (
            {"on_train_epoch_start": more_groups_later},
            {"logging_interval": "epoch"},
            {"max_epochs": 3},
        ),
    }
    found = {}
    for name, (parts, options, arguments) in cases.items():
        model, logger = library.model(**parts), library.logger()
        model.__dict__["extra"] = nn.Parameter(torch.zeros(1))
        monitor = library.callbacks.LearningRateMonitor(**options)
        trainer = library.trainer(folder, **{"max_epochs": 2, **arguments}, logger=logger, callbacks=[monitor])
        with quietly():
            trainer.fit(model, loader(6), loader(2))
        found[name] = {
            "rows": [row for row in logger.rows if set(row[1]) != {"epoch"}],
            "callback_metrics": plain(dict(trainer.callback_metrics)),
            "lrs": monitor.lrs,
            "momentum": monitor.last_momentum_values,
            "weight_decay": monitor.last_weight_decay_values,
        }
    return found


# -- Timer -----------------------------------------------------------------------------------------------------------


def timer(library: Library, folder: Path) -> dict[str, Any]:
    """Where training ends when each training batch takes a second and each validation batch ten."""
    found = {}
    cases: dict[str, dict[str, Any]] = {
        "step": {"duration": {"seconds": 5}},
        "epoch": {"duration": {"seconds": 5}, "interval": "epoch"},
        "nothing": {"duration": {"seconds": 0}},
        "no_limit": {},
        "text": {"duration": "00:00:00:03"},
    }
    for name, options in cases.items():
        clock = [100.0]
        watch = library.callbacks.Timer(**options)
        tick = _tick(library, clock)
        trainer = library.trainer(folder, max_epochs=3, callbacks=[tick, watch])
        model = library.model()
        with quietly(), ticking(clock):
            trainer.fit(model, loader(8), loader(2))
            state = watch.state_dict()
            trainer.test(model, loader(4), verbose=False)
            found[name] = {
                "global_step": trainer.global_step,
                "epoch": trainer.current_epoch,
                "state": {key: round(value, 6) for key, value in state["time_elapsed"].items()},
                "stages": {
                    stage: [watch.start_time(stage), watch.end_time(stage), watch.time_elapsed(stage)]
                    for stage in ("train", "validate", "test", "predict")
                },
                "remaining": watch.time_remaining(),
            }
    found["resumed"] = _timer_resumed(library, folder)
    return found


def _timer_resumed(library: Library, folder: Path) -> dict[str, Any]:
    clock = [0.0]
    path = os.path.join(folder, "timer.ckpt")
    steps = []
    for max_epochs, resume in ((1, None), (9, path)):
        watch = library.callbacks.Timer(duration={"seconds": 7})
        trainer = library.trainer(folder, max_epochs=max_epochs, callbacks=[_tick(library, clock), watch])
        with quietly(), ticking(clock):
            trainer.fit(library.model(), loader(8), ckpt_path=resume)
            trainer.save_checkpoint(path)
        steps.append([trainer.global_step, watch.time_elapsed()])
    return {"steps": steps}


def _tick(library: Library, clock: list[float]) -> Any:
    class Tick(library.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, *args: Any) -> None:
            clock[0] += 1

        def on_validation_batch_start(self, *args: Any) -> None:
            clock[0] += 10

        def on_test_batch_start(self, *args: Any) -> None:
            clock[0] += 2

    return Tick()


# -- GradientAccumulationScheduler -----------------------------------------------------------------------------------


def accumulation(library: Library, folder: Path) -> dict[str, Any]:
    """Steps after each batch, and the weights that come out."""
    found = {}
    for name, scheduling in {"grows": {0: 1, 1: 2, 3: 4}, "late": {2: 3}, "ends": {0: 3, 1: 1}}.items():
        seen: list[int] = []

        class Steps(library.callbacks.Callback):  # type: ignore[misc,name-defined]
            def on_train_batch_end(self, trainer: Any, *args: Any, seen: list[int] = seen) -> None:
                seen.append(trainer.global_step)

        scheduler = library.callbacks.GradientAccumulationScheduler(scheduling=dict(scheduling))
        trainer = library.trainer(folder, max_epochs=4, callbacks=[scheduler, Steps()])
        model = library.model()
        with quietly():
            trainer.fit(model, loader(10), loader(2))
        found[name] = {
            "steps": seen,
            "weights": plain(list(model.layer.parameters())),
            "epochs": scheduler.epochs,
            "factors": [scheduler.get_accumulate_grad_batches(epoch) for epoch in range(5)],
        }
    return found


# -- LambdaCallback and OnExceptionCheckpoint ------------------------------------------------------------------------


def lambdas(library: Library, folder: Path) -> dict[str, Any]:
    """The hooks that functions are called for, in order."""
    calls: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *args, **named: calls.append(f"{name}/{len(args) + len(named)}")

    names = [
        name for name in vars(library.callbacks.Callback) if name.startswith("on_") or name in ("setup", "teardown")
    ]
    callback = library.callbacks.LambdaCallback(**{name: note(name) for name in names})
    trainer = library.trainer(folder, max_epochs=1, callbacks=[callback], num_sanity_val_steps=1)
    model = library.model()
    with quietly():
        trainer.fit(model, loader(4), loader(2))
        trainer.save_checkpoint(os.path.join(folder, "lambda.ckpt"))
        trainer.test(model, loader(2), verbose=False)
        trainer.predict(model, loader(2))
    return {"calls": calls}


def on_exception(library: Library, folder: Path) -> dict[str, Any]:
    """What is saved when a batch fails, and what is left when the next fit does not."""

    def failing(module: Any, batch: Tensor, batch_idx: int) -> Any:
        if module.fails and module.global_step == 4:
            raise RuntimeError("as planned")
        return module(batch).pow(2).mean()

    model = library.model(training_step=failing)
    model.fails = True
    callback = library.callbacks.OnExceptionCheckpoint(str(folder), filename="rescue")
    trainer = library.trainer(folder, max_epochs=3, callbacks=[callback], enable_checkpointing=True)
    with quietly(), contextlib.suppress(RuntimeError):
        trainer.fit(model, loader(6))
    saved = torch.load(callback.ckpt_path, weights_only=True)
    found = {
        "file": os.path.relpath(callback.ckpt_path, folder),
        "epoch": saved["epoch"],
        "global_step": saved["global_step"],
        "weights": plain(saved["state_dict"]),
    }
    model.fails = False
    again = library.callbacks.OnExceptionCheckpoint(str(folder), "rescue")
    trainer = library.trainer(folder, max_epochs=3, callbacks=[again], enable_checkpointing=True)
    with quietly():
        trainer.fit(model, loader(6), ckpt_path=callback.ckpt_path)
    return {**found, "left": os.path.exists(callback.ckpt_path), "final_step": trainer.global_step}


# -- DeviceStatsMonitor ----------------------------------------------------------------------------------------------


def device_stats(library: Library, folder: Path) -> dict[str, Any]:
    """Names and steps; the values are the machine's."""
    found = {}
    for name, options, arguments in (
        ("default", {}, {}),
        ("every_second", {}, {"log_every_n_steps": 2}),
        ("accumulated", {}, {"accumulate_grad_batches": 2, "log_every_n_steps": 2}),
        ("off", {"cpu_stats": False}, {}),
    ):
        logger = library.logger()
        monitor = library.callbacks.DeviceStatsMonitor(**options)
        trainer = library.trainer(folder, max_epochs=1, logger=logger, callbacks=[monitor], **arguments)
        model = library.model(validation_step=_quiet_step, training_step=_quiet_training)
        with quietly():
            trainer.fit(model, loader(8), [loader(6), loader(4)])
            trainer.test(model, loader(4), verbose=False)
        found[name] = [[step, sorted(metrics)] for step, metrics in logger.rows]
    return found


def _quiet_step(module: Any, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Any:
    return module(batch).mean()


def _quiet_training(module: Any, batch: Tensor, batch_idx: int) -> Any:
    return module(batch).pow(2).mean()


# -- ThroughputMonitor -----------------------------------------------------------------------------------------------


def throughput(library: Library, folder: Path) -> dict[str, Any]:
    """What is logged while each training batch takes a second, each validation batch ten, each test batch two."""
    found = {}
    for name, options, arguments in (
        ("plain", {}, {}),
        ("lengths", {"length_fn": lambda batch: batch.numel()}, {}),
        ("flops", {"separator": "."}, {}),
        ("accumulated", {}, {"accumulate_grad_batches": 2}),
        ("rarely", {}, {"log_every_n_steps": 3}),
    ):
        clock = [0.0]
        logger, model = library.logger(), library.model()
        if name == "flops":
            model.flops_per_batch = 12
        monitor = library.callbacks.ThroughputMonitor(batch_size_fn=len, window_size=3, **options)
        trainer = library.trainer(
            folder,
            max_epochs=2,
            logger=logger,
            callbacks=[_tick(library, clock), monitor],
            num_sanity_val_steps=1,
            **arguments,
        )
        with quietly(), ticking(clock):
            trainer.fit(model, loader(10), [loader(6), loader(2)])
            trainer.validate(model, loader(8), verbose=False)
            trainer.test(model, loader(8), verbose=False)
        found[name] = logger.rows
    return found


# -- SpikeDetection --------------------------------------------------------------------------------------------------


def spikes(library: Library, folder: Path) -> dict[str, Any]:
    """At which batch a sequence of losses ends the run, and what is written."""
    steady = [1.0, 1.1, 0.9, 1.0, 9.0, 1.0]
    found = {}
    for name, options, losses in (
        ("default", {}, steady),
        ("warm", {"warmup": 5}, steady),
        ("absolute", {"atol": 10.0}, steady),
        ("only_absolute", {"atol": 7.5, "rtol": None}, steady),
        ("window", {"window": 2}, [8.0, 1.0, 1.0, 1.0, 4.0]),
        ("long_window", {"window": 10}, [8.0, 1.0, 1.0, 1.0, 4.0]),
        ("max", {"mode": "max"}, [1.0, 1.1, 5.0, -20.0, 1.0]),
        ("nan", {}, [1.0, 1.0, float("nan"), 1.0]),
        ("nan_allowed", {"finite_only": False}, [1.0, 1.0, float("nan"), 1.0, 9.0]),
        ("inf_allowed", {"finite_only": False}, [1.0, 1.0, float("inf"), 1.0]),
        ("at_once", {"warmup": 0}, [5.0, 1.0]),
    ):

        def step(module: Any, batch: Tensor, batch_idx: int, losses: list[float] = losses) -> Any:
            return 0 * module(batch).sum() + losses[batch_idx]

        path = os.path.join(folder, name, "skip.json")
        detection = library.callbacks.SpikeDetection(exclude_batches_path=path, **options)
        trainer = library.trainer(folder, max_epochs=1, callbacks=[detection])
        error = None
        with quietly():
            try:
                trainer.fit(library.model(training_step=step), loader(len(losses), batch_size=1))
            except RuntimeError as raised:
                error = type(raised).__name__
        written = json.loads(Path(path).read_text()) if os.path.exists(path) else None
        found[name] = {"error": error, "steps": trainer.global_step, "written": written}
    return found


# -- BasePredictionWriter --------------------------------------------------------------------------------------------


class Numbers(Dataset[Tensor]):
    """Samples that say which they are."""

    def __init__(self, samples: int, start: int = 0) -> None:
        self.samples, self.start = samples, start

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.start + index)


class Stream(IterableDataset[Tensor]):
    """Samples without indices."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(5))


def writer(library: Library, folder: Path) -> dict[str, Any]:
    """What a writer is given, for the kinds of loaders."""
    shuffled = torch.Generator().manual_seed(5)
    cases: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
        "one": (lambda: DataLoader(Numbers(5), batch_size=2), {}, {}),
        "two": (lambda: [DataLoader(Numbers(3), batch_size=2), DataLoader(Numbers(2, 10), batch_size=1)], {}, {}),
        "shuffled": (lambda: DataLoader(Numbers(5), batch_size=2, shuffle=True, generator=shuffled), {}, {}),
        "not_returned": (lambda: DataLoader(Numbers(5), batch_size=2), {"return_predictions": False}, {}),
        "drop_last": (lambda: DataLoader(Numbers(5), batch_size=2, drop_last=True), {}, {}),
        "limited": (lambda: DataLoader(Numbers(9), batch_size=2), {}, {"limit_predict_batches": 2}),
        "workers": (lambda: DataLoader(Numbers(9), batch_size=2, num_workers=2), {}, {"limit_predict_batches": 3}),
        "trial": (lambda: DataLoader(Numbers(9), batch_size=2), {}, {"fast_dev_run": True}),
        "stream": (lambda: DataLoader(Stream(), batch_size=2), {}, {}),
        "list": (lambda: [[torch.tensor([1, 2])], [torch.tensor([3])]], {}, {}),
    }
    found: dict[str, Any] = {}
    for name, (make, predict, arguments) in cases.items():
        for interval in ("batch", "epoch", "batch_and_epoch"):
            calls: list[Any] = []
            trainer = library.trainer(folder, callbacks=[_writer(library, interval, calls)], **arguments)
            shuffled.manual_seed(5)
            with quietly():
                result = trainer.predict(library.model(predict_step=_identity), make(), **predict)
            found[f"{name}-{interval}"] = {"calls": calls, "result": plain(result)}
    return found


def _identity(module: Any, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
    return batch


def _writer(library: Library, interval: str, calls: list[Any]) -> Any:
    class Writer(library.callbacks.BasePredictionWriter):  # type: ignore[misc,name-defined]
        def write_on_batch_end(
            self,
            trainer: Any,
            pl_module: Any,
            prediction: Any,
            batch_indices: Any,
            batch: Any,
            batch_idx: int,
            dataloader_idx: int,
        ) -> None:
            calls.append(["batch", plain(prediction), plain(batch_indices), plain(batch), batch_idx, dataloader_idx])

        def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            calls.append(["epoch", plain(predictions), plain(batch_indices)])

    return Writer(write_interval=interval)


# -- ModelSummary ----------------------------------------------------------------------------------------------------


def summaries(library: Library, folder: Path) -> dict[str, Any]:
    """The numbers of the summary of three networks, as its callback hands them to ``summarize``."""
    found = {}
    for name, build in {"net": _net, "tied": _tied, "several_inputs": _several_inputs}.items():
        for depth in (1, 2, -1):
            given: dict[str, Any] = {}

            class Kept(library.callbacks.ModelSummary):  # type: ignore[misc,name-defined]
                @staticmethod
                def summarize(summary_data: Any, *args: Any, given: dict[str, Any] = given, **kwargs: Any) -> None:
                    names = (
                        "total_parameters",
                        "trainable_parameters",
                        "model_size",
                        "total_training_modes",
                        "total_flops",
                    )
                    given.update(zip(names, args, strict=False), **kwargs)
                    given["columns"] = {title: [cell.strip() for cell in column] for title, column in summary_data}

            model = library.model(forward=_forward_net)
            build(model)
            trainer = library.trainer(folder, fast_dev_run=True, callbacks=[Kept(max_depth=depth)])
            with quietly():
                trainer.fit(model, loader(2))
            assert model.training
            found[f"{name}/{depth}"] = plain(given)
    return found


def _forward_net(module: Any, x: Tensor, *others: Any, scale: Any = None) -> Any:
    return module.layer(x) if x.shape[-1] == 2 else module.net(x)


def _net(model: Any) -> None:
    model.net = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.Dropout(0.5))
    model.net[1].requires_grad_(False)
    model.head = nn.ModuleDict({"unused": nn.Sequential(nn.Linear(3, 4))}).eval()
    model.free = nn.Parameter(torch.zeros(7))
    model.example_input_array = torch.zeros(10, 256)


def _tied(model: Any) -> None:
    first = nn.Linear(4, 4)
    model.net = nn.Sequential(first, nn.ReLU(), first)


def _several_inputs(model: Any) -> None:
    model.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    model.example_input_array = {"x": torch.zeros(2, 3, 16, 16), "scale": "half"}


# -- TQDMProgressBar -------------------------------------------------------------------------------------------------


def tqdm_bar(library: Library, folder: Path) -> dict[str, Any]:
    """Where each bar stands when its loop ends."""
    seen: list[Any] = []

    class Looked(library.callbacks.Callback):  # type: ignore[misc,name-defined]
        def look(self, bar: Any) -> list[Any]:
            return [bar.n, bar.total]

        def on_train_epoch_end(self, trainer: Any, *args: Any) -> None:
            trainer.progress_bar_callback.refresh() if hasattr(trainer.progress_bar_callback, "refresh") else None
            seen.append(["train", *self.look(trainer.progress_bar_callback.train_progress_bar)])

        def on_test_end(self, trainer: Any, *args: Any) -> None:
            seen.append(["test", *self.look(trainer.progress_bar_callback.test_progress_bar)])

        def on_predict_end(self, trainer: Any, *args: Any) -> None:
            seen.append(["predict", *self.look(trainer.progress_bar_callback.predict_progress_bar)])

    bar = library.callbacks.TQDMProgressBar()
    model = library.model()
    trainer = library.trainer(
        folder, max_epochs=2, enable_progress_bar=True, callbacks=[bar, Looked()], limit_train_batches=3
    )
    with quietly():
        trainer.fit(model, loader(10), loader(4))
        trainer.test(model, [loader(4), loader(6)], verbose=False)
        trainer.predict(model, loader(8))
    return {"seen": seen}


SCENARIOS: dict[str, Callable[[Library, Path], dict[str, Any]]] = {
    "learning_rates": learning_rates,
    "timer": timer,
    "accumulation": accumulation,
    "lambdas": lambdas,
    "on_exception": on_exception,
    "device_stats": device_stats,
    "throughput": throughput,
    "spikes": spikes,
    "writer": writer,
    "summaries": summaries,
    "tqdm_bar": tqdm_bar,
}
