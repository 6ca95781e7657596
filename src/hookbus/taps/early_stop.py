"""One forward pass that ends as soon as some modules have given what is wanted of them.

The end is an exception of a private kind, raised by a hook on the last of these modules. It is no ``Exception``: neither
``except Exception`` in a network sees it nor hooks that torch calls for errors (``always_call=True``). Our own hooks on the
modules that it passes through are told of it, as something has begun there that would never end.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookbus.engine.nested import map_leaves
from hookbus.taps import leaves
from hookbus.taps.errors import StaleCaptureError, TapError, TapWarning
from hookbus.taps.trampoline import Trampoline, current_backward, fresh_id, remove, take_off


class Stop(BaseException):
    """Ends a forward pass that has served its purpose.

    Args:
        run: whose pass it is.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(
            "hookbus.FeatureTap has what it wants of this forward pass, and ends it; let this exception through"
        )
        self.run = run


class Run:
    """One forward pass.

    Args:
        modules: what is wanted.
        call: of each module the result of the call with this number, from 0, or of all calls.
        stop: whether to end the pass once everything is there.
        detach: whether the results are cut off the autograd graph.
        clone: whether results are kept from what the rest of the pass does to them.

    Attributes:
        values: of each module, by identity, what is wanted of it so far.
        counts: how often each has been called.
    """

    def __init__(
        self, modules: Sequence[nn.Module], call: int | Literal["all"], *, stop: bool, detach: bool, clone: bool
    ) -> None:
        self.values: dict[int, list[Any]] = {id(module): [] for module in modules}
        self.counts = dict.fromkeys(self.values, 0)
        self._modules = modules
        self._call, self._detach, self._clone = call, detach, clone
        self._stops = stop and call != "all"
        self._missing = len(self.values)
        self._versions: list[tuple[nn.Module, Tensor, int]] = []
        self._handles: dict[int, RemovableHandle] = {}
        self._before: list[RemovableHandle] = []
        self._stop: Stop | None = None
        self._backward = current_backward()

    def call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call the network; no hook is left on it, whatever happens.

        Raises:
            TapError: the network has made another exception of the one that ends the pass.
            StaleCaptureError: without ``clone`` a result was overwritten before the pass was over.
        """
        running = _running()
        running.append(self)
        passed: list[nn.Module] = []
        try:
            self._put_hooks_on()
            model(*args, **kwargs)
        except Stop as stop:
            if stop.run is not self:
                raise
            passed = _passed_through(stop.__traceback__)
        except Exception as error:
            if self._stop is None:
                raise
            raise TapError(f"{self._caught_in(model)}, and raised {type(error).__name__}; {_LET_IT}") from error
        else:
            if self._stop is not None:
                warnings.warn(f"{self._caught_in(model)}, and went on; {_LET_IT}", TapWarning, stacklevel=5)
        finally:
            running.pop()
            for handle in (*self._handles.values(), *self._before):
                remove(handle)
            self._stop = None  # it holds all frames that it has passed through
        for module in passed[1:]:  # the first is the one that raised it, where all other hooks have been called
            for hook in list(module._forward_hooks.values()):
                owner = getattr(hook, "__self__", None)
                if isinstance(owner, Trampoline):
                    owner.cut_short()
        self._look_for_stale_values()

    # -- what the hooks do -------------------------------------------------------------------------------------------

    def be_last(self, module: nn.Module) -> None:
        """Let the hook of this run be called after all others on the module: they may change what it gives."""
        handle = self._handles.get(id(module))
        if handle is not None and handle.id in module._forward_hooks:
            module._forward_hooks.move_to_end(handle.id)  # type: ignore[attr-defined]

    def take(self, module: nn.Module, output: Any) -> Any:
        """The module has been called: keep what is wanted of it.

        Returns:
            What the network is to go on with, None for what there is.

        Raises:
            Stop: there is nothing more to wait for.
        """
        # Not ours: a pass inside of this one that another run, or a backward pass, has begun; or another thread's.
        running = _running()
        if not running or running[-1] is not self or current_backward() != self._backward:
            return None
        number = self.counts[id(module)]
        self.counts[id(module)] += 1
        if self._call not in (number, "all"):
            return None
        self._missing -= 1
        last = self._stops and not self._missing
        clone = self._clone and not last
        value, passed_on = _kept(output, detach=self._detach, clone=clone)
        self.values[id(module)].append(value)
        for _, tensor in leaves.tensors(value):
            if not tensor.is_inference():
                self._versions.append((module, tensor, tensor._version))
        if last:
            self._stop = Stop(self)
            raise self._stop
        return None if passed_on is output else passed_on

    # -- inside ------------------------------------------------------------------------------------------------------

    def _put_hooks_on(self) -> None:
        for module in self._modules:
            fresh_id(module._forward_pre_hooks)
            fresh_id(module._forward_hooks)
            self._before.append(module.register_forward_pre_hook(_BeLast(self).run))
            self._handles[id(module)] = module.register_forward_hook(_Take(self).run)

    def _caught_in(self, model: nn.Module) -> str:
        trace = self._stop.__traceback__ if self._stop is not None else None
        where = f"line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename}" if trace is not None else "its forward"
        return f"{type(model).__name__} caught the exception by which FeatureTap ends a forward pass early, at {where}"

    def _look_for_stale_values(self) -> None:
        for module, tensor, version in self._versions:
            if tensor._version != version:
                raise StaleCaptureError(
                    f"what a {type(module).__name__} gave to FeatureTap was overwritten by an operation in place that came "
                    "after it; use clone='auto', and detach=True if that is not enough"
                )


_LET_IT = "catch Exception there instead of BaseException, or use FeatureTap(…, stop=False)"


class _BeLast(Trampoline):
    """The pre-hook of a run on a module that is wanted."""

    __slots__ = ()

    def run(self, module: nn.Module, args: Any) -> None:
        """The module is about to be called."""
        run: Run | None = self.site()
        take_off(module, self) if run is None else run.be_last(module)


class _Take(Trampoline):
    """The hook of a run on a module that is wanted."""

    __slots__ = ()

    def run(self, module: nn.Module, args: Any, output: Any) -> Any:
        """The module has been called."""
        run: Run | None = self.site()
        return take_off(module, self) if run is None else run.take(module, output)


_local = threading.local()


def _running() -> list[Run]:
    """The runs of this thread, outermost first."""
    try:
        runs: list[Run] = _local.runs
    except AttributeError:
        runs = _local.runs = []
    return runs


def _kept(output: Any, *, detach: bool, clone: bool) -> tuple[Any, Any]:
    """What is kept of an output, and what the network goes on with."""
    if detach:
        return map_leaves(output, lambda t: t.detach().clone() if clone else t.detach()), output
    if not clone:
        return output, output
    # What is in the graph is kept itself, as later results are to be differentiable by it; the network gets the clone.
    return _cloned(output, lambda t: not t.requires_grad), _cloned(output, lambda t: t.requires_grad)


def _cloned(value: Any, which: Callable[[Tensor], bool]) -> Any:
    return map_leaves(value, lambda tensor: tensor.clone() if which(tensor) else tensor)


def _passed_through(trace: TracebackType | None) -> list[nn.Module]:
    """The modules whose calls an exception has ended, innermost first."""
    found: list[nn.Module] = []
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "_call_impl":
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                found.append(module)
        trace = trace.tb_next
    return found[::-1]
