"""The bus: who takes part, under which name, in which order. A ``pluggy.PluginManager`` that people can look into."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from hookbus.bus import copying, plain, validate
from hookbus.bus.errors import EarlierError, RegistrationError, UnknownHookError
from hookbus.bus.filters import FILTERS, filtered
from hookbus.bus.guard import guarded
from hookbus.bus.hook import Fire, Hook
from hookbus.bus.order import Position, Ranked
from hookbus.bus.registration import Entry, Registration
from hookbus.bus.specification import of_catalogue
from hookbus.bus.timing import Timing
from hookbus.dialects import Implementation, callback, module, native
from hookbus.hookspecs import SPEC_MODULES
from hookbus.markers import OWNERS, PROJECT

if TYPE_CHECKING:
    from hookbus.bus.loading import LoadReport


class Bus(pluggy.PluginManager):
    """A plugin manager whose hooks are compiled, whose order is visible, and which names what is wrong.

    ``Bus("anything")`` stands in for ``pluggy.PluginManager("anything")``: empty, last registered is called first.
    :meth:`load` gives hookbus's own: with the catalogue of lifecycle points, called in list order, and with the
    plugins that are installed.

    Args:
        project_name: the name of the markers that count, as in pluggy.
        list_order: first registered is called first, by kind of owner; otherwise pluggy's last-registered-first.
        closed: a hook that nobody has specified is an error at registration, not only at :meth:`check_pending`.

    Attributes:
        hook: pluggy's public way to call: ``bus.hook.on_train_start(trainer=…, pl_module=…)``.
        fire: the fast way: ``bus.fire.on_train_start(trainer, pl_module)``, arguments in the spec's order.
        report: what was discovered and loaded; None unless made by :meth:`load`.
        timing: the clock of :meth:`timed`, None while it is off.
        several_loaders: whether callbacks and modules are told of the loader that do not demand it; see
            :meth:`expect_loaders`.
    """

    def __init__(self, project_name: str = PROJECT, *, list_order: bool = False, closed: bool = False) -> None:
        super().__init__(project_name)
        self.fire = Fire()
        self.list_order = list_order
        self.closed = closed
        self.report: LoadReport | None = None
        self.timing: Timing | None = None
        self.several_loaders = True
        self.monitored = 0
        self._specifications: list[Any] = []
        self._arguments: dict[str, tuple[str, ...]] | None = None
        self._registrations: dict[str, Registration] = {}
        self._entries: dict[pluggy.HookImpl, Entry] = {}
        self._sequence = 0
        self._given_rank: int | None = None
        self._taps: Callable[[], Any] | None = None

    @classmethod
    def load(
        cls,
        plugins: Sequence[str | object] = (),
        *,
        arguments: Sequence[str] = (),
        strict: bool | None = None,
        autoload: bool | None = None,
    ) -> Bus:
        """hookbus's bus: the catalogue, and the plugins that are installed or asked for.

        Args:
            plugins: objects to register, and strings as ``-p`` takes them: ``"pkg.mod"``, ``"name"``, ``"no:name"``.
            arguments: such strings from a command line.
            strict: raise at a broken plugin instead of reporting it and going on; None: as configured.
            autoload: False leaves out what is only installed; None: as configured.

        Raises:
            UnknownPluginError: a name that no plugin has, with the nearest one.
            PluginLoadError: a broken plugin, if strict.
            NotAPluginError: an object that implements no hook.
        """
        from hookbus.bus.config import read_selection
        from hookbus.bus.loading import load_plugins
        from hookbus.bus.unpack import refuse_useless

        bus = cls(PROJECT, list_order=True, closed=True)
        for specs in SPEC_MODULES:
            bus.add_hookspecs(specs)
        words = [plugin for plugin in plugins if isinstance(plugin, str)]
        selection = read_selection(arguments=arguments, trainer=words, strict=strict, autoload=autoload)
        bus.report = load_plugins(bus, selection)
        for plugin in plugins:
            if not isinstance(plugin, str):
                if not (module.is_module(plugin) or module.is_datamodule(plugin)):
                    refuse_useless(plugin, bus.parse_hookimpl_opts, vars(bus.hook))
                bus.register(plugin, owner="plugin", source="plugins=[…]")
        return bus

    # -- registration ------------------------------------------------------------------------------------------------

    def register(
        self,
        plugin: object,
        name: str | None = None,
        *,
        owner: str = "callback",
        source: str = "code",
        implementations: Iterable[Implementation] | None = None,
        announce: bool = True,
    ) -> str | None:
        """Let ``plugin`` take part, whole or not at all.

        Args:
            plugin: a module, class or instance with ``@hookimpl`` functions, a callback, a module or data module.
            name: its name; by default made from the object (:meth:`get_canonical_name`).
            owner: its kind, which decides its place: see :data:`hookbus.markers.OWNERS`.
            source: where it came from, for listings.
            implementations: what it implements, if not to be found out by its shape.
            announce: whether ``on_plugin_registered`` is called.

        Returns:
            The name; None if that name is blocked (or ``plugin`` is None).

        Raises:
            RegistrationError: every problem of the plugin, each with hook, file and line; nothing is registered.
            ValueError: the name is taken, or the plugin is registered already.
        """
        if plugin is None:
            return None
        if owner not in OWNERS:
            raise ValueError(f"owner must be one of {', '.join(OWNERS)}, got {owner!r}")
        name = name or self.get_canonical_name(plugin)
        if self.is_blocked(name):
            return None
        validate.check_names(self._registrations, plugin, name, source)
        role = validate.role(plugin, name, owner, strict=self.closed)
        made = list(self._read(plugin, name) if implementations is None else implementations)
        validate.check(self, plugin, name, role, made)
        state_key = validate.checked_state_key(self._registrations, plugin, name)
        unverified = [implementation for implementation in made if not self._is_specified(implementation.hook)]
        self._sequence += 1
        registration = Registration(plugin, name, owner, source, role, self._sequence, state_key=state_key)
        if callback.is_callback(plugin):
            registration.snapshot = callback.MethodSnapshot(plugin)
            if self.closed:
                callback.warn_of_misspelt(plugin, tuple(vars(self.hook)))
        hooks = len(vars(self.hook))
        self._name2plugin[name] = plugin
        self._registrations[name] = registration
        try:
            for implementation in made:
                if implementation in unverified:  # replaying a historic call may have brought its specification since
                    validate.check(self, plugin, name, role, [implementation])
                self._add(registration, implementation)
            heralds: Hook | None = getattr(self.hook, "on_plugin_registered", None)
            if announce and heralds is not None and heralds.is_historic():
                heralds.call_historic(kwargs={"plugin": plugin, "name": name})
        except BaseException:
            self.unregister(plugin, name)
            for new in list(vars(self.hook))[hooks:]:
                if not self._hook(new).get_hookimpls() and not self._is_specified(new):
                    delattr(self.hook, new)
            raise
        return name

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """Take a plugin and its implementations out, as pluggy does."""
        if name is None and plugin is not None:
            name = self.get_name(plugin)
        gone = super().unregister(plugin, name)
        registration = self._registrations.pop(name, None) if name is not None else None
        if registration is not None:
            for entry in registration.entries:
                self._entries.pop(entry.impl, None)
            for hook in _hooks(self):
                if hook.name in _ABOUT_PLUGINS:
                    hook.forget(registration.plugin)
        return gone

    @contextlib.contextmanager
    def registered(self, plugin: object, name: str | None = None, **options: Any) -> Generator[str | None, None, None]:
        """Register ``plugin`` for the time of a ``with`` block."""
        given = self.register(plugin, name, **options)
        try:
            yield given
        finally:
            if given is not None and self.get_plugin(given) is plugin:
                self.unregister(plugin)

    def sync(self, owner: str, plugins: Sequence[object], *, source: str = "code") -> None:
        """Make the registrations of one kind of owner equal ``plugins``, in their order.

        For a list that its owner changes at will (``trainer.callbacks``): those no longer in it are unregistered, new
        ones registered, moved ones moved; one whose methods were assigned or patched since is read again. Costs a few
        microseconds per plugin when nothing has changed.
        """
        wanted: dict[int, object] = {}
        for plugin in plugins:
            if id(plugin) in wanted:
                warnings.warn(
                    f"{type(plugin).__name__} stands in the list twice; it takes part once", UserWarning, stacklevel=2
                )
            wanted[id(plugin)] = plugin
        for registration in list(self._registrations.values()):
            if registration.listed and registration.owner == owner and id(registration.plugin) not in wanted:
                self.unregister(registration.plugin, registration.name)
        present = {id(registration.plugin): registration for registration in self._registrations.values()}
        moved = False
        for place, (key, plugin) in enumerate(wanted.items()):
            known = present.get(key)
            if known is None:
                given = self.register(plugin, self._free_name(plugin), owner=owner, source=source)
                if given is None:
                    continue  # blocked
                known = self._registrations[given]
                known.listed, known.position, moved = True, place, True
            elif known.snapshot is not None and known.snapshot.differs(plugin):
                self._read_again(known)
                known.snapshot = callback.MethodSnapshot(plugin)
            if known.listed and known.position != place:
                known.position, moved = place, True
        if moved:
            for hook in _hooks(self):
                if len(hook) > 1:
                    hook.rearrange()

    def refresh(self, plugin: object, implementations: Iterable[Implementation] | None = None) -> None:
        """Read a registered plugin again, after its methods were assigned or patched.

        Raises:
            ValueError: the plugin is not registered.
        """
        registration = next((known for known in self._registrations.values() if known.plugin is plugin), None)
        if registration is None:
            raise ValueError(f"{plugin!r} is not registered, so it cannot be read again")
        self._read_again(registration, implementations)

    def expect_loaders(self, *, several: bool) -> None:
        """Pass ``dataloader_idx`` to every callback, or, as Lightning does with a single loader, to those that demand it.

        So a default of their own for it holds while there is one loader only.
        """
        if several is self.several_loaders:
            return
        self.several_loaders = several
        for registration in list(self._registrations.values()):
            if callback.is_callback(registration.plugin):
                present = {entry.read.hook for entry in registration.entries}
                made = self._read(registration.plugin, registration.name)
                self._read_again(registration, [found for found in made if found.hook in present])

    def get_name(self, plugin: object) -> str | None:
        """The name of a registered plugin, None if it is not registered. Equal objects are different plugins."""
        return next((name for name, known in self._name2plugin.items() if known is plugin), None)

    def is_registered(self, plugin: object) -> bool:
        """Whether this very object is registered."""
        return self.get_name(plugin) is not None

    def get_canonical_name(self, plugin: object) -> str:
        """The name a plugin gets if none is given: on hookbus's bus its module or class name, made unique."""
        if not self.list_order:
            return super().get_canonical_name(plugin)
        return self._free_name(plugin)

    def add_hookspecs(self, module_or_class: Any) -> None:
        """Add the hook specifications of a module or class."""
        known = of_catalogue(module_or_class) if self._reads_as_pluggy else None
        if known is not None and not any(hasattr(self.hook, made.spec.name) for made in known):
            for made in known:
                self._hook(made.spec.name).specify(made)
            self._specified(module_or_class)
            return
        names = [name for name in dir(module_or_class) if self.parse_hookspec_opts(module_or_class, name) is not None]
        for name in names:
            self._hook(name)
        super().add_hookspecs(module_or_class)
        self._specified(module_or_class)
        for name in names:
            hook = self._hook(name)
            hook.rearrange()
            hook.changed()

    def _specified(self, namespace: Any) -> None:
        self._specifications.append(namespace)
        self._arguments = None

    @property
    def _reads_as_pluggy(self) -> bool:
        """Whether specifications are those that carry hookbus's mark."""
        plain_parse = type(self).parse_hookspec_opts is pluggy.PluginManager.parse_hookspec_opts
        return plain_parse and self.project_name == PROJECT

    def check_pending(self) -> None:
        """Raise if an implementation belongs to no specified hook; all such are named, with the nearest hook.

        Raises:
            RegistrationError: unless they are marked ``optionalhook``.
        """
        known = [hook.name for hook in _hooks(self) if hook.has_spec()]
        found: list[tuple[object, str]] = []
        for hook in _hooks(self):
            if hook.has_spec() or hook.name.startswith("_"):
                continue
            found += [
                (impl.plugin, validate.unknown_hook(hook.name, impl.plugin_name, self._of(impl).location, known))
                for impl in hook.get_hookimpls()
                if not impl.optionalhook
            ]
        if found:
            raise RegistrationError(found[0][0], "\n".join(text for _, text in found))

    @property
    def mark(self) -> str | None:
        """The attribute that makes a function an implementation; None if a subclass has other ways to tell."""
        plain_parse = type(self).parse_hookimpl_opts is pluggy.PluginManager.parse_hookimpl_opts
        return f"{self.project_name}_impl" if plain_parse else None

    @property
    def arguments(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each specified hook's arguments."""
        if self._arguments is None:
            self._arguments = {hook.name: hook.shape.parameters for hook in _hooks(self) if hook.shape is not None}
        return self._arguments

    # -- looking into it ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of the registered plugins, in order of registration."""
        return list(self._registrations)

    def registration(self, name: str) -> Registration:
        """What the bus knows of the plugin with this name.

        Raises:
            KeyError: if there is none, with the names that there are.
        """
        try:
            return self._registrations[name]
        except KeyError:
            raise KeyError(f"no plugin {name!r} is registered; there are: {', '.join(self._registrations)}") from None

    def implementations(self, name: str) -> list[Implementation]:
        """What the plugin with this name implements."""
        return self.registration(name).implementations

    def implemented(self, hook: str) -> bool:
        """Whether anybody implements the hook."""
        found: Hook | None = getattr(self.hook, hook, None)
        return found is not None and bool(found._hookimpls)

    def order(self, hook: str) -> list[Position]:
        """The implementations of a hook in the order in which they are called.

        Raises:
            UnknownHookError: no such hook, with the nearest name.
        """
        found: Hook | None = getattr(self.hook, hook, None)
        if found is None:
            guess = validate.suggestion(hook, tuple(vars(self.hook)))
            raise UnknownHookError(f"no hook is named {hook!r}{guess}")
        return found.positions()

    def part(self, hook: str, plugins: Collection[str]) -> Callable[..., Any]:
        """A function like ``bus.fire.x`` that calls the named plugins only, as they are registered now.

        Args:
            hook: a specified hook.
            plugins: names; those that are not registered, or do not implement the hook, are left out.
        """
        found: Hook = getattr(self.hook, hook)
        return found.part(plugins)

    # -- calling -----------------------------------------------------------------------------------------------------

    def add_hookcall_monitoring(self, before: Any, after: Any) -> Callable[[], None]:
        """As pluggy's; while a monitor is on, both call paths go through it."""
        undo_in_pluggy = super().add_hookcall_monitoring(before, after)
        self._set_monitored(1)
        undone = False

        def undo() -> None:
            nonlocal undone
            undo_in_pluggy()
            if not undone:
                undone = True
                self._set_monitored(-1)

        return undo

    @contextlib.contextmanager
    def timed(self) -> Generator[Timing, None, None]:
        """Time each implementation for the duration of a ``with`` block; outside of one, timing costs nothing.

        Calls that take pluggy's plain way (historic hooks, hooks without specification or with an old-style wrapper,
        hookcall monitoring) are not timed; within a nested ``timed()`` the inner one has the clock.
        """
        outer, self.timing = self.timing, Timing()
        self._recompile()
        try:
            yield self.timing
        finally:
            self.timing = outer
            self._recompile()

    def tap(self, modules: Any, handler: Callable[..., Any], **options: Any) -> Any:
        """Call ``handler`` for what happens inside the network: ``with bus.tap("encoder.*.mlp", print, every=100): …``.

        As :meth:`hookbus.taps.Taps.tap` of the taps that serve this bus: a trainer's, or those of ``tapping(model)``.

        Raises:
            RuntimeError: none do.
        """
        return self._serving_taps().tap(modules, handler, **options)

    def capture(self, modules: Any, **options: Any) -> Any:
        """Keep what goes through the network: ``with bus.capture("layer3", grads=True) as captured: …``.

        As :meth:`hookbus.taps.Taps.capture` of the taps that serve this bus.

        Raises:
            RuntimeError: none do.
        """
        return self._serving_taps().capture(modules, **options)

    def serve_taps(self, taps: Any) -> None:
        """Let :meth:`tap` and :meth:`capture` be those of ``taps``, for as long as somebody keeps them."""
        self._taps = weakref.ref(taps)

    def set_rank(self, rank: int) -> None:
        """Tell the bus the global rank of this process, which ``rank_zero`` implementations ask for."""
        self._given_rank = rank

    def filter_state(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The counters of all filters, by plugin name and hook, for a checkpoint."""
        return {
            name: {hook: gate.state_dict() for hook, gate in registration.filters.items()}
            for name, registration in self._registrations.items()
            if registration.filters
        }

    def load_filter_state(self, state: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Take over saved counters; those of absent plugins are left alone."""
        for name, filters in state.items():
            known = self._registrations[name].filters if name in self._registrations else {}
            for hook, counters in filters.items():
                if hook in known:
                    known[hook].load_state_dict(counters)

    def _hookexec(self, hook_name: str, methods: Any, kwargs: Any, firstresult: bool) -> Any:
        """pluggy's plain way to run a call, taught the two kinds of hook that pluggy lacks."""
        hook: Hook | None = getattr(self.hook, hook_name, None)
        shape = hook.shape if hook is not None else None
        if shape is not None and (shape.fold or shape.collect_errors):
            inner = [impl for impl in methods if not (impl.wrapper or impl.hookwrapper)]
            wrappers = [impl for impl in methods if impl.wrapper or impl.hookwrapper]
            core = plain.plain_implementation(lambda: plain.run_special(shape, inner, kwargs))
            return self._inner_hookexec(hook_name, [core, *wrappers], kwargs, True)
        return self._inner_hookexec(hook_name, methods, kwargs, firstresult)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _serving_taps(self) -> Any:
        taps = self._taps() if self._taps is not None else None
        if taps is None:
            raise RuntimeError(
                "no taps serve this bus: use that of a trainer (trainer.bus), or hookbus.tapping(model) outside of one"
            )
        return taps

    def _read(self, plugin: object, name: str) -> list[Implementation]:
        """What ``plugin`` implements, by its shape."""
        made = native.implementations(plugin, self.parse_hookimpl_opts, self.mark)
        arguments = self.arguments
        try:
            if callback.is_callback(plugin):
                made += callback.implementations(plugin, arguments, several_loaders=self.several_loaders)
            elif module.is_module(plugin):
                made += module.implementations(plugin, arguments, several_loaders=self.several_loaders)
            elif module.is_datamodule(plugin):
                made += module.data_implementations(plugin, arguments)
            elif self.closed:
                validate.reject_class(plugin)
                native.warn_of_unmarked(plugin, name, [*arguments])
        except TypeError as error:
            raise RegistrationError(plugin, f"plugin {name!r}: {error}") from None
        return made

    def _read_again(self, registration: Registration, implementations: Iterable[Implementation] | None = None) -> None:
        """Replace those implementations that have changed since they were read."""
        made = list(self._read(registration.plugin, registration.name) if implementations is None else implementations)
        old = {_identity(entry.read): entry for entry in registration.entries}
        new = {_identity(implementation): implementation for implementation in made}
        added = [implementation for key, implementation in new.items() if key not in old]
        validate.check(self, registration.plugin, registration.name, registration.role, added)
        for key, entry in old.items():
            if key not in new:
                registration.entries.remove(entry)
                del self._entries[entry.impl]
                self._hook(entry.read.hook).remove(entry.impl)
        for implementation in added:
            self._add(registration, implementation)

    def _add(self, registration: Registration, read: Implementation, *, replay: bool = True) -> None:
        called, watched = read, registration.role == "monitor"
        if watched and read.options.get("when") is None:
            # Inside its filter, so that calls that are not due cost nothing.
            called, watched = self._guarded(called, registration), False
        hook = self._hook(read.hook)
        called, gate = filtered(called, self._rank, ("when",) if hook.is_tap else FILTERS)
        if watched:  # its predicate is the monitor's own code too
            called = self._guarded(called, registration)
        entry = Entry(read, called, plain.hookimpl_of(registration.plugin, registration.name, called), gate)
        self._entries[entry.impl] = entry
        registration.entries.append(entry)
        if replay:
            hook._maybe_apply_history(entry.impl)
        hook._add_hookimpl(entry.impl)

    def _guarded(self, implementation: Implementation, registration: Registration) -> Implementation:
        disturbs = getattr(registration.plugin, "disturbs_nothing", False) is not True
        return guarded(implementation, lambda hook, error: self._report(registration, hook, error), disturbs=disturbs)

    def _hook(self, name: str) -> Hook:
        """The hook of this name, made if it is the first time that anybody speaks of it."""
        hook: Hook | None = getattr(self.hook, name, None)
        if hook is None:
            hook = Hook(name, self)
            setattr(self.hook, name, hook)
        return hook

    def _of(self, impl: pluggy.HookImpl) -> Implementation:
        entry = self._entries.get(impl)
        return entry.called if entry is not None else plain.implementation_of(impl)

    def _ranked(self, impl: pluggy.HookImpl, owners: Sequence[str] | None) -> Ranked:
        """An implementation with its place among its equals."""
        registration = self._registrations.get(impl.plugin_name)
        if registration is None:
            return Ranked(self._of(impl), impl.plugin, impl.plugin_name, (0,))
        return registration.ranked(self._of(impl), owners or OWNERS)

    def _rank(self) -> int:
        """The global rank of this process: as told, else as launchers announce it, else 0."""
        if self._given_rank is not None:
            return self._given_rank
        return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) or 0)

    def _free_name(self, plugin: object) -> str:
        """A readable name that nobody has: the module's, function's or class's, numbered from the second on."""
        base = getattr(plugin, "__name__", None) or type(plugin).__name__
        taken, name, number = self._name2plugin, str(base), 2
        while taken.get(name) is not None:
            name, number = f"{base}#{number}", number + 1
        return name

    def _is_specified(self, name: str) -> bool:
        hook: Hook | None = getattr(self.hook, name, None)
        return hook is not None and hook.has_spec()

    def _report(self, registration: Registration, hook: str, error: Exception) -> None:
        """Say once per hook that a monitor failed, and tell whoever listens each time."""
        first = hook not in registration.failed
        registration.failed.add(hook)
        if first:
            warnings.warn(
                f"monitor {registration.name!r} failed in {hook}: {type(error).__name__}: {error}; the run goes on",
                RuntimeWarning,
                stacklevel=3,
            )
        listeners: Hook | None = getattr(self.hook, "on_plugin_error", None)
        if listeners is None or hook == "on_plugin_error":
            return
        kwargs = {"plugin": registration.plugin, "name": registration.name, "hook": hook, "exception": error}
        self._hookexec(listeners.name, listeners.get_hookimpls(), kwargs, False)
        if first and listeners.is_historic():  # late plugins hear of the first only, else the history grows all run
            listeners.remember({**kwargs, "exception": EarlierError(error)})

    def _set_monitored(self, change: int) -> None:
        self.monitored += change
        self._recompile()

    def _recompile(self) -> None:
        for hook in _hooks(self):
            hook.changed()

    def __getstate__(self) -> dict[str, Any]:
        return copying.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        copying.restore(self, state)


#: Historic hooks whose calls are about one plugin each.
_ABOUT_PLUGINS = ("on_plugin_registered", "on_plugin_error")


def _hooks(bus: Bus) -> list[Hook]:
    return list(vars(bus.hook).values())


def _identity(implementation: Implementation) -> tuple[object, ...]:
    """What stays the same when an unchanged plugin is read again: bound methods are made anew by each access."""
    function = implementation.function
    owner = getattr(function, "__self__", None)
    return (implementation.hook, id(getattr(function, "__func__", function)), id(owner), implementation.args)
