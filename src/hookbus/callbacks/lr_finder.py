"""``LearningRateFinder``: tries a range of learning rates before the training, and sets the best."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus.callback import NumberedCallback
from hookbus.callbacks.lr_curve import LearningRateCurve, has_matplotlib, require_matplotlib
from hookbus.callbacks.tuned_attribute import TunedAttribute, has_attribute
from hookbus.errors import MisconfigurationException, UnknownChoiceError
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

#: The rates in a parameter group that belong together: where a schedule is in its course, and from where to where.
_RATES = ("max_lr", "initial_lr", "lr", "min_lr")


class LearningRateFinder(NumberedCallback):
    """Searches for a learning rate when fit begins, once the module's own ``on_fit_start`` is over.

    The search trains for a few steps on the side, with a growing rate; of this nothing is left, and other callbacks,
    plugins and loggers do not hear of it. The rate that it suggests is then set as the module's attribute, and in the
    optimiser and its schedulers, so that a schedule starts from it. A run that is resumed from a checkpoint keeps the
    rate that was found. Loggers that show figures are given the curve as ``lr_find``.

    Call :meth:`lr_find` from a hook of a subclass to search at other times.

    Args:
        min_lr: the least rate to try.
        max_lr: the greatest rate to try.
        num_training_steps: how many rates to try, one at each optimiser step.
        mode: ``"exponential"`` or ``"linear"``: how the rate grows from step to step.
        early_stop_threshold: end the search once the loss is more than this many times the least loss; None: never.
        update_attr: set the suggested rate.
        attr_name: the attribute that holds the rate; by default ``lr``, else ``learning_rate``, of the module, its
            ``hparams`` or the data module.
        plot_path: a PNG file for the plot of loss against rate; needs matplotlib (``pip install 'hookbus[plots]'``).

    Attributes:
        optimal_lr: the curve of the last search, with ``results``, ``suggestion()`` and ``plot()``; None before.

    Raises:
        MisconfigurationException: an argument is out of range; or, when fit begins, the module has several optimisers,
            or no attribute for the rate.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.callbacks import LearningRateFinder
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.lr, self.layer = 1e-6, torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return (self.layer(batch) - 2 * batch).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), self.lr)
        >>> model, finder = Line(), LearningRateFinder(num_training_steps=40)
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
        >>> trainer = hookbus.Trainer(max_epochs=1, accelerator="cpu", callbacks=[finder], **quiet)
        >>> trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 1)))
        >>> model.lr == finder.optimal_lr.suggestion() == trainer.optimizers[0].param_groups[0]["lr"]
        True
    """

    role: ClassVar[str] = "mutator"
    placement: ClassVar[str] = "first"

    SUPPORTED_MODES = ("linear", "exponential")

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training_steps: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
        *,
        plot_path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        mode = str(mode).lower()
        if mode not in self.SUPPORTED_MODES:
            raise UnknownChoiceError(f"mode must be 'exponential' or 'linear', got {mode!r}")
        if not 0 < min_lr < max_lr:
            raise MisconfigurationException(
                f"the rates to try must be 0 < min_lr < max_lr, got min_lr={min_lr!r} and max_lr={max_lr!r}"
            )
        if isinstance(num_training_steps, bool) or not isinstance(num_training_steps, int) or num_training_steps < 1:
            raise MisconfigurationException(
                f"num_training_steps must be a number of steps, 1 or more, got {num_training_steps!r}"
            )
        if early_stop_threshold is not None and not early_stop_threshold > 0:
            raise MisconfigurationException(
                f"early_stop_threshold must be a factor above 0, or None, got {early_stop_threshold!r}"
            )
        if not isinstance(attr_name, str):
            raise MisconfigurationException(f"attr_name must be the name of an attribute, got {attr_name!r}")
        if plot_path is not None:
            require_matplotlib("LearningRateFinder(plot_path=…)")
        self._range = (mode, float(min_lr), float(max_lr), num_training_steps)
        self._early_stop_threshold = early_stop_threshold
        self._update_attr = update_attr
        self._attr_name = attr_name
        self._plot_path = plot_path
        self._found: float | None = None
        self._resumed = False
        self.optimal_lr: LearningRateCurve | None = None

    @hookimpl(trylast=True)
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search, unless the rate came with a checkpoint."""
        if not self._resumed:
            self.lr_find(trainer, pl_module)
        self._resumed = False

    def lr_find(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search, from within any hook of a fit.

        Raises:
            MisconfigurationException: the module has several optimisers, or no attribute for the rate.
        """
        if trainer.fast_dev_run:
            warnings.warn("fast_dev_run: no learning rate is searched for", UserWarning, stacklevel=2)
            return
        if len(trainer.optimizers) != 1:
            raise MisconfigurationException(
                f"a learning rate can be searched for with one optimizer, configure_optimizers gave {len(trainer.optimizers)}"
            )
        attribute = TunedAttribute(trainer, self._name(trainer)) if self._update_attr else None
        curve = self.optimal_lr = LearningRateCurve(*self._range)
        with trainer.rehearse(_Recorder(curve, self._early_stop_threshold)) as rehearsal:
            rehearsal.run(curve.num_training)
        curve.results = trainer.strategy.broadcast(curve.results)
        rate = curve.suggestion() if attribute is not None else None
        if attribute is not None and rate is not None:
            attribute.value = self._found = rate
            set_rate(trainer, rate)
        self._show(trainer, curve)

    def _name(self, trainer: Any) -> str:
        """The name of the attribute that holds the rate."""
        if self._attr_name:
            return self._attr_name
        return "lr" if has_attribute(trainer, "lr") or not has_attribute(trainer, "learning_rate") else "learning_rate"

    def _show(self, trainer: Any, curve: LearningRateCurve) -> None:
        """Hand out the plot."""
        if not trainer.is_global_zero:
            return
        if self._plot_path is not None:
            curve.save_plot(self._plot_path)
        if trainer.bus.implemented("log_figure") and has_matplotlib():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                figure = curve.plot(suggest=True)
            trainer.bus.fire.log_figure(trainer, "lr_find", figure, trainer.global_step)

    # -- resuming ------------------------------------------------------------------------------------------------------

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set the rate that was found before the optimisers are made; their own states follow."""
        state = (checkpoint.get("callbacks") or {}).get(self.state_key) or {}
        rate = state.get("lr")
        if trainer.state.fn == "fit" and rate is not None and self._update_attr:
            TunedAttribute(trainer, self._name(trainer)).value = rate

    def state_dict(self) -> dict[str, Any]:
        """The rate that was found; None if there was no search, or no suggestion."""
        return {"lr": self._found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the rate that was found, and do not search again."""
        self._found = state_dict["lr"]
        self._resumed = self._found is not None


class _Recorder:
    """Sets the rate of each step, and notes its loss.

    Args:
        curve: where to.
        threshold: see :meth:`LearningRateCurve.diverges`.
    """

    role = "mutator"
    in_rehearsals = True

    def __init__(self, curve: LearningRateCurve, threshold: float | None) -> None:
        self._curve = curve
        self._threshold = threshold
        self._step: int | None = None

    @hookimpl
    def on_train_batch_start(self, trainer: Any) -> None:
        if self._step is None:
            self._step = trainer.global_step
        rate = self._curve.rate(len(self._curve.results["lr"]))
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate

    @hookimpl
    def on_train_batch_end(self, trainer: Any, outputs: Any) -> None:
        if trainer.global_step == self._step:
            return  # gradients accumulate
        self._step = trainer.global_step
        loss = outputs.get("loss") if outputs else None
        self._curve.add(float("nan") if loss is None else float(loss))
        if trainer.strategy.broadcast(self._curve.diverges(self._threshold)):
            trainer.should_stop = True


def set_rate(trainer: Any, rate: float) -> None:
    """Let all parameter groups, and the schedules of their rates, start from ``rate``; a schedule keeps its course."""
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            before = next((group[key] for key in _RATES if key in group), 0.0)
            for key in _RATES:
                if key in group:
                    group[key] = _scaled(group[key], before, rate)
    for config in trainer.lr_scheduler_configs:
        _set_base(config.scheduler, rate)


def _scaled(value: Any, before: Any, rate: float) -> Any:
    """``value`` in its proportion to ``before``, to which ``rate`` is now."""
    if value == before or not before:
        return rate
    return value / before * rate


def _set_base(scheduler: Any, rate: float) -> None:
    for inner in getattr(scheduler, "_schedulers", ()):  # of SequentialLR and ChainedScheduler
        _set_base(inner, rate)
    bases = getattr(scheduler, "base_lrs", None)
    if not bases:
        return
    tops = getattr(scheduler, "max_lrs", bases)  # of CyclicLR
    scheduler.base_lrs = [_scaled(base, top, rate) for base, top in zip(bases, tops, strict=True)]
    if hasattr(scheduler, "max_lrs"):
        scheduler.max_lrs = [rate] * len(tops)
