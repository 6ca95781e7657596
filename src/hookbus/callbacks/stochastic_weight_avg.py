"""``StochasticWeightAveraging``: the average of the weights of the last epochs, trained at a constant rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim.swa_utils import SWALR, AveragedModel

from hookbus.callback import Callback
from hookbus.callbacks.batch_norm import update_batch_norm
from hookbus.callbacks.made_optimizers import optimizers_in
from hookbus.callbacks.weight_mirror import names_of, take_values, weights_only
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class StochasticWeightAveraging(Callback):
    """Averages the weights of the last epochs, as in https://arxiv.org/abs/1803.05407.

    From the starting epoch on ``torch.optim.swa_utils.SWALR`` takes the place of the learning-rate scheduler, one step
    per epoch, and the weights with which each epoch begins are averaged. When training ends, however it came to its end,
    the average becomes the module's weights, and a pass over the training data computes its batch-norm statistics. If
    the starting epoch was never reached, the trained weights stay.

    Args:
        swa_lrs: the rate of the averaging phase: one, or one for each parameter group.
        swa_epoch_start: the first epoch whose weights count: its number from 1 on (int), or the share of ``max_epochs``
            before it (float, 0 to 1). With ``max_epochs=-1`` the share is one of the epochs that ``max_steps`` takes.
        annealing_epochs: over how many epochs the rate changes to ``swa_lrs``.
        annealing_strategy: ``"cos"`` or ``"linear"``: how it does.
        avg_fn: gives the new average from the old one, a parameter, and the number of averaged models; by default all
            count alike.
        device: where the average is kept; None: with the module.

    Attributes:
        n_averaged: how many states of the weights are in the average.

    Raises:
        MisconfigurationException: an argument is out of range; or, when fit begins, the module has several optimisers or
            schedulers, or a share was asked for where the number of epochs is not known.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.callbacks import StochasticWeightAveraging
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return (self.layer(batch) - 2 * batch).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 0.1)
        >>> swa = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=3)
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
        >>> trainer = hookbus.Trainer(max_epochs=5, accelerator="cpu", callbacks=[swa], **quiet)
        >>> trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(4, 1)))
        >>> swa.n_averaged
        3
    """

    role: ClassVar[str] = "mutator"

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Callable[[Tensor, Tensor, Tensor | int], Tensor] | None = None,
        device: torch.device | str | None = torch.device("cpu"),  # noqa: B008 - a constant
    ) -> None:
        super().__init__()
        _check(swa_lrs, swa_epoch_start, annealing_epochs, annealing_strategy, avg_fn, device)
        self._swa_lrs = swa_lrs
        self._swa_epoch_start = swa_epoch_start
        self._annealing_epochs = annealing_epochs
        self._annealing_strategy = annealing_strategy
        self._avg_fn = avg_fn
        self._device = device
        self._average: AveragedModel | None = None
        self._scheduler: SWALR | None = None
        self._first_epoch: int | None = None
        self._last_epoch: int | None = None
        self._latest_update_epoch = -1
        self._loaded: dict[str, Any] | None = None

    @property
    def n_averaged(self) -> int:
        """How many states of the weights are in the average."""
        return 0 if self._average is None else int(self._average.n_averaged)

    @property
    def swa_start(self) -> int | None:
        """The index, from 0, of the first epoch whose weights count; None before training begins."""
        return self._first_epoch

    @property
    def swa_end(self) -> int | None:
        """The index of the last one, by ``max_epochs``; None before training begins, and where that is -1."""
        return self._last_epoch

    @hookimpl(wrapper=True)
    def configure_optimizers(self) -> Generator[None, Any, Any]:
        """Take the schedulers away from a run that goes on with SWALR in their place."""
        answer = yield
        goes_on = self._loaded is not None and self._loaded["scheduler_state"] is not None
        return list(optimizers_in(answer)) if goes_on else answer

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the module, and go on where a checkpoint left off."""
        for what, number in (("optimizer", trainer.optimizers), ("lr_scheduler", trainer.lr_scheduler_configs)):
            if len(number) > 1:
                raise MisconfigurationException(
                    f"StochasticWeightAveraging works with one {what}, configure_optimizers gave {len(number)}"
                )
        if isinstance(self._swa_epoch_start, float) and trainer.max_epochs == -1 and trainer.max_steps == -1:
            raise MisconfigurationException(
                f"swa_epoch_start={self._swa_epoch_start} is a share of the epochs, whose number is not known with "
                "max_epochs=-1: give the epoch itself (int), max_epochs or max_steps"
            )
        self._last_epoch = None if trainer.max_epochs == -1 else trainer.max_epochs - 1
        state, self._loaded = self._loaded or {}, None
        self._average = self._scheduler = self._first_epoch = None
        self._latest_update_epoch = state.get("latest_update_epoch", -1)
        if state.get("n_averaged"):
            self._average = self._averaged_model(pl_module)
            take_values(self._average.module, state["average_model_state"])
            self._average.n_averaged.fill_(state["n_averaged"])
        if state.get("scheduler_state") is not None:
            self._use_scheduler(trainer, state["scheduler_state"])

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From the starting epoch on: take the weights into the average."""
        epoch = trainer.current_epoch
        first = self._first_epoch = self._starting_epoch(trainer) if self._first_epoch is None else self._first_epoch
        if epoch < first or epoch <= self._latest_update_epoch:
            return
        if self._scheduler is None:
            self._use_scheduler(trainer)
        if self._average is None:
            self._average = self._averaged_model(pl_module)
        self._follow_structure(pl_module)
        self._average.update_parameters(pl_module)
        self._latest_update_epoch = epoch

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the average be the module's weights, if there is one."""
        if self._average is None or not self.n_averaged:
            return
        self._follow_structure(pl_module)
        with torch.no_grad():
            for average, own in zip(self._average.module.parameters(), pl_module.parameters(), strict=True):
                own.copy_(average)
        update_batch_norm(trainer)

    def _follow_structure(self, pl_module: pl.LightningModule) -> None:
        """Give the average the tensors that the module has now: pruning replaces parameters by others while it trains."""
        before = self._average
        if before is not None and names_of(before.module) != names_of(pl_module):
            self._average = self._averaged_model(pl_module)
            take_values(self._average.module, before.module.state_dict())
            self._average.n_averaged.copy_(before.n_averaged)

    def _averaged_model(self, pl_module: pl.LightningModule) -> AveragedModel:
        device = torch.device(self._device or pl_module.device)
        return AveragedModel(weights_only(pl_module), device=device, avg_fn=self._avg_fn)

    def _starting_epoch(self, trainer: Any) -> int:
        """The index, from 0, of the first epoch whose weights count."""
        start, epochs = self._swa_epoch_start, trainer.max_epochs
        if isinstance(start, float):
            if epochs == -1:
                steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
                epochs = math.ceil(trainer.max_steps / steps)
            start = int(epochs * start)
        return max(start - 1, 0)

    def _use_scheduler(self, trainer: Any, state: dict[str, Any] | None = None) -> None:
        """Put SWALR in the place of whatever scheduler there is; with a state it goes on from there."""
        optimizer = trainer.optimizers[0]
        groups = optimizer.param_groups
        if isinstance(self._swa_lrs, Sequence) and len(self._swa_lrs) != len(groups):
            raise MisconfigurationException(
                f"swa_lrs must have a rate for each of the optimizer's {len(groups)} parameter group(s), got {self._swa_lrs}"
            )
        rates = [group["lr"] for group in groups]
        if state is None:
            for group in groups:
                group["initial_lr"] = group["lr"]
        self._scheduler = SWALR(
            optimizer,
            swa_lr=self._swa_lrs,  # type: ignore[arg-type]
            anneal_epochs=self._annealing_epochs,
            anneal_strategy=self._annealing_strategy,  # type: ignore[arg-type]
        )
        if state is not None:
            self._scheduler.load_state_dict(state)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        trainer.use_schedulers([self._scheduler])

    # -- resuming ------------------------------------------------------------------------------------------------------

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take up the state of SWALR from this callback's own, when it is there: in ``on_fit_start``."""
        state = (checkpoint.get("callbacks") or {}).get(self.state_key) or {}
        if trainer.state.fn == "fit" and state.get("scheduler_state") is not None:
            checkpoint["lr_schedulers"] = []

    def state_dict(self) -> dict[str, Any]:
        """The average, and where it stands; under Lightning's names."""
        return {
            "n_averaged": self.n_averaged,
            "latest_update_epoch": self._latest_update_epoch,
            "scheduler_state": None if self._scheduler is None else self._scheduler.state_dict(),
            "average_model_state": None if self._average is None else self._average.module.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with this average when fit begins."""
        self._loaded = state_dict


def _check(swa_lrs: Any, start: Any, epochs: Any, strategy: Any, avg_fn: Any, device: Any) -> None:
    """Refuse what cannot work.

    Raises:
        MisconfigurationException: says what, and what is possible.
    """
    rates = swa_lrs if isinstance(swa_lrs, (list, tuple)) else [swa_lrs]
    if not rates or any(isinstance(r, bool) or not isinstance(r, (int, float)) or not r > 0 for r in rates):
        raise MisconfigurationException(f"swa_lrs must be a rate above 0, or a list of such, got {swa_lrs!r}")
    whole = isinstance(start, int) and not isinstance(start, bool) and start >= 1
    if not whole and not (isinstance(start, float) and 0 <= start <= 1):
        raise MisconfigurationException(
            f"swa_epoch_start must be an epoch from 1 on (int), or a share from 0.0 to 1.0 (float), got {start!r}"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise MisconfigurationException(f"annealing_epochs must be a number of epochs, 0 or more, got {epochs!r}")
    if strategy not in ("cos", "linear"):
        raise MisconfigurationException(f"annealing_strategy must be 'cos' or 'linear', got {strategy!r}")
    if avg_fn is not None and not callable(avg_fn):
        raise MisconfigurationException(f"avg_fn must be a function, got {avg_fn!r}")
    if device is not None and not isinstance(device, (torch.device, str)):
        raise MisconfigurationException(f"device must be a torch.device, a string or None, got {device!r}")
