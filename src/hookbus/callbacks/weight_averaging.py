"""``WeightAveraging`` and ``EMAWeightAveraging``: an average of the weights, kept while training goes on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hookbus.callback import Callback
from hookbus.callbacks.batch_norm import update_batch_norm
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_PREFIX = "module."


class WeightAveraging(Callback):
    """Keeps an average of the weights beside the trained ones; validations see it, and in the end it takes their place.

    By default it is updated after each optimiser step; override :meth:`should_update` to choose the moments. Until the
    first update there is no average: validations and checkpoints see the trained weights, and if it never comes these
    stay. In checkpoints ``state_dict`` is the average, and the trained weights are under ``current_model_state``.

    Args:
        device: where the average is kept; None: with the module.
        use_buffers: average buffers, too. Otherwise they are copied at each update, and in the end a pass over the
            training data computes the batch-norm statistics of the average.
        **kwargs: for ``torch.optim.swa_utils.AveragedModel``: ``avg_fn`` or ``multi_avg_fn``; by default all states of
            the weights count alike.

    Raises:
        MisconfigurationException: the device does not exist, or ``AveragedModel`` has no such argument.

    Example:
        >>> from hookbus.callbacks import WeightAveraging
        >>> class EveryEpoch(WeightAveraging):
        ...     def should_update(self, step_idx=None, epoch_idx=None):
        ...         return epoch_idx is not None and epoch_idx >= 5
        >>> EveryEpoch().should_update(epoch_idx=5), EveryEpoch().should_update(step_idx=100)
        (True, False)
    """

    role: ClassVar[str] = "mutator"

    def __init__(self, device: torch.device | str | int | None = None, use_buffers: bool = True, **kwargs: Any) -> None:
        super().__init__()
        unknown = sorted(set(kwargs) - {"avg_fn", "multi_avg_fn"})
        if unknown:
            raise MisconfigurationException(f"WeightAveraging takes avg_fn and multi_avg_fn, got {', '.join(unknown)}")
        functions = [name for name, function in kwargs.items() if function is not None]
        if len(functions) > 1:
            raise MisconfigurationException("avg_fn and multi_avg_fn are two forms of one thing: give one of them")
        if any(not callable(kwargs[name]) for name in functions):
            raise MisconfigurationException(f"{functions[0]} must be a function, got {kwargs[functions[0]]!r}")
        try:
            self._device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise MisconfigurationException(f"device={device!r} is no device: {error}") from None
        self._use_buffers = use_buffers
        self._kwargs = kwargs
        self._average_model: AveragedModel | None = None
        self._swapped = False
        self._loaded: dict[str, Any] | None = None
        self._latest_update_step = 0
        self._latest_update_epoch = -1

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether to take the present weights into the average.

        Asked after each optimiser step, with its index, and at the end of each epoch, with its index; both from 0.
        """
        return step_idx is not None

    @property
    def updated(self) -> bool:
        """Whether there is an average."""
        return self._average_model is not None and bool(self._average_model.n_averaged > 0)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make room for the average, and take over that of a checkpoint."""
        self._average_model = AveragedModel(
            pl_module, device=self._device or pl_module.device, use_buffers=self._use_buffers, **self._kwargs
        )
        self._swapped = False
        if self._loaded is not None:
            self._average_model.load_state_dict(self._loaded)
            self._loaded = None
        elif trainer.ckpt_path is None:
            self._latest_update_step, self._latest_update_epoch = trainer.global_step, trainer.current_epoch - 1

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update after an optimiser step, if that is wanted."""
        step = trainer.global_step
        if step > self._latest_update_step and self.should_update(step_idx=step - 1):
            self._update(pl_module)
            self._latest_update_step = step

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update after an epoch, if that is wanted."""
        epoch = trainer.current_epoch
        if epoch > self._latest_update_epoch and self.should_update(epoch_idx=epoch):
            self._update(pl_module)
            self._latest_update_epoch = epoch

    @hookimpl(tryfirst=True)
    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the validations of a fit see the average."""
        if self.updated and trainer.state.fn == "fit":
            self._swap(pl_module)

    @hookimpl(trylast=True)
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Bring the trained weights back."""
        if self._swapped:
            self._swap(pl_module)

    @hookimpl(tryfirst=True)
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Bring the trained weights back, if a validation was left by an exception."""
        if self._swapped:
            self._swap(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the average be the module's weights, if there is one."""
        if not self.updated:
            return
        assert self._average_model is not None
        with torch.no_grad():
            for average, own in _pairs(self._average_model.module, pl_module):
                own.copy_(average)
        if not self._use_buffers:
            update_batch_norm(trainer)

    def _update(self, pl_module: nn.Module) -> None:
        assert self._average_model is not None
        self._average_model.update_parameters(pl_module)

    def _swap(self, pl_module: nn.Module) -> None:
        """Exchange the values of the average and of the module."""
        assert self._average_model is not None
        self._swapped = not self._swapped
        for average, own in _pairs(self._average_model.module, pl_module):
            values = average.detach().clone()
            average.data.copy_(own.data)
            own.data.copy_(values)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the average in the place of the weights, and these beside it."""
        if not self.updated or trainer.state.fn != "fit":
            return
        assert self._average_model is not None
        state = self._average_model.state_dict()
        other = {name[len(_PREFIX) :]: value for name, value in state.items() if name.startswith(_PREFIX)}
        trained, average = (other, checkpoint["state_dict"]) if self._swapped else (checkpoint["state_dict"], other)
        checkpoint["state_dict"], checkpoint["current_model_state"] = average, trained
        checkpoint["averaging_state"] = {name: value for name, value in state.items() if not name.startswith(_PREFIX)}

    @hookimpl(tryfirst=True)  # before the weights are loaded
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """In a fit, go on with the trained weights; elsewhere the average is what the module is given."""
        self._loaded = None
        if trainer.state.fn != "fit" or "current_model_state" not in checkpoint:
            return
        average = {f"{_PREFIX}{name}": value for name, value in checkpoint["state_dict"].items()}
        self._loaded = {**average, **checkpoint["averaging_state"]}
        checkpoint["state_dict"] = checkpoint["current_model_state"]

    def state_dict(self) -> dict[str, Any]:
        """When the average was last updated."""
        return {"latest_update_step": self._latest_update_step, "latest_update_epoch": self._latest_update_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._latest_update_step = state_dict["latest_update_step"]
        self._latest_update_epoch = state_dict.get("latest_update_epoch", -1)


class EMAWeightAveraging(WeightAveraging):
    """Keeps an exponential moving average of the weights.

    Args:
        device: where the average is kept; None: with the module.
        use_buffers: average buffers, too; see :class:`WeightAveraging`.
        decay: the share of the old average in the new one, 0 to 1.
        update_every_n_steps: update after each optimiser step whose index (from 0) is a multiple of this; 0: not at
            steps.
        update_starting_at_step: not before the step with this index.
        update_starting_at_epoch: update at the end of epochs, from that with this index on.

    Raises:
        MisconfigurationException: an argument is out of range.

    Example:
        >>> from hookbus.callbacks import EMAWeightAveraging
        >>> ema = EMAWeightAveraging(decay=0.99, update_every_n_steps=10, update_starting_at_step=100)
        >>> [step for step in range(140) if ema.should_update(step_idx=step)]
        [100, 110, 120, 130]
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise MisconfigurationException(
                f"EMAWeightAveraging does not take {', '.join(kwargs)}: its average is given"
            )
        if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay <= 1:
            raise MisconfigurationException(f"decay must be a share from 0 to 1, got {decay!r}")
        numbers = {
            "update_every_n_steps": update_every_n_steps,
            "update_starting_at_step": update_starting_at_step,
            "update_starting_at_epoch": update_starting_at_epoch,
        }
        for name, number in numbers.items():
            if number is None and name != "update_every_n_steps":
                continue
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise MisconfigurationException(f"{name} must be a whole number of 0 or more, got {number!r}")
        super().__init__(device, use_buffers, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """As the arguments say."""
        if step_idx is not None:
            late = self.update_starting_at_step is None or step_idx >= self.update_starting_at_step
            return late and self.update_every_n_steps > 0 and step_idx % self.update_every_n_steps == 0
        start = self.update_starting_at_epoch
        return epoch_idx is not None and start is not None and epoch_idx >= start


def _pairs(average: nn.Module, own: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters and buffers of both, side by side."""
    return zip(
        itertools.chain(average.parameters(), average.buffers()),
        itertools.chain(own.parameters(), own.buffers()),
        strict=True,
    )
