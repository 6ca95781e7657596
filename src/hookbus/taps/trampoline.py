"""What is put on modules, tensors and parameters: small objects that lead to a site, and to nothing once it is gone.

A model may be copied, pickled or kept for years; none of that may copy a plugin or keep it alive. So a trampoline refers
weakly to its site, and a copy of it is an :class:`Inert`, which takes itself off the copied module at its first call.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookbus.taps import edits, leaves
from hookbus.taps.event import BeforeEvent, ForwardEvent, Moment, TapEvent

if TYPE_CHECKING:
    from hookbus.taps.site import Site
    from hookbus.taps.subscriber import Subscriber

#: -1 outside of a backward pass. A forward pass within one is a recomputation of activation checkpointing.
current_backward = torch._C._current_graph_task_id
is_traced = torch.compiler.is_dynamo_compiling
_new = object.__new__
#: In the place of what torch has left out: a hook that was taken off by another one is still called, but torch has
#: forgotten that it wants keyword arguments.
GONE: Any = object()


class Inert:
    """What is left of a trampoline in a copy of its module: nothing, and after the first call not even that."""

    def run(self, module: nn.Module, *args: Any) -> None:
        """Take this off the module."""
        take_off(module, self)

    def site(self) -> None:
        """There is none. A deep copy of ``trampoline.run`` is the trampoline's function, bound to this."""


