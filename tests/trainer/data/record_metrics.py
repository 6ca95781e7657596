"""Record what Lightning's ``self.log`` makes of known values, as a list of events that ``test_metrics.py`` replays.

Run it with an environment that has Lightning 2.6 and torchmetrics (hookbus itself needs neither)::

    python tests/trainer/data/record_metrics.py tests/trainer/data/metrics.json

Each scenario is a list of events in the order in which they happened:

``{"do": "log", ...}``
    one call of ``self.log``: name, value, kind of value, hook, batch size, loader and the options given;
``{"do": "forward" | "update", "metric": ..., "value": ...}``
    one call of a torchmetrics object;
``{"do": "start" | "finish_batch" | "finish_batches" | "finish_epoch" | "reset", ...}``
    the moments of the loop, under the names of hookbus's ``MetricStore``;
``{"see": hook, "callback": ..., "logged": ..., "progress": ...}``
    the three dictionaries of the trainer, read inside that hook;
``{"sent": "step" | "epoch", "metrics": ...}``
    what the trainer hands to its loggers.

The file also holds, for every hook, what ``self.log`` makes of each combination of ``on_step`` and ``on_epoch``.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch as pl
import torch
import torchmetrics
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer.connectors.logger_connector.fx_validator import _FxValidator
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from torch.utils.data import DataLoader

EVENTS: list[dict[str, Any]] = []
OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "add_dataloader_idx")
STAGES = {"train": "train", "sanity_check": "sanity", "validate": "validate", "test": "test"}


def plain(metrics: dict[str, Any]) -> dict[str, Any]:
    """The dictionary with its tensors as ``[value, dtype]`` (NaN and infinity as strings)."""
    out = {}
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor):
            number = value.item()
            out[name] = [number if abs(number) < float("inf") else str(number), str(value.dtype).split(".")[-1]]
        else:
            out[name] = value if abs(value) < float("inf") else str(value)
    return out


def around(owner: type, name: str, before: Any = None, after: Any = None) -> None:
    """Replace a method by itself with something before and after it."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before:
            before(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        if after:
            after(self, *args, **kwargs)
        return result

    setattr(owner, name, method)


def do(what: str, **more: Any) -> None:
    EVENTS.append({"do": what, **more})


def record_log(module: pl.LightningModule, name: str, value: Any, **options: Any) -> None:
    results = module.trainer._results
    size = options.get("batch_size")
    if size is None and results.batch is not None:
        size = len(results.batch)
    if isinstance(value, torchmetrics.Metric):
        kind, shown = "metric", next(key for key, metric in module.named_children() if metric is value)
    elif isinstance(value, torch.Tensor):
        number = value.item()
        kind = str(value.dtype).split(".")[-1]
        shown = number if abs(number) < float("inf") else str(number)
    else:
        kind, shown = type(value).__name__, value
    do(
        "log",
        name=name,
        value=shown,
        kind=kind,
        hook=module._current_fx_name,
        loader=results.dataloader_idx,
        size=size,
        options={
            key: f"torch.{option.__name__}" if callable(option) else option
            for key, option in options.items()
            if key in OPTIONS
        },
    )


def install() -> None:
    """Wrap the places of Lightning whose moments are recorded."""
    around(pl.LightningModule, "log", before=record_log)
    around(_FitLoop, "on_run_start", before=lambda loop: do("start", stage="train"))
    around(_FitLoop, "on_advance_start", before=lambda loop: do("start", stage="train"))
    around(_EvaluationLoop, "on_run_start", before=lambda loop: do("start", stage=STAGES[loop.trainer.state.stage]))
    around(_EvaluationLoop, "_on_evaluation_end", after=lambda loop: do("finish_epoch"))
    around(_LoggerConnector, "on_batch_end", after=lambda connector: do("finish_batch"))

    def epoch_end_reached(connector: _LoggerConnector) -> None:
        do("finish_batches", loader=connector.trainer._results.dataloader_idx)

    around(_LoggerConnector, "epoch_end_reached", after=epoch_end_reached)
    around(_LoggerConnector, "update_train_epoch_metrics", after=lambda connector: do("finish_epoch"))
    around(_LoggerConnector, "reset_metrics", after=lambda connector: do("reset"))
    for name, kind in (
        ("update_train_step_metrics", "step"),
        ("update_eval_step_metrics", "step"),
        ("update_train_epoch_metrics", "epoch"),
        ("log_eval_end_metrics", "epoch"),
    ):
        wrap_sender(name, kind)


def wrap_sender(name: str, kind: str) -> None:
    original = getattr(_LoggerConnector, name)

    def method(self: _LoggerConnector, *args: Any) -> None:
        def log_metrics(metrics: dict[str, Any], step: int | None = None) -> None:
            EVENTS.append({"sent": kind, "metrics": plain(metrics)})
            _LoggerConnector.log_metrics(self, metrics, step=step)

        self.log_metrics = log_metrics
        try:
            original(self, *args)
        finally:
            del self.log_metrics

    setattr(_LoggerConnector, name, method)


class Eyes(pl.Callback):
    """Reads the trainer's three dictionaries in the hooks given (before the module's own hook of that name)."""

    def __init__(self, hooks: list[str]) -> None:
        for hook in hooks:
            setattr(self, hook, self.look(hook))

    def look(self, hook: str) -> Any:
        def method(trainer: pl.Trainer, *args: Any) -> None:
            seen = {
                "callback": plain(trainer.callback_metrics),
                "logged": plain(trainer.logged_metrics),
                "progress": plain(trainer.progress_bar_metrics),
            }
            EVENTS.append({"see": hook, **seen})

        return method


class Model(pl.LightningModule):
    """A model of one weight; ``logs`` maps a hook to the calls of ``self.log`` made there."""

    def __init__(self, logs: dict[str, Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.mean = torchmetrics.MeanMetric()
        for hook, calls in logs.items():
            if not hook.endswith("_step"):
                setattr(self, hook, self.logging(calls))
        self.logs = logs

    def logging(self, calls: Any) -> Any:
        return lambda *args: calls(self, *args)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.logs.get("training_step", lambda *args: None)(self, batch, batch_idx)
        return (self.weight * batch).mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.logs.get("validation_step", lambda *args: None)(self, batch, batch_idx, dataloader_idx)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def loader(*values: float, size: int = 2) -> DataLoader[float]:
    return DataLoader([torch.tensor(value) for value in values], batch_size=size)


FIVE = loader(1.0, 2.0, 4.0, 8.0, 16.0)  # batches of 2, 2 and 1
THREE = loader(1.0, 3.0, 7.0)  # batches of 2 and 1
SEEN = [
    f"on_{stage}_{point}"
    for stage in ("train", "validation", "test")
    for point in ("batch_end", "epoch_end", "end")
    if (stage, point) != ("train", "end")
]


def scenario_train(model: pl.LightningModule, batch: torch.Tensor, batch_idx: int) -> None:
    loss = batch.sum()
    model.log("step_only", loss, prog_bar=True)
    model.log("both", loss, on_step=True, on_epoch=True, prog_bar=True)
    model.log("epoch_only", loss, on_step=False, on_epoch=True)
    model.log("silent", loss, logger=False, on_epoch=True)
    model.log("sum", loss, on_step=False, on_epoch=True, reduce_fx="sum")
    model.log("max", -loss, on_epoch=True, reduce_fx="max")
    model.log("min", -loss, on_epoch=True, reduce_fx=torch.min)
    model.log("sized", loss, on_epoch=True, batch_size=10 * batch_idx + 1)


def scenario_kinds(model: pl.LightningModule, batch: torch.Tensor, batch_idx: int) -> None:
    both = {"on_step": True, "on_epoch": True}
    model.log("float", 0.1 * (batch_idx + 1), **both)
    model.log("int", batch_idx, **both)
    model.log("bool", batch_idx == 0, **both)
    model.log("double", batch.double().sum() / 3, **both)
    model.log("half", (batch.sum() / 3).half(), **both)
    model.log("long", batch.long().sum(), **both)
    model.log("element", batch.sum().reshape(1, 1), **both)
    model.log("nan", float("nan") if batch_idx == 1 else 1.0, **both)
    model.log("inf", torch.tensor(float("inf")), **both)
    model.log("nan_max", torch.tensor(float("nan") if batch_idx == 1 else 1.0), reduce_fx="max", **both)


def scenario_rare(model: pl.LightningModule, batch: torch.Tensor, batch_idx: int) -> None:
    if batch_idx == 1:
        model.log("rare", batch.sum(), on_step=True, on_epoch=True)
    model.log("twice", batch.sum(), on_step=True, on_epoch=True)
    model.log("twice", batch.sum() * 3, on_step=True, on_epoch=True)


def run_scenarios() -> dict[str, list[dict[str, Any]]]:
    val = {
        "validation_step": lambda m, b, i, d: (
            m.log("val", b.sum(), prog_bar=True),
            m.log("val_both", b.sum(), on_step=True, on_epoch=True),
        ),
        "on_validation_epoch_end": lambda m: m.log("val_end", 3.0),
        "on_validation_epoch_start": lambda m: m.log("val_start", 2.0),
    }
    once = {"max_epochs": 1}
    return {
        "train": fit({"training_step": scenario_train}, FIVE, max_epochs=2),
        "kinds": fit({"training_step": scenario_kinds}, FIVE, **once),
        "rare": fit({"training_step": scenario_rare}, FIVE, **once),
        "train_hooks": fit(
            {
                "on_train_start": lambda m: m.log("a", 1.0),
                "on_train_epoch_start": lambda m: m.log("b", 2.0 + m.current_epoch),
                "on_train_batch_start": lambda m, b, i: m.log("c", 3.0 * i),
                "on_before_backward": lambda m, loss: m.log("d", 4.0, on_epoch=True),
                "on_train_batch_end": lambda m, o, b, i: m.log("e", 5.0 + i, prog_bar=True),
                "on_train_epoch_end": lambda m: m.log("f", 6.0 + m.current_epoch, prog_bar=True),
            },
            FIVE,
            max_epochs=2,
        ),
        "same_name": fit(
            {
                "training_step": lambda m, b, i: m.log("x", b.sum(), on_epoch=True),
                "on_train_epoch_end": lambda m: m.log("x", 100.0),
            },
            FIVE,
            **once,
        ),
        "train_and_validation": fit(
            {"training_step": lambda m, b, i: m.log("loss", b.sum(), on_step=True, on_epoch=True), **val},
            FIVE,
            THREE,
            max_epochs=2,
            val_check_interval=2,
        ),
        "sanity": fit(val, FIVE, THREE, max_epochs=1, num_sanity_val_steps=2),
        "two_loaders": evaluate(
            "validate",
            {
                **val,
                "validation_step": lambda m, b, i, d: (
                    m.log("val", b.sum()),
                    m.log("stepped", b.sum(), on_step=True),
                    m.log(f"own{d}", b.sum(), add_dataloader_idx=False),
                ),
            },
            [FIVE, THREE],
        ),
        "test": evaluate(
            "test", {"test_step": val["validation_step"], "validation_step": val["validation_step"]}, FIVE
        ),
        "metric_object": fit({"training_step": scenario_metric, "on_train_epoch_end": log_metric}, FIVE, max_epochs=2),
    }


def scenario_metric(model: pl.LightningModule, batch: torch.Tensor, batch_idx: int) -> None:
    do("forward", metric="mean", value=batch.tolist())
    model.mean(batch)
    model.log("metric", model.mean, on_step=True, on_epoch=True)


def log_metric(model: pl.LightningModule) -> None:
    model.log("metric_end", model.mean)


def trainer_of(**kwargs: Any) -> pl.Trainer:
    from lightning.pytorch.loggers.logger import DummyLogger

    kwargs.setdefault("num_sanity_val_steps", 0)
    return pl.Trainer(
        accelerator="cpu",
        logger=DummyLogger(),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Eyes(SEEN)],
        **kwargs,
    )


def fit(logs: dict[str, Any], train: Any, val: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
    EVENTS.clear()
    if val is None:
        kwargs["limit_val_batches"] = 0
    trainer_of(**kwargs).fit(Model(logs), train, val)
    return list(EVENTS)


def evaluate(what: str, logs: dict[str, Any], loaders: Any) -> list[dict[str, Any]]:
    EVENTS.clear()
    answer = getattr(trainer_of(), what)(Model(logs), loaders, verbose=False)
    return [*EVENTS, {"returned": [plain(part) for part in answer]}]


def hook_table() -> dict[str, dict[str, Any]]:
    """For each hook: ``"on_step,on_epoch"`` as given -> the pair that Lightning makes of it, or the error's type."""
    table: dict[str, dict[str, Any]] = {}
    for hook in _FxValidator.functions:
        table[hook] = {}
        for on_step, on_epoch in product((None, False, True), repeat=2):
            try:
                answer: Any = _FxValidator.check_logging_and_get_default_levels(hook, on_step, on_epoch)
            except Exception as error:
                answer = type(error).__name__
            table[hook][f"{on_step},{on_epoch}"] = answer
    return table


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    install()
    record = {"lightning": lightning.__version__, "hooks": hook_table(), "scenarios": run_scenarios()}
    target = Path(sys.argv[1])
    scenarios = ",\n".join(
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(event) for event in events) + "\n]"
        for name, events in record.pop("scenarios").items()
    )
    target.write_text(json.dumps(record)[:-1] + ',\n"scenarios": {\n' + scenarios + "\n}}\n")


if __name__ == "__main__":
    main()
