"""``CheckpointKeeper``: writes checkpoints under names made from templates, and keeps the best or the newest of them.

When that happens is decided by :class:`~hookbus.callbacks.ModelCheckpoint`, which derives from it. One save runs so::

    the name is made, and a table of what is kept with this file
    trainer.save_checkpoint       the file holds that table already
    the table counts, and is shown in the attributes
    loggers are told
    the file that had to make room is removed, if it is this run's
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookbus.callbacks import checkpoint_files as files
from hookbus.callbacks import checkpoint_names as names
from hookbus.callbacks.checkpoint import Checkpoint
from hookbus.callbacks.checkpoint_table import CheckpointTable, worst_score
from hookbus.callbacks.monitored import absence
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class CheckpointKeeper(Checkpoint):
    """What a :class:`~hookbus.callbacks.ModelCheckpoint` does once it has decided to save; arguments are explained there.

    Raises:
        MisconfigurationException: an argument is out of range, or two exclude each other.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    best_k_models: dict[str, Tensor]
    kth_best_model_path: str
    kth_value: Tensor
    best_model_path: str
    best_model_score: Tensor | None
    current_score: Tensor | None
    last_model_path: str

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None,
        filename: str | None,
        monitor: str | None,
        verbose: bool,
        save_last: bool | Literal["link"] | None,
        save_top_k: int,
        save_weights_only: bool,
        mode: str,
        auto_insert_metric_name: bool,
        enable_version_counter: bool,
    ) -> None:
        super().__init__()
        _check(filename, monitor, save_last, save_top_k, mode)
        self.dirpath = None if dirpath is None or dirpath == "" else files.local_directory(dirpath)
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
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
        self._coming: CheckpointTable | None = None
        self._files = files.OwnFiles()
        self._last_checkpoint_saved = ""
        self._last_global_step_saved = 0  # nothing to save while no step was taken
        self._last_batch_saved = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Settle the folder. A training that starts anew, at step 0, starts with nothing kept."""
        self._stage = stage
        fitting = stage == "fit"
        if fitting:
            self._coming = None  # the writing failed, and so did the fit
        if fitting and trainer.global_step == 0 and self._last_checkpoint_saved:
            self._forget()
        if self.dirpath is None or (fitting and self.dirpath == self._found_dirpath):
            self.dirpath = self._found_dirpath = str(trainer.strategy.broadcast(files.default_directory(trainer)))
        if not fitting or self.save_top_k == 0 or trainer.ckpt_path is not None or not trainer.is_global_zero:
            return
        if files.holds_checkpoints(self.dirpath, self.FILE_EXTENSION):
            warnings.warn(f"{self.dirpath!r} holds checkpoints of an earlier run; they are left alone", stacklevel=2)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget which state was saved last if training goes on from an earlier one."""
        if trainer.global_step < self._last_global_step_saved:
            self._last_global_step_saved = self._last_batch_saved = 0

    # -- saving ------------------------------------------------------------------------------------------------------

    def _monitor_candidates(self, trainer: pl.Trainer) -> dict[str, Tensor]:
        """All that was logged, with ``epoch`` and ``step``: what file names and ranking can use."""
        candidates = dict(trainer.callback_metrics)
        for name, count in (("epoch", trainer.current_epoch), ("step", trainer.global_step)):
            logged = candidates.get(name)
            candidates[name] = logged.int() if isinstance(logged, Tensor) else torch.tensor(count)
        return candidates

    def _save_topk_checkpoint(self, trainer: pl.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Save if the monitored value is among the best, or if nothing is monitored.

        Raises:
            MisconfigurationException: there is no such value.
        """
        if self.save_top_k == 0:
            return
        if self.monitor is None:
            table = self._kept
            out = table.best_model_path if self.save_top_k == 1 else None
            path = self._free_path(trainer, monitor_candidates, reuse=out)
            self._put_in_place(trainer, path, replace(table, best_model_path=path), monitor_candidates, out)
            return
        if monitor_candidates.get(self.monitor) is None:
            raise MisconfigurationException(absence(self, self.monitor, trainer))
        score = self._score(trainer, monitor_candidates[self.monitor])
        kept = self.check_monitor_top_k(trainer, score)
        if kept:
            table, k = self._kept, self.save_top_k
            out = table.evicted(k=k, mode=self.mode)
            path = self._free_path(trainer, monitor_candidates, reuse=out)
            table = table.with_scored(path, score, k=k, mode=self.mode)
            self._put_in_place(trainer, path, table, monitor_candidates, out)
        if self.verbose:
            what = f"saved as {path!r}" if kept else f"not among the best {self.save_top_k}"
            epoch, step = (int(monitor_candidates[name]) for name in ("epoch", "step"))
            trainer.print(f"epoch {epoch}, step {step}: {self.monitor} = {float(score):.5f}, {what}")

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Whether a checkpoint with the score ``current`` would be kept; all processes get the same answer."""
        if current is None:
            return False
        admitted = self._kept.admits(current, k=self.save_top_k, mode=self.mode)
        return bool(trainer.strategy.reduce_boolean_decision(admitted))

    def _score(self, trainer: pl.Trainer, value: Any) -> Tensor:
        """The value by which all processes decide: that of rank 0; NaN counts as the worst."""
        score = torch.as_tensor(trainer.strategy.broadcast(torch.as_tensor(value).detach().squeeze().cpu()))
        return worst_score(self.mode).to(score.dtype) if bool(score.isnan()) else score

    def _save_last_checkpoint(self, trainer: pl.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Write the last file; where another one holds the same state already, by a link, or by sharing its bytes."""
        if self.save_last:
            self._save_last(trainer, monitor_candidates)
        trainer._saved_last = None  # it may hold copies of weights

    def _save_last(self, trainer: pl.Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        path = self._last_path(trainer, monitor_candidates)
        table, out = replace(self._kept, last_model_path=path), self._kept.last_model_path
        self._put_in_place(trainer, path, table, monitor_candidates, out, share=True)

    def _put_in_place(
        self,
        trainer: pl.Trainer,
        path: str,
        table: CheckpointTable,
        candidates: dict[str, Tensor],
        out: str | None,
        *,
        share: bool = False,
    ) -> None:
        """Write a file, let ``table`` hold once it is in place, and only then remove the file that it replaces.

        All files of one moment are written with the same table, so it names the last file already.

        Args:
            trainer: the trainer.
            path: the file.
            table: what this callback keeps with it.
            candidates: what the name of the last file may use.
            out: the file that it replaces.
            share: write nothing anew if another file holds the same state.
        """
        last = self._last_path(trainer, candidates) if self.save_last else table.last_model_path
        self._next_table, self._table_to_save = table, replace(table, last_model_path=last)
        try:
            same = self._last_checkpoint_saved
            if not (share and same and same != path and self._saved(trainer)):
                self._save_checkpoint(trainer, path)
            elif self.save_last == "link":
                self._link_checkpoint(trainer, same, path)
            else:
                trainer.copy_checkpoint(same, path, self.save_weights_only)
                self._note_saved(trainer, path)
            self._let_count(trainer)  # once more, for who overrides _save_checkpoint
        finally:
            self._table_to_save = None
        if out and trainer.is_global_zero:
            trainer._writer.afterwards(lambda: self._make_room(trainer, out, path))

    @property
    def _kept(self) -> CheckpointTable:
        """What is kept, the file included that is still being written."""
        return self._coming or CheckpointTable.of(self)

    def _let_count(self, trainer: pl.Trainer) -> None:
        """Show the next table in the attributes once its file is in place."""
        table = self._coming = self._next_table

        def show() -> None:
            table.publish(self)
            if self._coming is table:
                self._coming = None

        trainer._writer.afterwards(show)

    def _make_room(self, trainer: pl.Trainer, out: str, successor: str) -> None:
        """Remove a file, if it is this run's and the one in its place is there."""
        if self._files.may_remove(out, successor=successor, resumed=trainer.ckpt_path):
            self._remove_checkpoint(trainer, out)

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        """Write one file; once it is in place, let it count, and tell the loggers."""
        trainer.save_checkpoint(filepath, self.save_weights_only)
        self._note_saved(trainer, filepath)

    def _note_saved(self, trainer: pl.Trainer, filepath: str) -> None:
        self._files.add(filepath)
        self._last_global_step_saved = trainer.global_step
        self._last_batch_saved = trainer.progress.total_batches
        self._last_checkpoint_saved = filepath
        if self._table_to_save is not None:
            self._let_count(trainer)
        if trainer.is_global_zero:
            trainer._writer.afterwards(lambda: self._tell_loggers(trainer))

    def _tell_loggers(self, trainer: pl.Trainer) -> None:
        for logger in trainer.loggers:
            logger.after_save_checkpoint(self)

    def _saved(self, trainer: pl.Trainer) -> bool:
        """Whether the file that was saved last holds the present state."""
        if self._last_global_step_saved != trainer.global_step:
            return False
        # A module that steps optimisers of its own does not move global_step.
        manual = not trainer.lightning_module.automatic_optimization
        return not manual or bool(self._last_batch_saved == trainer.progress.total_batches)

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
            >>> from hookbus.callbacks import ModelCheckpoint
            >>> ModelCheckpoint(filename="{epoch}-{val_loss:.2f}").format_checkpoint_name({"epoch": 2, "val_loss": 0.123})
            'epoch=2-val_loss=0.12.ckpt'
        """
        name = self._format_checkpoint_name(filename or self.filename, metrics, prefix, self.auto_insert_metric_name)
        name += self.FILE_EXTENSION if ver is None else f"{self.CHECKPOINT_JOIN_CHAR}v{ver}{self.FILE_EXTENSION}"
        return os.path.join(self.dirpath, name) if self.dirpath else name

    def _format_checkpoint_name(
        self,
        filename: str | None,
        metrics: dict[str, Any],
        prefix: str | None = None,
        auto_insert_metric_name: bool = True,
    ) -> str:
        """The name without folder, version and extension; of its own, as subclasses for Lightning override it."""
        join, equals = self.CHECKPOINT_JOIN_CHAR, self.CHECKPOINT_EQUALS_CHAR
        template = filename or f"{{epoch}}{join}{{step}}"
        name = names.fill(template, metrics, equals=equals, insert_names=auto_insert_metric_name)
        return name if prefix is None else f"{prefix}{join}{name}"

    def _free_path(
        self, trainer: pl.Trainer, candidates: dict[str, Tensor], template: str | None = None, reuse: str | None = None
    ) -> str:
        """The path for a new file: with a version if the name is taken, but for the file ``reuse``."""
        path = self.format_checkpoint_name(candidates, template)
        version = self.STARTING_VERSION
        while self._enable_version_counter and path != reuse and self.file_exists(path, trainer):
            path = self.format_checkpoint_name(candidates, template, ver=version)
            version += 1
        return str(trainer.strategy.broadcast(path))

    def _last_path(self, trainer: pl.Trainer, candidates: dict[str, Tensor]) -> str:
        return self._free_path(trainer, candidates, self.CHECKPOINT_NAME_LAST, reuse=self._kept.last_model_path)

    def file_exists(self, filepath: str | os.PathLike[str], trainer: pl.Trainer) -> bool:
        """Whether there is such a file, as rank 0 sees it."""
        path = os.path.abspath(filepath)
        there = trainer.is_global_zero and (os.path.exists(path) or trainer._writer.is_writing(path))
        return bool(trainer.strategy.reduce_boolean_decision(there, all=False))

    def find_last_checkpoints(self, trainer: pl.Trainer) -> list[str]:
        """The last files that stand in the folder, of this process or an earlier one, newest last."""
        folder = self.dirpath or files.default_directory(trainer)
        if not os.path.isdir(folder):
            return []
        is_last = names.pattern(self.CHECKPOINT_NAME_LAST, self.FILE_EXTENSION).match
        found = [os.path.join(folder, name) for name in os.listdir(folder) if is_last(name)]
        return sorted((path for path in found if os.path.exists(path)), key=os.path.getmtime)

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        if files.points_to(self.last_model_path, filepath):
            trainer._writer.link(self._last_checkpoint_saved, self.last_model_path)
        files.remove(filepath)

    def _link_checkpoint(self, trainer: pl.Trainer, filepath: str, linkpath: str) -> None:
        if trainer.is_global_zero:
            trainer._writer.afterwards(lambda: trainer._writer.link(filepath, linkpath))
        self._files.add(linkpath)
        trainer.strategy.barrier()

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept paths and their scores to a YAML file, by default ``best_k_models.yaml`` in the folder."""
        path = filepath if filepath is not None else os.path.join(self.dirpath or "", "best_k_models.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(files.as_yaml({name: float(score) for name, score in self.best_k_models.items()}))

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What was kept; while a file is being written, with that file."""
        table = self._table_to_save or self._kept
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
        if files.same_folder(saved, self.dirpath):
            table = CheckpointTable.of(self)
            table = replace(table, **{name: state_dict[name] for name in vars(table) if name in state_dict})
            table.publish(self)
            newest = table.best_model_path if self.monitor is None else ""
            self._files.add(*table.best_k_models, table.last_model_path, newest)
        else:
            warnings.warn(
                f"checkpoints go to {self.dirpath!r} now, and went to {saved!r} before: those files are left alone and not "
                "ranked with new ones; only best_model_path is taken over",
                UserWarning,
                stacklevel=2,
            )
            self.best_model_path = state_dict["best_model_path"]


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
        raise MisconfigurationException(
            f"save_top_k must be -1 (all), 0 (none) or a count of files, got {save_top_k!r}"
        )
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise MisconfigurationException(
            f"save_top_k={save_top_k} needs a monitor by which the best are found; name one, or use -1, 0 or 1"
        )
    if save_last not in (None, True, False, "link"):
        raise MisconfigurationException(f"save_last must be True, False, None or 'link', got {save_last!r}")
    if filename is not None and not isinstance(filename, str):
        raise MisconfigurationException(f"filename must be a template (str) or None, got {filename!r}")
    names.check_template(filename or "")
