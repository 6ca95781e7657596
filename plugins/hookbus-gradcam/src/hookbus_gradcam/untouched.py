"""A forward pass that leaves no trace in the model: neither in buffers nor in flags, attributes and random streams."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookbus.bus.guard import undisturbed


@contextmanager
def untouched(model: nn.Module, *, evaluating: bool = True) -> Generator[None, None, None]:
    """Within the block the model works on copies of its buffers; afterwards everything is what it was.

    That is: buffers (the running statistics of batch normalization, say), ``training``, attributes, parameters and
    submodules of every module, and the random streams of Python, NumPy and torch. Copies instead of putting values back,
    because autograd counts writes: a backward pass that is still to come would refuse a buffer that was written to.
    What a forward pass writes into other objects that a module holds, such as lists, stays written.

    Within, gradients are recorded, also if the caller is in ``torch.no_grad`` or ``torch.inference_mode``, compiled models
    run uncompiled, and no copies of weights are left in the cache of autocast.

    Args:
        model: the network.
        evaluating: within the block ``training`` is False, for dropout and batch normalization. ``train`` and ``eval``
            are not called, for some modules do more in them.

    Raises:
        ValueError: the model has lazy modules that have not seen an input yet.
    """
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("the model has lazy modules without a shape; call it once before")
    with ExitStack() as stack:
        stack.enter_context(undisturbed())
        stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(model)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_uncached_casts())
        if _is_compiled(model):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        kept = [_Kept(module) for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        stack.callback(_restore, kept)
        copies: dict[int, Tensor] = {}
        for one in kept:
            one.work_on_copies(copies)
            if evaluating:
                vars(one.module)["training"] = False
        yield


class _Kept:
    """One module as it is now."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(vars(module))
        self.contents = {name: dict(vars(module)[name]) for name in ("_buffers", "_parameters", "_modules")}

    def work_on_copies(self, copies: dict[int, Tensor]) -> None:
        """Let the module have copies of its buffers, and of tensors made in inference mode, which autograd refuses."""
        buffers, parameters, attributes = self.module._buffers, self.module._parameters, vars(self.module)
        for name, buffer in list(buffers.items()):
            if buffer is not None:
                buffers[name] = _copy(buffer, copies)
        for name, parameter in list(parameters.items()):
            if parameter is not None and parameter.is_inference():
                parameters[name] = nn.Parameter(_copy(parameter, copies), requires_grad=False)
        for name, value in list(attributes.items()):
            if isinstance(value, Tensor) and value.is_inference():
                attributes[name] = _copy(value, copies)

    def restore(self) -> None:
        """Make the module what it was."""
        for name, content in self.contents.items():
            own = self.attributes[name]
            own.clear()
            own.update(content)
        attributes = vars(self.module)
        for name in attributes.keys() - self.attributes.keys():
            del attributes[name]
        attributes.update(self.attributes)


def _restore(kept: list[_Kept]) -> None:
    for one in kept:
        one.restore()


def _copy(tensor: Tensor, copies: dict[int, Tensor]) -> Tensor:
    """A copy, the same one for a tensor that stands in several places."""
    if id(tensor) not in copies:
        copies[id(tensor)] = tensor.detach().clone()
    return copies[id(tensor)]


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _uncached_casts() -> Generator[None, None, None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _is_compiled(model: nn.Module) -> bool:
    modules: list[Any] = list(model.modules())
    return any("_orig_mod" in m._modules or getattr(m, "_compiled_call_impl", None) is not None for m in modules)
