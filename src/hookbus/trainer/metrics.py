"""The store behind ``self.log``: what was logged, under which names it is shown, and to whom.

The trainer calls it like this (``finish_batches`` once per loader)::

    store.reset()                                   # fit, validate and test begin with nothing
    store.start("train")                            # before on_train_start, and before each on_train_epoch_start
    for batch in loader:
        store.log(...)                              # what self.log does, from any hook that may log
        store.finish_batch()                        # after on_train_batch_end
        loggers(store.step_metrics())               # every log_every_n_steps
        store.start("validate"); ...; store.finish_epoch()   # a validation in between does not disturb the epoch
    store.finish_batches()                          # before on_train_epoch_end: from here on, values of the epoch
    loggers(store.epoch_metrics())                  # after on_train_epoch_end
    store.finish_epoch()                            # the next epoch begins with nothing

In an evaluation ``finish_epoch`` comes after ``on_validation_end`` (``on_test_end``), whose hooks still look at the
values; after the sanity check comes ``reset``.

The names are Lightning's: a name with both a value per step and one per epoch appears as ``x_step`` and ``x_epoch``,
and as ``x`` in ``callback_metrics``; with several loaders each name gets ``/dataloader_idx_N``.

Nothing here waits for the device while steps run, and reading a property never talks to other processes: values are
reduced across processes in ``log`` (the step's) and ``finish_batches`` (the epoch's), which all processes call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookbus.errors import MisconfigurationException
from hookbus.loggers.scalars import to_numbers
from hookbus.trainer.metric_rules import LogOptions, resolve_options, rule_of
from hookbus.trainer.metric_series import NumberSeries, ObjectSeries, Series, is_metric_object
from hookbus.trainer.metric_sync import Reduce, reduce_step, settle

#: Those options of ``self.log`` that belong to a name for good.
OPTIONS = (
    "prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "sync_dist", "add_dataloader_idx", "rank_zero_only",
    "metric_attribute",
)  # fmt: skip
STAGES = ("train", "sanity", "validate", "test")


@dataclass
class _Epoch:
    """What one stage logs in one epoch."""

    stage: str
    series: dict[tuple[str, str, int | None], Series] = field(default_factory=dict)
    in_batches: bool = False
    begun: bool = False
    over: bool = False

    def clear(self) -> None:
        self.in_batches = self.begun = self.over = False
        for series in self.series.values():
            series.clear()


class MetricStore:
    """Collects what ``self.log`` is given and shows it in three dictionaries, as Lightning 2.6 does.

    Args:
        reduce_across_ranks: for ``sync_dist=True`` (see :data:`~hookbus.trainer.metric_sync.Reduce`); None when there
            is one process only.
    """

    def __init__(self, reduce_across_ranks: Reduce | None = None) -> None:
        self._reduce = reduce_across_ranks
        self._callback: dict[str, Tensor] = {}
        self._logged: dict[str, Tensor] = {}
        self._progress: dict[str, float] = {}
        self._epochs: dict[str, _Epoch] = {}
        self.reset()

    # --- moments of the loop ----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything: at the start of fit, validate and test, and after the sanity check."""
        for epoch in self._epochs.values():
            epoch.clear()
        self._epochs = {}
        self._running: list[_Epoch] = []
        self._series: dict[tuple[str, str, int | None], Series] = {}
        # New dictionaries: who kept one from an earlier run keeps its content.
        self._callback, self._logged, self._progress = {}, {}, {}

    def start(self, stage: str) -> None:
        """Collect for an epoch of ``stage`` ("train", "sanity", "validate" or "test") from now on.

        A training epoch that is running goes on after the ``finish_epoch`` of the one started here. Starting a stage
        that has not seen a batch yet keeps what its first hooks logged, so ``on_train_start`` may log, too.
        """
        if stage not in STAGES:
            raise ValueError(f"stage must be one of {STAGES}, got {stage!r}")
        epoch = self._epochs.setdefault(stage, _Epoch(stage))
        if self._running and self._running[-1] is not epoch:
            self._merge()
        if epoch.begun or epoch.over:
            epoch.clear()
        while epoch in self._running:  # left behind by an error
            self._running.pop()
        self._running.append(epoch)
        self._series = epoch.series

    def finish_batch(self) -> None:
        """A batch is over, with its last hook."""
        epoch = self._running[-1] if self._running else self._current("finish_batch")
        epoch.begun = epoch.in_batches = True

    def finish_batches(self, dataloader_idx: int | None = None) -> None:
        """The last batch of a loader is over: its values of the epoch are reduced, across processes, too.

        Args:
            dataloader_idx: which of several loaders; None if there is one, or when all are done.
        """
        epoch = self._current("finish_batches")
        self._merge()
        epoch.in_batches = False
        epoch.over = dataloader_idx is None
        ended = [series for series in epoch.series.values() if epoch.over or series.loader == dataloader_idx]
        settle((series for series in ended if series.pending), self._reduce)
        for series in ended:
            if not series.over:
                series.over = series.fresh = True
        self._merge(ended)

    def finish_epoch(self) -> None:
        """The epoch is over and shown: forget its values, reset its metric objects, go on with the epoch around it."""
        epoch = self._current("finish_epoch")
        if not epoch.over:
            self.finish_batches()
        self._merge()
        epoch.clear()
        if len(self._running) > 1:
            self._running.pop()
            self._series = self._running[-1].series

    def _current(self, caller: str) -> _Epoch:
        if not self._running:
            raise MisconfigurationException(
                f"{caller} was called while no training, validation or test is running, so there is no step or epoch it "
                "belongs to"
            )
        return self._running[-1]

    # --- logging ----------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        given: tuple[Any, ...],
        *,
        hook: str,
        batch_size: Any,
        dataloader_idx: int | None,
        several_loaders: bool,
    ) -> None:
        """Take in one value.

        Args:
            name: the name; the same one may be logged in several hooks, and several times in a batch.
            value: a number, a tensor with one element, or a metric object.
            given: the options of ``self.log`` as they were written, in the order of :data:`OPTIONS`. One tuple, so that a
                call like the one before is recognised by one comparison.
            hook: name of the hook that is running.
            batch_size: weight of the value in a mean; None counts as 1.
            dataloader_idx: index of the loader whose batch is being worked on; used if ``several_loaders``.
            several_loaders: whether this evaluation has more than one loader.

        Raises:
            MisconfigurationException: the hook may not log (so), or the options differ from those of the first call.
            ValueError: the value is of another kind, or has more than one element.
        """
        loader = dataloader_idx if several_loaders else None
        series = self._series.get((hook, name, loader))
        if series is None or series.given != given:
            series = self._declare(name, value, hook, loader, given)
        if type(batch_size) is not int:
            batch_size = _weight(batch_size)
        series.add(value, batch_size)
        if series.pending:
            self._sync(series)
        if series.per_batch:
            self._running[-1].in_batches = True

    def _declare(self, name: str, value: Any, hook: str, loader: int | None, given: tuple[Any, ...]) -> Series:
        """The series for a call that was not seen before, in these words."""
        if isinstance(value, torch.nn.ModuleDict):
            raise ValueError(
                f"self.log({name!r}, ...) takes one value, and a {type(value).__name__} has several: use self.log_dict()"
            )
        rule = rule_of(hook, name)
        epoch = self._current(f"self.log({name!r}, ...) inside `{hook}`")
        options = resolve_options(name, hook, **dict(zip(OPTIONS, given, strict=True)))
        known = self._clashing(epoch, name, hook, loader, options)
        if known is None:
            known = self._new_series(name, hook, loader, options, rule.per_batch, is_metric_object(value))
            epoch.series[hook, name, loader] = known
        known.given = given
        return known

    def _clashing(self, epoch: _Epoch, name: str, hook: str, loader: int | None, options: LogOptions) -> Series | None:
        """The series that exists already.

        Raises:
            MisconfigurationException: it cannot take this call.
        """
        known = epoch.series.get((hook, name, loader))
        if known is not None and known.options != options:
            changed = [key for key in vars(options) if getattr(options, key) != getattr(known.options, key)]
            was = ", ".join(f"{key}={getattr(known.options, key)!r}" for key in changed)
            now = ", ".join(f"{key}={getattr(options, key)!r}" for key in changed)
            raise MisconfigurationException(
                f"self.log({name!r}, ...) was called in `{hook}` with {was} before and now with {now}: the options of "
                "a name must stay the same. Use two names, or the same options."
            )
        if known is None and not options.add_dataloader_idx:
            for other in epoch.series.values():
                if (other.hook, other.name) == (hook, name) and other.loader != loader:
                    raise MisconfigurationException(
                        f"self.log({name!r}, add_dataloader_idx=False) was called in `{hook}` for loader "
                        f"{other.loader} and for loader {loader}: choose a name for each, or leave "
                        "add_dataloader_idx=True."
                    )
        return known

    def _new_series(
        self, name: str, hook: str, loader: int | None, options: LogOptions, per_batch: bool, is_object: bool
    ) -> Series:
        if is_object:
            return ObjectSeries(name, hook, loader, options, per_batch=per_batch)
        synced = self._reduce is not None and options.sync_dist and not options.rank_zero_only
        return NumberSeries(name, hook, loader, options, per_batch=per_batch, synced=synced)

    def _sync(self, series: Series) -> None:
        """Reduce the value of the step at once, and that of the epoch if its batches are over."""
        if isinstance(series, NumberSeries) and series.options.on_step and self._reduce is not None:
            reduce_step(series, self._reduce)
        if not series.options.on_epoch:
            series.pending = False
        elif self._running[-1].over:
            settle([series], self._reduce)

    # --- what others see --------------------------------------------------------------------------------------------

    def step_metrics(self) -> dict[str, Tensor]:
        """For the loggers: the last value of every name that is kept per step, ``x_step`` if it has both."""
        metrics = {}
        with torch.inference_mode(False):
            for series in self._series.values():
                if series.logged and series.options.on_step and series.options.logger and not series.over:
                    value = series.step_value()
                    if value is not None:
                        metrics[series.shown_name("_step")] = value
        return metrics

    def epoch_metrics(self, dataloader_idx: int | None = None) -> dict[str, Tensor]:
        """For the loggers: the value of the epoch of every name that has one, ``x_epoch`` if it has both.

        Args:
            dataloader_idx: only what belongs to this one of several loaders, or to none.
        """
        epoch = self._current("epoch_metrics")
        if not epoch.over:
            self.finish_batches()
        metrics = {}
        with torch.inference_mode(False):
            for series in epoch.series.values():
                if dataloader_idx is not None and series.loader not in (None, dataloader_idx):
                    continue
                if series.logged and series.options.on_epoch and series.options.logger:
                    value = series.epoch_value()
                    if value is not None:
                        metrics[series.shown_name("_epoch")] = value
        return metrics

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """All values by name, as 0-dim tensors, for EarlyStopping, ModelCheckpoint and the like. Live."""
        self._merge()
        return self._callback

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        """All values meant for loggers, by the names that loggers use. Live."""
        self._merge()
        return self._logged

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """All values meant for the progress bar, as Python numbers: reading waits for the device. Live."""
        self._merge()
        waiting = {name: value for name, value in self._progress.items() if isinstance(value, Tensor)}
        if waiting:
            self._progress.update(to_numbers(waiting))
        return self._progress

    def _merge(self, changed: Iterable[Series] | None = None) -> None:
        """Bring the three dictionaries up to date with what was logged since the last time."""
        if not self._running:
            return
        epoch = self._running[-1]
        fresh = [series for series in (epoch.series.values() if changed is None else changed) if series.fresh]
        if fresh:
            with torch.inference_mode(False):
                for series in fresh:
                    self._show(series, epoch)

    def _show(self, series: Series, epoch: _Epoch) -> None:
        """Enter one series: while batches run with the value of the step, afterwards with that of the epoch."""
        options = series.options
        as_step = epoch.in_batches and not series.over
        if not series.logged or not (options.on_step if as_step else options.on_epoch):
            return
        value = series.step_value() if as_step else series.epoch_value()
        if value is None:
            return
        series.fresh = False
        shown = series.shown_name("_step" if as_step else "_epoch")
        if options.logger:
            self._logged[shown] = value
        if epoch.stage == "train" or not as_step:
            self._callback[series.name + series.suffix] = value
            self._callback[shown] = value
        if options.prog_bar:
            self._progress[shown] = value  # type: ignore[assignment]  # becomes a number when it is read

    # --- state ------------------------------------------------------------------------------------------------------

    def state_dict(self, names: Mapping[int, str] | None = None) -> dict[str, Any]:
        """The running training epoch and the three dictionaries, as tensors, numbers and strings.

        Args:
            names: a name for each metric object, by its ``id``; what is logged with others is left out. What the objects
                themselves hold is not part of the state.
        """
        names = names or {}
        self._merge()
        epoch = self._epochs.get("train")
        return {
            "in_batches": epoch is not None and epoch.in_batches,
            "over": epoch is not None and epoch.over,
            "series": [
                {
                    "name": item.name,
                    "hook": item.hook,
                    "options": dict(vars(item.options)),
                    "object": names.get(id(item.metric)) if isinstance(item, ObjectSeries) else None,
                    **item.state(),
                }
                for item in (epoch.series.values() if epoch else ())
                if item.logged and (not isinstance(item, ObjectSeries) or id(item.metric) in names)
            ],
            "callback_metrics": dict(self._callback),
            "logged_metrics": dict(self._logged),
            "progress_bar_metrics": dict(self.progress_bar_metrics),
        }

    def load_state_dict(self, state: dict[str, Any], objects: Mapping[str, Any] | None = None) -> None:
        """Go on with a training epoch that :meth:`state_dict` has saved; a ``start("train")`` that follows keeps it.

        Args:
            state: what was saved.
            objects: the metric objects by the names that they had then.
        """
        self.reset()
        self.start("train")
        epoch = self._running[-1]
        for saved in state["series"]:
            options = LogOptions(**saved["options"])
            name, hook = saved["name"], saved["hook"]
            metric = (objects or {}).get(saved["object"]) if saved["object"] is not None else None
            if saved["object"] is not None and metric is None:
                continue  # gone from the module
            series = self._new_series(name, hook, None, options, rule_of(hook, name).per_batch, metric is not None)
            if isinstance(series, ObjectSeries):
                series.load(saved, metric)
            elif isinstance(series, NumberSeries):
                series.load(saved)
            epoch.series[hook, name, None] = series
        epoch.in_batches, epoch.over = state["in_batches"], state["over"]
        self._callback.update(state["callback_metrics"])
        self._logged.update(state["logged_metrics"])
        self._progress.update(state["progress_bar_metrics"])


def _weight(batch_size: Any) -> Any:
    """The weight of a value whose batch size is not a plain int; a tensor's own copy, since it may change in place."""
    if batch_size is None:
        return 1
    return batch_size.detach().clone() if isinstance(batch_size, Tensor) else batch_size
