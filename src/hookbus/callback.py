"""The base class of callbacks: hook methods with Lightning's names, parameters and defaults, all of them empty.

A plain class on purpose: no metaclass, no ``__slots__``, no ``__init__`` and no state, so that it mixes with
``nn.Module`` and ABCs, and works when a subclass never calls ``super().__init__()``. When each method is called, and
with what, is documented by the hookspec of the same name. Methods that a subclass leaves alone cost nothing.

:class:`NumberedCallback` is the base of those with state of which a trainer may have several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hookbus import hookspecs

if TYPE_CHECKING:
    # Names for readers and type checkers. At run time they must stay unresolvable: packages that compare their
    # annotations with the base class's (the `overrides` package) then compare names of parameters only, as they do
    # with Lightning's "pl.Trainer".
    from hookbus.hookspecs import types as pl
    from hookbus.hookspecs.types import STEP_OUTPUT, Optimizer, Tensor


class Callback:
    """Base class of callbacks: override the hooks you need.

    Methods are called by position, as ``(trainer, pl_module, …)``, so parameters may have any name and ``*args`` works.
    To take arguments by name, to wrap other implementations, or to implement hooks that Lightning does not have, mark a
    method with ``@hookimpl``.

    Example:
        >>> class Announce(Callback):
        ...     def on_train_epoch_end(self, trainer, pl_module):
        ...         print("epoch", trainer.current_epoch, "done")
    """

    @property
    def state_key(self) -> str:
        """Key under which a checkpoint holds this callback's state: the class's name unless overridden.

        Two callbacks with state in one trainer need different keys; see ``_generate_state_key``.
        """
        return self.__class__.__qualname__

    def _generate_state_key(self, **kwargs: Any) -> str:
        """A ``state_key`` made of the class's name and arguments that tell instances apart: ``Name{'arg': value}``."""
        return f"{self.__class__.__qualname__}{kwargs!r}"

    def state_dict(self) -> dict[str, Any]:
        """The state to keep in checkpoints, ``{}`` for none."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` once returned."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Called when a stage (fit, validate, test or predict) is set up."""

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Called when a stage has ended well; not after an exception."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when fit begins, before the sanity check."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when fit ends."""

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when the sanity check of validation begins."""

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when the sanity check of validation ends."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when training begins, after the sanity check."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when training ends, while the loggers are still open."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a training epoch begins."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called at the very end of a training epoch, after its validation."""

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Called when a training batch begins."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Called when a training batch ends; ``outputs`` holds the loss."""

    def on_before_zero_grad(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Called before the gradients are cleared."""

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Called before the backward pass."""

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called after the backward pass; gradients may still be scaled."""

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Called before the optimizer steps; gradients are unscaled and not clipped."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a validation loop begins."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a validation loop ends."""

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the validation data begins."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the validation data ends."""

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called when a validation batch begins."""

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: STEP_OUTPUT,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called when a validation batch ends."""

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a test loop begins."""

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a test loop ends."""

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the test data begins."""

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the test data ends."""

    def on_test_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called when a test batch begins."""

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: STEP_OUTPUT,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called when a test batch ends."""

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a prediction loop begins."""

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a prediction loop ends."""

    def on_predict_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the prediction data begins."""

    def on_predict_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called when a pass over the prediction data ends."""

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called when a prediction batch begins."""

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Called when a prediction batch ends."""

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Called when an exception, Ctrl-C included, ends the run."""

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Called before a checkpoint is written; may add to it."""

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Called when a checkpoint was read, before it is used."""


#: The hooks that a ``Callback`` method implements by its name alone, in lifecycle order.
CALLBACK_HOOKS: Final[tuple[str, ...]] = tuple(name for name in hookspecs.names() if name in vars(Callback))


class NumberedCallback(Callback):
    """A callback whose instances keep their states apart by their place in ``trainer.callbacks``.

    Attributes:
        twin: how many callbacks with otherwise the same ``state_key`` stand before this one; set by the trainer.
    """

    twin = 0

    @property
    def state_key(self) -> str:
        """The class's name; from the second callback of the class on with a number."""
        return f"{super().state_key}#{self.twin + 1}" if self.twin else super().state_key
