"""One module with taps: what is due there, the hooks that this needs, and what happens when they fire."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from hookbus.engine.nested import map_leaves
from hookbus.taps import edits, leaves
from hookbus.taps.errors import EditError
from hookbus.taps.event import BeforeEvent, Moment, TapEvent
from hookbus.taps.select import Place
from hookbus.taps.subscriber import Subscriber
from hookbus.taps.trampoline import (
    After,
    AfterApart,
    Before,
    BeforeApart,
    Failed,
    FailedApart,
    GradientHook,
    ParameterHook,
    current_backward,
    fresh_id,
    remove,
)


class Clock:
    """Which forward pass is under way; shared by all sites of a network.

    Attributes:
        moment: of the current pass, or of the last one.
        number: of the current pass, from 1; 0 between passes.
        last: of the last pass that has begun.
        open: calls that somebody wants to hear of if they raise, outermost first.
    """

    def __init__(self) -> None:
        self.moment = Moment()
        self.number = 0
        self.last = 0
        self.open: list[OpenCall] = []

    def begin(self, moment: Moment) -> None:
        """A forward pass begins."""
        self.moment = moment
        self.last += 1
        self.number = self.last
        self.open.clear()


class OpenCall:
    """A call of a module that has begun.

    Attributes:
        site: of the module.
        event: what to tell if it raises.
        handled: the exception that was being handled when it began; not its own.
    """

    __slots__ = ("event", "handled", "site")

    def __init__(self, site: Site, event: TapEvent, handled: BaseException | None) -> None:
        self.site, self.event, self.handled = site, event, handled


class Bundle:
    """Who is to be told at one site, by kind, in order.

    Attributes:
        before: whoever hears of arguments or edits them.
        after: whoever hears of outputs, edits them, or hears of their gradients.
        functions: to be called after a call, if that is all there is to do; None if it is not.
        functions_before: to be called before a call, if that is all there is to do; None if it is not.
        editors: whoever edits gradients of inputs.
    """

    __slots__ = (
        "after",
        "before",
        "editors",
        "errors",
        "forward",
        "forward_pre",
        "functions",
        "functions_before",
        "grad_input",
        "grad_output",
    )

    def __init__(self, subscribers: tuple[Subscriber, ...] = ()) -> None:
        def of(kind: str) -> tuple[Subscriber, ...]:
            return tuple(subscriber for subscriber in subscribers if subscriber.kind == kind)

        self.forward_pre, self.forward = of("forward_pre"), of("forward")
        self.grad_output, self.grad_input, self.errors = of("grad_output"), of("grad_input"), of("forward_error")
        self.before = bool(self.forward_pre or self.grad_input or self.errors)
        self.editors = tuple(subscriber for subscriber in self.grad_input if subscriber.selection.edits)
        self.after = bool(self.forward or self.grad_output or self.editors)
        changed = any(subscriber.selection.edits for subscriber in self.forward)
        watched = bool(self.grad_output or self.editors)
        self.functions = None if changed or watched else tuple(subscriber.function for subscriber in self.forward)
        edited = any(subscriber.selection.edits for subscriber in self.forward_pre)
        more = edited or self.grad_input or self.errors
        self.functions_before = None if more else tuple(subscriber.function for subscriber in self.forward_pre)


NOBODY = Bundle()

_PLAIN = (Before, After, Failed)
_APART = (BeforeApart, AfterApart, FailedApart)


def _alias(tensor: Tensor) -> Tensor:
    """Another tensor with the same memory, whose gradient is what its own users contribute."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor


