"""Numerical precision: autocast, gradient scaling, and the order of what surrounds an optimiser's step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from hookbus.engine.nested import map_leaves
from hookbus.engine.optimizer import parameters_of
from hookbus.errors import MisconfigurationException

_ALIASES: Final = {
    "32": "32-true",
    "64": "64-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
}
_DTYPES: Final = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "16-true": torch.float16,
    "bf16-true": torch.bfloat16,
}
_NOTHING: Final = contextlib.nullcontext()


def make_precision(precision: int | str | Precision, device: torch.device) -> Precision:
    """The precision that Lightning's argument means.

    Args:
        precision: ``32-true``, ``64-true``, ``16-true``, ``bf16-true``, ``16-mixed`` or ``bf16-mixed``; ``32``, ``64``,
            ``16`` and ``bf16`` are short for the first, second and the two mixed ones.
        device: where the module will be.

    Raises:
        MisconfigurationException: for any other word.
    """
    if isinstance(precision, Precision):
        return precision
    word = _ALIASES.get(str(precision), str(precision))
    if word == "32-true":
        return Precision()
    if word in _DTYPES:
        return TruePrecision(word)
    if word in ("16-mixed", "bf16-mixed"):
        return MixedPrecision(word, device)
    raise MisconfigurationException(
        f"precision must be one of {', '.join((*_DTYPES, '16-mixed', 'bf16-mixed'))} (short: 16, bf16, 32, 64), "
        f"got {precision!r}"
    )


class Precision:
    """Full 32-bit precision; the base of the others.

    Attributes:
        precision: its name.
        wraps_steps: whether :meth:`forward_context` does anything.
        converts_input: whether :meth:`convert_input` does anything.
    """

    precision: str = "32-true"
    wraps_steps: bool = False
    converts_input: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.wraps_steps = cls.forward_context is not Precision.forward_context
        cls.converts_input = cls.convert_input is not Precision.convert_input

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module in this precision, changed in place."""
        return module

    def convert_input(self, batch: Any) -> Any:
        """A batch in this precision."""
        return batch

    def init_context(self) -> AbstractContextManager[Any]:
        """Around the creation of modules."""
        return _NOTHING

    def forward_context(self) -> AbstractContextManager[Any]:
        """Around a step."""
        return _NOTHING

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to differentiate."""
        return loss

    def run_optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        after_closure: Callable[[], None],
        *,
        automatic: bool,
        **kwargs: Any,
    ) -> Any:
        """Let ``optimizer`` step.

        Args:
            optimizer: torch's own.
            closure: computes loss and gradients; called as often as the optimiser likes.
            after_closure: called after each, with unscaled gradients: hooks and clipping.
            automatic: whether the loop, not the module, computes the loss.
            **kwargs: passed on to ``optimizer.step``.

        Returns:
            What ``optimizer.step`` returns.
        """

        if _evaluates_once(optimizer):
            # The same calls in the same order, without torch's machinery for closures around the whole step.
            result = closure()
            after_closure()
            optimizer.step(**kwargs)
            return result

        def both() -> Any:
            result = closure()
            after_closure()
            return result

        return optimizer.step(both, **kwargs)

    def steps_plainly(self, optimizer: Optimizer) -> bool:
        """Whether the loss is not scaled, and a step is the closure, ``after_closure`` and ``optimizer.step()``, each once."""
        kind = type(self)
        as_here = kind.run_optimizer_step is Precision.run_optimizer_step and kind.scale is Precision.scale
        return as_here and _evaluates_once(optimizer)

    def clip_gradients(self, optimizer: Optimizer, value: float | None, algorithm: str | None = "norm") -> None:
        """Clip the gradients of the optimiser's parameters; nothing for None and 0.

        Args:
            optimizer: whose parameters.
            value: the bound.
            algorithm: ``norm`` (of all together, None means this too) or ``value`` (of each element).
        """
        if value is None or value <= 0:
            return
        parameters = [p for p in parameters_of(optimizer) if p.grad is not None]
        if not parameters:  # torch's clip_grad_value_ fails on none
            return
        if algorithm == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_value=value)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, value)

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs; empty if there is nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""


def _evaluates_once(optimizer: Optimizer) -> bool:
    """Whether ``optimizer.step(closure)`` calls its closure once, first of all: torch's own do, but for LBFGS."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim.") and kind is not LBFGS


class TruePrecision(Precision):
    """Module, inputs and new tensors in one dtype throughout.

    Args:
        precision: ``64-true``, ``16-true`` or ``bf16-true``.
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.dtype = _DTYPES[precision]

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module's floating-point parameters and buffers in the dtype."""
        return module.to(dtype=self.dtype)

    def convert_input(self, batch: Any) -> Any:
        """A batch with its floating-point tensors in the dtype."""
        return map_leaves(batch, lambda tensor: _cast(tensor, self.dtype))

    def init_context(self) -> AbstractContextManager[Any]:
        """New tensors get the dtype."""
        return _default_dtype(self.dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        """New tensors get the dtype."""
        return _default_dtype(self.dtype)


class MixedPrecision(Precision):
    """Parameters in 32 bit, most of the computation in 16; losses of ``16-mixed`` are scaled on a GPU.

    Args:
        precision: ``16-mixed`` or ``bf16-mixed``.
        device: where the module is. On a CPU torch offers bfloat16 and, from 2.3 on, float16.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        self.precision = precision
        self._device = device.type
        self._dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
        self.scaler = torch.amp.GradScaler(device.type) if precision == "16-mixed" else None

    def forward_context(self) -> AbstractContextManager[Any]:
        """torch's autocast, without the weight cache, as Lightning has it for validations within a training."""
        return torch.autocast(self._device, dtype=self._dtype, cache_enabled=False)

    def steps_plainly(self, optimizer: Optimizer) -> bool:
        """As the base does; never with a scaler."""
        return type(self) is MixedPrecision and self.scaler is None and _evaluates_once(optimizer)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale of the gradient scaler, if there is one."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def run_optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        after_closure: Callable[[], None],
        *,
        automatic: bool,
        **kwargs: Any,
    ) -> Any:
        """As the base does; with a scaler, unscale before ``after_closure`` and skip steps with infinite gradients.

        Raises:
            MisconfigurationException: for LBFGS with a scaler, which evaluates its closure several times.
        """
        if self.scaler is None:
            return super().run_optimizer_step(optimizer, closure, after_closure, automatic=automatic, **kwargs)
        if isinstance(optimizer, LBFGS):
            raise MisconfigurationException(
                f"LBFGS cannot be used with precision={self.precision!r}: use bf16-mixed or 32-true"
            )
        result = closure()
        skipped = automatic and result is None
        if not skipped:
            self.scaler.unscale_(optimizer)
        after_closure()
        if skipped:
            return result
        outcome = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        """The scaler's."""
        return self.scaler.state_dict() if self.scaler is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The scaler's."""
        if self.scaler is not None:
            self.scaler.load_state_dict(state)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
