"""``ModelPruning``: sets the least important weights to zero while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.nn.utils import prune

from hookbus.callback import NumberedCallback
from hookbus.callbacks.pruned_tensors import PrunedTensor, bring_back, made_permanent, owners, without_masks
from hookbus.callbacks.pruning_methods import Method, choose_method
from hookbus.errors import MisconfigurationException
from hookbus.markers import hookimpl

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class ModelPruning(NumberedCallback):
    """Prunes the module with ``torch.nn.utils.prune``, at the end of each epoch.

    Checkpoints hold the weights with zeros in them and no masks, unless ``make_pruning_permanent=False``; the masks are
    part of this callback's state, so that a resumed run prunes on.

    Args:
        pruning_fn: ``l1_unstructured``, ``random_unstructured``, ``ln_structured``, ``random_structured``, or a class
            derived from ``torch.nn.utils.prune.BasePruningMethod``.
        parameters_to_prune: pairs of a module and the name of one of its parameters; by default all of the module that
            are called as in ``parameter_names``.
        parameter_names: ``["weight", "bias"]``, or one of the two.
        use_global_unstructured: compare the weights of all parameters with each other, not each parameter's among
            themselves.
        amount: how much to prune each time: a share of what is left (float), a number of weights (int), or a function of
            the epoch that gives one.
        apply_pruning: whether to prune; may be a function of the epoch.
        make_pruning_permanent: write plain weights into checkpoints, and take the masks away when training ends.
        use_lottery_ticket_hypothesis: after pruning set the weights that are left back to what they were before
            training (https://arxiv.org/abs/1803.03635); may be a function of the epoch.
        resample_parameters: draw them anew by ``reset_parameters`` instead.
        pruning_dim: the dimension along which structured methods prune.
        pruning_norm: the norm of ``ln_structured``.
        verbose: print the sparsity: 0 not at all, 1 in all, 2 of each parameter.
        prune_on_train_epoch_end: prune at the end of the training epoch; False: at the end of the validation.

    Raises:
        MisconfigurationException: an argument is out of range or missing; or, when fit begins, the module does not have
            one of ``parameters_to_prune``.

    Example:
        >>> import torch, hookbus
        >>> from hookbus.callbacks import ModelPruning
        >>> class Line(hookbus.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(8, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return (self.layer(batch) - 1).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), 0.1)
        >>> model, pruning = Line(), ModelPruning("l1_unstructured", amount=0.5, parameter_names=["weight"])
        >>> quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
        >>> trainer = hookbus.Trainer(max_epochs=2, accelerator="cpu", callbacks=[pruning], **quiet)
        >>> trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 8)))
        >>> int((model.layer.weight == 0).sum())
        6
    """

    role: ClassVar[str] = "mutator"

    PARAMETER_NAMES = ("weight", "bias")

    def __init__(
        self,
        pruning_fn: Callable[..., Any] | str,
        parameters_to_prune: Sequence[tuple[nn.Module, str]] | None = (),
        parameter_names: list[str] | None = None,
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = True,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
    ) -> None:
        super().__init__()
        self._method: Method = choose_method(pruning_fn, use_global_unstructured, pruning_dim, pruning_norm)
        names = tuple(parameter_names or self.PARAMETER_NAMES)
        strange = [name for name in names if name not in self.PARAMETER_NAMES]
        if strange:
            raise MisconfigurationException(f"parameter_names may be 'weight' and 'bias', got {strange[0]!r}")
        if not callable(amount):
            _check_amount(amount)
        if verbose not in (0, 1, 2):
            raise MisconfigurationException(f"verbose must be 0, 1 or 2, got {verbose!r}")
        self._given = _checked_pairs(parameters_to_prune or ())
        self._names = names
        self.amount = amount
        self._apply_pruning = apply_pruning
        self._make_pruning_permanent = make_pruning_permanent
        self._use_lottery_ticket = use_lottery_ticket_hypothesis
        self._resample = resample_parameters
        self._verbose = verbose
        self._prune_on_train_epoch_end = prune_on_train_epoch_end
        self._tensors: list[PrunedTensor] = []
        self._originals: dict[str, Tensor] = {}
        self._blanks: dict[int, nn.Module] = {}
        self._loaded: dict[str, Any] | None = None

    def filter_parameters_to_prune(
        self, parameters_to_prune: Sequence[tuple[nn.Module, str]] = ()
    ) -> Sequence[tuple[nn.Module, str]]:
        """Override to leave out some of the parameters that would be pruned."""
        return parameters_to_prune

    @staticmethod
    def sanitize_parameters_to_prune(
        pl_module: pl.LightningModule,
        parameters_to_prune: Sequence[tuple[nn.Module, str]] = (),
        parameter_names: Sequence[str] = (),
    ) -> Sequence[tuple[nn.Module, str]]:
        """The pairs to prune: those given, or all that the module's parts have under the names.

        Raises:
            MisconfigurationException: they are no such pairs, or the module does not have one of them.
        """
        pairs = _checked_pairs(parameters_to_prune or ()) or [
            (module, name)
            for name in parameter_names or ModelPruning.PARAMETER_NAMES
            for module in owners(pl_module)
            if _is_parameter(module, name)
        ]
        parts = {id(module) for module in pl_module.modules()}
        strange = [f"{name!r} of {part}" for part, name in pairs if id(part) not in parts or not hasattr(part, name)]
        if strange:
            raise MisconfigurationException(
                f"parameters_to_prune has what {type(pl_module).__name__} does not have: {', '.join(strange)}"
            )
        return pairs

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the parameters, remember their values, and take up the masks of a run that goes on."""
        pairs = self.sanitize_parameters_to_prune(pl_module, self._given, self._names)
        paths = {id(module): path for path, module in pl_module.named_modules()}
        pairs = self.filter_parameters_to_prune(pairs)
        self._tensors = [PrunedTensor(module, name, paths[id(module)]) for module, name in pairs]
        state, self._loaded = self._loaded or {}, None
        if self._use_lottery_ticket:
            self._originals = {tensor.key: tensor.values.detach().clone() for tensor in self._tensors}
            self._originals.update(state.get("originals", {}))
        if self._use_lottery_ticket and self._resample:
            self._blanks = {id(module): copy.deepcopy(module) for module, _ in pairs}
        for tensor in self._tensors:
            if tensor.key in state.get("masks", {}):
                tensor.take_mask(state["masks"][tensor.key])

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prune after the training epoch."""
        if self._prune_on_train_epoch_end:
            self._run(trainer)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Prune after a validation of the fit."""
        if not self._prune_on_train_epoch_end and not trainer.sanity_checking and trainer.state.fn == "fit":
            self._run(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the masks away and leave the zeros."""
        if self._make_pruning_permanent:
            self.make_pruning_permanent(pl_module)

    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Take the masks away from a module and all within it, and leave the zeros."""
        for part in module.modules():
            for name in [name.removesuffix("_mask") for name in part._buffers if name.endswith("_mask")]:
                if f"{name}_orig" in part._parameters:
                    prune.remove(part, name)  # type: ignore[no-untyped-call]

    # -- pruning -------------------------------------------------------------------------------------------------------

    def _run(self, trainer: Any) -> None:
        """Prune if this is the epoch for it."""
        epoch = trainer.current_epoch
        amount = self.amount(epoch) if callable(self.amount) else self.amount
        if not _at(self._apply_pruning, epoch) or not amount:
            return
        _check_amount(amount)
        before = [tensor.zeros for tensor in self._tensors]
        self.apply_pruning(amount)
        if _at(self._use_lottery_ticket, epoch):
            self.apply_lottery_ticket_hypothesis()
        if self._verbose:
            trainer.print("\n".join(self._report(before)))

    def apply_pruning(self, amount: int | float) -> None:
        """Prune the chosen parameters by this amount."""
        self._method.apply([(tensor.module, tensor.name) for tensor in self._tensors], amount)

    def apply_lottery_ticket_hypothesis(self) -> None:
        """Give the weights that are left the values they had before training, or new ones."""
        drawn = {
            key: blank for key, blank in self._blanks.items() if callable(getattr(blank, "reset_parameters", None))
        }
        for blank in drawn.values():
            blank.reset_parameters()  # type: ignore[operator]
        for tensor in self._tensors:
            new = drawn.get(id(tensor.module))
            tensor.set_values(self._originals[tensor.key] if new is None else getattr(new, tensor.name))

    def _report(self, before: list[int]) -> list[str]:
        """Lines about the sparsity."""
        rows = [("all", sum(before), sum(t.zeros for t in self._tensors), sum(t.size for t in self._tensors))]
        if self._verbose == 2:
            rows += [(t.key, zeros, t.zeros, t.size) for t, zeros in zip(self._tensors, before, strict=True)]
        return [
            f"pruned with {self._method.name}, {what}: {old}/{size} ({old / size:.2%}) -> {new}/{size} ({new / size:.2%})"
            for what, old, new, size in rows
        ]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @hookimpl(tryfirst=True)
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the weights with zeros in them, and no masks; the live module keeps its own."""
        if self._make_pruning_permanent:
            checkpoint["state_dict"] = made_permanent(checkpoint["state_dict"])

    @hookimpl(tryfirst=True)
    def on_save_weights(self, checkpoint: dict[str, Any]) -> None:
        """The same where only weights are saved."""
        if self._make_pruning_permanent:
            checkpoint["state_dict"] = made_permanent(checkpoint["state_dict"])

    @hookimpl(tryfirst=True)  # before the weights are loaded
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Bring weights that were saved with masks into the form that the module has now."""
        if trainer.state.fn == "fit":  # masks are taken up when the optimisers have their states
            self.make_pruning_permanent(pl_module)
            checkpoint["state_dict"] = without_masks(checkpoint["state_dict"])
        else:
            bring_back(checkpoint, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The masks, and for lottery tickets the values from before training, by parameter."""
        masks = {tensor.key: tensor.mask for tensor in self._tensors if tensor.mask is not None}
        return {"masks": masks, "originals": self._originals}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take these over when fit begins."""
        self._loaded = state_dict


def _at(choice: Any, epoch: int) -> bool:
    return bool(choice(epoch) if callable(choice) else choice)


def _is_parameter(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), nn.Parameter) or f"{name}_orig" in module._parameters


def _check_amount(amount: Any) -> None:
    """Refuse what is neither a share nor a number of weights.

    Raises:
        MisconfigurationException: it is none.
    """
    number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not number or amount < 0 or (isinstance(amount, float) and amount > 1):
        raise MisconfigurationException(
            f"amount must be a share from 0.0 to 1.0, a number of weights, or a function of the epoch; got {amount!r}"
        )


def _checked_pairs(pairs: Any) -> list[tuple[nn.Module, str]]:
    """``parameters_to_prune`` as a list.

    Raises:
        MisconfigurationException: it has another shape.
    """
    right = isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], nn.Module)
        and isinstance(pair[1], str)
        for pair in pairs
    )
    if not right:
        raise MisconfigurationException(
            "parameters_to_prune must be pairs of a module and a parameter's name, such as [(model.layer, 'weight')]; got "
            f"{pairs!r}"
        )
    return [tuple(pair) for pair in pairs]
