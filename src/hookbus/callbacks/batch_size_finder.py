"""``BatchSizeFinder``: finds the largest batch that fits into memory, and sets its size."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hookbus.callback import NumberedCallback
from hookbus.callbacks.out_of_memory import is_out_of_memory, release_memory
from hookbus.callbacks.size_search import largest_by_bisection, largest_by_doubling
from hookbus.callbacks.tuned_attribute import TunedAttribute
from hookbus.errors import MisconfigurationException, UnknownChoiceError
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_PREFIXES: Final = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


class BatchSizeFinder(NumberedCallback):
    """Searches for the batch size when an entry point begins, once the module's own hook of that moment is over.

    Each size is tried for a few steps on the side; of this nothing is left, and other callbacks, plugins and loggers do
    not hear of it. The size that was found is then set, and the dataloaders are asked for again, so they must be made
    by the module or a data module, with the attribute as their batch size. A run that is resumed from a checkpoint
    keeps the size that was found.

    Call :meth:`scale_batch_size` from a hook of a subclass to search at other times.

    Args:
        mode: ``"power"`` doubles the size as long as it fits; ``"binsearch"`` then bisects between the last size that
            fitted and the first one that did not.
        steps_per_trial: optimiser steps, or batches of an evaluation, with each size.
        init_val: the first size to try.
        max_trials: how many sizes to try.
        batch_arg_name: the attribute that holds the size, of the module, its ``hparams`` or the data module.
        margin: in mode ``"binsearch"``, take this share off the size that was found, 0 or more and below 1.
        max_val: the largest size to try.

    Attributes:
        optimal_batch_size: the size that was found; ``init_val`` before.

    Raises:
        MisconfigurationException: an argument is out of range; or, when an entry point begins, dataloaders were passed
            to it, there are several, or there is no attribute for the size.
        RuntimeError: not even a batch of one sample fits.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.callbacks import BatchSizeFinder
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.batch_size, self.layer = 1, torch.nn.Linear(1, 1)
        ...     def train_dataloader(self):
        ...         return torch.utils.data.DataLoader(torch.ones(50, 1), batch_size=self.batch_size)
        ...     def training_step(self, batch, batch_idx):
        ...         if len(batch) > 20:
        ...             raise RuntimeError("CUDA out of memory.")
        ...         return self.layer(batch).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 0.1)
        >>> model, finder = Line(), BatchSizeFinder()
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
        >>> hookbus.Trainer(max_epochs=1, accelerator="cpu", callbacks=[finder], **quiet).fit(model)
        >>> model.batch_size
        16
    """

    role: ClassVar[str] = "mutator"
    placement: ClassVar[str] = "first"

    SUPPORTED_MODES = ("power", "binsearch")

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        super().__init__()
        mode = str(mode).lower()
        if mode not in self.SUPPORTED_MODES:
            raise UnknownChoiceError(f"mode must be 'power' or 'binsearch', got {mode!r}")
        counts = {
            "steps_per_trial": steps_per_trial, "init_val": init_val, "max_trials": max_trials, "max_val": max_val,
        }  # fmt: skip
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise MisconfigurationException(f"{name} must be a whole number of 1 or more, got {value!r}")
        if not 0 <= margin < 1:
            raise MisconfigurationException(f"margin must be a share of 0 or more and below 1, got {margin!r}")
        if not isinstance(batch_arg_name, str) or not batch_arg_name:
            raise MisconfigurationException(f"batch_arg_name must be the name of an attribute, got {batch_arg_name!r}")
        self.optimal_batch_size: int | None = init_val
        self._mode = mode
        self._steps_per_trial = steps_per_trial
        self._init_val = init_val
        self._max_trials = max_trials
        self._batch_arg_name = batch_arg_name
        self._margin = margin
        self._max_val = max_val
        self._found: int | None = None
        self._resumed = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what cannot be tuned, before anything is loaded."""
        if trainer.world_size > 1:
            raise MisconfigurationException("a batch size can be searched for by one process, not by several")
        prefix = _PREFIXES[stage]
        if trainer.bus.has_plugin("dataloaders") and any(
            implementation.hook == f"{prefix}_dataloader"
            for implementation in trainer.bus.implementations("dataloaders")
        ):
            raise MisconfigurationException(
                f"dataloaders that are passed to {stage}() have their batch size already; define {prefix}_dataloader() in "
                f"the module or a data module, with batch_size=self.{self._batch_arg_name}, or leave BatchSizeFinder out"
            )
        TunedAttribute(trainer, self._batch_arg_name)

    @hookimpl(trylast=True)
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search before the training, unless the size came with a checkpoint."""
        if not self._resumed:
            self.scale_batch_size(trainer, pl_module)
        self._resumed = False

    @hookimpl(trylast=True)
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search before ``Trainer.validate``; not before the validations of a fit."""
        if trainer.state.fn == "validate":
            self.scale_batch_size(trainer, pl_module)

    @hookimpl(trylast=True)
    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search before a test."""
        self.scale_batch_size(trainer, pl_module)

    @hookimpl(trylast=True)
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search before a prediction."""
        self.scale_batch_size(trainer, pl_module)

    def scale_batch_size(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Search, from within any hook of an entry point, and go on with the size that was found.

        Raises:
            MisconfigurationException: there are several dataloaders to evaluate on.
            RuntimeError: not even a batch of one sample fits.
        """
        if trainer.fast_dev_run:
            warnings.warn("fast_dev_run: no batch size is searched for", UserWarning, stacklevel=2)
            return
        attribute = TunedAttribute(trainer, self._batch_arg_name)
        before = attribute.value
        try:
            found = self._search(trainer, attribute)
        except BaseException:
            attribute.value = before
            raise
        attribute.value = self.optimal_batch_size = self._found = found
        trainer.reload_data()

    def _search(self, trainer: Any, attribute: TunedAttribute) -> int:
        """The largest size that fits, less the margin."""
        with trainer.rehearse() as rehearsal:

            def fits(size: int) -> bool:
                attribute.value = size
                if trainer.strategy.root_device.type != "cpu":
                    release_memory()  # what an earlier trial left in cycles may be what is missing
                try:
                    return bool(rehearsal.run(self._steps_per_trial) > 0)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                release_memory()
                return False

            attribute.value = min(self._init_val, self._max_val)
            if (loaders := len(rehearsal.load())) > 1:
                raise MisconfigurationException(
                    f"a batch size can be searched for with one dataloader; {trainer.state.fn} has {loaders}"
                )
            samples = rehearsal.number_of_samples()
            search = largest_by_doubling if self._mode == "power" else largest_by_bisection
            found = search(fits, self._init_val, self._max_trials, self._max_val, samples)
        release_memory()
        if found is None:
            raise RuntimeError(
                f"no batch fits into memory: {attribute.name}={attribute.value} is the smallest that was tried; make the "
                "model or its input smaller, or raise max_trials"
            )
        return max(1, int(found * (1 - self._margin))) if self._mode == "binsearch" else found

    # -- resuming ------------------------------------------------------------------------------------------------------

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set the size that was found before the dataloaders are made."""
        state = (checkpoint.get("callbacks") or {}).get(self.state_key) or {}
        size = state.get("batch_size")
        if trainer.state.fn == "fit" and size is not None:
            TunedAttribute(trainer, self._batch_arg_name).value = size

    def state_dict(self) -> dict[str, Any]:
        """The size that was found; None if there was no search."""
        return {"batch_size": self._found}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the size that was found, and do not search for it again in a fit."""
        self._found = state_dict["batch_size"]
        self._resumed = self._found is not None
        if self._found is not None:
            self.optimal_batch_size = self._found
