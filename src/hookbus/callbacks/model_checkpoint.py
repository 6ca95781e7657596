"""``ModelCheckpoint``: saves at the moments it was told, and keeps the best files, the newest one, or all.

When it saves::

    every n training steps, or after some time    on_train_batch_end (a monitored value that is only to come with the
                                                  validation at this step: on_validation_end)
    every n epochs                                on_train_epoch_end, after the module's; on_validation_end instead,
                                                  if validations do not come once per epoch
    when the training is over                     the last file, if it is older than the weights
    when something was raised                     if asked for

A decision by a monitored value is made by a new one only: of this step, this validation or this epoch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookbus.callbacks import checkpoint_files as files
from hookbus.callbacks import checkpoint_names as names
from hookbus.callbacks.checkpoint import Checkpoint
from hookbus.callbacks.checkpoint_table import CheckpointTable, worst_score
from hookbus.callbacks.monitored import MonitoredValue, absence
from hookbus.callbacks.save_moments import SaveMoments, can_validate, validation_follows
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl
    from hookbus.hookspecs.types import STEP_OUTPUT


class ModelCheckpoint(Checkpoint):
    """Saves checkpoints during fit, and remembers which was the best.

    Arguments, attributes, file names and state are those of Lightning 2.6. A file counts, and is named in
    ``best_model_path`` and its like, once it stands completely on the disk; only then are files removed: those that
    this callback wrote, never the one that the run was resumed from.

    Args:
        dirpath: the folder; None for ``checkpoints`` in the folder of the logger's run, or of ``default_root_dir``.
        filename: a template such as ``"{epoch}-{val_loss:.2f}"`` for the name without extension; a field may be any
            logged name, ``epoch`` or ``step``. None means ``"{epoch}-{step}"``.
        monitor: the logged name by which files are ranked; None keeps the newest.
        verbose: print each decision.
        save_last: True also writes ``last.ckpt``, the newest state, whatever the monitored value is; ``"link"`` makes
            it a symbolic link where the same state was saved already.
        save_top_k: how many files to keep: the best ``k`` by ``monitor``, -1 for all, 0 for none. Without ``monitor``
            only -1, 0 and 1 have a meaning.
        save_on_exception: save when an exception, Ctrl-C or SIGTERM ends the fit.
        save_weights_only: leave out what only resuming needs.
        mode: whether the best value is the ``"min"`` or the ``"max"``.
        auto_insert_metric_name: write ``epoch=3`` for ``{epoch}``, not just ``3``. With False a name with a slash
            makes no folder: ``"loss={val/loss:.2f}"``.
        every_n_train_steps: optimiser steps between saves, counted over the whole fit.
        train_time_interval: time between saves.
        every_n_epochs: epochs between saves; 1 if none of the three is given. They exclude each other.
        save_on_train_epoch_end: whether saves by epoch happen at the end of the training epoch or of the validation;
            None for the end of the training epoch if there is one validation, or none, per epoch.
        enable_version_counter: add ``-v1``, ``-v2``, … to a name that is taken; False overwrites the file.

    Attributes:
        best_model_path: the best file; without ``monitor`` the newest; empty before the first.
        best_model_score: its score, a 0-dim tensor.
        best_k_models: the scores of the kept files, by path.
        kth_best_model_path, kth_value: the worst of them and its score, once there are ``save_top_k``.
        current_score: the score of the file saved last.
        last_model_path: the file that ``save_last`` wrote.
        twin: how many callbacks with otherwise the same ``state_key`` stand before this one in the trainer's list; to
            be set by the trainer.

    Raises:
        MisconfigurationException: an argument is out of range, or two exclude each other; during fit, if ``monitor``
            was never logged by the end of a validation.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    twin = 0

    best_k_models: dict[str, Tensor]
    kth_best_model_path: str
    kth_value: Tensor
    best_model_path: str
    best_model_score: Tensor | None
    current_score: Tensor | None
    last_model_path: str

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        super().__init__()
        _check(filename, monitor, save_last, save_top_k, mode)
        self._moments = SaveMoments(every_n_train_steps, every_n_epochs, train_time_interval, save_on_train_epoch_end)
        self.dirpath = None if dirpath is None else files.local_directory(dirpath)
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.save_weights_only = save_weights_only
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self._enable_version_counter = enable_version_counter
        self._found_dirpath: str | None = None
        self._stage: str | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing saved."""
        CheckpointTable.empty(self.mode).publish(self)
        self._next_table = CheckpointTable.of(self)
        self._table_to_save: CheckpointTable | None = None
        self._written: set[str] = set()
        self._last_checkpoint_saved = ""
        self._last_global_step_saved = 0  # nothing to save while no step was taken
        self._last_batch_saved = 0
        self._begin_watching()

    def _begin_watching(self) -> None:
        self._value = MonitoredValue()
        self._changes_before_validation = self._changes_before_epoch = 0
        self._put_off: int | None = None
        self._validated = False
        self._said: set[str] = set()

    @property
    def state_key(self) -> str:
        """Lightning's key; from the second callback with the same one on with a number."""
        key = self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._moments.every_n_train_steps,
            every_n_epochs=self._moments.every_n_epochs,
            train_time_interval=self._moments.train_time_interval,
        )
        return f"{key}#{self.twin + 1}" if self.twin else key

    @property
    def every_n_epochs(self) -> int:
        """Epochs between saves; 0 if saves go by steps or time."""
        return self._moments.every_n_epochs

    # -- moments -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Settle the folder. A training that starts anew, at step 0, starts with nothing kept."""
        if stage == "fit" and trainer.global_step == 0 and self._last_checkpoint_saved:
            self._forget()
        self._stage = stage
        if self.dirpath is None or (stage == "fit" and self.dirpath == self._found_dirpath):
            self.dirpath = self._found_dirpath = trainer.strategy.broadcast(files.default_directory(trainer))
        if stage == "fit" and self.save_top_k != 0 and trainer.is_global_zero and trainer.ckpt_path is None:
            self._warn_of_strangers()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting steps and time."""
        if trainer.global_step < self._last_global_step_saved:  # resumed from an earlier point of this very run
            self._last_global_step_saved = self._last_batch_saved = 0
        self._begin_watching()
        self._value.look(trainer, self.monitor)
        self._changes_before_validation = self._changes_before_epoch = self._value.changes
        self._moments.start(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What was logged up to here is of earlier epochs."""
        self._value.look(trainer, self.monitor)
        self._changes_before_epoch = self._value.changes

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time, by steps or by the clock."""
        moments = self._moments
        if moments.by_epoch or not moments.step_taken(trainer):
            return
        if not moments.due(trainer):
            if self.monitor is not None and moments.nearly_due(trainer):
                self._value.look(trainer, self.monitor)  # to know next time whether the value is of that step
            return
        if self._should_skip_saving_checkpoint(trainer):
            return
        value = self._value.look(trainer, self.monitor)
        new = trainer.strategy.broadcast(value is not None and self._value.step == trainer.global_step)
        if new or not self._ranks:
            self._put_off = None
            self._save(trainer, ranked=True)
            return
        self._put_off = self._value.changes
        if validation_follows(trainer):
            return
        if value is not None:
            self._warn_of_stale(trainer)
        self._save(trainer, ranked=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if a save was put off until now, or if saves by epoch happen here."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._validated = True
        self._value.look(trainer, self.monitor)
        due = self._moments.epoch_due(trainer) and not self._moments.at_train_epoch_end(trainer)
        self._save_if_due(trainer, due, self._changes_before_validation)
        self._changes_before_validation = self._value.changes

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if saves by epoch happen here; after the module, which may log something."""
        self._value.look(trainer, self.monitor)
        due = self._moments.epoch_due(trainer) and self._moments.at_train_epoch_end(trainer)
        self._save_if_due(trainer, due, self._changes_before_epoch)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """See to it that the last file holds the last weights."""
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save(trainer, ranked=False)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save what there is, beside the ranked files."""
        if not self.save_on_exception or self.dirpath is None or self._should_skip_saving_checkpoint(trainer):
            return
        candidates = self._monitor_candidates(trainer)
        path = self._free_path(trainer, candidates)
        self._save_checkpoint(trainer, path)
        self._save_last_checkpoint(trainer, candidates)
        trainer.print(f"{type(exception).__name__} was raised ({exception}); the state is saved in {path!r}")

    # -- decisions ---------------------------------------------------------------------------------------------------

    @property
    def _ranks(self) -> bool:
        """Whether files are ranked by a monitored value."""
        return self.monitor is not None and self.save_top_k != 0

    def _save_if_due(self, trainer: pl.Trainer, due: bool, seen: int) -> None:
        """Save what is due by epoch, or was put off; ``seen`` is how many values were seen before this one came."""
        changes = trainer.strategy.broadcast(self._value.changes)
        if self._put_off is not None:
            if changes > self._put_off:
                self._put_off = None
                self._save(trainer, ranked=True)
            elif self._validated:
                self._require_monitor(trainer)
        elif due and not self._should_skip_saving_checkpoint(trainer):
            new = changes > seen
            if self._ranks and not new:
                self._require_monitor(trainer)
                if self._value.step is not None:
                    self._warn_of_stale(trainer)
            self._save(trainer, ranked=new or not self._ranks)

    def _save(self, trainer: pl.Trainer, *, ranked: bool) -> None:
        """Save: what ``save_top_k`` asks for if ``ranked``, and the last file, which is independent of it."""
        candidates = self._monitor_candidates(trainer)
        if ranked:
            self._save_topk_checkpoint(trainer, candidates)
        self._save_last_checkpoint(trainer, candidates)

    def _require_monitor(self, trainer: pl.Trainer) -> None:
        """Say that the monitored name is missing; silently wait for it as long as no validation has been.

        Raises:
            MisconfigurationException: it was never logged, and a validation is over.
        """
        if self._value.step is not None:
            return
        text = absence(type(self).__name__, str(self.monitor), trainer.callback_metrics)
        known = self.current_score is not None or self.best_model_score is not None  # from the run that was resumed
        if self._validated and not known:
            raise MisconfigurationException(text)
        if self._validated or not can_validate(trainer):
            self._warn_once(trainer, "missing", text + "; no checkpoint is ranked by it this time")

    def _warn_of_stale(self, trainer: pl.Trainer) -> None:
        self._warn_once(
            trainer,
            "stale",
            f"{type(self).__name__} monitors {self.monitor!r}, whose value is from step {self._value.step} or before and "
            f"says nothing of step {trainer.global_step}: no checkpoint is ranked by it here; log it before each save, "
            "or save where it is validated",
        )

    def _should_skip_saving_checkpoint(self, trainer: pl.Trainer) -> bool:
        """Whether this is no time to save, or the present state is saved already."""
        return bool(trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking) or self._saved(trainer)

    def _saved(self, trainer: pl.Trainer) -> bool:
        """Whether the file that was saved last holds the present state."""
        if self._last_global_step_saved != trainer.global_step:
            return False
        # A module that steps optimisers of its own does not move global_step.
        manual = not trainer.lightning_module.automatic_optimization
        return not manual or bool(self._last_batch_saved == trainer.progress.total_batches)

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the score ``current`` would be kept; all processes get the same answer."""
        if current is None:
            return False
        admitted = CheckpointTable.of(self).admits(current, k=self.save_top_k, mode=self.mode)
        return bool(trainer.strategy.reduce_boolean_decision(admitted))

    # -- saving ------------------------------------------------------------------------------------------------------

    def _monitor_candidates(self, trainer: pl.Trainer) -> dict[str, Tensor]:
        """All that was logged, with ``epoch`` and ``step``: what file names and ranking can use."""
        candidates = dict(trainer.callback_metrics)
        for name, count in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            logged = candidates.get(name)
            candidates[name] = logged.int() if isinstance(logged, Tensor) else torch.tensor(count)
        return candidates

    def _save_topk_checkpoint(self, trainer: pl.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Save if the monitored value is among the best, or if nothing is monitored."""
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            self._save_newest(trainer, monitor_candidates)
            return
        value = monitor_candidates.get(self.monitor)
        if value is None:
            self._require_monitor(trainer)
            return
        score = self._score(trainer, value)
        if self.check_monitor_top_k(trainer, score):
            self._save_ranked(trainer, monitor_candidates, score)
        elif self.verbose:
            self._tell(trainer, monitor_candidates, f"{float(score):.5f} is not among the best {self.save_top_k}")

    def _score(self, trainer: pl.Trainer, value: Any) -> Tensor:
        """The value by which all processes decide: that of rank 0; NaN counts as the worst."""
        score = torch.as_tensor(value).detach().squeeze().cpu()
        score = torch.as_tensor(trainer.strategy.broadcast(score))
        return worst_score(self.mode).to(score.dtype) if bool(score.isnan()) else score

    def _save_ranked(self, trainer: pl.Trainer, candidates: dict[str, Tensor], score: Tensor) -> None:
        before = CheckpointTable.of(self)
        out = before.evicted(k=self.save_top_k, mode=self.mode)
        path = self._free_path(trainer, candidates, reuse=out)
        after = before.with_scored(path, score, k=self.save_top_k, mode=self.mode)
        with self._becoming(trainer, after, candidates):
            self._save_checkpoint(trainer, path)
        if self.verbose:
            self._tell(trainer, candidates, f"{float(score):.5f} (best {float(after.best_model_score or 0):.5f}): {path!r}")
        if out is not None and self._should_remove_checkpoint(trainer, out, path):
            self._remove_checkpoint(trainer, out)

    def _save_newest(self, trainer: pl.Trainer, candidates: dict[str, Tensor]) -> None:
        out = self.best_model_path if self.save_top_k == 1 else None
        path = self._free_path(trainer, candidates, reuse=out)
        with self._becoming(trainer, replace(CheckpointTable.of(self), best_model_path=path), candidates):
            self._save_checkpoint(trainer, path)
        if out and self._should_remove_checkpoint(trainer, out, path):
            self._remove_checkpoint(trainer, out)

    def _save_last_checkpoint(self, trainer: pl.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write the last file, or link it to the one that holds the same state."""
        if not self.save_last:
            return
        previous, path = self.last_model_path, self._last_path(trainer, monitor_candidates)
        saved = self._last_checkpoint_saved
        with self._becoming(trainer, replace(CheckpointTable.of(self), last_model_path=path), monitor_candidates):
            if self.save_last == "link" and saved and saved != path and self._saved(trainer):
                self._link_checkpoint(trainer, saved, path)
            else:
                self._save_checkpoint(trainer, path)
        if previous and self._should_remove_checkpoint(trainer, previous, path):
            self._remove_checkpoint(trainer, previous)

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Write one file; once it is in place, let it count, and tell the loggers."""
        trainer.save_checkpoint(filepath, self.save_weights_only)
        self._written.add(os.path.abspath(filepath))
        self._last_global_step_saved = trainer.global_step
        self._last_batch_saved = trainer.progress.total_batches
        self._last_checkpoint_saved = filepath
        self._publish()
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)

    @contextmanager
    def _becoming(self, trainer: pl.Trainer, table: CheckpointTable, candidates: dict[str, Tensor]) -> Iterator[None]:
        """While a file is being written it holds ``table``, which becomes this callback's own once it is in place.

        All files of one moment hold the same table, so it names the last file that will be written next.
        """
        self._next_table = table
        last = self._last_path(trainer, candidates) if self.save_last else table.last_model_path
        self._table_to_save = replace(table, last_model_path=last)
        try:
            yield
            self._publish()
        finally:
            self._table_to_save = None

    def _publish(self) -> None:
        if self._table_to_save is not None:
            self._next_table.publish(self)

    def _tell(self, trainer: pl.Trainer, candidates: dict[str, Tensor], what: str) -> None:
        trainer.print(f"epoch {int(candidates['epoch'])}, step {int(candidates['step'])}: {self.monitor} {what}")

    # -- files -------------------------------------------------------------------------------------------------------

    def format_checkpoint_name(
        self, metrics: dict[str, Any], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """The path that a template gives.

        Args:
            metrics: values for its fields.
            filename: the template; None for this callback's.
            ver: a version to add.
            prefix: what stands before it.

        Example:
            >>> ModelCheckpoint(filename="{epoch}-{val_loss:.2f}").format_checkpoint_name({"epoch": 2, "val_loss": 0.123})
            'epoch=2-val_loss=0.12.ckpt'
        """
        join = self.CHECKPOINT_JOIN_CHAR
        template = filename or self.filename or f"{{epoch}}{join}{{step}}"
        name = names.fill(
            template, metrics, equals=self.CHECKPOINT_EQUALS_CHAR, insert_names=self.auto_insert_metric_name
        )
        parts = [prefix, name, None if ver is None else f"v{ver}"]
        name = join.join(part for part in parts if part is not None) + self.FILE_EXTENSION
        return os.path.join(self.dirpath, name) if self.dirpath else name

    def _free_path(
        self,
        trainer: pl.Trainer,
        candidates: dict[str, Tensor],
        *,
        template: str | None = None,
        reuse: str | None = None,
    ) -> str:
        """The path for a new file: with a version if the name is taken, but for the file ``reuse``."""
        path = self.format_checkpoint_name(candidates, template)
        version = self.STARTING_VERSION
        while self._enable_version_counter and path != reuse and self.file_exists(path, trainer):
            path = self.format_checkpoint_name(candidates, template, ver=version)
            version += 1
        return str(trainer.strategy.broadcast(path))

    def _last_path(self, trainer: pl.Trainer, candidates: dict[str, Tensor]) -> str:
        return self._free_path(trainer, candidates, template=self.CHECKPOINT_NAME_LAST, reuse=self.last_model_path)

    def file_exists(self, filepath: str | os.PathLike[str], trainer: pl.Trainer) -> bool:
        """Whether there is such a file, as rank 0 sees it."""
        there = trainer.is_global_zero and os.path.exists(filepath)
        return bool(trainer.strategy.reduce_boolean_decision(there, all=False))

    def find_last_checkpoints(self, trainer: pl.Trainer) -> list[str]:
        """The last files that stand in the folder, of this process or an earlier one, newest last."""
        folder = self.dirpath or files.default_directory(trainer)
        if not os.path.isdir(folder):
            return []
        match = names.pattern(self.CHECKPOINT_NAME_LAST, self.FILE_EXTENSION).match
        found = [os.path.join(folder, name) for name in os.listdir(folder) if match(name)]
        return sorted((path for path in found if os.path.exists(path)), key=os.path.getmtime)

    def _should_remove_checkpoint(self, trainer: pl.Trainer, previous: str, current: str) -> bool:
        """Whether ``previous`` may go, now that ``current`` is to take its place."""
        if os.path.abspath(previous) == os.path.abspath(current):
            return False  # overwritten
        if os.path.abspath(previous) not in self._written:
            return False  # somebody else's
        resumed = trainer.ckpt_path
        if resumed is not None and os.path.realpath(resumed) == os.path.realpath(previous):
            return False
        return self.file_exists(current, trainer)

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Remove one file; that it cannot be removed does not end a training."""
        if not trainer.is_global_zero:
            return
        if files.points_to(self.last_model_path, filepath):
            files.link(self._last_checkpoint_saved, self.last_model_path)
        try:
            files.remove(filepath)
        except OSError as error:
            warnings.warn(f"{type(self).__name__} could not remove {filepath!r}: {error}", RuntimeWarning, stacklevel=2)

    def _link_checkpoint(self, trainer: pl.Trainer, filepath: str, linkpath: str) -> None:
        if trainer.is_global_zero:
            files.link(filepath, linkpath)
        self._written.add(os.path.abspath(linkpath))
        trainer.strategy.barrier()

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept paths and their scores to a YAML file, by default ``best_k_models.yaml`` in the folder."""
        path = filepath if filepath is not None else os.path.join(self.dirpath or "", "best_k_models.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(files.as_yaml({name: float(score) for name, score in self.best_k_models.items()}))

    def _warn_of_strangers(self) -> None:
        folder = self.dirpath
        if folder and os.path.isdir(folder) and any(n.endswith(self.FILE_EXTENSION) for n in os.listdir(folder)):
            warnings.warn(f"{folder!r} holds checkpoints of an earlier run; they are left alone", stacklevel=3)

    def _warn_once(self, trainer: pl.Trainer, what: str, text: str) -> None:
        if what not in self._said and trainer.is_global_zero:
            warnings.warn(text, UserWarning, stacklevel=4)
        self._said.add(what)

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What was kept; while a file is being written, with that file."""
        table = self._table_to_save or CheckpointTable.of(self)
        return {
            "monitor": self.monitor,
            "best_model_score": table.best_model_score,
            "best_model_path": table.best_model_path,
            "current_score": table.current_score,
            "dirpath": self.dirpath,
            "best_k_models": table.best_k_models,
            "kth_best_model_path": table.kth_best_model_path,
            "kth_value": table.kth_value,
            "last_model_path": table.last_model_path,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what was kept; with the path of the best file only, if the folder is another one now."""
        if self._stage not in (None, "fit") and self._last_checkpoint_saved:
            return  # a test of some checkpoint: the fit before knows more than that file
        saved = state_dict.get("dirpath", self.dirpath)
        if _same_folder(saved, self.dirpath):
            table = CheckpointTable.of(self)
            known = {name: state_dict.get(name, value) for name, value in vars(table).items() if name != "current_score"}
            replace(table, **known).publish(self)
            self._written.update(os.path.abspath(path) for path in (*self.best_k_models, self.last_model_path) if path)
            if self.monitor is None and self.best_model_path:
                self._written.add(os.path.abspath(self.best_model_path))
        else:
            warnings.warn(
                f"checkpoints go to {self.dirpath!r} now, and went to {saved!r} before: those files are left alone and not "
                "ranked with new ones; only best_model_path is taken over",
                UserWarning,
                stacklevel=2,
            )
            self.best_model_path = state_dict["best_model_path"]


def _same_folder(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return os.path.realpath(one) == os.path.realpath(other)


def _check(filename: Any, monitor: Any, save_last: Any, save_top_k: Any, mode: Any) -> None:
    """Refuse what cannot work.

    Raises:
        MisconfigurationException: says what, and what is possible.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"mode must be 'min' or 'max', got {mode!r}")
    if monitor is not None and (not isinstance(monitor, str) or not monitor):
        raise MisconfigurationException(f"monitor must be a logged name or None, got {monitor!r}")
    if not isinstance(save_top_k, int) or isinstance(save_top_k, bool) or save_top_k < -1:
        raise MisconfigurationException(f"save_top_k must be -1 (all), 0 (none) or a number of files, got {save_top_k!r}")
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise MisconfigurationException(
            f"save_top_k={save_top_k} needs a monitor by which the best are found; name one, or use -1, 0 or 1"
        )
    if save_last not in (None, True, False, "link"):
        raise MisconfigurationException(f"save_last must be True, False, None or 'link', got {save_last!r}")
    if filename is not None and not isinstance(filename, str):
        raise MisconfigurationException(f"filename must be a template (str) or None, got {filename!r}")
    names.check_template(filename or "")
