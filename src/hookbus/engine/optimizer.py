"""The optimiser as a module sees it: everything of the wrapped one, and a ``step`` that fires the hooks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer


class LightningOptimizer:
    """Wraps a torch optimiser, so that ``step()`` in a module goes through the precision and the hooks before a step.

    It is an instance of the wrapped optimiser's class as well, and has all its attributes.

    Args:
        optimizer: torch's own.
        step: does the stepping: called with the optimiser, the closure and further arguments.
        module: whose gradients :meth:`toggle_model` switches.
    """

    def __init__(
        self, optimizer: Optimizer, step: Callable[..., Any] | None = None, module: Callable[[], Any] | None = None
    ) -> None:
        self._optimizer = optimizer
        self._step = step
        self._module = module
        # ``isinstance(wrapped, torch.optim.SGD)`` is what scripts and packages ask.
        self.__class__ = type("Lightning" + type(optimizer).__name__, (type(self), type(optimizer)), {})

    @property
    def optimizer(self) -> Optimizer:
        """The wrapped optimiser."""
        return self._optimizer

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update the parameters, once the hooks ``on_before_optimizer_step`` and clipping have run.

        Args:
            closure: clears gradients, computes the loss and differentiates it; optional where this was done before.
            **kwargs: passed on to the optimiser's own ``step``.

        Raises:
            TypeError: ``closure`` cannot be called.
        """
        if closure is not None and not callable(closure):
            raise TypeError(f"closure must be callable, got {closure!r}; pass it as step(closure=…)")
        if self._step is None:
            return self._optimizer.step(closure, **kwargs)
        return self._step(self._optimizer, closure, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Generator[None, None, None]:
        """Only this optimiser's parameters require gradients within the block.

        Args:
            sync_grad: whether gradients are synchronised across processes; there is one process here.
        """
        module = self._module() if self._module is not None else None
        if module is not None:
            module.toggle_optimizer(self)
        try:
            yield
        finally:
            if module is not None:
                module.untoggle_optimizer(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self.__dict__["_optimizer"], name)

    def __getattribute__(self, name: str) -> Any:
        # The class mixed in by __init__ would answer for methods such as zero_grad, with attributes it does not have.
        own = object.__getattribute__(self, "__dict__")
        if name in _OWN or name.startswith("__") or name in own:
            return object.__getattribute__(self, name)
        return getattr(own["_optimizer"], name) if "_optimizer" in own else object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"LightningOptimizer({self._optimizer!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (LightningOptimizer, (self._optimizer,))


_OWN = frozenset({"optimizer", "step", "toggle_model", "_optimizer", "_step", "_module"})


def unwrap(optimizer: Any) -> Optimizer:
    """torch's own optimiser, whether ``optimizer`` is wrapped or not."""
    return optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
