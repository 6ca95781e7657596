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
from hookbus.callbacks.pruned_tensors import made_permanent
from hookbus.callbacks.weight_mirror import names_of, take_values, weights_only
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


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
        self._latest_step_seen = self._latest_update_step = 0
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

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """See to it that nobody else puts an average in the place of the weights."""
        others = [type(one).__name__ for one in trainer.callbacks if isinstance(one, WeightAveraging)]
        if stage == "fit" and len(others) > 1:
            raise MisconfigurationException(
                f"{' and '.join(others)} each put an average in the place of the weights: drop all but one"
            )

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Make room for the average, and take over that of a checkpoint."""
        self._average_model = self._make_average(pl_module)
        self._swapped = False
        if self._loaded is not None:
            self._take_up(pl_module, self._loaded)
            self._loaded = None
        elif trainer.ckpt_path is None:
            self._latest_update_step, self._latest_update_epoch = trainer.global_step, trainer.current_epoch - 1
        self._latest_step_seen = trainer.global_step

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look whether other callbacks have brought back a structure that the module had when it was saved."""
        self._follow_structure(pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look whether the module has other tensors since the last epoch."""
        self._follow_structure(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look whether it has, since the validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._follow_structure(pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update after an optimiser step, if that is wanted; several optimisers may take several steps in a batch."""
        step = trainer.global_step
        if any(self.should_update(step_idx=index) for index in range(self._latest_step_seen, step)):
            self._update(pl_module)
            self._latest_update_step = step
        self._latest_step_seen = step

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Update after an epoch, if that is wanted."""
        epoch = trainer.current_epoch
        if epoch > self._latest_update_epoch and self.should_update(epoch_idx=epoch):
            self._follow_structure(pl_module)
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
        self._follow_structure(pl_module)
        assert self._average_model is not None
        with torch.no_grad():
            for average, own in _pairs(self._average_model.module, pl_module):
                own.copy_(average)
        if not self._use_buffers:
            update_batch_norm(trainer)

    def _update(self, pl_module: nn.Module) -> None:
        assert self._average_model is not None
        self._average_model.update_parameters(pl_module)

    def _follow_structure(self, pl_module: pl.LightningModule) -> None:
        """Give the average the tensors that the module has now: pruning replaces parameters by others while it trains."""
        assert self._average_model is not None
        before = self._average_model
        if names_of(before.module) != names_of(pl_module):
            self._average_model = self._make_average(pl_module)
            take_values(self._average_model.module, before.module.state_dict())
            self._average_model.n_averaged.copy_(before.n_averaged)

    def _make_average(self, pl_module: pl.LightningModule) -> AveragedModel:
        device = self._device or pl_module.device
        return AveragedModel(weights_only(pl_module), device=device, use_buffers=self._use_buffers, **self._kwargs)

    def _swap(self, pl_module: pl.LightningModule) -> None:
        """Exchange the values of the average and of the module."""
        if not self._swapped:
            self._follow_structure(pl_module)
        assert self._average_model is not None
        self._swapped = not self._swapped
        for average, own in _pairs(self._average_model.module, pl_module):
            values = average.detach().clone()
            average.data.copy_(own.data)
            own.data.copy_(values)

    # A module's own state_dict and load_state_dict may do more than to list its tensors. So that they see the average, it
    # takes the place of the weights for a moment.

    def _other_state(self, pl_module: pl.LightningModule) -> dict[str, Any]:
        """The module's state with the weights that it does not have at the moment."""
        self._swap(pl_module)
        try:
            return {name: _copied(value) for name, value in pl_module.state_dict().items()}
        finally:
            self._swap(pl_module)

    def _take_up(self, pl_module: pl.LightningModule, saved: dict[str, Any]) -> None:
        """Go on with a saved average."""
        assert self._average_model is not None
        if any(name not in saved["average"] for name in names_of(self._average_model.module) if name.endswith("_mask")):
            take_values(self._average_model.module, saved["average"])  # the module is pruned, the file is plain
        else:
            self._swap(pl_module)
            try:
                pl_module.load_state_dict(saved["average"], strict=pl_module.strict_loading)
            finally:
                self._swap(pl_module)
        self._average_model.n_averaged.copy_(saved["n_averaged"])

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the average in the place of the weights, and these beside it."""
        if not self.updated or trainer.state.fn != "fit":
            return
        assert self._average_model is not None
        own, other = checkpoint["state_dict"], self._other_state(pl_module)
        if not any(name.endswith("_mask") for name in own):  # ModelPruning has taken its masks away
            other = made_permanent(other)
        average, trained = (own, other) if self._swapped else (other, own)
        checkpoint["state_dict"], checkpoint["current_model_state"] = average, trained
        checkpoint["averaging_state"] = {"n_averaged": self._average_model.n_averaged}

    @hookimpl
    def on_save_weights(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Where only weights are saved, they are the average."""
        if self.updated and not self._swapped and trainer.state.fn == "fit":
            checkpoint["state_dict"] = self._other_state(pl_module)

    @hookimpl(tryfirst=True)  # before the weights are loaded
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """In a fit, go on with the trained weights; elsewhere the average is what the module is given."""
        self._loaded = None
        if trainer.state.fn != "fit" or "current_model_state" not in checkpoint:
            return
        self._loaded = {"average": checkpoint["state_dict"], **checkpoint["averaging_state"]}
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


def _copied(value: Any) -> Any:
    """A tensor's values as they are now; extra state, which is no tensor, as it is."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _pairs(average: nn.Module, own: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters and buffers of both, side by side."""
    return zip(
        itertools.chain(average.parameters(), average.buffers()),
        itertools.chain(own.parameters(), own.buffers()),
        strict=True,
    )
