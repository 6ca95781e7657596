"""Writes down what a trainer does: which hooks it calls, of whom, in which order, and how its counters move meanwhile.

The library under test is chosen by import name, so that Lightning and hookbus are measured with the same ruler.
A recording is a list of words:

``callback.on_train_start``
    a call, written when it begins; hooks of batches show their indices: ``module.validation_step[1,0]``;
``logger.log_metrics[train_loss|5]``
    a call of a logger: the names of the metrics and the step;
``@train/1/8``
    the counters as they are from here on: stage, ``current_epoch``, ``global_step``, and ``/stop`` if ``should_stop``;
``>fit`` and ``<ValueError``
    an entry point is called; an exception leaves it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

#: The moments of a loop, and the loops whose hooks are named after them.
_MOMENTS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
_LOOPS = ("train", "validation", "test", "predict")
_LOOP_HOOKS = [f"on_{loop}_{moment}" for loop in _LOOPS for moment in _MOMENTS]
_UPDATE_HOOKS = ["on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"]
_SHARED = ["setup", "teardown", "on_fit_start", "on_fit_end", *_LOOP_HOOKS, *_UPDATE_HOOKS]
_DATA = [
    "prepare_data",
    *(f"{prefix}_dataloader" for prefix in ("train", "val", "test", "predict")),
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
]

#: What is recorded of each kind of object.
HOOKS = {
    "callback": [
        *_SHARED,
        "on_sanity_check_start",
        "on_sanity_check_end",
        "on_exception",
        "on_save_checkpoint",
        "on_load_checkpoint",
        "state_dict",
        "load_state_dict",
    ],
    "module": [
        *_SHARED,
        *_DATA,
        *("training_step", "validation_step", "test_step", "predict_step"),
        *("configure_model", "configure_callbacks", "configure_optimizers"),
        *("backward", "manual_backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
        *("configure_gradient_clipping", "clip_gradients", "toggle_optimizer", "untoggle_optimizer"),
        *("on_validation_model_zero_grad", "on_validation_model_eval", "on_validation_model_train"),
        *("on_test_model_eval", "on_test_model_train", "on_predict_model_eval"),
        *("on_save_checkpoint", "on_load_checkpoint"),
    ],
    "datamodule": ["setup", "teardown", *_DATA, "state_dict", "load_state_dict", "on_exception"],
    "logger": ["log_hyperparams", "log_graph", "log_metrics", "save", "finalize", "after_save_checkpoint"],
}
_WITH_INDICES = re.compile(r"on_\w+_batch_(start|end)|\w+_step$")


class Library:
    """The names that the scenarios need, from the library under test."""

    def __init__(self, name: str) -> None:
        root = importlib.import_module(name)
        callbacks = importlib.import_module(f"{name}.callbacks")
        self.name = name
        self.version = root.__version__
        self.Trainer = root.Trainer
        self.LightningModule = root.LightningModule
        self.LightningDataModule = root.LightningDataModule
        self.Callback = root.Callback
        self.Logger = importlib.import_module(f"{name}.loggers.logger").Logger
        self.ModelCheckpoint = getattr(callbacks, "ModelCheckpoint", None)
        self.EarlyStopping = getattr(callbacks, "EarlyStopping", None)


class Recording:
    """The words of one scenario.

    Attributes:
        words: as described at the top of this file.
        trainer: whose counters are shown.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self.trainer: Any = None
        self._counters = ""

    def add(self, word: str) -> None:
        """Write a word, after the counters if they have changed."""
        counters = self._read_counters()
        if counters != self._counters:
            self._counters = counters
            self.words.append(counters)
        self.words.append(word)

    def _read_counters(self) -> str:
        trainer = self.trainer
        if trainer is None:
            return ""
        stage = getattr(trainer.state.stage, "value", trainer.state.stage)
        stop = "/stop" if trainer.should_stop else ""
        return f"@{stage}/{trainer.current_epoch}/{trainer.global_step}{stop}"

    def recorded(self, base: type, owner: str, hooks: Iterable[str]) -> type:
        """A subclass of ``base`` that writes each call of ``hooks`` and then does what ``base`` does."""
        methods = {name: self._recorded_method(owner, name, getattr(base, name)) for name in hooks if hasattr(base, name)}
        return type(base.__name__, (base,), methods)

    def _recorded_method(self, owner: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.add(f"{owner}.{name}{_details(name, args, kwargs)}")
            return method(this, *args, **kwargs)

        # Trainers look at signatures. ``functools.wraps`` would not do: Lightning follows ``__wrapped__`` when it asks
        # whether a method is overridden.
        call.__name__ = name
        call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return call


def _details(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if name == "log_metrics":
        metrics = kwargs.get("metrics", args[0] if args else {})
        step = kwargs.get("step", args[1] if len(args) > 1 else None)
        return f"[{','.join(sorted(metrics))}|{step}]"
    if name == "finalize":
        return f"[{[*args, *kwargs.values()][0]}]"
    if name in ("setup", "teardown"):
        return f"[{[*args, *kwargs.values()][-1]}]"
    if name in ("optimizer_step", "lr_scheduler_step") or not _WITH_INDICES.match(name):
        return ""
    numbers = [v for v in [*args, *kwargs.values()] if isinstance(v, int) and not isinstance(v, bool)]
    return f"[{','.join(map(str, numbers))}]" if numbers else ""


def run(library: Library, scenario: Callable[[Any], None], folder: str) -> dict[str, Any]:
    """Play one scenario.

    Args:
        library: the library under test.
        scenario: a function of a :class:`tests.trainer.order.bench.Bench`.
        folder: an empty folder for what it writes.

    Returns:
        ``words`` and, under ``final``, the counters, weights and answers at the end.
    """
    from tests.trainer.order.bench import Bench

    torch.manual_seed(0)
    bench = Bench(library, folder)
    scenario(bench)
    trainer = bench.recording.trainer
    final: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "step": int(trainer.global_step),
        "stop": bool(trainer.should_stop),
        "status": str(getattr(trainer.state.status, "value", trainer.state.status)),
        "metrics": {k: round(float(v), 6) for k, v in sorted(trainer.callback_metrics.items())},
    }
    if bench.answers:
        final["answers"] = bench.answers
    if bench.last_module is not None:
        final["weights"] = [round(float(v), 7) for p in bench.last_module.parameters() for v in p.detach().flatten()]
        final["lr"] = [round(float(g["lr"]), 9) for o in trainer.optimizers for g in o.param_groups]
    return {"words": bench.recording.words, "final": final}


# -- a compact, readable form for files --------------------------------------------------------------------------------

#: Words before which a new line begins.
_NEW_LINE = re.compile(r"[><]|[^.]+\.(on_train_epoch_(start|end)|on_before_batch_transfer|on_\w+_batch_start|on_train_end)")


def fold(words: list[str]) -> list[str]:
    """Lines of words; neighbours that differ in the owner only become one: ``callback+module.on_train_start``."""
    lines: list[list[str]] = [[]]
    last_hook = ""
    for word in words:
        owner, _, hook = word.partition(".")
        if hook and hook == last_hook and owner not in lines[-1][-1].partition(".")[0].split("+"):
            owners = lines[-1][-1].partition(".")[0]
            lines[-1][-1] = f"{owners}+{owner}.{hook}"
            continue
        starts = _NEW_LINE.match(word) and not _same_batch(hook, last_hook)
        if starts and lines[-1]:
            lines.append([])
        lines[-1].append(word)
        last_hook = hook
    return [" ".join(line) for line in lines if line]


def _same_batch(hook: str, last_hook: str) -> bool:
    """A batch's line begins with its transfer, where that is recorded."""
    return "_batch_start" in hook and last_hook.startswith("on_after_batch_transfer")


def unfold(lines: list[str]) -> list[str]:
    """What :func:`fold` was given."""
    words = []
    for token in " ".join(lines).split():
        owners, dot, hook = token.partition(".")
        words += [f"{owner}.{hook}" for owner in owners.split("+")] if dot and token[0] not in "@><" else [token]
    return words
