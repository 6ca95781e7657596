"""The module: what a user writes. A ``torch.nn.Module`` with the steps of training and a way to log."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from hookbus.bus.dispatch import running_hook
from hookbus.checkpoint.restore import load_weights
from hookbus.engine.nested import map_leaves
from hookbus.engine.optimizer import LightningOptimizer, parameters_of, unwrap
from hookbus.errors import MisconfigurationException
from hookbus.hparams import HyperparametersMixin
from hookbus.module_hooks import CheckpointHooks, DataHooks, ModelHooks
from hookbus.reload import class_only, constructor_arguments, hparams_from_file, read_checkpoint

if TYPE_CHECKING:
    from typing_extensions import Self

_is_traced = torch.compiler.is_dynamo_compiling


class LightningModule(HyperparametersMixin, ModelHooks, DataHooks, CheckpointHooks, torch.nn.Module):
    """Base class of everything that a :class:`hookbus.Trainer` trains.

    Define ``training_step`` and ``configure_optimizers``; override what else you need.

    Attributes:
        automatic_optimization: False lets ``training_step`` drive the optimisers itself.
        strict_loading: whether ``load_state_dict`` demands that all keys match.
        example_input_array: an input for graphs and summaries.

    Example:
        >>> import torch
        >>> import hookbus
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(1, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         x, y = batch
        ...         loss = torch.nn.functional.mse_loss(self.net(x), y)
        ...         self.log("train_loss", loss)
        ...         return loss
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> Line().automatic_optimization
        True
    """

    CHECKPOINT_HYPER_PARAMS_KEY = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE = "hparams_type"
    example_input_array: Any = None

    # On the class, so that they are there before, and without, ``super().__init__()``.
    _trainer: Any = None
    _automatic_optimization = True
    _strict_loading: bool | None = None
    _frozen_elsewhere: dict[Tensor, bool] | None = None

    # -- steps and configuration: override these -------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of ``(batch, batch_idx)``: a scalar tensor, a dictionary with ``"loss"``, or None to skip."""
        raise NotImplementedError(f"{type(self).__name__} defines no training_step(self, batch, batch_idx)")

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Work on one validation batch: ``(batch, batch_idx, dataloader_idx=0)``."""

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Work on one test batch: ``(batch, batch_idx, dataloader_idx=0)``."""

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Predict for one batch: ``(batch, batch_idx, dataloader_idx=0)``; by default ``self(batch)``."""
        batch = kwargs.get("batch", args[0] if args else None)
        return self(batch)

    def configure_callbacks(self) -> Any:
        """Callbacks that this module brings; one of a type takes the place of the Trainer's of the same type."""
        return []

    def configure_optimizers(self) -> Any:
        """The optimiser(s) and schedulers: see :func:`hookbus.trainer.schedules.parse` for the accepted forms."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no configure_optimizers(self); return an optimizer, such as "
            "torch.optim.AdamW(self.parameters())"
        )

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of ``loss``."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Let the optimiser update; whoever overrides this must run ``optimizer_closure``."""
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Clear the gradients."""
        optimizer.zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients before an update; call :meth:`clip_gradients` if you override it."""
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Let a scheduler step, with the value it monitors if it monitors one."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    # -- logging ---------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any | None = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log one value, for loggers, progress bar and callbacks.

        Args:
            name: its name.
            value: a number, a tensor with one element, or a metric object with ``compute``, ``update`` and ``reset``.
            prog_bar: show it in the progress bar.
            logger: send it to the loggers; None means True.
            on_step: keep the value of each step; the default depends on the hook.
            on_epoch: reduce the values of the epoch; the default depends on the hook.
            reduce_fx: how: ``mean`` (weighted by batch size), ``sum``, ``max`` or ``min``.
            enable_graph: refused: logged values are detached.
            sync_dist: reduce across processes as well.
            sync_dist_group: refused; there is one process group.
            add_dataloader_idx: tell several evaluation loaders apart in the name.
            batch_size: weight in the mean of the epoch; by default the first dimension of the batch.
            metric_attribute: the attribute that holds the metric object.
            rank_zero_only: only process 0 logs this.

        Raises:
            MisconfigurationException: the hook that is running may not log, or not so; or no hook is running.
            TypeError: the name is no string.
            ValueError: the value is of another kind, or has more than one element.
        """
        if _is_traced():
            _log_apart(
                self, name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, sync_dist, sync_dist_group,
                add_dataloader_idx, batch_size, metric_attribute, rank_zero_only,
            )  # fmt: skip
            return
        trainer = self._trainer
        if trainer is None:
            warnings.warn(
                "self.log() has no effect: this module is not attached to a Trainer (pass it to fit, validate or test)",
                stacklevel=2,
            )
            return
        if trainer.settings.barebones:
            trainer._warn_once("self.log() does nothing under Trainer(barebones=True)")
            return
        hook = running_hook(1) or trainer._hook_in_autograd()  # this method is none
        if hook is None:
            raise MisconfigurationException(
                f"self.log({name!r}, …) was called outside of any hook of a run, so there is no step or epoch it belongs to"
            )
        if enable_graph or sync_dist_group is not None:
            raise MisconfigurationException("self.log does not support enable_graph=True and sync_dist_group")
        if not isinstance(name, str):
            raise TypeError(f"self.log(name, …): the name must be a string, got {type(name).__name__}: {name!r}")
        if logger and not trainer.loggers:
            trainer._warn_once(
                f"self.log({name!r}, …, logger=True) has no logger to go to: give one with Trainer(logger=…)"
            )
        # The weight matters only where values of several batches are put together; in training that is not the default.
        if batch_size is None and on_epoch is not False and (on_epoch or not trainer.training):
            batch_size = trainer._known_batch_size or trainer._batch_size()
        options = (
            prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, add_dataloader_idx, rank_zero_only, metric_attribute,
        )  # fmt: skip
        trainer._metrics.log(
            name,
            value,
            options,
            hook=hook,
            batch_size=batch_size,
            dataloader_idx=trainer._dataloader_idx,
            several_loaders=trainer._several_loaders,
        )

    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any | None = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log several values with the same options; see :meth:`log`."""
        for name, value in dictionary.items():
            self.log(
                name,
                value,
                prog_bar=prog_bar,
                logger=logger,
                on_step=on_step,
                on_epoch=on_epoch,
                reduce_fx=reduce_fx,
                enable_graph=enable_graph,
                sync_dist=sync_dist,
                sync_dist_group=sync_dist_group,
                add_dataloader_idx=add_dataloader_idx,
                batch_size=batch_size,
                rank_zero_only=rank_zero_only,
            )

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process only, without tearing a progress bar apart."""
        if self._trainer is None:
            print(*args, **kwargs)
        else:
            self._trainer.print(*args, **kwargs)

    # -- optimisation by hand --------------------------------------------------------------------------------------

    @property
    def automatic_optimization(self) -> bool:
        """Whether the trainer drives the optimiser."""
        return self._automatic_optimization

    @automatic_optimization.setter
    def automatic_optimization(self, value: bool) -> None:
        self._automatic_optimization = value

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimiser, or a list of them if there are several (or none).

        Args:
            use_pl_optimizer: the wrapped ones, whose ``step`` fires the hooks; False gives torch's own.
        """
        found = self.trainer._wrapped_optimizers if use_pl_optimizer else self.trainer.optimizers
        return found[0] if len(found) == 1 else list(found)

    def lr_schedulers(self) -> Any:
        """The scheduler, a list of them if there are several, None if there is none."""
        found = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return None if not found else found[0] if len(found) == 1 else found

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """``loss.backward`` with precision and hooks, in manual optimization.

        Raises:
            MisconfigurationException: optimization is automatic, so the trainer does this.
        """
        if self.automatic_optimization:
            raise MisconfigurationException(
                "manual_backward is for manual optimization: set self.automatic_optimization = False in __init__, or return "
                "the loss from training_step"
            )
        self.trainer._manual_backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Let only this optimiser's parameters require gradients, among those of all optimisers.

        Until :meth:`untoggle_optimizer`, or until another one is toggled. Parameters that were frozen stay so.
        """
        self._thaw()
        wanted = {p: p.requires_grad for other in self.trainer.optimizers for p in parameters_of(other)}
        own = set(parameters_of(optimizer))
        for parameter in wanted:
            if parameter not in own:
                parameter.requires_grad = False
        self._frozen_elsewhere = wanted

    def untoggle_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> None:
        """Undo :meth:`toggle_optimizer`."""
        self._thaw()

    def _thaw(self) -> None:
        for parameter, wanted in (self._frozen_elsewhere or {}).items():
            parameter.requires_grad = wanted
        self._frozen_elsewhere = None

    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer | LightningOptimizer) -> Generator[None, None, None]:
        """:meth:`toggle_optimizer` for the length of a block."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self,
        optimizer: Optimizer | LightningOptimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimiser's parameters.

        Args:
            optimizer: whose parameters.
            gradient_clip_val: the bound; by default the trainer's.
            gradient_clip_algorithm: ``norm`` or ``value``; by default the trainer's, else ``norm``.

        Raises:
            MisconfigurationException: the trainer was told another bound or algorithm, or the algorithm is unknown.
        """
        trainer = self.trainer
        value = _agreed("gradient_clip_val", trainer.gradient_clip_val, gradient_clip_val)
        algorithm = _agreed("gradient_clip_algorithm", trainer.gradient_clip_algorithm, gradient_clip_algorithm)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise TypeError(f"gradient_clip_val must be a number, got {type(value).__name__}: {value!r}")
        algorithm = "norm" if algorithm is None else str(algorithm).lower()
        if algorithm not in ("norm", "value"):
            raise MisconfigurationException(f"gradient_clip_algorithm must be 'norm' or 'value', got {algorithm!r}")
        trainer._precision.clip_gradients(unwrap(optimizer), value, algorithm)

    def freeze(self) -> Self:
        """Let no parameter require gradients, and switch to evaluation mode."""
        return self.requires_grad_(False).eval()

    def unfreeze(self) -> Self:
        """Let all parameters require gradients, and switch to training mode."""
        return self.requires_grad_(True).train()

    def all_gather(self, data: Any, group: Any | None = None, sync_grads: bool = False) -> Any:
        """``data`` of all processes: each tensor gets a new first dimension, one entry per process.

        Args:
            data: a tensor, a number, or a collection of such.
            group: the processes; None for all.
            sync_grads: let gradients flow back to the processes.

        Returns:
            The same structure with tensors on the module's device; of a single process its own, as they are.
        """
        strategy, device = self.trainer.strategy, self.device

        def gathered(leaf: Any) -> Any:
            return strategy.all_gather(torch.as_tensor(leaf, device=device), group=group, sync_grads=sync_grads)

        return map_leaves(data, gathered, lambda leaf: isinstance(leaf, (Tensor, int, float)))

    # -- what it knows of its trainer ------------------------------------------------------------------------------

    @property
    def trainer(self) -> Any:
        """The trainer to which the module is attached.

        Raises:
            RuntimeError: it is attached to none.
        """
        if self._trainer is None:
            raise RuntimeError(f"{type(self).__name__} is not attached to a `Trainer`: pass it to its fit()")
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        self._trainer = trainer
        for child in self.children():
            if isinstance(child, LightningModule):
                child.trainer = trainer

    @property
    def current_epoch(self) -> int:
        """The trainer's current epoch, 0 without one."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """The trainer's optimiser steps so far, 0 without one."""
        return self._trainer.global_step if self._trainer is not None else 0

    @property
    def global_rank(self) -> int:
        """The rank of this process among all, 0 without a trainer."""
        return self._trainer.global_rank if self._trainer is not None else 0

    @property
    def local_rank(self) -> int:
        """The rank of this process on its node, 0 without a trainer."""
        return self._trainer.local_rank if self._trainer is not None else 0

    @property
    def logger(self) -> Any | None:
        """The trainer's first logger."""
        return self._trainer.logger if self._trainer is not None else None

    @property
    def loggers(self) -> list[Any]:
        """The trainer's loggers."""
        return self._trainer.loggers if self._trainer is not None else []

    @property
    def strict_loading(self) -> bool:
        """Whether ``load_state_dict`` demands that all keys match."""
        return True if self._strict_loading is None else self._strict_loading

    @strict_loading.setter
    def strict_loading(self, value: bool) -> None:
        self._strict_loading = value

    @property
    def device(self) -> torch.device:
        """The device of the parameters (or buffers); without any, the trainer's, else the CPU."""
        tensor = _some_tensor(self)
        if tensor is not None:
            return tensor.device
        device: torch.device = self._trainer.strategy.root_device if self._trainer is not None else torch.device("cpu")
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floating-point parameters; torch's default if there are none."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self.device.type == "cuda"

    # -- checkpoints and copies ------------------------------------------------------------------------------------

    @class_only
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | os.PathLike[str] | IO[bytes],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A module made again from the hyper-parameters in a checkpoint, with its weights.

        Args:
            checkpoint_path: a file that a Trainer of hookbus or Lightning wrote, or such a file opened for reading.
            map_location: where tensors go, as in ``torch.load``; None: where they were, or the CPU if that is missing.
            hparams_file: a ``.yaml`` or ``.csv`` file whose hyper-parameters take the place of those in the checkpoint.
            strict: whether all keys must match; None: as the module's ``strict_loading`` says.
            weights_only: refuse to unpickle anything but tensors and plain data; None means True.
            **kwargs: arguments of the constructor that win over saved ones.

        Raises:
            TypeError: the constructor demands an argument that is neither saved nor given.
            RuntimeError: the weights do not fit the module that was made; the message names each of them.
            ValueError: ``strict`` contradicts the module's own ``strict_loading``.
            pickle.UnpicklingError: the file holds more than ``weights_only`` lets through.
        """
        checkpoint = read_checkpoint(checkpoint_path, map_location, weights_only)
        if hparams_file is not None:
            checkpoint[cls.CHECKPOINT_HYPER_PARAMS_KEY] = hparams_from_file(hparams_file)
        saved = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
        made = cls(**constructor_arguments(cls, saved, checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME), kwargs))
        if strict is not None and made._strict_loading not in (None, strict):
            raise ValueError(
                f"load_from_checkpoint(strict={strict}) contradicts {cls.__name__}.strict_loading={made._strict_loading}; "
                "set it in one place"
            )
        made.configure_model()
        made.on_load_checkpoint(checkpoint)
        load_weights(made, checkpoint, str(checkpoint_path), strict)
        weights = checkpoint["state_dict"]
        device = next((value.device for value in weights.values() if isinstance(value, Tensor)), made.device)
        return made.to(device)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the trainer."""
        return {**self.__dict__, "_trainer": None}


def _some_tensor(module: torch.nn.Module) -> Tensor | None:
    """Any parameter or buffer, found much faster than by ``parameters()``; None if there is none."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            return tensor
    for child in module._modules.values():
        found = None if child is None else _some_tensor(child)
        if found is not None:
            return found
    return None


def _agreed(name: str, own: Any, asked: Any) -> Any:
    """The one value that the trainer's and the caller's amount to; None if neither has one."""
    if own is not None and asked is not None and own != asked:
        raise MisconfigurationException(
            f"clip_gradients: Trainer({name}={own!r}) and {name}={asked!r} here contradict each other; set it in one place"
        )
    return own if asked is None else asked


Module = LightningModule


# In a compiled step the compiler would look into the logging, find that numbers change, and start anew: called apart, it
# breaks the graph once and is left alone.
@_disable_dynamo
def _log_apart(module: LightningModule, *arguments: Any) -> None:
    LightningModule.log(module, *arguments)