class Site:
    """One module of the network on which there are taps.

    Attributes:
        name, aliases, module: see :class:`hookbus.taps.select.Place`.
        clock: of the network.
        first: who is told of ordinary forward passes now.
        again: who is told of those that activation checkpointing repeats.
        calls: how often the module has been called while somebody was listening.
        gradients: how many gradients of its outputs, inputs and parameters have come.
        pinned: whether hooks stay although nobody is told at the moment (a compiled network would not notice new ones).
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_again_index",
        "_again_pass",
        "_before",
        "_failed",
        "_leaves_of",
        "_lent",
        "_on_leaves",
        "_stack",
        "_watched",
        "again",
        "aliases",
        "calls",
        "clock",
        "counts_before",
        "first",
        "gradients",
        "index",
        "module",
        "name",
        "parameter_hooks",
        "parameter_taps",
        "pass_number",
        "pinned",
    )

    def __init__(self, place: Place, clock: Clock) -> None:
        self.name, self.aliases, self.module = place.name, place.aliases, place.module
        self.clock = clock
        self.first = self.again = NOBODY
        self.calls = self.gradients = 0
        self.pinned = self.counts_before = False
        self.parameter_taps: tuple[Subscriber, ...] = ()
        self.parameter_hooks: dict[str, tuple[nn.Parameter, ParameterHook]] = {}
        self._before: RemovableHandle | None = None
        self._after: RemovableHandle | None = None
        self._failed: RemovableHandle | None = None
        self.pass_number = self._again_pass = -1
        self.index = self._again_index = 0
        self._stack: list[int] = []
        self._lent: list[list[tuple[Tensor, int]]] = []
        self._watched: dict[int, weakref.ref[Tensor]] = {}
        self._on_leaves: list[RemovableHandle] = []
        self._leaves_of = 0

    # -- hooks on and off --------------------------------------------------------------------------------------------

    def tell(
        self, first: Bundle, again: Bundle, parameters: tuple[Subscriber, ...], names: Mapping[int, Any] | None
    ) -> None:
        """Set who is told, and put on or take off hooks accordingly.

        Args:
            first: of ordinary forward passes.
            again: of repeated ones.
            parameters: of gradients of the module's own parameters.
            names: all names of each parameter of the network, by identity; None to leave the hooks on parameters as they
                are, if anybody still hears of them.
        """
        self.first, self.again, self.parameter_taps = first, again, parameters
        before, after, failed = _APART if self.pinned else _PLAIN
        if self._before is None and (first.before or again.before):
            fresh_id(self.module._forward_pre_hooks)
            self._before = self.module.register_forward_pre_hook(before(self).run, with_kwargs=True)
        if self._after is None and (first.after or again.after):
            fresh_id(self.module._forward_hooks)
            self._after = self.module.register_forward_hook(after(self).run, with_kwargs=True)
        if self._failed is None and first.errors:
            fresh_id(self.module._forward_hooks)
            self._failed = self.module.register_forward_hook(failed(self).run, with_kwargs=True, always_call=True)
        if not self.pinned:
            if self._before is not None and not (first.before or again.before):
                remove(self._before)
                self._before = None
            if self._after is not None and not (first.after or again.after):
                remove(self._after)
                self._after = None
            if self._failed is not None and not first.errors:
                remove(self._failed)
                self._failed = None
        self.counts_before = self._before is not None and self._after is not None
        if names is not None or not parameters:
            self._attend_parameters(names or {})

    def silence(self) -> None:
        """Tell nobody any more, without touching the hooks: for when torch is walking over them."""
        self.first = self.again = NOBODY

    def clear(self) -> None:
        """Tell nobody any more, and take everything off."""
        self.pinned = False
        self.tell(NOBODY, NOBODY, (), {})
        self._stack.clear()
        self._release_leaves()

    @property
    def hooked_before(self) -> bool:
        """Whether there is a pre-hook on the module."""
        return self._before is not None

    def _attend_parameters(self, names: Mapping[int, Any]) -> None:
        """Put hooks on the parameters that there are now: those of yesterday may have been replaced."""
        wanted: dict[str, nn.Parameter] = {}
        if self.parameter_taps:
            for name, parameter in self.module._parameters.items():
                if parameter is None or is_lazy(parameter):
                    continue  # one that is lazy gets its hooks when there is something to it
                if parameter.requires_grad and parameter.is_leaf:
                    all_names = names.get(id(parameter), ())
                    if all_names and all_names[0] == (f"{self.name}.{name}" if self.name else name):
                        wanted[name] = parameter
        for name, (parameter, hook) in list(self.parameter_hooks.items()):
            if wanted.get(name) is not parameter:
                hook.take_off(parameter)
                del self.parameter_hooks[name]
        for name, parameter in wanted.items():
            if name not in self.parameter_hooks:
                hook = ParameterHook(self, names[id(parameter)], parameter)
                self.parameter_hooks[name] = (parameter, hook)  # before it is on: a Ctrl-C may come in between
                hook.put_on(parameter)

    # -- counting calls ----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Count a call that begins or, if nobody hears of its beginning, ends; its number within the forward pass."""
        self.calls += 1
        number = self.clock.number
        if self.pass_number != number or not number:  # number 0: called directly, not by the network
            self.pass_number = number
            self.index = 0
            self._stack.clear()
            self._lent.clear()
            self._watched.clear()
        self.index += 1
        return self.index - 1

    def leave(self) -> int:
        """The number of the call that ends, if its beginning was counted; else count it now."""
        return self._stack.pop() if self._stack else self.count()

    def _count_again(self) -> int:
        """Count a call that activation checkpointing repeats."""
        if self._again_pass != self.clock.last:
            self._again_pass, self._again_index = self.clock.last, 0
        self._again_index += 1
        return self._again_index - 1

    def count_for(self, kind: str) -> int:
        """How much there has been here of what a kind of subscriber hears of."""
        return self.gradients if kind in ("grad_output", "grad_input", "parameter_grad") else self.calls

    # -- what happens when hooks fire ----------------------------------------------------------------------------------

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The module is about to be called."""
        again = current_backward() != -1
        bundle = self.again if again else self.first
        index = self._count_again() if again else self.count()
        if self.counts_before:
            self._stack.append(index)
        if not bundle.before:
            return None
        event = BeforeEvent(self, self.clock.moment, index, args, kwargs)
        if again:
            event.recompute = True
        edited = edits.edit_arguments(bundle.forward_pre, event)
        if bundle.grad_input and torch.is_grad_enabled():
            edited = self._hook_inputs(bundle.grad_input, edited)
        if bundle.errors:
            self._open(edited)
        return None if edited is event else (edited._args, dict(edited._kwargs))

    def after(self, bundle: Bundle, event: TapEvent) -> Any:
        """The module has been called, and there is more to do than to tell observers."""
        if bundle.editors and self._lent:
            self._take_back(bundle.editors, event)
        output = edits.edit_output(bundle.forward, event)
        if bundle.grad_output and torch.is_grad_enabled():
            call = (event.call_index, event.recompute)
            for path, tensor in leaves.tensors(output):
                if tensor.requires_grad:
                    self._hook(tensor, GradientHook("grad_output", self, bundle.grad_output, event.moment, call, path))
        return None if output is event._output else output

    def repeated(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Activation checkpointing has called the module again, in the middle of a backward pass."""
        index = self._stack.pop() if self.counts_before and self._stack else self._count_again()
        if not self.again.after:
            return None
        return self.after(
            self.again, TapEvent.of("forward", self, self.clock.moment, index, True, args, kwargs, output)
        )

    def _open(self, event: TapEvent) -> None:
        failure = TapEvent.of(
            "forward_error", self, event.moment, event.call_index, event.recompute, event._args, event._kwargs
        )
        self.clock.open.append(OpenCall(self, failure, sys.exc_info()[1]))

    def failed(self, handled: BaseException | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The module has been left, by an exception if another one is being handled than when it was entered."""
        own = self.close_call()
        if own is None:  # a pre-hook of somebody else has raised before ours was called
            event = TapEvent.of("forward_error", self, self.clock.moment, self.index, False, args, kwargs)
            own = OpenCall(self, event, None)
        if handled is not None and handled is not own.handled:
            if self.counts_before and self._stack:
                self._stack.pop()
            self.tell_of_failure(own, handled)

    def close_call(self) -> OpenCall | None:
        """The innermost call of the module that somebody wants to hear of if it raises; it is over now."""
        calls = self.clock.open
        own = next((call for call in reversed(calls) if call.site is self), None)
        while own is not None and calls.pop() is not own:
            pass
        return own

    def tell_of_failure(self, call: OpenCall, error: BaseException) -> None:
        """Tell whoever hears of errors."""
        if type(error).__name__ == "_StopRecomputationError":  # how checkpointing ends a repeated pass early
            return
        event = call.event
        event.exception = error
        for subscriber in self.first.errors:
            subscriber.observe(event)

    def accumulated(self, parameter: nn.Parameter, name: str, aliases: tuple[str, ...], brought: Tensor | bool) -> None:
        """A gradient has been added to a parameter; ``brought`` is as of :class:`ParameterHook`."""
        self.gradients += 1
        event = TapEvent.of("parameter_grad", self, self.clock.moment, 0)
        event.own_name, event.own_aliases = name, aliases
        event.parameter, event._grad, event._brought = parameter, parameter.grad, brought
        edits.edit_gradient(self.parameter_taps, event)

    def _hook_inputs(self, subscribers: tuple[Subscriber, ...], event: TapEvent) -> TapEvent:
        """Put hooks on the inputs that require gradients.

        Observers get a hook on the very tensor; only one where activation checkpointing repeats the pass with it. For
        editors the module gets an alias of it, so that what they change is the contribution of this module and not that
        of the tensor's other users.
        """
        call = (event.call_index, event.recompute)
        observers = tuple(s for s in subscribers if not s.selection.edits)
        editors = tuple(s for s in subscribers if s.selection.edits)

        def hook(value: Any, chosen: tuple[Subscriber, ...]) -> None:
            for path, tensor in leaves.tensors(value):
                if tensor.requires_grad:
                    self._hook(tensor, GradientHook("grad_input", self, chosen, event.moment, call, path))

        if observers:
            own = [t for value in (event._args, event._kwargs) for _, t in leaves.tensors(value) if t.requires_grad]
            if not event.recompute:
                self._watched.update((id(tensor), weakref.ref(tensor)) for tensor in own)
            if not event.recompute or not all(self._is_watched(tensor) for tensor in own):
                hook(event._args, observers)
                hook(event._kwargs, observers)
        if editors:
            event = event.copy()
            event._args, event._kwargs = map_leaves(event._args, _alias), map_leaves(dict(event._kwargs), _alias)
            hook(event._args, editors)
            hook(event._kwargs, editors)
            aliases = [t for value in (event._args, event._kwargs) for _, t in leaves.tensors(value) if t.requires_grad]
            self._lent.append([(tensor, tensor._version) for tensor in aliases])
        return event

    def _hook(self, tensor: Tensor, hook: GradientHook) -> None:
        """Put a hook on a tensor of the graph; on a leaf of it, which outlives the graph, until the next pass."""
        handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            if self._leaves_of != self.clock.last:
                self._leaves_of = self.clock.last
                self._release_leaves()
            self._on_leaves.append(handle)

    def _release_leaves(self) -> None:
        """Take the hooks of earlier passes off tensors that are given to the network again and again."""
        for handle in self._on_leaves:
            remove(handle)
        self._on_leaves.clear()

    def _is_watched(self, tensor: Tensor) -> bool:
        """Whether observers of its gradient have been put on a tensor in the pass that is repeated now."""
        watched = self._watched.get(id(tensor))
        return watched is not None and watched() is tensor

    def _take_back(self, editors: tuple[Subscriber, ...], event: TapEvent) -> None:
        """See to it that the module has not worked in place on what it was lent.

        Raises:
            EditError: it has; the gradient then takes a way past the alias, and would not be edited.
        """
        if any(tensor._version != version for tensor, version in self._lent.pop()):
            raise EditError(
                f"{editors[0].who} edits the gradient of what {self.name!r} is given, and that module works on it in "
                "place; edit the gradient of the output of the module before it instead (kinds='grad_output')"
            )
