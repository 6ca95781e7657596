"""Where a fit stands, beside its counters: random streams, training data, logged values, gradients of an open window.

Saved with each checkpoint. A run that goes on takes most of it up late, after ``on_train_start``: who is called before
may draw random numbers and ask loaders, and the training must find everything as it was left.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from hookbus.bus.dispatch import running_hook
from hookbus.checkpoint import rng
from hookbus.checkpoint.cursor import Cursor
from hookbus.checkpoint.loaders import is_warm, leaves_of, set_streams, streams, warm_up
from hookbus.engine.device import move_to
from hookbus.trainer.data import batches, length
from hookbus.trainer.metric_series import is_metric_object
from hookbus.trainer.unfinished import finish_hook, unfinished_hook

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


#: The hooks of a batch before its gradients are added to those of its window.
_BEFORE_BACKWARD: Final = (
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer", "on_train_batch_start"),
    *("training_step", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward"),
)


class Place:
    """What a checkpoint says of one process of a fit.

    Args:
        trainer: whose loops, metrics and module.

    Attributes:
        failed_in: the hook out of which an exception came; None if there was none, or it came from elsewhere.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.forget()

    def forget(self) -> None:
        """Begin with nothing, as a fit without checkpoint does."""
        self.failed_in: str | None = None
        self._saved: dict[str, Any] = {}
        self._iteration: dict[str, Any] | None = None
        self._cursor: Cursor | None = None
        self._epoch = -1
        self._loading: dict[str, Any] | None = None
        self._frozen: dict[str, Any] | None = None
        self._before_validation: dict[str, Any] | None = None
        self._unfinished: dict[str, Any] | None = None
        self._expected: list[tuple[Any, Any]] = []

    # -- saved ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain data."""
        if self._saved:  # nothing of it has been taken up yet
            return self._saved
        trainer = self._trainer
        loop = trainer.fit_loop
        # A validation that is not over is begun anew, with the streams that it began with.
        before = None if trainer.progress.validated else self._before_validation
        return {
            "rng": rng.capture() if before is None else before["rng"],
            "val_batches_seen": dict(loop.val_loop._seen) if before is None else before["seen"],
            "data": _plain(self._data() if self._frozen is None else self._frozen),
            "metrics": trainer._metrics.state_dict({id(found): name for name, found in self._metric_objects().items()}),
            "metric_objects": self._metric_states() if before is None else before["metric_objects"],
            "gradients": self._open_gradients(),
            "unfinished": unfinished_hook(trainer),
        }

    def freeze(self) -> None:
        """The data will not move on: note where they stand, as their workers are about to be ended."""
        if not self._saved:
            self._frozen = self._data()

    def _data(self) -> dict[str, Any]:
        loaders = self._loaders()
        return {
            "iteration": self._place_in_data(),
            "num_batches": self._trainer.num_training_batches,
            "streams": [streams(loader) for loader in loaders],
            "warm": [[is_warm(leaf) for leaf in leaves_of(loader)] for loader in loaders],
            "loading": self._loading,
        }

    def _place_in_data(self) -> dict[str, Any] | None:
        progress = self._trainer.progress
        if self._iteration is not None:
            return self._iteration
        begun = progress.batch > 0 or (progress.epoch_started and self._epoch == progress.epoch)
        inside = progress.batch > progress.batch_trained
        over = progress.is_last_batch or progress.batch >= self._trainer.num_training_batches
        if self._cursor is None or not begun or (over and not inside):
            return None  # between two epochs
        return self._cursor.state_dict()

    def _open_gradients(self) -> dict[str, Any] | None:
        """The gradients of an accumulation window that is still open, by parameter; others are cleared anyway.

        A module that drives its optimisers itself may need any of them again, so all that there are are kept.

        Returns:
            None if they may hold a share of a batch that will be taken again: then all of the window will be.
        """
        module, progress = self._trainer.lightning_module, self._trainer.progress
        if module.automatic_optimization:
            if not progress.epoch_started or progress.batch_trained <= progress.batch_stepped:
                return {}
            hook = running_hook()
            hook = self.failed_in if hook == "on_exception" else hook
            if progress.batch > progress.batch_trained and hook not in _BEFORE_BACKWARD:
                return None
        return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}

    def _metric_states(self) -> dict[str, Any]:
        return {name: _metric_state(found) for name, found in self._metric_objects().items()}

    def _metric_objects(self) -> dict[str, Any]:
        """The objects in the module that accumulate what is logged, as those of torchmetrics do, by name."""
        found = self._trainer.lightning_module.named_modules()
        return {name: part for name, part in found if is_metric_object(part) and hasattr(part, "metric_state")}

    def _loaders(self) -> list[Any]:
        """The training loader and those of the validation, as far as they were asked for."""
        loop = self._trainer.fit_loop
        return [loader for loaders in (loop.loaders, loop.val_loop.loaders) if loaders for loader in loaders.loaders]

    # -- taken up ------------------------------------------------------------------------------------------------------

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a saved state until the loop comes to it; empty for a checkpoint of Lightning's."""
        self._saved = state

    def loading(self) -> AbstractContextManager[Any]:
        """Around the question for the training loader: what it draws, say to split the data, is drawn as it was then."""
        self._loading = (self._saved.get("data") or {}).get("loading")
        if self._loading is not None:
            return nullcontext() if self._loading["rng"] is None else rng.isolated(self._loading["rng"])
        passed = self._trainer._participants.only_passed("train_dataloader")  # to fit: nobody draws
        now = None if passed else rng.capture(cuda=False, plain=False)
        self._loading = {"rng": now, "epoch": self._trainer.progress.epoch}
        return nullcontext()

    @property
    def loaded_in_epoch(self) -> int:
        """The epoch in which the training loader was asked for; this one, if it would have been asked anew by now."""
        epoch, every = self._trainer.progress.epoch, self._trainer.settings.reload_every
        then = int(self._loading["epoch"]) if self._loading is not None else epoch
        return then if not every or epoch - then < every else epoch

    def restore_metrics(self) -> bool:
        """Bring back what was logged; whether the checkpoint knows."""
        if "metrics" not in self._saved:
            return False
        objects = self._metric_objects()
        for name, state in self._saved["metric_objects"].items():
            if name in objects:
                _set_metric_state(objects[name], state, self._trainer.strategy.root_device)
        self._trainer._metrics.load_state_dict(self._saved["metrics"], objects)
        return True

    @property
    def window_is_lost(self) -> bool:
        """Whether the gradients of the window that was open are not known."""
        return bool(self._saved) and self._saved["gradients"] is None

    def take_up(self) -> None:
        """Set gradients and random streams; from now on this is the run that was saved."""
        saved, self._saved = self._saved, {}
        if not saved:
            return
        trainer, data = self._trainer, saved["data"]
        gradients = saved["gradients"] or {}
        for name, parameter in trainer.lightning_module.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)
        trainer.fit_loop.val_loop._seen.update(saved["val_batches_seen"])
        self._iteration, self._unfinished = data["iteration"], saved.get("unfinished")
        if self._iteration is not None and data["num_batches"] != trainer.num_training_batches:
            warnings.warn(
                f"the checkpoint was saved inside an epoch of {data['num_batches']} batches, and now there are "
                f"{trainer.num_training_batches}: the rest of this epoch is not the one that was interrupted",
                stacklevel=2,
            )
        self._expected = list(zip(data["streams"], data["warm"], strict=False))
        self.loaders_came(self._loaders())
        rng.restore(saved["rng"])

    def loaders_came(self, loaders: Sequence[Any]) -> None:
        """Set the streams that loaders hold as they were; those of the validation may be asked for later than then."""
        expected, self._expected = self._expected[: len(loaders)], self._expected[len(loaders) :]
        for loader, (state, warm) in zip(loaders, expected, strict=False):
            set_streams(loader, state)
            for leaf, one in zip(leaves_of(loader), warm, strict=False):
                if one:
                    warm_up(leaf)

    def finish_hook(self) -> None:
        """Do what the module still had to do in the hook in which the checkpoint was saved."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            finish_hook(self._trainer, unfinished)

    # -- while training --------------------------------------------------------------------------------------------------

    def batches(self, loader: Any, num_batches: int | float) -> Iterator[tuple[Any, bool]]:
        """Walk over the training data from where the counters stand: each batch, and whether it is the last one."""
        done, state = self._trainer.progress.batch, self._iteration
        self._iteration, self._epoch = None, self._trainer.progress.epoch
        self._cursor = Cursor(loader, ahead=math.isinf(num_batches) or length(loader) is None)
        if done == 0 and state is None:
            return batches(loader, num_batches, iterator=self._cursor.begin())
        if state is None:  # of Lightning's, which does not know
            state = {"kind": "unknown", "position": done}
        iterator = self._cursor.resume(_moved(state, done - state["position"]), self._trainer.settings.resume_data)
        return batches(loader, num_batches, iterator=iterator, start=done)

    def validation_begins(self) -> None:
        """Note what a validation changes, in case that a checkpoint is saved before it is over."""
        self._before_validation = {
            "rng": rng.capture(),
            "seen": dict(self._trainer.fit_loop.val_loop._seen),
            "metric_objects": _copied(self._metric_states()),
        }

    def validation_ends(self) -> None:
        """Forget them."""
        self._before_validation = None


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """With the random streams of the question for the loader as plain data: they are noted in every fit, and saved in few."""
    loading = data["loading"]
    return {**data, "loading": loading and {**loading, "rng": rng.as_plain(loading["rng"])}}


def _moved(state: dict[str, Any], by: int) -> dict[str, Any]:
    """A place some batches further on; back, in fact, to a batch that was fetched and not trained on."""
    leaves = state.get("leaves")
    if by and state["kind"] in ("stateful", "stateful dataset") and state["position"]:
        warnings.warn(
            f"the checkpoint was saved in the middle of a batch, and the state of the training data is that after it: {-by} "
            "batch(es) that were not trained on are left out",
            stacklevel=3,
        )
    moved = {**state, "position": state["position"] + by}
    return moved if leaves is None else {**moved, "leaves": [leaf and _moved(leaf, by) for leaf in leaves]}


def _metric_state(metric: Any) -> dict[str, Any]:
    """What a metric has accumulated; torchmetrics leaves it out of ``state_dict`` unless told otherwise."""
    return {"state": dict(metric.metric_state), "updates": getattr(metric, "_update_count", None)}


def _copied(state: Any) -> Any:
    """A state that the metric, which changes its tensors and lists in place, cannot reach any more."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


def _set_metric_state(metric: Any, state: dict[str, Any], device: Any) -> None:
    for name, value in state["state"].items():
        setattr(metric, name, move_to(value, device))
    if state["updates"] is not None:
        metric._update_count = state["updates"]
        metric._computed = None
