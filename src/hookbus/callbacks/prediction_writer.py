"""``BasePredictionWriter``: the base class of callbacks that put predictions where they belong, batch by batch or at once.

Each process writes what it has predicted itself; files need the process's rank, or the batch's sample indices, in their
names, so that processes do not overwrite each other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hookbus.callback import Callback
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class WriteInterval(str, Enum):
    """When predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether after each batch."""
        return self is not WriteInterval.EPOCH

    @property
    def on_epoch(self) -> bool:
        """Whether at the end, all together."""
        return self is not WriteInterval.BATCH


class BasePredictionWriter(Callback):
    """Calls ``write_on_batch_end`` and ``write_on_epoch_end``, which a subclass defines, during ``Trainer.predict``.

    With ``return_predictions=False`` predictions are kept only if they are to be written at the end.

    Args:
        write_interval: ``"batch"``, ``"epoch"`` or ``"batch_and_epoch"``.

    Raises:
        MisconfigurationException: another word; when a prediction is set up, if the method for it is not defined.

    Example:
        >>> import os, torch
        >>> from hookbus.callbacks import BasePredictionWriter
        >>> class TensorWriter(BasePredictionWriter):
        ...     def __init__(self, folder):
        ...         super().__init__(write_interval="epoch")
        ...         self.folder = folder
        ...     def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        ...         path = os.path.join(self.folder, f"predictions_{trainer.global_rank}.pt")
        ...         torch.save({"predictions": predictions, "samples": batch_indices}, path)
        >>> TensorWriter("predicted").interval.on_batch
        False
    """

    role: ClassVar[str] = "mutator"  # predictions that could not be written must not be passed over

    def __init__(self, write_interval: Literal["batch", "epoch", "batch_and_epoch"] = "batch") -> None:
        if write_interval not in list(WriteInterval):
            words = ", ".join(repr(interval.value) for interval in WriteInterval)
            raise MisconfigurationException(f"write_interval must be one of {words}; got {write_interval!r}")
        self.interval = WriteInterval(write_interval)

    def write_on_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the prediction of one batch.

        Args:
            trainer: the trainer that runs.
            pl_module: the user's module.
            prediction: what ``predict_step`` returned.
            batch_indices: the index in the dataset of each sample; empty where it cannot be known (an iterable
                dataset, a loader that is no ``DataLoader``).
            batch: the batch.
            batch_idx: its index within its loader.
            dataloader_idx: which loader it is from.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no write_on_batch_end")

    def write_on_epoch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write all predictions.

        Args:
            trainer: the trainer that runs.
            pl_module: the user's module.
            predictions: what ``predict_step`` returned for each batch; with several loaders a list for each of them.
            batch_indices: for each loader, also if there is one, and each batch the indices of the samples; empty for a
                loader where they cannot be known.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no write_on_epoch_end")

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """See to it that there is something to call."""
        methods = {"write_on_batch_end": self.interval.on_batch, "write_on_epoch_end": self.interval.on_epoch}
        for name, needed in methods.items():
            own = getattr(getattr(self, name), "__func__", None) is not getattr(BasePredictionWriter, name)
            if stage == "predict" and needed and not own:
                raise MisconfigurationException(
                    f"{type(self).__name__} writes at {self.interval.value!r} but does not define {name}; define it, or "
                    "choose another write_interval"
                )

    @hookimpl(specname="on_predict_start")
    def _ask_for_predictions(self, trainer: pl.Trainer) -> None:
        """All predictions at the end must be kept until then, whether they are returned or not."""
        if self.interval.on_epoch:
            trainer.predict_loop.keep_predictions = True

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the batch, if that is wanted."""
        if self.interval.on_batch:
            indices = trainer.predict_loop.current_batch_indices
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write everything, if that is wanted."""
        if self.interval.on_epoch:
            loop = trainer.predict_loop
            predictions = loop.predictions[0] if len(loop.predictions) == 1 else loop.predictions
            self.write_on_epoch_end(trainer, pl_module, predictions, loop.epoch_batch_indices)
