"""``BaseFinetuning`` and ``BackboneFinetuning``: freeze parts of a module, and let them train later on."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from hookbus.callback import Callback
from hookbus.callbacks.made_optimizers import optimizers_in
from hookbus.callbacks.weight_mirror import other_name
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_Modules = nn.Module | Iterable[Any]


def multiplicative(epoch: int) -> float:
    """The default growth of a backbone's rate: it doubles at each epoch."""
    del epoch
    return 2.0


class BaseFinetuning(Callback):
    """Base class of schedules that freeze parts of a module and unfreeze them later.

    Override :meth:`freeze_before_training`, called before the optimisers are made, and :meth:`finetune_function`, called
    at the start of each epoch for each optimiser. In ``configure_optimizers`` give the optimiser only the parameters
    that require gradients. A resumed run has the parameter groups, and what is frozen, as they were when it was saved.

    Example:
        >>> import torch
        >>> from hookbus.callbacks import BaseFinetuning
        >>> class UnfreezeEncoder(BaseFinetuning):
        ...     def freeze_before_training(self, pl_module):
        ...         self.freeze(pl_module.encoder)
        ...     def finetune_function(self, pl_module, epoch, optimizer):
        ...         if epoch == 5:
        ...             self.unfreeze_and_add_param_group(pl_module.encoder, optimizer, lr=1e-4)
        >>> module = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 1)})
        >>> BaseFinetuning.freeze(module["encoder"])
        >>> [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        ['head.weight', 'head.bias']
    """

    role: ClassVar[str] = "mutator"

    def __init__(self) -> None:
        super().__init__()
        self._internal_optimizer_metadata: dict[int, list[dict[str, Any]]] = {}
        self._frozen: dict[str, list[str]] = {}
        self._restarting = False
        self._following: tuple[Any, list[Any]] | None = None

    # -- to be overridden ----------------------------------------------------------------------------------------------

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        """Freeze what is not to be trained from the start."""
        raise NotImplementedError(f"{type(self).__name__} defines no freeze_before_training(self, pl_module)")

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze what is to be trained from this epoch on."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no finetune_function(self, pl_module, epoch, optimizer)"
        )

    # -- tools for that ------------------------------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: _Modules) -> list[nn.Module]:
        """The modules, and those within them, that have parameters of their own or no children.

        Args:
            modules: a module, or collections of modules, nested as they may be.
        """
        if isinstance(modules, nn.ModuleDict):
            modules = modules.values()
        if isinstance(modules, Iterable):
            found = [inner for module in modules for inner in BaseFinetuning.flatten_modules(module)]
        else:
            found = list(modules.modules())
        return [module for module in found if not list(module.children()) or module._parameters]

    @staticmethod
    def filter_params(
        modules: _Modules, train_bn: bool = True, requires_grad: bool = True
    ) -> Generator[nn.Parameter, None, None]:
        """The parameters that require gradients, or those that do not.

        Args:
            modules: see :meth:`flatten_modules`.
            train_bn: False leaves those of batch norms out.
            requires_grad: which ones.
        """
        for module in BaseFinetuning.flatten_modules(modules):
            if isinstance(module, _BatchNorm) and not train_bn:
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad == requires_grad:
                    yield parameter

    @staticmethod
    def make_trainable(modules: _Modules) -> None:
        """Unfreeze: parameters require gradients, batch norms follow the data."""
        for module in BaseFinetuning.flatten_modules(modules):
            if isinstance(module, _BatchNorm):
                module.track_running_stats = True
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = True

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Freeze the module's own parameters, and what a batch norm follows."""
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad = False

    @staticmethod
    def freeze(modules: _Modules, train_bn: bool = True) -> None:
        """Freeze.

        Args:
            modules: see :meth:`flatten_modules`.
            train_bn: let batch norms train all the same.
        """
        for module in BaseFinetuning.flatten_modules(modules):
            if isinstance(module, _BatchNorm) and train_bn:
                BaseFinetuning.make_trainable(module)
            else:
                BaseFinetuning.freeze_module(module)

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of ``params`` that the optimiser does not have yet; a warning tells of the others."""
        present = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        params = list(params)
        absent = [parameter for parameter in params if id(parameter) not in present]
        if len(absent) < len(params):
            warnings.warn(
                f"{len(params) - len(absent)} parameter(s) to unfreeze are in the optimizer already and stay in their group; "
                f"make it of those alone that require gradients: {type(optimizer).__name__}(filter(lambda p: "
                "p.requires_grad, self.parameters()), …)",
                UserWarning,
                stacklevel=3,
            )
        return absent

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: _Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Unfreeze, and let the optimiser train the parameters as a new group.

        Args:
            modules: see :meth:`flatten_modules`.
            optimizer: gets the group.
            lr: its rate; None: that of the first group, divided by ``initial_denom_lr``.
            initial_denom_lr: see ``lr``.
            train_bn: False leaves parameters of batch norms out of the group.
        """
        BaseFinetuning.make_trainable(modules)
        rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
        params = BaseFinetuning.filter_on_optimizer(optimizer, BaseFinetuning.filter_params(modules, train_bn))
        if params:
            optimizer.add_param_group({"params": params, "lr": rate})

    # -- hooks ---------------------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def configure_optimizers(self, pl_module: pl.LightningModule) -> Generator[None, Any, Any]:
        """Freeze before the optimisers are made; if a run goes on, give them their groups back before their state."""
        self.freeze_before_training(pl_module)
        answer = yield
        if self._restarting:
            self._restarting = False
            self._restore(pl_module, list(optimizers_in(answer)))
        return answer

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let schedules know of the groups that a resumed run brought back."""
        _extend_schedules(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ask :meth:`finetune_function` for each optimiser."""
        for optimizer in trainer.optimizers:
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
        self._following = (pl_module, trainer.optimizers)
        self._note()
        _extend_schedules(trainer)

    def _note(self) -> None:
        """Note the groups and what is frozen, whoever made them so."""
        if self._following is None:
            return
        pl_module, optimizers = self._following
        names = {id(parameter): name for name, parameter in pl_module.named_parameters()}
        for index, optimizer in enumerate(optimizers):
            self._internal_optimizer_metadata[index] = [
                {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
                for group in optimizer.param_groups
            ]
        self._frozen = _frozen_parts(pl_module)

    @hookimpl(specname="on_run_close")
    def _let_go(self) -> None:
        self._following = None

    def _restore(self, pl_module: Any, optimizers: list[Any]) -> None:
        """Set groups and freezing to what they were."""
        parameters = dict(pl_module.named_parameters())
        own = {name: name if name in parameters else other_name(name) for name in self._saved_names()}
        for index, groups in self._internal_optimizer_metadata.items():
            missing = sorted(n for group in groups for n in group["params"] if own[n] not in parameters)
            if missing or index >= len(optimizers):
                raise MisconfigurationException(
                    f"the checkpoint has {len(self._internal_optimizer_metadata)} optimizer(s) with parameters that are not "
                    f"here: {', '.join(missing) or 'an optimizer is missing'}; resume with the module that was saved"
                )
            optimizer = optimizers[index]
            optimizer.param_groups.clear()
            for group in groups:
                optimizer.add_param_group({**group, "params": [parameters[own[name]] for name in group["params"]]})
        if self._frozen:
            frozen = {own[name] for name in self._frozen["parameters"]}
            for name, parameter in parameters.items():
                parameter.requires_grad = name not in frozen
            frozen = set(self._frozen["batch_norms"])
            for name, module in pl_module.named_modules():
                if isinstance(module, _BatchNorm):
                    module.track_running_stats = name not in frozen

    def _saved_names(self) -> set[str]:
        """Of parameters; while a module is pruned they end in ``_orig``, and before that they do not."""
        groups = itertools.chain.from_iterable(self._internal_optimizer_metadata.values())
        return {name for group in groups for name in group["params"]} | set(self._frozen.get("parameters", ()))

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The parameter groups, by the names of their parameters, and what is frozen."""
        self._note()
        return {"internal_optimizer_metadata": self._internal_optimizer_metadata, "frozen": self._frozen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take both over when the optimisers are made."""
        self._restarting = True
        self._internal_optimizer_metadata = state_dict["internal_optimizer_metadata"]
        self._frozen = state_dict.get("frozen", {})
        if (
            not self._frozen and self._internal_optimizer_metadata
        ):  # Lightning's: what an optimiser has is to be trained
            warnings.warn(
                "the checkpoint does not say what was frozen: its freeze_before_training is applied anew",
                UserWarning,
                stacklevel=2,
            )


class BackboneFinetuning(BaseFinetuning):
    """Freezes ``backbone`` of the module, and trains it from a certain epoch on, with a rate of its own.

    The rate grows at each epoch, until it is that of the rest.

    Args:
        unfreeze_backbone_at_epoch: from which epoch on the backbone is trained, counted from 0.
        lambda_func: gives the factor by which its rate grows in an epoch.
        backbone_initial_ratio_lr: its first rate, as a share of the rate of the first parameter group.
        backbone_initial_lr: its first rate, in place of a share.
        should_align: do not let it grow beyond the rate of the first group.
        initial_denom_lr: kept for Lightning's signature; the two arguments above decide.
        train_bn: train the batch norms of the backbone, too, once it is unfrozen.
        verbose: print the rates at each epoch.
        rounding: their digits.

    Attributes:
        previous_backbone_lr: the backbone's rate; None before it is unfrozen.

    Raises:
        MisconfigurationException: an argument is out of range; or, when fit begins, the module has no ``backbone``.

    Example:
        >>> from hookbus.callbacks import BackboneFinetuning
        >>> finetuning = BackboneFinetuning(unfreeze_backbone_at_epoch=3, lambda_func=lambda epoch: 1.5)
        >>> finetuning.previous_backbone_lr is None
        True
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 10e-2,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        epoch = unfreeze_backbone_at_epoch
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise MisconfigurationException(f"unfreeze_backbone_at_epoch must be an epoch, 0 or more, got {epoch!r}")
        if not callable(lambda_func):
            raise MisconfigurationException(f"lambda_func must be a function of the epoch, got {lambda_func!r}")
        rates = {
            "backbone_initial_ratio_lr": backbone_initial_ratio_lr,
            "backbone_initial_lr": backbone_initial_lr,
            "initial_denom_lr": initial_denom_lr,
        }
        for name, value in rates.items():
            if value is None and name == "backbone_initial_lr":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise MisconfigurationException(f"{name} must be a number above 0, got {value!r}")
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.previous_backbone_lr: float | None = None

    def freeze_before_training(self, pl_module: pl.LightningModule) -> None:
        """Freeze the backbone.

        Raises:
            MisconfigurationException: there is none.
        """
        if not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            raise MisconfigurationException(
                f"BackboneFinetuning trains the submodule `backbone`, which {type(pl_module).__name__} does not have: name "
                "it so, or derive from BaseFinetuning"
            )
        self.freeze(cast(nn.Module, pl_module.backbone))

    def finetune_function(self, pl_module: pl.LightningModule, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone at its epoch; let its rate grow after it."""
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        rate = optimizer.param_groups[0]["lr"]
        if epoch == self.unfreeze_backbone_at_epoch:
            first = self.backbone_initial_lr
            grown = rate * self.backbone_initial_ratio_lr if first is None else first
            self.unfreeze_and_add_param_group(
                cast(nn.Module, pl_module.backbone), optimizer, grown, self.initial_denom_lr, self.train_bn
            )
        else:
            assert self.previous_backbone_lr is not None
            grown = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            grown = min(grown, rate) if self.should_align else grown
            optimizer.param_groups[-1]["lr"] = grown
        self.previous_backbone_lr = grown
        if self.verbose:
            pl_module.print(
                f"learning rate {round(rate, self.rounding)}, of the backbone {round(grown, self.rounding)}"
            )

    def state_dict(self) -> dict[str, Any]:
        """That of :class:`BaseFinetuning`, and the backbone's rate."""
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
        super().load_state_dict(state_dict)


def _frozen_parts(module: nn.Module) -> dict[str, list[str]]:
    """The names of parameters that require no gradients, and of batch norms that do not follow the data."""
    return {
        "parameters": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "batch_norms": [
            name
            for name, part in module.named_modules()
            if isinstance(part, _BatchNorm) and not part.track_running_stats
        ],
    }


def _extend_schedules(trainer: Any) -> None:
    """Let schedules cover groups that were added after they were made: each in proportion to its first rate.

    torch's schedules that keep the first rates know those of the groups that there were when they were made, and refuse
    to step with more.
    """
    for config in trainer.lr_scheduler_configs:
        scheduler = config.scheduler
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
        bases: Any = getattr(scheduler, "base_lrs", None)
        factors: Any = getattr(scheduler, "lr_lambdas", None)
        for group in groups[len(bases) :] if isinstance(bases, list) else ():
            bases.append(group.setdefault("initial_lr", group["lr"]))
        rates = [group["swa_lr"] for group in groups if "swa_lr" in group]  # SWALR's
        for group in groups if rates else ():
            group.setdefault("swa_lr", rates[0])
        for _ in groups[len(factors) :] if isinstance(factors, list) else ():
            factors.append(factors[0])
