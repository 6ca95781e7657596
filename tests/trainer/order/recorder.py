"""Writes down what a trainer does: which hooks it calls, of whom, in which order, and how its counters move meanwhile.

The library under test is chosen by import name, so that Lightning and hookbus are measured with the same ruler.
A recording is a list of words:

``callback.on_train_start``
    a call, written when it begins; hooks of batches show the batch and, but for the first, the loader:
    ``module.validation_step[2,1]``;
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
import signal
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
_ALWAYS_THERE = ("optimizer_step", "lr_scheduler_step", "predict_step", "on_before_optimizer_step")
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
        self._counters = "@None/0/0"

    def add(self, word: str) -> None:
        """Write a word, after the counters if they have changed.

        Lightning restores the counters of a checkpoint after ``on_fit_start`` and the first words to the loggers, hookbus
        before: they are not looked at there.
        """
        early = word.endswith("on_fit_start") or word.startswith("logger.")
        counters = self._counters if early else self._read_counters()
        if counters != self._counters:
            self._counters = counters
            self.words.append(counters)
        self.words.append(word)

    def _read_counters(self) -> str:
        trainer = self.trainer
        if trainer is None:
            return self._counters
        stage = getattr(trainer.state.stage, "value", trainer.state.stage)
        stop = "/stop" if trainer.should_stop else ""
        return f"@{stage}/{trainer.current_epoch}/{trainer.global_step}{stop}"

    def recorded(self, base: type, owner: str, hooks: Iterable[str]) -> type:
        """A subclass of ``base`` that writes each call of ``hooks`` and then does what ``base`` does.

        Steps and loaders are recorded only if ``base`` has them: an override would promise what is not there.
        """
        methods = {}
        for name in hooks:
            method = getattr(base, name, None)
            own = any(name in cls.__dict__ for cls in base.__mro__ if cls.__module__.startswith("tests."))
            if method is not None and (own or not name.endswith(("_dataloader", "_step")) or name in _ALWAYS_THERE):
                methods[name] = self._recorded_method(owner, name, method)
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
    if name in ("setup", "teardown", "finalize"):
        word = [*args, *kwargs.values()][-1]
        return f"[{getattr(word, 'value', word)}]"
    if name in ("optimizer_step", "lr_scheduler_step") or not _WITH_INDICES.match(name):
        return ""
    numbers = [v for v in [*args, *kwargs.values()] if isinstance(v, int) and not isinstance(v, bool)]
    if len(numbers) == 2 and numbers[1] == 0:  # Lightning leaves out the index of an only loader
        del numbers[1]
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
    handler = signal.getsignal(signal.SIGTERM)
    scenario(bench)
    signal.signal(signal.SIGTERM, handler)
    trainer = bench.recording.trainer
    if trainer is None:  # it was refused
        return {"words": bench.recording.words, "final": {}}
    final: dict[str, Any] = {
        "epoch": trainer.current_epoch,
        "step": int(trainer.global_step),
        "stop": bool(trainer.should_stop),
        "status": str(getattr(trainer.state.status, "value", trainer.state.status)),
    }
    if bench.answers:
        final["answers"] = bench.answers
    if bench.last_module is not None:
        final["weights"] = [round(float(v), 7) for p in bench.last_module.parameters() for v in p.detach().flatten()]
    if final["status"] == "finished":
        final["metrics"] = {k: round(float(v), 6) for k, v in sorted(trainer.callback_metrics.items())}
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        final["lr"] = [round(float(group["lr"]), 9) for group in groups if "lr" in group]
    return {"words": bench.recording.words, "final": final}


# -- a short form for files --------------------------------------------------------------------------------------------

#: Owners that fill the files, by their initials.
_SHORT = {"callback": "c", "module": "m", "datamodule": "d", "logger": "l", "checkpoint": "k"}
_LONG = {short: owner for owner, short in _SHORT.items()}
#: Words that always follow one another.
_PHRASES = {
    "TRANSFER": "m.on_before_batch_transfer m.transfer_batch_to_device m.on_after_batch_transfer",
    "ZERO": "c+m.on_before_zero_grad m.optimizer_zero_grad",
    "BACKWARD": "c+m.on_before_backward m.backward c+m.on_after_backward",
    "CLIP": "c+m.on_before_optimizer_step m.configure_gradient_clipping m.clip_gradients",
    "UPDATE": "ZERO BACKWARD CLIP",
    "VALIDATION": "m.on_validation_model_eval c+m.on_validation_start c+m.on_validation_epoch_start",
    "VALIDATED": "c+m.on_validation_epoch_end c+m.on_validation_end m.on_validation_model_train",
    "PLAIN_UPDATE": "c.on_before_zero_grad c.on_before_backward c.on_after_backward c.on_before_optimizer_step",
}
#: Words before which a new line begins.
_NEW_LINE = re.compile(r"[><]|TRANSFER|\S+\.on_train_epoch_(start|end)|\S+\.on_train_end|\S+_batch_start")


def fold(words: list[str]) -> list[str]:
    """Lines of words: owners by initials, neighbours of one hook as ``c+m.on_train_start``, phrases by their names."""
    tokens: list[str] = []
    last_hook = ""
    for word in words:
        owner, _, hook = word.partition(".")
        owner = _SHORT.get(owner, owner)
        owners = tokens[-1].partition(".")[0].split("+") if tokens else []
        if hook and hook == last_hook and owner not in owners:
            tokens[-1] = f"{'+'.join(owners)}+{owner}.{hook}"
        else:
            tokens.append(f"{owner}.{hook}" if hook else word)
        last_hook = hook
    text = " ".join(tokens)
    for name, phrase in _PHRASES.items():
        text = re.sub(rf"(?<!\S){re.escape(phrase)}(?!\S)", name, text)
    lines: list[list[str]] = []
    for token in text.split():
        starts = _NEW_LINE.match(token) and not (token.partition("_batch_start")[1] and lines[-1][-1] == "TRANSFER")
        if starts or not lines:
            lines.append([])
        lines[-1].append(token)
    return [" ".join(line) for line in lines]


def unfold(lines: list[str]) -> list[str]:
    """What :func:`fold` was given."""
    text = " ".join(lines)
    for name, phrase in reversed(_PHRASES.items()):
        text = re.sub(rf"\b{name}\b", phrase, text)
    words = []
    for token in text.split():
        owners, dot, hook = token.partition(".")
        words += [f"{_LONG.get(o, o)}.{hook}" for o in owners.split("+")] if dot and token[0] not in "@><" else [token]
    return words
