"""The optimiser as a module sees it: everything of the wrapped one, and a ``step`` that fires the hooks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from hookbus.errors import MisconfigurationException

#: What belongs to the wrapper; every other attribute is read from, and written to, the wrapped optimiser.
_OWN = frozenset({"_optimizer", "_strategy_step", "_module", "step", "replaced"})


class LightningOptimizer:
    """Wraps a torch optimiser, so that ``step()`` in a module goes through the precision and the hooks before a step.

    It stands for the wrapped optimiser in every respect: it has its attributes, and passes for an instance of its
    class. Copies and pickles hold the optimiser without the trainer, and step it directly.

    Args:
        optimizer: torch's own.
        step: does the stepping: called with the optimiser, the closure and further arguments. None: the optimiser's own.
        module: gives the module whose gradients :meth:`toggle_model` switches.

    Attributes:
        replaced: whether somebody has put another function in the place of ``step``.
    """

    replaced = False

    def __init__(
        self, optimizer: Optimizer, step: Callable[..., Any] | None = None, module: Callable[[], Any] | None = None
    ) -> None:
        self._optimizer = optimizer
        self._strategy_step = step
        self._module = module

    @property
    def optimizer(self) -> Optimizer:
        """The wrapped optimiser."""
        return self._optimizer

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # ``isinstance(wrapped, torch.optim.SGD)`` is what torch's schedulers, scripts and packages ask.
        return type(self._optimizer)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update the parameters, once the hook ``on_before_optimizer_step`` and clipping have run.

        Args:
            closure: clears gradients, computes the loss and differentiates it; optional where this was done before.
            **kwargs: passed on to the optimiser's own ``step``.

        Raises:
            MisconfigurationException: ``closure`` cannot be called.
        """
        if closure is not None and not callable(closure):
            raise MisconfigurationException(
                f"optimizer.step(closure) needs a closure that can be called, got {closure!r}"
            )
        if self._strategy_step is None:
            return self._optimizer.step(closure, **kwargs)
        return self._strategy_step(self._optimizer, closure, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Generator[None, None, None]:
        """Only this optimiser's parameters require gradients within the block.

        Args:
            sync_grad: False leaves gradients unsynchronised across processes within the block.

        Raises:
            RuntimeError: no trainer made this wrapper, so it belongs to no module.
        """
        module = self._module() if self._module is not None else None
        if module is None:
            raise RuntimeError(
                "toggle_model works on the optimizers that self.optimizers() of a module in training gives"
            )
        with module.toggled_optimizer(self), module.trainer.strategy.block_backward_sync(not sync_grad):
            yield

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            raise AttributeError(f"LightningOptimizer has no attribute {name!r}")
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # torch's schedulers replace ``step`` by one that counts; that must be ours, the rest is the optimiser's.
        if name in _OWN:
            object.__setattr__(self, name, value)
            if name == "step":
                object.__setattr__(self, "replaced", True)
        else:
            setattr(self._optimizer, name, value)

    def __repr__(self) -> str:
        return f"Lightning{self._optimizer!r}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return LightningOptimizer, (self._optimizer,)


def unwrap(optimizer: Any) -> Optimizer:
    """torch's own optimiser, whether ``optimizer`` is wrapped or not."""
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of all groups of an optimiser."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