class Trampoline:
    """Leads from a module to a site. What torch gets is its bound method ``run``, which is faster to call than an object.

    Args:
        site: what it leads to.
    """

    __slots__ = ("__weakref__", "site")

    def __init__(self, site: Any) -> None:
        self.site: weakref.ref[Any] = weakref.ref(site)

    def cut_short(self) -> None:
        """A call of the module has been ended early on purpose (:mod:`hookbus.taps.early_stop`); torch tells no hook."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Inert:
        return Inert()

    def __reduce__(self) -> tuple[type[Inert], tuple[()]]:
        return (Inert, ())


class Before(Trampoline):
    """The forward pre-hook of a site; written out like :class:`After`."""

    __slots__ = ()

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] = GONE) -> Any:
        """Count the call and tell whoever hears of it beforehand."""
        if is_traced():
            return _before_apart(self, module, args, kwargs)
        site: Site | None = self.site()
        if site is None:
            return take_off(module, self)
        if kwargs is GONE:
            return None
        clock, bundle = site.clock, site.first
        number, functions = clock.number, bundle.functions_before
        if functions is None or ((site.pass_number == number or not number) and current_backward() != -1):
            return site.before(args, kwargs)
        if site.pass_number == number and number:  # written out: site.count()
            site.calls += 1
            index = site.index
            site.index = index + 1
        else:
            index = site.count()
        if site.counts_before:
            site._stack.append(index)
        if functions:
            event = _new(BeforeEvent)
            event.site, event.moment, event.call_index = site, clock.moment, index
            event._args, event._kwargs, event._output = args, kwargs, None
            try:
                for function in functions:
                    answer = function(event)
                    if answer is not None:
                        raise subscriber_of(bundle.forward_pre, function).refusal(event, answer)
            except Exception as error:
                subscriber_of(bundle.forward_pre, function).blame(error, event)
                raise
        return None


class After(Trampoline):
    """The forward hook of a site. This is the hot path of observing activations, so it is written out in one piece."""

    __slots__ = ()

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = GONE) -> Any:
        """Tell whoever hears of outputs, and put hooks on the tensors for whoever hears of their gradients."""
        if is_traced():
            return _after_apart(self, module, args, kwargs, output)
        site: Site | None = self.site()
        if site is None:
            return take_off(module, self)
        if output is GONE:
            return None
        clock = site.clock
        number = clock.number
        # A pass is repeated after it has taken place, so the first call of a module within a pass repeats none.
        if (site.pass_number == number or not number) and current_backward() != -1:
            return site.repeated(args, kwargs, output)
        if site.counts_before:
            index = site.leave()
        else:  # written out: site.count()
            site.calls += 1
            if site.pass_number == number and number:
                index = site.index
                site.index = index + 1
            else:
                site.pass_number = number
                site.index = 1
                index = 0
        bundle = site.first
        event = _new(ForwardEvent)  # written out: ForwardEvent(site, clock.moment, index, args, kwargs, output)
        event.site, event.moment, event.call_index = site, clock.moment, index
        event._args, event._kwargs, event._output = args, kwargs, output
        functions = bundle.functions
        if functions is None:
            return site.after(bundle, event)
        try:
            for function in functions:
                answer = function(event)
                if answer is not None:
                    raise subscriber_of(bundle.forward, function).refusal(event, answer)
        except Exception as error:
            subscriber_of(bundle.forward, function).blame(error, event)
            raise
        return None


class Failed(Trampoline):
    """The forward hook that is called even when a module raises. It tells an error from a success by what is handled."""

    __slots__ = ()

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = GONE) -> Any:
        """Close the call that :class:`Before` has opened, and tell of its error if it ended in one."""
        if is_traced():
            return _failed_apart(self, module, args, kwargs, output)
        site: Site | None = self.site()
        if site is None:
            take_off(module, self)
        elif output is not GONE:
            site.failed(sys.exc_info()[1], args, kwargs)
        return None

    def cut_short(self) -> None:
        """The call is over, and no error."""
        site: Site | None = self.site()
        if site is not None:
            site.close_call()


def subscriber_of(subscribers: Iterable[Subscriber], function: Callable[[TapEvent], Any]) -> Subscriber:
    """Whose function this is."""
    return next(subscriber for subscriber in subscribers if subscriber.function is function)


def take_off(module: nn.Module, trampoline: object) -> None:
    """Take a trampoline that leads nowhere off a module, unless an error is being handled: torch may be walking then."""
    if is_traced() or sys.exc_info()[0] is not None:
        return
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is trampoline]:
            del hooks[key]
            for flags in (
                module._forward_hooks_with_kwargs,
                module._forward_hooks_always_called,
                module._forward_pre_hooks_with_kwargs,
            ):
                flags.pop(key, None)


class GradientHook:
    """On a tensor of the autograd graph: tells of its gradient. It lives as long as the graph."""

    __slots__ = ("call_index", "kind", "moment", "path", "recompute", "site", "subscribers")
    __torch_unserializable__ = True

    def __init__(
        self,
        kind: str,
        site: Site,
        subscribers: tuple[Subscriber, ...],
        moment: Moment,
        call: tuple[int, bool],
        path: Any,
    ) -> None:
        self.kind = kind
        self.site = weakref.ref(site)
        self.subscribers = subscribers
        self.moment = moment
        self.call_index, self.recompute = call
        self.path: leaves.Path = path

    def __call__(self, grad: Tensor | None) -> Tensor | None:
        """Hand the gradient round; the answer takes its place if somebody edits it."""
        site = self.site()
        if site is None:
            return None
        site.gradients += 1
        event = TapEvent.of(self.kind, site, self.moment, self.call_index, self.recompute)
        event._grad = grad
        event.path = self.path
        return edits.edit_gradient(self.subscribers, event)

    def __deepcopy__(self, memo: dict[int, Any]) -> _NoGradientHook:
        return _NoGradientHook()

    def __reduce__(self) -> tuple[type[_NoGradientHook], tuple[()]]:
        return (_NoGradientHook, ())


class _NoGradientHook:
    """What is left of a gradient hook in a copy."""

    def __call__(self, grad: Tensor | None) -> None:
        """Nothing."""


class ParameterHook(Trampoline):
    """On a parameter: tells that a gradient has been added to its ``.grad``.

    Attributes:
        brought: what this backward pass has brought so far: False if nothing has come through autograd, True if it came
            to an empty ``.grad``, and what came if something was there already.
    """

    __slots__ = ("aliases", "brought", "name", "parameter")

    def __init__(self, site: Site, names: tuple[str, ...], parameter: nn.Parameter) -> None:
        super().__init__(site)
        self.name, self.aliases = names[0], names[1:]
        self.parameter = weakref.ref(parameter)
        self.brought: Tensor | bool = False

    def put_on(self, parameter: nn.Parameter) -> None:
        """Put both hooks on."""
        parameter.register_hook(self.bring)  # type: ignore[no-untyped-call]
        parameter.register_post_accumulate_grad_hook(self.run)  # type: ignore[no-untyped-call]

    def take_off(self, parameter: nn.Parameter) -> None:
        """Take off those that are on. They are looked for, since a Ctrl-C within torch may have kept their handles back."""
        there: list[dict[int, Any]] = [parameter._backward_hooks or {}, parameter._post_accumulate_grad_hooks or {}]
        for hooks in there:
            for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                del hooks[key]

    @unserializable_hook  # type: ignore[untyped-decorator]
    def bring(self, grad: Tensor | None) -> None:
        """Note what is about to be added. Afterwards nobody could tell whether anything was there before."""
        parameter = self.parameter()
        if parameter is not None and grad is not None:
            # Who keeps a gradient that comes first makes torch copy it, so none is kept.
            self.brought = True if parameter.grad is None else grad

    def run(self, parameter: nn.Parameter) -> None:
        """Tell whoever hears of it."""
        site: Site | None = self.site()
        brought, self.brought = self.brought, False
        if site is not None:
            site.accumulated(parameter, self.name, self.aliases, brought)


def fresh_id(hooks: Mapping[int, Any]) -> None:
    """See to it that the next hook gets an id that is free in ``hooks``.

    A module that was unpickled brings its hooks under the ids that they had in another process. torch counts from zero
    in each, and would replace one of those by a new hook without a word.
    """
    highest = max(hooks, default=-1)
    if RemovableHandle.next_id <= highest:
        RemovableHandle.next_id = highest + 1


def remove(handle: RemovableHandle | None) -> None:
    """Take a hook off; nothing if it is gone already, or the module is."""
    if handle is not None:
        with contextlib.suppress(ReferenceError):
            handle.remove()


# In a compiled network a hook is traced into the graph, where the state that plugins keep would make torch.compile
# start anew at every call. Called apart, it breaks the graph once and is not looked into.
@_disable_dynamo
def _before_apart(trampoline: Before, *call: Any) -> Any:
    return Before.run(trampoline, *call)


@_disable_dynamo
def _after_apart(trampoline: After, *call: Any) -> Any:
    return After.run(trampoline, *call)


@_disable_dynamo
def _failed_apart(trampoline: Failed, *call: Any) -> Any:
    return Failed.run(trampoline, *call)


# On a module of a network that is compiled already the whole hook is kept from the compiler. The above are not enough there:
# after the break torch calls the hook by itself, and would compile it for nothing, or what it does on errors away.


class BeforeApart(Before):
    """The same in a compiled network."""

    __slots__ = ()
    run = _disable_dynamo(Before.run)


class AfterApart(After):
    """The same in a compiled network."""

    __slots__ = ()
    run = _disable_dynamo(After.run)


class FailedApart(Failed):
    """The same in a compiled network."""

    __slots__ = ()
    run = _disable_dynamo(Failed.run)
