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
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from hookbus.callbacks.checkpoint_keeper import CheckpointKeeper
from hookbus.callbacks.monitored import MonitoredValue, absence, keep_decisions, kept_decisions, staleness
from hookbus.callbacks.save_moments import Pace, at_train_epoch_end, can_validate, check_rhythm, validation_follows
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl
    from hookbus.hookspecs.types import STEP_OUTPUT


class ModelCheckpoint(CheckpointKeeper):
    """Saves checkpoints during fit, and remembers which was the best.

    Arguments, attributes, file names and state are those of Lightning 2.6. A file counts, and is named in
    ``best_model_path`` and its like, once it stands completely on the disk; only then are files removed: those that
    this callback wrote, never the one that the run was resumed from.

    Args:
        dirpath: the folder; None for ``checkpoints`` in the folder of the logger's run, or of ``default_root_dir``.
        filename: a template such as ``"{epoch}-{val_loss:.2f}"`` for the name without extension; a field may be any
            logged name, ``epoch`` or ``step``. None means ``"{epoch}-{step}"``.
        monitor: the logged name by which files are ranked, or ``"epoch"`` or ``"step"``; None keeps the newest.
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

    Example:
        >>> import os, torch, hookbus
        >>> from hookbus.callbacks import ModelCheckpoint
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         loss = (self.layer(batch) - 2).square().mean()
        ...         self.log("loss", loss)
        ...         return loss
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 0.1)
        >>> best = ModelCheckpoint("saved", "best-{epoch}", monitor="loss", save_last=True)
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
        >>> trainer = hookbus.Trainer(max_epochs=3, accelerator="cpu", callbacks=[best], **quiet)
        >>> trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(8, 1)))
        >>> sorted(os.listdir("saved")), os.path.basename(best.best_model_path)
        (['best-epoch=2.ckpt', 'last.ckpt'], 'best-epoch=2.ckpt')
    """

    twin = 0

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
        super().__init__(
            dirpath,
            filename,
            monitor,
            verbose,
            save_last,
            save_top_k,
            save_weights_only,
            mode,
            auto_insert_metric_name,
            enable_version_counter,
        )
        rhythm = check_rhythm(every_n_train_steps, every_n_epochs, train_time_interval)
        self._every_n_train_steps, self._every_n_epochs, self._train_time_interval = rhythm
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self._pace = Pace()
        self.save_on_exception = save_on_exception
        self._value = MonitoredValue(counters=True)
        self._put_off: int | None = None
        self._said: set[str] = set()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note what is known of the monitored value, and whether a save waits for it."""
        if trainer.state.fn == "fit":
            value = self._value.state(trainer, self.monitor)
            keep_decisions(checkpoint, self.state_key, {"value": value, "put_off": self._put_off})

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on with it."""
        if trainer.state.fn == "fit":
            kept = kept_decisions(checkpoint, self.state_key)
            self._value.load(kept.get("value"))
            self._put_off = kept.get("put_off")

    @property
    def state_key(self) -> str:
        """Lightning's key; from the second callback with the same one on with a number."""
        key = self._generate_state_key(
            monitor=self.monitor,
            mode=self.mode,
            every_n_train_steps=self._every_n_train_steps,
            every_n_epochs=self._every_n_epochs,
            train_time_interval=self._train_time_interval,
        )
        return f"{key}#{self.twin + 1}" if self.twin else key

    @property
    def every_n_epochs(self) -> int:
        """Epochs between saves; 0 if saves go by steps or time."""
        return self._every_n_epochs

    # -- moments -----------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting steps and time."""
        super().on_train_start(trainer, pl_module)
        if not self._value.begin(trainer, self.monitor):
            self._put_off = None
        self._said.clear()
        self._pace.start(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What was logged up to here is of earlier epochs."""
        self._value.begin_epoch(trainer, self.monitor)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time, by steps or by the clock."""
        every, interval, value = self._every_n_train_steps, self._train_time_interval, self._value
        if (not every and interval is None) or not self._pace.step_taken(trainer):
            return
        due = self._pace.reached(every) if every else interval is not None and self._pace.elapsed(interval, trainer)
        if not due:
            if every and self.monitor is not None and self._pace.approaches(every, trainer):
                value.look(trainer, self.monitor)  # to know next time whether the value is of that step
            return
        if self._should_skip_saving_checkpoint(trainer):
            return
        there = value.look(trainer, self.monitor) is not None
        if not self._ranks or trainer.strategy.broadcast(there and value.of_step(trainer.global_step)):
            self._put_off = None
            self._save(trainer, ranked=True)
            return
        self._put_off = value.changes
        if not validation_follows(trainer):
            if there:
                self._warn_once(trainer, "stale", staleness(self, self.monitor, value, trainer))
            self._save(trainer, ranked=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if a save was put off until now, or if saves by epoch happen here."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        value = self._value
        value.validated = True
        value.look(trainer, self.monitor)
        due = self._epoch_is_due(trainer) and not self._should_save_on_train_epoch_end(trainer)
        self._save_if_due(trainer, due, new=value.unused)
        value.use()  # for the next validation it is old

    @hookimpl(trylast=True)
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if saves by epoch happen here; after the module, which may log something."""
        self._value.look(trainer, self.monitor)
        due = self._epoch_is_due(trainer) and self._should_save_on_train_epoch_end(trainer)
        self._save_if_due(trainer, due, new=self._value.of_epoch)

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

    def _epoch_is_due(self, trainer: pl.Trainer) -> bool:
        return self._every_n_epochs > 0 and (trainer.current_epoch + 1) % self._every_n_epochs == 0

    def _should_save_on_train_epoch_end(self, trainer: pl.Trainer) -> bool:
        """Whether saves by epoch happen at the end of the training epoch, not of the validation."""
        given = self._save_on_train_epoch_end
        return at_train_epoch_end(trainer) if given is None else given

    def _save_if_due(self, trainer: pl.Trainer, due: bool, new: bool) -> None:
        """Save what is due by epoch, or was put off; ``new`` says whether the monitored value is."""
        put_off, value = self._put_off, self._value
        if put_off is not None:
            if trainer.strategy.broadcast(value.changes > put_off):
                self._put_off = None
                self._save(trainer, ranked=True)
            elif value.validated:
                self._require_monitor(trainer)
        elif due and not self._should_skip_saving_checkpoint(trainer):
            new = trainer.strategy.broadcast(new)
            if self._ranks and not new:
                self._require_monitor(trainer)
                if value.step is not None:
                    self._warn_once(trainer, "stale", staleness(self, self.monitor, value, trainer))
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
        text = absence(self, self.monitor, trainer)
        if self._value.validated and self.best_model_score is None:  # else it was logged before the run was resumed
            raise MisconfigurationException(text)
        if self._value.validated or not can_validate(trainer):
            self._warn_once(trainer, "missing", f"{text}; no checkpoint is ranked by it")

    def _should_skip_saving_checkpoint(self, trainer: pl.Trainer) -> bool:
        """Whether this is no time to save, or the present state is saved already."""
        if trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking:
            return True
        return self._saved(trainer)

    def _warn_once(self, trainer: pl.Trainer, what: str, text: str) -> None:
        if what not in self._said and trainer.is_global_zero:
            warnings.warn(text, UserWarning, stacklevel=4)
        self._said.add(what)
