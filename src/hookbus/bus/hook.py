"""One hook of a bus: pluggy's ``HookCaller`` with an order of the bus's own and a compiled way to call it."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import pluggy

from hookbus.bus import dispatch
from hookbus.bus.errors import UnknownHookError
from hookbus.bus.order import Position, Ranked, arrange, constrain, flags, place
from hookbus.bus.specification import Specification, specification
from hookbus.dialects import Implementation
from hookbus.hookspecs import nearest

if TYPE_CHECKING:
    from hookbus.bus.bus import Bus


class Fire:
    """The hot path: ``bus.fire.on_train_start(trainer, pl_module)`` takes a hook's arguments in the spec's order.

    Results, order and exceptions are those of ``bus.hook.on_train_start(trainer=…, pl_module=…)``. A reference to
    ``bus.fire.x`` stays valid however often plugins come and go.
    """

    if TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Callable[..., Any]: ...

    else:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            guess = nearest(name, tuple(vars(self)))
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise UnknownHookError(f"no hook {name!r} is specified on this bus{hint}")


class Hook(pluggy.HookCaller):
    """All implementations of one hook, in call order.

    Attributes:
        is_tap: whether this is a point inside the network, whose implementations :mod:`hookbus.taps` calls one by one.
        watchers: called, without arguments, whenever the implementations or the way to call them have changed.
    """

    def __init__(self, name: str, bus: Bus) -> None:
        super().__init__(name, bus._hookexec)
        self._bus = bus
        self._specification: Specification | None = None
        self._shape: dispatch.Shape | None = None
        self._fire: types.FunctionType | None = None
        self._known: frozenset[str] = frozenset()
        self._required: tuple[str, ...] = ()
        self._exact = -1  # number of arguments, where none has a default: so many are all of them, or an error
        self._defaults: dict[str, object] = {}
        self._old_style = False
        self.is_tap = False
        self._direct: types.FunctionType | None = None
        self.watchers: list[Callable[[], None]] = []

    def set_specification(self, specmodule_or_class: Any, spec_opts: pluggy.HookspecOpts) -> None:
        """Take a specification, from which the compiled function gets its signature.

        Raises:
            ValueError: there is one already, or it cannot be compiled; nothing is changed then.
        """
        super().set_specification(specmodule_or_class, spec_opts)
        try:
            made = specification(self.spec)
        except ValueError:
            self.spec = self._call_history = None
            raise
        self.specify(made)

    def specify(self, made: Specification) -> None:
        """Take a specification that has been read already."""
        self.spec = made.spec
        if made.is_historic:
            self._call_history = []
        function = dispatch.stable_function(made.shape, made.stub, made.defaults, self._compile)
        self._specification, self._shape, self._fire, self.is_tap = made, made.shape, function, made.is_tap
        self._known, self._required, self._exact = made.known, made.spec.argnames, made.exact
        self._defaults = made.spec.kwargdefaults
        vars(self._bus.fire)[self.name] = function
        self.changed()

    @property
    def shape(self) -> dispatch.Shape | None:
        """How this hook is called and answered; None without a specification."""
        return self._shape

    @property
    def spec_options(self) -> Mapping[str, Any]:
        """The options of the specification, empty without one."""
        return {} if self.spec is None else cast(Mapping[str, Any], self.spec.opts)

    def calls(self) -> list[tuple[dispatch.Call, Ranked]]:
        """What a call of this hook runs, in order: for those who decide for each implementation whether to call it."""
        return [(self._call(entry.name, entry.implementation), entry) for entry in self.entries()]

    def __call__(self, **kwargs: object) -> Any:
        """Call the hook with keyword arguments; see :class:`Fire` for the faster way.

        Arguments that the hook does not specify reach implementations that have a default for them, as in pluggy.

        Raises:
            TypeError: a specified argument is missing (pluggy only warns).
        """
        if self._direct is not None and (len(kwargs) == self._exact or kwargs.keys() <= self._known):
            return self._direct(**kwargs)
        if self._shape is None or self.is_historic():
            return super().__call__(**kwargs)
        missing = [name for name in self._required if name not in kwargs]
        if missing:
            raise TypeError(f"hook {self.name!r} is called without its argument(s) {', '.join(missing)}")
        kwargs = {**self._defaults, **kwargs}
        return self._hookexec(self.name, self._hookimpls.copy(), kwargs, self._shape.firstresult)

    def _add_hookimpl(self, hookimpl: pluggy.HookImpl) -> None:
        if self._bus.list_order and not (_asks(hookimpl) or any(map(_asks, self._hookimpls))):
            self._hookimpls.insert(self._insertion_point(hookimpl) if self._hookimpls else 0, hookimpl)
            self.changed()
            return
        super()._add_hookimpl(hookimpl)
        try:
            self.rearrange()
        except Exception:
            self._hookimpls.remove(hookimpl)
            raise
        self.changed()

    def _insertion_point(self, hookimpl: pluggy.HookImpl) -> int:
        """Where it belongs in pluggy's list, last one first; looks at few of the others, so that thousands may come."""
        mine = place(self._ranked(hookimpl))
        low, high = 0, len(self._hookimpls)
        while low < high:
            middle = (low + high) // 2
            if place(self._ranked(self._hookimpls[middle])) > mine:
                low = middle + 1
            else:
                high = middle
        return low

    def __len__(self) -> int:
        """The number of implementations."""
        return len(self._hookimpls)

    def __bool__(self) -> bool:
        """True: a hook without implementations is a hook."""
        return True

    def _remove_plugin(self, plugin: object) -> None:
        # By identity: pluggy would remove those of an equal plugin, too.
        remaining = [impl for impl in self._hookimpls if impl.plugin is not plugin]
        if len(remaining) == len(self._hookimpls):
            raise ValueError(f"plugin {plugin!r} not found")
        self._hookimpls[:] = remaining
        self.changed()

    def remove(self, hookimpl: pluggy.HookImpl) -> None:
        """Take one implementation out."""
        self._hookimpls.remove(hookimpl)
        self.changed()

    def part(self, names: Collection[str]) -> Callable[..., Any]:
        """A function that calls this hook with those implementations only that belong to the named plugins."""
        made = self._specification
        assert made is not None
        function = dispatch.stable_function(made.shape, made.stub, made.defaults, lambda: None)
        dispatch.compile_calls(function, made.shape, [call for call, entry in self.calls() if entry.name in names])
        return function

    def sole_function(self) -> Callable[..., Any] | None:
        """The one function that a call runs; None if there are more, or none, or somebody watches the calls."""
        if len(self._hookimpls) != 1 or self._bus.monitored or self._bus.timing is not None:
            return None
        made = self._bus._of(self._hookimpls[0])
        return None if made.wrapper else made.function

    def remember(self, kwargs: Mapping[str, object]) -> None:
        """Keep a historic call for implementations to come, without calling those that there are."""
        assert self._call_history is not None
        self._call_history.append((kwargs, None))

    def forget(self, plugin: object) -> None:
        """Drop the historic calls about a plugin that is gone, which would keep it alive."""
        if self._call_history:
            self._call_history[:] = [call for call in self._call_history if call[0].get("plugin") is not plugin]

    def rearrange(self) -> None:
        """Put the implementations in call order anew, after one was added or places have changed."""
        entries = self.entries()
        impls = {id(entry): impl for entry, impl in zip(entries, reversed(self._hookimpls), strict=True)}
        ordered = (arrange if self._bus.list_order else constrain)(self.name, entries)
        # pluggy walks this list backwards.
        now = [impls[id(entry)] for entry in reversed(ordered)]
        if now != self._hookimpls:
            self._hookimpls[:] = now
            self.changed()

    def changed(self) -> None:
        """Let the next call compile the hook anew."""
        made, impls, historic = self._specification, self._hookimpls, self._call_history is not None
        self._old_style = bool(impls) and any(impl.hookwrapper for impl in impls)
        self._direct = None if self._old_style or historic else self._fire
        if made is not None and self._fire is not None:
            self._fire.__code__ = made.stub if impls or historic or self._bus.monitored else made.idle
        if self.watchers:
            for tell in tuple(self.watchers):
                tell()

    def entries(self) -> list[Ranked]:
        """The implementations in call order."""
        return [self._ranked(impl) for impl in reversed(self._hookimpls)]

    def _ranked(self, hookimpl: pluggy.HookImpl) -> Ranked:
        return self._bus._ranked(hookimpl, self.spec_options.get("owners"))

    def positions(self) -> list[Position]:
        """The call order as rows for people."""
        return [
            Position(
                i, entry.name, flags(entry.implementation), entry.implementation.args, entry.implementation.location
            )
            for i, entry in enumerate(self.entries(), start=1)
        ]

    def _compile(self) -> None:
        function, shape = self._fire, self._shape
        assert function is not None
        assert shape is not None
        if self.is_historic():
            dispatch.compile_fallback(function, shape, lambda kwargs: self.call_historic(kwargs=kwargs))
            return
        if self._bus.monitored or self._old_style:
            dispatch.compile_fallback(function, shape, self._call_plainly)
            return
        calls = [self._call(impl.plugin_name, self._bus._of(impl)) for impl in reversed(self._hookimpls)]
        dispatch.compile_calls(function, shape, calls)

    def _call(self, plugin: str, made: Implementation) -> dispatch.Call:
        run, wrapper = made.function, made.wrapper
        if self._bus.timing is not None and not wrapper:
            run = self._bus.timing.timed(self.name, plugin, run)
        shape = self._shape
        assert shape is not None
        keywords = tuple(name for name in made.optional if name in shape.parameters) if made.optional else ()
        return dispatch.Call(plugin, run, made.args, keywords, wrapper, made.silent, made.location)

    def _call_plainly(self, kwargs: dict[str, Any]) -> Any:
        assert self._shape is not None
        return self._hookexec(self.name, self._hookimpls.copy(), kwargs, self._shape.firstresult)


def _asks(hookimpl: pluggy.HookImpl) -> bool:
    """Whether it wants to come before or after others."""
    options = cast(Mapping[str, Any], hookimpl.opts)
    return bool(options and (options.get("before") or options.get("after")))
