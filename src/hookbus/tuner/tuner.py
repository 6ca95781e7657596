"""``Tuner``: the two finders as functions."""

from __future__ import annotations

from typing import Any

from hookbus.callbacks.batch_size_finder import BatchSizeFinder
from hookbus.callbacks.lr_curve import LearningRateCurve
from hookbus.callbacks.lr_finder import LearningRateFinder
from hookbus.errors import MisconfigurationException
from hookbus.trainer.rehearsal import run_aside
from hookbus.trainer.states import TrainerFn
from hookbus.trainer.trainer import Trainer


class Tuner:
    """Searches for a learning rate or a batch size, and sets what it finds as the module's attribute.

    The trainer's callbacks are set up and torn down for it, and hear of nothing else; so are not its loggers.

    Args:
        trainer: runs the steps; none of its entry points may be running.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.tuner import Tuner
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.lr, self.layer = 1e-6, torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return (self.layer(batch) - 2 * batch).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), self.lr)
        >>> model, trainer = Line(), hookbus.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
        >>> curve = Tuner(trainer).lr_find(model, torch.utils.data.DataLoader(torch.ones(4, 1)), num_training=40)
        >>> model.lr == curve.suggestion()
        True
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        min_lr: float = 1e-8,
        max_lr: float = 1,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LearningRateCurve | None:
        """Search for a learning rate.

        Args:
            model: a LightningModule.
            train_dataloaders: as of ``Trainer.fit``; so are ``val_dataloaders`` and ``datamodule``.
            val_dataloaders: see above.
            dataloaders: must be None.
            datamodule: see above.
            method: must be ``"fit"``.
            min_lr: as of :class:`hookbus.callbacks.LearningRateFinder`; so are the rest.
            max_lr: see above.
            num_training: its ``num_training_steps``.
            mode: see above.
            early_stop_threshold: see above.
            update_attr: see above.
            attr_name: see above.

        Returns:
            The curve; None in a trial run (``fast_dev_run``).

        Raises:
            MisconfigurationException: another method, ``dataloaders``, or what ``LearningRateFinder`` refuses.
            ValueError: the trainer has a LearningRateFinder among its callbacks.
        """
        if method != "fit":
            raise MisconfigurationException(f"a learning rate is searched for in fit only, got method={method!r}")
        data = _data(TrainerFn.FITTING, train_dataloaders, val_dataloaders, dataloaders)
        self._refuse_twice(LearningRateFinder)
        finder = LearningRateFinder(min_lr, max_lr, num_training, mode, early_stop_threshold, update_attr, attr_name)
        trainer = self._trainer
        run_aside(
            trainer,
            TrainerFn.FITTING,
            lambda: finder.lr_find(trainer, trainer.lightning_module),
            model,
            datamodule=datamodule,
            **data,
        )
        return finder.optimal_lr

    def scale_batch_size(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        method: str = "fit",
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> int | None:
        """Search for the largest batch size that fits into memory.

        Args:
            model: a LightningModule.
            train_dataloaders: refused: they have their batch size already.
            val_dataloaders: validation data of a fit.
            dataloaders: refused, as ``train_dataloaders``.
            datamodule: gives the loaders, unless the module does.
            method: the entry point to search in: ``fit``, ``validate``, ``test`` or ``predict``.
            mode: as of :class:`hookbus.callbacks.BatchSizeFinder`; so are the rest.
            steps_per_trial: see above.
            init_val: see above.
            max_trials: see above.
            batch_arg_name: see above.
            margin: see above.
            max_val: see above.

        Returns:
            The size; ``init_val`` in a trial run (``fast_dev_run``).

        Raises:
            MisconfigurationException: loaders that do not belong to the method, or what ``BatchSizeFinder`` refuses.
            ValueError: another method, or the trainer has a BatchSizeFinder among its callbacks.
        """
        if method not in list(TrainerFn):
            raise ValueError(f"method must be one of {', '.join(TrainerFn)}, got {method!r}")
        fn = TrainerFn(method)
        data = _data(fn, train_dataloaders, val_dataloaders, dataloaders)
        self._refuse_twice(BatchSizeFinder)
        finder = BatchSizeFinder(mode, steps_per_trial, init_val, max_trials, batch_arg_name, margin, max_val)
        trainer = self._trainer

        def search() -> None:
            finder.setup(trainer, trainer.lightning_module, fn.value)
            finder.scale_batch_size(trainer, trainer.lightning_module)

        run_aside(trainer, fn, search, model, datamodule=datamodule, **data)
        return finder.optimal_batch_size

    def _refuse_twice(self, kind: type) -> None:
        if any(isinstance(callback, kind) for callback in self._trainer.callbacks):
            raise ValueError(
                f"the trainer has a {kind.__name__} among its callbacks, which searches by itself when an entry point "
                "begins; leave it out to search with the Tuner"
            )


def _data(fn: TrainerFn, train: Any, val: Any, other: Any) -> dict[str, Any]:
    """The passed loaders by the prefix of their hook.

    Raises:
        MisconfigurationException: some do not belong to the entry point.
    """
    if fn is TrainerFn.FITTING:
        if other is not None:
            raise MisconfigurationException(
                "with method='fit' pass train_dataloaders and val_dataloaders, not dataloaders"
            )
        return {"train": train, "val": val}
    if train is not None or val is not None:
        raise MisconfigurationException(
            f"with method={fn.value!r} pass dataloaders, not train_dataloaders and val_dataloaders"
        )
    return {{"validate": "val"}.get(fn.value, fn.value): other}
